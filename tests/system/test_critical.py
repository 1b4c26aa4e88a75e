"""Critical sections: signals wait, locks are held, and both end with the section."""

import ctypes
import operator
import os
import pickle
import signal
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from toynn.errors import BackendError, LifecycleError
from toynn.system.critical import Section, uninterrupted

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1)


@pytest.fixture
def handle():
    """Sets handlers; those of before are back at the end."""
    before = {}

    def set(number, handler):
        before.setdefault(number, signal.getsignal(number))
        signal.signal(number, handler)

    yield set
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def seen(handle):
    """The signals that came, in their order."""
    signals = []
    for number in HELD:
        handle(number, lambda number, frame: signals.append(number))
    return signals


@pytest.mark.parametrize("number", HELD)
def test_a_signal_waits_until_the_outermost_section_ends(number, seen):
    with Section():
        with Section():
            signal.raise_signal(number)
            assert not seen
        assert not seen
        signal.raise_signal(number)  # signals of one kind are one, as CPython has it
        assert not seen
    assert seen == [number]
    signal.raise_signal(number)
    assert seen == [number] * 2


def test_ctrl_c_is_raised_behind_what_the_section_does():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with Section():
            signal.raise_signal(signal.SIGINT)
            done.append("all")
        done.append("more")
    assert done == ["all"]


def test_ctrl_c_that_waited_says_which_error_there_was():
    with pytest.raises(KeyboardInterrupt) as caught, Section():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("bad")
    assert isinstance(caught.value.__context__, ValueError)


