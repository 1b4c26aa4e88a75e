"""What breaks if ...? Questions about losses and the update, each with its answer and a test of it.

The first line of a docstring is the question, the rest the answer: docs/kernel_pages.py shows them.
"""

import numpy as np
from ask import draw, exact, run

import toynn._kernels as kernels

# -- cross_entropy


def test_cross_entropy_of_large_logits():
    """What breaks if the loss is lse minus the label's logit?

    With logits near 10000 both have no digits left for a fraction: float32 numbers there are 0.001
    apart. The kernel adds the logarithm of the sum to top - logit, both of which are small.
    """
    logits = np.float32([[10000, 10001, 9999.5]])
    loss = run("cross_entropy.forward", logits=logits, labels=[1]).loss[0]
    true = exact("cross_entropy.forward", logits=logits, labels=[1]).loss
    lse = np.float32(10001) + np.log(np.exp(logits - 10001).sum())
    assert abs(loss - true) < 1e-6 < 1e-4 < abs(np.float32(lse) - logits[0, 1] - true)


def test_cross_entropy_gradient_pushes_one_logit_up():
    """Which logits rise in a step, and which fall?

    The label's rises, all others fall, each by its probability. Their changes add up to 0, since
    probabilities add up to 1. A row that is right and sure gets nearly no gradient.
    """
    logits, labels = draw(4, 6), np.array([5, 0, 2, 2])
    ahead = run("cross_entropy.forward", logits=logits, labels=labels)
    inputs = {"dloss": np.ones(1), "logits": logits, "labels": labels}
    back = run("cross_entropy.backward", **inputs, lse=ahead.lse, rows=ahead.rows).dlogits
    assert np.array_equal(back < 0, np.eye(6)[labels] == 1)
    assert np.abs(back.sum(1)).max() < 1e-6


def test_cross_entropy_of_rows_without_a_label():
    """What breaks if rows without a label count as rows?

    The loss is divided by too many rows. The more padding a batch has, the smaller are its loss and
    its gradients, so batches of short texts would teach less. Rows with the label -100 count
    neither above nor below.
    """
    logits = draw(4, 6)
    some = run("cross_entropy.forward", logits=logits, labels=[1, -100, -100, 3])
    two = run("cross_entropy.forward", logits=logits[[0, 3]], labels=[1, 3])
    assert some.rows[0] == 2 and np.array_equal(some.loss, two.loss)


# -- chunked_cross_entropy


def test_chunked_cross_entropy_of_any_chunks():
    """What breaks if the rows are cut in other places?

    Nothing, to the bit. The loss and gradient of a row depend on its own logits alone, and on one
    number of all rows: how many have a label.
    """
    logits, labels = draw(6, 9), np.array([1, 3, -100, 8, 0, 2])
    inputs = {"dloss": np.ones(1), "rows": np.array([5.0])}
    kernel = "chunked_cross_entropy.backward"
    whole = run(kernel, logits=logits, labels=labels, **inputs)
    parts = [
        run(kernel, logits=logits[p], labels=labels[p], **inputs) for p in (np.s_[:2], np.s_[2:])
    ]
    assert np.array_equal(whole.dlogits, np.concatenate([part.dlogits for part in parts]))
    assert np.array_equal(whole.losses, np.concatenate([part.losses for part in parts]))


def test_chunked_cross_entropy_counts_all_rows():
    """What breaks if each chunk divides by its own rows?

    The loss becomes a mean of means. A chunk of one labelled row then counts as much as one of 500,
    so the gradient is another one whenever labels are not spread evenly. So `count` goes through
    all labels first.
    """
    logits, labels = draw(4, 5), np.array([1, 0, -100, 2])
    rows = run("chunked_cross_entropy.count", labels=labels, V=5).rows
    losses = run("chunked_cross_entropy.forward", logits=logits, labels=labels).losses
    loss = run("chunked_cross_entropy.mean", losses=losses, rows=rows).loss
    assert rows[0] == 3
    assert np.allclose(loss, run("cross_entropy.forward", logits=logits, labels=labels).loss)
    assert not np.isclose((losses[:2].mean() + losses[3]) / 2, loss[0])


