"""Several processes that train together, against one: the same numbers, and no silent end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ranked
import runs
from hang import HANG

pytestmark = pytest.mark.slow
SIZES = (2, 3)


@pytest.fixture(scope="module", autouse=True)
def mpi():
    ranked.needs_mpi()


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Bases for all recipes, made before several processes want them."""
    folder = tmp_path_factory.mktemp("ranks")
    runs.trainer("lora", folder)
    return folder


@pytest.fixture(scope="module", params=SIZES)
def learned(request, work):
    """What every recipe has learned on so many ranks: by recipe, a list by rank."""
    size = request.param
    done = ranked.start(size, "learn", work, "ordered")
    assert done.returncode == 0, done.stderr
    return size, {
        name: [ranked.arrays(work / f"{name}-{size}-{rank}.npz") for rank in range(size)]
        for name in runs.RECIPES
    }


def in_turn(name, work, size):
    """What one process learns that computes the gradients of all ranks, and adds them itself."""
    trainer = runs.trainer(name, work, **ranked.options(grad_accum=2 * size))
    recipe, model = trainer.recipe, trainer.model
    engine, session, feed = recipe.engine, recipe.engine.session, trainer.feed
    session.max_grad_norm = trainer.options.max_grad_norm
    losses, norms = [], []
    for k in range(ranked.STEPS):
        batches = [next(feed) for _ in range(2 * size)]
        before, total, rows, loss = getattr(engine, "batches", 0), {}, 0, 0.0
        for rank in range(size):
            session.reset(moments=False)
            own = 0.0
            for index in range(rank, 2 * size, size):
                if hasattr(engine, "batches"):
                    engine.batches = before + index
                own += recipe.accumulate(batches[index]) * batches[index].rows
            weight, sums = session.waiting()
            total = {n: total[n] + g for n, g in sums.items()} if total else sums
            rows, loss = rows + weight, loss + own
        session.wait(rows, total)
        if hasattr(engine, "batches"):
            engine.batches = before + 2 * size
        hp = model.optimizer.hp_for_step(k)
        hp[0] = model.schedule(k)
        recipe.update(hp, k == 0)
        losses.append(loss / rows)
        norms.append(session.grad_norm)
    return {**ranked.result(trainer), "losses": np.array(losses), "norms": np.array(norms)}


@pytest.mark.parametrize("name", runs.RECIPES)
def test_ranks_give_the_bits_of_one_process_that_adds_in_their_order(name, learned, work):
    size, found = learned
    expected = in_turn(name, work, size)
    for rank, own in enumerate(found[name]):
        for key, values in expected.items():
            if key not in ("valid", "tokens"):  # which in_turn does not look at
                np.testing.assert_array_equal(own[key], values, f"{key} of rank {rank}")


@pytest.mark.parametrize("name", runs.RECIPES)
def test_ranks_agree_with_micro_batches_of_one(name, learned, work):
    size, found = learned
    trainer = runs.trainer(name, work, **ranked.options(grad_accum=2 * size))
    trainer.fit()
    for key, values in ranked.result(trainer).items():
        limit = 1e-5 if key.startswith("weights") else 1e-6
        if key.startswith(("weights", "losses", "valid", "tokens")):
            np.testing.assert_allclose(found[name][0][key], values, 0, limit, err_msg=key)


def test_the_fast_order_agrees_to_rounding(work, tmp_path):
    done = ranked.start(3, "learn", work, "fast")
    assert done.returncode == 0, done.stderr
    for name in runs.RECIPES:
        trainer = runs.trainer(name, work, **ranked.options(grad_accum=6))
        trainer.fit()
        found = ranked.arrays(work / f"{name}-3-0.npz")
        for key, values in ranked.result(trainer).items():
            if key.startswith("weights"):
                np.testing.assert_allclose(found[key], values, 0, 1e-5, err_msg=key)


