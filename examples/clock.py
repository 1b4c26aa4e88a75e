"""The clock: how well a model predicts a fixed text, by the CPU-seconds that it learned for.

    python -m pip download --no-deps --only-binary=:all: sympy==1.13.3
    python examples/clock.py text sympy-1.13.3-py3-none-any.whl TEXT
    python examples/clock.py run examples/records/gpt2.py TEXT OUT --budget 3 --target 1.2345

A record is a Python file with a function train(text, out, seed, budget). It learns from the file
`text` in about `budget` minutes of one core, and writes a run folder `out` with a model.gguf. It
may do anything but look at the validation text. Its time is CPU-seconds of all threads, from
reading the text on; imports come before. docs/clock.md has the rules and the records.
"""

import hashlib
import json
import math
import statistics
import subprocess
import sys
import time
import zipfile
from argparse import ArgumentParser
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import compress
from pathlib import Path

import numpy as np

from toynn.engines import frozen
from toynn.evaluation.scores import losses
from toynn.formats import gguf
from toynn.formats.tokenizer import Tokenizer

WHEEL = "54612cf55a62755ee71824ce692986f23c88ffa77207b30c1368eda4a7060f73"  # SHA-256
TEXTS = {
    "train.txt": "0510190cd15f689add3db0abf32ca3297380ce03adc54e0e9a4126ebedff06af",
    "valid.txt": "5e184cb86a522124bdb33949de0d1e8395c041446a691c18714c4fd71bc5d4ea",
}
HELD = 4  # of 256 files, by the first byte of a name's SHA-256
WINDOW = 64  # bytes that no window of the validation text may share with the training text
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit is lost


def hashes(text):
    """Return a hash, uint64, of each window of WINDOW bytes."""
    values, size = np.frombuffer(text, np.uint8).astype(np.uint64), 1
    while size < WINDOW:  # two neighbours of `size` bytes give one of twice as many
        values = values[:-size] * FACTOR + values[size:]
        values ^= values >> np.uint64(29)
        size *= 2
    return values


def leaks(paragraphs, train):
    """Return whether each paragraph has a window that is in the training text."""
    ordered = np.sort(np.append(hashes(train), ~np.uint64(0)))  # whose last is beyond any other
    values = [hashes(each) for each in paragraphs]
    return [(ordered[np.searchsorted(ordered, v)] == v).any() for v in values]


def check_apart(valid, train):
    """Exit if a paragraph of the validation text has a window that is in the training text.

    A window over two paragraphs may be there by chance: they were not always neighbours.
    """
    paragraphs = valid.split(b"\n\n")
    shared = list(compress(paragraphs, leaks(paragraphs, train)))
    if shared:
        sys.exit(
            f"the validation text leaks: {len(shared)} of its paragraphs share a window of "
            f"{WINDOW} bytes with the training text, first {shared[0][:WINDOW]!r}"
        )


def parted(texts, held=HELD):
    """Return the bytes to train on and to validate on, of (name, text) pairs.

    Each paragraph is there once, and whole files are held out. A held-out paragraph that shares a
    window with one to train on is left out.
    """
    seen, parts = set(), ([], [])
    for name, text in texts:
        which = hashlib.sha256(name.encode()).digest()[0] < held
        new = [each for each in text.split("\n\n") if each.strip() and each not in seen]
        seen.update(new)
        parts[which].extend(each.encode() for each in new)
    train = b"\n\n".join(parts[0])
    apart = [p for p, leak in zip(parts[1], leaks(parts[1], train), strict=True) if not leak]
    return train, b"\n\n".join(apart)