def test_chunked_cross_entropy_overwrites_the_logits():
    """What breaks if the gradient overwrites the logits?

    Nothing, if the loss was taken from them before: backward computes both while a row is in cache.
    So a chunk needs one array, not two. The losses have the bits of the forward.
    """
    logits, labels = draw(3, 7), np.array([6, 0, 3])
    inputs = {"dloss": np.ones(1), "labels": labels, "rows": np.array([3.0])}
    apart = run("chunked_cross_entropy.backward", logits=logits, **inputs)
    ahead = run("chunked_cross_entropy.forward", logits=logits, labels=labels)
    assert np.array_equal(apart.losses, ahead.losses)
    sure = np.exp(logits - logits.max(1, keepdims=True))
    right = (sure / sure.sum(1, keepdims=True) - np.eye(7)[labels]) / 3
    assert np.abs(apart.dlogits - right).max() < 1e-6


# -- distillation


def taught(logits, teacher, K, **more):
    """Run distillation for the teacher's K most likely tokens; the labels count nothing."""
    log_p = teacher - np.log(np.exp(teacher).sum(1, keepdims=True))
    ids = np.argsort(-log_p, axis=1)[:, :K]
    rest = np.exp(log_p)
    np.put_along_axis(rest, ids, 0, axis=1)
    with np.errstate(divide="ignore"):
        log_rest = np.log(rest.sum(1))
    arrays = {"log_p": np.take_along_axis(log_p, ids, 1), "log_rest": log_rest}
    inputs = {"dloss": np.ones(1), "rows": np.ones(1), "weight": np.ones(1)} | more
    labels = np.zeros(len(logits), np.int32)
    call = run if logits.dtype == np.float32 else exact
    return call("distillation.backward", logits=logits, labels=labels, ids=ids, **arrays, **inputs)


def test_distillation_without_the_rest():
    """What breaks if the tokens that the teacher does not name are left out?

    Nothing holds the student back from giving them probability. Its named tokens lose it in equal
    parts, and the divergence of the named tokens alone even falls below 0 for a student that
    has more on them than the teacher. With the rest as one more outcome, it is 0 only where p = q.
    """
    teacher = np.float32([[2.0, 1.0, 0.0, 0.0]])
    surer = teacher + np.float32([[1.0, 1.0, 0.0, 0.0]])
    assert taught(surer, teacher, 2).losses[0] > 0.01
    p, q = (np.exp(x - np.log(np.exp(x).sum())) for x in (teacher[0], surer[0]))
    assert (p * np.log(p / q))[:2].sum() < 0
    assert abs(taught(teacher, teacher, 2).losses[0]) < 1e-6


def test_distillation_of_all_tokens_is_the_plain_divergence():
    """How many of the teacher's tokens are enough?

    All of them give the divergence itself; fewer give a lower bound of it, since outcomes that are
    taken together cannot differ. What is lost is how the rest is divided, which is little once
    p_rest is small.
    """
    student, teacher = draw(5, 40).astype(np.float64), 2 * draw(5, 40, seed=1).astype(np.float64)
    losses = [taught(student, teacher, K).losses.mean() for K in (1, 4, 16, 40)]
    assert losses == sorted(losses) and losses[2] > 0.9 * losses[3]
    log_q, log_p = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (student, teacher))
    assert np.isclose(losses[3], (np.exp(log_p) * (log_p - log_q)).sum(1).mean())


def test_distillation_of_a_sure_student():
    """What breaks if the student's rest is 1 minus the sum of its named tokens?

    It is a difference of nearly equal numbers. A student that is sure has a rest of 1e-9, and
    float32 sums near 1 are 6e-8 apart: the rest would be 0, and its logarithm anything. The kernel
    adds the other exponentials themselves.
    """
    student = np.zeros((1, 300), np.float32)
    student[0, :2] = 27, 25
    teacher = student / 2
    got, true = (taught(each, teacher, 2) for each in (student, student.astype(np.float64)))
    named = np.exp(student[0, :2] - 27) / np.exp(student[0] - 27).sum()
    assert np.float32(1) - named.sum() <= 6e-8
    assert np.isclose(got.losses[0], true.losses[0], rtol=1e-5)
    assert np.allclose(got.dlogits, true.dlogits, rtol=1e-4, atol=1e-9)


