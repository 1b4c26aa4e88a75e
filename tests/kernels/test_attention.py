"""What the case table cannot say of attention: fused arrays, refusals, extreme scores, caches."""

from itertools import pairwise

import numpy as np
import pytest

from toynn import ops
from toynn._kernels import attention, cached_attention
from toynn.errors import ConfigError, LabelError, ShapeError
from toynn.session import Session
from toynn.testing.cases.attention import WANTED

pytestmark = pytest.mark.kernels

B, T, H, D = 2, 70, 3, 20


def normal(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def run(q, k, v, do, dq, dk, dv, **options):
    o, lse, delta = np.empty_like(do), np.empty((B, H, T), np.float32), np.empty((B, H, T), "f")
    attention.forward(o, lse, q, k, v, **options)
    attention.backward(dq, dk, dv, delta, do, o, lse, q, k, v, **options)
    return o


def test_columns_of_one_array():
    qkv, do = normal(B * T, 3 * H * D), normal(B * T, H * D)
    dqkv = np.full_like(qkv, np.nan)
    o = run(*np.split(qkv, 3, axis=1), do, *np.split(dqkv, 3, axis=1), n_threads=2)
    apart = [np.ascontiguousarray(x) for x in np.split(qkv, 3, axis=1)]
    gradients = [np.empty_like(x) for x in apart]
    assert o.tobytes() == run(*apart, do, *gradients).tobytes()
    assert dqkv.tobytes() == np.hstack(gradients).tobytes()


@pytest.mark.parametrize("length", [1, 64, 70, 80, 81, 140])
def test_what_comes_later_changes_no_bit(length):
    """Causal sums are cut alike however long the sequence is."""
    q, k, v = normal(3, 200, H * D)
    whole, o = np.empty((200, H * D), np.float32), np.empty((length, H * D), np.float32)
    attention.forward(whole, np.empty((1, H, 200), np.float32), q, k, v)
    lse = np.empty((1, H, length), np.float32)
    attention.forward(o, lse, q[:length], k[:length], v[:length])
    assert o.tobytes() == whole[:length].tobytes()


def test_a_weight_is_right_to_two_units_in_the_last_place():
    """e^x of 2^18 floats x, against float64: scores of keys. dv is the weights of row 0."""
    rows, heads = 64, 512
    q, do, lse = (
        np.ones((rows, heads), "f"),
        np.zeros((rows, heads), "f"),
        np.zeros((1, heads, rows), "f"),
    )
    do[0] = 1

    def weights(x):
        dv = np.empty_like(x)
        attention.backward(None, None, dv, None, do, do, lse, q, x, x, E=1, causal=False, scale=1.0)
        return dv

    edges = np.array([2**-20, 86.9], np.float32).view(np.int32)
    bits = np.linspace(*edges, 8 * rows * heads).astype(np.int32)  # floats in order
    for x in bits.view(np.float32).reshape(8, rows, heads):
        for y in (-x, x):
            assert np.abs(weights(y) / np.exp(y.astype(np.float64)) - 1).max() <= 2**-22
    ends = np.array([0, -88, -1e4, -np.inf, np.nan], np.float32)
    x = np.zeros((rows, heads), "f")
    x[: len(ends)] = ends[:, None]
    expected = np.array([1, 0, 0, 0, np.nan], np.float32)
    np.testing.assert_array_equal(weights(x)[: len(ends), 0], expected)


@pytest.mark.parametrize("scale", [0.0, -0.5, 300.0, 1e12])
def test_any_scale(scale):
    """Large scores do not overflow: the largest weight of each row is exp(0), however rounded."""
    q, k, v, do = normal(4, B * T, H * D)
    gradients = [np.empty_like(q) for _ in range(3)]
    o = run(q, k, v, do, *gradients, scale=scale)
    assert np.isfinite(o).all()
    assert all(np.isfinite(x).all() for x in gradients)
    np.testing.assert_allclose(o[0], v[0], rtol=1e-6)  # the first query sees one key
    if scale == 0:
        np.testing.assert_allclose(o[T - 1], v[:T].mean(axis=0), atol=1e-6)


def test_refusals_say_what_was_needed():
    q, k, v, o = normal(4, B * T, H * D)
    lse = normal(B, H, T)
    with pytest.raises(ValueError, match=r"attention\.forward: precision needs one of .*'low'"):
        attention.forward(o, lse, q, k, v, precision="low")
    with pytest.raises(
        ValueError, match=r"q\[B\*T H\*D\] needs shape \(140, H\*D\) .*; got q \(139, 60\)"
    ):
        attention.forward(o, lse, q[1:], k, v)
    with pytest.raises(ValueError, match="KV that divides H"):
        attention.forward(o, lse, q, k[:, : 2 * D], v[:, : 2 * D])
    with pytest.raises(ValueError, match="needs C-contiguous rows"):
        attention.forward(o, lse, q, np.asfortranarray(k), v)
    with pytest.raises(ValueError, match=r"needs rows 120 elements apart \(ldq\); got 60"):
        wide, (dk, dv, do) = normal(B * T, 2 * H * D), normal(3, B * T, H * D)
        attention.backward(wide[:, : H * D], dk, dv, lse.copy(), do, o, lse, q, k, v)


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("limits", [{}, {"window": 40, "cap": 2.0}, {"causal": False}])
@pytest.mark.parametrize("wanted", WANTED[1:])
def test_a_gradient_has_the_same_bits_whichever_others_are_wanted(wanted, limits, precision):
    q, do = normal(2, B * T, H * D)
    k, v = normal(2, B * T, D)  # one head, for all that ask
    o, lse = np.empty_like(q), np.empty((B, H, T), np.float32)
    options = {"precision": precision, "n_threads": 2, **limits}
    attention.forward(o, lse, q, k, v, **options)

    def gradients(names):
        like = {"dq": q, "dk": k, "dv": v, "delta": lse}
        into = {n: np.full_like(x, np.nan) if n in names else None for n, x in like.items()}
        attention.backward(**into, do=do, o=o, lse=lse, q=q, k=k, v=v, **options)
        return into

    every, some = gradients(WANTED[0].split()), gradients(wanted.split())
    for name in wanted.split():
        assert some[name].tobytes() == every[name].tobytes()


def test_scores_have_no_gradient_without_delta():
    dq, q, k, v, o = normal(5, B * T, H * D)
    with pytest.raises(ValueError, match="dq and dk need delta; got None"):
        attention.backward(dq, None, None, None, o, o, normal(B, H, T), q, k, v)


# -- In segments ---------------------------------------------------------------------------------

LENGTHS = 1, 33, 64, 2, 70, 130, 6


def starts(lengths, before=0):
    """The first row of each row's segment."""
    ends = np.cumsum(lengths)
    return (np.repeat(ends - lengths, lengths) + before).astype(np.int32)


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("limits", [{}, {"causal": 0}, {"causal": 0, "window": 30}])
@pytest.mark.parametrize("lengths", [LENGTHS, (70, 10), (100, 40, 4)], ids=str)
def test_a_segment_gives_the_bits_of_a_sequence_of_its_own(lengths, precision, limits, n_threads):
    """Wherever it begins: so what a batch gives does not depend on how it was packed."""
    rows, KV = sum(lengths), 1
    options = {"precision": precision, "n_threads": n_threads, **limits}
    q, do = normal(2, rows, H * D)
    k, v = normal(2, rows, KV * D)
    packed = backward(q, k, v, do, starts(lengths), 1, **options)
    alone = [
        backward(*(x[i:end] for x in (q, k, v, do)), None, 1, **options)
        for i, end in pairwise(np.cumsum([0, *lengths]))
    ]
    for got, *expected in zip(packed, *alone, strict=True):
        assert got.tobytes() == np.concatenate(expected).tobytes()


def backward(q, k, v, do, first, batch, **options):
    """o, dq, dk, dv."""
    o, dq, dk, dv = (np.full_like(x, np.nan) for x in (q, q, k, v))
    lse, delta = np.full((2, batch, H, len(q) // batch), np.nan, np.float32)
    attention.forward(o, lse, q, k, v, first, **options)
    attention.backward(dq, dk, dv, delta, do, o, lse, q, k, v, first, **options)
    return o, dq, dk, dv


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("segments", [[890], [3, 130, 64, 693]], ids=["one", "segments"])
@pytest.mark.parametrize(
    "limits", [{}, {"window": 70}, {"cap": 2.0}, {"causal": 0}, {"causal": 0, "window": 70}]
)
def test_many_threads_for_few_heads_give_the_same_bits(limits, segments, precision):
    """Threads that share a head add to dq in turn."""
    H, KV, D, T = 4, 2, 16, sum(segments)
    q, do = normal(2, 2 * T, H * D)
    k, v = normal(2, 2 * T, KV * D)
    one = np.repeat(np.cumsum([0, *segments[:-1]]), segments)
    first = np.concatenate([one, one + T]).astype(np.int32) if len(segments) > 1 else None
    o, (lse, delta) = np.empty_like(q), np.empty((2, 2, H, T), np.float32)
    options = {"precision": precision, **limits}
    attention.forward(o, lse, q, k, v, first, **options)
    bits = []
    for n_threads in (1, *[2, 3, 5, 9] * 4, 40):
        dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
        arrays = (dq, dk, dv, delta, do, o, lse, q, k, v, first)
        attention.backward(*arrays, n_threads=n_threads, **options)
        bits.append([each.tobytes() for each in (dq, dk, dv)])
    assert all(each == bits[0] for each in bits)


def test_one_segment_a_sequence_gives_the_bits_of_none():
    q, k, v, do = normal(4, B * T, H * D)
    first = np.concatenate([starts([T]), starts([T], T)])
    for got, expected in zip(
        backward(q, k, v, do, first, B), backward(q, k, v, do, None, B), strict=True
    ):
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({5: 7}, r"row 5 is 7; must be at most 5: a segment begins with its first row"),
        ({69: 4}, r"row 69 is 4; must be 60, as in the row before, or 69, where a segment begins"),
        ({0: -1}, r"row 0 is -1; must be"),
        ({70: 60}, r"row 70 is 60; must be 70: a sequence of 70 rows begins there"),
    ],
)
def test_bad_segments_are_refused(change, message):
    first = np.concatenate([starts([60, 10]), starts([10, 60], T)])
    for row, start in change.items():
        first[row] = start
    q, k, v, o = normal(4, B * T, H * D)
    with pytest.raises(ValueError, match=rf"attention\.forward: first: {message}"):
        attention.forward(o, normal(B, H, T), q, k, v, first)


def test_segments_are_as_many_as_rows():
    q, k, v, o = normal(4, B * T, H * D)
    first = np.concatenate([starts([T]), starts([T], T)])
    with pytest.raises(ValueError, match=r"first\[B\*T\] needs shape \(140,\)"):
        attention.forward(o, normal(B, H, T), q, k, v, first[1:])


def test_segments_are_checked_when_they_are_uploaded():
    s = Session()
    first, x = s.input("first", (B * T,), "i32"), s.input("x", (B * T, H * D))
    with pytest.raises(ShapeError, match="of i32"):
        ops.attention(s, x, x, x, batch=B, n_heads=H, first=x)
    ops.attention(s, x, x, x, batch=B, n_heads=H, first=first)
    s.finalize_weights()
    s.realize()
    good = np.concatenate([starts([60, 10]), starts([10, 60], T)])
    s.upload(first, good)
    good[70] = 60
    with pytest.raises(LabelError, match=r"first: row 70 is 60; must be 70: a sequence of 70 rows"):
        s.upload(first, good)


# -- Windows and caps ----------------------------------------------------------------------------


def test_a_row_sees_as_far_to_the_other_side_if_it_is_not_causal():
    """Also keys of blocks beyond the last query's; what is farther could be anything."""
    q, k, v = normal(3, 640, D)
    k[512:] = v[512:] = k[:63] = v[:63] = np.nan
    rows = slice(128, 448)  # they see keys 64 to 511
    limits = {"causal": False, "window": 65}
    lse = np.empty((1, 1, 640), np.float32)
    o = np.empty_like(q)
    attention.forward(o, lse, q, k, v, **limits)
    assert np.isfinite(o[rows]).all()
    k[511] = np.nan
    attention.forward(o, lse, q, k, v, **limits)
    assert np.isnan(o[447]).all() and np.isfinite(o[:447][128:]).all()


def test_blocks_behind_a_window_are_not_looked_at():
    """So time is linear in the length: what is not seen could be anything, even NaN."""
    q, k, v, do = normal(4, 640, D)
    last = slice(512, None)  # the queries that see no key before 512 - 64
    k[:448] = v[:448] = np.nan
    lse, delta = np.empty((2, 1, 1, 640), np.float32)
    o, dq, dk, dv = np.empty((4, 640, D), np.float32)
    attention.forward(o, lse, q, k, v, window=64)
    attention.backward(dq, dk, dv, delta, do, o, lse, q, k, v, window=64)
    for x in (o[last], dq[last], dk[last], dv[last]):
        assert np.isfinite(x).all()


def test_a_window_as_long_as_the_sequence_hides_nothing():
    q, k, v, do = normal(4, B * T, H * D)
    expected = backward(q, k, v, do, None, B)
    for got, wanted in zip(backward(q, k, v, do, None, B, window=T), expected, strict=True):
        assert got.tobytes() == wanted.tobytes()


def test_a_cap_bounds_scores_of_any_size():
    q, k, v = normal(3, B * T, H * D)
    o, lse = np.empty_like(q), np.empty((B, H, T), np.float32)
    attention.forward(o, lse, q, k, v, scale=1e6, cap=3.0)
    assert np.abs(lse - np.log(np.arange(1, T + 1))).max() <= 3 + 1e-6


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"window": -1}, "got -1"),
        ({"cap": -1.0}, "cap must be a number above 0, or 0 for none; got -1.0"),
        ({"cap": np.nan}, "got nan"),
    ],
)
def test_windows_and_caps_that_mean_nothing_are_refused(limits, message):
    q, k, v, o = normal(4, B * T, H * D)
    with pytest.raises(ValueError, match=rf"attention\.forward: .*{message}"):
        attention.forward(o, normal(B, H, T), q, k, v, **limits)
    if "causal" in limits:
        s = Session()
        x = s.input("x", (B * T, H * D))
        with pytest.raises(ShapeError, match="a causal window of keys"):
            ops.attention(s, x, x, x, batch=B, n_heads=H, **limits)
        return
    rows = (normal(B * 2, H * D) for _ in range(4))
    past = np.zeros(B, np.int32)
    with pytest.raises(ValueError, match=rf"cached_attention\.forward: .*{message}"):
        cached_attention.forward(next(rows), normal(*KC), normal(*VC), *rows, past, **limits)


