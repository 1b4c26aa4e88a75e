"""Forked and spawned children, and threads: they compute, and none waits for ever."""

import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest
from hang import HANG
from tiny import Tiny

from toynn._kernels import matmul, random, silu

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def calls():
    """What calls of each way to share work compute on two threads."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((130, 96)).astype(np.float32) for _ in range(2))
    y, z = np.empty((130, 130), np.float32), np.empty((3, 130), np.float32)
    matmul.forward(y, None, x, w, None, n_threads=2)
    matmul.forward(z, None, x[:3].copy(), w, None, n_threads=2)
    active = np.empty_like(x.ravel())
    silu.forward(active, x.ravel(), n_threads=2)
    noise = np.empty(5000, np.float32)
    random.normal(noise, 7, n_threads=2)
    return b"".join(array.tobytes() for array in (y, z, active, noise))


def in_a_fork(compute):
    """What a forked child computes; it is ended when it takes longer than a minute."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        code = 1
        try:
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(compute())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "the child hangs or fails"
    return said


def test_kernel_doors_on_two_threads_in_a_forked_child():
    expected = calls()  # which starts the runtime's threads
    assert in_a_fork(calls) == expected
    assert in_a_fork(lambda: in_a_fork(calls)) == expected


def test_a_fork_from_a_thread_and_steps_in_the_child():
    def losses():
        tiny = Tiny(n_threads=2)
        tiny.s.run()
        return tiny.s.download(tiny.loss).tobytes()

    expected, found = losses(), []
    thread = threading.Thread(target=lambda: found.append(in_a_fork(losses)))
    thread.start()
    thread.join()
    assert found == [expected]


def test_doors_on_several_threads_at_once():
    expected, found = calls(), []
    threads = [threading.Thread(target=lambda: found.append(calls())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_a_spawned_child_computes_the_same():
    expected = calls()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(calls).get(timeout=HANG) == expected


def test_a_session_stays_in_its_process():
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(TypeError) as caught:
        pool.apply_async(id, [Tiny().s]).get(timeout=HANG)
    assert "Session" in str(caught.value)
