"""The session: life cycle, uploads, runs, memory, threads, and being freed."""

import gc
import os
import pickle
import threading
import weakref

import numpy as np
import pytest

import toynn
from toynn import ops
from toynn.errors import (
    BackendUnavailable,
    ConfigError,
    LabelError,
    LifecycleError,
    NonFiniteError,
    ShapeError,
)
from toynn.session import Session

V, C, N = 11, 6, 8
HP = np.array([1e-2, 0.9, 0.999, 1e-8, 0.0, 10.0, 1000.0], np.float32)


class Tiny:
    """Embedding, a linear layer and the loss: the smallest real step."""

    def __init__(self, *, frozen=False, realize=True, **session):
        self.rng = np.random.default_rng(3)
        s = self.s = Session(**session)
        self.wte = (s.constant if frozen else s.parameter)("wte", (V, C))
        self.w = s.parameter("w", (V, C))
        self.tokens, self.labels = s.input("tokens", (N,), "i32"), s.input("labels", (N,), "i32")
        self.hp = s.input("hp", (7,))
        x = ops.embedding(s, self.wte, self.tokens)
        self.logits = s.output(ops.linear(s, x, self.w))
        self.loss = ops.cross_entropy(s, self.logits, self.labels)
        s.set_loss(self.loss)
        s.build_backward()
        for weight in (self.w,) if frozen else (self.wte, self.w):
            s.opt_step_adamw(weight, s.grad(weight), self.hp)
        if realize:
            self.realize()

    def realize(self):
        s = self.s
        s.finalize_weights()
        for weight in (self.wte, self.w):
            s.upload(weight, self.rng.standard_normal(weight.shape))
        s.realize()
        s.upload(self.hp, HP)
        self.feed()

    def feed(self):
        self.s.upload(self.tokens, self.rng.integers(0, V, N))
        self.s.upload(self.labels, self.rng.integers(0, V, N))

    def state(self):
        return [self.s.download(t) for t in (self.wte, self.w)]


# -- Life cycle ------------------------------------------------------------------------------------


def test_each_wrong_order_names_the_missing_call():
    s = Session()
    w = s.parameter("w", (2, 3))
    x = s.input("x", (4, 3))
    wrong = {
        "finalize_weights": lambda: s.upload(w, np.zeros((2, 3))),
        "set_loss": s.build_backward,
        "build_backward": lambda: s.grad(w),
        "realize": s.run,
    }
    for missing, call in wrong.items():
        with pytest.raises(LifecycleError, match=missing):
            call()
    with pytest.raises(LifecycleError, match="build_backward"):
        s.opt_step_adamw(w, w, x)
    with pytest.raises(LifecycleError, match="finalize_weights"):
        ops.linear(s, x, w)
        s.realize()
    for call in (lambda: s.reset(moments=True), s.profile, lambda: s.upload(x, np.zeros((4, 3)))):
        with pytest.raises(LifecycleError, match="realize"):
            call()
    s.finalize_weights()
    for call in (s.finalize_weights, lambda: s.parameter("v", (1,))):
        with pytest.raises(LifecycleError, match="finalize_weights"):
            call()
    with pytest.raises(LifecycleError, match="empty tape"):
        Session().finalize_weights() or _finalized().realize()
    s.realize()
    for call in (s.realize, lambda: s.input("y", (1,)), lambda: s.set_loss(x)):
        with pytest.raises(LifecycleError, match=r"after realize\(\)"):
            call()
    with pytest.raises(LifecycleError, match=r"upload\(w\)"):
        s.run()
    s.upload(w, np.zeros((2, 3)))
    with pytest.raises(LifecycleError, match=r"upload\(x\)"):
        s.run()
    s.upload(x, np.zeros((4, 3)))
    s.run()
    with pytest.raises(LifecycleError, match="build_backward"):
        s.run("grads")


def _finalized():
    s = Session()
    s.finalize_weights()
    return s


def test_recording_after_realize_is_refused():
    tiny = Tiny()
    with pytest.raises(LifecycleError, match=r"after realize\(\)"):
        ops.softmax(tiny.s, tiny.logits)


def test_download_of_an_activation_needs_output():
    tiny = Tiny()
    hidden = tiny.s.tape.nodes[0].outputs[0]
    with pytest.raises(LifecycleError, match=r"output\(\)"):
        tiny.s.download(hidden)
    tiny.s.run("loss")
    assert tiny.s.download(tiny.logits).shape == (N, V)


