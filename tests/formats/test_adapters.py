"""Adapters in both formats: what comes back, and whether an adapter is for a model."""

import json
import os
import re
from dataclasses import replace

import gguf as library
import numpy as np
import pytest
from faults import each_call
from hf_folders import edit_object
from llamas import EXPERTS, HYBRID, config, shake
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from some_adapters import RANKS, SomeBase, draw, matrices
from test_hf import build

from toynn.engines import LlamaSeqEngine, frozen
from toynn.engines.converting import convert
from toynn.errors import AdapterError, ToynnError
from toynn.formats import adapters, gguf, hf
from toynn.formats.adapters import Adapter
from toynn.options import RecipeOptions
from toynn.recipes import LoRA

KINDS = ["gpt2", "llama", "llama-wide-heads", "qwen2", "qwen3"]
ONE = RecipeOptions(t_seq=8)
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """A file of each kind, open."""
    folder, files = tmp_path_factory.mktemp("bases"), {}
    for kind in KINDS:
        build(kind).export_gguf(folder / f"{kind}.gguf")
        files[kind] = gguf.open(folder / f"{kind}.gguf")
    yield files
    for file in files.values():
        file.close()


@pytest.fixture
def llama(bases):
    return bases["llama"]


@pytest.fixture
def folder(llama, tmp_path):
    """A PEFT folder, for the llama."""
    adapters.write_peft(tmp_path / "peft", draw(llama), llama)
    return tmp_path / "peft"


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        np.testing.assert_array_equal(values, theirs[name], name)


def test_an_adapter_of_a_model_that_sees_too(llama, folder):
    """PEFT's names have language_model in them, where the class does more than write."""
    expected, path = adapters.load(folder, llama).tensors, folder / WEIGHTS
    tensors = load_file(path)
    for before, after in ((".model.layers", ".model.language_model.layers"), ("", "")):
        save_file({n.replace(before, after): w for n, w in tensors.items()}, path, {"format": "pt"})
        assert_same(adapters.load(folder, llama).tensors, expected)
    tower = {n.replace(".model.layers", ".vision_tower.layers"): w for n, w in tensors.items()}
    save_file(tower, path, {"format": "pt"})
    with pytest.raises(AdapterError, match=r"vision_tower.*of a matrix of arch llama"):
        adapters.load(folder, llama)


