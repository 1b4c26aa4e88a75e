"""Threads on which a session computes."""

import os

import pytest
from tiny import Tiny

import toynn
from toynn.errors import ConfigError


def test_threads_agree_bit_for_bit():
    def losses(n_threads):
        tiny = Tiny(n_threads=n_threads)
        for _ in range(3):
            tiny.feed()
            tiny.s.run()
        return tiny.s.download(tiny.loss).tobytes(), [w.tobytes() for w in tiny.state()]

    assert losses(1) == losses(2)


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_ask_for_threads():
    tiny = Tiny(n_threads=3)
    tiny.s.run()
    child = os.fork()
    if child == 0:
        try:
            toynn.set_num_threads(2)
            tiny.s.run()
            os._exit(0 if toynn.get_num_threads() == 2 else 3)
        except BaseException:
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0


def test_set_num_threads_and_the_environment(monkeypatch):
    from toynn.backends import threads

    monkeypatch.setattr(threads, "_chosen", None)
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
