"""What breaks if ...? Questions about products and experts, each with its answer and a test of it.

The first line of a docstring is the question, the rest the answer: docs/kernel_pages.py shows them.
"""

import numpy as np
from ask import draw, exact, run

# -- matmul


def test_matmul_gradient_of_a_square_matrix():
    """What breaks if dw is computed as x^T dy in place of dy^T x?

    It is the transpose. If the matrix is square, the shapes fit and nothing fails: each weight gets
    the gradient of another one. So tests use sizes that differ.
    """
    x, dy = draw(5, 4), draw(5, 4, seed=1)
    dw = run("matmul.backward_weight", dy=dy, x=x).dw
    assert np.allclose(dw, dy.T @ x, atol=1e-5)
    assert (x.T @ dy).shape == dw.shape and not np.allclose(dw, x.T @ dy, atol=0.1)
    assert np.allclose(dw.T, x.T @ dy, atol=1e-5)


def test_matmul_sums_in_blocks():
    """What breaks if all terms of a long sum are added to one number?

    The sum grows and the terms do not, so each addition loses more digits. A million terms of 0.1
    then add up to 105892 in place of 104858. The kernel keeps many partial sums, one in each lane
    of its registers, and begins new ones in each block of terms.
    """
    K = 2**20
    x = np.full((1, K), 0.1, np.float32)
    y = run("matmul.forward", x=x, w=np.ones((1, K), np.float32)).y[0, 0]
    naive = np.cumsum(x[0])[-1]
    assert abs(naive / (0.1 * K) - 1) > 5e-3
    assert abs(y / (0.1 * K) - 1) < 1e-3


def test_matmul_on_several_threads():
    """What breaks if threads share the terms of a sum?

    Each would have a part of the sum, and the order in which the parts are added would depend on
    who is first, or on how many there are. Threads share rows and columns instead, so a product has
    the same bits on any number of them.
    """
    x, w = draw(70, 600), draw(90, 600, seed=1)
    products = [run("matmul.forward", x=x, w=w, n_threads=n).y for n in (1, 2, 5)]
    assert all(np.array_equal(products[0], other) for other in products[1:])
    halves = x[:, :300] @ w[:, :300].T + x[:, 300:] @ w[:, 300:].T
    assert not np.array_equal(halves, products[0]) and np.allclose(halves, products[0], atol=1e-3)


# -- dora


def dora_of(b, a, w, s=0.5):
    """Return 1 / the norm of each row of w + s b a, by the kernel."""
    inputs = {"squares": (w * w).sum(1), "p": a @ w.T, "g": a @ a.T, "b": b}
    return run("dora.norms", **inputs, scale=s).r


def test_dora_norms_without_the_matrix():
    """Can the norms of W + s B A be known if that matrix is never computed?

    Yes: a square of a sum is three sums. |W|^2 never changes, W A^T is as long as the rank, and
    A A^T is smaller still. So W stays quantized, and no second copy of it exists.
    """
    w, a, b = draw(6, 20), draw(3, 20, seed=1), draw(6, 3, seed=2)
    direct = 1 / np.linalg.norm(w + 0.5 * b @ a, axis=1)
    assert np.allclose(dora_of(b, a, w), direct, rtol=1e-5)
    assert not np.allclose(1 / np.linalg.norm(w, axis=1), direct, rtol=0.05)


def test_dora_starts_as_the_model():
    """What breaks if the magnitudes begin at 1?

    The first step would compute another model: each row of W would be shrunk to length 1. They
    begin at the norms of W instead. With B = 0 the factor m r is then exactly 1.
    """
    w, a, y = draw(6, 20), draw(3, 20, seed=1), draw(4, 6, seed=2)
    r = dora_of(np.zeros((6, 3), np.float32), a, w)
    norms = np.linalg.norm(w, axis=1)
    assert np.allclose(run("dora.forward", x=y, m=norms, r=r).y, y, atol=1e-5)
    assert not np.allclose(run("dora.forward", x=y, m=np.ones(6), r=r).y, y, atol=0.1)


