"""The short form: values in a declaration, a step in one call, against NumPy in float64."""

import numpy as np
import pytest
from interrupting import INTERRUPTED, traced

from toynn import AdamW, Session, ops
from toynn.errors import ConfigError, LifecycleError, NonFiniteError, ShapeError
from toynn.optim import Schedule

CORNERS = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], np.float64)
XOR = [0, 1, 1, 0]
SHAPES = {"w1": (8, 2), "w2": (2, 8)}


def starts():
    draw = np.random.default_rng(7).normal
    return {name: draw(size=shape) for name, shape in SHAPES.items()}


def logits_of(s, w1, w2, x=None):
    x = s.input("x", (4, 2)) if x is None else x
    return ops.linear(s, ops.silu(s, ops.linear(s, x, w1)), w2)


def xor_net(s=None, **how):
    """A session, its weights by name, and the step."""
    s = s or Session()
    weights = {name: s.parameter(name, values) for name, values in starts().items()}
    logits = logits_of(s, *weights.values())
    labels = s.input("labels", (4,), "i32")
    return s, weights, s.minimize(ops.cross_entropy(s, logits, labels), **how)


def gradients_in_float64(w1, w2):
    """The loss and its gradients, by hand."""
    h = CORNERS @ w1.T
    sigmoid = 1 / (1 + np.exp(-h))
    a = h * sigmoid
    z = a @ w2.T
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    loss = -np.log(p[range(4), XOR]).mean()
    dz = (p - np.eye(2)[XOR]) / 4
    dh = dz @ w2 * (sigmoid + a * (1 - sigmoid))
    return loss, {"w1": dh.T @ CORNERS, "w2": dz.T @ a}


def trained_in_float64(steps, rate, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.0):
    """Adam as published, with AdamW's decay, bias correction from t = 1; losses, w, gradients."""
    w, losses = starts(), []
    m = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    v = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for t in range(1, steps + 1):
        loss, g = gradients_in_float64(**w)
        losses.append(loss)
        lr = rate(t - 1)
        for name in SHAPES:
            m[name] = beta1 * m[name] + (1 - beta1) * g[name]
            v[name] = beta2 * v[name] + (1 - beta2) * g[name] ** 2
            corrected = m[name] / (1 - beta1**t), v[name] / (1 - beta2**t)
            moved = lr * corrected[0] / (np.sqrt(corrected[1]) + eps)
            w[name] = w[name] * (1 - lr * decay) - moved
    return losses, w, g


