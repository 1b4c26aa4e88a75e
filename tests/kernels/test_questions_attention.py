"""What breaks if ...? Questions about what mixes rows, each with its answer and a test of it.

The first line of a docstring is the question, the rest the answer: docs/kernel_pages.py shows them.
"""

import numpy as np
from ask import draw, run

# -- attention


def attended(q, k, v, **more):
    """Return o of one sequence and one head."""
    return run("attention.forward", q=q, k=k, v=v, B=1, T=len(q), H=1, KV=1, **LD(q), **more).o


def LD(q):
    """Return the row strides."""
    return dict.fromkeys(("ldq", "ldk", "ldv"), q.shape[1])


def qkv(T, D):
    """Return queries, keys and values."""
    return (draw(T, D, seed=n) for n in range(3))


def test_attention_without_the_causal_bound():
    """What breaks if rows see what comes after them?

    The label of a row is the token behind it, so a row could copy its label. The loss falls to 0 in
    training, and in generation, where nothing comes after, the model writes nonsense. With the
    bound, changing the last row changes no row before it, not by a bit.
    """
    q, k, v = qkv(9, 8)
    later = v.copy()
    later[-1] += 1
    assert np.array_equal(attended(q, k, v)[:-1], attended(q, k, later)[:-1])
    assert np.abs(attended(q, k, v, causal=0) - attended(q, k, later, causal=0))[:-1].min() > 0


def test_attention_without_its_scale():
    """What breaks without the factor 1 / sqrt(D)?

    A score is a sum of D products, so its deviation is sqrt(D): 8 for D = 64. Softmax of such
    scores gives nearly everything to one key, where its slope is nearly 0. Training is slow to
    begin with. The factor makes the deviation 1.
    """
    T = D = 64
    q, k, _ = qkv(T, D)
    v = np.eye(T, dtype=np.float32)  # so o is p
    largest, sharp = (attended(q, k, v, causal=0, **s).max(1) for s in ({}, {"scale": 1.0}))
    assert largest.mean() < 0.2 and sharp.mean() > 0.7


def test_attention_of_packed_examples():
    """What breaks if examples packed into one row see each other?

    The answer to one example would depend on what happens to stand before it. `first` says for each
    row where its example begins; then an example has the same bits as alone.
    """
    q, k, v = qkv(10, 8)
    first = np.int32([0] * 4 + [4] * 6)
    packed = attended(q, k, v, first=first)
    assert np.array_equal(packed[4:], attended(q[4:], k[4:], v[4:]))
    assert np.abs(packed[4:] - attended(q, k, v)[4:]).max() > 0.01


# -- cached_attention


def cached(q, k, v, cache, past):
    """Return o of new rows, and the cache with them."""
    inputs = {"q": q, "k": k, "v": v, "kc": cache[0], "vc": cache[1], "past": np.int32([past])}
    after = run("cached_attention.forward", **inputs, B=1, T=len(q), H=1, KV=1, **LD(q))
    return after.o, (after.kc, after.vc)


def empty(D, rows=64, fill=0.0):
    """Return an empty cache."""
    return tuple(np.full((1, 1, rows, D), fill, np.float32) for _ in range(2))


def test_cached_attention_a_row_at_a_time():
    """What breaks if a text is read one token at a time?

    Nothing: keys and values of earlier rows never change, because no row sees a later one. So they
    are kept, and a step computes one row in place of all.
    """
    q, k, v = qkv(7, 8)
    cache, rows = empty(8), []
    for t in range(7):
        o, cache = cached(q[t : t + 1], k[t : t + 1], v[t : t + 1], cache, t)
        rows.append(o)
    assert np.allclose(np.concatenate(rows), attended(q, k, v), atol=1e-5)


def test_cached_attention_with_a_wrong_past():
    """What breaks if `past` is too small by one?

    The new row overwrites the last one in the cache, and does not see it. The text goes on as if
    its last token had not been there. Nothing fails, which makes it hard to find.
    """
    q, k, v = qkv(5, 8)
    _, cache = cached(q[:4], k[:4], v[:4], empty(8), 0)
    right, _ = cached(q[4:], k[4:], v[4:], cache, 4)
    wrong, _ = cached(q[4:], k[4:], v[4:], cache, 3)
    whole = attended(q, k, v)[4:]
    without = attended(q[[0, 1, 2, 4]], k[[0, 1, 2, 4]], v[[0, 1, 2, 4]])[3:]
    assert np.allclose(right, whole, atol=1e-5) and np.allclose(wrong, without, atol=1e-5)
    assert np.abs(right - wrong).max() > 0.01


