"""No file that is only read is ever changed: bytes, times and modes, by any command."""

import json

import numpy as np
import pytest
from lora_bases import write_base

from toynn.cli import main

TEXT = "the cat sat on the mat and the rat sat on the cat " * 20
SHORT = ("--steps", "2", "--save-every", "1", "--eval-every", "1", "--warmup", "0")
SHAPE = ("--d-model", "16", "--heads", "2", "--layers", "1")
TEXTS = ("--data", "in/text.txt", "--seq", "8")
MODEL = ("--model", "in/base.gguf")
ADAPTED = (*MODEL, "--adapter", "in/adapted")
COMMANDS = [
    ("info", "in/base.gguf"),
    ("info", "in/adapted"),
    ("info", "in/hf"),
    ("generate", *ADAPTED, "--prompt", "a", "--max-tokens", "2"),
    ("eval", *ADAPTED, "--data", "in/text.txt", "--seq", "8"),
    ("fuse", *ADAPTED, "--out", "fused.gguf"),
    ("export", *ADAPTED, "--to", "gguf", "--out", "a.gguf"),
    ("export", *MODEL, "--to", "hf", "--out", "out-hf"),
    ("train", "lora", *ADAPTED, "--data", "in/pairs.jsonl", "--seq", "16", *SHORT, "--out", "1"),
    ("train", "lora", *MODEL, "--data", "in/text.txt", "--seq", "16", *SHORT, "--out", "2"),
    ("train", "gpt2", "--data", "in/bins", "--seq", "8", *SHAPE, *SHORT, "--out", "3"),
    ("train", "from-scratch", "--init-from", "in/hf", *TEXTS, *SHORT, "--cache", "c", "--out", "4"),
    ("train", "warm-start", "--donor", "in/base.gguf", *TEXTS, *SHAPE, *SHORT, "--out", "5"),
    ("train", "vit", "--data", "in/pictures.npz", *SHAPE, *SHORT, "--out", "6"),
    ("train", "vit", "--data", "in/pictures.npz", "--init-from", "in/vit", *SHORT, "--out", "7"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    made = folder / "in"
    (made / "bins").mkdir(parents=True)
    (made / "text.txt").write_text(TEXT)
    pairs = [{"prompt": f"say {n}: ", "completion": "abc"} for n in range(20)]
    (made / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    for name in ("train", "val"):
        np.frombuffer(TEXT.encode(), np.uint8).astype("<u2").tofile(made / "bins" / f"{name}.bin")
    write_base(made / "base.gguf", vocab=256, context=64)
    images = np.random.default_rng(1).integers(0, 256, (40, 8, 8), np.uint8)
    np.savez(made / "pictures.npz", images=images, labels=np.arange(40) % 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ("train", "lora", *MODEL, "--data", "in/text.txt", "--seq", "16", "--steps", "1")
        assert main([*words, "--out", "in/adapted"]) == 0
        assert main(["export", *MODEL, "--to", "hf", "--out", "in/hf"]) == 0
        words = ("train", "vit", "--data", "in/pictures.npz", *SHAPE, "--steps", "1")
        assert main([*words, "--out", "in/vit"]) == 0
    for path in made.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in made.rglob("*"):
        path.chmod(0o755)


def state(folder):
    return {
        str(path): (
            path.stat().st_mtime_ns,
            path.stat().st_mode,
            path.is_dir() or path.read_bytes(),
        )
        for path in [folder, *sorted(folder.rglob("*"))]
    }


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:4]))
def test_what_is_read_stays_as_it_is(words, files, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setattr("toynn.jobs.text.SAMPLE_TOKENS", 2)
    before = state(files / "in")
    assert main(list(words)) == 0
    assert state(files / "in") == before
