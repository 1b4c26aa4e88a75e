"""Mixes by fuse, convert, export_gguf: llama.cpp's quantizer is asked right, its file judged."""

import ctypes
import logging
import os
import sys
from types import ModuleType

import gguf as library
import numpy as np
import pytest
from some_adapters import draw, merged

import toynn
from toynn.cli import main
from toynn.engines import LlamaConfig, LlamaSeqEngine, SequenceEngine, frozen
from toynn.engines.converting import convert
from toynn.errors import ConfigError, GGUFError
from toynn.formats import adapters, gguf, hf
from toynn.formats.fuse import fuse
from toynn.formats.outtypes import MIXES, OUTTYPES

KEYS = {"general.architecture": "llama", "general.file_type": 0}
WEIGHTS = ["blk.0.attn_q.weight", "blk.0.ffn_down.weight"]


class Parameters(ctypes.Structure):
    """The first fields of llama_model_quantize_params, as llama-cpp-python declares them."""

    _fields_ = (
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("output_tensor_type", ctypes.c_int),
        ("token_embedding_type", ctypes.c_int),
        ("allow_requantize", ctypes.c_bool),
    )


@pytest.fixture
def quantizer(monkeypatch):
    """A stand-in for llama_cpp: it writes down projections in Q8_0, other matrices in Q4_0."""
    stand_in = ModuleType("llama_cpp")
    stand_in.calls = []

    def quantize(source, out, reference):
        parameters = ctypes.cast(reference, ctypes.POINTER(Parameters)).contents
        stand_in.calls.append((source, parameters.ftype, parameters.nthread))
        log = logging.getLogger("llama-cpp-python")  # as its callback does
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            if log.level <= level and (stand_in.fails or level < logging.ERROR):
                print(f"level {level}", file=sys.stderr)
        if stand_in.fails:
            return 1
        with gguf.open(os.fsdecode(source)) as whole:
            tensors = {}
            for name, info in whole.tensors.items():
                kind = "F32" if len(info.shape) < 2 else "Q8_0" if "down" in name else "Q4_0"
                tensors[name] = gguf.encode(name, np.array(whole[name]), kind), kind
            metadata = {**gguf.typed_metadata(whole.metadata, whole.types), "general.file_type": 15}
            gguf.write(os.fsdecode(source) + ".mix", metadata, tensors)
        with open(os.fsdecode(source) + ".mix", "rb") as made, open(out, "wb") as file:
            file.write(made.read())
        return 0

    stand_in.fails = False
    stand_in.llama_backend_init = lambda: stand_in.calls.append("init")
    stand_in.llama_model_quantize_default_params = lambda: Parameters(-1, 0, 99, 99, False)
    stand_in.llama_model_quantize = quantize
    monkeypatch.setitem(sys.modules, "llama_cpp", stand_in)
    return stand_in


@pytest.fixture
def base(tmp_path):
    rng = np.random.default_rng(3)
    names = [*WEIGHTS, "blk.0.attn_k.weight"]
    tensors = {name: (rng.standard_normal((16, 64)).astype("f"), "q8_0") for name in names}
    tensors["blk.0.attn_norm.weight"] = np.ones(64, np.float32), "f32"
    gguf.write(tmp_path / "base.gguf", KEYS, tensors)
    with gguf.open(tmp_path / "base.gguf") as file:
        yield file


def test_a_mix_is_made_of_the_merged_model_in_float32(base, quantizer, tmp_path):
    adapter, out = draw(base, WEIGHTS), tmp_path / "fused.gguf"
    done = fuse(base, adapter, out, outtype="q4_k_m")
    assert quantizer.calls[0] == "init" and len(quantizer.calls) == 2
    source, ftype, threads = quantizer.calls[1]
    assert (ftype, threads) == (library.LlamaFileType.MOSTLY_Q4_K_M, 0)
    assert not os.path.exists(os.path.dirname(source))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.gguf", "fused.gguf"]
    assert done.types == dict(zip(WEIGHTS, [("Q8_0", "Q4_0"), ("Q8_0", "Q8_0")], strict=True))
    expected = merged(base, adapter)
    with gguf.open(out) as fused:
        assert fused.metadata["general.file_type"] == 15
        for name in WEIGHTS:
            change = ((fused[name] - expected[name]) ** 2).sum()
            added = ((expected[name] - base[name].astype(np.float64)) ** 2).sum()
            assert done.rounding(name) == pytest.approx((change / added) ** 0.5, rel=1e-3)
    assert done.rounding(WEIGHTS[0]) > 5 * done.rounding(WEIGHTS[1]) > 0


