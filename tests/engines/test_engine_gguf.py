"""Engines read and write GGUF: what comes back, what is refused and by which name, `toynn info`."""

import numpy as np
import pytest
from bad_models import FACTORS, GQA, MODELS, REFUSED, build, content
from shared import STORIES

from toynn.cli import main
from toynn.engines import GPT2SeqEngine, LlamaConfig, LlamaSeqEngine
from toynn.errors import ConfigError, GGUFError
from toynn.formats import gguf
from toynn.options import RecipeOptions
from toynn.recipes import LoRA


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A float32 file of each model, written once."""
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        build(name).export_gguf(folder / f"{name}.gguf")
    return {name: folder / f"{name}.gguf" for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_a_float32_file_brings_back_every_bit(name, files):
    engine, config, _ = MODELS[name]
    model, again = build(name), engine.from_gguf(files[name], t_seq=4, t_batch=2)
    assert again.config == config
    assert (again.t_seq, again.t_batch) == (4, 2)
    ours, theirs = model.weights(), again.weights()
    assert ours.keys() == theirs.keys()
    for tensor, values in ours.items():
        np.testing.assert_array_equal(values, theirs[tensor], tensor)
    ids = np.arange(4)  # one sequence
    np.testing.assert_array_equal(model.logits(ids), again.logits(ids))


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
@pytest.mark.parametrize("outtype", ["f16", "bf16", "q8_0"])
def test_what_is_rounded_and_what_is_not(name, outtype, tmp_path):
    path = tmp_path / "model.gguf"
    model = build(name)
    model.export_gguf(path, outtype)
    with gguf.open(path) as file:
        for tensor, info in file.tensors.items():
            exact = len(info.shape) == 1 or tensor == "position_embd.weight"
            whole = outtype != "q8_0" or info.shape[-1] % 32 == 0  # ffn_down: rows of 48
            assert info.type == ("F32" if exact or not whole else outtype.upper()), tensor
            if info.type == "F32":
                np.testing.assert_array_equal(file[tensor], model.weights()[tensor])
            else:
                np.testing.assert_allclose(file[tensor], model.weights()[tensor], 0, 1e-2)


def test_a_lens_is_folded_into_the_embedding(tmp_path):
    model = LlamaSeqEngine()
    model.realize_for_random_init(LlamaConfig(**GQA, donor_d_in=24), RecipeOptions(untied=True))
    model.build_training_step()
    model.export_gguf(tmp_path / "model.gguf")
    again = LlamaSeqEngine.from_gguf(tmp_path / "model.gguf")
    weights = model.weights()
    assert again.config.donor_d_in == 0
    np.testing.assert_allclose(
        again.weights()["token_embd.weight"],
        weights["token_embd.weight"] @ weights["lens.proj.weight"].T,
        1e-6,
    )
    np.testing.assert_allclose(again.logits(np.arange(8)), model.logits(np.arange(8)), 1e-3, 1e-5)


def test_biases_of_qwen2_are_written_as_zeros(tmp_path):
    model = LlamaSeqEngine()
    model.realize_for_random_init(LlamaConfig(**GQA, arch="qwen2"), RecipeOptions())
    model.export_gguf(tmp_path / "model.gguf")
    again = LlamaSeqEngine.from_gguf(tmp_path / "model.gguf").weights()
    assert not again["blk.1.attn_v.bias"].any()


def test_export_overwrites_only_when_told(files, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(files["llama"].read_bytes())
    model = LlamaSeqEngine.from_gguf(path)
    with pytest.raises(GGUFError, match="exists"):
        model.export_gguf(path)
    model.export_gguf(path, "f16", overwrite=True)
    with gguf.open(path) as file:
        assert file.tensors["token_embd.weight"].type == "F16"
    with pytest.raises(ConfigError, match=r"outtype must be f32, .*; got 'q9_9'"):
        model.export_gguf(path, "q9_9")


def test_what_float16_cannot_hold_is_refused_by_name(tmp_path):
    model = build("llama")
    weights = model.weights()
    weights["blk.1.ffn_up.weight"][3, 4] = 1e5
    model.load_weights(weights)
    with pytest.raises(GGUFError, match=r"blk\.1\.ffn_up\.weight"):
        model.export_gguf(tmp_path / "model.gguf", "f16")
    assert not list(tmp_path.iterdir())


def test_tokenizer_name_and_licence_are_passed_on(files, tmp_path):
    metadata, tensors = content(files["llama"])
    tokens = [f"t{i}" for i in range(31)] + [b"\xff".decode("utf-8", "surrogateescape")]
    metadata |= {
        "general.license": "MIT",
        "general.file_type": (7, "UINT32"),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.zeros(32, np.float32),
        "tokenizer.ggml.bos_token_id": (1, "UINT32"),
        "tokenizer.ggml.add_bos_token": True,
    }
    gguf.write(tmp_path / "a.gguf", metadata, tensors)
    LlamaSeqEngine.from_gguf(tmp_path / "a.gguf").export_gguf(tmp_path / "b.gguf")
    with gguf.open(tmp_path / "a.gguf") as a, gguf.open(tmp_path / "b.gguf") as b:
        for key in metadata:
            if key.startswith("tokenizer.") or key == "general.license":
                assert b.types[key] == a.types[key], key
                np.testing.assert_array_equal(b.metadata[key], a.metadata[key])
        assert b.metadata["general.file_type"] == 0


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case, files, tmp_path, monkeypatch):
    name, damage, message = REFUSED[case]
    metadata, tensors = content(files[name])
    damage(metadata, tensors)
    path = tmp_path / "bad.gguf"
    if case == "NaN":  # which the writer refuses
        monkeypatch.setattr("toynn.formats.gguf.writer.find_nonfinite", lambda *_: None)
    gguf.write(path, metadata, tensors)
    with pytest.raises(GGUFError, match=message) as error:
        MODELS[name][0].from_gguf(path)
    assert str(path) in str(error.value)


@pytest.mark.filterwarnings("ignore:.*bytes after the last tensor")
@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen3"])
def test_a_damaged_header_is_refused_or_harmless(name, files, tmp_path):
    intact, rng = files[name].read_bytes(), np.random.default_rng(0)
    end = intact.index(b"output_norm.weight")
    path = tmp_path / "damaged.gguf"
    refused = 0
    for _ in range(300):
        damaged = bytearray(intact)
        damaged[rng.integers(end)] = rng.choice([0, 1, 255, rng.integers(256)])
        path.write_bytes(damaged)
        try:
            MODELS[name][0].from_gguf(path, t_seq=1)
        except GGUFError:
            refused += 1
    assert refused > 200


def test_an_engine_refuses_files_of_others(files):
    with pytest.raises(
        GGUFError, match="architecture is 'gpt2'; LlamaSeqEngine reads llama, qwen2"
    ):
        LlamaSeqEngine.from_gguf(files["gpt2"])
    with pytest.raises(ConfigError, match="t_seq 9 is longer than the context 8"):
        LlamaSeqEngine.from_gguf(files["llama"], t_seq=9)


def test_a_head_that_repeats_the_embedding_is_accepted(files, tmp_path):
    metadata, tensors = content(files["gpt2"])
    tensors["output.weight"] = tensors["token_embd.weight"]
    gguf.write(tmp_path / "old.gguf", metadata, tensors)
    model = GPT2SeqEngine.from_gguf(tmp_path / "old.gguf")
    np.testing.assert_array_equal(model.logits(np.arange(8)), build("gpt2").logits(np.arange(8)))


@pytest.mark.parametrize("name", MODELS)
def test_info(name, files, capsys):
    assert main(["info", str(files[name]), "--seq", "4", "--batch", "2"]) == 0
    rows = [(line[:25].strip(), line[25:]) for line in capsys.readouterr().out.splitlines()]
    lines = dict(rows)
    engine, config, _ = MODELS[name]
    assert lines["architecture"] in engine.architectures
    assert lines["embedding_length"] == "32"
    assert lines["tokenizer"] == "none"
    count = sum(values.size for values in build(name).weights().values())
    count += len(getattr(config, "rope_factors", ()))
    assert lines["parameters"].startswith(f"{count:,} in ")
    assert "2 x 4 tokens" in lines["training all weights"]
    assert lines["training adapters"] == "rank 8, all-linear, 2 x 4 tokens"
    with gguf.open(files[name]) as file:
        declared = engine()
        declared.declare_from(file, RecipeOptions(4, 2))
        memory = declared.step_memory()
    again = engine.from_gguf(files[name], 4, 2)
    assert memory == again.session.memory()
    assert lines["peak"] == f"{memory.peak / 1000:.1f} kB"
    adapters = LoRA.memory_for(files[name], 8, RecipeOptions(t_seq=4, t_batch=2), "all-linear")
    assert lines["peak beside the file"] == f"{adapters.peak / 1000:.1f} kB"
    assert float(lines["its peak"].split()[0]) > 0


def test_info_without_an_engine(files, tmp_path, capsys):
    metadata, tensors = content(files["llama"])
    metadata["general.architecture"] = "mamba"
    gguf.write(tmp_path / "mamba.gguf", metadata, tensors)
    assert main(["info", str(tmp_path / "mamba.gguf")]) == 0
    assert "'mamba'; toynn has llama, qwen2, qwen3" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "nothing.gguf")]) == 2


@pytest.mark.skipif(not STORIES.exists(), reason="stories260K.gguf is not at ../shared/data")
def test_info_of_a_pretrained_model(capsys):
    assert main(["info", str(STORIES)]) == 0
    text = capsys.readouterr().out
    assert "260,032 in 47 tensors" in text
    assert "llama, 512 tokens" in text


def rewritten(path, to, **changes):
    """Write a changed copy: metadata by key (dots as __), or ``tensors`` by name."""
    metadata, tensors = content(path)
    tensors |= changes.pop("tensors", {})
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    gguf.write(to, metadata, tensors)
    return to


@pytest.mark.parametrize("shape", [(2, 2), (4, 1), (5,)])
def test_rope_factors_of_a_wrong_shape(shape, files, tmp_path, capsys):
    odd = {"rope_freqs.weight": (np.ones(shape, np.float32), "f32")}
    path = rewritten(files["llama3"], tmp_path / "odd.gguf", tensors=odd)
    with pytest.raises(GGUFError, match=r"rope_fre|rope_factors"):
        LlamaSeqEngine.from_gguf(path, t_seq=4)
    assert main(["info", str(path)]) == 0
    assert "not possible" in capsys.readouterr().out


def test_a_token_id_out_of_range(files, tmp_path):
    odd = {"tokenizer__ggml__bos_token_id": 10**6}
    path = rewritten(files["gpt2"], tmp_path / "odd.gguf", **odd)
    with pytest.raises(GGUFError, match="bos_token_id is 1000000; there are 32 tokens"):
        GPT2SeqEngine.from_gguf(path, t_seq=4)


def test_one_long_token_takes_no_memory_for_all(files, tmp_path):
    tokens = ["x" * 100_000, *(str(i) for i in range(31))]
    path = rewritten(files["gpt2"], tmp_path / "odd.gguf", tokenizer__ggml__tokens=tokens)
    engine = GPT2SeqEngine.from_gguf(path, t_seq=4)
    engine.export_gguf(tmp_path / "again.gguf")
    with gguf.open(tmp_path / "again.gguf") as file:
        assert file.metadata["tokenizer.ggml.tokens"] == tokens


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**GQA, **FACTORS, arch="qwen2"),
        LlamaConfig(**GQA, **FACTORS, arch="qwen3"),
        LlamaConfig(**GQA, arch="qwen2", head_dim=16),
    ],
)
def test_what_llama_cpp_would_not_load_is_not_exported(config, tmp_path):
    model = LlamaSeqEngine()
    model.realize_for_random_init(config, RecipeOptions())
    with pytest.raises(ConfigError, match=r"^export: "):
        model.export_gguf(tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


def test_info_prints_no_control_characters(files, tmp_path, capsys):
    odd = {
        "general__name": "\x1b[31mRED",
        "tokenizer__ggml__tokens": 5,
        "tokenizer__ggml__pre": [1],
    }
    path = rewritten(files["gpt2"], tmp_path / "odd.gguf", **odd)
    assert main(["info", str(path)]) == 0
    assert "\x1b" not in capsys.readouterr().out
