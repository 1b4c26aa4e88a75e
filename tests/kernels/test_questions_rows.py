"""What breaks if ...? Questions about kernels of rows, each with its answer and a test of it.

The first line of a docstring is the question, the rest the answer: docs/kernel_pages.py shows them.
"""

import numpy as np
import pytest
from ask import draw, exact, run

import toynn._kernels as kernels

ONE = np.ones


# -- embedding


def test_embedding_of_a_token_that_comes_twice():
    """What breaks if backward writes a row of the table instead of adding to it?

    A token that comes twice keeps only its last gradient. All the others are lost, and nothing
    fails: the loss still falls, more slowly. So each row of dy is added to the row it came from.
    """
    ids, dy = np.array([2, 5, 2]), draw(3, 4)
    dw = run("embedding.backward", dy=dy, ids=ids, V=6).dw
    written = np.zeros((6, 4))
    written[ids] = dy
    assert np.array_equal(dw[2], dy[0] + dy[2])
    assert not np.array_equal(written[2], dw[2])
    assert np.array_equal(written[5], dw[5])


def test_embedding_adds_in_the_order_of_the_rows():
    """What breaks if threads share the rows of dy?

    Two threads may add to the same row of dw, so a sum gets lost; or with locks, the order of the
    terms depends on who is first. Floating-point sums depend on that order: 1e8 + 1 - 1e8 is 0,
    1e8 - 1e8 + 1 is 1. So threads share the columns, and each goes through all rows in order.
    """
    dy = np.repeat(np.float32([[1e8], [1], [-1e8]]), 130, axis=1)
    gradients = [
        run("embedding.backward", dy=dy, ids=[0, 0, 0], V=1, n_threads=n).dw for n in (1, 2, 5)
    ]
    assert all((dw == 0).all() for dw in gradients)
    assert ((dy[0] + dy[2]) + dy[1] == 1).all()


def test_embedding_refuses_an_id_outside_of_the_table():
    """What breaks if an id is as large as the vocabulary?

    A C loop would read memory behind the table, and backward would write there. The session checks
    ids when they are uploaded, and the Python call checks them each time. It names the bad one.
    """
    y, w = np.empty((2, 4), np.float32), draw(6, 4)
    with pytest.raises(ValueError, match="id 6 is outside"):
        kernels.embedding.forward(y, w, np.int32([0, 6]))
    kernels.embedding.forward(y, w, np.int32([0, 5]))
    assert np.array_equal(y, w[[0, 5]])


# -- class_token


def test_class_token_and_first_position_are_one_vector():
    """Which of the class token and its position could be left out?

    Either. Row 0 is their sum, and nothing else reads them. So both get the same gradient, and
    moving a vector from one to the other changes no output. Files have both, so toynn does.
    """
    x, cls, pos, moved = draw(3, 4), draw(4, seed=1), draw(4, 4, seed=2), np.full(4, 0.25)
    inputs = {"x": x, "cls": cls, "pos": pos}
    y = run("class_token.forward", B=1, **inputs).y
    shifted = pos.copy()
    shifted[0] -= moved
    other = run("class_token.forward", B=1, x=x, cls=cls + moved, pos=shifted).y
    back = run("class_token.backward", dy=draw(4, 4, seed=3), B=1)
    assert np.allclose(y, other, atol=1e-6)
    assert np.array_equal(back.dcls, back.dpos[0])


def test_class_token_gradient_of_a_position_is_a_sum_over_pictures():
    """What breaks if the gradient of the positions is taken from one picture?

    All pictures of a batch use the same table. Two equal pictures move it twice as far as one, if
    their losses are added. Without the sum a batch of 64 would teach the table as little as one
    picture. A row of x belongs to one picture, so dx has no sum.
    """
    dy = draw(3, 5)
    one = run("class_token.backward", dy=dy, B=1)
    two = run("class_token.backward", dy=np.concatenate([dy, dy]), B=2)
    assert np.array_equal(two.dpos, 2 * one.dpos)
    assert np.array_equal(two.dx[:2], one.dx)


