"""Encoders against transformers in float64: vectors, logits, losses, gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from toynn.data.texts import Texts  # noqa: E402
from toynn.engines.encoder import Encoder, Task  # noqa: E402
from toynn.formats.sentences import Sentences  # noqa: E402
from toynn.options import RecipeOptions  # noqa: E402

pytestmark = pytest.mark.parity

V, C = 40, 32
SHAPE = {"vocab_size": V, "hidden_size": C, "num_hidden_layers": 4, "num_attention_heads": 4}
SHAPE |= {"intermediate_size": 48, "max_position_embeddings": 204}
DISTIL = {"vocab_size": V, "dim": C, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}
DISTIL |= {"max_position_embeddings": 204}
MODERN = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1}
MODERN |= {"sep_token_id": 2, "local_attention": 16}
#: Family: (beginning of the classes, configuration).
FAMILIES = {
    "bert": ("Bert", SHAPE),
    "roberta": ("Roberta", SHAPE | {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", SHAPE),
    "distilbert": ("DistilBert", DISTIL),
    "modern-bert": ("ModernBert", SHAPE | MODERN),
}
LENGTHS = (5, 70, 1, 33, 145)


def theirs(family, end="Model", **more):
    begin, shape = FAMILIES[family]
    torch.manual_seed(7)
    config = getattr(transformers, f"{begin}Config")(**shape, **more)
    config._attn_implementation = "eager"
    model = getattr(transformers, begin + end)(config)
    with torch.no_grad():  # biases and norms that count
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model.eval()


def texts(seed=0, lengths=LENGTHS):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, V, n).tolist() for n in lengths]


def alike(got, expected, tolerance=2e-5):
    expected = np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


def rows_of(model, ids):
    return model(torch.tensor([ids])).last_hidden_state[0]


def pooled(rows, how):
    return {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}[how]


@pytest.mark.parametrize("how", ["mean", "cls", "last"])
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_from_folder_and_file(family, how, tmp_path):
    model = theirs(family)
    model.save_pretrained(tmp_path / "theirs")
    encoder = Encoder.load(tmp_path / "theirs")
    encoder.sentences = Sentences(how, normalize=how == "mean")
    expected = torch.stack([pooled(rows_of(model.double(), ids), how) for ids in texts()])
    if how == "mean":
        expected = torch.nn.functional.normalize(expected)
    expected = expected.detach().numpy()
    alike(encoder.encode(texts()), expected)
    encoder.export_gguf(tmp_path / "a.gguf")
    again = Encoder.load(tmp_path / "a.gguf")
    assert again.sentences.pooling == how
    again.sentences = encoder.sentences
    alike(again.encode(texts()), expected)
    again.export_hf(tmp_path / "again")
    assert Encoder.load(tmp_path / "again").sentences == Sentences(how, how == "mean")
    whole = transformers.AutoModel.from_pretrained(tmp_path / "again").double().eval()
    rows = torch.stack([pooled(rows_of(whole, ids), how) for ids in texts()])
    rows = torch.nn.functional.normalize(rows) if how == "mean" else rows
    alike(rows.detach().numpy(), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_has_the_bits_that_it_has_alone(family, tmp_path):
    theirs(family).save_pretrained(tmp_path / "theirs")
    encoder = Encoder.load(tmp_path / "theirs")
    given = texts()
    together = encoder.encode(given)
    alone = np.concatenate([encoder.encode([ids]) for ids in given])
    assert together.tobytes() == alone.tobytes()


def names_of(encoder, model):
    """Pair toynn's weights with their parameters."""
    mapping, theirs_named = encoder.model.name_mapping(), dict(model.named_parameters())
    for name in encoder.parameters:
        own = mapping.headed(mapping.name(name), encoder.config.head)
        assert own in theirs_named, (name, own)
        yield name, own, theirs_named[own]


def gradients_are_alike(encoder, model, offset=0):
    found = encoder.gradients()
    for name, _, parameter in names_of(encoder, model):
        expected = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        expected = expected[offset:] if name == "position_embd.weight" else expected
        largest = np.abs(expected).max()
        assert np.abs(found[name] - expected).max() <= 1e-4 * largest + 1e-8, name  # of k's bias: 0


HP = np.array([0, 0.9, 0.999, 1e-8, 0, 1, 1], np.float32)


