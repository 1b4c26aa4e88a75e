"""What the case table does not say of experts: who is read, which bits, what the calls refuse."""

import re

import numpy as np
import pytest

import toynn._kernels as kernels
from toynn import Session, ops
from toynn.errors import ShapeError
from toynn.numerics import dtypes
from toynn.testing.cases.quants import matrix

pytestmark = pytest.mark.kernels

OFFSETS = np.array([0, 0, 40, 43, 43, 60], np.int32)  # of 5 experts; 3 rows more are nobody's
M, N, K, E = 63, 300, 256, 5
RNG = np.random.default_rng(8)
X = RNG.standard_normal((M, K)).astype(np.float32)
DY = RNG.standard_normal((M, N)).astype(np.float32)
W = RNG.standard_normal((E, N, K)).astype(np.float32)


def test_who_has_no_rows_is_not_read_and_nobodys_rows_are_not_written():
    spoiled, y, dx = W.copy(), np.full_like(DY, 7), np.full_like(X, 7)
    spoiled[[0, 3]] = np.nan
    kernels.experts.forward(y, X, spoiled, None, OFFSETS)
    kernels.experts.backward_input(dx, DY, spoiled, OFFSETS)
    for got in (y, dx):
        assert np.isfinite(got[:60]).all() and (got[60:] == 7).all()


def test_who_has_no_rows_has_no_gradient():
    dw, db = np.full_like(W, np.nan), np.full((E, N), np.nan, np.float32)
    kernels.experts.backward_weight(dw, DY, X, OFFSETS)
    kernels.experts.backward_bias(db, DY, OFFSETS)
    assert not dw[[0, 3]].any() and not db[[0, 3]].any() and np.isfinite(dw).all()
    kernels.experts.backward_weight(dw, DY, X, OFFSETS, accumulate=True)
    assert not dw[[0, 3]].any()


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("dtype", ["f32", "q8_0", "q4_k", "mxfp4"])
def test_each_expert_gets_the_bits_of_a_product_of_its_own(dtype, precision):
    """What matmul, tested against float64 by itself, makes of the same rows and matrix."""
    w, stored = W, {}
    if dtype != "f32":
        name, raw, _ = matrix(RNG, dtypes.DTYPES[dtype].ggml, E * N, K)
        w, stored = raw.reshape(E, N, -1), {"type": name}
    y, dx = np.empty_like(DY), np.empty_like(X)
    options = stored | {"precision": precision, "n_threads": 2}
    kernels.experts.forward(y, X, w, None, OFFSETS, **options)
    kernels.experts.backward_input(dx, DY, w, OFFSETS, **options)
    for e in (1, 2, 4):
        rows = slice(OFFSETS[e], OFFSETS[e + 1])
        alone = np.empty_like(y[rows]), np.empty_like(dx[rows])
        kernels.matmul.forward(alone[0], None, X[rows], w[e], None, **options)
        kernels.matmul.backward_input(alone[1], DY[rows], w[e], **options)
        assert alone[0].tobytes() == y[rows].tobytes()
        assert alone[1].tobytes() == dx[rows].tobytes()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_equal_scores_are_taken_in_order(n_threads):
    p = np.tile(np.float32([0.1, 0.3, 0.1, 0.3, 0.2]), (7, 1))
    weights, experts = np.empty((7, 3), np.float32), np.empty((7, 3), np.int32)
    kernels.routing.forward(weights, experts, p, n_threads=n_threads)
    assert (experts == [1, 3, 4]).all()


def test_a_nan_is_chosen_first():
    p = np.float32([[0.1, np.nan, 0.5, np.nan]])
    weights, experts = np.empty((1, 3), np.float32), np.empty((1, 3), np.int32)
    kernels.routing.forward(weights, experts, p)
    assert experts.tolist() == [[1, 3, 2]]


def test_rows_keep_their_order_within_an_expert():
    experts = np.int32([[2, 0], [2, 1], [0, 2]])
    slots, offsets = np.empty_like(experts), np.empty(5, np.int32)
    kernels.expert_rows.forward(slots, offsets, experts)
    assert slots.tolist() == [[3, 0], [4, 2], [1, 5]]
    assert offsets.tolist() == [0, 2, 3, 6, 6]