def test_the_keys_and_tensors_that_llama_cpp_asks_for(llama, tmp_path):
    """As the gguf library reads them."""
    adapter = draw(llama, ["blk.0.attn_q.weight", "blk.1.ffn_down.weight"], ranks=(3,), alpha=6)
    adapters.write_gguf(tmp_path / "a.gguf", adapter)
    reader = library.GGUFReader(tmp_path / "a.gguf")
    fields = {
        key: (field.types[-1].name, field.contents())
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    of_the_base = {key: fields.pop(key) for key in list(fields) if key.startswith("adapter.base.")}
    assert of_the_base.keys() == {"adapter.base.file", "adapter.base.norms"}
    assert {type for type, _ in of_the_base.values()} == {"STRING"}
    assert fields == {
        "general.architecture": ("STRING", "llama"),
        "general.type": ("STRING", "adapter"),
        "adapter.type": ("STRING", "lora"),
        "adapter.lora.alpha": ("FLOAT32", 6.0),
    }
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert {name: tensor.shape.tolist() for name, tensor in tensors.items()} == {
        "blk.0.attn_q.weight.lora_a": [24, 3],  # innermost first
        "blk.0.attn_q.weight.lora_b": [3, 24],
        "blk.1.ffn_down.weight.lora_a": [40, 3],
        "blk.1.ffn_down.weight.lora_b": [3, 24],
    }
    assert_same(adapter.tensors, {name: tensor.data for name, tensor in tensors.items()})


def test_blocks_are_written_in_their_order(tmp_path):
    names = [f"blk.{n}.attn_v.weight.lora_{side}" for n in (10, 2) for side in "ba"]
    adapter = Adapter("llama", 1.0, {name: np.ones((1, 1), np.float32) for name in names})
    adapters.write_gguf(tmp_path / "a.gguf", adapter)
    with gguf.open(tmp_path / "a.gguf") as file:
        assert list(file) == names[::-1]


@pytest.mark.parametrize("ranks", [(4,), RANKS])
@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_comes_back_by_way_of_peft(bases, kind, ranks, tmp_path):
    base = bases[kind]
    metadata = {"general.base_model.0.name": "Zork", "adapter.lora.task_name": "robots"}
    adapter = replace(draw(base, ranks=ranks, alpha=0.3), metadata=metadata)
    adapters.write_gguf(tmp_path / "a.gguf", adapter)
    adapters.write_peft(tmp_path / "peft", adapters.load(tmp_path / "a.gguf", base), base)
    again = adapters.load(tmp_path / "peft", base)
    assert_same(dict(adapter.tensors), dict(again.tensors))
    adapters.write_gguf(tmp_path / "b.gguf", again)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("ranks", [(4,), RANKS])
def test_rslora_becomes_one_alpha_of_a_gguf_file(llama, ranks, tmp_path):
    adapter = draw(llama, ranks=ranks, alpha=6.0, use_rslora=True)
    adapters.write_gguf(tmp_path / "a.gguf", adapter)
    again = adapters.load(tmp_path / "a.gguf", llama)
    assert again.alpha == pytest.approx(6 * np.sqrt(4)) and not again.use_rslora
    for weight, (a, b) in adapter.pairs.items():
        delta = 6 / np.sqrt(len(a)) * (b.astype(np.float64) @ a)
        a, b = again.pairs[weight]
        got = again.alpha / len(a) * (b.astype(np.float64) @ a)
        np.testing.assert_allclose(got, delta, rtol=0, atol=1e-7)
    adapters.write_peft(tmp_path / "peft", adapter, llama)
    back = adapters.load(tmp_path / "peft", llama)
    assert back.use_rslora and back.alpha == 6
    assert_same(dict(adapter.tensors), dict(back.tensors))


def test_scales():
    def of(rank, **more):
        shapes = {"w.lora_a": (rank, 2), "w.lora_b": (2, rank)}
        tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        return Adapter("llama", tensors=tensors, **more).scale("w")

    assert of(4, alpha=8) == 2
    assert of(4, alpha=8, use_rslora=True) == 4
    assert of(4, alpha=0) == of(4, alpha=0, use_rslora=True) == 1


def test_rows_of_q_and_k_go_where_hugging_face_has_them(llama, tmp_path):
    """Of a head of 4, GGUF's rows 0 1 2 3 are Hugging Face's 0 2 1 3: pairs, and halves."""
    adapter = draw(llama)
    adapters.write_peft(tmp_path / "peft", adapter, llama)
    weights = load_file(tmp_path / "peft" / WEIGHTS)
    prefix = "base_model.model.model.layers.1."
    for part, module in (("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj")):
        a, b = adapter.pairs[f"blk.1.{part}.weight"]
        order = [4 * (row // 4) + (0, 2, 1, 3)[row % 4] for row in range(len(b))]
        np.testing.assert_array_equal(weights[f"{prefix}{module}.lora_B.weight"], b[order])
        np.testing.assert_array_equal(weights[f"{prefix}{module}.lora_A.weight"], a)
    b = adapter.pairs["blk.1.attn_v.weight"][1]
    np.testing.assert_array_equal(weights[f"{prefix}self_attn.v_proj.lora_B.weight"], b)


def test_what_peft_is_told(bases, tmp_path):
    metadata = {"general.base_model.0.name": "Zork"}
    for kind in ("llama", "gpt2"):
        adapter = draw(bases[kind], ranks=(4, 4, 2), alpha=3.0, use_rslora=True)
        adapter = replace(adapter, metadata=metadata)
        adapters.write_peft(tmp_path / kind, adapter, bases[kind])
        config = json.loads((tmp_path / kind / CONFIG).read_text())
        expected = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 3.0}
        expected |= {"use_rslora": True, "bias": "none", "base_model_name_or_path": "Zork"}
        expected |= {"fan_in_fan_out": kind == "gpt2", "alpha_pattern": {}, "use_dora": False}
        assert expected.items() <= config.items()
        assert set(config["rank_pattern"].values()) == {2}
        with safe_open(tmp_path / kind / WEIGHTS, "numpy") as file:
            always = {"format": "pt", "general.architecture": kind}
            assert file.metadata() == {**always, **metadata}


def targets(base, weights, tmp_path, with_base=True, layers=None):
    path = tmp_path / f"peft{len(list(tmp_path.iterdir()))}"
    adapters.write_peft(path, draw(base, weights), base if with_base else None)
    config = json.loads((path / CONFIG).read_text())
    pattern = None if layers is None else {"gpt2": "h"}.get(base.architecture, "layers")
    assert (config["layers_to_transform"], config["layers_pattern"]) == (layers, pattern)
    return config["target_modules"]


def test_target_modules_name_what_is_adapted_and_no_more(bases, tmp_path):
    gpt2, qwen2 = bases["gpt2"], bases["qwen2"]
    everywhere = ["blk.0.attn_output.weight", "blk.1.attn_output.weight"]
    assert targets(gpt2, everywhere, tmp_path) == ["attn.c_proj"]  # mlp.c_proj is another
    assert targets(gpt2, matrices(gpt2), tmp_path) == [
        "attn.c_proj",
        "c_attn",
        "c_fc",
        "mlp.c_proj",
    ]
    assert targets(qwen2, everywhere, tmp_path) == ["o_proj"]
    full = [f"model.layers.{n}.self_attn.o_proj" for n in (0, 1)]
    assert targets(qwen2, everywhere[1:], tmp_path, layers=[1]) == ["o_proj"]
    assert targets(gpt2, everywhere[:1], tmp_path, layers=[0]) == ["attn.c_proj"]
    uneven = [*everywhere, "blk.1.attn_q.weight", "token_embd.weight"]  # q only in the second
    assert targets(qwen2, uneven, tmp_path) == [
        "model.embed_tokens",
        "model.layers.1.self_attn.q_proj",
        "o_proj",
    ]
    beside = [everywhere[1], "token_embd.weight"]
    assert targets(qwen2, beside, tmp_path, layers=[1]) == ["model.embed_tokens", "o_proj"]
    assert targets(qwen2, everywhere, tmp_path, with_base=False) == full  # there may be more


def test_the_base_is_named_where_it_is_needed(bases, tmp_path):
    llama = bases["llama"]
    adapters.write_peft(tmp_path / "v", draw(llama, ["blk.0.attn_v.weight"]))
    with pytest.raises(
        AdapterError, match=r"blk.0.attn_q.weight: .*orders its rows by heads, .* name the ba"
    ):
        adapters.write_peft(tmp_path / "q", draw(llama, ["blk.0.attn_q.weight"]))
    with pytest.raises(AdapterError, match=r"v: a PEFT folder has neither"):
        adapters.load(tmp_path / "v")
    assert adapters.load(tmp_path / "v" / CONFIG, llama).rank == 4


def test_alpha_patterns_are_folded_into_b(llama, folder):
    plain = adapters.load(folder, llama)
    edit_object(folder / CONFIG, alpha_pattern={"layers.0.*q_proj": 2, "q_proj": 32, "x": 1})
    folded = adapters.load(folder, llama)
    assert folded.alpha == plain.alpha == 8
    for weight, (_, b) in plain.pairs.items():
        factor = {"blk.0.attn_q.weight": 0.25, "blk.1.attn_q.weight": 4}.get(weight, 1)
        np.testing.assert_array_equal(folded.pairs[weight][1], factor * b)


@pytest.mark.parametrize("type", ["f16", "bf16", "q8_0"])
def test_other_types_are_read(type, tmp_path):
    a, b = np.random.default_rng(0).standard_normal((2, 32, 32)).astype(np.float32)
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    keys["adapter.lora.alpha"] = 1.0
    tensors = {"w.lora_a": (a, type), "w.lora_b": (b, type)}
    gguf.write(tmp_path / "a.gguf", keys, tensors)
    matrices = adapters.load(tmp_path / "a.gguf").tensors
    np.testing.assert_allclose(matrices["w.lora_a"], a, rtol=0, atol=0.02)
    assert matrices["w.lora_b"].dtype == np.float32
    # ggml leaves out dimensions of 1 at the end, of which A of rank 1 has one.
    gguf.write(
        tmp_path / "b.gguf", keys, {"w.lora_a": (a[0], "f32"), "w.lora_b": (b[:, :1], "f32")}
    )
    assert adapters.load(tmp_path / "b.gguf").rank == 1


# -- the wrong base --------------------------------------------------------------------------------


def test_an_adapter_for_another_model_is_refused(bases, tmp_path):
    adapter = draw(bases["llama"])
    with pytest.raises(AdapterError, match="expected 'qwen2', as the base model is; got 'llama'"):
        adapters.check(adapter, bases["qwen2"])
    with pytest.raises(
        AdapterError,
        match=r"a\.gguf: tensor blk\.0\.attn_k\.weight\.lora_b: expected \(20, 4\) for the base "
        r"model's \(20, 24\); got \(8, 4\) \(is it the wrong base model\?\)",
    ):
        adapters.write_gguf(tmp_path / "a.gguf", adapter)
        adapters.load(tmp_path / "a.gguf", bases["llama-wide-heads"])
    for name, match in (
        ("blk.9.attn_q.weight", "blk.9.attn_q.weight does not exist in the base model, which has"),
        ("blk.0.attn_norm.weight", r"expected a matrix .* in the base it is \(24,\)"),
    ):
        tensors = {f"{name}.lora_{s}": np.ones((24, 24), np.float32) for s in "ab"}
        with pytest.raises(AdapterError, match=match):
            adapters.check(Adapter("llama", 1.0, tensors), bases["llama"])


def test_a_base_of_another_name_is_mentioned(llama):
    adapter = draw(llama)
    named = replace(adapter, metadata={"general.base_model.0.name": "Zork"})
    adapters.check(named, llama)  # which has no name

    metadata = {**llama.metadata, "general.name": "Bork"}
    other = SomeBase(llama, metadata)
    message = r"made for Zork; .* another one, Bork \(.*llama\.gguf\): their names differ"
    with pytest.warns(UserWarning, match=message):
        adapters.check(named, other)
    with pytest.raises(AdapterError, match=message):
        adapters.check(named, other, strict=True)
    told = adapters.base_metadata(other)
    assert told == {**adapters.base_metadata(llama), "general.base_model.0.name": "Bork"}


# -- writing ---------------------------------------------------------------------------------------


def test_nothing_is_overwritten_untold(llama, folder, tmp_path):
    adapter = draw(llama, seed=1)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(AdapterError, match=r"adapter_model.safetensors: already exists; pass over"):
        adapters.write_peft(folder, adapter, llama)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}
    (folder / "mine.txt").write_text("mine")
    adapters.write_peft(folder, adapter, llama, overwrite=True)
    assert_same(dict(adapter.tensors), dict(adapters.load(folder, llama).tensors))
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS, "mine.txt"}
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AdapterError, match="file: cannot make the folder: File exists"):
        adapters.write_peft(tmp_path / "file", adapter, llama)
    adapters.write_gguf(tmp_path / "a.gguf", adapter)
    with pytest.raises(ToynnError, match=r"a\.gguf: already exists"):
        adapters.write_gguf(tmp_path / "a.gguf", adapter)