def test_class_token_positions_tell_the_order():
    """What breaks if the positions are all zero?

    The order of the patches is lost. Attention treats rows as a set, so a picture and the same
    picture with two patches exchanged would give the same class token. With positions, exchanging
    two patches changes more than the order of the rows.
    """
    x, cls, pos = draw(4, 3), draw(3, seed=1), draw(5, 3, seed=2)
    exchanged = x[[1, 0, 2, 3]]

    def rows(x, pos):
        return sorted(map(tuple, run("class_token.forward", B=1, x=x, cls=cls, pos=pos).y.tolist()))

    assert rows(x, 0 * pos) == rows(exchanged, 0 * pos)
    assert rows(x, pos) != rows(exchanged, pos)


# -- valid_rows


def test_valid_rows_leave_the_loss_as_it_is():
    """What breaks if the loss is computed for the labelled rows alone?

    Nothing. Rows without a label add neither to the loss nor to its number of rows. The head is the
    widest product of a model, so leaving them out can be the largest saving of a step.
    """
    logits, labels = draw(5, 7), np.array([-100, 3, -100, 6, 0])
    rows = run("valid_rows.forward", labels=labels)
    few = rows.rows[: int(rows.count[0])]
    every = run("cross_entropy.forward", logits=logits, labels=labels)
    some = run("cross_entropy.forward", logits=logits[few], labels=rows.picked[: len(few)])
    assert np.array_equal(every.loss, some.loss)


def test_valid_rows_keep_their_order():
    """What breaks if the labelled rows come in another order?

    Labels would be those of other rows, unless they are moved, too: `rows` and `picked` belong
    together. In order, neighbours stay neighbours, so memory is read from start to end.
    """
    valid = run("valid_rows.forward", labels=[-100, 3, 5, -100, 1])
    assert valid.rows[:3].tolist() == [1, 2, 4]
    assert valid.picked[:3].tolist() == [3, 5, 1]


def test_valid_rows_of_a_batch_without_labels():
    """What happens in a batch in which no row has a label?

    The count is 0, so the kernels behind it compute no row. What stands behind the count is made
    harmless: row 0, which exists, and the label -100, which has no loss. The loss would be 0 / 0;
    the session refuses such a batch before it runs.
    """
    valid = run("valid_rows.forward", labels=[-100, -100, -100])
    assert valid.count.tolist() == [0]
    assert valid.rows.tolist() == [0, 0, 0]
    assert valid.picked.tolist() == [-100] * 3


# -- elementwise


def test_elementwise_add_passes_its_gradient_on():
    """Why has `add` no backward kernel?

    Its slope is 1 for each operand: da = dy and db = dy. The gradient rule passes the tensor dy on,
    twice, and no number is computed. In a residual block this is the way around the block, along
    which gradients stay as they are.
    """
    a, b, moved = draw(6), draw(6, seed=1), np.eye(6, dtype=np.float32)[2] / 8
    up, down = (run("elementwise.add", a=a + s * moved, b=b).y for s in (1, -1))
    assert np.allclose((up - down) * 4, np.eye(6)[2], atol=1e-5)


def test_elementwise_accumulate_overwrites_at_first():
    """What breaks if the first micro-batch adds to the gradient, too?

    The gradient of the last step would still be there, so each step would repeat all before it.
    Zeroing the gradients first takes a pass over them. Instead the first writer overwrites, so a
    NaN of an earlier step is gone, and all later writers add.
    """
    x, old = draw(5), np.full(5, np.nan, np.float32)
    assert np.array_equal(run("elementwise.accumulate", x=x).g, x)
    assert np.isnan(run("elementwise.accumulate", x=x, into={"g": old}).g).all()
    assert np.array_equal(run("elementwise.accumulate", x=x, into={"g": 3 * x}).g, x + 3 * x)


def test_elementwise_bias_gradient_is_a_sum_over_rows():
    """What breaks if the gradient of a bias is the mean over the rows?

    A bias is added to each row, so its gradient is the sum of theirs. A mean is N times too small.
    The number of rows is taken care of elsewhere: the loss is a mean already.
    """
    dy = draw(9, 3)
    db = run("elementwise.bias_backward", dy=dy).db
    up, down = (((draw(9, 3, seed=2) + s * np.eye(3)[1] * 0.5) * dy).sum() for s in (1, -1))
    assert np.allclose(db[1], up - down, atol=1e-4)
    assert not np.allclose(db, dy.mean(0))


# -- layernorm


