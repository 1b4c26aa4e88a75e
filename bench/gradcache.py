"""Memory of a step on many pairs, mini_batch texts at a time: ``python bench/gradcache.py``.

InfoNCE on pairs of encoders.py's lengths, MiniLM's shape. Each step runs in a process of its own,
whose peak memory is printed.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import encoders as natural
from smallest import smallest

#: (Pairs of a batch, texts that a tape embeds; 0: all of them).
STEPS = smallest(((32, 0), (4096, 64)), ((4, 0), (8, 4)))


def run(folder: Path, pairs: int, mini_batch: int) -> None:
    """Take one step; print the process's peak memory in MB."""
    import toynn
    from toynn.data.texts import Texts
    from toynn.engines.encoder import Encoder, Task

    batch = Texts.pack(natural.texts(2 * pairs))
    longest, at_once = max(map(len, natural.texts(2 * pairs))), mini_batch or 2 * pairs
    room = -(-batch.tokens * at_once // (2 * pairs) // longest)
    options = toynn.RecipeOptions(t_seq=longest, t_batch=max(1, room), n_threads=1)
    task = Task("vectors", factor=natural.SCALE, mini_batch=mini_batch)
    encoder = Encoder.load(folder, task, options, build=False)
    encoder.texts = at_once
    encoder.build_training_step()
    encoder.train(batch, toynn.AdamW.for_lora(lr=natural.LR).hp(1), True)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f}")


def main() -> None:
    """Print the peak memory of each of STEPS."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", nargs=3, metavar=("FOLDER", "PAIRS", "TEXTS"))
    if step := parser.parse_args().step:
        return run(Path(step[0]), int(step[1]), int(step[2]))
    with tempfile.TemporaryDirectory() as folder:
        natural.write_folder(Path(folder), "minilm")
        for pairs, texts in STEPS:
            words = [sys.executable, __file__, "--step", folder, str(pairs), str(texts)]
            peak = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
            print(f"{pairs} pairs, {texts or 'all'} texts at a time: {peak} MB", flush=True)


if __name__ == "__main__":
    main()