def test_cached_attention_does_not_read_beyond():
    """What stands in the cache behind the rows that are there?

    Anything: rows of an earlier text, or padding of a prompt's last chunk. They are not read, not
    even NaN. So a cache need not be cleared between texts.
    """
    q, k, v = qkv(3, 8)
    clean, _ = cached(q, k, v, empty(8), 0)
    dirty, _ = cached(q, k, v, empty(8, fill=np.nan), 0)
    assert np.array_equal(clean, dirty)


# -- shortconv


def test_shortconv_sees_the_last_rows_alone():
    """How far back does a row see?

    L rows, its own included: with 3 taps the first row has no effect beyond the third. Many such
    blocks see further, each 2 rows more. What is far away is left to the few blocks of attention.
    """
    x, w = draw(6, 4), draw(4, 3, seed=1)
    other = x.copy()
    other[0] += 1
    y, moved = (run("shortconv.forward", x=a, w=w, B=1, P=1).y for a in (x, other))
    assert (np.abs(y - moved).max(1) > 0).tolist() == [True] * 3 + [False] * 3


def test_shortconv_with_taps_in_the_wrong_order():
    """What breaks if the taps are reversed?

    The newest row would get the weight of the oldest. Some programs store taps in the order of
    time, others as a convolution is written; all shapes fit. Here the last tap is that of the row
    itself.
    """
    x = draw(5, 2)
    taps = np.float32([[0, 0, 1]] * 2)
    y = run("shortconv.forward", x=x, w=taps, B=1, P=1).y
    late = run("shortconv.forward", x=x, w=taps[:, ::-1].copy(), B=1, P=1).y
    assert np.array_equal(y, x)
    assert np.array_equal(late[2:], x[:-2]) and (late[:2] == 0).all()


def test_shortconv_at_the_beginning_of_a_sequence():
    """What breaks if sums run over the beginning of a sequence?

    The first rows of a sequence would see the last ones of another. Each sequence begins with
    nothing before it. Two sequences give the same bits side by side as alone.
    """
    x, w = draw(8, 4), draw(4, 3, seed=1)
    both = run("shortconv.forward", x=x, w=w, B=2, P=1).y
    assert np.array_equal(both[4:], run("shortconv.forward", x=x[4:], w=w, B=1, P=1).y)
    one = run("shortconv.forward", x=x, w=w, B=1, P=1).y
    assert (np.abs(one - both).max(1) > 0).tolist() == [False] * 4 + [True] * 2 + [False] * 2


# -- delta


def ruled(q, k, v, g=0.0, c=30.0):
    """Return y of one sequence, one head; c large: a row writes all of the difference."""
    T, D = q.shape
    x = np.concatenate([q, k, v], 1)
    full = {"g": np.full((T, 1), g, np.float32), "c": np.full((T, 1), c, np.float32)}
    after = run("delta.forward", x=x, **full, B=1, T=T, V=1, K=1, D=D, E=v.shape[1], S=1)
    return after.y.reshape(T, -1)


def test_delta_overwrites_what_is_under_a_key():
    """What breaks if values are added under a key and not replaced?

    A key that comes twice would give the sum of both values. The rule first looks up what is there
    and writes only the difference, so the last value is found. That is the "delta".
    """
    D = 4
    key = np.tile(np.eye(D, dtype=np.float32)[0], (2, 1))
    v = np.float32([[1, 2, 3, 4], [5, 0, 0, 1]])
    y = ruled(key, key, v) * np.sqrt(D)
    assert np.allclose(y, v, atol=1e-4)
    assert not np.allclose(y[1], v.sum(0), atol=0.5)


def test_delta_forgets():
    """What does g do?

    The state is multiplied by e^g before each row. With g = 0 nothing is forgotten: a value is
    found after any number of rows. With g = -20 the state is empty before each row, and each row
    sees itself alone.
    """
    q, k, v = (draw(5, 4, seed=n) for n in range(3))
    keeps, forgets = ruled(q, k, v), ruled(q, k, v, g=-20.0)
    alone = np.concatenate([ruled(q[t : t + 1], k[t : t + 1], v[t : t + 1]) for t in range(5)])
    assert np.allclose(forgets, alone, atol=1e-6)
    assert np.abs(keeps[1:] - alone[1:]).max() > 0.05


def test_delta_of_a_longer_key():
    """What breaks if keys are not made of length 1?

    Writing under k and looking it up again multiplies by |k|^2. For a key of length 2 the rule
    would write four times too much, then correct it by more than it wrote: the state would grow
    without bound. The kernel normalizes q and k, so their length has no effect.
    """
    q, k, v = (draw(6, 4, seed=n) for n in range(3))
    assert np.allclose(ruled(q, k, v), ruled(q, 3 * k, v), atol=1e-4)
    state, grown = np.zeros((4, 4)), []
    for _ in range(30):
        for key, value in zip(2 * k, v, strict=True):
            state = state + np.outer(key, value - state.T @ key)
        grown.append(np.abs(state).max())
    assert grown[-1] > 1e6 * np.abs(v).max()


