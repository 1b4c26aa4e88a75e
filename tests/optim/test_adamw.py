"""AdamW: both hp conventions to the last bit, and every guard."""

from fractions import Fraction

import numpy as np
import pytest
from tiny import Tiny

from toynn._kernels import adamw as kernel
from toynn.errors import ConfigError
from toynn.numerics.adamw_row import check_row
from toynn.optim import AdamW


def test_defaults_and_modes():
    a = AdamW()
    assert (a.lr, a.beta1, a.beta2, a.eps, a.weight_decay) == (1e-3, 0.9, 0.95, 1e-8, 0.0)
    assert a.bias_correct is False
    assert a.mode == AdamW.MODE_UNSET
    assert (AdamW.MODE_UNSET, AdamW.MODE_FROM_SCRATCH, AdamW.MODE_LORA) == (0, 1, 2)


def test_factories():
    scratch, lora = AdamW.for_from_scratch(), AdamW.for_lora()
    assert (scratch.mode, scratch.bias_correct, scratch.beta2) == (1, False, 0.95)
    assert (lora.mode, lora.bias_correct, lora.beta2) == (2, True, 0.999)
    assert (lora.lr, lora.beta1, lora.eps, lora.weight_decay) == (1e-3, 0.9, 1e-8, 0.0)


def test_factories_take_the_fields():
    scratch = AdamW.for_from_scratch(3e-4, beta1=0.8, eps=1e-7)
    assert_row(scratch.hp(5), [3e-4, 0.8, 0.95, 1e-7, 0, 0.8, 0.95])
    lora = AdamW.for_lora(lr=0.01, beta2=0.99, weight_decay=0.1)
    assert_row(lora.hp(1), [0.01, 0.9, 0.99, 1e-8, 0.1, 1 / (1 - 0.9), 1 / (1 - 0.99)])
    with pytest.raises(TypeError, match="betas"):
        AdamW.for_lora(betas=(0.9, 0.99))


def assert_row(row, expected):
    assert row.dtype == np.float32
    assert row.shape == (7,)
    assert row.tolist() == np.array(expected, np.float32).tolist()


@pytest.mark.parametrize("step", [-1, 0, 1, 1000])
def test_from_scratch_ignores_the_step(step):
    a = AdamW.for_from_scratch()
    a.lr, a.weight_decay = 3e-4, 0.1
    assert_row(a.hp(step), [3e-4, 0.9, 0.95, 1e-8, 0.1, 0.9, 0.95])
    assert_row(a.hp_for_step(step), [3e-4, 0.9, 0.95, 1e-8, 0.1, 0.9, 0.95])


@pytest.mark.parametrize("step", [1, 2, 3, 100, 1000])
def test_lora_corrects_by_the_step(step):
    a = AdamW.for_lora()
    c1, c2 = (float(1 / (1 - beta**step)) for beta in (Fraction(9, 10), Fraction(999, 1000)))
    assert_row(a.hp(step), [1e-3, 0.9, 0.999, 1e-8, 0, c1, c2])
    assert_row(a.hp_for_step(step - 1), a.hp(step))


def test_lora_row_of_step_3():
    row = AdamW.for_lora().hp(3)
    assert row[5:] == pytest.approx([3.690036900, 333.6668890], rel=1e-7)


def test_frozen_moments_are_allowed_from_scratch():
    a = AdamW.for_from_scratch()
    a.beta1 = a.beta2 = 1.0
    assert_row(a.hp(0), [1e-3, 1, 1, 1e-8, 0, 1, 1])


def refused(a, step, message):
    with pytest.raises(ConfigError, match=message):
        a.hp(step)
    with pytest.raises(ValueError, match=message):
        a.hp_for_step(step - 1 if a.mode == AdamW.MODE_LORA else step)


def test_unset_mode_is_refused():
    refused(AdamW(), 1, r"mode is unset: use AdamW.for_lora\(\), Adam with bias correction, as in")
    given = r"AdamW.for_lora\(lr=0.01, beta2=0.9\), .*AdamW.for_from_scratch\(lr=0.01, beta2=0.9\)"
    refused(AdamW(lr=0.01, beta2=0.9), 1, given)


def test_unknown_mode_is_refused():
    refused(AdamW(mode=3), 1, r"mode must be .*; got 3")


def test_contradicting_mode_is_refused():
    refused(AdamW(mode=1, bias_correct=True), 1, "mode is from_scratch.* but bias_correct is True")
    refused(AdamW(mode=2, bias_correct=False), 1, "mode is lora.* but bias_correct is False")


@pytest.mark.parametrize("step", [0, -1])
def test_lora_steps_count_from_1(step):
    refused(AdamW.for_lora(), step, rf"in the lora mode steps count from 1; got {step}")


