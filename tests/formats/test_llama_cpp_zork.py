"""What an adapter learned, in llama.cpp with --lora: the same logits, the same text."""

import hashlib

import numpy as np
import pytest
from test_llama_cpp import judge, nmse
from zork import SENTENCES, START, T, Tokens, base, greedy, ours, train

pytestmark = pytest.mark.llama_cpp


@pytest.mark.parametrize(
    ("name", "limit"),
    [("stories260K.gguf", 1e-6), ("stories260K-q8_0.gguf", 1e-2)],  # it rounds activations to q8_0
)
def test_llama_cpp_tells_of_zork_too(name, limit, tmp_path):
    path = base(name)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    recipe, losses = train(path)
    assert losses[-1] < 0.25 < 3 < losses[0]
    tokens = Tokens(path)
    start = tokens.encode(START)
    story = greedy(lambda ids: ours(recipe.engine, ids), start, T - len(start))
    text = tokens.decode(story).strip()
    assert text.startswith("The robot Zork")
    assert text.startswith(tuple(s for s in SENTENCES if s.startswith("The robot")))
    recipe.export_adapter(tmp_path / "adapter.gguf")
    model = judge(path, tmp_path / "adapter.gguf")

    def theirs(ids):
        model.reset()
        model.eval(ids)
        return model.scores[len(ids) - 1]

    assert greedy(theirs, start, T - len(start))[:20] == story[:20]
    model.reset()
    model.eval(story)
    expected = np.array(model.scores[: len(story)], np.float64)
    assert nmse(recipe.engine.logits(np.array(story)), expected) < limit
    plain = judge(path)
    plain.eval(start)
    assert "Zork" not in tokens.decode(greedy(lambda ids: _next(plain, ids), start, 20))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def _next(model, ids):
    model.reset()
    model.eval(ids)
    return model.scores[len(ids) - 1]