# -- ssd


def spaced(x, b, c, dt, a=-1.0):
    """Return y of one sequence, one head, without a bias and without what passes the state by."""
    T, D = b.shape
    one = {"a": np.full((1, 1), a, np.float32), "bias": np.zeros(1, np.float32)}
    one |= {
        "skip": np.zeros((1, 1), np.float32),
        "dt": np.broadcast_to(np.float32(dt), (T, 1)).copy(),
    }
    rows = np.concatenate([x, b, c], 1)
    return run("ssd.forward", x=rows, **one, B=1, T=T, V=1, E=x.shape[1], G=1, D=D).y


def test_ssd_is_attention_without_softmax():
    """What is left of the state if nothing is forgotten?

    With a near 0, and steps of p = log 2, each row sees the sum of all rows before it, weighed by
    c . b: attention whose scores go through no softmax, at a cost that is linear in T.
    """
    x, b, c = draw(150, 5), draw(150, 4, seed=1), draw(150, 4, seed=2)
    y = spaced(x, b, c, 0.0, a=-1e-9)
    assert np.allclose(y, np.tril(c @ b.T) @ (np.log(2) * x), atol=1e-3)


def test_ssd_of_a_long_step():
    """What does the size of a step do?

    It says both how much is forgotten and how much is written. After a step of almost 0 the state
    is as it was: the row writes nothing. A step of 30 replaces the state by what the row writes.
    """
    x, b, c = draw(70, 3), draw(70, 4, seed=1), draw(70, 4, seed=2)
    assert np.abs(spaced(x, b, c, -30.0)).max() < 1e-9
    alone = 30 * (b * c).sum(1, keepdims=True) * x
    assert np.allclose(spaced(x, b, c, 30.0), alone, rtol=1e-4, atol=1e-5)


def test_ssd_after_much_was_forgotten():
    """What breaks if M is made of differences of sums of a p?

    After rows that forget much, sums from the chunk's beginning are large: around -2000 a float32
    has steps of 0.0001, and e to a difference is off by as much. Row t of M is row t - 1 times one
    factor, so rows behind them are as exact as without them.
    """
    dt, parts = np.full((64, 1), -3.0), [draw(64, n, seed=n) for n in (3, 4, 5)]
    dt[:20] = 100.0
    (x, b, c), p = (parts[0], parts[1], parts[2][:, :4]), np.logaddexp(0, dt)
    sums = np.cumsum(-p)
    left = np.exp(np.minimum(sums[:, None] - sums, 0))
    exact = np.tril(c.astype(float) @ b.T * left) @ (p * x)
    assert np.abs(spaced(x, b, c, dt) - exact).max() < 1e-6 * np.abs(exact).max()
    rounded = np.cumsum(-p, dtype=np.float32)
    assert np.abs(np.exp(np.minimum(rounded[:, None] - rounded, 0)) - left).max() > 1e-5


# -- decay


def decayed(x, w=-1.0, b=0.0):
    """Return y of one head."""
    inputs = {"x": np.float32(x).reshape(-1, 1), "w": np.float32([w]), "b": np.float32([b])}
    return run("decay.forward", **inputs).y.ravel()


def test_decay_of_a_large_number():
    """What breaks if log(1 + e^x) is computed as it is written?

    e^100 is infinite in float32, and so is its logarithm. The state would be multiplied by e^-inf =
    0 where it should shrink by e^-100; with a weight of -0.001 that is 0.9. For x > 0 the kernel
    adds x to log(1 + e^-x).
    """
    with np.errstate(over="ignore"):
        naive = -0.001 * np.log1p(np.exp(np.float32(100)))
    assert np.isinf(naive)
    assert np.allclose(decayed([100.0], w=-0.001), -0.1)


def test_decay_never_grows():
    """What breaks if w is positive?

    The factor e^y would be above 1 and the state would grow with each row, by more than any float
    after some hundred. Since w < 0 and log(1 + e^x) > 0, the factor is at most 1.
    """
    x = np.linspace(-20, 20, 41)
    assert (np.exp(decayed(x)) <= 1).all() and (np.diff(decayed(x)) <= 0).all()
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(decayed([3.0], w=1.0)) ** np.float32(200))