# -- Over a cache --------------------------------------------------------------------------------

KC, VC = ops.KVCache.shapes(B, H, 100, D, D)  # rounded up to 128 rows


SINKS = np.array([0.5, -1, 3][:H], np.float32)


@pytest.mark.parametrize(
    "limits", [{}, {"window": 5}, {"window": 30, "cap": 0.5}, {"window": 5, "sinks": SINKS}]
)
def test_a_cache_that_is_filled_piece_by_piece(limits):
    """Any pieces give what attention over whole sequences gives."""
    q, k, v = normal(3, B, T, H * D)
    whole, lse = np.empty((B * T, H * D), np.float32), np.empty((B, H, T), np.float32)
    attention.forward(whole, lse, *(x.reshape(B * T, H * D) for x in (q, k, v)), **limits)
    expected = whole.reshape(B, T, H * D)
    for pieces in ([T], [1] * T, [1, 63, 2, 1, 3], [30, 40]):
        kc, vc, start = np.full(KC, np.nan, np.float32), np.full(VC, np.nan, np.float32), 0
        for length in pieces:
            rows = slice(start, start + length)
            o = np.empty((B * length, H * D), np.float32)
            new = [np.ascontiguousarray(x[:, rows]).reshape(o.shape) for x in (q, k, v)]
            past = np.full(B, start, np.int32)
            cached_attention.forward(o, kc, vc, *new, past, n_threads=2, **limits)
            got = o.reshape(B, length, H * D)
            np.testing.assert_allclose(got, expected[:, rows], rtol=1e-5, atol=1e-6)
            start += length