@pytest.mark.parametrize(
    ("how", "rate", "named"),
    [
        ({"lr": 1e-2}, lambda k: 1e-2, {}),
        ({}, lambda k: 1e-3, {}),
        ({"lr": lambda k: 0.02 / (k + 1)}, lambda k: 0.02 / (k + 1), {}),
        (
            {"lr": 1e-2, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3},
            lambda k: 1e-2,
            {"decay": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3},
        ),
    ],
)
def test_steps_are_those_of_float64(how, rate, named):
    s, weights, step = xor_net(**how)
    losses = [step(x=CORNERS, labels=XOR) for _ in range(30)]
    expected, w, g = trained_in_float64(30, rate, **named)
    assert losses == pytest.approx(expected, rel=2e-5)
    assert step.step_index == 30 and isinstance(losses[0], float)
    for name, weight in weights.items():
        np.testing.assert_allclose(s.download(weight), w[name], rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(s.download(s.grad(weight)), g[name], rtol=2e-3, atol=2e-5)


def test_the_long_form_has_the_same_bits():
    _, _, step = xor_net(lr=Schedule("cosine", 1e-2, 20, 5))
    losses = [step(x=CORNERS, labels=XOR) for _ in range(20)]
    s, adamw, schedule = Session(), AdamW.for_lora(), Schedule("cosine", 1e-2, 20, 5)
    weights = [s.parameter(name, shape) for name, shape in SHAPES.items()]
    logits = logits_of(s, *weights)
    labels, hp = s.input("labels", (4,), "i32"), s.input("hp", (7,))
    s.set_loss(ops.cross_entropy(s, logits, labels))
    s.build_backward()
    for w in weights:
        s.opt_step_adamw(w, s.grad(w), hp)
    s.finalize_weights()
    s.realize()
    for w in weights:
        s.upload(w, starts()[w.name])
    s.upload(s.tape.inputs["x"], CORNERS)
    s.upload(labels, XOR)
    for k in range(20):
        adamw.lr = schedule(k)
        s.upload(hp, adamw.hp_for_step(k))
        s.run()
        assert float(s.download(s.tape.loss)) == losses[k]


def test_it_goes_on_from_where_the_long_form_is():
    """What was called already is not called again; further tapes and resets are as ever."""
    s = Session()
    w = s.parameter("w", np.ones((2, 2)))
    x, labels = s.input("x", (4, 2)), s.input("labels", (4,), "i32")
    s.finalize_weights()
    assert s.download(w).tolist() == [[1, 1], [1, 1]]
    loss = ops.cross_entropy(s, ops.linear(s, x, w), labels)
    s.set_loss(loss)
    s.build_backward()
    step = s.minimize(loss, lr=0.1)
    first = [step(x=CORNERS, labels=[0, 0, 1, 1]) for _ in range(5)]
    assert first[-1] < first[0]
    s.upload(w, np.ones((2, 2)))
    s.reset(moments=True)
    step.step_index = 0
    assert [step(x=CORNERS, labels=[0, 0, 1, 1]) for _ in range(5)] == first
    with pytest.raises(LifecycleError, match=r"minimize\(\) after realize\(\)"):
        s.minimize(loss)


def test_inputs_are_called_by_their_names():
    s, _, step = xor_net()
    with pytest.raises(ConfigError, match=r"no input is called 'y'; the inputs are: x, labels"):
        step(y=CORNERS, x=CORNERS, labels=XOR)
    with pytest.raises(ConfigError, match="each input; missing: labels"):
        step(x=CORNERS)
    with pytest.raises(ConfigError, match="missing: x, labels"):
        step()
    with pytest.raises(ConfigError, match=r"no input is called 'adamw.hp'"):
        step(x=CORNERS, labels=XOR, **{"adamw.hp": np.zeros(7)})
    with pytest.raises(ShapeError, match=r"upload x: expected \(4, 2\); got \(3, 2\)"):
        step(x=CORNERS[:3], labels=XOR)
    with pytest.raises(ShapeError, match="upload labels: expected i32; got float64"):
        step(x=CORNERS, labels=np.zeros(4))
    assert step.step_index == 0, "what is refused is no step"
    assert repr(step) == "Step(0 steps taken; inputs: x (4, 2), labels (4,))"
    assert step(x=CORNERS, labels=XOR) == xor_net()[2](labels=XOR, x=CORNERS)
    s.close()
    with pytest.raises(LifecycleError, match="closed"):
        step(x=CORNERS, labels=XOR)


def test_an_input_may_have_any_name():
    s = Session()
    w, given = s.parameter("w", np.ones((2, 2))), s.input("self", (4, 2))
    labels = s.input("the labels", (4,), "i32")
    step = s.minimize(ops.cross_entropy(s, ops.linear(s, given, w), labels))
    assert step(self=CORNERS, **{"the labels": XOR}) == pytest.approx(np.log(2))


def test_what_cannot_be_minimized():
    for wrong, message in (
        ({"lr": -1.0}, "lr must be"),
        ({"lr": float("nan")}, "lr must be"),
        ({"beta3": 0.1}, "expected lr, beta1, beta2, eps, weight_decay; got 'beta3'"),
        ({"mode": 1}, "got 'mode'"),
        ({"beta1": 1.0}, "beta1"),
    ):
        with pytest.raises(ConfigError, match=message):
            xor_net(**wrong)
    s = Session()
    x, labels = s.input("x", (4, 2)), s.input("labels", (4,), "i32")
    logits = ops.linear(s, x, s.constant("c", np.ones((2, 2))))
    with pytest.raises(ShapeError, match="the loss is a scalar"):
        s.minimize(logits)
    with pytest.raises(ConfigError, match=r"depends on no parameter\(\)"):
        s.minimize(ops.cross_entropy(s, logits, labels))


def test_the_mode_is_guarded_from_step_to_step():
    _, _, step = xor_net()
    step(x=CORNERS, labels=XOR)
    step.adamw.mode = AdamW.MODE_UNSET
    with pytest.raises(ConfigError, match="mode is unset"):
        step(x=CORNERS, labels=XOR)
    step.adamw.mode = AdamW.MODE_FROM_SCRATCH
    with pytest.raises(ConfigError, match="bias_correct is True"):
        step(x=CORNERS, labels=XOR)
    step.adamw.mode, step.adamw.lr = AdamW.MODE_LORA, 0.5
    before = step(x=CORNERS, labels=XOR)
    assert step.step_index == 2 and step(x=CORNERS, labels=XOR) != before


def test_a_step_without_a_finite_gradient_does_not_count():
    s, weights, step = xor_net(lr=1e-2)
    step(x=CORNERS, labels=XOR)
    w1 = s.download(weights["w1"])
    with pytest.raises(NonFiniteError, match="first bad gradient: w"):
        step(x=CORNERS * np.inf, labels=XOR)
    assert step.step_index == 1 and (s.download(weights["w1"]) == w1).all()
    expected, _, _ = trained_in_float64(2, lambda k: 1e-2)
    assert step(x=CORNERS, labels=XOR) == pytest.approx(expected[1], rel=2e-5)


def test_only_what_the_loss_depends_on_is_trained():
    s = Session()
    spare = s.parameter("spare", np.full(3, 2.0))
    frozen = s.constant("frozen", np.eye(2))
    w, x = s.parameter("w", np.ones((2, 2))), s.input("x", (4, 2))
    y = ops.linear(s, ops.linear(s, x, frozen), w)
    step = s.minimize(ops.cross_entropy(s, y, s.input("labels", (4,), "i32")), lr=0.1)
    step(x=CORNERS, labels=[0, 0, 1, 1])
    assert s.download(spare).tolist() == [2, 2, 2]
    assert s.download(frozen).tolist() == [[1, 0], [0, 1]]
    assert (s.download(w) != 1).any()
    with pytest.raises(ConfigError, match="does not depend on spare"):
        s.grad(spare)


def test_values_are_copied_when_a_weight_is_declared():
    s, values = Session(), np.arange(6, dtype=np.float32).reshape(2, 3)
    w = s.parameter("w", values.T)  # not contiguous
    c = s.constant("c", values)
    ints = s.constant("ints", np.arange(3))
    plain = s.parameter("plain", [2, 3])  # a shape
    values[:] = -1
    assert (w.shape, c.shape, plain.shape) == ((3, 2), (2, 3), (2, 3))
    with pytest.raises(LifecycleError, match="before finalize_weights"):
        s.download(w)
    s.finalize_weights()
    assert s.download(w).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert s.download(c).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert s.download(ints).tolist() == [0, 1, 2]
    with pytest.raises(LifecycleError, match=r"before upload\(plain\)"):
        s.download(plain)
    assert s.changes == 3, "as three uploads"


def test_values_that_were_never_uploaded_go_with_the_session():
    s = Session()
    s.parameter("w", np.ones(3))
    s.close()
    assert not s._first_values


def test_a_weight_without_values_is_uploaded_before_the_first_step():
    s = Session()
    w, x = s.parameter("w", (2, 2)), s.input("x", (4, 2))
    loss = ops.cross_entropy(s, ops.linear(s, x, w), s.input("labels", (4,), "i32"))
    step = s.minimize(loss)
    with pytest.raises(LifecycleError, match=r"before upload\(w\)"):
        step(x=CORNERS, labels=XOR)
    s.upload(w, np.ones((2, 2)))
    assert step(x=CORNERS, labels=XOR) == pytest.approx(np.log(2)) and step.step_index == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([1e39]), r"w: 1e\+39 at \(0,\) exceeds float32"),
        (np.array([1j]), "w: expected f32; got complex128"),
        (np.array(["a"]), "w: expected f32; got <U1"),
        (np.zeros((2, 0)), r"w: every dimension must be a whole number >= 1; got \(2, 0\)"),
        ([[1.0, 2.0]], r"w: every dimension .* got \[\[1.0, 2.0\]\] \(values .* as an array\)"),
        ([0.5, 2], r"w: every dimension .* got \[0.5, 2\]"),
        ([float("inf")], r"w: every dimension .* got \[inf\]"),
        (3, "w: every dimension must be a whole number >= 1; got 3"),
    ],
)
def test_values_that_no_weight_can_have(values, message):
    s = Session()
    for declare in (s.parameter, s.constant):
        with pytest.raises(ShapeError, match=message):
            declare("w", values)
    s.parameter("w", (1,))  # what was refused has left nothing