@pytest.mark.parametrize("beta", [1.0, 1.5, -0.1])
def test_lora_refuses_betas_it_cannot_correct(beta):
    for name in ("beta1", "beta2"):
        a = AdamW.for_lora()
        setattr(a, name, beta)
        refused(a, 1, f"bias correction needs {name} in 0..1; got {beta}")


@pytest.mark.parametrize("name", ["lr", "beta1", "beta2", "eps", "weight_decay"])
def test_values_that_are_not_finite_are_refused(name):
    a = AdamW.for_from_scratch()
    setattr(a, name, float("nan"))
    refused(a, 0, f"{name} must be a finite number, .*; got nan")


GOOD = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("slot", "value", "message"),
    [
        ("lr", 1e38, r"lr must be a finite number, from 0 to 10000; got 1e\+38"),
        ("lr", -1, "lr must be a finite number, from 0 to 10000; got -1"),
        ("beta1", 1.5, "beta1 must be a finite number, from 0 to 1; got 1.5"),
        ("beta2", 2, "beta2 must be a finite number, from 0 to 1; got 2"),
        ("beta2", -0.1, "beta2 must be a finite number, from 0 to 1; got -0.1"),
        ("beta2", 0, "c2 must be a finite number, at least 1.17549e-38; got 0"),  # a root to divide
        ("eps", 0, "eps must be a finite number, at least 1.17549e-38; got 0"),  # 0 / 0
        ("eps", -1e-8, "eps must be a finite number, at least 1.17549e-38; got -1e-08"),
        ("weight_decay", -0.1, "weight_decay must be a finite number, at least 0; got -0.1"),
        ("weight_decay", 1020, r"lr \* weight_decay must be at most 1 .*; got 1.02"),
    ],
)
def test_values_that_would_ruin_the_weights_are_refused(slot, value, message):
    a = AdamW(mode=AdamW.MODE_FROM_SCRATCH, **GOOD | {slot: value})
    refused(a, 0, rf"AdamW\.hp: {message}")


def test_rows_that_are_written_by_hand_have_the_same_ranges():
    """As they are uploaded: nothing was changed by a row that is refused."""
    tiny = Tiny()
    before = tiny.s.download(tiny.w)
    good = [1e-3, 0.9, 0.95, 1e-8, 0.1]
    for tail, message in (
        ([-1, 1], "c1 must be a finite number, at least 0; got -1"),
        ([1, 0], "c2 must be a finite number, at least"),
        ([10.2, 1], r"c1 must be at most 1 / \(1 - beta1\) = 10; got 10.2"),
        ([1, 21], r"c2 must be at most 1 / \(1 - beta2\) = 20; got 21"),
        ([1, np.inf], "c2 must be a finite number, at least .*; got inf"),
    ):
        with pytest.raises(ConfigError, match=rf"^hp: {message}"):
            tiny.s.upload(tiny.hp, np.array([*good, *tail], np.float32))
    np.testing.assert_array_equal(tiny.s.download(tiny.w), before)
    for row in (
        [*good, 0.9, 0.95],
        [*good, 10, 20],
        [0, 0, 1e-12, 1e-8, 0, 0, 1e-12],
        [1e-3, 1, 1, 1, 1000, 1, 1],
        [1e4, 0.9, 0.95, 1e30, 0, 1, 1],
    ):
        tiny.s.upload(tiny.hp, np.array(row, np.float32))


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.999, 0.99999, 0.9999999, 1 - 2.0**-24, 1 - 1e-12])
def test_every_row_of_both_modes_is_legal(beta):
    for step in (1, 2, 10, 10**6):
        for mode in (AdamW.MODE_FROM_SCRATCH, AdamW.MODE_LORA):
            a = AdamW(beta1=beta, beta2=beta, bias_correct=mode == AdamW.MODE_LORA, mode=mode)
            check_row("a row", a.hp(step))  # of float32, as it is uploaded


@pytest.mark.parametrize(
    ("t", "ratio"), [(1, 0.41295), (2, 0.56187), (5, 0.79502), (20, 1.01270), (100, 0.92610)]
)
def test_from_scratch_against_corrected_adam_on_a_constant_gradient(t, ratio):
    a = AdamW.for_from_scratch()
    g, w, m, v = np.ones(1, np.float32), *np.zeros((3, 1), np.float32)
    for step in range(t):
        before = w.copy()
        kernel.step(w, m, v, g, a.hp_for_step(step), np.ones(1, np.float32))
    # corrected Adam moves by lr at every step of a constant gradient
    assert (before - w)[0] / a.lr == pytest.approx(ratio, rel=2e-4)
