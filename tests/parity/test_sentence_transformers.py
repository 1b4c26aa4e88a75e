"""Vectors, losses and scores against sentence-transformers, where it is installed."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")

from small_encoders import with_words  # noqa: E402

from toynn.cli import main  # noqa: E402
from toynn.engines.encoder import Encoder  # noqa: E402
from toynn.formats.sentences import Sentences  # noqa: E402

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