@pytest.mark.parametrize("others", [False, True])
def test_an_adapter_is_the_old_or_the_new_one_whatever_fails(llama, folder, others, monkeypatch):
    """A folder of its own changes as a whole; beside other files both are put back."""
    if others:
        (folder / "mine.txt").write_text("mine")

    def write(adapter):
        adapters.write_peft(folder, adapter, llama, overwrite=True)

    old, new = draw(llama, ranks=(2, 2)), draw(llama, seed=1)
    states = []
    for adapter in (new, old):
        write(adapter)
        states.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert states[0][CONFIG] != states[1][CONFIG]
    refused = 0
    for call in each_call(monkeypatch, lambda: write(old), lambda: write(new)):
        try:
            write(new)
        except AdapterError as error:
            refused += 1
            assert re.search(r"cannot write .* \(\d+ bytes free\): No space", str(error)), call
        assert {path.name: path.read_bytes() for path in folder.iterdir()} in states, call
        assert [*folder.parent.iterdir()] == [folder]
        adapters.load(folder, llama)
    assert refused > 4


def test_a_full_disk_leaves_the_adapter_that_was_there(llama, folder, monkeypatch):
    before = {path: path.read_bytes() for path in folder.iterdir()}

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AdapterError, match=r"safetensors: cannot write \d+ bytes .*: No space"):
        adapters.write_peft(folder, draw(llama, seed=1), llama, overwrite=True)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