def test_dora_of_a_row_of_zeros():
    """What happens to a row of W that is zero?

    It has no direction, and 1 / 0 is infinite. The kernel takes r = 0, so y is the bias and no
    gradient flows, until B has given the row a direction.
    """
    w, a = draw(2, 8), draw(1, 8, seed=1)
    w[1] = 0
    r = dora_of(np.zeros((2, 1), np.float32), a, w)
    assert r[1] == 0 and r[0] > 0
    assert dora_of(np.ones((2, 1), np.float32), a, w)[1] > 0


# -- experts


def test_experts_without_rows_are_not_read():
    """What does an expert cost to which no row was sent?

    Nothing: its matrix is not read. In a mapped file its pages stay on the disk. Here it is full of
    NaN, and no result shows it.
    """
    x, w = draw(5, 4), draw(3, 6, 4, seed=1)
    w[1] = np.nan
    y = run("experts.forward", x=x, w=w, offsets=[0, 3, 3, 5]).y
    assert np.allclose(y, np.concatenate([x[:3] @ w[0].T, x[3:] @ w[2].T]), atol=1e-5)


def test_experts_weight_gradient_of_an_expert_without_rows():
    """What breaks if the gradient of an unused expert is left as it was?

    The gradient of an earlier step would be there, and AdamW would apply it again. So it is
    overwritten by 0. AdamW's moments still move the weight a little: they remember earlier steps.
    """
    dw = run(
        "experts.backward_weight", dy=draw(5, 6), x=draw(5, 4, seed=1), offsets=[0, 3, 3, 5]
    ).dw
    assert (dw[1] == 0).all() and np.abs(dw[[0, 2]]).min() > 0


def test_experts_with_an_offset_that_is_off_by_one():
    """What breaks if one offset is off by one?

    A row goes through the matrix of its neighbour's expert. All shapes fit and no number looks
    wrong; the loss is a little higher. Only a comparison with the same rows by `matmul` tells.
    """
    x, w = draw(5, 4), draw(2, 6, 4, seed=1)
    right = run("experts.forward", x=x, w=w, offsets=[0, 3, 5]).y
    wrong = run("experts.forward", x=x, w=w, offsets=[0, 2, 5]).y
    rows = [run("matmul.forward", x=x[p], w=w[e]).y for e, p in enumerate((np.s_[:3], np.s_[3:]))]
    assert np.array_equal(right, np.concatenate(rows))
    assert (np.abs(right - wrong).max(1) > 0.01).tolist() == [False, False, True, False, False]


# -- expert_rows


def test_expert_rows_keep_their_order():
    """What breaks if rows of one expert come in any order?

    Sums over them, such as dw, would have other last bits from run to run. A counting sort keeps
    the order in which rows came, so results do not depend on threads.
    """
    order = run("expert_rows.forward", experts=np.array([[1], [0], [1], [0], [1]]), E=2)
    assert order.slots.ravel().tolist() == [2, 0, 3, 1, 4]
    assert order.offsets.tolist() == [0, 2, 5]


def test_expert_rows_give_each_copy_a_slot_of_its_own():
    """What breaks if two copies get the same slot?

    The second overwrites the first, and one row's result is lost; another slot is never written.
    Slots are a permutation: each number from 0 to N K - 1 comes once.
    """
    experts = np.random.default_rng(0).integers(0, 7, (40, 3))
    order = run("expert_rows.forward", experts=experts, E=7)
    assert sorted(order.slots.ravel()) == list(range(120))
    assert np.array_equal(np.diff(order.offsets), np.bincount(experts.ravel(), minlength=7))


def test_expert_rows_of_experts_that_nobody_wants():
    """What are the offsets of an expert without rows?

    Two equal numbers: it begins where the next one begins. So E + 1 offsets describe all experts,
    and no expert needs a case of its own.
    """
    order = run("expert_rows.forward", experts=np.array([[3], [3]]), E=5)
    assert order.offsets.tolist() == [0, 0, 0, 0, 2, 2]


# -- dispatch

SLOTS = np.array([[2, 0], [3, 1], [5, 4]])


def test_dispatch_and_combine_are_transposes():
    """Why is each of the two the gradient of the other?

    Dispatch is a matrix of zeros and ones: each copy is a row. The gradient of a product by a
    matrix is a product by its transpose, which adds up the copies. So <dispatch(x), z> is
    <x, combine(z)> for any z.
    """
    x, z = draw(3, 4), draw(6, 4, seed=1)
    there = run("dispatch.forward", x=x, slots=SLOTS).y
    back = run("dispatch.combine", x=z, slots=SLOTS).y
    assert np.isclose((there * z).sum(), (x * back).sum(), rtol=1e-5)