def test_the_command_says_what_the_mix_took(base, quantizer, tmp_path, capsys):
    adapters.write_gguf(tmp_path / "adapter.gguf", draw(base, WEIGHTS))
    command = ["fuse", "--model", base.path, "--adapter", tmp_path / "adapter.gguf"]
    command += ["--outtype", "iq4_xs", "--out", tmp_path / "out.gguf"]
    assert main([str(word) for word in command]) == 0
    said, log = capsys.readouterr()
    assert log == "" and said.startswith("rounding to Q4_0 changed 1 merged tensor by")
    assert "merged 2 of 4 tensors" in said and "1 merged tensor: Q8_0 before, Q4_0 now" in said
    assert said.count("of what the adapter adds") == 2
    assert quantizer.calls[1][1] == library.LlamaFileType.MOSTLY_IQ4_XS


def test_nothing_is_left_where_the_quantizer_fails(base, quantizer, tmp_path, capfd):
    quantizer.fails = True
    with pytest.raises(GGUFError, match=r"could not make a q6_k of it \(it returned 1\)"):
        fuse(base, draw(base, WEIGHTS), tmp_path / "fused.gguf", outtype="q6_k")
    assert [path.name for path in tmp_path.iterdir()] == ["base.gguf"]
    assert capfd.readouterr().err == f"level {logging.ERROR}\n"
    assert logging.getLogger("llama-cpp-python").level == logging.NOTSET


def test_what_is_there_is_kept_and_the_quantizer_not_asked(base, quantizer, tmp_path):
    (tmp_path / "fused.gguf").write_text("mine")
    with pytest.raises(GGUFError, match="already exists"):
        fuse(base, draw(base, WEIGHTS), tmp_path / "fused.gguf", outtype="q6_k")
    with pytest.raises(GGUFError, match="this file is being read"):
        fuse(base, draw(base, WEIGHTS), base.path, outtype="q6_k", overwrite=True)
    assert quantizer.calls == [] and (tmp_path / "fused.gguf").read_text() == "mine"


def test_without_the_quantizer_one_line_says_what_to_do(base, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ConfigError) as caught:
        fuse(base, draw(base, WEIGHTS), tmp_path / "fused.gguf", outtype="q4_k_m")
    said = str(caught.value)
    assert "pip install llama-cpp-python" in said and "\n" not in said
    assert (
        f"toynn fuse --model {base.path} --adapter" in said and "--outtype f32 --out whole" in said
    )
    assert f"llama-quantize whole.gguf {tmp_path / 'fused.gguf'} Q4_K_M" in said
    assert [path.name for path in tmp_path.iterdir()] == ["base.gguf"]


@pytest.fixture
def folder(tmp_path):
    """A Hugging Face folder of a small llama, whose rows are whole numbers of blocks."""
    engine = LlamaSeqEngine()
    sizes = {"d_model": 64, "n_heads": 4, "n_kv_heads": 2, "d_ff": 64, "n_layers": 1}
    engine.realize_for_random_init(LlamaConfig(vocab=40, context=8, **sizes), toynn.RecipeOptions())
    engine.export_hf(tmp_path / "hf")
    return tmp_path / "hf"


def test_a_folder_is_converted_to_a_mix(folder, quantizer, tmp_path, capsys):
    convert(folder, tmp_path / "whole.gguf", "f32")
    command = ["convert", str(folder), "--outtype", "Q4_K_M", "--out", str(tmp_path / "out.gguf")]
    assert main(command) == 0
    source, ftype, _ = quantizer.calls[1]
    assert ftype == library.LlamaFileType.MOSTLY_Q4_K_M
    assert not os.path.exists(os.path.dirname(source))
    with gguf.open(tmp_path / "out.gguf") as made, gguf.open(tmp_path / "whole.gguf") as whole:
        kinds = {name: info.type for name, info in made.tensors.items()}
        assert {"Q4_0", "Q8_0", "F32"} == set(kinds.values()) and kinds.keys() == set(whole)
        for name, kind in kinds.items():
            expected = gguf.encode(name, np.array(whole[name]), kind)
            np.testing.assert_array_equal(made.raw(name).reshape(-1), expected.reshape(-1))
    said = capsys.readouterr().out
    assert f"{len(kinds)} tensors" in said and " q4_0" in said
    assert not list(tmp_path.glob("*.mix")) and main(command) == 2
    assert "already exists" in capsys.readouterr().err and len(quantizer.calls) == 2