def test_a_closed_session_refuses_everything():
    with Tiny().s as s:
        pass
    for call in (s.run, s.memory, lambda: s.parameter("w", (1,)), lambda: s.input("x", (1,))):
        with pytest.raises(LifecycleError, match="closed"):
            call()


def test_wrong_arguments():
    with pytest.raises(BackendUnavailable, match=r"metal.*available: cpu"):
        Session(backend="metal")
    with pytest.raises(ConfigError, match="n_threads"):
        Session(n_threads=0)
    with pytest.raises(ConfigError, match="precision"):
        Session(matmul_precision="exact")
    s = Session()
    with pytest.raises(ShapeError, match="dimension"):
        s.parameter("w", (3, 0))
    with pytest.raises(ConfigError, match="has one already"):
        s.input("x", (1,)) and s.input("x", (1,))
    tiny = Tiny()
    with pytest.raises(ConfigError, match="loss, grads or update"):
        tiny.s.run("backward")
    with pytest.raises(ShapeError, match=r"expected \(11, 6\); got \(6, 11\)"):
        tiny.s.upload(tiny.w, np.zeros((C, V)))
    with pytest.raises(ShapeError, match="expected i32; got float64"):
        tiny.s.upload(tiny.tokens, np.zeros(N))


def test_frozen_weights_get_no_gradient_and_no_work():
    tiny = Tiny(frozen=True)
    assert not any(node.op.kernel == "embedding.backward" for node in tiny.s.tape.nodes)
    with pytest.raises(ConfigError, match="wte"):
        tiny.s.grad(tiny.wte)
    before = tiny.s.download(tiny.wte)
    tiny.s.run()
    assert np.array_equal(tiny.s.download(tiny.wte), before)


def test_mapped_weights_stay_in_the_callers_array():
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    table.flags.writeable = False
    s = Session()
    w, ids = s.mapped("w", table), s.input("ids", (2,), "i32")
    y = s.output(ops.embedding(s, w, ids))
    s.finalize_weights()
    s.realize()
    s.upload(ids, [3, 1])
    s.run()
    assert np.array_equal(s.download(y), table[[3, 1]])
    assert s.memory().weights == 0
    with pytest.raises(ShapeError, match="C-contiguous"):
        Session().mapped("w", table.T)


# -- Ids and labels --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "row", "value"), [("tokens", 5, V), ("tokens", 0, -1), ("labels", 7, -99)]
)
def test_bad_ids_name_row_and_value_before_any_kernel_runs(tensor, row, value):
    tiny = Tiny()
    tiny.s.run()
    calls = tiny.s.profile().rows[0].calls
    before = tiny.s.download(getattr(tiny, tensor))
    ids = np.ones(N, int)
    ids[row] = value
    with pytest.raises(LabelError, match=rf"{tensor}: row {row} is {value}; must be 0..10"):
        tiny.s.upload(getattr(tiny, tensor), ids)
    assert tiny.s.profile().rows[0].calls == calls
    assert np.array_equal(tiny.s.download(getattr(tiny, tensor)), before)


def test_all_rows_ignored_is_an_error():
    tiny = Tiny()
    with pytest.raises(LabelError, match="all 8 rows are ignored"):
        tiny.s.upload(tiny.labels, np.full(N, -100))


# -- Running ---------------------------------------------------------------------------------------


def test_run_to_loss_touches_no_weight_gradient_or_moment():
    tiny = Tiny()
    tiny.s.run()
    kept = [*tiny.state(), tiny.s.download(tiny.s.grad(tiny.w))]
    tiny.feed()
    tiny.s.run("loss")
    now = [*tiny.state(), tiny.s.download(tiny.s.grad(tiny.w))]
    assert all(np.array_equal(a, b) for a, b in zip(kept, now, strict=True))


def test_micro_batches_add_weighted_gradients():
    tiny = Tiny()
    gradients = []
    for weight in (3.0, 1.0):
        tiny.feed()
        tiny.s.reset(moments=False)
        tiny.s.run("grads")
        gradients.append((weight, tiny.s.download(tiny.s.grad(tiny.wte))))
    mean = sum(weight * g for weight, g in gradients) / 4

    tiny = Tiny()
    for weight in (3.0, 1.0):
        tiny.feed()
        tiny.s.run("grads", weight=weight)
    np.testing.assert_allclose(tiny.s.download(tiny.s.grad(tiny.wte)), mean, rtol=1e-5, atol=1e-7)


