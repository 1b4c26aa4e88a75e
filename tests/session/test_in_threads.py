"""Several threads: each with a session of its own, and several that want the same one.

All of it holds with Python's GIL, which a run releases, and without.
"""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tiny import Tiny

from toynn import GPT2Config, GPT2SeqEngine, RecipeOptions, Session, ops
from toynn.data.batch import Batch
from toynn.errors import LifecycleError

ROWS, WIDTH, STEPS = 128, 256, 16


def in_another_thread(call, *arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *arguments).result()


def refused():
    return pytest.raises(
        LifecycleError, match="while another thread uses this session: wait for it"
    )


def trained(seed, meet, n_threads):
    """Return the losses and weights of some steps, before each of which ``meet`` is called."""
    rng = np.random.default_rng(seed)
    s = Session(seed=seed, n_threads=n_threads)
    x, labels = s.input("x", (ROWS, WIDTH)), s.input("labels", (ROWS,), "i32")
    drops = s.input("drops", (2,), "i32")
    weights = [s.parameter(f"w{i}", rng.normal(0, 0.1, (WIDTH, WIDTH))) for i in range(2)]
    y = ops.dropout(s, ops.gelu(s, ops.linear(s, x, weights[0])), 0.1, drops, 0)
    step = s.minimize(ops.cross_entropy(s, ops.linear(s, y, weights[1]), labels))
    losses = []
    for i in range(STEPS):
        given = {"x": rng.normal(size=x.shape), "labels": rng.integers(0, WIDTH, ROWS)}
        meet()
        losses.append(step(**given, drops=[i, 1]))
    return losses, [s.download(w).tobytes() for w in weights]


@pytest.mark.parametrize("n_threads", [1, 2])
def test_sessions_in_two_threads_have_the_bits_of_each_alone(n_threads):
    """Steps begin at once: into what they shared, such as scratch memory, both would write."""
    alone = [trained(seed, lambda: None, n_threads) for seed in range(2)]
    meet = threading.Barrier(2).wait
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(trained, seed, meet, n_threads) for seed in range(2)]
        assert [run.result() for run in runs] == alone


def test_a_session_is_one_threads_at_a_time():
    """Whatever is called, before its arguments are looked at."""
    s, tiny = Session(), Tiny()
    x = s.input("x", (2, 3))
    names = [name for name, value in vars(Session).items() if callable(value) and name[0] != "_"]
    calls = [getattr(tiny.s, name) for name in names if name not in ("exclusively", "grad")]
    assert len(calls) > 20
    with s.exclusively("one"), tiny.s.exclusively("one"):
        for call in (*calls, lambda: ops.scale(s, x, 2.0)):
            with refused():
                in_another_thread(call)
        assert in_another_thread(repr, tiny.s) == "Session(cpu, another thread uses it)"
        tiny.s.run()  # this thread may
    in_another_thread(tiny.s.run)


def test_a_call_of_an_engine_is_one_threads_wholly(monkeypatch):
    """Between its feed, run and download nobody else feeds, runs, or replaces a weight."""
    engine = GPT2SeqEngine()
    engine.realize_for_random_init(GPT2Config(17, 8, 2, 16, 1, 6), RecipeOptions(t_seq=6))
    engine.build_training_step()
    ids, hp = np.arange(6), [1e-2, 0.9, 0.999, 1e-8, 0, 1, 1]
    one, other = (Batch(ids, None, labels) for labels in (ids, ids[::-1].copy()))
    weights, state, decoder = engine.weights(), engine.snapshot(), engine.decoder()
    calls = {
        "train()": lambda batch: engine.train(batch, hp, False),
        "accumulate()": lambda batch: engine.accumulate(batch),
        "update()": lambda batch: engine.update(hp, False),
        "evaluate()": lambda batch: engine.evaluate(batch),
        "logits()": lambda batch: engine.logits(batch.inputs),
        "Decoder.read()": lambda batch: decoder.read(batch.inputs[:1]),
        "decoder()": lambda batch: engine.decoder(),
        "weights()": lambda batch: engine.weights(),
        "gradients()": lambda batch: engine.gradients(),
        "load_weights()": lambda batch: engine.load_weights(weights),
        "snapshot()": lambda batch: engine.snapshot(),
        "restore()": lambda batch: engine.restore(state),
    }
    run, met = Session.run, []

    def run_while_others_call(session, *given, **how):
        if not met:
            met.append(given)
            for name, call in calls.items():
                with pytest.raises(LifecycleError, match=f"{re.escape(name)} while another thread"):
                    in_another_thread(call, other)
        return run(session, *given, **how)

    for name in ("train()", "accumulate()", "update()", "evaluate()", "logits()", "Decoder.read()"):
        monkeypatch.setattr(Session, "run", run_while_others_call)
        calls[name](one)
        assert met.pop()