@pytest.fixture(scope="module")
def whole(work):
    """What a run of three ranks comes to that nothing happens to."""
    done = ranked.start(3, "run", work, work / "whole", "whole")
    assert done.returncode == 0, done.stderr
    return ranked.arrays(work / "whole.npz")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("killed", "has ended without a message: killed, or out of memory; all ranks stop; "),
        ("fails", "a disk of this rank is on fire"),
        ("bad", "first bad gradient: "),
        ("leaves", "has ended, while others go on"),
    ],
)
def test_one_rank_ends_and_all_stop_and_the_others_go_on(what, words, work, whole, tmp_path):
    done = ranked.start(3, "run", work, tmp_path / "run", what)
    assert done.returncode != 0
    lines = ranked.said(done)
    assert len(lines) == 1, done.stderr
    assert re.search(r"rank 1 of 3 \(", lines[0]) and words in lines[0], lines[0]
    assert (tmp_path / "run/checkpoint-6/complete.json").exists()
    # The same update from what is left: two ranks, or one, with three times two micro-batches.
    done = ranked.start(2, "run", work, tmp_path / "run", "resumed", "resumed")
    assert done.returncode == 0, done.stderr
    found = ranked.arrays(work / "resumed.npz")
    for key, values in whole.items():
        if key.startswith(("weights", "losses", "valid", "tokens")):
            limit = 1e-5 if key.startswith("weights") else 1e-6
            np.testing.assert_allclose(found[key][-len(values) :], values, 0, limit, err_msg=key)


@pytest.mark.parametrize("where", ["stopped", "stopped in sums"])
def test_a_stopped_rank_is_named_and_ends_all(where, work, tmp_path):
    """Nobody hears of SIGSTOP, or of a machine that hangs; on a busy machine others are slow."""
    done = ranked.start(3, "run", work, tmp_path / "run", where)
    assert done.returncode != 0
    lines = [line for line in ranked.said(done) if " has waited " in line]
    said = [line for line in lines if not line.startswith("toynn: error: ")]
    ended = [line for line in lines if line.startswith("toynn: error: ")]
    assert said and ended, done.stderr
    for line in lines:
        assert re.search(r"rank [02] of 3 .* seconds for .*rank 1 of 3 \(", line), line
        assert "in a long step, stopped, or on a machine that hangs" in line
    assert "; after 1 seconds all end" in said[0]
    assert "all ranks end; resume with" in ended[0]
    done = ranked.start(1, "run", work, tmp_path / "run", "resumed", "resumed")
    assert done.returncode == 0, done.stderr


def test_a_bad_gradient_is_named_in_the_fast_order_too(work, tmp_path):
    done = ranked.start(3, "run", work, tmp_path / "run", "bad-fast")
    assert done.returncode != 0
    (line,) = ranked.said(done)
    assert "first bad gradient: " in line and "it is that of rank 1 of 3 (" in line


def test_one_process_goes_on_with_a_run_of_three(work, whole, tmp_path):
    done = ranked.start(3, "run", work, tmp_path / "run", "killed")
    trainer = runs.trainer("lora", work, resume=tmp_path / "run", **ranked.options(save_every=3))
    assert trainer.feed.per_update == 6, done.stderr
    trainer.fit()
    for key, values in ranked.result(trainer).items():
        if key.startswith("weights"):
            np.testing.assert_allclose(whole[key], values, 0, 1e-5, err_msg=key)


def test_ranks_without_a_batch_add_nothing(work, tmp_path):
    """A run of one process has two batches an update: of three ranks that go on, one has none."""
    options = ranked.options(save_every=3)
    whole = runs.trainer("lora", work, **options)
    whole.fit()

    def stop(result):
        if result.iterations == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.trainer("lora", work, folder=tmp_path / "run", on_step=stop, **options).fit()
    done = ranked.start(3, "run", work, tmp_path / "run", "fewer", "resumed")
    assert done.returncode == 0, done.stderr
    found = ranked.arrays(work / "fewer.npz")
    for key, values in ranked.result(whole).items():
        if key.startswith(("weights", "tokens")):
            np.testing.assert_allclose(found[key], values, 0, 1e-5, err_msg=key)


