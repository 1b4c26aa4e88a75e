"""The session: what it refuses lest numbers be wrong, and unusual orders that must work."""

import numpy as np
import pytest
from tiny import HP, C, Tiny

import toynn
from toynn import GPT2Config, GPT2SeqEngine, RecipeOptions, ops
from toynn.errors import ConfigError, LabelError, LifecycleError, ShapeError
from toynn.session import Session

# -- Refusals that keep wrong numbers out ----------------------------------------------------------


def test_settings_must_be_finite():
    tiny = Tiny()
    with pytest.raises(ConfigError, match=r"hp: lr must be a finite number, .*; got nan"):
        tiny.s.upload(tiny.hp, np.full(7, np.nan))
    for norm in (np.nan, 0, -1.0):
        with pytest.raises(ConfigError, match="max_grad_norm"):
            tiny.s.max_grad_norm = norm
    for weight in (0, -1, np.nan, np.inf):
        with pytest.raises(ConfigError, match="weight must be a finite number above 0"):
            tiny.s.run(weight=weight)


def test_names_of_weights_are_unique():
    s = Session()
    s.parameter("w", (2,))
    for again in (s.parameter, s.constant):
        with pytest.raises(ConfigError, match="has a weight of that name already"):
            again("w", (2,))
    with pytest.raises(ConfigError, match="has a weight of that name already"):
        s.mapped("w", np.ones(2, np.float32))


def test_tensors_of_another_tape_or_session_are_refused():
    tiny = Tiny()
    for stranger in (tiny.tokens, tiny.logits):
        with pytest.raises(ConfigError, match="another tape"):
            tiny.s.record(
                "x", lambda stranger=stranger: ops.scale(tiny.s, stranger, 2.0)
            ) if stranger is tiny.logits else tiny.s.record(
                "y", lambda: ops.embedding(tiny.s, tiny.wte, tiny.tokens)
            )
    s, other = Session(), Session()
    x, w = s.input("x", (2, 3)), other.parameter("w", (4, 3))
    with pytest.raises(ConfigError, match="w belongs to another session"):
        ops.linear(s, x, w)


def test_integers_and_floats_are_not_mixed_up():
    s = Session()
    i, x = s.input("i", (2, 4), "i32"), s.input("x", (2, 4))
    p = s.input("p", (2,))
    with pytest.raises(ShapeError, match=r"x must be f32; got i32 \(x is i\)"):
        ops.scale(s, i, 2.0)
    frequencies = s.constant("f", (2,))
    with pytest.raises(ShapeError, match=r"positions must be i32; got f32 \(positions is p\)"):
        ops.rope(s, x, p, frequencies, 1, interleaved=False)
    s.output(ops.scale(s, x, 1.0))
    s.finalize_weights()
    s.realize()
    with pytest.raises(ShapeError, match="do not fit into 32 bits"):
        s.upload(i, np.full((2, 4), 2**32 + 1))


def test_labels_must_be_inputs():
    s = Session()
    logits = s.input("logits", (3, 4))
    with pytest.raises(ConfigError, match="labels must be an input"):
        ops.cross_entropy(s, logits, ops.softmax(s, logits))


@pytest.mark.parametrize("bad", [0.0, 1e-50, np.nan, 1e39])
def test_bad_dense_labels(bad):
    s = Session()
    logits, labels = s.input("logits", (3, 4)), s.input("labels", (3, 4))
    s.set_loss(ops.cross_entropy(s, logits, labels))
    s.finalize_weights()
    s.realize()
    with pytest.raises(LabelError, match="labels: "):
        s.upload(labels, np.full((3, 4), bad))


def test_what_was_never_computed_cannot_be_downloaded():
    tiny = Tiny()
    for tensor in (tiny.loss, tiny.logits, tiny.s.grad(tiny.w)):
        with pytest.raises(LifecycleError, match=r"before run\(\)"):
            tiny.s.download(tensor)
    tiny.s.run("loss")
    tiny.s.download(tiny.loss)
    with pytest.raises(LifecycleError, match=r"before run\(\)"):
        tiny.s.download(tiny.s.grad(tiny.w))