# -- pooling


def test_pooling_without_bounds():
    """What breaks if the mean of a text runs over its padding?

    Its vector would depend on the longest text of its batch. Here texts lie one after the other,
    and bounds say where each begins; what is behind the last one is not read, not even a NaN.
    """
    x = np.float32([[1, 5], [3, 7], [8, 0], [np.nan, np.nan]])
    assert run("pooling.forward", x=x, bounds=[0, 2, 3]).y.tolist() == [[2, 6], [8, 0]]


def test_pooling_gives_each_row_its_share():
    """How much does one token of a long text learn?

    A mean over n rows has the slope 1 / n, so each row of a text of four gets a quarter of what the
    row of a text of one gets. A sum would push long texts n times as hard.
    """
    back = run("pooling.backward", dy=np.float32([[8], [8]]), bounds=[0, 4, 5], N=6).dx
    assert back.ravel().tolist() == [2, 2, 2, 2, 8, 0]


def test_pooling_has_the_bits_of_a_batch_of_its_own():
    """What breaks if all rows are summed up once, and bounds are differences of running sums?

    A text's digits would be lost behind those of all texts before it, and its vector would depend
    on them. A thread that adds a text's own rows gives the same bits in any batch.
    """
    loud, x = 1e6 * draw(50, 4), draw(9, 4, seed=1)
    alone = run("pooling.forward", x=x, bounds=[0, 9]).y
    packed = run("pooling.forward", x=np.concatenate([loud, x]), bounds=[0, 50, 59]).y
    assert packed[1].tobytes() == alone[0].tobytes()
    running = np.cumsum(np.concatenate([loud, x]), axis=0, dtype=np.float32)
    assert np.abs((running[58] - running[49]) / 9 - alone[0]).max() > 1e-4


# -- token_sums


def test_token_sums_leave_padding_out():
    """What breaks if the sum of a sequence runs over its padding?

    The log probability of a completion would depend on what it was padded with. Here bounds say
    where each part begins and ends, and no other row is read, not even a NaN.
    """
    losses = np.float32([1, 2, 4, np.nan, 8])
    sums = run("token_sums.forward", losses=losses, bounds=[0, 1, 3]).sums
    assert sums.tolist() == [[1, 6]]


def test_token_sums_give_each_token_the_same_gradient():
    """How does a preference loss reach single tokens?

    As one number: each token of a completion gets the same gradient, since a sum has the slope 1
    everywhere. Which token made the completion good or bad, the loss does not know.
    """
    back = run("token_sums.backward", dsums=np.float32([[0, 0.5]]), bounds=[0, 2, 5], N=6).dlosses
    assert back.tolist() == [0, 0, 0.5, 0.5, 0.5, 0]


def test_token_sums_of_an_empty_part():
    """What happens to a sequence without a prompt?

    Its bounds are equal, so the sum is 0 and no token gets a gradient. A mean would be 0 / 0 there.
    """
    sums = run("token_sums.forward", losses=np.float32([3, 5]), bounds=[0, 0, 2]).sums
    assert sums.tolist() == [[0, 8]]


# -- dpo


def dpo(chosen, rejected, references=(0, 0), beta=0.1, smoothing=0.0):
    """Return the loss of one pair, and the gradient of the chosen completion's sum."""
    sums = np.float32([[0, -chosen], [0, -rejected]])
    inputs = {"sums": sums, "reference": np.float32(references), "count": [2]}
    inputs |= {"beta": beta, "smoothing": smoothing}
    back = run("dpo.backward", dloss=np.ones(1), **inputs).dsums
    return run("dpo.forward", **inputs).loss[0], back[0, 1], back[1, 1]


