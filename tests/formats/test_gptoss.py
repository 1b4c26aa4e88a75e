"""gpt-oss files: experts in MXFP4, against llama.cpp; tensors that do not fit, by name."""

import numpy as np
import pytest
from llamas import make
from test_llama_cpp import MODELS, judged_logits, nmse

from toynn.engines import LlamaSeqEngine, frozen
from toynn.errors import GGUFError
from toynn.formats import gguf

library = pytest.importorskip("gguf", reason="the gguf library is not installed")

SHAPES = {
    "sinks": ("blk.1.attn_sinks.weight", (5,), r"expected \(6,\); got \(5,\)"),
    "biases of few experts": ("blk.0.ffn_up_exps.bias", (4, 40), r"expected \(5, 40\); got"),
    "biases of few rows": ("blk.2.ffn_down_exps.bias", (5, 23), r"expected \(5, 24\); got"),
    "one bias for all": ("blk.0.ffn_gate_exps.bias", (40,), r"expected \(5, 40\); got \(40,\)"),
    "a router's bias": ("blk.0.ffn_gate_inp.bias", (6,), r"expected \(5,\); got \(6,\)"),
}


def parts_of(path):
    with gguf.open(path) as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        return metadata, {name: (np.array(file[name]), "f32") for name in file}


@pytest.mark.parametrize("name", SHAPES)
def test_tensors_of_another_shape_are_named(name, tmp_path):
    tensor, shape, message = SHAPES[name]
    make("gpt-oss").engine.export_gguf(tmp_path / "model.gguf")
    metadata, tensors = parts_of(tmp_path / "model.gguf")
    tensors[tensor] = (np.ones(shape, np.float32), "f32")
    gguf.write(tmp_path / "bad.gguf", metadata, tensors)
    with pytest.raises(GGUFError, match=f"tensor {tensor} has the wrong shape: {message}"):
        LlamaSeqEngine.from_gguf(tmp_path / "bad.gguf")


def test_a_missing_sink_is_named(tmp_path):
    make("gpt-oss").engine.export_gguf(tmp_path / "model.gguf")
    metadata, tensors = parts_of(tmp_path / "model.gguf")
    del tensors["blk.0.attn_sinks.weight"]
    gguf.write(tmp_path / "bad.gguf", metadata, tensors)
    with pytest.raises(GGUFError, match=r"tensor blk\.0\.attn_sinks\.weight is missing"):
        LlamaSeqEngine.from_gguf(tmp_path / "bad.gguf")


@pytest.mark.llama_cpp
def test_experts_in_mxfp4(tmp_path):
    """Their numbers are exact here; llama.cpp rounds what it multiplies them by."""
    MODELS["gpt-oss"]().export_gguf(tmp_path / "model.gguf")
    kind = library.GGMLQuantizationType.MXFP4
    _, tensors = parts_of(tmp_path / "model.gguf")
    dequantized = dict(tensors)
    reader = library.GGUFReader(tmp_path / "model.gguf")
    writer = library.GGUFWriter(tmp_path / "mxfp4.gguf", "gpt-oss")
    metadata, _ = parts_of(tmp_path / "model.gguf")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for name, (values, _) in tensors.items():
        if name.endswith("_exps.weight"):
            packed = library.quants.quantize(values, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
            dequantized[name] = (library.quants.dequantize(packed, kind), "f32")
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    gguf.write(tmp_path / "dequantized.gguf", metadata, dequantized)
    ids = np.random.default_rng(1).integers(0, 96, 32)
    with gguf.open(tmp_path / "mxfp4.gguf") as file:
        assert file.tensors["blk.0.ffn_up_exps.weight"].type == "MXFP4"
        logits = frozen(file).logits(ids)
    assert nmse(logits, judged_logits(tmp_path / "dequantized.gguf", ids)) < 1e-8
    rough = judged_logits(tmp_path / "mxfp4.gguf", ids)
    errors = np.linalg.norm(logits - rough, axis=1)
    rows = errors <= np.median(errors)  # where rounding chooses another expert, all differs
    assert nmse(logits[rows], rough[rows]) < 5e-3