def test_a_model_is_written_as_a_mix(folder, quantizer, tmp_path):
    with hf.open(folder):
        engine = SequenceEngine.from_hf(folder, 4, build=False)
    engine.export_gguf(tmp_path / "out.gguf", outtype="q5_k_s")
    assert quantizer.calls[1][1] == library.LlamaFileType.MOSTLY_Q5_K_S
    with gguf.open(tmp_path / "out.gguf") as made:
        assert made.tensors["blk.0.ffn_down.weight"].type == "Q8_0"


def test_without_the_quantizer_convert_and_export_say_what_to_do(folder, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    out = tmp_path / "out.gguf"
    with pytest.raises(ConfigError, match="pip install llama-cpp-python") as caught:
        convert(folder, out, "q4_k_m")
    assert f"`toynn convert {folder} --outtype f32 --out whole.gguf`" in str(caught.value)
    with hf.open(folder):
        engine = SequenceEngine.from_hf(folder, 4, build=False)
    with pytest.raises(ConfigError, match=r'run `export_gguf\("whole.gguf", outtype="f32"\)`'):
        engine.export_gguf(out, outtype="q4_k_m")
    assert not out.exists()


@pytest.mark.parametrize("command", ["fuse", "convert"])
def test_commands_offer_the_same_types(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = "".join(capsys.readouterr().out.split())
    assert ",".join(OUTTYPES) in said and ",".join(MIXES) in said
    assert main([command, "--outtype", "q4_k_n", "x", "--out", "y"]) == 2
    assert "'q4_k_m'" in capsys.readouterr().err


def test_every_mix_has_a_number():
    for mix in MIXES:
        assert library.LlamaFileType[f"MOSTLY_{mix.upper()}"] > 0


#: By width of the rows of all but the down projections, what llama.cpp makes of some mixes.
MADE = {
    ("q4_k_m", 64): {"Q8_0", "Q5_0", "Q4_K", "Q6_K"},
    ("q4_k_m", 256): {"Q4_K", "Q6_K"},
    ("q2_k", 256): {"Q2_K", "Q3_K", "Q6_K"},
    ("iq3_m", 256): {"IQ3_S", "Q4_K", "Q6_K"},
    ("iq4_xs", 64): {"Q8_0", "IQ4_NL", "IQ4_XS"},
    ("tq1_0", 256): {"TQ1_0", "Q6_K"},
}


@pytest.mark.llama_cpp
@pytest.mark.parametrize(
    ("mix", "width"), [*((mix, 256) for mix in MIXES), ("q4_k_m", 64), ("iq4_xs", 64)]
)
def test_llama_cpp_makes_every_mix_and_computes_the_same_with_it(mix, width, tmp_path):
    """It rounds activations to 8 bits, too: of Q8_0 it is as far off as of any other type."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from test_llama_cpp import GQA, judged_logits, nmse, trained

    sizes = GQA | {"d_model": width, "d_ff": 256, "n_layers": 2}
    trained(LlamaSeqEngine(), LlamaConfig(**sizes)).export_gguf(tmp_path / "whole.gguf")
    with gguf.open(tmp_path / "whole.gguf") as whole:
        adapter = draw(whole, ["blk.0.attn_q.weight"])
        done = fuse(whole, adapter, tmp_path / "fused.gguf", outtype=mix)
    assert 0 < done.rounding() < 2
    ids = np.arange(24)
    with gguf.open(tmp_path / "fused.gguf") as file:
        logits = frozen(file).logits(ids)
        types = {info.type for info in file.tensors.values()}
        assert types - {"F32"} == MADE.get((mix, width), types - {"F32"})
        for name, info in file.tensors.items():
            kind = library.GGMLQuantizationType[info.type]
            expected = library.quants.dequantize(np.array(file.raw(name)), kind)
            assert np.array_equal(np.float32(file[name]).reshape(-1), expected.reshape(-1))
    assert nmse(logits, judged_logits(tmp_path / "fused.gguf", ids)) < 5e-3
