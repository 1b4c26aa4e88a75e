"""Tapes for other shapes: as many of them as are needed now, and no more memory than theirs."""

import weakref

import numpy as np
import pytest
import vits
from tiny import Tiny

from toynn import GPT2Config, GPT2SeqEngine, RecipeOptions, ops
from toynn.backends.cpu import CPU
from toynn.errors import LifecycleError
from toynn.generation.drawing import sample
from toynn.session.session import MOST_RECORDED

CONTEXT = 200
HANDFUL = 8


@pytest.fixture
def alive(monkeypatch):
    """How much of the memory that is allocated from now on has not been freed."""
    found, allocate = [], CPU.allocate

    def watched(self, nbytes):
        buffer = allocate(self, nbytes)
        found.append((weakref.ref(buffer._bytes.base), nbytes))
        return buffer

    monkeypatch.setattr(CPU, "allocate", watched)
    return lambda: [nbytes for memory, nbytes in found if memory() is not None]


def test_memory_stays_flat_over_many_lengths(alive):
    engine = GPT2SeqEngine()
    engine.realize_for_random_init(GPT2Config(11, 8, 2, 16, 1, CONTEXT), RecipeOptions(t_seq=4))
    before = len(alive())
    ids = np.arange(CONTEXT) % 11
    first = engine.logits(ids[:CONTEXT])
    largest = engine.session.memory().activations
    for length in range(1, CONTEXT):
        engine.logits(ids[:length])
    assert len(alive()) - before <= HANDFUL
    assert engine.session.memory().activations <= HANDFUL * largest
    np.testing.assert_array_equal(engine.logits(ids), first)


def test_generation_needs_two_tapes(alive):
    engine = GPT2SeqEngine()
    engine.realize_for_random_init(GPT2Config(11, 8, 2, 16, 1, CONTEXT), RecipeOptions(t_seq=4))
    sample(engine, [1, 2, 3], 4)
    before = alive()
    for length in range(2, CONTEXT, 7):
        sample(engine, [1] * length, 3)
    assert alive() == before


def test_batches_of_many_sizes_need_the_memory_of_a_few(alive):
    """Whatever was recorded while they were there."""
    engine = GPT2SeqEngine()
    engine.realize_for_random_init(GPT2Config(11, 8, 2, 16, 1, CONTEXT), RecipeOptions(t_seq=4))
    ids = np.arange(9)
    used, counts = [], []
    first = engine.batch_decoder(2, 100)
    first.read({0: ids})
    lasting = engine.batch_decoder(3, 20)
    for room in range(101, 121):
        engine.batch_decoder(2, room).read({1: ids})
        engine.logits(ids[: room % 2 + 1])
        lasting.read({0: [1]})
        used.append(engine.session.memory().activations)
        counts.append(len(alive()))
    assert max(used[10:]) < 1.2 * used[9]
    assert max(counts[10:]) <= counts[9]
    with pytest.raises(LifecycleError, match="and 4 sizes"):
        first.read({0: ids})
    assert lasting.past(0) == 20
    again = engine.batch_decoder(2, 100).read({0: ids, 1: ids[:2]})
    for number, length in ((0, 9), (1, 2)):
        np.testing.assert_allclose(again[number], engine.logits(ids[:length])[-1], atol=1e-5)


def test_what_is_released_is_free_whatever_was_recorded_beside_it(alive):
    tiny = Tiny()
    s = tiny.s
    kept = s.persistent("kept", (1000,))
    s.record("beside it", lambda: s.output(ops.scale(s, tiny.wte, 3.0)))
    assert kept.nbytes in alive()
    s.release([kept])
    assert kept.nbytes not in alive()


def test_steps_of_many_shapes_go_too(alive):
    recipe = vits.make()
    before = len(alive())
    for batch in range(2, 30):
        pixels, labels = vits.pictures(np.random.default_rng(0), batch)
        recipe.evaluate(pixels, None, labels)
        recipe.engine.logits(pixels)
    assert len(alive()) - before <= HANDFUL


def test_the_one_that_was_not_used_for_the_longest_goes():
    tiny = Tiny()
    s, built = tiny.s, []

    def record(length):
        def build():
            built.append(length)
            ids = s.input("ids", (length,), "i32")
            return s.tape, ids, s.output(ops.embedding(s, tiny.wte, ids))

        return s.record(length, build)

    def run(length):
        tape, ids, y = record(length)
        s.upload(ids, np.zeros(length, int))
        s.run(tape=tape)
        return s.download(y)

    first, ids, y = record(1)
    for length in range(2, MOST_RECORDED + 1):
        run(length)
    kept = run(1)
    record(MOST_RECORDED + 1)  # 2 goes
    assert run(1).tobytes() == kept.tobytes()
    assert built == list(range(1, MOST_RECORDED + 2))
    run(2)
    assert built[-1] == 2
    for length in range(3, MOST_RECORDED + 2):
        run(length)
    for call in (
        lambda: s.run(tape=first),
        lambda: s.profile(first),
        lambda: s.upload(ids, [0]),
        lambda: s.download(y),
    ):
        with pytest.raises(LifecycleError, match=r"record\(\)"):
            call()
