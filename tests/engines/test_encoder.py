"""The engine of encoders, without other libraries: files, heads, adapters, batches, refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_encoders import written

import toynn
from toynn.data.texts import Texts
from toynn.engines import converting
from toynn.engines.encoder import Encoder, Task
from toynn.engines.targets import AdapterOptions
from toynn.errors import ConfigError, DataError, GGUFError, LifecycleError, ShapeError
from toynn.formats import bases, gguf, hf
from toynn.formats.sentences import Sentences
from toynn.models import ARCHITECTURES, ENCODERS
from toynn.options import RecipeOptions

HP = np.array([0.001, 0.9, 0.999, 1e-8, 0, 1, 1], np.float32)
OPTIONS = RecipeOptions(t_seq=32, t_batch=1, seed=3)


def texts(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 32, n).tolist() for n in lengths or (5, 17, 30, 9)]


@pytest.mark.parametrize("arch", ENCODERS)
def test_folder_and_file_hold_the_same_model(arch, tmp_path):
    first = Encoder.load(written(tmp_path / "a", arch))
    expected = first.encode(texts())
    first.export_gguf(tmp_path / "a.gguf")
    second = Encoder.load(tmp_path / "a.gguf")
    second.sentences = replace(second.sentences, normalize=False)
    assert second.encode(texts()).tobytes() == expected.tobytes()
    second.export_hf(tmp_path / "b")
    assert Encoder.load(tmp_path / "b").encode(texts()).tobytes() == expected.tobytes()
    with gguf.open(tmp_path / "a.gguf") as file:
        assert file.architecture == ("modern-bert" if arch == "modern-bert" else "bert")
        assert file.metadata[f"{file.architecture}.attention.causal"] is False
        assert file.metadata[f"{file.architecture}.pooling_type"] == 1


@pytest.mark.parametrize("kind", ["sequence", "tokens"])
@pytest.mark.parametrize("arch", ENCODERS)
def test_a_head_is_new_then_learned_and_stored(arch, kind, tmp_path):
    folder = written(tmp_path / "a", arch)
    encoder = Encoder.load(folder, Task(kind, 3), OPTIONS)
    assert {"cls.output.weight", "cls.output.bias"} <= {*encoder.new_weights}
    encoder.class_names = ("bad", "so-so", "good")
    labels = np.arange(61 if kind == "tokens" else 4) % 3
    losses = [encoder.train(Texts.pack(texts(), labels), HP, n == 0) for n in range(40)]
    assert losses[-1] < 0.3 * losses[0]
    encoder.export_hf(tmp_path / "b")
    again = Encoder.load(tmp_path / "b")
    assert again.task == Task(kind, 3) and not again.new_weights
    assert again.class_names == encoder.class_names
    assert again.outputs(texts()).tobytes() == encoder.outputs(texts()).tobytes()
    more = Encoder.load(tmp_path / "b", Task(kind, 5), OPTIONS)
    assert more.new_weights == ("cls.output.weight", "cls.output.bias") and not more.class_names
    if kind == "tokens" or arch == "distilbert":
        with pytest.raises(ConfigError, match=r"llama\.cpp has no"):
            encoder.export_gguf(tmp_path / "c.gguf")
        return
    encoder.export_gguf(tmp_path / "c.gguf")
    filed = Encoder.load(tmp_path / "c.gguf")
    assert filed.class_names == encoder.class_names
    assert filed.outputs(texts()).tobytes() == encoder.outputs(texts()).tobytes()


def test_a_text_has_the_bits_that_it_has_alone(tmp_path):
    encoder = Encoder.load(written(tmp_path / "a", "modern-bert"))
    given = texts(1, 40, 3, 64, 17, 2)
    alone = np.concatenate([encoder.encode([ids]) for ids in given])
    assert encoder.encode(given).tobytes() == alone.tobytes()
    assert encoder.encode([]).shape == (0, 16)


@pytest.mark.parametrize("arch", ["bert", "modern-bert"])
def test_gradients_by_differences(arch, tmp_path):
    folder = written(tmp_path / "a", arch)
    task = Task("vectors", symmetric=True)
    encoder = Encoder.load(folder, task, OPTIONS)
    batch = Texts.pack(texts(5, 9, 7, 3))
    encoder.train(batch, HP * np.float32([0, 1, 1, 1, 1, 1, 1]), True)
    found, weights = encoder.gradients(), encoder.weights()
    rng = np.random.default_rng(2)
    for name in ("blk.0.ffn_up.weight", "blk.2.attn_output.weight", "token_embd_norm.weight"):
        step = rng.standard_normal(weights[name].shape).astype("f")
        losses = []
        for sign in (1, -1):
            encoder.load_weights(weights | {name: weights[name] + sign * 1e-2 * step})
            losses.append(encoder.evaluate(batch))
        slope, expected = (losses[0] - losses[1]) / 2e-2, float((found[name] * step).sum())
        assert abs(slope - expected) < 2e-2 * abs(expected) + 2e-3


def test_micro_batches_add_up_to_the_whole(tmp_path):
    folder = written(tmp_path / "a")
    one, many = (Encoder.load(folder, Task("sequence", 2), OPTIONS) for _ in range(2))
    given, labels = texts(), [0, 1, 1, 0]
    one.train(Texts.pack(given, labels), HP, True)
    many.accumulate(Texts.pack(given[:3], labels[:3]))
    many.train(Texts.pack(given[3:], labels[3:]), HP, True)
    for name, values in one.weights().items():
        assert np.abs(many.weights()[name] - values).max() < 1e-4


def test_dense_labels_are_smoothed_and_weighted_ones(tmp_path):
    folder = written(tmp_path / "a")
    encoder = Encoder.load(folder, Task("sequence", 2), OPTIONS)
    labels = np.array([0, 1, 1, 0])
    plain = encoder.evaluate(Texts.pack(texts(), labels))
    dense = np.eye(2, dtype=np.float32)[labels]
    assert abs(encoder.evaluate(Texts.pack(texts(), dense)) - plain) < 1e-6


def test_adapters_and_a_head_over_a_quantized_file(tmp_path):
    whole = Encoder.load(written(tmp_path / "a", d_model=32, d_ff=64))
    whole.export_gguf(tmp_path / "q.gguf", "q8_0")
    encoder = Encoder()
    encoder.enable_lora(AdapterOptions(4, targets=("all-linear",)))
    with bases.open(tmp_path / "q.gguf") as file:
        encoder.map(file, OPTIONS, Task("sequence", 2))
    encoder.init_adapters("peft", 1, 0.02)
    encoder.build_training_step()
    own = {name for name in encoder.parameters if not name.endswith((".lora_a", ".lora_b"))}
    assert own == {"cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"}
    batch = Texts.pack(texts(), [0, 1, 1, 0])
    losses = [encoder.train(batch, HP, n == 0) for n in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_texts_and_pairs_go_through_the_tokenizer(tmp_path):
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "##s", "sat"]
    folder = written(tmp_path / "a", vocab=len(words))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    encoder = Encoder.load(folder)
    assert encoder.tokens_of("A cats SAT") == ([2, 5, 6, 8, 9, 3], [0] * 6)
    pair = encoder.tokens_of(("cat", "dogs"))
    assert pair == ([2, 6, 3, 7, 8, 3], [0, 0, 0, 1, 1, 1])
    encoder.sentences = replace(encoder.sentences, length=6)
    assert encoder.tokens_of("cat " * 9) == ([2, 6, 6, 6, 6, 3], [0] * 6)
    assert encoder.tokens_of(("cat cat", "dog " * 9)) == ([2, 6, 6, 3, 7, 3], [0] * 4 + [1] * 2)
    texts = ["a cat sat", "dogs", ("cat", "dogs")]
    expected = encoder.encode(texts)
    ids = [encoder.tokens_of(text)[0] for text in texts[:2]]
    assert expected[:2].tobytes() == encoder.encode(ids).tobytes()
    prompted = encoder.encode(["sat"], prompt="cat ")
    assert prompted.tobytes() == encoder.encode(["cat sat"]).tobytes()
    assert not encoder.export_hf(tmp_path / "b")
    encoder.export_gguf(tmp_path / "b.gguf")
    for name in ("b", "b.gguf"):
        again = Encoder.load(tmp_path / name)
        again.sentences = encoder.sentences
        assert again.encode(texts).tobytes() == expected.tobytes()


# -- sentence-transformers' files -----------------------------------------------------------------


def test_pooling_comes_from_the_folder(tmp_path):
    encoder = Encoder.load(written(tmp_path / "a"))
    assert encoder.sentences == Sentences("mean")
    encoder.sentences = told = Sentences("cls", True, 48, {"query": "find: "})
    encoder.export_hf(tmp_path / "b")
    again = Encoder.load(tmp_path / "b")
    assert again.sentences == told and again.longest == 48
    vectors = again.encode(texts())
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6


@pytest.mark.parametrize("kind", ["vectors", "sequence"])
@pytest.mark.parametrize("arch", ["roberta", "modern-bert"])
def test_a_folder_is_converted_without_an_engine(arch, kind, tmp_path):
    encoder = Encoder.load(written(tmp_path / "a", arch), Task(kind, 2 * (kind != "vectors")))
    encoder.class_names = ("no", "yes") if kind == "sequence" else ()
    encoder.sentences = Sentences("cls", True)
    encoder.export_hf(tmp_path / "b")
    converting.convert(tmp_path / "b", tmp_path / "b.gguf", "f32")
    filed = Encoder.load(tmp_path / "b.gguf")
    assert filed.class_names == encoder.class_names
    given = texts()
    if kind == "sequence":
        assert filed.outputs(given).tobytes() == encoder.outputs(given).tobytes()
    else:
        assert filed.sentences == encoder.sentences
        assert filed.encode(given).tobytes() == encoder.encode(given).tobytes()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("modules.json", lambda m: [*m, {"type": "a.Dense", "path": "2_Dense"}], "Dense is not"),
        ("modules.json", lambda m: m[:1], "expected Pooling"),
        ("modules.json", lambda m: 3, "expected modules with a type"),
        ("1_Pooling/config.json", lambda c: {"pooling_mode_max_tokens": True}, "expected one of"),
        ("1_Pooling/config.json", lambda c: {}, "got none"),
        ("1_Pooling/config.json", lambda c: c | {"include_prompt": False}, "include_prompt false"),
        ("sentence_bert_config.json", lambda c: {"max_seq_length": -1}, "must be at least 3"),
        ("sentence_bert_config.json", lambda c: {"max_seq_length": "9"}, "must be at least 3"),
    ],
)
def test_a_pooling_that_toynn_has_not_is_refused(name, change, message, tmp_path):
    Encoder.load(written(tmp_path / "a")).export_hf(tmp_path / "b")
    path = tmp_path / "b" / name
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(DataError, match=message):
        Encoder.load(tmp_path / "b")


def test_a_number_of_a_pooling_that_no_one_has_is_refused(tmp_path, monkeypatch):
    encoder = Encoder.load(written(tmp_path / "a"))
    told = {"pooling_type": 5, "head": ""}
    monkeypatch.setattr(Encoder, "told", lambda self, *, folder=False: {} if folder else told)
    encoder.export_gguf(tmp_path / "a.gguf")
    with pytest.raises(GGUFError, match=r"a\.gguf: pooling_type must be one of 0 to 4; got 5"):
        Encoder.load(tmp_path / "a.gguf")


def test_a_head_of_modern_bert_says_what_it_reads(tmp_path, monkeypatch):
    """By llama.cpp's number in a file, by a word in config.json."""
    encoder = Encoder.load(
        written(tmp_path / "m", "modern-bert", pooling="mean"), Task("sequence", 2)
    )
    encoder.export_gguf(tmp_path / "m.gguf")
    assert Encoder.load(tmp_path / "m.gguf").config.pooling == "mean"
    told = {"classifier.pooling_type": 3, "head": ""}
    monkeypatch.setattr(Encoder, "told", lambda self, *, folder=False: {} if folder else told)
    encoder.export_gguf(tmp_path / "b.gguf")
    with pytest.raises(
        GGUFError, match=r"b\.gguf: .*classifier.pooling_type must be 1 or 2; got 3"
    ):
        Encoder.load(tmp_path / "b.gguf")
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace('"mean"', '"max"'))
    with pytest.raises(DataError, match="classifier_pooling must be cls or mean; got 'max'"):
        Encoder.load(tmp_path / "m")