def test_reset_zeroes_gradients_and_moments():
    tiny = Tiny()
    start = tiny.state()
    tiny.s.run()
    moments = [t for t in tiny.s.tape.nodes[-1].outputs if t.role.value == "moment"]
    assert all(tiny.s.download(t).any() for t in moments)
    tiny.s.reset(moments=False)
    assert not tiny.s.download(tiny.s.grad(tiny.w)).any()
    assert all(tiny.s.download(t).any() for t in moments)
    tiny.s.reset(moments=True)
    assert not any(tiny.s.download(t).any() for t in moments)
    after_one_step = tiny.state()
    for weight, values in zip((tiny.wte, tiny.w), start, strict=True):
        tiny.s.upload(weight, values)
    tiny.s.run()
    again = tiny.state()
    assert all(np.array_equal(a, b) for a, b in zip(after_one_step, again, strict=True))


def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was():
    tiny = Tiny()
    tiny.s.run()
    values = tiny.s.download(tiny.wte)
    values[2, 3] = np.nan
    tiny.s.upload(tiny.wte, values)
    tiny.s.upload(tiny.tokens, np.full(N, 2))
    before = tiny.state()
    with pytest.raises(NonFiniteError, match="first bad gradient: w;"):
        tiny.s.run()
    after = tiny.state()
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))


def test_clipping_scales_the_update_and_reports_the_norm_before():
    tiny, clipped = Tiny(), Tiny()
    clipped.s.max_grad_norm = 1e-3
    tiny.s.run()
    clipped.s.run()
    assert clipped.s.grad_norm == tiny.s.grad_norm > 1e-3
    moment = clipped.s.tape.nodes[-1].outputs[1]
    ratio = clipped.s.download(moment) / tiny.s.download(tiny.s.tape.nodes[-1].outputs[1])
    np.testing.assert_allclose(ratio, 1e-3 / tiny.s.grad_norm, rtol=2e-3)


def test_threads_agree_bit_for_bit():
    def losses(n_threads):
        tiny = Tiny(n_threads=n_threads)
        for _ in range(3):
            tiny.feed()
            tiny.s.run()
        return tiny.s.download(tiny.loss).tobytes(), [w.tobytes() for w in tiny.state()]

    assert losses(1) == losses(2)


def test_a_second_thread_is_refused_while_one_runs():
    tiny = Tiny()
    tiny.s._busy.acquire()
    caught = []

    def run():
        try:
            tiny.s.run()
        except LifecycleError as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "another thread" in caught[0]
    tiny.s._busy.release()
    tiny.s.run()


def test_two_sessions_side_by_side_do_not_meddle():
    alone = Tiny()
    alone.s.run()
    one, other = Tiny(), Tiny()
    other.s.run()
    one.s.run()
    other.s.close()
    assert all(np.array_equal(a, b) for a, b in zip(alone.state(), one.state(), strict=True))


def test_a_further_tape_shares_the_weights():
    tiny = Tiny()
    s = tiny.s

    def build():
        tokens = s.input("tokens", (3,), "i32")
        return s.tape, tokens, s.output(ops.embedding(s, tiny.wte, tokens))

    tape, tokens, y = s.record("three", build)
    assert s.record("three", build)[0] is tape is not s.tape
    s.upload(tokens, [1, 2, 3])
    s.run(tape=tape)
    assert np.array_equal(s.download(y), s.download(tiny.wte)[1:4])
    s.run()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_fork_the_child_computes_on_one_thread():
    tiny = Tiny()
    tiny.s.run()
    child = os.fork()
    if child == 0:
        try:
            tiny.s.run()
            os._exit(0 if toynn.get_num_threads() == 1 else 3)
        except BaseException:
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0


# -- Memory ----------------------------------------------------------------------------------------


def test_freed_at_once_and_never_pickled():
    gc.disable()
    try:
        tiny = Tiny()
        tiny.s.run()
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(tiny.s)
        gone = weakref.ref(tiny.s)
        del tiny
        assert gone() is None
    finally:
        gc.enable()