def test_dpo_begins_at_log_2():
    """What is the first loss of a run?

    log 2 = 0.693, whatever the data: at first the model is its own reference, so the margin is 0
    and the choice a coin's. A run that begins elsewhere has another reference than itself.
    """
    loss, *_ = dpo(-40, -55, references=(-40, -55))
    assert abs(loss - np.log(2)) < 1e-6


def test_dpo_without_a_reference():
    """What breaks without the reference?

    The loss would reward what is likely anyway: short completions have fewer factors, so a short
    chosen answer looks better than a long one before anything is learned. The reference takes that
    out: only the change counts.
    """
    short, long = -10, -80
    free, *_ = dpo(short, long)
    held, *_ = dpo(short, long, references=(short, long))
    assert free < 0.01 and abs(held - np.log(2)) < 1e-6


def test_dpo_of_a_pair_that_is_learned():
    """What becomes of the gradient of a pair that the model has learned?

    It fades: its factor is sigmoid(-m), which falls to 0 as the margin m grows. So pairs that are
    still wrong decide the step. With label smoothing the gradient turns round at a large margin,
    which keeps the margin finite.
    """
    wrong, unsure, sure = (abs(dpo(m, 0, beta=1.0)[1]) for m in (-5, 0, 5))
    assert wrong > 0.99 > unsure == 0.5 > sure > 0
    assert sure < 0.01
    assert dpo(5, 0, beta=1.0)[1] > 0 > dpo(5, 0, beta=1.0, smoothing=0.1)[1]


# -- kto


def kto(gain, wanted, kl=0.0, beta=0.1, good=1.0, bad=1.0):
    """Return the loss of a completion that gained so much, and the gradient of its sum."""
    inputs = {"sums": np.float32([[0, -gain]]), "reference": np.zeros(1), "kl": np.float32([kl])}
    inputs |= {"wanted": np.int32([wanted]), "count": [1], "beta": beta, "good": good, "bad": bad}
    loss = run("kto.forward", **inputs).loss[0]
    return loss, run("kto.backward", dloss=np.ones(1), **inputs).dsums[0, 1]


def test_kto_needs_no_pairs():
    """What can be learned from a single completion without a rival?

    Whether it should gain on the reference, or lose. A wanted one gets a positive gradient of its
    sum of losses, so its losses fall. An unwanted one gets the same with the other sign.
    """
    assert kto(0, 1)[1] == -kto(0, 0)[1] > 0
    assert kto(0, 1)[0] == kto(0, 0)[0] == 0.5


def test_kto_saturates_on_both_sides():
    """What becomes of the gradient far from the reference?

    It fades on both sides, unlike DPO's: a completion that is hopeless is given up, just as one
    that is learned. So a few wrong labels do not take over the run.
    """
    middle, far, hopeless = (kto(gain, 1)[1] for gain in (0, 80, -80))
    assert middle > 50 * far > 0 and middle > 50 * hopeless > 0


def test_kto_measures_from_the_kl():
    """What breaks if the term kl is left out?

    If the model has moved away from its reference as a whole, all completions have gained or lost.
    kl says by how much, and only what goes beyond counts. Without it every completion would look
    learned at once.
    """
    moved = 50.0
    assert kto(moved, 1, kl=moved)[0] == 0.5
    assert kto(moved, 1)[0] < 0.01


# -- orpo


def orpo(chosen, rejected, lengths=(4, 4), beta=1.0):
    """Return the loss of one pair, given the sums of log probabilities, and the gradients."""
    bounds = np.cumsum([0, 1, lengths[0], 1, lengths[1]])
    inputs = {"sums": np.float32([[0, -chosen], [0, -rejected]]), "bounds": bounds, "count": [2]}
    back = run("orpo.backward", dloss=np.ones(1), beta=beta, **inputs).dsums
    return run("orpo.forward", beta=beta, **inputs).loss[0], back


