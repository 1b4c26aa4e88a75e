"""Examples packed into rows: how full they are, what each batch holds, going on from a state."""

import json

import numpy as np
import pytest

from toynn.data.batch import IGNORED
from toynn.data.examples import Example, Examples
from toynn.data.packing import FEW, PackedExamples, _best_fit, pack, packed_in_order

SEQ = 512


def natural(count, seed=0):
    """Lengths as in public instruction data: 31 to 445 tokens, 170 in the mean."""
    draws = np.random.default_rng(seed).normal(5.0, 0.55, count)
    return np.clip(np.exp(draws).astype(int), 31, 445)


def numbered(lengths, seq=SEQ, **options):
    """Examples with so many tokens to read, each of which names it; half of them are a prompt."""
    examples = Examples(seq, **options)
    for number, length in enumerate(lengths):
        half = (length + 1) // 2
        examples.append([([number] * half, False), ([number] * (length + 1 - half), True)])
    return examples


def drawn(batches, count):
    return [batch.inputs.tobytes() for batch in (next(batches) for _ in range(count))]


def test_natural_lengths_fill_their_rows():
    for count, filled in ((200, 0.95), (2000, 0.99)):
        lengths = natural(count)
        rows = pack(lengths, SEQ, np.arange(count))
        assert sorted(index for row in rows for index in row) == list(range(count))
        assert max(sum(lengths[row]) for row in rows) <= SEQ
        assert lengths.sum() / (len(rows) * SEQ) >= filled


def test_the_row_with_the_least_room_is_taken():
    assert pack([6, 5, 4, 3, 2], 10, np.arange(5)) == [[0, 2], [1, 3, 4]]
    assert pack([3, 3, 3], 3, np.array([2, 0, 1])) == [[2], [0], [1]]


