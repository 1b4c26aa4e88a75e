"""What breaks if ...? Questions about activations, each with its answer and a test of it.

The first line of a docstring is the question, the rest the answer: docs/kernel_pages.py shows them.
"""

import numpy as np
from ask import draw, exact, run


def curve(op, x, **more):
    """Return y, and the slope: dx where dy is 1."""
    x = np.float32(x)
    y = run(f"{op}.forward", x=x, **more).y
    return y, run(f"{op}.backward", dy=np.ones_like(x), x=x, **more).dx


def gated(op, gate, up, **more):
    """Return y, dgate and dup where dy is 1."""
    inputs = {"gate": np.float32(gate), "up": np.float32(up), **more}
    y = run(f"{op}.forward", **inputs).y
    back = run(f"{op}.backward", dy=np.ones_like(y), **inputs)
    return y, back.dgate, back.dup


# -- gelu


def test_gelu_backward_needs_x():
    """What breaks if y is saved in place of x?

    The slope cannot be found. GELU falls until x = -0.75 and rises from there, so two x have the
    same y and opposite slopes. So the product that applies GELU saves the sum before it.
    """
    x = np.linspace(-3, 0, 3001, dtype=np.float32)
    y, slope = curve("gelu", x)
    left = np.abs(y[:2000] + 0.1).argmin()
    right = 2400 + np.abs(y[2400:] + 0.1).argmin()
    assert abs(y[left] - y[right]) < 1e-3
    assert slope[left] < -0.05 and slope[right] > 0.2


def test_gelu_exact_and_tanh():
    """What breaks if a model runs with the other form of GELU?

    Almost nothing is seen at once: the two differ by at most 5e-4. But each layer adds such an
    error, so logits no longer agree with the program that trained the model. GPT-2 has the tanh
    form, ViTs of timm the exact one.
    """
    x = np.linspace(-6, 6, 2001)
    tanh, true = curve("gelu", x)[0], curve("gelu", x, exact=1)[0]
    assert 1e-4 < np.abs(tanh - true).max() < 6e-4


def test_gelu_far_from_zero():
    """What happens to very large and very small numbers?

    For x = 100 GELU is x with slope 1, for x = -100 it is 0 with slope 0. The exponential within
    would overflow there. The kernel bounds it, so no infinity meets a 0: that would be NaN.
    """
    y, slope = curve("gelu", [-1e4, -100, 100, 1e4])
    assert y.tolist() == [0, 0, 100, 1e4]
    assert slope.tolist() == [0, 0, 1, 1]


# -- silu


def test_silu_of_a_large_negative_number():
    """What breaks if 1 / (1 + e^-x) is computed as it is written?

    For x = -1000, e^1000 is infinite. In the slope s + x s (1 - s) infinity can meet 0, which is
    NaN. The kernel takes e^-|x|, which is at most 1.
    """
    y, slope = curve("silu", [-1000, -100, 1000])
    assert np.isfinite(y).all() and np.isfinite(slope).all()
    assert np.abs(y[:2]).max() < 1e-30 and y[2] == 1000


def test_silu_slope_can_be_negative():
    """Can more input give less output?

    Yes: below x = -1.278 SiLU falls as x grows. The gradient changes its sign there. ReLU is 0
    there, so its gradient is 0 and the weight does not learn; SiLU's is small and not 0.
    """
    _, slope = curve("silu", [-4, -1.3, -1.2, 0])
    assert slope[0] < slope[1] < 0 < slope[2] < slope[3] == 0.5


def test_silu_in_place():
    """What breaks if y overwrites x?

    The forward gives the same bits. But the backward reads x, and would get y: a wrong slope, and
    no error. The planner lets y take the memory of x only if nothing reads x any more.
    """
    x = draw(50)
    y = run("silu.forward", x=x).y
    dx = run("silu.backward", dy=np.ones_like(x), x=x).dx
    wrong = run("silu.backward", dy=np.ones_like(x), x=y).dx
    assert np.abs(dx - exact("silu.backward", dy=np.ones_like(x), x=x).dx).max() < 1e-5
    assert np.abs(dx - wrong).max() > 0.1


