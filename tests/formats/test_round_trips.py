"""What our writers write, our readers read back as it was: any names, shapes, numbers."""

import tomllib
from contextlib import closing
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from toynn.engines import GPT2Config, GPT2SeqEngine, LlamaSeqEngine, SequenceEngine
from toynn.formats import adapters
from toynn.formats.adapters import Adapter
from toynn.formats.safetensors import SafeTensors, encode
from toynn.models import architecture
from toynn.options import RecipeOptions
from toynn.train.folder import to_toml

QUICK = settings(max_examples=40)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def matrices(*shape):
    return arrays.arrays(np.float32, shape, elements=FLOATS)


@QUICK
@given(
    st.dictionaries(
        TEXT.filter(lambda name: name != "__metadata__"),
        arrays.arrays(np.float32, arrays.array_shapes(min_dims=0, max_side=4), elements=FLOATS),
        max_size=5,
    ),
    st.dictionaries(TEXT, TEXT, max_size=4),
)
def test_safetensors(tmp_path_factory, weights, metadata):
    path = tmp_path_factory.mktemp("round") / "a.safetensors"
    path.write_bytes(encode(weights, metadata))
    with closing(SafeTensors(path)) as file:
        assert file.metadata == metadata
        assert file.tensors.keys() == weights.keys()
        for name, values in weights.items():
            assert file[name].shape == values.shape
            assert file[name].tobytes() == values.tobytes()


KEYS = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
    st.lists(TEXT, max_size=4).map(tuple),
)


@QUICK
@given(st.dictionaries(KEYS, st.dictionaries(KEYS, PLAIN, max_size=6), max_size=4))
def test_toml(tables):
    def plain(value):
        if isinstance(value, tuple):
            return [*value]
        if isinstance(value, str):  # half a surrogate pair, which TOML lacks, is spelled out
            return value.encode("utf-8", "backslashreplace").decode()
        return value

    read = tomllib.loads(to_toml(tables))
    expected = {n: {k: plain(v) for k, v in table.items()} for n, table in tables.items()}
    assert repr(read) == repr(expected)  # NaN is not itself


@st.composite
def some_adapters(draw):
    rank, alpha = draw(st.integers(1, 4)), draw(st.floats(0.125, 1e3, width=32))
    tensors = {}
    for block in range(draw(st.integers(1, 3))):
        name = f"blk.{block}.attn_{draw(st.sampled_from('qkv'))}.weight"
        tensors[f"{name}.lora_a"] = draw(matrices(rank, 6))
        tensors[f"{name}.lora_b"] = draw(matrices(8, rank))
    name = draw(TEXT.filter(bool))
    return Adapter("qwen2", alpha, tensors, draw(st.booleans()), {"general.name": name})


@QUICK
@given(some_adapters())
def test_adapters(tmp_path_factory, adapter):
    """As a GGUF file and as PEFT's folder."""
    folder = tmp_path_factory.mktemp("round")
    adapters.write_gguf(folder / "a.gguf", adapter)
    names = {name.rpartition(".lora")[0] for name in adapter.tensors}
    shapes = {name: SimpleNamespace(name=name, shape=(8, 6)) for name in names}
    base = SimpleNamespace(architecture="qwen2", metadata={}, tensors=shapes, path="base.gguf")
    adapters.write_peft(folder / "peft", adapter)
    for read in (adapters.load(folder / "a.gguf"), adapters.load(folder / "peft", base)):
        assert read.tensors.keys() == adapter.tensors.keys()
        for name, values in adapter.tensors.items():
            np.testing.assert_array_equal(read.tensors[name], values)
        for name in names:
            assert np.isclose(read.scale(name), adapter.scale(name), rtol=1e-6)


@st.composite
def models(draw):
    """An engine of a model of Hugging Face's, with any weights."""
    arch = draw(st.sampled_from(["gpt2", "llama", "qwen2", "qwen3", "smollm3", "granite"]))
    heads, half, blocks = (draw(st.integers(1, most)) for most in (3, 2, 2))
    sizes = {"vocab": draw(st.integers(1, 6)), "n_heads": heads, "n_layers": blocks}
    sizes |= {"d_model": heads * 2 * half, "d_ff": draw(st.integers(1, 5))}
    sizes |= {"context": draw(st.integers(1, 9))}
    if arch == "gpt2":
        engine, cfg, options = GPT2SeqEngine(), GPT2Config(**sizes), {}
    else:
        engine = LlamaSeqEngine() if arch in LlamaSeqEngine.architectures else SequenceEngine()
        kv_heads = draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
        base = float(draw(st.integers(1000, 10**6)))
        cfg = architecture(arch).config_type(
            **sizes, n_kv_heads=kv_heads, arch=arch, rope_base=base
        )
        options = {"untied": draw(st.booleans()), "qkv_bias": arch == "qwen2"}
    engine.declare(cfg, RecipeOptions(**options))
    engine.session.finalize_weights()
    weights = {name: draw(matrices(*tensor.shape)) for name, tensor in engine.tensors.items()}
    engine.load_weights(weights)
    return engine, weights


@settings(QUICK, max_examples=25)
@given(models())
def test_folders_of_hugging_face(tmp_path_factory, model):
    """Names, rows that RoPE rotates in another order there, and a head that is tied or not."""
    engine, weights = model
    folder = tmp_path_factory.mktemp("round") / "hf"
    engine.export_hf(folder)
    again = type(engine).from_hf(folder, t_seq=1, build=False)
    assert again.config == engine.config
    read = again.weights()
    assert read.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(read[name], values, err_msg=name)
