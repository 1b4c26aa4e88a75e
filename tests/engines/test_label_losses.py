"""The loss of each label of an evaluated batch, beside -log p of the logits in float64."""

import numpy as np
import pytest
from lora_bases import config, write_base

import toynn
from toynn.data.batch import IGNORED, Batch
from toynn.engines import AdapterOptions, SequenceEngine
from toynn.errors import LifecycleError
from toynn.formats import gguf
from toynn.ops import loss as ops_loss
from toynn.optim import AdamW

VOCAB, T = 40, 12


def expected(engine, ids, labels):
    logits = engine.logits(ids).astype(np.float64)
    log_p = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
    log_p -= logits.max(1, keepdims=True)
    rows = np.flatnonzero(labels != IGNORED)
    return -log_p[rows, labels[rows]]


@pytest.fixture(params=["whole", "chunks"])
def chunks(request, monkeypatch):
    """Logits at once, or five rows at a time."""
    if request.param == "chunks":
        monkeypatch.setattr(ops_loss, "WHOLE", 0)
        monkeypatch.setattr(ops_loss, "ROWS", 5)
    return request.param


@pytest.fixture(params=["llama", "gpt2"])
def engine(request, chunks):
    made = SequenceEngine()
    opts = toynn.RecipeOptions(t_seq=T, t_batch=2, label_losses=True, seed=1)
    made.realize_for_random_init(config(request.param, vocab=VOCAB, context=T), opts)
    made.build_training_step()
    return made


def batch(rng, share=0.6):
    ids, labels = (rng.integers(0, VOCAB, 2 * T).astype(np.int32) for _ in range(2))
    labels[rng.random(2 * T) > share] = IGNORED
    return ids, labels


def test_they_are_those_of_the_logits(engine):
    rng = np.random.default_rng(0)
    for step in range(3):
        ids, labels = batch(rng)
        loss = engine.evaluate(Batch(ids, None, labels))
        losses = engine.label_losses()
        np.testing.assert_allclose(losses, expected(engine, ids, labels), rtol=2e-5, atol=2e-6)
        assert loss == pytest.approx(losses.mean(), rel=1e-5)
        engine.train(Batch(ids, None, labels), AdamW.for_lora().hp_for_step(step), step == 0)
        with pytest.raises(LifecycleError, match="before evaluate"):
            engine.label_losses()  # those of the batch before


def test_a_packed_batch_of_another_size(engine):
    rng = np.random.default_rng(1)
    ids, labels = batch(rng)
    segments = np.array([0] * 5 + [5] * 4, np.int32)
    positions = np.arange(9, dtype=np.int32) - segments
    engine.evaluate(Batch(ids[:9], positions, labels[:9], segments))
    parts = [expected(engine, ids[part], labels[part]) for part in (slice(0, 5), slice(5, 9))]
    np.testing.assert_allclose(engine.label_losses(), np.concatenate(parts), rtol=2e-5, atol=2e-6)


def test_nothing_else_changes(chunks):
    """Losses, weights and the memory of others are as they were."""
    rng, losses, weights, memory = np.random.default_rng(2), [], [], []
    batches = [batch(rng) for _ in range(3)]
    for wanted in (False, True):
        made = SequenceEngine()
        opts = toynn.RecipeOptions(t_seq=T, t_batch=2, label_losses=wanted, seed=1)
        made.realize_for_random_init(config("llama", vocab=VOCAB, context=T), opts)
        made.build_training_step()
        hp = AdamW.for_lora()
        for k, (ids, labels) in enumerate(batches):
            losses.append(made.train(Batch(ids, None, labels), hp.hp_for_step(k), k == 0))
            losses.append(made.evaluate(ids, None, labels))
        weights.append(made.weights())
        memory.append(made.session.memory().peak)
    assert losses[:6] == losses[6:]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert 0 <= memory[1] - memory[0] <= 4 * 4 * 2 * T


def test_over_a_mapped_file_with_adapters(tmp_path, chunks):
    write_base(tmp_path / "base.gguf", vocab=64, context=T)
    with gguf.open(tmp_path / "base.gguf") as file:
        made = SequenceEngine()
        made.enable_lora(AdapterOptions(2, targets="q,head"))
        opts = toynn.RecipeOptions(t_seq=T, t_batch=2, label_losses=True)
        made.realize_for_mmap(file, None, opts)
        made.init_adapters("normal", 0, 0.1)
        made.build_training_step()
    ids, labels = batch(np.random.default_rng(3))
    made.evaluate(ids, None, labels)
    np.testing.assert_allclose(
        made.label_losses(), expected(made, ids, labels), rtol=2e-5, atol=2e-6
    )


def test_they_have_to_be_asked_for():
    made = SequenceEngine()
    made.realize_for_random_init(
        config("llama", vocab=VOCAB, context=T), toynn.RecipeOptions(t_seq=T, t_batch=2)
    )
    made.build_training_step()
    for _ in range(2):
        with pytest.raises(LifecycleError, match="label_losses=True"):
            made.label_losses()
        made.evaluate(*(np.zeros(2 * T, np.int32), None, np.zeros(2 * T, np.int32)))