# -- sigmoid


def test_sigmoid_slope_without_subtracting():
    """What breaks if the slope is computed as s (1 - s)?

    For x = 20, s is 1 in float32 and 1 - s is 0, so the slope would be 0. It is 2e-9. The kernel
    computes e = e^-|x| and q = 1 / (1 + e); then the slope is e q^2, without a subtraction.
    """
    s, slope = curve("sigmoid", [20.0])
    true = exact("sigmoid.backward", dy=np.ones(1), x=np.array([20.0])).dx
    assert s * (1 - s) == 0
    assert abs(slope / true - 1) < 1e-5


def test_sigmoid_shrinks_gradients():
    """How much of a gradient passes ten sigmoids?

    At most a millionth: the slope is 1/4 at x = 0 and less elsewhere. That was why deep networks of
    sigmoids hardly learned. In a router one sigmoid is between the logits and the scores.
    """
    _, slope = curve("sigmoid", np.linspace(-5, 5, 1001))
    assert slope.max() == 0.25 and slope.argmax() == 500
    assert slope.max() ** 10 < 1e-6


def test_sigmoid_scores_do_not_compete():
    """What changes if a router takes the sigmoid in place of softmax?

    Scores no longer add up to 1: raising one logit leaves the other scores as they are. With
    softmax each expert gains at the others' cost.
    """
    x = np.float32([[0.5, -1, 2]])
    raised = x + np.float32([[0, 3, 0]])
    free, other = run("sigmoid.forward", x=x[0]).y, run("sigmoid.forward", x=raised[0]).y
    bound, lowered = run("softmax.forward", x=x).y, run("softmax.forward", x=raised).y
    assert (free[[0, 2]] == other[[0, 2]]).all()
    assert (lowered[0, [0, 2]] < bound[0, [0, 2]]).all()


# -- swiglu


def test_swiglu_with_a_gate_of_zero():
    """What happens where the gate is 0?

    y is 0 whatever `up` is, and `up` gets no gradient. But the gate gets one, dy up / 2, so it can
    open again. If both were 0, nothing would ever change: weights must not all begin at 0.
    """
    y, dgate, dup = gated("swiglu", [0, 0], [3, 0])
    assert y.tolist() == [0, 0] and dup.tolist() == [0, 0]
    assert dgate.tolist() == [1.5, 0]


def test_swiglu_beyond_its_limit():
    """What does the limit of gpt-oss do to gradients?

    Beyond it they are 0, as of any min or max. A gate above the limit cannot be pulled back by its
    own gradient; only other inputs can. Below it the gradient is as ever.
    """
    _, dgate, dup = gated("swiglu", [9, 1, 1], [1, 9, 1], alpha=1.702, limit=7.0)
    assert dgate[0] == 0 and dup[1] == 0
    assert dgate[2] > 0 and dup[2] > 0


def test_swiglu_halves_of_one_matrix():
    """What breaks if gate and up of a fused matrix are read in turns?

    Files store all of the gate first, then all of up. Read in turns, each channel gets the gate of
    another one. All shapes fit, and the model writes nonsense.
    """
    x = draw(3, 8)
    y = run("swiglu.halves_forward", x=x).y
    apart = run("swiglu.forward", gate=x[:, :4].ravel(), up=x[:, 4:].ravel()).y.reshape(3, 4)
    turns = run("swiglu.forward", gate=x[:, ::2].ravel(), up=x[:, 1::2].ravel()).y.reshape(3, 4)
    assert np.array_equal(y, apart)
    assert np.abs(y - turns).max() > 0.1


# -- geglu


def test_geglu_of_a_closed_gate():
    """What happens where the gate is far below 0?

    GELU is 0 there and so is its slope: y, dgate and dup are 0. Such a channel is switched off for
    this row and learns nothing from it. Other rows may open it.
    """
    y, dgate, dup = gated("geglu", [-30.0], [2.0])
    assert y == dgate == dup == 0


