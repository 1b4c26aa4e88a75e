"""Several sources in one run: shares that are exact, epochs, going on, rows that stay apart."""

import json
from collections import Counter

import numpy as np
import pytest

from toynn.data import jsonl
from toynn.data.batch import IGNORED
from toynn.data.mixture import Mixture, next_source
from toynn.data.preference import read_preferences
from toynn.engines import GPT2Config
from toynn.errors import ConfigError
from toynn.formats.tokenizer import ByteTokenizer
from toynn.options import RecipeOptions
from toynn.recipes import GPT2
from toynn.train.trainer import Trainer

SEQ = 24


def examples(folder, name, count, letter, **options):
    """Examples of one letter each, in as many rows as there are of them."""
    path = folder / name
    rows = ({"text": letter * (14 + k % 7)} for k in range(count))
    path.write_text("\n".join(map(json.dumps, rows)))
    options = {"holdout": max(count // 10, 1)} | options
    return jsonl.read(path, ByteTokenizer(), SEQ, vocab_size=256, packing=True, **options)


def text(folder, letter, count=600):
    path = folder / "text.txt"
    path.write_text(letter * count)
    return jsonl.long_text(path, ByteTokenizer(), SEQ, vocab_size=256)


def pairs(folder, name, count, letter, seq=SEQ, **options):
    path = folder / name
    rows = ({"prompt": "?", "chosen": letter * (k + 2), "rejected": "x"} for k in range(count))
    path.write_text("\n".join(map(json.dumps, rows)))
    return read_preferences(path, ByteTokenizer(), seq, vocab_size=256, holdout=1, **options)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_no_source_is_ever_a_row_off(count):
    weights = np.random.default_rng(count).uniform(0.01, 1, count)
    weights /= weights.sum()
    drawn = [0] * count
    for n in range(1, 2001):
        drawn[next_source(weights.tolist(), drawn)] += 1
        off = np.abs(np.array(drawn) - n * weights)
        assert off.max() <= 1 - 1 / (2 * count - 2) + 1e-9


def test_rows_are_of_the_sources_in_their_shares(tmp_path):
    mixed = Mixture.of(
        {"a": examples(tmp_path, "a.jsonl", 20, "a"), "b": examples(tmp_path, "b.jsonl", 10, "b")},
        [3, 1],
    )
    assert mixed.weights == (0.75, 0.25) and mixed.packed and mixed.seq == SEQ
    batches = mixed.batches(4, 0)
    for _ in range(10):
        batch = next(batches)
        assert batch.segments is not None and batch.room == 4 * mixed.seq
        starts = batch.segments == np.arange(batch.tokens)
        assert Counter(batch.inputs[starts].tolist()) == {97: 3, 98: 1}
        np.testing.assert_array_equal(batch.inputs[batch.segments], batch.inputs)
        np.testing.assert_array_equal(batch.positions, np.arange(batch.tokens) - batch.segments)


def test_an_epoch_without_weights_has_everything_once(tmp_path):
    parts = {
        "a": examples(tmp_path, "a.jsonl", 20, "a"),
        "b": examples(tmp_path, "b.jsonl", 10, "b"),
    }
    mixed = Mixture.of(parts)
    assert mixed.passes == pytest.approx((1, 1)) and sum(mixed.rows) == 18 + 9
    batches = mixed.batches(3, 0)
    assert batches.per_epoch == 9
    seen = Counter()
    for _ in range(9):
        batch = next(batches)
        starts = np.flatnonzero(batch.segments == np.arange(batch.tokens))
        ends = [*starts[1:], batch.tokens]
        seen.update((int(batch.inputs[s]), int(e - s)) for s, e in zip(starts, ends, strict=True))
    expected = Counter()
    for part in parts.values():
        expected.update(
            (int(part.train[k].ids[0]), len(part.train[k].ids)) for k in range(len(part.train))
        )
    assert seen == expected


def test_weights_say_how_often_an_epoch_goes_through_a_source(tmp_path):
    mixed = Mixture.of(
        {"a": examples(tmp_path, "a.jsonl", 20, "a"), "b": examples(tmp_path, "b.jsonl", 10, "b")},
        [1, 2],
    )
    assert mixed.passes == pytest.approx((9 / 18, 18 / 9))
    assert "b: 66.7% of the rows; an epoch goes through it 2.00 x" in mixed.notes
    assert "an epoch is 27 rows, as many as all sources have" in mixed.notes


def test_the_same_batches_follow_a_state(tmp_path):
    mixed = Mixture.of(
        {"a": examples(tmp_path, "a.jsonl", 20, "a"), "t": text(tmp_path, "t")}, [0.6, 0.4]
    )
    batches = mixed.batches(3, 5)
    for _ in range(7):
        next(batches)
    state = json.loads(json.dumps(batches.state))
    expected = [next(batches).inputs.tobytes() for _ in range(20)]
    again = mixed.batches(3, 0)
    again.state = state
    assert [next(again).inputs.tobytes() for _ in range(20)] == expected
    other = mixed.batches(3, 6)
    assert [next(other).inputs.tobytes() for _ in range(20)] != expected


def test_windows_of_texts_alone_are_not_packed(tmp_path):
    (tmp_path / "other").mkdir()
    mixed = Mixture.of({"t": text(tmp_path, "t"), "u": text(tmp_path / "other", "u", 200)}, [1, 1])
    batch = next(mixed.batches(2, 0))
    assert batch.segments is None and not mixed.packed
    assert batch.inputs.tolist() == [ord("t")] * SEQ + [ord("u")] * SEQ
    assert {part.source for part in mixed.valid_batches(1, 4)} == {"t", "u"}


def test_windows_beside_examples_are_segments(tmp_path):
    mixed = Mixture.of(
        {"a": examples(tmp_path, "a.jsonl", 20, "a"), "t": text(tmp_path, "t")}, [1, 1]
    )
    assert mixed.seq == SEQ
    batch = next(mixed.batches(2, 0))
    begin = int(np.flatnonzero(batch.inputs == ord("t"))[0])
    assert (batch.segments[begin:] == begin).all() and batch.tokens - begin == SEQ
    assert (batch.labels[begin:] == ord("t")).all() and batch.room == 2 * SEQ


def test_preferences_are_joined_as_if_they_were_one_batch(tmp_path):
    a, b = pairs(tmp_path, "a.jsonl", 6, "a"), pairs(tmp_path, "b.jsonl", 6, "b")
    batch = next(Mixture.of({"a": a, "b": b}, [1, 1]).batches(2, 0))
    assert batch.rows * 2 == batch.examples == len(batch.bounds) // 2
    counted = np.flatnonzero(batch.labels != IGNORED)
    assert batch.bounds[-1] == len(counted) and (np.diff(batch.bounds) >= 0).all()
    said = [
        bytes(batch.labels[counted[i:j]].tolist())[:1]
        for i, j in zip(batch.bounds[1::2], batch.bounds[2::2], strict=True)
    ]
    assert set(said[::2]) == {b"a", b"b"} and set(said[1::2]) == {b"x"}
    np.testing.assert_array_equal(batch.positions, np.arange(batch.tokens) - batch.segments)
    kto = [pairs(tmp_path, f"{n}.jsonl", 4, n, loss="kto") for n in "cd"]
    batch = next(Mixture.of(dict(zip("cd", kto, strict=True))).batches(2, 0))
    assert len(batch.wanted) == batch.rows


def test_the_trainer_takes_a_mixture_for_so_many_epochs(tmp_path):
    mixed = Mixture.of(
        {"a": examples(tmp_path, "a.jsonl", 10, "a"), "b": examples(tmp_path, "b.jsonl", 6, "b")},
        [1, 3],
    )
    recipe = GPT2()
    options = RecipeOptions(t_seq=mixed.seq, t_batch=2, packed=True)
    recipe.realize(GPT2Config(256, 16, 2, 32, 1, 32), options)
    kept = {"epochs": 2, "lr": 0.05, "eval_every": 7, "log_every": 99, "progress": False}
    result = Trainer(recipe, mixed, **kept).fit()
    assert result.iterations == 14  # 9 + 5 rows, two in a batch, twice
    first, last = (result.reports[k].figures for k in (0, -1))
    assert first.keys() == {"val_loss/a", "val_loss/b"}
    assert all(last[name] < first[name] for name in first)
    report = result.reports[-1]  # a row of each is held out
    assert min(last.values()) < report.val_loss < max(last.values())


def test_what_cannot_be_mixed(tmp_path):
    a, b = examples(tmp_path, "a.jsonl", 20, "a"), pairs(tmp_path, "b.jsonl", 6, "b")
    kto = pairs(tmp_path, "kto.jsonl", 4, "k", loss="kto")
    longer = pairs(tmp_path, "longer.jsonl", 4, "l", seq=SEQ + 1)
    for sources, weights, message in (
        ({"a": a}, None, "needs two sources or more; got 1"),
        ({"a": a, "b": b}, None, "preferences can be mixed only with preferences"),
        ({"b": b, "kto": kto}, None, "expected sources that are all pairs, or all labelled"),
        ({"kto": kto, "b": b}, None, "expected sources that are all pairs, or all labelled"),
        (
            {"b": b, "longer": longer},
            None,
            f"the same seq; got rows of {2 * SEQ}, {2 * SEQ + 2} tokens",
        ),
        ({"a": a, "c": a}, [1], "expected 2 weights; got 1"),
        ({"a": a, "c": a}, [1, 0], "weights must be above 0; got 1, 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            Mixture.of(sources, weights)