def test_updates_are_of_parameters_by_their_own_gradient_once():
    s = Session()
    w, x, labels = s.parameter("w", (5, 3)), s.input("x", (2, 3)), s.input("labels", (2,), "i32")
    other, hp = s.constant("other", (5, 3)), s.input("hp", (7,))
    s.set_loss(ops.cross_entropy(s, ops.linear(s, x, w), labels))
    s.build_backward()
    with pytest.raises(LifecycleError, match=r"after build_backward\(\)"):
        ops.scale(s, x, 1.0)
    for pair in ((other, s.grad(w)), (w, w)):
        with pytest.raises(ConfigError, match="needs a parameter and its grad"):
            s.opt_step_adamw(*pair, hp)
    s.opt_step_adamw(w, s.grad(w), hp)
    with pytest.raises(ConfigError, match="has its update on this tape already"):
        s.opt_step_adamw(w, s.grad(w), hp)


# -- Orders that must work -------------------------------------------------------------------------


def test_an_evaluation_tape_may_come_before_the_training_tape():
    s = Session()
    w = s.parameter("w", (5, 3))
    s.finalize_weights()
    s.upload(w, np.ones((5, 3)))

    def evaluation():
        x = s.input("x", (2, 3))
        return s.tape, x, s.output(ops.linear(s, x, w))

    tape, x, y = s.record("eval", evaluation)
    s.upload(x, np.ones((2, 3)))
    s.run(tape=tape)
    assert (s.download(y) == 3).all()
    x, labels, hp = s.input("x", (2, 3)), s.input("labels", (2,), "i32"), s.input("hp", (7,))
    s.set_loss(ops.cross_entropy(s, ops.linear(s, x, w), labels))
    s.build_backward()
    s.opt_step_adamw(w, s.grad(w), hp)
    s.realize()
    for tensor, values in ((x, np.eye(2, 3)), (labels, [1, 2]), (hp, HP)):
        s.upload(tensor, values)
    s.run()
    assert s.download(w)[1, 0] > 1 > s.download(w)[0, 0]


def test_a_tape_that_failed_to_record_can_be_recorded_again():
    tiny = Tiny()

    def build(fail):
        y = tiny.s.output(ops.embedding(tiny.s, tiny.wte, tiny.s.input("ids", (2,), "i32")))
        if fail:
            raise MemoryError
        return y

    with pytest.raises(MemoryError):
        tiny.s.record("key", lambda: build(True))
    assert tiny.s.record("key", lambda: build(False)).shape == (2, C)


def test_fewer_threads_than_planned_give_the_same():
    results = []
    for planned in (1, 7):
        toynn.set_num_threads(planned)
        s = Session()
        x, w = s.input("x", (64, 1024)), s.constant("w", (700, 1024))
        y = s.output(ops.linear(s, x, w))
        s.finalize_weights()
        rng = np.random.default_rng(0)
        s.upload(w, rng.standard_normal(w.shape))
        s.realize()
        s.upload(x, rng.standard_normal(x.shape))
        for n_threads in (1, 2, 3):
            toynn.set_num_threads(n_threads)
            s.run()
            results.append(s.download(y).tobytes())
    toynn.set_num_threads(2)
    assert len(set(results)) == 1


def test_micro_batches_where_one_gain_is_computed():
    """A norm whose w is a parameter and whose b is not: one flag must not serve both."""

    def gradient(batches):
        s = Session()
        w, v = s.parameter("w", (4,)), s.parameter("v", (4,))
        x, labels = s.input("x", (3, 4)), s.input("labels", (3,), "i32")
        y = ops.layernorm(s, x, w, ops.scale(s, v, 2.0))
        s.set_loss(ops.cross_entropy(s, y, labels))
        s.build_backward()
        s.finalize_weights()
        s.realize()
        for tensor, values in (
            (w, np.arange(4.0)),
            (v, np.ones(4)),
            (x, np.eye(3, 4)),
            (labels, [0, 1, 2]),
        ):
            s.upload(tensor, values)
        for _ in range(batches):
            s.run("grads")
        return np.concatenate([s.download(s.grad(w)), s.download(s.grad(v))])

    np.testing.assert_allclose(gradient(3), gradient(1), rtol=1e-5, atol=1e-7)


def test_gradients_of_activations_are_means_too():
    def gradient(batches):
        s = Session()
        w, x = s.parameter("w", (4, 3)), s.input("x", (2, 3))
        labels = s.input("labels", (2,), "i32")
        logits = ops.linear(s, x, w)
        doubled = ops.scale(s, logits, 2.0)
        s.set_loss(ops.cross_entropy(s, doubled, labels))
        s.build_backward()
        d_logits = s.grad(logits)
        s.output(d_logits)
        s.finalize_weights()
        s.realize()
        for tensor, values in ((w, np.eye(4, 3)), (x, np.ones((2, 3))), (labels, [0, 1])):
            s.upload(tensor, values)
        s.run("grads", weight=batches)
        return s.download(d_logits)

    np.testing.assert_allclose(gradient(4), gradient(1), rtol=1e-6)


