"""The life cycle of a session: what comes before what, what is refused, and its end."""

import gc
import pickle
import weakref

import numpy as np
import pytest
from tiny import C, N, Tiny, V

from toynn import ops
from toynn.errors import (
    BackendUnavailable,
    ConfigError,
    LifecycleError,
    ShapeError,
)
from toynn.session import Session


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