def test_layernorm_without_eps():
    """What breaks without eps?

    A row whose numbers are all equal. Its variance is 0, r is infinite, and 0 times infinity is
    NaN. Such rows exist: padding, or the first position of a new model. With eps the row becomes
    the bias b.
    """
    inputs = {"x": np.full((1, 8), 3.0), "w": ONE(8), "b": draw(8)}
    assert np.isnan(run("layernorm.forward", **inputs, eps=0.0).y).all()
    assert np.array_equal(run("layernorm.forward", **inputs, eps=1e-5).y[0], inputs["b"])


def test_layernorm_far_from_zero():
    """What breaks if the variance is computed as mean(x^2) - mean(x)^2?

    Both terms are large and nearly equal, and their difference has no digits left. For numbers near
    3000 with a deviation of 1 it can even be negative. The kernel subtracts the mean first, at the
    price of a second pass over the row, which is in cache.
    """
    x = draw(4, 512) + np.float32(3000)
    y = run("layernorm.forward", x=x, w=ONE(512), b=np.zeros(512)).y
    right = exact("layernorm.forward", x=x, w=ONE(512), b=np.zeros(512)).y
    mean = x.mean(1, keepdims=True)
    variance = (x * x).mean(1, keepdims=True) - mean * mean
    naive = (x - mean) / np.sqrt(np.abs(variance) + 1e-5)
    assert np.abs(y - right).max() < 1e-3
    assert np.abs(naive - right).max() > 0.02


def test_layernorm_gradient_has_no_part_along_what_changes_nothing():
    """What breaks if the mean and r are taken as constants in the backward?

    dx would be r w dy, which also points where moving x changes nothing: adding the same number to
    all channels, or stretching the row. The true dx has no part in these two directions. The wrong
    one wastes steps there, and the norm of x drifts.
    """
    x, w, dy = draw(3, 16), draw(16, seed=1), draw(3, 16, seed=2)
    ahead = run("layernorm.forward", x=x, w=w, b=0 * w, eps=0.0)
    dx = run("layernorm.backward", dy=dy, x=x, w=w, mean=ahead.mean, r=ahead.r).dx
    constant = dy * w * ahead.r[:, None]
    away = x - ahead.mean[:, None]
    assert np.abs(dx.sum(1)).max() < 1e-5 and np.abs((dx * away).sum(1)).max() < 1e-5
    assert np.abs(constant.sum(1)).max() > 0.1 and np.abs((constant * away).sum(1)).max() > 0.1


# -- rmsnorm


def test_rmsnorm_without_eps():
    """What breaks without eps?

    A row of zeros: 1 / sqrt(0) is infinite, and 0 times infinity is NaN. One NaN reaches every row
    behind it through attention, then the loss and all gradients. With eps the row stays zero.
    """
    x, w = np.zeros((1, 8)), ONE(8)
    assert np.isnan(run("rmsnorm.forward", x=x, w=w, eps=0.0).y).all()
    assert (run("rmsnorm.forward", x=x, w=w, eps=1e-5).y == 0).all()


def test_rmsnorm_of_a_larger_row():
    """What changes if x is a thousand times larger?

    Not y: the norm divides the size away. But dx is a thousand times smaller, since moving a large
    x by 1 turns it less. So a residual stream that grows gets smaller gradients.
    """
    x, w, dy = draw(2, 32), draw(32, seed=1), draw(2, 32, seed=2)

    def of(x):
        ahead = run("rmsnorm.forward", x=x, w=w, eps=0.0)
        return ahead.y, run("rmsnorm.backward", dy=dy, x=x, w=w, r=ahead.r).dx

    (y, dx), (other, small) = of(x), of(1000 * x)
    assert np.allclose(y, other, rtol=1e-5, atol=1e-6)
    assert np.allclose(dx, 1000 * small, rtol=1e-3, atol=1e-5)


def test_rmsnorm_gradient_has_no_part_along_x():
    """What breaks if r is taken as a constant in the backward?

    dx would be r w dy, which has a part along x. Moving x along itself changes nothing, since the
    norm divides it away, so the true dx is orthogonal to x. The wrong dx makes the rows of x grow
    or shrink without any effect on the loss.
    """
    x, w, dy = draw(3, 16), draw(16, seed=1), draw(3, 16, seed=2)
    r = run("rmsnorm.forward", x=x, w=w, eps=0.0).r
    dx = run("rmsnorm.backward", dy=dy, x=x, w=w, r=r).dx
    constant = dy * w * r[:, None]
    assert np.abs((dx * x).sum(1)).max() < 1e-5
    assert np.abs((constant * x).sum(1)).max() > 0.1


