"""One batch for every recipe: what counts in it, and what an engine refuses."""

import numpy as np
import pytest
import vits
from llamas import draw, make
from lora_bases import write_base

from toynn import AdamW, RecipeOptions
from toynn.data.batch import IGNORED, Batch
from toynn.data.image_batches import LaterBatch
from toynn.engines import PreferenceOptions
from toynn.errors import LabelError, ShapeError
from toynn.recipes import Preference
from toynn.train import Trainer

HP = AdamW.for_lora().hp_for_step(0)


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (Batch([1, 2, 3], None, [2, -100, 3]), 2),
        (Batch(np.zeros((3, 4)), None, np.array([[0, 1], [0, 0], [0.5, 0.5]])), 2),
        (Batch(np.zeros((4, 4)), None, np.array([0, 0.5, 0.5])), 1),
        (Batch([1] * 4, None, [1] * 4, [0, 0, 2, 2], [0, 0, 2, 2, 4]), 1),
        (Batch([1] * 4, None, [1] * 4, [0, 0, 2, 2], [0, 0, 2, 2, 4], [1, 0]), 2),
    ],
    ids=["whole", "dense", "one picture", "pairs", "completions"],
)
def test_rows_that_count(batch, rows):
    assert batch.rows == rows
    assert len(list(batch)) == 3 + (batch.bounds is not None) * (2 + (batch.wanted is not None))


def test_whole_or_array_by_array_it_is_the_same_step():
    ids, labels = draw(np.random.default_rng(0), 2)
    whole, apart = make(batch=2), make(batch=2)
    batch = Batch(ids, None, labels)
    assert whole.evaluate(batch) == apart.evaluate(ids, None, labels)
    assert whole.accumulate(batch) == apart.accumulate(ids, None, labels)
    assert whole.train(batch, HP, True) == apart.step(ids, None, labels, HP, True)
    assert whole.evaluate(tuple(batch)) == apart.evaluate(batch)  # as batches of one's own are
    assert whole.train(tuple(batch), HP, False) == apart.train(batch, HP, False)
    assert whole.step_index == whole.engine.step_index == 2


@pytest.mark.parametrize("width", [3, 4, 8, 16])
def test_rows_of_a_table_do_not_see_one_another(width):
    """Whatever their length: t_seq is 8 here, and 16 tokens are several rows of most."""
    ids = np.random.default_rng(1).integers(0, 11, (2 if width == 16 else 4, width))
    recipe = make(batch=2, length=8, context=16)
    assert recipe.engine.t_seq == 8
    whole = recipe.evaluate({"input_ids": ids})
    alone = [recipe.evaluate({"input_ids": row}) for row in ids]
    np.testing.assert_allclose(whole, np.mean(alone), rtol=1e-6)
    assert recipe.evaluate((ids[:, :-1], ids[:, 1:])) == pytest.approx(whole, rel=1e-6)


def test_positions_that_begin_anew_part_examples():
    ids = np.random.default_rng(1).integers(0, 11, 8)
    recipe = make(batch=1, length=8)
    parts = {"input_ids": ids, "position_ids": [0, 1, 2, 0, 1, 2, 3, 4]}
    counted = [(recipe.evaluate({"input_ids": part}), len(part) - 1) for part in (ids[:3], ids[3:])]
    mean = sum(loss * rows for loss, rows in counted) / 6
    assert recipe.evaluate(parts) == pytest.approx(mean, rel=1e-6)


def test_labels_are_not_wrapped():
    with pytest.raises(LabelError):
        make(batch=1, length=8).evaluate(
            {"input_ids": np.arange(8), "labels": np.full(8, 2**32 + 5)}
        )


def test_a_pair_and_a_mapping_are_batches():
    ids = np.array([[5, 6, 7, 8], [1, 2, 3, 3]])
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
    pair = Batch.of((ids[:, :-1], ids[:, 1:]))
    assert pair.inputs.tolist() == [5, 6, 7, 1, 2, 3] and pair.labels.tolist() == [6, 7, 8, 2, 3, 3]
    assert pair.positions is None
    named = Batch.of({"input_ids": torch_like(ids), "attention_mask": mask, "labels": None})
    assert named.inputs.tolist() == ids.ravel().tolist()
    assert named.labels.tolist() == [6, 7, 8, -100, 2, 3, -100, -100]
    masked = Batch.of({"input_ids": ids, "labels": np.where(ids < 7, -100, ids)})
    assert masked.labels.tolist() == [-100, 7, 8, -100, -100, -100, -100, -100]
    alone = Batch.of({"input_ids": ids[0], "position_ids": [3, 4, 5, 6]})
    assert alone.positions.tolist() == [3, 4, 5, 6] and alone.labels.tolist() == [6, 7, 8, -100]


