"""``toynn train gpt2`` of two ranks, the second of which differs by what the first word says."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

WORDS = ["train", "gpt2", "--steps", "2", "--d-model", "16", "--layers", "1", "--heads", "2"]
WORDS += ["--seq", "8", "--batch", "2", "--out", "run"]


def main(what):
    """Train; return the exit code."""
    second = os.environ["PMI_RANK"] == "1"
    words = list(WORDS)
    if second and what == "extra":
        sys.modules["mpi4py"] = None  # which is what Python has where an import is to fail
    if second and what == "level":
        os.environ["TOYNN_ISA"] = "generic"
    import toynn.backends.config
    import toynn.cli
    from toynn.distributed import start

    start.TURN = 0.0  # what is wrong is wrong with one rank

    if what == "base":
        import lora_bases

        folder = f"base-{second}"
        os.makedirs(folder)
        lora_bases.write_base(f"{folder}/m.gguf", "gpt2", "F16" if second else "F32", vocab=256)
        os.chdir(folder)
        words = ["train", "gpt2", "--steps", "2", "--init-from", "m.gguf", "--seq", "8"]
        words += ["--batch", "2", "--out", "run"]
    elif what == "data":
        words += ["--data", f"{'ab'[second]}.txt"]
    elif what == "missing":
        words += ["--data", "none.jsonl" if second else "a.txt"]
    elif second and what == "version":
        toynn.backends.config.release = lambda: "another"
    elif second and what == "config":
        words += ["--lr", "0.004"]
    return toynn.cli.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