# -- softmax


def test_softmax_of_large_scores():
    """What breaks if the largest score is not subtracted first?

    e^100 is beyond float32, so the sum is infinite and the result NaN. Subtracting the largest
    score changes no probability, since e^-top is a factor of every term. Then no exponent is above
    0 and the sum is at least 1.
    """
    x = np.float32([[100, 99, 0]])
    with np.errstate(all="ignore"):
        naive = np.exp(x) / np.exp(x).sum()
    y = run("softmax.forward", x=x).y
    assert np.isnan(naive).any()
    assert np.abs(y - exact("softmax.forward", x=x).y).max() < 1e-6


def test_softmax_of_a_masked_score():
    """What becomes of a score of minus infinity?

    Its probability is e^-infinity = 0, exactly, and its gradient is 0, since dx has the factor y.
    So a mask needs no code of its own in the backward. A large negative number in its place, such
    as -1e4, would do as well, as long as no real score is as low.
    """
    x, dy = draw(2, 5), draw(2, 5, seed=1)
    x[:, 3] = -np.inf
    y = run("softmax.forward", x=x).y
    dx = run("softmax.backward", dy=dy, y=y).dx
    assert (y[:, 3] == 0).all() and (dx[:, 3] == 0).all()
    assert np.allclose(y.sum(1), 1) and np.abs(dx[:, :3]).min() > 0


def test_softmax_gradient_adds_up_to_zero():
    """What breaks if the sum is left out of the gradient, dx = y dy?

    Adding the same number to all scores changes no probability, so the elements of dx must add up
    to 0. Those of y dy do not: it moves all scores of a row up or down together, which does
    nothing, and misses that one probability grows only if the others shrink.
    """
    x, dy = draw(3, 6), draw(3, 6, seed=1)
    y = run("softmax.forward", x=x).y
    dx = run("softmax.backward", dy=dy, y=y).dx
    assert np.abs(dx.sum(1)).max() < 1e-6
    assert np.abs((y * dy).sum(1)).max() > 0.1


# -- rope


def rotated(x, position, **more):
    """Return one head of 8 channels at a position."""
    frequency = 10000.0 ** (-np.arange(4) / 4)
    inputs = {"x": x.reshape(1, 1, 8), "positions": np.array([position]), "R": 8, **more}
    return run("rope.forward", inverse_frequency=frequency, **inputs).y.ravel()


def test_rope_scores_depend_on_the_distance():
    """What does a score know about the positions of its query and key?

    Their distance alone. Rotating q by 5 angles and k by 3 gives the same product as 105 and 103:
    the common rotation cancels. So a model that learned from short texts finds the same scores
    between neighbours anywhere in a long one.
    """
    q, k = draw(8), draw(8, seed=1)
    near, far = rotated(q, 5) @ rotated(k, 3), rotated(q, 105) @ rotated(k, 103)
    assert abs(near - far) < 1e-4
    assert abs(near - rotated(q, 5) @ rotated(k, 4)) > 0.01


def test_rope_angle_at_a_far_position():
    """What breaks if the angle is a float32?

    Position times frequency is rounded to 24 bits. At position 1000003 that is off by up to 0.004
    radians, which turns each pair of channels too far. Scores of distant rows then depend on more
    than their distance. The kernel computes the angle in double and reduces it there.
    """
    x, frequency = draw(8), np.float32(10000) ** (-np.arange(4, dtype=np.float32) / 4)
    inputs = {"x": x.reshape(1, 1, 8), "positions": [1000003], "R": 8}
    inputs["inverse_frequency"] = frequency
    y, right = run("rope.forward", **inputs).y.ravel(), exact("rope.forward", **inputs).y.ravel()
    angle = np.float32(1000003) * frequency
    true = 1000003.0 * frequency.astype(np.float64)
    assert np.abs(y - right).max() < 1e-5
    assert np.abs(angle - true).max() > 1e-3