def test_columns_of_one_array_over_a_cache():
    qkv, past = normal(B * 3, 3 * H * D), np.array([70, 5], np.int32)
    kc, vc = normal(*KC), normal(*VC)
    one, other = np.empty((2, B * 3, H * D), np.float32)
    caches = kc.copy(), vc.copy()
    cached_attention.forward(one, kc, vc, *np.split(qkv, 3, axis=1), past)
    apart = [np.ascontiguousarray(x) for x in np.split(qkv, 3, axis=1)]
    cached_attention.forward(other, *caches, *apart, past)
    assert one.tobytes() == other.tobytes()
    assert kc.tobytes() == caches[0].tobytes()


@pytest.mark.parametrize("scale", [-300.0, 300.0])
def test_large_scores_over_a_cache(scale):
    """Of one query over several spans of keys too: nothing overflows, and no sum is zero."""
    past, (kc_shape, vc_shape) = 299, ops.KVCache.shapes(1, 1, 600, D, D)
    rows = normal(3, past + 1, D)
    kc, vc = np.full(kc_shape, np.nan, np.float32), np.full(vc_shape, np.nan, np.float32)
    o = np.empty((past, D), np.float32)
    cached_attention.forward(o, kc, vc, *rows[:, :past], np.zeros(1, np.int32), scale=scale)
    o = np.empty((1, D), np.float32)
    cached_attention.forward(o, kc, vc, *rows[:, past:], np.array([past], np.int32), scale=scale)
    q, k, v = rows.astype(np.float64)
    scores = scale * k @ q[past]
    p = np.exp(scores - scores.max())
    np.testing.assert_allclose(o[0], p @ v / p.sum(), rtol=1e-4, atol=1e-4)