def test_dispatch_weights_before_the_last_product():
    """What breaks if the weight of an expert multiplies its input instead of its output?

    Before `down` nothing, since that product is linear: weighing before or after gives the same y.
    Before the activation it would be another function. Before `down` is better: what comes out of
    `down` need not be kept for the gradient of the weight.
    """
    h, w, down = draw(6, 4), np.abs(draw(3, 2, seed=1)), draw(5, 4, seed=2)

    def weighed(x):
        return run("dispatch.weigh", x=x, w=w, slots=SLOTS).y

    def product(x):
        return run("matmul.forward", x=x, w=down).y

    def bent(x):
        return run("silu.forward", x=x.ravel()).y.reshape(x.shape)

    assert np.allclose(product(weighed(h)), weighed(product(h)), atol=1e-5)
    assert np.abs(bent(weighed(h)) - weighed(bent(h))).max() > 0.05


def test_dispatch_there_and_back():
    """What comes out if the experts do nothing?

    Each row K times, added up. With weights whose sum is 1 it is the row itself. So a mixture whose
    experts are all alike is an ordinary MLP.
    """
    x, w = draw(3, 4), np.float32([[0.25, 0.75]] * 3)
    there = run("dispatch.forward", x=x, slots=SLOTS).y
    assert np.allclose(run("dispatch.combine", x=there, slots=SLOTS).y, 2 * x)
    weighed = run("dispatch.weigh", x=there, w=w, slots=SLOTS).y
    assert np.allclose(run("dispatch.combine", x=weighed, slots=SLOTS).y, x, atol=1e-6)


# -- routing

P = np.float32([[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.1, 0.1]])


def routed(p, dw=None, **more):
    """Return the weights and experts of two each, and dp."""
    ahead = run("routing.forward", p=p, K=2, **more)
    dw = draw(len(p), 2) if dw is None else dw
    inputs = {"dweights": dw, "p": p, "weights": ahead.weights, "experts": ahead.experts}
    return ahead, run("routing.backward", **inputs, **more).dp


def test_routing_gives_no_gradient_to_what_was_not_chosen():
    """Which experts' scores learn from a row?

    Those that were chosen. The others have no effect on the output, so their gradient is 0: the
    router never learns that another expert would have been better. Softmax helps a little: it
    lowers the others where a chosen one rises.
    """
    ahead, dp = routed(P)
    chosen = np.zeros(P.shape, bool)
    np.put_along_axis(chosen, ahead.experts.astype(np.int64), values=True, axis=1)
    assert ahead.experts.tolist() == [[1, 3], [0, 1]]
    assert (dp[~chosen] == 0).all() and (dp[chosen] != 0).all()


def test_routing_normalized_weights_have_a_direction_less():
    """What breaks if the sum Z is taken as a constant in the backward?

    Weights are shares of Z, so making all chosen scores larger by one factor changes none of them.
    The gradient must not point there. With Z as a constant it would, and the router would be pushed
    where nothing is to be gained.
    """
    ahead, dp = routed(P, normalized=1)
    constant = np.zeros_like(P)
    np.put_along_axis(constant, ahead.experts.astype(np.int64), draw(2, 2), 1)
    assert np.allclose(ahead.weights.sum(1), 1)
    assert np.abs((dp * P).sum(1)).max() < 1e-6
    assert np.abs((constant * P).sum(1)).max() > 0.05


def test_routing_of_equal_scores():
    """Which experts are chosen if all scores are equal?

    The first ones, on every machine and any number of threads. At the start of training scores are
    nearly equal: a choice that depended on the order of additions would not be repeated.
    """
    p = np.full((3, 6), 1 / 6, np.float32)
    experts = [run("routing.forward", p=p, K=2, n_threads=n).experts.tolist() for n in (1, 3)]
    assert experts[0] == experts[1] == [[0, 1]] * 3
    p[1, 4] = np.nextafter(p[1, 4], 1)
    assert run("routing.forward", p=p, K=2).experts.tolist() == [[0, 1], [4, 0], [0, 1]]
    assert exact("routing.forward", p=p, K=2).weights.shape == (3, 2)
