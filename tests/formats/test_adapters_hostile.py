"""Adapters that are broken, or more than toynn computes: refused by name, in no time."""

import itertools
import warnings

import numpy as np
import pytest
from gguf_bytes import ARCHITECTURE, File, key, scalar, tensor, text
from hf_folders import edit_object, edit_tensors
from some_adapters import SomeBase, draw
from test_hf import build

from toynn.errors import AdapterError, ToynnError
from toynn.formats import adapters, gguf
from toynn.formats.adapters import Adapter

PREFIX = "base_model.model.model.layers.0.self_attn.q_proj."
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ONES = np.ones((4, 4), np.float32)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A small model's file, open."""
    path = tmp_path_factory.mktemp("base") / "llama.gguf"
    build("llama").export_gguf(path)
    with gguf.open(path) as file:
        yield file


@pytest.fixture
def folder(llama, tmp_path):
    """A PEFT folder for it."""
    adapters.write_peft(tmp_path / "peft", draw(llama), llama)
    return tmp_path / "peft"


# -- GGUF ------------------------------------------------------------------------------------------

KEYS = {
    "general.architecture": ARCHITECTURE,
    "general.type": key("general.type", text("adapter")),
    "adapter.type": key("adapter.type", text("lora")),
    "adapter.lora.alpha": key("adapter.lora.alpha", scalar(2.0, "FLOAT32")),
}