def test_blocks_are_declared_by_their_shape():
    with pytest.raises(
        ShapeError, match="w: only f32 weights can be declared with values; give the sha"
    ):
        Session().constant("w", np.zeros(34, np.uint8), "q8_0")


def test_an_interrupted_step_is_taken_wholly_or_not_at_all():
    _, _, step = xor_net(lr=0.1)
    losses = [step(x=CORNERS, labels=XOR) for _ in range(3)]
    s, _, step = xor_net(lr=0.1)
    step(x=CORNERS, labels=XOR)  # the feed is compiled
    _, count = traced(lambda: step(x=CORNERS, labels=XOR))
    outcomes = set()
    for at in [*range(1, count - 60, 25), *range(count - 60, count + 1)]:
        s, _, step = xor_net(lr=0.1)
        assert step(x=CORNERS, labels=XOR) == losses[0]
        found, _ = traced(lambda step=step: step(x=CORNERS, labels=XOR), at)
        assert found in (losses[1], INTERRUPTED)
        outcomes.add((step.step_index, found == INTERRUPTED))
        assert step(x=CORNERS, labels=XOR) == losses[step.step_index - 1], at
        s.close()
    assert outcomes == {(1, True), (2, True)}, "some were not taken, and some were, to their end"


def test_an_interrupted_minimize_is_made_wholly_or_not_at_all():
    def net():
        s = Session()
        logits = logits_of(s, *(s.parameter(name, w) for name, w in starts().items()))
        return s, ops.cross_entropy(s, logits, s.input("labels", (4,), "i32"))

    s, loss = net()
    _, count = traced(lambda: s.minimize(loss))
    outcomes = set()
    for at in [*range(1, 40, 3), *range(40, count + 1, 1499), count]:
        s, loss = net()
        before = len(s.tape.nodes)
        _, _ = traced(lambda s=s, loss=loss: s.minimize(loss), at)
        outcomes.add(s.tape.sealed)
        if s.tape.sealed:
            assert s.tape.inputs.keys() == {"x", "labels", "adamw.hp"}
        else:
            assert len(s.tape.nodes) == before and s.tape.loss is None
            assert s.minimize(loss)(x=CORNERS, labels=XOR) > 0
        s.close()
    assert outcomes == {True, False}