def options():
    return RecipeOptions(t_seq=64, t_batch=2)


@pytest.mark.parametrize("kind", ["sequence", "tokens"])
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_losses_and_gradients(family, kind, tmp_path):
    end = {"sequence": "ForSequenceClassification", "tokens": "ForTokenClassification"}[kind]
    model = theirs(family, end, num_labels=3)
    model.save_pretrained(tmp_path / "theirs")
    encoder = Encoder.load(tmp_path / "theirs", Task(kind, 3), options())
    assert not encoder.new_weights and encoder.class_names == ("LABEL_0", "LABEL_1", "LABEL_2")
    model.double()
    logits = [model(torch.tensor([ids])).logits[0] for ids in texts()]
    logits = torch.stack(logits) if kind == "sequence" else torch.cat(logits)
    alike(encoder.outputs(texts()), logits.detach().numpy())
    labels = np.arange(len(logits)) % 3
    if kind == "tokens":
        labels[::4] = -100
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels))
    loss.backward()
    got = encoder.train(Texts.pack(texts(), labels), HP, True)
    assert abs(got - loss.item()) <= 2e-5 * loss.item()
    gradients_are_alike(encoder, model, 2 if "roberta" in family else 0)
    encoder.export_hf(tmp_path / "again")
    kinds = {"sequence": "AutoModelForSequenceClassification"}
    auto = getattr(transformers, kinds.get(kind, "AutoModelForTokenClassification"))
    again = auto.from_pretrained(tmp_path / "again").double().eval()
    for ids in texts(lengths=(7, 20)):
        expected = model(torch.tensor([ids])).logits.detach().numpy()
        alike(again(torch.tensor([ids])).logits.detach().numpy(), expected, 1e-7)


def test_a_pair_has_token_types(tmp_path):
    model = theirs("bert", "ForSequenceClassification", num_labels=2)
    model.save_pretrained(tmp_path / "theirs")
    encoder = Encoder.load(tmp_path / "theirs", Task("sequence"), options())
    ids, types = texts(lengths=(12,))[0], [0] * 5 + [1] * 7
    given = {"input_ids": torch.tensor([ids]), "token_type_ids": torch.tensor([types])}
    model.double()
    logits = model(**given).logits
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([1]))
    loss.backward()
    got = encoder.train(Texts.pack([ids], [1], [types]), HP, True)
    assert abs(got - loss.item()) <= 2e-5 * loss.item()
    gradients_are_alike(encoder, model)


@pytest.mark.parametrize("loss", ["binary", "squared"])
def test_losses_of_numbers(loss, tmp_path):
    model = theirs("bert", "ForSequenceClassification", num_labels=3)
    model.save_pretrained(tmp_path / "theirs")
    encoder = Encoder.load(tmp_path / "theirs", Task("sequence", 3, loss), options())
    targets = np.random.default_rng(1).random((5, 3)).astype(np.float32)
    targets = targets.round() if loss == "binary" else targets
    logits = torch.cat([model.double()(torch.tensor([ids])).logits for ids in texts()])
    wanted = torch.tensor(targets).double()
    if loss == "binary":
        encoder.positive_weights = np.float32([1, 2, 5])
        weights = torch.tensor([1.0, 2, 5]).double()
        expected = torch.nn.BCEWithLogitsLoss(pos_weight=weights)(logits, wanted)
    else:
        expected = torch.nn.functional.mse_loss(logits, wanted)
    expected.backward()
    got = encoder.train(Texts.pack(texts(), targets), HP, True)
    assert abs(got - expected.item()) <= 2e-5 * expected.item()
    gradients_are_alike(encoder, model)


