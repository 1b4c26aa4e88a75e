"""Which tokens take part in a draw, and how likely they are, against transformers."""

import numpy as np
import pytest

from toynn.generation.sampling import Sampling

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 7, 500, 1000])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 1e-3, 0.4, 1.0])
def test_distribution(temperature, top_k, top_p, min_p):
    logits = np.random.default_rng(0).normal(0, 3, 500).astype(np.float32)
    warpers = transformers.LogitsProcessorList(
        [transformers.TemperatureLogitsWarper(temperature)]
        + ([transformers.TopKLogitsWarper(top_k)] if top_k else [])
        + ([transformers.TopPLogitsWarper(top_p)] if top_p < 1 else [])
        + ([transformers.MinPLogitsWarper(min_p)] if min_p else [])
    )
    scores = warpers(torch.zeros((1, 1), dtype=torch.long), torch.from_numpy(logits)[None])
    expected = torch.softmax(scores.double(), dim=-1)[0].numpy()
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ids, p = sampling.distribution(logits)
    got = np.zeros(500)
    got[ids] = p
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3])
def test_repeat_penalty(penalty):
    rng = np.random.default_rng(1)
    logits, before = rng.normal(0, 3, 50).astype(np.float32), rng.integers(0, 50, 30)
    processor = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.from_numpy(before)[None], torch.from_numpy(logits)[None])[0]
    sampling = Sampling(temperature=1.0, repeat_penalty=penalty)
    draws = [
        sampling.pick(logits, before.tolist(), np.random.default_rng(seed)) for seed in range(400)
    ]
    p = torch.softmax(expected.double(), dim=-1).numpy()
    share = np.bincount(draws, minlength=50) / 400
    np.testing.assert_allclose(share, p, atol=0.1)
    greedy = Sampling(temperature=0, repeat_penalty=penalty)
    assert greedy.pick(logits, before.tolist(), rng) == int(expected.argmax())
    some = Sampling(temperature=0, repeat_penalty=1e9, repeat_last_n=1)
    best = int(logits.argmax())
    assert some.pick(logits, [best], rng) != best == some.pick(logits, [best, best - 1], rng)