def test_nothing_that_lies_in_scratch_memory_is_read():
    """Neither for a sequence that is shorter than the others, by whole spans of keys."""
    s = Session()
    past, x = s.input("past", (B,), "i32"), s.input("x", (B, H * D))
    shapes = ops.KVCache.shapes(B, H, 600, D, D)
    kept = [s.persistent(name, shape) for name, shape in zip("kv", shapes, strict=True)]
    o = s.output(ops.attention(s, x, x, x, batch=B, n_heads=H, cache=ops.KVCache(*kept, past)))
    s.finalize_weights()
    s.realize()
    workspace = s._compiled[s.tape].program.workspace
    assert workspace.nbytes
    workspace.upload(0, np.full(workspace.nbytes // 4, np.nan, np.float32))
    s.upload(past, [550, 5])
    s.upload(x, normal(B, H * D))
    s.run("loss")
    assert np.isfinite(s.download(o)).all()


@pytest.mark.parametrize("names", [("vc",), ("v",), ()])
def test_values_are_cached_or_a_part_of_keys(names):
    """Neither v alone nor vc alone, nor more columns than keys have."""
    q, past = normal(B, H * D), np.zeros(B, np.int32)
    more = {name: normal(*VC) if name == "vc" else q for name in names}
    o = np.empty((B, H * (D if names else D + 1)), np.float32)
    with pytest.raises(ValueError, match=r"v and vc, or neither and E <= D; got .* \d+ and 20"):
        cached_attention.forward(o=o, kc=normal(*KC), q=q, k=q, past=past, **more)


def test_a_past_for_which_there_is_no_room_is_refused():
    x = normal(B * 2, H * D)
    for past in ([0, 127], [-1, 0]):
        with pytest.raises(ValueError, match=r"2 rows after past need past in 0 \.\. 126; got"):
            cached_attention.forward(
                x.copy(), normal(*KC), normal(*VC), x, x, x, np.array(past, np.int32)
            )


def test_a_cache_that_does_not_fit_or_is_trained_through_is_refused():
    s = Session()
    w = s.parameter("w", (H * D, 4))
    kept = [s.persistent(name, shape) for name, shape in (("keys", KC), ("values", VC))]
    cache = ops.KVCache(*kept, s.input("past", (B,), "i32"))
    x = s.input("x", (B * 2, H * D))
    q = ops.linear(s, s.input("y", (B * 2, 4)), w)
    with pytest.raises(ShapeError, match="a cache of 1 x 3 heads of 20"):
        ops.attention(s, q, x, x, batch=1, n_heads=H, cache=cache)
    with pytest.raises(ShapeError, match="a cache"):
        ops.attention(s, q, x, x, batch=B, n_heads=H, causal=False, cache=cache)
    for values, more in ((None, {"d_value": 4}), (x, {"d_value": 4}), (None, {})):
        with pytest.raises(ShapeError, match="v, or a cache without values"):
            ops.attention(s, q, x, values, batch=B, n_heads=H, cache=cache, **more)
    o = ops.attention(s, q, x, x, batch=B, n_heads=H, cache=cache)
    s.set_loss(ops.cross_entropy(s, o, s.input("labels", (B * 2,), "i32")))
    with pytest.raises(ConfigError, match="attention over a cache has no gradient"):
        s.build_backward()


def test_past_is_checked_when_it_is_uploaded():
    s = Session()
    past, x = s.input("past", (B,), "i32"), s.input("x", (B * 2, H * D))
    kept = [s.persistent(name, shape) for name, shape in (("keys", KC), ("values", VC))]
    ops.attention(s, x, x, x, batch=B, n_heads=H, cache=ops.KVCache(*kept, past))
    s.finalize_weights()
    s.realize()
    s.upload(past, [0, 126])
    with pytest.raises(LabelError, match=r"past: row 1 is 127; must be 0\.\.126"):
        s.upload(past, [0, 127])