@pytest.mark.parametrize("loss", ["infonce", "symmetric", "negatives", "cosent"])
@pytest.mark.parametrize("family", ["bert", "modern-bert"])
def test_losses_of_vectors(loss, family, tmp_path):
    model = theirs(family)
    model.save_pretrained(tmp_path / "theirs")
    kind = "cosent" if loss == "cosent" else "infonce"
    task = Task("vectors", loss=kind, symmetric=loss == "symmetric")
    columns = 3 if loss == "negatives" else 2
    encoder = Encoder.load(tmp_path / "theirs", task, options(), build=False)
    encoder.columns = columns
    encoder.build_training_step()
    given = [ids for n in range(columns) for ids in texts(n, (4, 20, 31, 9))]
    vectors = torch.stack([rows_of(model.double(), ids).mean(0) for ids in given])
    vectors = torch.nn.functional.normalize(vectors)
    anchors, others = vectors[:4], vectors[4:]
    scores = np.float32([0.3, 0.9, 0.1, 0.3])
    if loss == "cosent":
        cosines = 20 * (anchors * others).sum(1)
        pairs = torch.tensor(scores[:, None] < scores[None])
        differences = (cosines[:, None] - cosines[None])[pairs]
        expected = torch.logsumexp(torch.cat([torch.zeros(1).double(), differences]), 0)
    else:
        own = torch.arange(4)
        expected = torch.nn.functional.cross_entropy(20 * anchors @ others.T, own)
        if loss == "symmetric":
            back = torch.nn.functional.cross_entropy(20 * others @ anchors.T, own)
            expected = (expected + back) / 2
    expected.backward()
    got = encoder.train(Texts.pack(given, scores if loss == "cosent" else None), HP, True)
    assert abs(got - expected.item()) <= 2e-5 * expected.item()
    gradients_are_alike(encoder, model)


def test_qwen3_embedding_is_the_last_token(tmp_path):
    config = transformers.Qwen3Config(
        **{k: v for k, v in SHAPE.items() if k != "max_position_embeddings"},
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=204,
    )
    torch.manual_seed(3)
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "theirs")
    encoder = Encoder.load(tmp_path / "theirs")
    assert encoder.sentences.pooling == "last"
    expected = torch.stack([rows_of(model.model.double(), ids)[-1] for ids in texts()])
    alike(encoder.encode(texts()), expected.detach().numpy())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma2", "GPT2"])
def test_a_decoder_with_a_head_of_classes(family, tied, tmp_path):
    """It reads the last row; theirs, ours, and theirs again from our folder."""
    shape = SHAPE | {"head_dim": 8, "num_key_value_heads": 2, "tie_word_embeddings": tied}
    shape |= {"query_pre_attn_scalar": 8} if family == "Gemma2" else {}
    if family == "GPT2":
        shape = {"vocab_size": V, "n_embd": C, "n_layer": 3, "n_head": 4, "n_positions": 204}
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**shape, num_labels=3, pad_token_id=0)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForSequenceClassification")(config).eval()
    model.save_pretrained(tmp_path / "theirs")
    encoder = Encoder.load(tmp_path / "theirs", Task("sequence", 3), options())
    assert not encoder.new_weights
    labels = torch.tensor([0, 2, 1, 1, 0])
    model.double()
    logits = torch.cat([model(torch.tensor([ids])).logits for ids in texts()])
    alike(encoder.outputs(texts()), logits.detach().numpy())
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    got = encoder.train(Texts.pack(texts(), labels.numpy()), HP, True)
    assert got == pytest.approx(loss.item(), rel=1e-5)
    alike(encoder.gradients()["cls.output.weight"], model.score.weight.grad.numpy(), 1e-4)
    table = next(model.base_model.parameters())
    alike(encoder.gradients()["token_embd.weight"], table.grad.numpy(), 1e-4)
    expected = encoder.outputs(texts())
    encoder.export_hf(tmp_path / "ours")
    auto = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    assert type(auto) is type(model)
    logits = torch.cat([auto.double().eval()(torch.tensor([ids])).logits for ids in texts()])
    alike(expected, logits.detach().numpy())
    encoder.export_gguf(tmp_path / "a.gguf")
    assert Encoder.load(tmp_path / "a.gguf").outputs(texts()).tobytes() == expected.tobytes()


def test_the_head_alone_is_trained(tmp_path):
    theirs("bert").save_pretrained(tmp_path / "theirs")
    task = Task("sequence", 2, head_only=True)
    encoder = Encoder.load(tmp_path / "theirs", task, options())
    assert set(encoder.new_weights) == {"cls.output.weight", "cls.output.bias"}
    assert set(encoder.parameters) == {"cls.weight", "cls.bias", *encoder.new_weights}
    hp = HP.copy()
    hp[0] = 0.01
    batch = Texts.pack(texts(), [0, 1, 0, 1, 1])
    losses = [encoder.train(batch, hp, n == 0) for n in range(30)]
    assert losses[-1] < 0.5 * losses[0]