def test_decay_of_a_head_that_keeps_everything():
    """What happens far below 0?

    y is nearly 0, so the state is kept. The slope is nearly 0, too: such a head needs many steps
    before it forgets again. At x = 0 a row forgets half: e^-log 2.
    """
    inputs = {"x": np.float32([[-15], [0]]), "w": np.float32([-1]), "b": np.zeros(1, np.float32)}
    slope = run("decay.backward", dy=np.ones((2, 1)), **inputs).dx.ravel()
    assert abs(decayed([-15.0])[0]) < 1e-6 and abs(slope[0]) < 1e-6
    assert np.isclose(np.exp(decayed([0.0])[0]), 0.5) and np.isclose(slope[1], -0.5)


# -- gated


def test_gated_heads_at_first():
    """What does a gate of 0 let through?

    Half: sigmoid(0) is 1/2. So a new model begins with half of what attention gives, and the gate
    has its steepest slope, 1/4.
    """
    o, x = draw(2, 3, 4), np.zeros((2, 3, 2, 4), np.float32)
    assert np.array_equal(run("gated.forward", o=o, x=x).y, o / 2)
    assert np.allclose(run("gated.backward", dy=np.ones_like(o), o=o, x=x).dx[:, :, 1], o / 4)


def test_gated_heads_that_are_closed():
    """What does a closed gate learn?

    Next to nothing: its slope is 0, and what is behind it gets no gradient either. So a head that
    was closed by one large step stays closed.
    """
    o, x = draw(2, 3, 4), np.full((2, 3, 2, 4), -100, np.float32)
    back = run("gated.backward", dy=np.ones_like(o), o=o, x=x)
    assert np.abs(back.dx).max() < 1e-30 and np.abs(back.do).max() < 1e-30


def test_gated_heads_are_stored_side_by_side():
    """What breaks if queries and gates are read as the halves of a row?

    The gate of each head stands right behind its query. Read as halves, heads would take the
    queries of others for their gates. All shapes fit.
    """
    x = draw(2, 4, 2, 3)
    q = run("gated.queries", x=x).q
    halves = x.reshape(2, 2, 4, 3)[:, 0]
    assert np.array_equal(q, x[:, :, 0])
    assert np.array_equal(q[:, 0], halves[:, 0]) and not np.array_equal(q[:, 1:], halves[:, 1:])


# -- latent


def latents(H=3, P=4, R=2, E=5, C=6, T=7):
    """Return queries, latents, what all heads share, and the matrix (H, P + E, C)."""
    shapes = (T, H, P), (T, C), (T, R), (H, P + E, C)
    return tuple(draw(*shape, seed=n) for n, shape in enumerate(shapes))


def absorbed(q, w, first=0):
    """Return each head of queries times its rows of a matrix."""
    H, W, C = w.shape
    return run("latent.absorb", x=q, w=w.reshape(H * W, C), W=W, first=first).y


def test_latent_queries_absorb_the_matrix_of_keys():
    """Are scores over latents those over keys?

    Yes: (q W) . c = q . (W c). Both have the same products in another order, so they differ by
    rounding alone. Keys would take H P + R numbers a token, latents C + R.
    """
    q, c, _, w = latents()
    keys = np.einsum("hpc,tc->thp", w[:, :4], c)
    over_keys = np.einsum("ihp,jhp->hij", q, keys)
    over_latents = np.einsum("ihc,jc->hij", absorbed(q, w), c)
    assert np.allclose(over_latents, over_keys, atol=1e-4)


def test_latent_keys_cannot_be_rotated():
    """Why does RoPE rotate channels of its own, and not those made of latents?

    A rotation stands between q and W, and depends on how far apart two rows are. So no one product
    of q and W serves all keys: absorbed without it, scores are others.
    """
    q, c, _, w = latents()
    keys = np.einsum("hpc,tc->thp", w[:, :4], c)
    turned = keys[..., [1, 0, 3, 2]] * [-1, 1, -1, 1]  # by a quarter
    over_keys = np.einsum("ihp,jhp->hij", q, turned)
    over_latents = np.einsum("ihc,jc->hij", absorbed(q, w), c)
    assert np.abs(over_latents - over_keys).max() > 1


def test_latent_shared_channels_learn_from_all_heads():
    """What gradient do the channels get that all heads share?

    The sum over the heads: each of them reads the same numbers. The mean would make r learn H times
    as slowly as the rest.
    """
    q, _, r, _ = latents()
    joined = run("latent.join", a=q, b=r[:, None]).y
    back = run("latent.join_backward", dy=joined, P=4, R=2, G=1)
    assert np.allclose(back.db[:, 0], 3 * r, atol=1e-6) and np.array_equal(back.da, q)
