"""Runs that are killed, at random moments or at a call that changes the disk, and resumed."""

import os
import random
import shutil
import signal
import time
import traceback

import runs

from toynn.formats import disk


def in_child(action):
    """Begin an action in a process of its own; return its id."""
    child = os.fork()
    if child:
        return child
    try:
        action()
        os._exit(0)
    except BaseException:
        traceback.print_exc(limit=-2)
    finally:
        os._exit(1)


def is_killed(child):
    """Wait for a process; say whether it was killed. It must not have failed."""
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WIFSIGNALED(status), "the run failed"
    return os.WIFSIGNALED(status)


def go_on(name, work, out, **more):
    """Begin a run, or go on with it, to its end."""
    if any((path / "complete.json").exists() for path in out.glob("checkpoint-*")):
        runs.trainer(name, work, resume=out, **more).fit()
    else:
        shutil.rmtree(out, ignore_errors=True)
        runs.trainer(name, work, folder=out, **more).fit()


def killed_at_moments(name, work, out, kills, seed):
    """Kill a run at random moments until it ends before that; return the kills."""
    moments, done = random.Random(seed), 0
    while done < kills:
        child = in_child(lambda: go_on(name, work, out))
        time.sleep(moments.uniform(0.02, 0.5))
        os.kill(child, signal.SIGKILL)
        if not is_killed(child):
            break
        done += 1
    go_on(name, work, out)
    return done


def killed_in_writing(name, work, out, call):
    """Kill a run at its so-manieth call that changes the disk; say whether it came to that."""

    def act():
        counter = iter(range(call + 1))

        def counted(function):
            def replaced(*arguments):
                if next(counter) == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments)

            return replaced

        for each in disk.CHANGES:
            setattr(disk, each, counted(getattr(disk, each)))
        go_on(name, work, out)

    return is_killed(in_child(act))
