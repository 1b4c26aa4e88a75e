"""Safetensors files as toynn writes them: what the library reads, and the same bytes each time."""

import numpy as np
import pytest
import vits
from llamas import make as llama
from lora_bases import make as lora
from lora_bases import write_base
from safetensors import safe_open
from safetensors.numpy import load_file, save

from toynn.formats import safetensors

RNG = np.random.default_rng(0)
WEIGHTS = {
    name: RNG.standard_normal(shape).astype(np.float32)
    for name, shape in (("b", (3, 5)), ("a.\N{GREEK SMALL LETTER MU}", (2,)), ("none", (0, 4)),
                        ("scalar", ()), ('quoted "\n', (1, 2, 3)))
}  # fmt: skip
WEIGHTS["turned"] = WEIGHTS["b"].T
METADATA = {f"key {n}": f"\x00 {n} \N{SNOWMAN}" for n in range(8)}


@pytest.mark.parametrize("names", [list(WEIGHTS), ["b"], []])
def test_the_bytes_are_the_librarys(names):
    weights = {name: WEIGHTS[name] for name in names}
    contiguous = {name: values.copy(order="C") for name, values in weights.items()}
    assert safetensors.encode(weights) == save(contiguous)


def test_the_library_reads_weights_and_metadata(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors.encode(WEIGHTS, METADATA))
    weights = load_file(path)
    assert weights.keys() == WEIGHTS.keys()
    for name, values in WEIGHTS.items():
        np.testing.assert_array_equal(weights[name], values, strict=True)
    with safe_open(path, "numpy") as file:
        assert file.metadata() == METADATA


def vit(folder):
    recipe = vits.make()
    recipe.engine.class_names = tuple("abcde")
    recipe.save(folder / "model.safetensors")


def peft(folder):
    base = folder.parent / "base.gguf"
    if not base.exists():
        write_base(base)
    lora(base).export_peft(folder)


def run(folder):
    llama().write_run(folder)


WRITERS = {"vit": vit, "peft": peft, "run": run, "hf": lambda f: llama().engine.export_hf(f / "hf")}


@pytest.mark.parametrize("writer", WRITERS)
def test_equal_runs_write_equal_files(writer, tmp_path):
    contents = []
    for n in range(8):
        folder = tmp_path / str(n)
        folder.mkdir()
        WRITERS[writer](folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        contents.append([(path.name, path.read_bytes()) for path in files])
    assert any(name.endswith(".safetensors") for name, _ in contents[0])
    assert all(content == contents[0] for content in contents)
