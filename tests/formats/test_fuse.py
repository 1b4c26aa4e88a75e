"""Fusing: what comes out, in which types, what it costs, and that nothing else changes."""

import os
import tracemalloc
from dataclasses import replace

import gguf as library
import numpy as np
import pytest
from gguf_bytes import small
from some_adapters import draw, merged
from test_hf import build

from toynn.cli import main
from toynn.errors import AdapterError, ConfigError, GGUFError
from toynn.formats import adapters, gguf
from toynn.formats.fuse import fuse
from toynn.formats.quants import BLOCKS, TYPES
from toynn.testing.cases.quants import blocks

KEYS = {
    "general.architecture": "llama",
    "general.file_type": 2,
    "llama.attention.head_count": 2,
    "tokenizer.ggml.model": "no_vocab",
    "tokenizer.ggml.tokens": ["a", "\udcff", "ß"],
    "tokenizer.ggml.scores": ([0.5, 1, 2], "[FLOAT32]"),
    "odd": (3, "UINT8"),
}
WEIGHTS = ["blk.0.attn_q.weight", "blk.0.ffn_up.weight"]
OTHERS = ["blk.0.attn_k.weight", "token_embd.weight"]
ROWS, COLUMNS = 16, 512


def stored(rng, type):
    """Random blocks of a type, of small finite weights."""
    if type in gguf.WRITABLE:
        return gguf.encode("w", 0.1 * rng.standard_normal((ROWS, COLUMNS)), type)
    return blocks(rng, TYPES[type], ROWS * COLUMNS // BLOCKS[type][0]).reshape(ROWS, -1)


@pytest.fixture
def open_base(tmp_path):
    """A function that writes a base whose matrices are of a type, and opens it."""
    files = []

    def make(type, **others):
        rng = np.random.default_rng(3)
        tensors = {name: (stored(rng, type), type) for name in WEIGHTS + OTHERS}
        tensors["blk.0.attn_norm.weight"] = (np.ones(COLUMNS, np.float32), "f32")
        gguf.write(tmp_path / "base.gguf", KEYS, {**tensors, **others})
        files.append(gguf.open(tmp_path / "base.gguf"))
        return files[-1]

    yield make
    for file in files:
        file.close()


def assert_rest_is_kept(base, fused):
    """All metadata, and the bytes of what was not merged."""
    assert fused.metadata.keys() == base.metadata.keys()
    for key, value in base.metadata.items():
        np.testing.assert_array_equal(fused.metadata[key], value)
    assert fused.types == base.types
    assert list(fused) == list(base)
    for name in base:
        if name not in WEIGHTS:
            assert fused.tensors[name].type == base.tensors[name].type
            np.testing.assert_array_equal(fused.raw(name), base.raw(name))


def test_float32_is_exact(open_base, tmp_path):
    base = open_base("F32")
    adapter = draw(base, WEIGHTS, ranks=(3, 5))
    done = fuse(base, adapter, tmp_path / "fused.gguf")
    assert done.types == dict.fromkeys(WEIGHTS, ("F32", "F32"))
    assert done.rounding() == 0
    expected = merged(base, adapter)
    with gguf.open(tmp_path / "fused.gguf") as fused:
        assert_rest_is_kept(base, fused)
        for name in WEIGHTS:
            np.testing.assert_allclose(fused[name], expected[name], rtol=0, atol=1e-6)
            assert np.abs(fused[name] - base[name]).max() > 0.1


@pytest.mark.parametrize("type", sorted(BLOCKS.keys() - {"F32"}))
def test_types_are_kept_where_they_can_be_written(type, open_base, tmp_path):
    base = open_base(type)
    adapter = draw(base, WEIGHTS)
    done = fuse(base, adapter, tmp_path / "fused.gguf")
    written = type if type in gguf.WRITABLE else "Q8_0"
    assert done.types == dict.fromkeys(WEIGHTS, (type, written))
    expected = merged(base, adapter)
    with gguf.open(tmp_path / "fused.gguf") as fused:
        assert [fused.tensors[name].type for name in WEIGHTS] == [written] * 2
        if type in gguf.WRITABLE:
            assert_rest_is_kept(base, fused)
        # Rounded once, and measured as it is: the library's own rounding is as far off.
        changed = added = 0.0
        for name in WEIGHTS:
            change = ((fused[name] - expected[name]) ** 2).sum()
            add = ((expected[name] - base[name].astype(np.float64)) ** 2).sum()
            assert done.rounding(name) == pytest.approx((change / add) ** 0.5, rel=1e-2)
            kind = library.GGMLQuantizationType[written]
            exact = expected[name].astype(np.float32)
            theirs = library.quants.dequantize(library.quants.quantize(exact, kind), kind)
            assert change <= 1.01 * ((theirs - expected[name]) ** 2).sum()
            changed, added = changed + change, added + add
        assert done.rounding() == pytest.approx((changed / added) ** 0.5, rel=1e-2)


@pytest.mark.parametrize(("outtype", "number"), [("f32", 0), ("f16", 1), ("bf16", 32), ("q8_0", 7)])
@pytest.mark.parametrize("type", ["Q4_0", "Q6_K", "F16"])
def test_all_matrices_as_one_type(type, outtype, number, open_base, tmp_path):
    base = open_base(type)
    adapter = draw(base, WEIGHTS)
    fuse(base, adapter, tmp_path / "fused.gguf", outtype=outtype)
    expected = merged(base, adapter)
    with gguf.open(tmp_path / "fused.gguf") as fused:
        assert fused.metadata["general.file_type"] == number
        for name in WEIGHTS + OTHERS:
            assert fused.tensors[name].type == outtype.upper()
            largest = np.abs(expected[name]).max()
            np.testing.assert_allclose(fused[name], expected[name], rtol=0, atol=5e-3 * largest)
        assert fused.tensors["blk.0.attn_norm.weight"].type == "F32"


def test_the_type_of_the_file_is_what_most_of_it_is(open_base, tmp_path):
    base = open_base("Q4_K")
    for weights, number in ((WEIGHTS[:1], 2), ([*WEIGHTS, "blk.0.attn_k.weight"], 7)):
        fuse(base, draw(base, weights), tmp_path / "fused.gguf", overwrite=True)
        with gguf.open(tmp_path / "fused.gguf") as fused:
            assert fused.metadata["general.file_type"] == number


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_is_merged_and_the_head_stays(open_base, tmp_path, tied):
    """A head that was the table is a matrix of its own then: the adapter is of the table alone."""
    head = np.ones((4, COLUMNS), np.float32)
    base = open_base("F32", **({} if tied else {"output.weight": (head, "f32")}))
    adapter = draw(base, ["token_embd.weight"])
    fuse(base, adapter, tmp_path / "fused.gguf")
    with gguf.open(tmp_path / "fused.gguf") as fused:
        expected = merged(base, adapter)["token_embd.weight"]
        np.testing.assert_allclose(fused["token_embd.weight"], expected, rtol=0, atol=1e-6)
        want = base["token_embd.weight"] if tied else head
        np.testing.assert_array_equal(fused["output.weight"], want)


def test_refused(open_base, tmp_path):
    unreadable = np.zeros((4, 292), np.uint8), "Q8_K"
    base = open_base("F32", **{"blk.0.attn_v.weight": unreadable})
    out = tmp_path / "fused.gguf"
    whole = base.path.read_bytes()
    adapter = draw(base, WEIGHTS)
    os.link(base.path, tmp_path / "link.gguf")
    for path in (base.path, tmp_path / "link.gguf"):
        with pytest.raises(GGUFError, match="cannot write: this file is being read"):
            fuse(base, adapter, path, overwrite=True)
    out.write_text("mine")
    with pytest.raises(GGUFError, match=r"fused\.gguf: already exists; pass overwrite=True"):
        fuse(base, adapter, out)
    assert out.read_text() == "mine"
    out.unlink()
    with pytest.raises(ConfigError, match=r"be f32, f16, q8_0, bf16, q2_k, .*; got 'q4_k_x'"):
        fuse(base, adapter, out, outtype="q4_k_x")
    with pytest.raises(GGUFError, match=r"blk\.0\.attn_v\.weight at byte .* got Q8_K"):
        fuse(base, draw(base, ["blk.0.attn_v.weight"]), out)
    with pytest.raises(AdapterError, match="expected 'llama', as the base model is; got 'qwen2'"):
        fuse(base, replace(draw(base, WEIGHTS), architecture="qwen2"), out)
    assert not out.exists()
    fuse(base, adapter, out)
    with gguf.open(out) as fused:
        assert_rest_is_kept(base, fused)  # the type that toynn cannot read, too
    assert base.path.read_bytes() == whole


@pytest.mark.parametrize(("type", "matrices"), [("F32", 1.8), ("Q8_0", 1.9)])
def test_one_matrix_at_a_time_is_in_memory(type, matrices, tmp_path):
    shape = (1024, 1024)
    names = [f"blk.{n}.attn_q.weight" for n in range(8)]
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    gguf.write(tmp_path / "base.gguf", KEYS, {name: (w, type) for name in names})
    with gguf.open(tmp_path / "base.gguf") as base:
        adapter = draw(base)
        fuse(base, adapter, tmp_path / "warm.gguf")
        tracemalloc.start()
        done = fuse(base, adapter, tmp_path / "fused.gguf")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < matrices * w.nbytes
        expected = merged(base, adapter)[names[3]]
        added = expected - base[names[3]]
    with gguf.open(tmp_path / "fused.gguf") as fused:
        ratio = np.linalg.norm(fused[names[3]] - expected) / np.linalg.norm(added)
        np.testing.assert_allclose(fused[names[3]], expected, rtol=0, atol=0.05)
    if type != "F32":
        assert done.rounding(names[3]) == pytest.approx(ratio, rel=1e-2)


def test_arrays_that_are_empty_are_left_out(tmp_path):
    """The writer has none."""
    with gguf.open(small().write(tmp_path)) as base:
        fuse(base, draw(base, ["a"]), tmp_path / "fused.gguf")
        with gguf.open(tmp_path / "fused.gguf") as fused:
            assert base.metadata.keys() - fused.metadata.keys() == {"none"}


# -- the command line ------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """A base and an adapter."""
    build("llama").export_gguf(tmp_path / "base.gguf")
    with gguf.open(tmp_path / "base.gguf") as base:
        adapters.write_gguf(tmp_path / "a.gguf", draw(base, ranks=(2, 4, 4)))
    return tmp_path


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_fuse_says_what_it_did(files, capsys):
    base = ["--model", files / "base.gguf", "--adapter", files / "a.gguf", "--out"]
    assert run("fuse", *base, files / "f32.gguf") == 0
    said = capsys.readouterr().out
    assert said == f"{files / 'f32.gguf'}: merged 14 of 20 tensors, rank 2-4, alpha 8\n"
    assert run("fuse", *base, files / "f16.gguf", "--outtype", "f16") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("rounding to F16 changed 14 merged tensors by 0.")
    assert "of what the adapter adds, blk." in " ".join(map(str.strip, said))
    assert said[-1] == "14 merged tensors: F32 before, F16 now"
    assert run("fuse", *base, files / "f16.gguf") == 2
    assert "f16.gguf: already exists; pass --overwrite to" in capsys.readouterr().err
    assert run("fuse", *base, files / "f16.gguf", "--overwrite") == 0
    assert run("fuse", *base, files / "base.gguf", "--overwrite") == 2
    said = "base.gguf: cannot write: this file is being read; name another file"
    assert said in capsys.readouterr().err


def test_export_goes_both_ways(files, capsys):
    base, first, folder = files / "base.gguf", files / "a.gguf", files / "peft"
    export = ["export", "--to"]
    assert run(*export, "peft", "--adapter", first, "--out", folder) == 2
    error = capsys.readouterr().err
    assert error.startswith("toynn: error: ") and "name the base model (--model)" in error
    assert run(*export, "peft", "--adapter", first, "--out", folder, "--model", base) == 0
    assert capsys.readouterr().out == f"{folder}: 14 tensors adapted, rank 2-4, alpha 8\n"
    assert run(*export, "gguf", "--adapter", folder, "--out", files / "b.gguf") == 2
    assert "name the base model too (--model)" in capsys.readouterr().err
    assert (
        run(*export, "gguf", "--adapter", folder, "--out", files / "b.gguf", "--model", base) == 0
    )
    assert first.read_bytes() == (files / "b.gguf").read_bytes()
    assert run(*export, "peft", "--adapter", first, "--out", folder, "--model", base) == 2
    assert "already exists" in capsys.readouterr().err
    assert run(*export, "onnx", "--adapter", first, "--out", folder) == 2
    assert "invalid choice: 'onnx'" in capsys.readouterr().err
