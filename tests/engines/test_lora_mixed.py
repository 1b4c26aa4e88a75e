"""LoRA over files of several types, as llama.cpp's quantizer makes them."""

import gguf as library
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from lora_bases import (
    assert_close,
    assert_gradients,
    blocks,
    dequantized_file,
    draw,
    make,
    whole,
    write_base,
)

import toynn
from toynn.formats import gguf

HP = toynn.AdamW.for_lora()
#: What becomes of a type where rows are no whole number of its super-blocks.
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL"}
#: The mix of a file, and what it gives to the values, to half of the down projections, to the head.
MIXES = {
    "Q4_K_M": ("Q4_K", "Q6_K", "Q6_K", "Q6_K"),
    "Q5_K_M": ("Q5_K", "Q6_K", "Q6_K", "Q6_K"),
    "Q3_K_M": ("Q3_K", "Q5_K", "Q5_K", "Q6_K"),
    "IQ4_XS": ("IQ4_XS", "Q5_K", "Q5_K", "Q6_K"),
}


def type_of(mix, name, columns):
    most, values, down, head = MIXES[mix]
    if "norm" in name:
        return "F32"
    type = {"attn_v": values, "output": head, "token_embd": head}.get(name.split(".")[-2], most)
    if name == "blk.0.ffn_down.weight":
        type = down
    return type if columns % 256 == 0 else FALLBACK[type]


@pytest.fixture(params=MIXES)
def mixed(request, tmp_path):
    """A file by the gguf library's writer: rows of 256 in the down projections, else of 64."""
    plain = write_base(
        tmp_path / "plain.gguf", "llama", untied=True, d_model=64, n_heads=4, d_ff=256
    )
    writer = library.GGUFWriter(tmp_path / "mixed.gguf", "llama")
    rng = np.random.default_rng(4)
    with gguf.open(plain) as file:
        for key, value in file.metadata.items():
            if key != "general.architecture":
                kind, _, element = file.types[key].partition("[")
                given = value.tolist() if isinstance(value, np.ndarray) else value
                writer.add_key_value(
                    key,
                    given,
                    library.GGUFValueType["ARRAY" if element else kind],
                    sub_type=library.GGUFValueType[element[:-1]] if element else None,
                )
        for name in file:
            values = np.array(file[name])
            type = type_of(request.param, name, values.shape[-1])
            if type == "F32":
                writer.add_tensor(name, values)
                continue
            try:  # the library writes the types that are no K types
                raw = library.quants.quantize(values, Type[type])
            except NotImplementedError:
                raw = blocks(values, type, rng)
            writer.add_tensor(name, raw, raw_dtype=Type[type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "mixed.gguf"


def test_lora_over_a_mixed_file_is_that_over_its_float32_values(mixed, tmp_path):
    with gguf.open(mixed) as file:
        types = {info.type for info in file.tensors.values()}
    assert len(types) >= 5, types
    recipe = make(mixed, alpha=6.0)
    full = make(dequantized_file(mixed, tmp_path / "full.gguf"), alpha=6.0)
    ids, labels = draw()
    assert_close(recipe.engine.logits(ids), full.engine.logits(ids), 1e-6)
    engine = whole(tmp_path / "full.gguf", recipe)
    expected = engine.accumulate(ids, None, labels)
    assert recipe.accumulate(ids, None, labels) == pytest.approx(expected, rel=1e-5)
    assert_gradients(recipe, engine, 5e-5)
    losses = [recipe.step(ids, None, labels, HP.hp_for_step(k), k == 0) for k in range(5)]
    assert losses[-1] < losses[0]