def test_a_signal_that_came_before_is_handled_before_the_section_begins(seen, handle):
    lock, section = threading.Lock(), Section()
    interrupt = partial(ctypes.pythonapi.PyErr_SetInterruptEx, int(signal.SIGUSR1))
    # One call in C of both: CPython handles the signal in neither, nor between them.
    list(map(operator.call, (interrupt, section.__enter__)))
    assert seen == [signal.SIGUSR1]
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGUSR1]  # in the section
    section.__exit__(None, None, None)
    assert seen == [signal.SIGUSR1, signal.SIGTERM]

    handle(signal.SIGUSR1, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        list(map(operator.call, (interrupt, Section(lock, "held").__enter__)))
    assert not lock.locked()
    signal.raise_signal(signal.SIGTERM)
    assert seen[2:] == [signal.SIGTERM]  # outside of it


def test_a_lock_is_free_when_the_interrupt_is_raised(handle):
    lock, free = threading.Lock(), []
    handle(signal.SIGTERM, lambda *_: free.append(not lock.locked()))
    with Section(lock, "held"):
        signal.raise_signal(signal.SIGTERM)
        assert lock.locked()
    assert free == [True]


def test_a_handler_may_enter_sections(handle, seen):
    lock, entered = threading.Lock(), []

    def handler(number, frame):
        with Section(lock, "held"):
            signal.raise_signal(signal.SIGUSR1)
            entered.append(list(seen))

    handle(signal.SIGTERM, handler)
    with Section(lock, "held"):
        signal.raise_signal(signal.SIGTERM)
    assert entered == [[]] and seen == [signal.SIGUSR1]


def test_a_lock_that_is_held_refuses_and_holds_no_signals(seen):
    lock = threading.Lock()
    with (
        lock,
        pytest.raises(LifecycleError, match="somebody has it"),
        Section(lock, "somebody has it"),
    ):
        raise AssertionError("entered")
    assert not lock.locked()
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_a_section_that_lets_signals_through_holds_its_lock(handle):
    """Also where a handler raises: in its body, or in front of it."""
    lock, free = threading.RLock(), []
    handle(signal.SIGTERM, lambda *_: free.append(held_by_another(lock)))
    with pytest.raises(KeyboardInterrupt), Section(lock, "held", signals=True):
        with Section(lock, "held"):  # which does not
            signal.raise_signal(signal.SIGTERM)
        assert free == [True]
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("went on")
    assert not held_by_another(lock)


def test_a_handler_that_raises_in_front_of_the_body_leaves_no_lock_held():
    """Python 3.14 may call it when __enter__ has returned, and then does not call __exit__."""
    interrupt = ctypes.pythonapi["PyErr_SetInterruptEx"]  # of its own
    interrupt.restype = operator.not_  # it returns 0; as a lock's acquire(), True
    released = []
    lock = SimpleNamespace(
        acquire=partial(interrupt, int(signal.SIGINT)), release=partial(released.append, True)
    )
    with pytest.raises(KeyboardInterrupt), Section(lock, "held", signals=True):
        pass
    assert released == [True]


def held_by_another(lock):
    held = []
    thread = threading.Thread(target=lambda: held.append(not lock.acquire(False)))
    thread.start()
    thread.join()
    return held == [True]


def test_a_failed_device_is_told_of_while_the_lock_is_held():
    lock, told = threading.Lock(), []

    def failed():
        told.append(lock.locked())
        raise RuntimeError("and again")

    for error, expected in ((ValueError, ValueError), (BackendError, RuntimeError)):
        with pytest.raises(expected), Section(lock, "held", failed):
            raise error("bad")
        assert not lock.locked()
    with Section(lock, "held", failed):
        pass
    assert told == [True]


def test_a_handler_that_is_set_within_stays(handle, seen):
    other = []
    with Section():
        signal.raise_signal(signal.SIGTERM)
        handle(signal.SIGTERM, lambda number, frame: other.append(number))
    assert (seen, other) == ([], [signal.SIGTERM])
    signal.raise_signal(signal.SIGTERM)
    assert (seen, other) == ([], [signal.SIGTERM] * 2)
    with Section():
        handle(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGTERM)  # the system ignores it: CPython would say that it came
    assert (seen, other) == ([], [signal.SIGTERM] * 2)


def test_an_ignored_signal_stays_ignored(handle, seen):
    handle(signal.SIGUSR1, signal.SIG_IGN)
    with Section():
        signal.raise_signal(signal.SIGUSR1)
    handle(signal.SIGUSR1, lambda number, frame: seen.append(number))
    assert not seen


def test_a_section_of_another_thread_lets_signals_through(seen):
    entered, leave = threading.Event(), threading.Event()

    def run():
        with Section():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait()
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    with Section():
        leave.set()
        thread.join()
        signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    assert seen == [signal.SIGTERM] * 2


def forked(run):
    """The exit code of a child, which ``run`` returns; below 0, the signal that ended it."""
    child = os.fork()
    if not child:
        try:
            os._exit(run())
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_signal_without_a_handler_ends_the_process_at_once(handle):
    def run():
        with Section():
            signal.raise_signal(signal.SIGTERM)
            os._exit(7)

    handle(signal.SIGTERM, signal.SIG_DFL)
    assert forked(run) == -signal.SIGTERM


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_child_forked_in_a_section_handles_signals(in_thread, seen):
    """The child of another thread is in no section; that of the main thread is in its own."""
    code = []

    def run():
        signal.raise_signal(signal.SIGUSR1)
        before = len(seen)
        with Section():
            signal.raise_signal(signal.SIGINT)
            within = len(seen)
        return 16 * before + 4 * within + len(seen)

    def fork():
        code.append(forked(run))

    with Section():
        signal.raise_signal(signal.SIGTERM)  # the parent's: never the child's
        if in_thread:
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
        else:
            fork()
    assert code == [16 * 1 + 4 * 1 + 2 if in_thread else 0]
    assert seen == [signal.SIGTERM]


def test_a_function_that_is_not_interrupted_is_itself_otherwise(seen):
    @uninterrupted
    def add(a: int, *, b: int = 2) -> int:
        """Add."""
        signal.raise_signal(signal.SIGTERM)
        assert not seen
        return a + b

    assert (add.__name__, add.__doc__) == ("add", "Add.")
    assert add(1, b=3) == 4 and seen == [signal.SIGTERM]


def test_a_section_cannot_be_pickled():
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(Section())
