"""All inputs of a step in one compiled call: it takes what upload takes, and refuses it alike."""

import pickle

import numpy as np
import pytest

import toynn
from toynn import ops
from toynn.backends.cpu.feed import Feed
from toynn.errors import ConfigError, LabelError, LifecycleError, ShapeError
from toynn.session import Session

V, C, N = 11, 4, 6
IDS = np.array([0, 3, 10, 2, 2, 1])
LABELS = np.array([1, -100, 10, 0, -100, 2])
ROW = toynn.AdamW.for_lora().hp_for_step(0)


@pytest.fixture
def tape():
    """A session whose tape looks up rows of a table and learns labels; its three inputs."""
    s = Session()
    table, head = s.parameter("table", (V, C)), s.parameter("head", (V, C))
    ids, labels = s.input("ids", (N,), "i32"), s.input("labels", (N,), "i32")
    hp = s.input("hp", (7,))
    logits = ops.linear(s, ops.embedding(s, table, ids), head)
    s.set_loss(ops.cross_entropy(s, logits, labels))
    s.build_backward()
    for w in (table, head):
        s.opt_step_adamw(w, s.grad(w), hp)
    s.finalize_weights()
    s.realize()
    return s, ids, labels, hp


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16, list])
def test_it_copies_what_upload_would(tape, kind):
    s, ids, labels, hp = tape
    row = ROW.astype(np.float64) if kind is np.int64 else ROW
    given = IDS.tolist() if kind is list else IDS.astype(kind)
    s.feed({ids: given, labels: LABELS, hp: row})
    assert s.download(ids).tolist() == IDS.tolist()
    assert s.download(labels).tolist() == LABELS.tolist()
    assert s.download(hp).tolist() == ROW.tolist()


def test_what_upload_refuses_is_refused_alike(tape):
    s, ids, labels, hp = tape
    s.feed({ids: IDS, labels: LABELS, hp: ROW})
    beyond, huge, hot = IDS.copy(), IDS * 2**33, ROW.astype(np.float64)
    beyond[2], hot[0] = V, 1e300
    for wrong, error, message in (
        ({ids: beyond}, LabelError, r"ids: row 2 is 11; must be 0\.\.10"),
        ({ids: beyond.astype(np.int32)}, LabelError, "row 2 is 11"),
        ({ids: -IDS}, LabelError, "row 1 is -3"),
        ({ids: LABELS}, LabelError, "row 1 is -100"),
        ({ids: huge}, LabelError, "row 1 is"),
        ({ids: IDS[:3]}, ShapeError, r"upload ids: expected \(6,\); got \(3,\)"),
        ({ids: IDS[None]}, ShapeError, r"got \(1, 6\)"),
        ({ids: IDS.astype(float)}, ShapeError, "expected i32; got float64"),
        ({labels: np.full(N, -100)}, LabelError, "all 6 rows are ignored"),
        ({labels: LABELS - 1}, LabelError, "must be 0..10, or -100"),
        ({hp: hot}, ConfigError, "hp: lr must be"),
        ({hp: ROW[:6]}, ShapeError, r"upload hp: expected \(7,\)"),
    ):
        before = [s.download(tensor).tolist() for tensor in (ids, labels, hp)]
        with pytest.raises(error, match=message):
            s.feed({labels: LABELS[::-1], hp: ROW, ids: IDS} | wrong)
        after = [s.download(tensor).tolist() for tensor in (ids, labels, hp)]
        (refused,) = wrong
        place = (ids, labels, hp).index(refused)
        assert after[place] == before[place]
        s.feed({ids: IDS, labels: LABELS, hp: ROW})


def test_order_of_memory_does_not_matter(tape):
    s, ids, labels, hp = tape
    s.feed({ids: np.repeat(IDS, 2)[::2], labels: LABELS[::-1][::-1], hp: ROW})
    assert s.download(ids).tolist() == IDS.tolist()
    swapped = IDS.astype(IDS.dtype.newbyteorder())
    s.feed({ids: swapped, labels: LABELS, hp: ROW})
    assert s.download(ids).tolist() == IDS.tolist()


def test_a_step_of_an_engine_goes_through_it(monkeypatch):
    """Were one input unusual, all would go the long way, and only a clock would tell."""
    recipe = toynn.recipes.GPT2()
    recipe.realize(toynn.GPT2Config(V, 8, 2, 16, 1, 8), toynn.RecipeOptions(t_seq=8, t_batch=2))
    monkeypatch.setattr(Session, "upload", None)
    ids = np.arange(16) % V
    engine = recipe.engine
    engine.step(ids, None, ids, ROW, True)
    engine.step(ids.astype(np.int32), np.tile(np.arange(8), 2), ids, ROW, False)
    segments = np.repeat([0, 5, 9], [5, 4, 6])
    engine.step(ids[:15], None, ids[:15], ROW, False, segments)


def test_before_its_time(tape):
    with pytest.raises(LifecycleError, match=r"feed\(\) before realize"):
        Session().feed({})
    s, ids, *_ = tape
    s.close()
    with pytest.raises(LifecycleError, match="closed"):
        s.feed({ids: IDS})


def test_the_compiled_feed():
    """Of any kind of numbers it takes those that its slot has room for."""
    rng = np.random.default_rng(0)
    whole, floats = np.zeros(5, np.int32), np.zeros((2, 3), np.float32)

    def feed(size=None, ignores=False):
        slots = [(whole.ctypes.data, (5,), True, size, ignores)]
        return Feed([*slots, (floats.ctypes.data, (2, 3), False, None, False)], [whole, floats])

    for _ in range(200):
        size = [None, 7, 2**31][rng.integers(3)]
        ignores = size == 7 and bool(rng.integers(2))
        kind = [np.int32, np.int64][rng.integers(2)]
        low, high = [(0, 7), (-1, 8), (-100, -98), (-(2**31), 2**31)][rng.integers(4)]
        ids = rng.integers(low, high, 5).astype(kind)
        if kind is np.int64 and rng.integers(4) == 0:
            ids[rng.integers(5)] = [2**31, -(2**31) - 1, 2**63 - 1, -(2**63)][rng.integers(4)]
        numbers = rng.normal(size=(2, 3)).astype([np.float32, np.float64][rng.integers(2)])
        numbers[0, 0] = [1.0, np.inf, np.nan][rng.integers(3)]
        wide = numbers.dtype == np.float64 and rng.integers(4) == 0
        if wide:
            numbers[1, 2] = 1e39
        inside = [v for v in ids.tolist() if not (ignores and v == -100)]
        limits = (-(2**31), 2**31) if size is None else (0, size)
        right = all(limits[0] <= v < limits[1] for v in inside) and not wide
        right = right and not (ignores and not inside)
        before = whole.copy(), floats.copy()
        assert feed(size, ignores).put((ids, numbers)) is right
        want = (ids, numbers.astype(np.float32)) if right else before
        assert np.array_equal(whole, want[0])
        assert np.array_equal(floats, want[1], equal_nan=True)
    for wrong in ((whole,), (whole, floats, floats), (whole, floats.T), (whole, None), ("x", "y")):
        assert feed().put(wrong) is False
    with pytest.raises(ValueError, match="at most 16 inputs; got 17"):
        Feed([(whole.ctypes.data, (5,), True, None, False)] * 17, None)
    with pytest.raises(ValueError, match="at most 2 axes"):
        Feed([(whole.ctypes.data, (1, 1, 1), True, None, False)], None)
    with pytest.raises(TypeError, match="holds addresses"):
        pickle.dumps(feed())