def test_rope_pairs_of_another_format():
    """What breaks if a file's channels are paired in the wrong way?

    Hugging Face's Llama pairs channel i with i + D/2, GGUF's pairs 2i with 2i + 1. With the wrong
    pairs each rotation mixes channels that do not belong together, and the model writes nonsense,
    although all shapes fit. The two are the same function of channels in another order.
    """
    x, order = draw(8), np.array([0, 4, 1, 5, 2, 6, 3, 7])
    split, inter = rotated(x, 7), rotated(x, 7, interleaved=1)
    assert np.abs(split - inter).max() > 0.1
    assert np.allclose(rotated(x[order], 7, interleaved=1), split[order], atol=1e-6)


# -- rounding


def test_rounding_has_no_slope():
    """What breaks if the true gradient of rounding is used?

    Training stops. Rounding is a staircase: flat almost everywhere, so its slope is 0 and no weight
    would ever move. The gradient of the rounded weight is taken for that of the weight instead
    ("straight through"), as if the staircase were its diagonal.
    """
    x = draw(100)
    y = run("rounding.forward", x=x, brain=1).y
    moved = run("rounding.forward", x=x * np.float32(1 + 1e-5), brain=1).y
    assert (y == moved).mean() > 0.95
    assert np.abs(y - x).max() > 0


def test_rounding_ties_go_to_the_even_neighbour():
    """What breaks if the lower bits are cut off instead of rounded?

    Every number moves toward 0, by half a step on average. In a sum of thousands of products these
    errors have one sign and add up. Rounding to the nearest, ties to even, has no preferred side.
    """
    x = np.abs(draw(4096))
    y = run("rounding.forward", x=x, brain=1).y
    cut = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert abs((y / x - 1).mean()) < 2e-4 < 1e-3 < abs((cut / x - 1).mean())
    ties = np.float32([1 + 2**-8, 1 + 3 * 2**-8])
    assert run("rounding.forward", x=ties, brain=1).y.tolist() == [1, 1 + 2**-6]


def test_rounding_loses_small_steps():
    """What breaks if only the rounded weights are kept?

    A step of 1e-3 from 1 is smaller than half the distance to the next bfloat16, so it is rounded
    away, again and again. The weights stay where they are. So a step updates float32 weights, and
    only the products see the rounded ones.
    """
    kept, rounded = np.float32([1]), np.float32([1])
    for _ in range(8):
        kept = kept - np.float32(1e-3)
        rounded = run("rounding.forward", x=rounded - np.float32(1e-3), brain=1).y
    assert rounded[0] == 1
    assert run("rounding.forward", x=kept, brain=1).y[0] < 1


# -- dropout


def dropped(x, step=1, active=1, p=0.25):
    """Return x with some elements dropped."""
    return run("dropout.forward", x=x, control=np.array([step, active]), p=p, seed=3, site=2).y


def test_dropout_without_its_factor():
    """What breaks without the factor 1 / (1 - p)?

    The mean of what comes out shrinks by 1 - p in training, and not in an evaluation. The layers
    behind it would see smaller numbers while they learn than when they are used. With the factor
    the mean is the same.
    """
    y = dropped(np.ones(40000, np.float32))
    assert abs(y.mean() - 1) < 0.02
    assert abs((y > 0).mean() - 0.75) < 0.02


def test_dropout_backward_draws_the_same_mask():
    """What breaks if the backward draws another mask?

    Gradients reach elements that were dropped, and miss some that were not: they belong to another
    network than the one that made the loss. Here the mask is a function of seed, step, site and
    element. So the backward finds it again without having stored it.
    """
    x, dy = draw(1000), draw(1000, seed=1)
    forward, backward, other = dropped(x) == 0, dropped(dy) == 0, dropped(dy, step=2) == 0
    assert np.array_equal(forward, backward)
    assert (forward != other).mean() > 0.2


def test_dropout_in_an_evaluation():
    """What breaks if dropout stays active in an evaluation?

    The loss becomes noisy and larger, and the same text gives another loss each time. Where
    `active` is 0 the kernel copies x, bit for bit, and the program need not be compiled again.
    """
    x = draw(1000)
    assert np.array_equal(dropped(x, active=0), x)
    assert not np.array_equal(dropped(x), x)


# -- gatednorm


