"""Which tokens take part in a draw, and how likely they are, against transformers."""

import numpy as np
import pytest

from toynn.generate import _distribution

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 7, 500, 1000])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999, 1.0])
def test_distribution(temperature, top_k, top_p):
    logits = np.random.default_rng(0).normal(0, 3, 500).astype(np.float32)
    warpers = transformers.LogitsProcessorList(
        [transformers.TemperatureLogitsWarper(temperature)]
        + ([transformers.TopKLogitsWarper(top_k)] if top_k else [])
        + ([transformers.TopPLogitsWarper(top_p)] if top_p < 1 else [])
    )
    scores = warpers(torch.zeros((1, 1), dtype=torch.long), torch.from_numpy(logits)[None])
    expected = torch.softmax(scores.double(), dim=-1)[0].numpy()
    ids, p = _distribution(logits, temperature, top_k, top_p)
    got = np.zeros(500)
    got[ids] = p
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-9)