def test_geglu_is_linear_in_up():
    """Which of its two inputs could be scaled without changing anything else?

    `up`: twice as large an `up` gives twice as large a y, and the gradient of `up` stays. The gate
    bends. So a scale between the two matrices of an MLP can move through `up` and not through the
    gate.
    """
    gate, up = draw(20), draw(20, seed=1)
    y, _, dup = gated("geglu", gate, up)
    twice, _, same = gated("geglu", gate, 2 * up)
    bent = gated("geglu", 2 * gate, up)[0]
    assert np.array_equal(twice, 2 * y) and np.array_equal(same, dup)
    assert np.abs(bent - 2 * y).max() > 0.1


def test_geglu_run_as_swiglu():
    """What breaks if a Gemma runs with SwiGLU?

    Both gates look alike, but they differ by up to 0.2 near |x| = 2. All shapes fit, so nothing
    fails: the loss of the first step is higher than it should be, and fine-tuning hides it.
    """
    x = np.linspace(-5, 5, 1001)
    gelu, silu = (gated(op, x, np.ones(1001))[0] for op in ("geglu", "swiglu"))
    worst = np.abs(gelu - silu).max()
    assert 0.15 < worst < 0.25


# -- softcap


def test_softcap_backward_reads_y():
    """Why is y saved, and not x?

    The slope 1 - (y / cap)^2 is a polynomial of y: no exponential is computed again. tanh rises
    everywhere, so y tells all about x. So y may overwrite x, and the logits are stored once.
    """
    x, cap = draw(30) * 10, 5.0
    y = run("softcap.forward", x=x, cap=cap).y
    dx = run("softcap.backward", dy=np.ones_like(x), y=y, cap=cap).dx
    step = 1e-4
    up, down = (exact("softcap.forward", x=x + s * step, cap=cap).y for s in (1, -1))
    assert np.abs(dx - (up - down) / (2 * step)).max() < 1e-3


def test_softcap_of_large_logits():
    """What becomes of a logit far above the cap?

    It becomes the cap, and its gradient becomes 0. So the loss can no longer raise it, which is
    what the cap is for; nor can the loss lower it, if it is wrong.
    """
    y = run("softcap.forward", x=np.float32([1e6, -1e6]), cap=30.0).y
    dx = run("softcap.backward", dy=np.ones(2), y=y, cap=30.0).dx
    assert y.tolist() == [30, -30] and dx.tolist() == [0, 0]


def test_softcap_near_zero():
    """What breaks if tanh is computed as (1 - e) / (1 + e) for small x, too?

    e = e^(-2x) is nearly 1, and 1 - e has lost most of its digits. For x / cap = 1e-4 the result is
    off by 1e-4 of its size. Near 0 the kernel takes a polynomial.
    """
    x, cap = np.float32([3e-3]), np.float32(30)
    y = run("softcap.forward", x=x, cap=30.0).y
    e = np.exp(-2 * x / cap)
    naive = cap * (1 - e) / (1 + e)
    true = 30 * np.tanh(float(x[0]) / 30)
    assert abs(y[0] / true - 1) < 1e-6
    assert abs(naive[0] / true - 1) > 1e-5


# -- relu2


def test_relu2_has_a_slope_that_is_continuous():
    """What does squaring do to ReLU's corner?

    The slope of ReLU jumps from 0 to 1 at 0. The slope of its square is 2 max(x, 0): it is 0 at 0
    and grows from there, so a small change of x near 0 changes the gradient little.
    """
    x = np.float32([-1e-3, 0, 1e-3])
    dx = run("relu2.backward", dy=np.ones(3, np.float32), x=x).dx
    assert dx.tolist() == [0, 0, np.float32(2e-3)]


def test_relu2_of_a_large_number():
    """What does the square do to outliers?

    It magnifies them: twice x is four times y, above 0. SiLU and GELU go like x there. So the
    matrix behind it has to have smaller weights.
    """
    one, two = (run("relu2.forward", x=np.float32([x])).y for x in (8, 16))
    assert two == 4 * one