def test_gatednorm_undoes_the_size_of_a_gate():
    """Why does it matter that the gate is before the norm?

    A gate behind the norm makes a whole row smaller. Before it, the norm takes the size back: only
    how channels differ is left. A gate that is the same for all channels does nothing.
    """
    x, w = draw(3, 8), np.ones((1, 8), np.float32)
    small, large = (
        run("gatednorm.forward", x=x, z=np.full_like(x, z), w=w, eps=1e-12).y for z in (1, 20)
    )
    assert np.allclose(small, large, rtol=1e-4)


def test_gatednorm_of_a_closed_gate():
    """What comes out of a group whose gate is closed?

    silu(z) of a z far below 0 is almost 0, and so is h. Then eps decides: h / sqrt(eps) is still
    almost 0. Without eps the norm would make rounding errors as large as anything else.
    """
    x, w = draw(2, 8), np.ones((1, 8), np.float32)
    y = run("gatednorm.forward", x=x, z=np.full_like(x, -40), w=w, eps=1e-5).y
    assert np.abs(y).max() < 1e-12


def test_gatednorm_of_groups():
    """What do groups change?

    Each group has a mean square of its own. An outlier in one group makes the other channels of
    its group small, and leaves those of other groups as they are.
    """
    x, z, w = draw(2, 8), draw(2, 8, seed=1), np.ones((2, 4), np.float32)
    before = run("gatednorm.forward", x=x, z=z, w=w).y
    x[:, 0] = 1000
    after = run("gatednorm.forward", x=x, z=z, w=w).y
    assert np.array_equal(before[:, 4:], after[:, 4:])
    assert (np.abs(after[:, 1:4]) < 0.1 * np.abs(before[:, 1:4])).all()


# -- gaussian_topk


def test_gaussian_topk_lets_a_share_through():
    """How many gates of a row are left?

    If the row is Gaussian, 5 of 100 for z = 1.645. Other rows have other shares: of a row that is
    mostly one number and has a few large ones, these few are left.
    """
    y = run("gaussian_topk.forward", x=draw(50, 1000), z=1.645).y
    assert 0.04 < (y > 0).mean() < 0.06
    odd = np.zeros((1, 1000), np.float32)
    odd[0, :3] = 9
    assert (run("gaussian_topk.forward", x=odd, z=1.645).y > 0).sum() == 3


def test_gaussian_topk_teaches_gates_below_the_cutoff():
    """What breaks if the gradient stops at the cutoff, as that of a ReLU does?

    The mean and the standard deviation belong to all gates of the row. A gate below the cutoff
    raises or lowers it, and with it every gate above. A rule without this part would be wrong by
    as much as the share that is let through.
    """
    x, dy = draw(1, 200), np.ones((1, 200), np.float32)
    ahead = run("gaussian_topk.forward", x=x, z=0.5)
    dx = run("gaussian_topk.backward", dy=dy, x=x, mean=ahead.mean, dev=ahead.dev, z=0.5).dx
    assert (dx[ahead.y == 0] != 0).all()
    moved = x.copy()
    at = int((ahead.y == 0).argmax())
    moved[0, at] += 0.01
    change = (
        exact("gaussian_topk.forward", x=moved, z=0.5).y
        - exact("gaussian_topk.forward", x=x, z=0.5).y
    )
    assert abs(change.sum() / 0.01 - dx[0, at]) < 0.02


def test_gaussian_topk_of_equal_gates():
    """What happens to a row whose numbers are all the same?

    Its standard deviation is 0, by which the slope of the cutoff would be divided. Nothing exceeds
    the cutoff, so y is 0, and the gradient, too.
    """
    x = np.full((2, 8), 3, np.float32)
    ahead = run("gaussian_topk.forward", x=x, z=1.0)
    back = {"mean": ahead.mean, "dev": ahead.dev, "z": 1.0}
    assert not ahead.y.any()
    assert not run("gaussian_topk.backward", dy=draw(2, 8), x=x, **back).dx.any()


# -- altup


def test_altup_corrects_the_first_stream_to_what_was_computed():
    """What is the first stream behind a block?

    If its factor is 0, exactly what the block computed: p_0 + (a - p_0). The prediction of this
    stream then matters only as the input of attention and MLP, as in other models.
    """
    p, a = draw(3, 4, 8), draw(3, 8, seed=1)
    y = run("altup.correct", p=p, a=a, w=np.zeros((3, 4), np.float32)).y
    np.testing.assert_allclose(y[:, 0], a, rtol=0, atol=1e-6)
    np.testing.assert_allclose(y[:, 1:] - p[:, 1:], np.stack([a - p[:, 0]] * 3, 1), atol=1e-6)


