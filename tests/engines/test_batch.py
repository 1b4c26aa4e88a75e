"""One batch for every recipe: what counts in it, and what an engine refuses."""

import numpy as np
import pytest
import vits
from llamas import draw, make
from lora_bases import write_base

from toynn import AdamW, RecipeOptions
from toynn.data.batch import Batch
from toynn.data.image_batches import LaterBatch
from toynn.engines import PreferenceOptions
from toynn.errors import ShapeError
from toynn.recipes import Preference

HP = AdamW.for_lora().hp_for_step(0)


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (Batch([1, 2, 3], None, [2, -100, 3]), 2),
        (Batch(np.zeros((3, 4)), None, np.array([[0, 1], [0, 0], [0.5, 0.5]])), 2),
        (Batch([1] * 4, None, [1] * 4, [0, 0, 2, 2], [0, 0, 2, 2, 4]), 1),
        (Batch([1] * 4, None, [1] * 4, [0, 0, 2, 2], [0, 0, 2, 2, 4], [1, 0]), 2),
    ],
    ids=["whole", "dense", "pairs", "completions"],
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


def test_a_later_batch_is_read_when_an_engine_looks_at_it():
    pictures, labels = vits.pictures(np.random.default_rng(0), 2)
    read = []

    def reading():
        read.append(True)
        return Batch(pictures, None, labels)

    later = LaterBatch(2, reading)
    assert later.rows == 2 and later.segments is None and not read
    recipe = vits.make(batch=2)
    assert recipe.evaluate(later) == recipe.evaluate(pictures, None, labels)
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
