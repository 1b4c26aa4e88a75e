"""Ctrl-C outside the steps of a run: locks are free then, and handlers are back."""

import contextlib
import signal
import subprocess
import sys

import pytest
import runs
from interrupting import INTERRUPTED, traced

from toynn.formats import disk
from toynn.formats.logs import Log
from toynn.system import critical
from toynn.system.critical import Section
from toynn.system.platform import ASKS_TO_STOP
from toynn.train.interrupt import Interrupt
from toynn.train.lock import Lock


@pytest.fixture
def handlers():
    """The handlers of before, which are set again at the end."""
    before = {number: signal.getsignal(number) for number in ASKS_TO_STOP}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def now():
    return {number: signal.getsignal(number) for number in ASKS_TO_STOP}


def test_handlers_are_back_wherever_ctrl_c_comes(handlers, capfd):
    def guarded():
        with Interrupt():
            pass

    size = traced(guarded)[1]
    for at in range(1, size + 1):
        traced(guarded, at)
        assert now() == handlers, f"instruction {at} of {size}"
        assert critical.stop_by_signal(None) is None, f"instruction {at} of {size} leaves an answer"


def test_the_lock_of_a_folder_is_free_wherever_ctrl_c_comes(handlers, tmp_path, capfd):
    def fit(name, at=0):
        options = {"steps": 1, "grad_accum": 1, "eval_every": 0, "save_every": 0, "report": ()}
        trainer = runs.trainer("gpt2", tmp_path, folder=tmp_path / name, **options)
        return traced(trainer.fit, at)

    fit("first")
    size = fit("second")[1]
    interrupted = 0  # a run may take some instructions fewer than another, and end before
    for at in (200, 400, 600, 800, size - 1500, size - 700, size - 100):
        interrupted += fit(str(at), at)[0] is INTERRUPTED
        assert now() == handlers
        if (tmp_path / str(at)).exists():
            Lock(tmp_path / str(at)).release()
    assert interrupted >= 4


def test_a_line_of_a_log_is_whole_or_not_there(tmp_path, monkeypatch):
    def half(descriptor, data):
        write(descriptor, data[:5])
        raise KeyboardInterrupt

    write, log = disk.write, Log(tmp_path / "log")
    log.append({"one": 1})
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(disk, "write", half)
        log.append({"two": 2})
    with log:
        log.append({"three": 3})
    assert (tmp_path / "log").read_text() == '{"one": 1}\n{"three": 3}\n'


def test_a_request_within_a_step_is_answered_at_once_and_once(handlers, capfd):
    with Interrupt() as interrupt:
        with Section():
            signal.raise_signal(signal.SIGINT)
            assert "finishing the step" in capfd.readouterr().err
            assert not interrupt.requested
        assert interrupt.requested
        assert now()[signal.SIGINT] == signal.SIG_DFL
    assert capfd.readouterr().err == ""
    with pytest.raises(KeyboardInterrupt), Section():  # behind it, nothing answers
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("how", ["within", "twice within", "ends by an error"])
def test_the_outer_of_nested_interrupts_answers_again(handlers, capfd, how):
    with Interrupt() as outer:
        for _ in range(2 if how == "twice within" else 1):
            with contextlib.suppress(ValueError), Interrupt() as inner:
                if how == "ends by an error":
                    raise ValueError
        with Section():
            signal.raise_signal(signal.SIGINT)
            assert "finishing the step" in capfd.readouterr().err
        assert outer.requested and not inner.requested
    assert capfd.readouterr().err == ""


def test_nothing_answers_behind_an_interrupt_that_had_no_signal_to_handle(handlers, capfd):
    for number in ASKS_TO_STOP:
        signal.signal(number, signal.SIG_IGN)
    with Interrupt():
        pass
    signal.signal(signal.SIGINT, handlers[signal.SIGINT])
    with pytest.raises(KeyboardInterrupt), Section():
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""


TWICE = """
import signal, sys, time
from toynn.system import critical
from toynn.system.critical import Section
from toynn.system.platform import ASKS_TO_STOP
from toynn.train.interrupt import Interrupt
with Interrupt() as interrupt, Section():
    for number in map(int, sys.argv[2:]):
        signal.raise_signal(number)
        time.sleep(float(sys.argv[1]))
    if float(sys.argv[1]) == 0:
        both = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, both)
        for number in both:
            signal.raise_signal(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
print("saved", interrupt.requested)
"""


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ((), 0),  # of one request: as timeout(1) sends to a process and to its group
        ((signal.SIGINT, signal.SIGINT), -signal.SIGINT),
        ((signal.SIGINT, signal.SIGTERM), -signal.SIGTERM),
        ((signal.SIGHUP, signal.SIGTERM), -signal.SIGTERM),
        ((signal.SIGHUP, signal.SIGHUP), 0),  # a terminal that ends, and then its shell
    ],
)
def test_the_second_request_within_a_step_ends_the_process(numbers, code):
    pause = "0.6" if numbers else "0"
    command = [sys.executable, "-c", TWICE, pause, *(str(int(number)) for number in numbers)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("once more to stop at once") == 1
    assert done.stdout == ("" if code else "saved True\n")