def test_a_decoder_s_folder_names_its_class_and_pads_with_its_end(tmp_path):
    base = toynn.LlamaSeqEngine()
    base.realize_for_random_init(toynn.LlamaConfig(40, 16, 2, 2, 24, 1, 32), OPTIONS)
    base.export_gguf(tmp_path / "base.gguf")
    encoder = Encoder.load(tmp_path / "base.gguf", Task("sequence", 2, names=("a", "b")))
    keys = encoder.model.write(encoder.config) | encoder.told(folder=True)
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    config = hf.contents("new", "llama", keys, encoder.weights(), named=ends)["config.json"]
    config = json.loads(config)
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert config["pad_token_id"] == 2 and config["id2label"] == {"0": "a", "1": "b"}


def test_an_unknown_weight_is_refused_also_under_a_head(tmp_path):
    Encoder.load(written(tmp_path / "m")).export_gguf(tmp_path / "a.gguf")
    with gguf.open(tmp_path / "a.gguf") as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        weights = {name: (np.array(file[name]), "F32") for name in file}
        weights["output.weight"] = np.ones((32, 16), np.float32), "F32"
        gguf.write(tmp_path / "b.gguf", metadata, weights)
    with pytest.raises(GGUFError, match=r"output\.weight"):
        Encoder.load(tmp_path / "b.gguf", Task("sequence", 2))