def test_few_examples_fill_their_rows_too():
    """Also where best fit needs one row more: 4 lies beside 5, 4 beside 3; a 2 is left over."""
    assert pack([5, 4, 4, 3, 2, 2], 10, np.arange(6)) == [[0, 4, 3], [1, 5, 2]]
    more = {"best fit": 0, "here": 0}  # rows than the tokens need
    for seed in range(20):
        lengths = natural(64, seed)
        fewest = -(-lengths.sum() // SEQ)
        by_length = np.argsort(-lengths, kind="stable").tolist()
        more["best fit"] += len(_best_fit(dict(enumerate(lengths)), SEQ, by_length)) - fewest
        for epoch in range(2):
            rows = pack(lengths, SEQ, np.random.default_rng(epoch).permutation(64))
            assert sorted(index for row in rows for index in row) == list(range(64))
            assert max(sum(lengths[row]) for row in rows) <= SEQ
            assert lengths.sum() / (len(rows) * SEQ) >= 0.95
            more["here"] += len(rows) - fewest
    assert more["here"] <= 4 < 8 <= more["best fit"], more  # in two epochs, and in one


def test_an_epoch_has_as_many_rows_in_any_order():
    for count, seed in ((64, 2), (FEW, 0), (FEW + 1, 0)):
        lengths = natural(count, seed)
        orders = (np.random.default_rng(epoch).permutation(count) for epoch in range(3))
        filled = [sorted(sum(lengths[row]) for row in pack(lengths, SEQ, o)) for o in orders]
        assert filled[0] == filled[1] == filled[2]


def test_a_batch_is_whole_rows_whose_examples_do_not_see_each_other():
    lengths = natural(100)
    source = PackedExamples(numbered(lengths), 4, seed=1)
    for _ in range(9):
        batch = next(source)
        assert all(array.dtype == np.int32 and array.shape == (batch.tokens,) for array in batch)
        assert batch.tokens <= batch.room == 4 * SEQ
        numbers = batch.inputs[batch.segments == np.arange(batch.tokens)]
        assert len(set(numbers.tolist())) == batch.examples
        assert batch.tokens == lengths[numbers].sum()
        np.testing.assert_array_equal(batch.positions, np.arange(batch.tokens) - batch.segments)
        assert (batch.inputs == batch.inputs[batch.segments]).all()
        counts = batch.labels != IGNORED
        assert batch.rows == counts.sum() == sum(n + 1 - (n + 1) // 2 for n in lengths[numbers])
        assert (batch.labels[counts] == batch.inputs[counts]).all()


def test_an_epoch_has_every_example_once_and_each_is_packed_anew():
    lengths = natural(60)
    source = PackedExamples(numbered(lengths), 1, seed=5)
    epochs = []
    for _ in range(3):
        rows, seen = [], []
        while len(seen) < 60:
            batch = next(source)
            rows.append(batch.inputs.tobytes())
            seen += batch.inputs[batch.positions == 0].tolist()
        assert sorted(seen) == list(range(60))
        epochs.append(rows)
    assert source.per_epoch == len(epochs[0])
    assert epochs[0] != epochs[1] and sorted(epochs[0]) != sorted(epochs[1])
    assert drawn(PackedExamples(numbered(lengths), 1, 5), 9) == epochs[0][:9]
    assert drawn(PackedExamples(numbered(lengths), 1, 6), 9) != epochs[0][:9]


@pytest.mark.parametrize("before", [0, 1, 12, 40])
def test_training_goes_on_from_a_state(before):
    examples = numbered(natural(60))
    first, second = PackedExamples(examples, 3, 5), PackedExamples(examples, 3, 0)
    drawn(first, before)
    drawn(second, 2)
    second.state = json.loads(json.dumps(first.state))
    assert drawn(first, 20) == drawn(second, 20)


def test_evaluation_sees_every_example_once_or_some_spaced_evenly():
    lengths = natural(100)
    examples = numbered(lengths)
    batches = packed_in_order(examples, 2)
    assert sorted(n for b in batches for n in b.inputs[b.positions == 0]) == list(range(100))
    assert [b.inputs.tobytes() for b in batches] == [
        b.inputs.tobytes() for b in packed_in_order(examples, 2)
    ]
    some = packed_in_order(examples, 2, max_batches=3)
    numbers = np.concatenate([b.inputs[b.positions == 0] for b in some])
    assert len(some) <= 3 and numbers.min() < 20 and numbers.max() > 80
    assert packed_in_order(Examples(SEQ), 2, 3) == []


def test_a_prompt_ends_before_the_last_completion():
    """As TRL has it, all before the last answer of a conversation."""
    examples, prompt, answer = Examples(12), ([1, 2], False), ([3, 4], True)
    for parts in ([prompt, answer], [prompt, answer, ([5], False), ([6], True), ([7], False)]):
        examples.append(parts)
    assert examples.prompted and examples[0].prompt == [1, 2]
    assert examples[1].prompt == [1, 2, 3, 4, 5]
    again = Example.completed([1, 2], [3, 4])
    assert all((a == b).all() for a, b in zip(again, examples[0], strict=True))
    examples.append([answer, prompt, answer])
    assert not examples.prompted and examples.pick([1, 0]).prompted


def test_too_long_an_example_loses_its_end_or_its_beginning():
    ids = list(range(10))
    for keep_end, kept, labels in ((False, [0, 1, 2, 3], 2), (True, [5, 6, 7, 8], 4)):
        examples = Examples(4, keep_end=keep_end)
        examples.append([(ids[:3], False), (ids[3:], True)])
        assert examples[0].ids.tolist() == kept
        assert (examples.cut, examples.labels) == (1, labels)
        assert np.count_nonzero(examples[0].labels != IGNORED) == labels
    examples = Examples(4)
    examples.append([([1], True)])  # one token: nothing follows it
    examples.append([(ids[:8], False), (ids[8:], True)])  # nothing to learn is left
    assert (len(examples), examples.dropped, examples.longest) == (0, 2, 0)