def test_relu2_is_zero_for_half_of_its_inputs():
    """How much of the MLP does a row use?

    Where x is 0 or less, y is exactly 0, and the gradient, too: no weight behind y, or before x,
    learns from this row. For inputs around 0 that is half of the channels.
    """
    x = draw(1000).ravel()
    y = run("relu2.forward", x=x).y
    assert ((y == 0) == (x <= 0)).all() and 400 < (y == 0).sum() < 600


# -- columns


def test_columns_are_copies():
    """Why copy columns, and not read them where they are?

    Attention does read q, k and v from one wide row, since its kernel knows how far rows are apart.
    All other kernels take rows side by side: threads cut them anywhere, and some write in place. A
    copy costs one reading and one writing, little beside the product that made the row.
    """
    x = draw(4, 10)
    y = run("columns.forward", x=x, C=3, K=5).y
    assert np.array_equal(y, x[:, 5:8]) and y.flags.c_contiguous


def test_columns_give_zeros_to_the_others():
    """What is the gradient of the columns that were not taken?

    y does not depend on them, so it is 0. If nothing else reads x, these columns learn nothing.
    """
    dx = run("columns.backward", dy=np.ones((2, 3), np.float32), X=8, K=4).dx
    assert dx.tolist() == [[0, 0, 0, 0, 1, 1, 1, 0]] * 2


def test_columns_taken_twice():
    """What if several ops read the same columns?

    Gradients of all uses add up. A tape has the first backward write all columns, and tells the
    others to accumulate: these add to their own columns, and leave the others alone.
    """
    dx = run("columns.backward", dy=np.ones((1, 2), np.float32), X=4, K=1).dx
    dy = np.full((1, 2), 2, np.float32)
    assert run("columns.backward", into={"dx": dx}, dy=dy, X=4, K=2).dx.tolist() == [[0, 1, 3, 2]]


# -- pointwise


def test_pointwise_log_below_zero():
    """What does the logarithm of a number that is not above 0 give?

    -infinity at 0, and NaN below, in the forward. No error says so then: a kernel does not look at
    each number. The NaN reaches the norm of the gradients, and the update is refused there. A loss
    that takes the logarithm of a difference needs a floor of its own.
    """
    y = run("pointwise.log", x=np.float32([0, -1, 1, np.inf])).y
    assert y[0] == -np.inf and np.isnan(y[1]) and y[2:].tolist() == [0, np.inf]


def test_pointwise_relu_of_nan():
    """What breaks if max(x, 0) is written as x if x > 0, else 0?

    A NaN is not above 0, so it would become 0: the error disappears, and training goes on with
    numbers that mean nothing. The kernel asks whether x is below 0, and NaN stays NaN.
    """
    y = run("pointwise.relu", x=np.float32([np.nan, -2, 3])).y
    assert np.isnan(y[0]) and y[1:].tolist() == [0, 3]


def test_pointwise_masked_is_no_product():
    """Why is a mask not multiplied with x?

    0 times infinity is NaN, and so is 0 times NaN. What is masked is often just that: the logarithm
    of a 0 that nobody wants. The kernel chooses, so masked elements cannot spoil a sum.
    """
    x, mask = np.float32([np.inf, np.nan, 2]), np.array([0, 0, 1])
    assert run("pointwise.masked", x=x, mask=mask).y.tolist() == [0, 0, 2]
    with np.errstate(invalid="ignore"):
        assert np.isnan((x * mask).sum())


def test_pointwise_tanh_slope_from_y():
    """What is lost if the backward of tanh reads y in place of x?

    Nothing near 0. Far out y rounds to 1, and (1 - y)(1 + y) is 0 from x = 9 on, where the slope
    is 6e-8. In return x need not be kept, and y may overwrite it.
    """
    x = np.float32([0.5, 3, 9.1])
    y = run("pointwise.tanh", x=x).y
    dx = run("pointwise.tanh_backward", dy=np.ones(3, np.float32), y=y).dx
    np.testing.assert_allclose(dx[:2], 1 / np.cosh(x[:2].astype(float)) ** 2, rtol=1e-4)
    assert dx[2] < 1e-6
