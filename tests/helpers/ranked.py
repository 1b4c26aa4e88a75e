"""Runs of several processes: ``start`` begins them under mpiexec, and they run this as a program.

python ranked.py learn WORK ORDER       every recipe, with all that has a state; what it learned
                                        goes to WORK, as NAME-SIZE-RANK.npz
python ranked.py run WORK FOLDER WHAT   a run that saves, with some mischief on rank 1
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import toynn

sys.path.insert(0, str(Path(__file__).parent))  # which PYTHONSAFEPATH leaves out

from hang import HANG

STEPS = 20
BESIDE = Path(sys.executable).with_name("mpiexec")
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec")


def needs_mpi():
    """Skip a test where several processes cannot train together."""
    pytest.importorskip("mpi4py", reason="mpi4py, of the mpi extra, is not installed")
    if MPIEXEC is None:
        pytest.skip("mpiexec, which comes with the mpi extra, is not found")
    try:
        from toynn.distributed import mpi

        mpi.load(start=False)
    except ImportError as error:
        pytest.skip(str(error))


def start(ranks, *words, program=(__file__,), **variables):
    """Run a Python program as so many processes, one thread each; return what became of it."""
    command = [MPIEXEC, "-n", str(ranks), sys.executable, *program, *map(str, words)]
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=HANG
    )


def environment(**more):
    """The variables of such a process: one thread, and the toynn of this one."""
    package = str(Path(toynn.__file__).parents[1])
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": package, "PYTHONSAFEPATH": "1", **more}
    return {**os.environ, **variables}


def said(done):
    """What a run of several processes has said on stderr of itself, and not mpiexec."""
    return [line for line in done.stderr.splitlines() if line.startswith("toynn:")]


def result(trainer):
    """What a run of a recipe has learned, as arrays by name."""
    parts = {f"weights {name}": w for name, w in trainer.recipe.engine.weights().items()}
    for name, (m, v) in trainer.recipe.engine.moments.items():
        session = trainer.recipe.engine.session
        parts |= {f"m {name}": session.download(m), f"v {name}": session.download(v)}
    reports = trainer.result.reports
    parts["losses"] = np.array([r.train_loss for r in reports if r.train_loss is not None])
    parts["valid"] = np.array([r.val_loss for r in reports if r.val_loss is not None])
    parts["norms"] = np.array([r.grad_norm for r in reports if r.grad_norm is not None])
    parts["tokens"] = np.array([trainer.result.trained_tokens])
    return parts


def arrays(path):
    """The arrays of a .npz file, by name."""
    with np.load(path) as file:
        return dict(file)


def options(**more):
    usual = {"steps": STEPS, "log_every": 1, "eval_every": 5, "grad_accum": 2, "lr": 1e-3}
    return {**usual, **more}


def learn(work, order):
    import runs

    for name in runs.RECIPES:
        trainer = runs.trainer(name, work, **options(allreduce=order))
        trainer.fit()
        group = trainer.group
        np.savez(Path(work) / f"{name}-{group.size}-{group.rank}.npz", **result(trainer))


def run(work, folder, what, *resumed):
    import runs

    from toynn import distributed

    toynn.show_config()  # which looks at MPI, and joins nobody
    group = distributed.init()

    def mischief(result):
        if result.iterations == 7 and what.startswith("stopped"):
            group.notice, group.patience = 0.2, 1.0
        if result.iterations != 7 or group.rank != 1:
            return
        if what == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if what == "stopped in sums":
            trainer.ranks.sum = lambda values: os.kill(os.getpid(), signal.SIGSTOP)
        if what == "killed":
            os.kill(os.getpid(), 9)
        if what == "fails":
            raise ValueError("a disk of this rank is on fire")
        if what == "leaves":
            sys.exit(0)
        if what in ("bad", "bad-fast"):
            engine = trainer.recipe.engine
            accumulate = engine.accumulate

            def spoil(*batch):
                loss = accumulate(*batch)
                weight, sums = engine.session.waiting()
                next(iter(sums.values())).flat[3] = np.inf
                engine.session.wait(weight, sums)
                return loss

            engine.accumulate = spoil

    place = {"resume": folder} if resumed else {"folder": folder}
    order = "fast" if what == "bad-fast" else "ordered"
    settings = options(save_every=3, allreduce=order)
    trainer = runs.trainer("lora", work, on_step=mischief, **settings, **place)
    trainer.fit()
    if group.rank == 0:
        np.savez(Path(work) / f"{what}.npz", **result(trainer))


if __name__ == "__main__":
    {"learn": learn, "run": run}[sys.argv[1]](*sys.argv[2:])
