"""The session: life cycle, uploads, runs, memory, threads, and being freed."""

import gc
import os
import pickle
import threading
import weakref

import numpy as np
import pytest
from tiny import C, N, Tiny, V

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
    with pytest.raises(BackendUnavailable, match=r"vulkan.*available: cpu"):
        Session(backend="vulkan")
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
    with pytest.raises(ConfigError, match="loss, grads, update or apply"):
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


def test_an_update_apart_has_the_bits_of_one_in_a_run():
    tiny, apart = Tiny(), Tiny()
    with pytest.raises(LifecycleError, match=r"before run\(to='grads'\)"):
        apart.s.run("apply")
    for each in (tiny, apart):
        each.feed()
        each.s.run("grads", weight=3.0)
        each.feed()
    tiny.s.run("update", weight=2.0)
    apart.s.run("grads", weight=2.0)
    apart.s.run("apply")
    assert not apart.s.pending
    assert all(np.array_equal(a, b) for a, b in zip(tiny.state(), apart.state(), strict=True))


def test_sums_of_gradients_are_replaced_block_by_block():
    """As if three processes had the same micro-batch: tripled sums, and a tripled weight."""
    tiny, tripled = Tiny(), Tiny()
    seen = []

    def triple(values):
        seen.append(values.size)
        values *= 3

    for each in (tiny, tripled):
        each.feed()
        each.s.run("grads", weight=2.0)
    tripled.s.combine(6.0, triple, 37)
    assert max(seen) == 37 and 4 * sum(seen) == tripled.s.gradient_bytes
    for weight in (tiny.w, tiny.wte):
        np.testing.assert_allclose(
            tripled.s.download(tripled.s.grad(tripled.w if weight is tiny.w else tripled.wte)),
            tiny.s.download(tiny.s.grad(weight)),
            rtol=1e-6,
        )
    tripled.s.run("apply")
    tripled.s.combine(1.0, seen.append, 1 << 20)
    assert not seen[-1].any()  # where nothing waits, there are zeros


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


def test_a_persistent_tensor_outlives_runs_and_tapes():
    tiny = Tiny()
    s = tiny.s
    before = s.memory()
    kept = s.persistent("kept", (N, C))
    assert s.memory().activations == before.activations + kept.nbytes
    assert not s.download(kept).any()
    with pytest.raises(ConfigError, match="kept: this session has"):
        s.persistent("kept", (1,))
    for _ in range(2):  # a name that was refused is free
        with pytest.raises(ShapeError, match="other: every dimension"):
            s.persistent("other", (0,))

    def writer():
        s.tape.record(ops.SCALE, {"y": kept, "x": kept}, {"n": kept.size}, {"alpha": 2.0})
        return s.tape

    def reader():
        return s.tape, s.output(ops.scale(s, kept, 10.0))

    write, (read, y) = s.record("write", writer), s.record("read", reader)
    s.upload(kept, np.ones((N, C)))
    for _ in range(3):
        s.run(tape=write)
    s.run()
    s.run(tape=read)
    assert (s.download(y) == 80).all()


def test_a_persistent_tensor_is_released_with_the_tapes_that_use_it():
    tiny = Tiny()
    s = tiny.s
    before = s.memory()
    kept = [s.persistent(name, (N, C)) for name in "ab"]
    other = s.record("other", lambda: (s.tape, s.output(ops.scale(s, tiny.wte, 3.0))))
    with_other = s.memory().activations - 2 * kept[0].nbytes

    def build():
        return s.tape, s.output(ops.scale(s, kept[0], 10.0))

    def within():
        build()
        s.release(kept)

    with pytest.raises(LifecycleError, match="another tape is being recorded"):
        s.record("within", within)
    tape, _ = s.record("key", build)
    for wrong in (tiny.wte, Tiny().s.persistent("a", (N, C))):
        with pytest.raises(ConfigError, match="is no persistent tensor of this session"):
            s.release([kept[1], wrong])
    s.release(kept)
    s.release([])
    assert s.memory().activations == with_other > before.activations
    with pytest.raises(LifecycleError, match=r"record\(\)"):
        s.run(tape=tape)
    with pytest.raises(ConfigError, match="no persistent tensor"):
        s.release(kept[:1])
    s.run(tape=other[0])
    assert np.array_equal(s.download(other[1]), 3 * s.download(tiny.wte))
    assert not s.download(s.persistent("a", (2,))).any()
    own = Session()
    mine = own.persistent("mine", (4,))
    ops.scale(own, mine, 2.0)
    with pytest.raises(LifecycleError, match="of what the session's own tape uses"):
        own.release([mine])


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
    from toynn import threads

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