def test_orpo_needs_no_reference():
    """What replaces the reference?

    The cross-entropy of the chosen completion, a part of the same loss. It keeps the model a model
    of language. With beta 0 it is all that is left: ordinary fine-tuning on what was chosen.
    """
    plain, back = orpo(-6, -3, beta=0.0)
    assert abs(plain - 6 / 5) < 1e-6  # five rows of the chosen one: its prompt's, too
    assert (back[1] == 0).all() and back[0, 1] > 0


def test_orpo_compares_means():
    """What breaks if sums are compared instead of means over tokens?

    A longer completion would be less likely by its length alone. With means a completion of eight
    tokens and one of four are alike if their tokens are.
    """
    same, other = orpo(-4, -8, lengths=(4, 8), beta=1.0)[0], orpo(-4, -4, beta=1.0)[0]
    assert abs(same - other) < 1e-6
    assert abs(orpo(-4, -8, beta=1.0)[0] - other) > 0.1


def test_orpo_of_a_certain_completion():
    """What breaks if a completion has the probability 1?

    Its odds are 1 / 0. The logarithm of them is infinite, and the gradient NaN. The kernel takes
    the mean log probability as at most -1e-12, so the loss stays finite.
    """
    loss, back = orpo(0.0, -4)
    assert np.isfinite(back).all() and 0 <= loss < 0.01


# -- grad_norm


def norm(g, most=1.0, inverse=1.0):
    """Return the norm, and the factor for AdamW."""
    after = run("grad_norm.forward", g=np.float32(g), control=np.float32([most, inverse]))
    return after.norm[0], after.scale[0]


def test_grad_norm_of_a_gradient_that_is_not_finite():
    """What breaks if a NaN in a gradient goes unnoticed?

    AdamW would write it into a weight and into both moments, where it stays for ever. Here the
    norm shows it, the factor becomes NaN, and AdamW writes nothing. The session names the gradient.
    """
    assert np.isnan(norm([1, np.nan, 2])[1])
    assert np.isnan(norm([1, np.inf, 2])[1])


def test_grad_norm_below_the_limit():
    """Does clipping make small gradients larger?

    No: the factor is at most 1. Above the limit all gradients shrink by the same factor, so their
    direction stays. Clipping each number by itself would turn it.
    """
    assert norm([0.3, 0.4])[1] == 1
    length, scale = norm([30, 40])
    assert length == 50 and abs(scale * length - 1) < 1e-4
    assert norm([30, 40], most=0.0)[1] == 1  # no limit


def test_grad_norm_of_micro_batches():
    """What breaks if gradients of micro-batches are added and not divided?

    The norm grows with their number, so the limit would cut more the more micro-batches there are.
    weight_inverse, 1 over all labelled rows, is a factor of both norm and scale: four micro-batches
    and one large batch give the same step.
    """
    once, four = norm([0.3, 0.4]), norm(4 * np.float32([0.3, 0.4]), inverse=0.25)
    assert np.allclose(once[0], four[0]) and np.allclose(four[1], 0.25)
    assert norm(4 * np.float32([0.3, 0.4]))[1] < 0.7


# -- adamw


def adamw(g, w=1.0, steps=1, scale=1.0, lr=1e-2, decay=0.0, correct=True):
    """Return w, m and v after some steps of one gradient."""
    state = {"w": np.float32([w]), "m": np.zeros(1, np.float32), "v": np.zeros(1, np.float32)}
    for t in range(1, steps + 1):
        corrections = [1 / (1 - 0.9**t), 1 / (1 - 0.999**t)] if correct else [1, 1]
        hp = np.float32([lr, 0.9, 0.999, 1e-8, decay, *corrections])
        after = run("adamw.step", **state, g=np.float32([g]), hp=hp, scale=np.float32([scale]))
        state = vars(after)
    return state


def test_adamw_first_step_without_correction():
    """What breaks without the bias correction?

    m and v begin at 0 and are too small at first, v far more: after one step m is a tenth of the
    gradient and sqrt(v) a thirtieth. So the first step is three times as long as lr, before
    anything is known. The corrections make it lr.
    """
    assert abs(1 - adamw(5.0)["w"][0] - 0.01) < 1e-5
    assert abs(1 - adamw(5.0, correct=False)["w"][0] - 0.01 * 0.1 / np.sqrt(0.001)) < 1e-4


