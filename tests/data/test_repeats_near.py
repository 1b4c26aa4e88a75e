"""Texts that are nearly others."""

import numpy as np

from toynn.data.repeats import near


def test_near_texts_are_found_and_others_are_not():
    rng = np.random.default_rng(0)
    texts = [[f"w{k}" for k in rng.integers(0, 3000, 40)] for _ in range(300)]
    one, half = ([list(words) for words in texts[:200]] for _ in range(2))
    for words, other in zip(one, half, strict=True):
        words[20] = "new"  # 39 of 43 pairs are in both: 0.91
        other[::6] = ["new"] * 7
    every = [" ".join(words) for words in (*texts, *one, *half)]
    assert [*near(every)] == [(300 + k, k) for k in range(200)]
    assert [*near(["", "a", "b", "", "a a", "a"])] == [(3, 0), (5, 1)]