TRAIN = ("-P", "-m", "toynn", "train", "gpt2", "--steps", "3", "--d-model", "16", "--layers", "1")
SMALL = ("--heads", "2", "--seq", "8", "--batch", "2", "--threads", "1")


def train(ranks, folder, *words, **variables):
    """A run of the command line, without a picture of it."""
    return ranked.start(ranks, *SMALL, *words, "--out", folder, program=TRAIN, **variables)


def test_the_command_line_says_what_it_costs_before_the_first_step(tmp_path):
    done = train(2, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "step 0/3" in done.stdout
    before, behind = re.split(r"(?m)^(?=ranks +a step took)", done.stderr)
    assert re.search(r"^ranks +2: 2 on .+; here 1 thread each of \d+ CPU", before, re.MULTILINE)
    assert re.search(r"^expected +[\d.]+ m?s a step, [\d.]+% of it the sum$", before, re.MULTILINE)
    assert re.search(r"^ +10 Gbit/s( +[\d.]+){6}$", before, re.MULTILINE)
    assert re.search(r"^ranks +a step took .+ \(expected .+\): sums", behind, re.MULTILINE)
    assert done.stdout.count("run folder") == 2  # at the beginning and the end, by one rank
    assert "ranks = 2" in (tmp_path / "run/config.toml").read_text()


def test_ctrl_c_ends_all_after_their_step(tmp_path):
    command = ["-P", "-m", "toynn", "train", "gpt2", "--steps", "100000", *SMALL, *TRAIN[7:]]
    words = [ranked.MPIEXEC, "-n", "2", sys.executable, *command, "--out", str(tmp_path / "run")]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in run.stdout:
        if line.startswith("step    "):
            break
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=HANG)
    assert err.count("toynn: finishing the step, then saving") == 1
    assert run.returncode == 130, err
    steps = int(re.search(r"stopped +after (\d+) steps", out)[1])
    assert (tmp_path / f"run/checkpoint-{steps}/complete.json").exists()


OTHER = (Path(__file__).parents[1] / "helpers" / "other_rank.py",)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("version", "toynn: '.*' there, 'another' here"),
        ("data", "data.sha256: .* there, .* here"),
        ("config", "config.lr: 0.003 there, 0.004 here"),
        ("base", "base.init_from: .* there, .* here"),
        ("level", "ISA level: .* there, 'generic' here"),
        ("missing", "rank 1 of 2.*: none.jsonl: "),
        ("extra", r"rank 1 of 2: mpi4py .*: pip install"),
    ],
)
def test_ranks_that_differ_are_refused_by_one_line(what, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(f"{name}.txt").write_text(f"the cat sat on the mat {name} " * 20)
    done = ranked.start(2, what, program=OTHER)
    assert done.returncode != 0
    lines = ranked.said(done)
    assert len(lines) == 1 and re.search(words, lines[0]), done.stderr


def test_fewer_examples_than_ranks_are_refused(tmp_path):
    lines = '{"text": "one"}\n{"text": "two"}\n'
    (tmp_path / "few.jsonl").write_text(lines)
    (tmp_path / "valid.jsonl").write_text(lines)
    (tmp_path / "few.jsonl").rename(tmp_path / "train.jsonl")
    done = train(3, tmp_path / "run", "--data", tmp_path)
    assert done.returncode == 2
    (line,) = ranked.said(done)
    assert "2 training examples for 3 ranks" in line and "mpiexec -n 2" in line


def test_an_error_that_all_have_is_said_once(tmp_path):
    done = train(3, tmp_path / "run", "--heads", "3")
    assert done.returncode == 2
    (line,) = ranked.said(done)
    assert "rank" not in line and "heads" in line


def test_the_mpiexec_of_another_mpi_is_refused(tmp_path):
    """As Open MPI's would start a process: its variables, and nothing that MPICH finds."""
    variables = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, *TRAIN, *SMALL, "--out", str(tmp_path / "run")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 2
    (line,) = ranked.said(done)
    assert "has started 2 processes, but mpi4py's MPI (" in line and ") sees 1: " in line
    assert not (tmp_path / "run").exists()