def test_altup_without_a_prediction_is_a_copy():
    """What does the + x_i of the prediction do?

    Weights of 0 predict that no stream changes. Without it a new model, whose router gives small
    numbers, would begin with streams near 0.
    """
    x = draw(2, 4, 8)
    assert np.array_equal(run("altup.predict", x=x, w=np.zeros((2, 16), np.float32)).y, x)


def test_altup_rescales_to_the_same_length():
    """What does the length of a further stream depend on?

    On the first stream alone. Ten times the matrix that makes it gives the same numbers, and its
    gradient has no part along the stream. Under the floor that ends: a stream of next to nothing is
    not made large.
    """
    z, x, dy = draw(2, 8), draw(2, 8, seed=1), draw(2, 8, seed=2)
    y = run("altup.rescale", z=z, x=x).y
    np.testing.assert_allclose(run("altup.rescale", z=10 * z, x=x).y, y, rtol=1e-6)
    np.testing.assert_allclose((y**2).mean(1), (x**2).mean(1), rtol=1e-6)
    assert (np.abs((run("altup.rescale_backward", dy=dy, z=z, x=x).dz * z).sum(1)) < 1e-5).all()
    assert (np.abs(run("altup.rescale", z=1e-6 * z, x=x).y) < 1e-2).all()


# -- sums


def test_sums_of_many_small_numbers():
    """What breaks if a million numbers are added in float32, one after the other?

    The sum grows until a new number is less than half of its last digit, and stops: to 2^24, no 1
    can be added. The kernel adds in doubles, and rounds once.
    """
    x = np.ones((1, 4097, 1), np.float32)
    x[0, 0] = 1 << 24
    assert run("sums.forward", x=x).y.item() == (1 << 24) + 4096
    assert np.float32(1 << 24) + np.float32(1) == 1 << 24


def test_sums_do_not_depend_on_the_threads():
    """What breaks if each thread adds its own share, and the shares are added at the end?

    The shares are others with another number of threads, and so are the last bits: a run could not
    be repeated on another machine. Here a thread has whole sums, each in one order.
    """
    x = draw(3, 4001, 70)
    one = run("sums.forward", x=x).y
    assert all(run("sums.forward", x=x, n_threads=n).y.tobytes() == one.tobytes() for n in (2, 5))


def test_sums_and_copies_are_each_others_gradient():
    """What is the gradient of a tensor that was repeated?

    The sum of the gradients of its copies. And that of a sum is a copy for each summand. So the two
    kernels are each other's backward: <sum x, dy> = <x, copies of dy>.
    """
    x, dy = draw(3, 5, 4), draw(3, 4, seed=1)
    y = run("sums.forward", x=x, alpha=0.5).y
    dx = run("sums.expand", x=dy, N=5, alpha=0.5).y
    assert abs((y * dy).sum() - (x * dx).sum()) < 1e-4


# -- transpose


def test_transpose_twice():
    """What is the gradient of a transposed matrix?

    The transposed gradient: every number goes back to where it came from. Two swaps of the same
    axes are a copy.
    """
    x = draw(2, 5, 7, 3)
    assert np.array_equal(run("transpose.forward", x=run("transpose.forward", x=x).y).y, x)


def test_transpose_is_a_copy():
    """Why does transpose copy, when NumPy's only changes strides?

    Kernels take rows side by side, so that threads cut them anywhere. A tensor is a place and a
    shape, without strides. reshape needs no copy: the order of the numbers stays.
    """
    x = draw(1, 3, 4, 1)
    y = run("transpose.forward", x=x).y
    assert y.flags.c_contiguous and not np.shares_memory(x, y)
    assert x[0, ..., 0].T.strides != y[0, ..., 0].strides


def test_transpose_reads_whole_lines():
    """What breaks if y is written row by row?

    No number, but time. Each number of a row of y is in another row of x, so each fetches a line of
    64 bytes for 4 of them. The kernel writes 16 rows of y at once, and uses up a line of x.
    """
    x = draw(1, 33, 40, 1)  # two whole groups of 16 rows, and a rest
    assert np.array_equal(run("transpose.forward", x=x).y, x.swapaxes(1, 2))