def test_one_tape_is_recorded_at_a_time():
    tiny = Tiny()
    main = tiny.s.tape

    def build():
        with pytest.raises(LifecycleError, match="another tape is being recorded"):
            tiny.s.record("inner", lambda: None)
        return tiny.s.output(ops.embedding(tiny.s, tiny.wte, tiny.s.input("ids", (2,), "i32")))

    tiny.s.record("outer", build)
    assert tiny.s.tape is main


def test_what_a_node_saves_can_be_kept():
    tiny = Tiny(realize=False)
    lse = next(n for n in tiny.s.tape.nodes if n.op.kernel == "cross_entropy.forward").saved[0]
    tiny.s.output(lse)
    tiny.realize()
    tiny.s.run()
    assert np.isfinite(tiny.s.download(lse)).all()


def test_a_tape_without_gradients_leaves_micro_batches_waiting():
    tiny = Tiny()
    s = tiny.s

    def build():
        tokens = s.input("tokens", (3,), "i32")
        return s.tape, tokens, s.output(ops.embedding(s, tiny.wte, tokens))

    tape, tokens, _ = s.record("three", build)
    s.upload(tokens, [1, 2, 3])
    s.run("grads")
    s.run(tape=tape)
    assert s.pending
    s.run()
    assert not s.pending


def test_an_update_divides_by_the_weights_of_its_micro_batches():
    """AdamW's steps hardly depend on the size of gradients: its moments and their norm tell."""
    one, several = Tiny(), Tiny()
    one.s.run()
    several.s.run("grads", weight=3.0)
    several.s.run(weight=1.0)
    assert several.s.grad_norm == pytest.approx(one.s.grad_norm, rel=1e-5)
    for tiny in (one, several):
        tiny.m = next(t for t in tiny.s.tape.nodes[-1].outputs if t.role.value == "moment")
    expected = one.s.download(one.m)
    np.testing.assert_allclose(several.s.download(several.m), expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("huge", [1e39, -1e300])
def test_what_float32_cannot_hold_is_refused(huge):
    """float64 that would turn infinite; infinity itself is what it says."""
    s = Session()
    w = s.parameter("w", (2, 3))
    s.finalize_weights()
    values = np.zeros((2, 3))
    values[1, 2] = huge
    with pytest.raises(ShapeError, match=r"upload w: .* at \(1, 2\) exceeds float32"):
        s.upload(w, values)
    s.upload(w, np.full((2, 3), 3.4e38))
    assert np.isfinite(s.download(w)).all()
    s.upload(w, np.full((2, 3), np.inf))


@pytest.mark.parametrize("n_threads", [0, -1, 1.5, True, "2", 2.0])
def test_a_number_of_threads_is_a_whole_number(n_threads):
    with pytest.raises(ConfigError, match="Session: n_threads must be a whole number, at least 1"):
        Session(n_threads=n_threads)


def test_a_largest_number_of_threads_may_be_any():
    losses = set()
    for n_threads in (1, np.int64(2), 2**31, 2**64):
        tiny = Tiny(n_threads=n_threads)
        tiny.s.run()
        losses.add(float(tiny.s.download(tiny.loss)))
    assert len(losses) == 1


def test_a_session_has_precision_and_threads_of_its_own(monkeypatch):
    """They go before what holds for the process, be that more or less."""
    monkeypatch.setattr(toynn.backends.threads, "_chosen", 2)
    monkeypatch.setattr(toynn.numerics.precision, "_chosen", "high")
    assert [Session(n_threads=n).backend.threads() for n in (None, 1, 3)] == [2, 1, 3]
    automatic = toynn.automatic_precision()[0]
    for given, found in ((None, "high"), ("medium", "medium"), ("auto", automatic)):
        assert Session(matmul_precision=given).matmul_precision == found
    for options in (RecipeOptions(), RecipeOptions(precision="medium", n_threads=1)):
        engine = GPT2SeqEngine()
        config = GPT2Config(vocab=8, d_model=8, n_heads=1, d_ff=8, n_layers=1, context=4)
        engine.declare(config, options)
        own = engine.session.matmul_precision, engine.session.backend.threads()
        assert own == (("high", 2) if options.precision is None else ("medium", 1))