def test_what_cannot_be_minimized_leaves_the_tape_as_it_was():
    """Of a loss that depends on no parameter, a name that is taken, and a loss of many values."""
    s = Session()
    x, labels = s.input("x", (4, 2)), s.input("labels", (4,), "i32")
    fixed = ops.cross_entropy(s, ops.linear(s, x, s.constant("c", np.ones((2, 2)))), labels)
    weights = [s.parameter(name, values) for name, values in starts().items()]
    logits = logits_of(s, *weights, x=x)
    loss = ops.cross_entropy(s, logits, labels)

    def state():
        tape = vars(s.tape)
        return {k: v.copy() if hasattr(v, "copy") else v for k, v in tape.items()}

    before = state()
    for wrong, error in ((fixed, "depends on no parameter"), (logits, "the loss is a scalar")):
        with pytest.raises((ConfigError, ShapeError), match=error):
            s.minimize(wrong)
        assert state() == before
    s.input("adamw.hp", (7,))
    taken = state()
    with pytest.raises(ConfigError, match=r"input adamw\.hp: this tape has one already"):
        s.minimize(loss)
    assert state() == taken
    del s.tape.inputs["adamw.hp"]
    step = s.minimize(loss, lr=1e-2)
    other = Session()
    of = [other.parameter(name, values) for name, values in starts().items()]
    plain = logits_of(other, *of)
    whole = other.minimize(
        ops.cross_entropy(other, plain, other.input("labels", (4,), "i32")), lr=1e-2
    )
    for _ in range(3):
        assert step(x=CORNERS, labels=XOR) == whole(x=CORNERS, labels=XOR)


def test_minimize_is_refused_behind_updates_and_leaves_the_tape_as_it_is():
    with Session() as s:
        weights = [s.parameter(name, values) for name, values in starts().items()]
        loss = ops.cross_entropy(s, logits_of(s, *weights), s.input("labels", (4,), "i32"))
        s.set_loss(loss)
        s.build_backward()
        s.opt_step_adamw(weights[0], s.grad(weights[0]), s.input("hp", (7,)))
        before, inputs = len(s.tape.nodes), list(s.tape.inputs)
        with pytest.raises(LifecycleError, match="after opt_step_adamw"):
            s.minimize(loss)
        assert len(s.tape.nodes) == before and list(s.tape.inputs) == inputs