def torch_like(values):
    """What is an array only by the protocol, as a tensor of PyTorch is."""

    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return np.array(values, dtype)

    return Tensor()


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ("text", TypeError, "expected a batch; got str. For example Batch"),
        ({"ids": [1]}, TypeError, "got dict with 'ids'. For example"),
        ({"input_ids": [1], "token_type_ids": [0]}, TypeError, "'token_type_ids'"),
        ({"input_ids": ["a"]}, TypeError, "expected a batch; got dict"),
        (([1, 2],), TypeError, "got tuple of 1: list"),
        (("a", "b"), TypeError, "got tuple of 2: str, str"),
        (([1, [2]], [1]), TypeError, "got tuple of 2: list, list"),
        (None, TypeError, "got NoneType"),
        (7, TypeError, "got int"),
        ({"input_ids": [1, 2], "labels": [1]}, ShapeError, r"input_ids \(2,\), labels \(1,\)"),
        ({"input_ids": [[1, 2]], "attention_mask": [[0, 1]]}, ShapeError, "pad on the right"),
    ],
)
def test_what_is_no_batch_is_told_what_is_one(batch, error, message):
    with pytest.raises(error, match=message):
        Batch.of(batch)


def test_the_trainer_takes_pairs_and_mappings():
    rng = np.random.default_rng(0)
    ids, labels = draw(rng, 2)
    rows = [each.reshape(2, -1) for each in (ids, labels)]
    whole = [Batch(ids, None, labels)]
    named = {"input_ids": rows[0], "labels": np.insert(rows[1], 0, -100, axis=1)[:, :-1]}
    losses = []
    for data in (whole, [tuple(whole[0])], [tuple(rows)], iter([tuple(rows)] * 3), Loader(rows)):
        trainer = Trainer(make(batch=2), data, steps=3, valid=[tuple(rows)], progress=False)
        losses.append((trainer.fit().train_loss, trainer.result.val_loss))
    trainer = Trainer(make(batch=2), whole, steps=3, valid=Loader(rows, 1), progress=False)
    losses.append((trainer.fit().train_loss, trainer.result.val_loss))
    assert len(set(losses)) == 1
    result = Trainer(make(batch=2), [named], steps=1, progress=False).fit()
    followed = rows[1][:, :-1]  # the last token of a row is followed by none
    assert result.trained_tokens == np.count_nonzero(followed != IGNORED)
    for data in ("text", 7, {"input_ids": ids}):
        with pytest.raises(TypeError, match="data: expected a Dataset, a list or an iterator"):
            Trainer(make(batch=2), data, steps=1)
    with pytest.raises(TypeError, match="expected a batch; got str"):
        Trainer(make(batch=2), ["text"], steps=1, progress=False).fit()


class Loader:
    """What can only be iterated over, as PyTorch's DataLoader."""

    def __init__(self, rows, count=3):
        self.batches = [list(rows)] * count

    def __iter__(self):
        return iter(self.batches)


def test_a_later_batch_is_read_when_an_engine_looks_at_it():
    pictures, labels = vits.pictures(np.random.default_rng(0), 2)
    read = []

    def reading():
        read.append(True)
        return Batch(pictures, None, labels)

    later = LaterBatch(2, reading)
    assert later.rows == 2 and later.segments is None and not read
    with pytest.raises(AttributeError, match="inputs"):  # no attribute reads by the way
        _ = later.inputs
    assert not read
    recipe = vits.make(batch=2)
    assert recipe.evaluate(later) == recipe.evaluate(pictures, None, labels)
    assert later.read() is later.read() and later.read().inputs is pictures
    assert read == [True]


def test_an_engine_refuses_a_batch_that_its_loss_is_not_of(tmp_path):
    ids, labels = draw(np.random.default_rng(0))
    with pytest.raises(ShapeError, match="expected no bounds"):
        make().evaluate(Batch(ids, None, labels, np.zeros_like(ids), [0, 0, 2]))
    base = tmp_path / "base.gguf"
    write_base(base)
    recipe = Preference(PreferenceOptions())
    recipe.realize(base, None, 2, RecipeOptions(t_seq=8, packed=True))
    with pytest.raises(ShapeError, match="needs segments and bounds"):
        recipe.evaluate(np.arange(8), None, np.arange(8))