def test_peft_has_no_place_for_everything(bases, tmp_path):
    base = bases["llama"]
    for weight in ("blk.0.attn_sinks.weight", "cls.bias", "blk.weight"):
        tensors = {f"{weight}.lora_{side}": np.ones((61, 61), np.float32) for side in "ab"}
        with pytest.raises(AdapterError, match=rf"{weight}: expected a matrix of arch llama that"):
            adapters.write_peft(tmp_path / "peft", Adapter("llama", 1.0, tensors))
    with pytest.raises(AdapterError, match=r"one of the architectures .*gpt2, .* 'mamba'"):
        adapters.write_peft(tmp_path / "peft", Adapter("mamba", 1.0, tensors))
    with pytest.raises(AdapterError, match=r"expected 'llama', as the base model is; got 'mamba'"):
        adapters.check(Adapter("mamba", 1.0, tensors), base)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [("granite", {}), ("granitemoe", EXPERTS | {"shared_d_ff": 20, "rotated": True})],
)
def test_an_adapter_fits_a_folder_and_its_file_of_another_architecture(
    architecture, sizes, tmp_path
):
    engine = LlamaSeqEngine()
    cfg = config("granitehybrid", **HYBRID | {"attention_blocks": (0, 1, 2)} | sizes)
    engine.realize_for_random_init(cfg, RecipeOptions(t_seq=8))
    shake(engine, np.random.default_rng(1))
    engine.export_hf(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "model.gguf", "f32")
    ids = np.arange(8)
    with hf.open(tmp_path / "model") as folder, gguf.open(tmp_path / "model.gguf") as file:
        assert (folder.architecture, file.architecture) == ("granitehybrid", architecture)
        drawn = draw(file)
        expected = frozen(file, drawn).logits(ids)
        assert np.abs(frozen(file).logits(ids) - expected).max() > 0.1
        for base in (folder, file):
            out = tmp_path / base.architecture
            out.mkdir()
            recipe = LoRA()
            recipe.realize_from_adapter(base, replace(drawn, architecture=base.architecture), ONE)
            recipe.export_adapter(out / "adapter.gguf")
            recipe.export_peft(out / "peft")
            with gguf.open(out / "adapter.gguf") as written:
                assert written.architecture == architecture  # which llama.cpp compares
            for other in (folder, file):
                copies = [adapters.load(out / name, other) for name in ("adapter.gguf", "peft")]
                adapters.write_peft(out / f"from {other.architecture}", copies[0], other)
                copies.append(adapters.load(out / f"from {other.architecture}", other))
                mean = adapters.combine(copies, (0.25, 0.5, 0.25))
                got = frozen(other, mean).logits(ids)
                np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
        with pytest.raises(AdapterError, match=f"expected '{architecture}', as .*got 'llama'"):
            adapters.check(replace(drawn, architecture="llama"), file)