def refused(call, message, *arguments, **sizes):
    with pytest.raises(ValueError, match=f"^{re.escape(call)}: {message}$"):
        op, entry = call.split(".")
        getattr(getattr(kernels, op), entry)(*arguments, **sizes)


@pytest.mark.parametrize("expert", [-1, 3, 2**31 - 1])
def test_an_expert_out_of_range_is_refused(expert):
    experts = np.int32([[0, 1], [2, expert]])
    slots, offsets = np.empty_like(experts), np.empty(4, np.int32)
    message = rf"row 1: expert {expert} is outside 0\.\.2"
    refused("expert_rows.forward", message, slots, offsets, experts)
    p, w = np.ones((2, 3), np.float32), np.ones((2, 2), np.float32)
    refused("routing.backward", message, p.copy(), None, w.copy(), p, w, experts)
    slots[:] = [[0, 1], [2, 4]]
    x = np.ones((2, 5), np.float32)
    message = r"row 1: slot 4 is outside 0\.\.3"
    refused("dispatch.forward", message, np.ones((4, 5), np.float32), x, slots)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 2, 1, 3], r"offsets must not descend; offsets\[2\] is 1 after 2"),
        ([1, 2, 2, 3], r"offsets needs E \+ 1 numbers that begin with 0; got \[1, 2, 2, 3\]"),
        ([0, 1, 2, 5], "offsets end at 5; there are 4 rows"),
    ],
)
def test_offsets_that_are_none_are_refused(offsets, message):
    x, w = np.ones((4, 2), np.float32), np.ones((3, 2, 2), np.float32)
    refused("experts.forward", message, x.copy(), x, w, None, np.int32(offsets))


def test_more_experts_than_there_are_are_refused():
    p, experts = np.ones((2, 3), np.float32), np.zeros((2, 4), np.int32)
    message = r"needs 1 to 3 experts of p \(2, 3\); got 4"
    refused("routing.forward", message, np.ones((2, 4), np.float32), experts, p)


@pytest.mark.parametrize(
    "groups",
    [{"G": 5}, {"G": 4, "L": 5}, {"G": 12}, {"G": 4, "L": 0}, {"G": 6}, {"G": 2, "best": 3}],
)
def test_groups_of_experts_that_are_none_are_refused(groups):
    """Those that do not divide experts, more than there are, of one, of none, with too few."""
    p, experts = np.ones((2, 12), np.float32), np.zeros((2, 3), np.int32)
    message = "needs (1 to 64 groups of 2 or more of 12|K experts within 1 of 6 groups of 2; got"
    message += "|best 1 or 2; got 3).*"
    refused("routing.forward", message, np.ones((2, 3), np.float32), experts, p, **groups)


@pytest.mark.parametrize("rows", [6, 2**31])
def test_what_does_not_fit_is_refused_when_recorded(rows):
    s = Session()
    p, x = s.input("p", (rows, 3)), s.input("x", (5, 8))
    if rows > 6:
        with pytest.raises(ShapeError, match=r"^route: needs 2 of E experts, and at most 2147483"):
            ops.route(s, p, 2)
        return
    routes = ops.route(s, p, 2)
    with pytest.raises(ShapeError, match=r"^dispatch.forward: slots\[N K\] needs .* of x \(5, 8\)"):
        ops.dispatch(s, x, routes)
    with pytest.raises(
        ShapeError, match=r"^dispatch.combine: x\[N\*K C\] needs shape \(12, 8\) .*got x \(5, 8\)"
    ):
        ops.combine(s, x, routes)
    with pytest.raises(ShapeError, match=r"^dispatch.weigh: x\[N\*K C\] needs shape \(12, 8\)"):
        ops.weigh(s, x, routes)
    w = s.constant("w", (3, 4, 9))
    with pytest.raises(
        ShapeError,
        match=r"^experts.forward: w\[E N K\] needs shape \(3, 4, 8\) for .* K = 8 of x \(12, 8\)",
    ):
        ops.experts(s, s.input("copies", (12, 8)), w, routes)
    with pytest.raises(ShapeError, match=r"^route: needs 4 of E experts"):
        ops.route(s, p, 4)