def adapter_file(
    tmp_path, names=("w.lora_a", "w.lora_b"), data=None, dims=((4, 4), (4, 4)), **keys
):
    """A file of two tensors of 4 x 4, with some keys replaced (or left out: None)."""
    metadata = {**KEYS, **keys}
    rows, offset = [], 0
    for name, shape in zip(names, dims, strict=True):
        rows.append(tensor(name, shape, 0, offset))
        offset += -(-int(np.prod(shape)) * 4 // 32) * 32
    data = np.ones(offset // 4, np.float32).tobytes() if data is None else data
    return File([value for value in metadata.values() if value], rows, data).write(tmp_path)


def alpha(value, type="FLOAT32"):
    return {"adapter.lora.alpha": key("adapter.lora.alpha", scalar(value, type))}


GGUF = {
    "architecture": (
        {"general.architecture": None},
        "key not found in model: general.architecture",
    ),
    "no-type": ({"general.type": None}, "general.type: expected 'adapter'; got nothing"),
    "model": (
        {"general.type": key("general.type", text("model"))},
        "general.type: expected 'adapter'; got 'model'",
    ),
    "number-for-type": (
        {"general.type": key("general.type", scalar(7, "UINT32"))},
        "general.type: expected 'adapter'; got '?7",
    ),
    "no-adapter-type": ({"adapter.type": None}, "adapter.type: expected 'lora'; got nothing"),
    "control-vector": (
        {"adapter.type": key("adapter.type", text("control_vector"))},
        "adapter.type: expected 'lora'; got 'control_vector'",
    ),
    "no-alpha": ({"adapter.lora.alpha": None}, "alpha: expected a FLOAT32; got nothing"),
    "whole-alpha": (alpha(2, "UINT32"), "alpha: expected a FLOAT32; got UINT32"),
    "double-alpha": (alpha(2, "FLOAT64"), "alpha: expected a FLOAT32; got FLOAT64"),
    "nan-alpha": (alpha(float("nan")), "alpha: expected a number of at least 0; got nan"),
    "infinite-alpha": (alpha(float("inf")), "alpha: expected a number of at least 0; got inf"),
    "negative-alpha": (alpha(-1.0), r"alpha: expected a number of at least 0; got -1\.0"),
    "alora": (
        {"x": key("adapter.alora.invocation_tokens", scalar(1, "UINT32"))},
        r"invocation_tokens: an adapter that acts only after these tokens \(aLoRA\)",
    ),
    "half": (
        {"names": ("w.lora_a", "v.lora_b")},
        r"tensor w\.lora_a: expected w\.lora_b as well; got no such tensor",
    ),
    "no-a": (
        {"names": ("v.lora_b", "w.lora_b")},
        r"tensor v\.lora_b: expected v\.lora_a as well; got no such tensor",
    ),
    "suffix": (
        {"names": ("w.lora_a", "w.lora_c")},
        r"tensor w\.lora_a: expected w\.lora_b|tensor w\.lora_c: expected a name that ends in",
    ),
    "whole-weight": (
        {"names": ("output.weight", "w.lora_a")},
        r"tensor output\.weight: expected a name that ends in \.lora_a or \.lora_b",
    ),
    "no-name": (
        {"names": (".lora_a", ".lora_b")},
        r"tensor \.lora_a: expected a name that ends in",
    ),
    "twice": ({"names": ("w.lora_a", "w.lora_a")}, "expected a new name, got 'w.lora_a' again"),
    "ranks": (
        {"dims": ((4, 2), (3, 4))},
        r"w: expected one rank r in A \(r, in\), B \(out, r\); got \(2, 4\) and \(4, 3\)",
    ),
    "1-d": (
        {"dims": ((4, 1), (4,))},
        r"tensor w\.lora_b: expected a float32 matrix; got float32 \(4",
    ),
    "3-d": (
        {"dims": ((2, 2, 4), (4, 4))},
        r"w: expected one rank r in A \(r, in\), B \(out, r\); got \(4, 2, 2\) and \(4, 4\)",
    ),
    "4-d": (
        {"dims": ((2, 2, 2, 2), (4, 4))},
        r"tensor w\.lora_a: expected a float32 matrix.*; got float32 \(2, 2, 2, 2\)",
    ),
    "nan": (
        {"data": np.full(32, np.nan, np.float32).tobytes()},
        r"w\.lora_a, element 0 .*expected a finite number",
    ),
    "cut": ({"data": bytes(64)}, "not within the file bounds"),
    "empty": ({"names": (), "dims": ()}, r"tensors: expected <weight>\.lora_a and .*; got none"),
}


@pytest.mark.parametrize("name", GGUF)
def test_files_that_are_refused(name, tmp_path):
    changes, match = GGUF[name]
    path = adapter_file(tmp_path, **changes)
    with pytest.raises(ToynnError, match=match) as caught:
        adapters.load(path)
    assert str(path) in str(caught.value)


def test_the_file_is_good_otherwise(tmp_path):
    adapter = adapters.load(adapter_file(tmp_path))
    assert (adapter.alpha, adapter.rank, adapter.architecture) == (2.0, 4, "llama")
    np.testing.assert_array_equal(adapter.tensors["w.lora_a"], ONES)


def test_a_model_is_no_adapter(llama):
    with pytest.raises(AdapterError, match="got 'model'; this is a model, not an adapter"):
        adapters.load(llama.path)


def test_weights_of_norms_are_mentioned(tmp_path):
    names = ("w.lora_a", "w.lora_b", "blk.0.attn_norm.weight")
    path = adapter_file(tmp_path, names, dims=((4, 4), (4, 4), (8,)))
    with pytest.warns(UserWarning, match=r"attn_norm\.weight: weights of norms are ignored, as in"):
        assert len(adapters.load(path).tensors) == 2


def test_a_damaged_file_is_refused_or_harmless(llama, tmp_path):
    path = tmp_path / "a.gguf"
    adapters.write_gguf(path, draw(llama, ["blk.0.attn_q.weight"], ranks=(1,)))
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(0, len(whole), 3)]
    with gguf.open(path) as file:
        header = min(info.offset for info in file.tensors.values())
    for place, byte in itertools.product(range(0, header, 3), (0, 255)):
        damaged.append(whole[:place] + bytes([byte]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                adapters.load(path, llama)
            except ToynnError as error:
                assert str(path) in str(error)


# -- PEFT ------------------------------------------------------------------------------------------

CONFIGS = {
    "no-method": ({"peft_type": ...}, "peft_type: expected 'LORA'; got 'None'"),
    "method": ({"peft_type": "LOHA"}, "peft_type: expected 'LORA'; got 'LOHA'"),
    "no-rank": ({"r": ...}, "r: expected a number above 0; got 'None'"),
    "rank": ({"r": 3}, r"layers\.0\.\S+: expected rank 3\.0, as adapter_config.json says; got 4"),
    "text-rank": ({"r": "4"}, "r: expected a number above 0; got '4'"),
    "true-rank": ({"r": True}, "r: expected a number above 0; got 'True'"),
    "no-alpha": ({"lora_alpha": None}, "lora_alpha: expected a number above 0; got 'None'"),
    "alpha-0": ({"lora_alpha": 0}, "lora_alpha: expected a number above 0; got '0'"),
    "alpha-nan": ({"lora_alpha": float("nan")}, "lora_alpha: expected a number above 0; got 'nan'"),
    "alpha-large": ({"lora_alpha": 10**400}, "lora_alpha: expected a number above 0; got '1000"),
    "rslora": ({"use_rslora": "yes"}, "use_rslora: expected true or false; got 'yes'"),
    "dora": ({"use_dora": True}, "lora_magnitude_vector: adapter_config.json has use_dora True"),
    "dora-word": ({"use_dora": "yes"}, "use_dora: expected true or false; got 'yes'"),
    "bias": ({"bias": "lora_only"}, "bias: expected 'none'; got 'lora_only'"),
    "saved": ({"modules_to_save": ["lm_head"]}, "modules_to_save: expected nothing"),
    "unknown": ({"new_method": 1}, "new_method: expected nothing: toynn does not support it"),
    "pissa": (
        {"init_lora_weights": "pissa_niter_4"},
        "init_lora_weights: expected one that leaves",
    ),
    "patterns": ({"alpha_pattern": [1]}, "alpha_pattern: expected an object"),
    "pattern": ({"alpha_pattern": {"q_proj": "4"}}, "alpha_pattern: expected a number above 0"),
    "pattern-0": ({"rank_pattern": {"q_proj": 0}}, "rank_pattern: expected a number above 0"),
    "pattern-rank": ({"rank_pattern": {"q_proj": 2}}, "q_proj: expected rank 2.0, .*; got 4"),
    "not-a-pattern": ({"alpha_pattern": {"(": 1}}, r"alpha_pattern: '\(': .*unterminated"),
    "endless": ({"alpha_pattern": {"(a+)+x": 1}}, "alpha_pattern: expected patterns of at most 3"),
    "endless-2": ({"alpha_pattern": {".*" * 20: 1}}, "alpha_pattern: expected patterns of at most"),
    "endless-3": (
        {"alpha_pattern": {".{1,}" * 9: 1}},
        "alpha_pattern: expected patterns of at mos",
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_that_are_refused(llama, folder, name):
    changes, match = CONFIGS[name]
    edit_object(folder / CONFIG, **changes)
    with pytest.raises(AdapterError, match=match) as caught:
        adapters.load(folder, llama)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "not JSON"),
        ("[]", "expected an object; got list"),
        ("[" * 100_000, "not JSON"),
        ("\ud800", "not JSON"),
    ],
)
def test_configurations_that_are_no_object(llama, folder, content, match):
    (folder / CONFIG).write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ToynnError, match=rf"adapter_config\.json: {match}"):
        adapters.load(folder, llama)


TENSORS = {
    "half": ({f"{PREFIX}lora_A.weight": None}, r"q\.weight\.lora_b: expected .*lora_a as well"),
    "magnitude": (
        {f"{PREFIX}lora_magnitude_vector": ONES[0]},
        r"attn_k\.weight: expected A, B and a magnitude",
    ),
    "bias": (
        {f"{PREFIX}lora_B.bias": ONES[0]},
        r"tensor \S+lora_B\.bias: expected base_model\.mod",
    ),
    "named": (
        {f"{PREFIX}lora_A.default.weight": ONES},
        r"tensor \S+default\.weight: expected base",
    ),
    "saved": (
        {"base_model.model.lm_head.weight": ONES},
        r"tensor \S+lm_head\.weight: expected base",
    ),
    "embedding": (
        {"base_model.model.model.embed_tokens.lora_embedding_A": ONES},
        r"token_embd\.weight\.lora_b as well",
    ),
    "table": (
        {f"base_model.model.model.embed_tokens.lora_{s}.weight": ONES for s in "AB"},
        r"tensor \S+embed_tokens\.lora_A\.weight: expected .* of a matrix of arch llama",
    ),
    "gpt2": (
        {f"base_model.model.transformer.h.0.attn.c_attn.lora_{s}.weight": ONES for s in "AB"},
        r"tensor \S+c_attn\.lora_A\.weight: expected",
    ),
    "twice": (
        {f"base_model.model.layers.0.self_attn.q_proj.lora_{s}.weight": ONES for s in "AB"},
        r"tensor \S+: expected base_model\.model\.<module>",
    ),
    "block-9": (
        {f"{PREFIX.replace('0', '9')}lora_{s}.weight": np.ones((4, 4), "f4") for s in "AB"},
        r"blk\.9\.attn_q\.weight does not exist in the base model",
    ),
    "shape": (
        {f"{PREFIX}lora_B.weight": ONES},
        r"q\.weight\.lora_b: expected \(24, 4\) .* \(4, 4\)",
    ),
    "rank": (
        {f"{PREFIX}lora_B.weight": ONES[:, :3].copy()},
        r"expected one rank r .* and \(4, 3\)",
    ),
    "1-d": (
        {f"{PREFIX}lora_B.weight": ONES[0]},
        r"lora_b: expected a float32 matrix; got .*\(4,\)",
    ),
    "dtype": (
        {f"{PREFIX}lora_B.weight": ONES.astype(np.float64)},
        "lora_B.weight must be F32, F16 or BF16; got F64",
    ),
    "nan": (
        {f"{PREFIX}lora_B.weight": np.full((24, 4), np.nan, np.float32)},
        "lora_B.weight has weights that are NaN or infinite",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_refused(llama, folder, name):
    changes, match = TENSORS[name]
    edit_tensors(folder / WEIGHTS, changes)
    with pytest.raises(ToynnError, match=match) as caught:
        adapters.load(folder, llama)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("heads", [-2, 5, [4, 2], "6", 2.0, None])
def test_a_base_whose_heads_make_no_sense(llama, folder, heads):
    metadata = {**llama.metadata, "llama.attention.head_count": heads}
    base = SomeBase(llama, metadata)
    with pytest.raises(AdapterError, match=r"attn_.\.weight: the base model has .* heads for"):
        adapters.load(folder, base)


def test_folders_of_others_are_named(llama, folder):
    (folder / WEIGHTS).rename(folder / "adapters.safetensors")
    with pytest.raises(
        AdapterError, match=r"adapters\.safetensors: an adapter of mlx-lm, which is"
    ):
        adapters.load(folder, llama)
    (folder / "adapters.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(
        AdapterError, match=r"adapter_model\.bin: pickled weights, .* as safetensors"
    ):
        adapters.load(folder, llama)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(ToynnError, match=r"adapter_model\.safetensors: cannot read"):
        adapters.load(folder, llama)


def test_a_damaged_folder_is_refused_or_harmless(llama, folder):
    whole = (folder / WEIGHTS).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    damaged = [whole[:size] for size in range(0, len(whole), 499)]
    for place in range(0, header, 19):
        damaged.append(whole[:place] + b"\xff" + whole[place + 1 :])
    for content in damaged:
        (folder / WEIGHTS).write_bytes(content)
        with pytest.raises(ToynnError):
            adapters.load(folder, llama)


def test_adapters_made_by_hand():
    good = {"w.lora_a": ONES, "w.lora_b": ONES}
    Adapter("llama", 1.0, good)
    for changes, match in (
        (
            {"w.lora_a": ONES.astype(np.float64)},
            r"w\.lora_a: expected a float32 matrix; got float64",
        ),
        ({"w.lora_a": ONES[:0]}, r"w\.lora_a: expected a float32 matrix; got float32 \(0, 4\)"),
        ({"w.lora_b": ONES * np.inf}, r"w\.lora_b: expected finite numbers; got NaN or infinity"),
    ):
        with pytest.raises(AdapterError, match=f"^adapter: tensor {match}"):
            Adapter("llama", 1.0, {**good, **changes})