@pytest.mark.parametrize("name", ["classifier.weight", "embeddings.word_embeddings.weight"])
def test_a_weight_that_is_one_number_is_refused(name, tmp_path):
    Encoder.load(written(tmp_path / "m"), Task("sequence", 2)).export_hf(tmp_path / "a")
    path = tmp_path / "a" / "model.safetensors"
    weights = load_file(path)
    (name,) = (each for each in weights if each.endswith(name))
    save_file(weights | {name: np.array(1, np.float32)}, path)
    with pytest.raises(DataError, match=r"tensor \S+ has no rows: it is one number"):
        Encoder.load(tmp_path / "a")


def test_a_context_of_few_tokens_cuts(tmp_path):
    encoder = Encoder.load(written(tmp_path / "a", "roberta", context=8))
    long = encoder.encode([[3] * 20])
    assert encoder.cut == 1 and long.tobytes() == encoder.encode([[3] * 8]).tobytes()


# -- what is wrong --------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused(tmp_path):
    folder = written(tmp_path / "a")
    encoder = Encoder.load(folder)
    with pytest.raises(LifecycleError, match="no head: see encode"):
        encoder.outputs(texts())
    with pytest.raises(ShapeError, match="at least one token"):
        encoder.encode([[]])
    with pytest.raises(ConfigError, match="it has no head: give"):
        Encoder.load(folder, Task("sequence"))
    with pytest.raises(ConfigError, match="must be one of infonce, cosent"):
        Task("vectors", loss="binary")
    with pytest.raises(ConfigError, match="head_only needs a head"):
        Task("vectors", head_only=True)
    trained = Encoder.load(folder, Task("vectors"), OPTIONS)
    with pytest.raises(ShapeError, match="3 texts are not examples of 2 columns"):
        trained.train(Texts.pack(texts(3, 4, 5)), HP, True)
    with pytest.raises(ShapeError, match="at least one token; text 1 has none"):
        Texts.pack([[3], [], [4]], [0, 1, 0])
    with pytest.raises(ShapeError, match="at least one token; got no texts"):
        Texts.pack([])
    with pytest.raises(ShapeError, match="one has 65 tokens; the context is 64"):
        trained.train(Texts.pack(texts(3, 65)), HP, True)
    assert encoder.encode([[1] * 99]).shape == (1, 16)  # cut to the context


