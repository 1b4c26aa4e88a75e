"""Further tapes over one session: what they share, what outlives them, and what is released."""

import numpy as np
import pytest
from tiny import C, N, Tiny, V

from toynn import ops
from toynn.errors import (
    ConfigError,
    LifecycleError,
    ShapeError,
)
from toynn.session import Session


def test_a_persistent_tensor_outlives_runs_and_tapes():
    tiny = Tiny()
    s = tiny.s
    before = s.memory()
    kept = s.persistent("kept", (N, C))
    assert s.memory().activations == before.activations + kept.nbytes
    assert not s.download(kept).any()
    with pytest.raises(ConfigError, match="kept: this session has"):
        s.persistent("kept", (1,))
    for _ in range(2):  # a name that was refused is free
        with pytest.raises(ShapeError, match="other: every dimension"):
            s.persistent("other", (0,))

    def writer():
        s.tape.record(ops.SCALE, {"y": kept, "x": kept}, alpha=2.0)
        return s.tape

    def reader():
        return s.tape, s.output(ops.scale(s, kept, 10.0))

    write, (read, y) = s.record("write", writer), s.record("read", reader)
    s.upload(kept, np.ones((N, C)))
    for _ in range(3):
        s.run(tape=write)
    s.run()
    s.run(tape=read)
    assert (s.download(y) == 80).all()


def test_a_persistent_tensor_is_released_with_the_tapes_that_use_it():
    tiny = Tiny()
    s = tiny.s
    before = s.memory()
    kept = [s.persistent(name, (N, C)) for name in "ab"]
    other = s.record("other", lambda: (s.tape, s.output(ops.scale(s, tiny.wte, 3.0))))
    with_other = s.memory().activations - 2 * kept[0].nbytes

    def build():
        return s.tape, s.output(ops.scale(s, kept[0], 10.0))

    def within():
        build()
        s.release(kept)

    with pytest.raises(LifecycleError, match="another tape is being recorded"):
        s.record("within", within)
    tape, _ = s.record("key", build)
    for wrong in (tiny.wte, Tiny().s.persistent("a", (N, C))):
        with pytest.raises(ConfigError, match="is not a persistent tensor of this session"):
            s.release([kept[1], wrong])
    s.release(kept)
    s.release([])
    assert s.memory().activations == with_other > before.activations
    with pytest.raises(LifecycleError, match=r"record\(\)"):
        s.run(tape=tape)
    with pytest.raises(ConfigError, match="not a persistent tensor"):
        s.release(kept[:1])
    s.run(tape=other[0])
    assert np.array_equal(s.download(other[1]), 3 * s.download(tiny.wte))
    assert not s.download(s.persistent("a", (2,))).any()
    own = Session()
    mine = own.persistent("mine", (4,))
    ops.scale(own, mine, 2.0)
    with pytest.raises(LifecycleError, match="of a tensor that the session's own tape uses"):
        own.release([mine])


def test_a_further_tape_shares_the_weights():
    tiny = Tiny()
    s = tiny.s

    def build():
        tokens = s.input("tokens", (3,), "i32")
        return s.tape, tokens, s.output(ops.embedding(s, tiny.wte, tokens))

    tape, tokens, y = s.record("three", build)
    assert s.record("three", build)[0] is tape is not s.tape
    s.upload(tokens, [1, 2, 3])
    s.run(tape=tape)
    assert np.array_equal(s.download(y), s.download(tiny.wte)[1:4])
    s.run()


@pytest.mark.parametrize("first", [True, False])
def test_every_training_tape_trains_the_same_parameters(first):
    """Else the norm would count gradients of another step."""
    s = Session()
    w, late = s.parameter("w", (V, C)), s.parameter("late", (N, C))

    def train(both):
        labels = s.input("labels", (N,), "i32")
        x = ops.embedding(s, w, s.input("tokens", (N,), "i32"))
        s.set_loss(ops.cross_entropy(s, ops.add(s, x, late) if both else x, labels))
        s.build_backward()

    train(both=first)
    s.finalize_weights()
    s.realize()
    with pytest.raises(ConfigError, match=r"late gets (no|a) gradient .* the same parameters"):
        s.record("second", lambda: train(both=not first))