def test_adamw_step_does_not_depend_on_the_size_of_gradients():
    """What changes if all gradients are a thousand times larger?

    Nothing: m grows by a thousand and so does sqrt(v). A loss that is a sum and not a mean gives
    the same steps. So lr alone says how far a weight moves, and gradients say where to.
    """
    small, large = adamw(0.01, steps=5)["w"], adamw(10.0, steps=5)["w"]
    assert np.allclose(small, large, atol=1e-5)


def test_adamw_decay_beside_the_gradient():
    """What breaks if weight decay is added to the gradient?

    v would divide it away: weights with large gradients would hardly decay. Here decay acts on the
    weight itself, by the factor 1 - lr decay, whatever the gradients are. That is the W of AdamW.
    """
    for g in (1e-3, 10.0):
        plain, decayed = adamw(g, w=2.0)["w"], adamw(g, w=2.0, decay=0.1)["w"]
        assert np.allclose(plain - decayed, 2 * 0.01 * 0.1, atol=1e-6)


def test_adamw_of_a_refused_step():
    """What does AdamW write if the factor is NaN?

    Nothing: weight and both moments keep their bits. So a batch with a bad number costs one step,
    and training goes on from where it was.
    """
    g, hp = draw(3), np.float32([0.1, 0.9, 0.999, 1e-8, 0, 1, 1])
    for scale, writes in ((np.nan, False), (1, True)):
        state = [draw(3), draw(3, seed=1), np.abs(draw(3, seed=2))]
        before = [array.copy() for array in state]
        kernels.adamw.step(*state, g, hp, np.float32([scale]))
        changed = [not np.array_equal(a, b) for a, b in zip(state, before, strict=True)]
        assert changed == [writes] * 3


# -- muon


def muon_sizes(rounds, *sizes):
    """Return what the rounds make of singular values: the kernel's mixes, NumPy's products."""
    x = np.diag(np.float32(sizes))
    for _ in range(rounds):
        a = x @ x.T
        p = run("muon.mix", x=a.ravel(), z=(a @ a).ravel(), alpha=-4.775, beta=2.0315).y
        moved = p.reshape(a.shape) @ x
        x = run("muon.mix", x=x.ravel(), z=moved.ravel(), alpha=3.4445, beta=1.0).y.reshape(a.shape)
    return np.diag(x)


def test_muon_rounds_of_small_values():
    """What breaks with two rounds instead of five?

    A round multiplies a small singular value by 3.4. So after two rounds 0.02 is still 0.24, and
    weak directions stay weak. After five, all that began above 0.01 are near 1.
    """
    assert muon_sizes(2, 0.02)[0] < 0.25
    assert (np.abs(muon_sizes(5, 0.02, 0.1, 0.5, 1.0) - 0.9) < 0.25).all()


def test_muon_starts_below_one():
    """What breaks if u is not divided by its norm?

    The polynomial is made for values up to 1. A round makes 34 of 2, and the next 88 million.
    """
    u = np.float32([3.0, 4.0])
    x = run("muon.start", u=u, squares=np.float32([(u * u).sum()])).x
    assert np.allclose(x, u / 5)
    assert 33 < muon_sizes(1, 2.0)[0] < 34 and muon_sizes(2, 2.0)[0] > 8e7


def test_muon_of_a_refused_step():
    """What does Muon write if the factor is NaN?

    u becomes 0, so that the products have numbers to work with. Momentum and weights keep their
    bits, so training goes on from where it was.
    """
    g, hp = draw(3), np.float32([0.1, 0.95, 0, 0, 0, 1, 1])
    m, u, w, nan = draw(3, seed=1), draw(3), draw(3, seed=2), np.float32([np.nan])
    before = m.copy(), w.copy()
    kernels.muon.momentum(m, u, g, hp, nan)
    kernels.muon.step(w, u, hp, nan, factor=1.0)
    assert not u.any() and np.array_equal(m, before[0]) and np.array_equal(w, before[1])