def test_decoders_refuse_an_encoder(tmp_path):
    from toynn.engines import SequenceEngine

    folder = written(tmp_path / "a")
    with pytest.raises(DataError, match="is an encoder, which writes no text"):
        SequenceEngine.from_file(folder)
    Encoder.load(folder).export_gguf(tmp_path / "a.gguf")
    with pytest.raises(GGUFError, match="is an encoder, which writes no text"):
        SequenceEngine.from_file(tmp_path / "a.gguf")
    assert not ENCODERS.keys() & ARCHITECTURES.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act must be 'gelu'; got 'relu'"),
        ({"position_embedding_type": "relative_key"}, "must be 'absolute'"),
        ({"is_decoder": True}, "is_decoder must be False"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label must name classes 0, 1"),
        ({"zork": 3}, "zork = 3 is not known"),
    ],
)
def test_a_config_that_toynn_does_not_compute_is_refused(change, message, tmp_path):
    path = written(tmp_path / "a") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        Encoder.load(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["full_attention"] * 3}, "layer_types must have full_attention in every"),
        (
            {"num_hidden_layers": 1 << 60, "layer_types": ["full_attention"]},
            "layer_types must have",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_type must be default",
        ),
        ({"norm_bias": True}, "norm_bias must be False"),
    ],
)
def test_a_modernbert_that_toynn_does_not_compute_is_refused(change, message, tmp_path):
    path = written(tmp_path / "a", "modern-bert") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        Encoder.load(tmp_path / "a")