def test_memory_is_known_before_any_buffer_exists():
    tiny = Tiny(realize=False)
    planned = tiny.s.memory()
    tiny.realize()
    assert tiny.s.memory() == planned
    assert planned.weights == 2 * 320  # 11 x 6 floats, in whole cache lines
    assert planned.moments == 2 * planned.gradients == 4 * 320
    assert planned.peak == sum(
        (planned.weights, planned.moments, planned.gradients, planned.activations)
    )


def test_profile_counts_calls_and_shares():
    tiny = Tiny()
    for _ in range(3):
        tiny.s.run()
    rows = {row.op: row for row in tiny.s.profile().rows}
    assert rows["adamw.step"].calls == 6
    assert sum(row.share for row in rows.values()) == pytest.approx(1)
    assert "GFLOP/s" in str(tiny.s.profile())


def test_set_num_threads_and_the_environment(monkeypatch):
    from toynn.backends.cpu import threads

    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr(threads, "has_openmp", lambda: True)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert toynn.get_num_threads() == 3
    monkeypatch.setenv("TOYNN_NUM_THREADS", "5")
    assert toynn.get_num_threads() == 5
    toynn.set_num_threads(2)
    assert toynn.get_num_threads() == 2
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setenv("TOYNN_NUM_THREADS", "many")
    with pytest.raises(ConfigError, match="TOYNN_NUM_THREADS=many"):
        toynn.get_num_threads()
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="from 1 to 1024"):
            toynn.set_num_threads(bad)


def test_precision_names():
    assert toynn.get_float32_matmul_precision() == "highest"
    with pytest.raises(ConfigError, match="highest, high, medium"):
        toynn.set_float32_matmul_precision("low")
    toynn.set_float32_matmul_precision("high")
    try:
        assert Session().matmul_precision == "high"
        assert Session(matmul_precision="medium").matmul_precision == "medium"
    finally:
        toynn.set_float32_matmul_precision("highest")


def test_a_run_needs_only_the_uploads_that_it_reads():
    tiny = Tiny(realize=False)
    tiny.s.finalize_weights()
    for weight in (tiny.wte, tiny.w):
        tiny.s.upload(weight, np.ones(weight.shape))
    tiny.s.realize()
    tiny.feed()
    tiny.s.run("loss")
    tiny.s.run("grads")
    with pytest.raises(LifecycleError, match=r"before upload\(hp\)"):
        tiny.s.run("update")


@pytest.mark.parametrize("first", [True, False])
def test_every_training_tape_trains_the_same_parameters(first):
    """Else the norm would count gradients of another step."""
    s = Session()
    w, late = s.parameter("w", (V, C)), s.parameter("late", (N, C))

    def train(both):
        labels = s.input("labels", (N,), "i32")
        x = ops.embedding(s, w, s.input("tokens", (N,), "i32"))
        s.set_loss(ops.cross_entropy(s, ops.add(s, x, late) if both else x, labels))
        s.build_backward()

    train(both=first)
    s.finalize_weights()
    s.realize()
    with pytest.raises(ConfigError, match=r"late gets (no|a) gradient .* the same parameters"):
        s.record("second", lambda: train(both=not first))


# -- Refusals that keep wrong numbers out ----------------------------------------------------------


def test_settings_must_be_finite():
    tiny = Tiny()
    with pytest.raises(ConfigError, match="hp: every number must be finite"):
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
    ops.linear(s, x, w)
    s.finalize_weights()
    with pytest.raises(ConfigError, match="w belongs to another session"):
        s.realize()


def test_integers_and_floats_are_not_mixed_up():
    s = Session()
    i, x = s.input("i", (2, 4), "i32"), s.input("x", (2, 4))
    p = s.input("p", (2,))
    with pytest.raises(ShapeError, match="i must be f32"):
        ops.scale(s, i, 2.0)
    frequencies = s.constant("f", (2,))
    with pytest.raises(ShapeError, match="p must be i32"):
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


def test_nobody_else_touches_a_session_that_runs():
    tiny = Tiny()
    tiny.s._busy.acquire()
    for call in (
        lambda: tiny.s.upload(tiny.hp, HP),
        lambda: tiny.s.download(tiny.w),
        lambda: tiny.s.reset(moments=True),
        tiny.s.close,
    ):
        with pytest.raises(LifecycleError, match="another thread uses this session"):
            call()
    tiny.s._busy.release()


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
