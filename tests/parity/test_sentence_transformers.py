"""Vectors, losses and scores against sentence-transformers, where it is installed."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
st = pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers, the group sentences, is not installed"
)

from small_encoders import with_words  # noqa: E402

from toynn.cli import main  # noqa: E402
from toynn.engines.encoder import Encoder, Task  # noqa: E402
from toynn.engines.vectors import WholeBatch  # noqa: E402
from toynn.formats.sentences import Sentences  # noqa: E402
from toynn.recipes import Embedder, Reranker  # noqa: E402

pytestmark = pytest.mark.parity

TEXTS = ["a cat sat", "dogs", "cat " * 30, "a dog : find a cat"]


def alike(got, expected, tolerance=2e-5):
    expected = np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return with_words(tmp_path / "plain")


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_its_vectors_are_those_of_toynn_embed(pooling, folder, tmp_path):
    encoder = Encoder.load(folder)
    encoder.sentences = Sentences(pooling, pooling == "mean", 20, {"query": "find: "})
    encoder.export_hf(tmp_path / "model")
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    theirs = st.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    for more, prompt in ((), None), (("--prompt", "query"), "query"):
        words = ["embed", "--model", "model", "--data", "a.txt", "--out", "v.npy", "--overwrite"]
        assert main([*words, *more]) == 0
        alike(np.load("v.npy"), theirs.encode(TEXTS, prompt_name=prompt))


class Given(torch.nn.Module):
    """A model whose vectors are given: what losses ask of one."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self):
        return self.width


def loss_named(name, dims):
    from sentence_transformers.sentence_transformer import losses

    model = Given(16)
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    loss = {
        "infonce": lambda: losses.MultipleNegativesRankingLoss(model),
        "symmetric": lambda: losses.MultipleNegativesRankingLoss(model, **both),
        "cosent": lambda: losses.CoSENTLoss(model),
        "triplet": lambda: losses.TripletLoss(model),
    }[name]()
    return losses.MatryoshkaLoss(model, loss, list(dims)) if dims else loss


@pytest.mark.parametrize("dims", [(), (16, 5)])
@pytest.mark.parametrize(
    ("name", "columns"),
    [("infonce", 2), ("infonce", 4), ("symmetric", 2), ("cosent", 2), ("triplet", 3)],
)
def test_a_loss_and_its_gradient_are_its_own(name, columns, dims):
    x = np.random.default_rng(columns).standard_normal((6 * columns, 16)).astype(np.float32)
    scores = np.float32([0.1, 0.9, 0.4, 0.4, 0.2, 1.0]) if name == "cosent" else None
    vectors = torch.tensor(x).double().requires_grad_()
    given = [{"vectors": vectors[6 * k : 6 * k + 6]} for k in range(columns)]
    theirs = loss_named(name, dims)(given, None if scores is None else torch.tensor(scores))
    theirs.backward()
    kind = "infonce" if name == "symmetric" else name
    task = Task("vectors", loss=kind, symmetric=name == "symmetric", dims=dims)
    loss, gradient = WholeBatch(task, 16, backend="cpu").loss(x, columns, scores)
    assert abs(loss - theirs.item()) < 2e-6 * theirs.item()
    alike(gradient, vectors.grad.numpy(), 1e-5)


def test_what_is_learned_of_a_teacher_is_its_divergence():
    """DistillKLDivLoss, whose candidates are a row's own: a batch of one row, T = 1 / factor."""
    from sentence_transformers import util
    from sentence_transformers.sentence_transformer import losses

    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 16)).astype(np.float32)
    told = rng.standard_normal((4, 9)).astype(np.float32)
    vectors, teacher = torch.tensor(x).double().requires_grad_(), torch.tensor(told).double()
    cosines = util.pairwise_cos_sim(teacher[:1].repeat(3, 1), teacher[1:])[None]
    theirs = losses.DistillKLDivLoss(Given(16), util.pairwise_cos_sim, temperature=1 / 20)
    theirs([{"vectors": each[None]} for each in vectors], cosines).backward()
    task = Task("vectors", teacher_weight=1.0)
    _, gradient = WholeBatch(task, 16, backend="cpu").loss(x, 4, told)
    alike(gradient, 400 * vectors.grad.numpy(), 1e-5)


def test_what_is_trained_loads_as_its_own(folder, tmp_path):
    rows = [f"a cat {n % 7 * 'sat '},a dog {n % 5 * 'find '},{n % 2}\n" for n in range(12)]
    (tmp_path / "a.csv").write_text("query,passage,label\n" + "".join(rows))
    steps = ("--steps", "3", "--lr", "0.01", "--batch", "4", "--model", "plain", "--data", "a.csv")
    given = [("a cat sat", "a dog"), ("dogs", "a cat find"), ("find", "a " * 70)]
    assert main(["train", "rerank", *steps, "--out", "ranker"]) == 0
    theirs = st.CrossEncoder(str(tmp_path / "ranker"), device="cpu")
    assert theirs.num_labels == 1 and isinstance(theirs.activation_fn, torch.nn.Sigmoid)
    alike(Reranker.load("ranker").scores(given), theirs.predict(given))
    more = ("--columns", "anchor=query,positive=passage", "--prompts", "anchor=find : ")
    assert main(["train", "embed", *steps, *more, "--out", "vectors"]) == 0
    encoder, theirs = Embedder.load("vectors"), st.SentenceTransformer("vectors", device="cpu")
    texts = [text for pair in given for text in pair]
    alike(encoder.encode(texts), theirs.encode(texts))
    alike(encoder.encode(texts, prompt="find : "), theirs.encode_query(texts))