def write_text(wheel, folder):
    """Write train.txt and valid.txt; exit for another wheel, and for texts with other hashes."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL:
        sys.exit(f"{wheel}: expected the wheel with SHA-256 {WHEEL}; got {found}")
    with zipfile.ZipFile(wheel) as file:
        names = sorted(each for each in file.namelist() if each.endswith(".py"))
        parts = parted((each, file.read(each).decode().replace("\r\n", "\n")) for each in names)
    folder.mkdir(parents=True)
    for (name, sha256), data in zip(TEXTS.items(), parts, strict=True):
        (folder / name).write_bytes(data)
        found = hashlib.sha256(data).hexdigest()
        print(f"{name}: {len(data):,} bytes, SHA-256 {found}")
        if found != sha256:
            sys.exit(f"{name}: expected SHA-256 {sha256}")


def bits_per_byte(model, text, batch=16):
    """Return the bits that a model needs for a byte of a text, of which it predicts every token.

    It reads windows of its context T, each T / 2 tokens after the last, and predicts with at least
    T / 2 tokens before, where there are so many. The first token costs log2(number of tokens).
    """
    with gguf.open(model) as file:
        tokenizer, engine = Tokenizer.of(file), frozen(file)
    ids, seq = tokenizer.encode_array(text.decode()), engine.context
    nats, half = math.log(tokenizer.vocab_size), seq // 2
    begins = list(range(0, max(1, len(ids) - 1 - seq + half), half))
    whole = [b for b in begins[1:] if b + seq < len(ids)]
    groups = [whole[k : k + batch] for k in range(0, len(whole), batch)]
    for group in [begins[:1], *groups, *([b] for b in begins[1:] if b + seq >= len(ids))]:
        windows = [ids[b : min(b + seq, len(ids) - 1)] for b in group]
        first = half if group[0] else 0
        rows = [k * seq + row for k, w in enumerate(windows) for row in range(first, len(w))]
        pairs = zip(group, windows, strict=True)
        labels = np.concatenate([ids[b + first + 1 : b + len(w) + 1] for b, w in pairs])
        if rows:
            logits = engine.logits(np.concatenate(windows), batch=len(group), rows=rows)
            nats += float(losses(logits, labels)[0].sum())
    return nats / math.log(2) / len(text)


def chance(values, target):
    """Return p that values with a mean of `target` or more have a mean as low (Student's t)."""
    n = len(values)
    spread = statistics.stdev(values) / math.sqrt(n)
    t = (target - statistics.mean(values)) / max(spread, 1e-12)
    angle = np.linspace(math.atan(t / math.sqrt(n - 1)), math.pi / 2, 10_001)
    return float(
        np.trapezoid(np.cos(angle) ** (n - 2), angle)
        * math.gamma(n / 2)
        / (math.sqrt(math.pi) * math.gamma((n - 1) / 2))
    )


def once(record, text, out, seed, budget):
    """Let a record train, in this process; write its CPU-seconds next to `out`."""
    for name in ("toynn.cli.train", "toynn.cli.tokenizer", "toynn.jobs", "tokenizers"):
        import_module(name)
    sys.path.insert(0, str(record.parent))  # a record may import another
    spec = spec_from_file_location("record", record)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    start = time.process_time()
    module.train(text, out, seed, budget)
    out.with_suffix(".json").write_text(json.dumps({"seconds": time.process_time() - start}))


def run(record, text, out, seeds, budget, target):
    """Train with each seed in a process of its own; print time and bits per byte of each."""
    out.mkdir(parents=True)
    results, valid = [], (text / "valid.txt").read_bytes()
    check_apart(valid, (text / "train.txt").read_bytes())
    for seed in seeds:
        folder = out / f"seed-{seed}"
        words = [sys.executable, "-P", __file__, "once", record, text / "train.txt", folder]
        with open(out / f"seed-{seed}.log", "w") as log:
            subprocess.run([*words, str(seed), str(budget)], check=True, stdout=log)
        seconds = json.loads(folder.with_suffix(".json").read_text())["seconds"]
        results.append(bits_per_byte(folder / "model.gguf", valid))
        print(
            f"seed {seed}: {seconds:.1f} CPU-seconds, {results[-1]:.4f} bits per byte", flush=True
        )
    print(f"mean of {len(seeds)}: {statistics.mean(results):.4f}")
    if target is not None and len(seeds) > 2:
        p = chance(results, target)
        print(f"p {p:.4f} against {target}: {'a record' if p < 0.01 else 'no record'}")


def main():
    """Run a command."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    made = commands.add_parser("text", help="write the training and the validation text")
    made.add_argument("wheel", type=Path)
    made.add_argument("folder", type=Path)
    for name in ("run", "once"):
        each = commands.add_parser(name)
        for argument in ("record", "text", "out"):
            each.add_argument(argument, type=Path)
    each.add_argument("seed", type=int)
    each.add_argument("budget", type=int)
    each = commands.choices["run"]
    each.add_argument("--budget", type=int, required=True, help="minutes of one core")
    each.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    each.add_argument("--target", type=float, help="bits per byte to be below")
    values = vars(parser.parse_args())
    {"text": write_text, "run": run, "once": once}[values.pop("command")](**values)


if __name__ == "__main__":
    main()
