"""The policy loss against TRL's formulas over padded arrays, and against finite differences."""

import numpy as np
import pytest

from toynn.engines.policy import PolicyOptions, Sample, advantages, policy_loss, shares

LENGTHS = (3, 1, 5, 2)
ADVANTAGES = (1.0, -0.5, -1.5, 0.7)
CASES = {
    "dapo": {},
    "grpo": {"loss_type": "grpo", "beta": 0.3},
    "dr_grpo": {"loss_type": "dr_grpo", "epsilon_high": 0.28},
    "bnpo": {"loss_type": "bnpo", "delta": 1.4},
    "sequence": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05},
    "sequence-capped": {"importance_sampling_level": "sequence", "importance_cap": 1.2},
    "capped": {"importance_cap": 1.2, "beta": 0.1},
    "truncated": {"loss_type": "grpo"},
}


def arrays():
    """Log probabilities: now, when sampled, by the old weights, by the reference."""
    random = np.random.default_rng(3)
    now, old, reference = -random.exponential(1, (3, sum(LENGTHS)))
    old = now + random.normal(0, 0.3, old.shape)
    return now, old + random.normal(0, 0.2, old.shape), old, reference


def written_out(now, options, counted):
    """TRL's loss: (B, T) with a mask; the sum over samples of a whole update of one batch."""
    _, sampled, old, reference = arrays()
    B, T = len(LENGTHS), max(LENGTHS)
    mask = np.arange(T) < np.array(LENGTHS)[:, None]
    padded = [np.zeros((B, T)) for _ in range(4)]
    for to, values in zip(padded, (now, sampled, old, reference), strict=True):
        to[mask] = values
    now, sampled, old, reference = padded
    mask = mask & counted[:, None]
    A = np.array(ADVANTAGES)[:, None]
    w = now - old
    if options.importance_sampling_level == "sequence":
        w = (w * mask).sum(1, keepdims=True) / np.maximum(mask.sum(1, keepdims=True), 1)
    high = options.epsilon if options.epsilon_high is None else options.epsilon_high
    c1, c2 = np.exp(w), np.clip(np.exp(w), 1 - options.epsilon, 1 + high)
    c1 = c1 if options.delta is None else np.minimum(c1, options.delta)
    loss = -np.minimum(c1 * A, c2 * A) * np.ones((B, T))
    if options.importance_cap:
        loss = loss * np.minimum(np.exp(old - sampled), options.importance_cap)
    loss += options.beta * (np.exp(reference - now) - (reference - now) - 1)
    loss *= mask
    if options.loss_type == "grpo":
        return (loss.sum(1) / np.maximum(mask.sum(1), 1)).mean()
    if options.loss_type == "dr_grpo":
        return loss.sum() / (B * options.max_completion_length)
    return loss.sum() / mask.sum()


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_formula(name):
    options = PolicyOptions(**CASES[name])
    now, sampled, old, reference = arrays()
    counted = np.array([True, True, name != "truncated", True])
    share, _ = shares(LENGTHS, counted, options)
    split = np.split(sampled, np.cumsum(LENGTHS)[:-1])
    samples = [
        Sample([1], [1] * n, a, float(s), part.tolist())
        for n, a, s, part in zip(LENGTHS, ADVANTAGES, share, split, strict=True)
    ]

    def of(logp):
        held = reference if options.beta else None
        return policy_loss(logp, old, samples, options, held)

    loss, gradient, _ = of(now)
    assert loss == pytest.approx(written_out(now, options, counted), rel=1e-12)
    for k in range(len(now)):
        step = np.zeros(len(now))
        step[k] = 1e-6
        slope = (
            written_out(now + step, options, counted) - written_out(now - step, options, counted)
        ) / 2e-6
        assert gradient[k] == pytest.approx(slope, abs=1e-8), k


def test_weights_of_batches_make_dapo_one_mean_over_tokens():
    """Two batches count by their tokens in dapo, by their samples in grpo, alike in bnpo."""
    both = np.ones(2, bool)
    for loss_type, weights in (("dapo", (8, 3)), ("grpo", (2, 2)), ("bnpo", (1, 1))):
        options = PolicyOptions(loss_type)
        assert tuple(shares(n, both, options)[1] for n in ((3, 5), (1, 2))) == weights


def test_without_a_counted_sample_the_loss_is_zero():
    share, _ = shares((3, 2), np.zeros(2, bool), PolicyOptions())
    assert share.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("scale", "by"), [("group", (0.5**0.5, 2.0**0.5)), ("batch", None), ("none", (1 - 1e-4,) * 2)]
)
def test_advantages_are_those_of_the_formula(scale, by):
    """Missing rewards and groups without a spread have none; a group of one reward has none."""
    rewards = np.array([0.0, 1.0, np.nan, 4.0, 2.0, np.nan, 3.3, 3.3, 3.3, np.nan, 7.0, np.nan])
    A, stds = advantages(rewards, 3, scale)
    one, other = by or (np.nanstd(rewards, ddof=1),) * 2
    wanted = np.array([-0.5 / (one + 1e-4), 0.5 / (one + 1e-4), 0, *[0] * 9])
    wanted[3:5] = 1 / (other + 1e-4), -1 / (other + 1e-4)
    np.testing.assert_allclose(A, wanted, rtol=1e-12, atol=0)
    np.testing.assert_allclose(stds, [0.5**0.5, 2.0**0.5, 0, 0], rtol=1e-12)
