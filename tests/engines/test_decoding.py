"""Engines that read a sequence piece by piece: what is in the cache, and what comes out."""

import numpy as np
import pytest
from llamas import KINDS, SIZES, make, shake
from lora_bases import ARCHS, write_base

import toynn
from toynn.engines import LlamaSeqEngine, SequenceEngine, frozen
from toynn.engines.decoding import CHUNK
from toynn.errors import ConfigError, LabelError, LifecycleError, ShapeError
from toynn.formats import gguf
from toynn.generation.drawing import BatchReader, Reader, sample

#: Sums of float32 in different orders (a product is summed otherwise when its rows are few): either
#: comes within 2e-11 of the same model in float64.
SAME = 1e-10
HP = toynn.AdamW.for_lora().hp_for_step(0)

CONTEXT = 2 * CHUNK + 10
MODELS = ("gpt2", *KINDS)


def realized(kind, **options):
    """An engine with random weights, and ids enough to fill its context."""
    rng = np.random.default_rng(1)
    if kind == "gpt2":
        recipe = toynn.recipes.GPT2()
        config = toynn.GPT2Config(61, 24, 6, 40, 2, CONTEXT)
        recipe.realize(config, toynn.RecipeOptions(t_seq=8, **options))
    else:
        recipe = make(kind, length=8, context=CONTEXT, **options)
    shake(recipe.engine, rng)
    return recipe.engine, rng.integers(0, SIZES["vocab"], CONTEXT)


def nmse(got, expected):
    return ((got - expected) ** 2).sum() / (expected**2).sum()


@pytest.mark.parametrize("kind", MODELS)
def test_cached_logits_are_those_of_a_full_forward(kind):
    engine, ids = realized(kind)
    expected = engine.logits(ids)
    border = getattr(engine.config, "original_context", 0)  # beyond it all keys are others
    if border:
        expected[:border] = engine.logits(ids[:border])
    for pieces in (
        [1] * CONTEXT,
        [CHUNK, CHUNK, 10],
        [CHUNK - 1, 1, 2, 1, CHUNK],
        [CHUNK + 1, 3],
        [CONTEXT - 8, 8],
        [CONTEXT],
    ):
        decoder = engine.decoder()
        for piece in pieces:
            start = decoder.past
            logits = decoder.read(ids[start : start + piece])
            assert decoder.past == start + piece
            assert nmse(logits, expected[decoder.past - 1]) < SAME


@pytest.mark.parametrize("kind", MODELS)
def test_sequences_that_are_read_together_do_not_see_each_other(kind):
    """Pieces of any lengths, of some of them, and one that begins anew: as each alone."""
    engine, ids = realized(kind)
    batch = engine.batch_decoder(3, CONTEXT - 8)
    texts: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for pieces in ({0: 5, 1: 1}, {1: 30, 2: 90}, {0: 1, 1: 1, 2: 1}, {0: 40}, {0: 60, 2: 1}):
        if texts[1] and 1 not in pieces:
            batch.rewind(1)
            texts[1] = []
        new = {n: ids[n + len(texts[n]) :][:count].tolist() for n, count in pieces.items()}
        logits = batch.read(new)
        for number, piece in new.items():
            texts[number] += piece
            assert batch.past(number) == len(texts[number])
            expected = engine.decoder().read(texts[number])
            assert nmse(logits[number], expected) < SAME


def test_a_sequence_is_turned_back():
    engine, ids = realized("llama")
    decoder = engine.decoder()
    decoder.read(ids[:20])
    decoder.rewind(12)
    assert decoder.past == 12
    assert nmse(decoder.read(ids[30:33]), engine.logits(np.r_[ids[:12], ids[30:33]])[-1]) < SAME
    with pytest.raises(ConfigError, match="expected 0 to 15 tokens, which were read; got 16"):
        decoder.rewind(16)
    engine, ids = realized("lfm2")
    decoder = engine.decoder()
    decoder.read(ids[:20])
    with pytest.raises(ConfigError, match="has a recurrent state"):
        decoder.rewind(12)
    decoder.rewind()
    assert nmse(decoder.read(ids[:3]), engine.logits(ids[:3])[-1]) < SAME


INTERRUPTED = [
    ("llama", 2, True),
    ("phi3-long", 2, False),
    ("lfm2", 1, False),
    ("qwen35", 2, False),
]


@pytest.mark.parametrize(("kind", "run", "stays"), INTERRUPTED)
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupted_read_is_read_again(kind, run, stays, late, monkeypatch):
    """By the run, before or behind its kernels: what comes next is right all the same."""
    engine, ids = realized(kind)
    turn, more, new = ids[:12].tolist(), ids[20:110].tolist(), ids[50:62].tolist()
    reader, together = Reader(engine), BatchReader(engine, 2, CONTEXT)
    decoder = engine.batch_decoder(3, CONTEXT)
    reader.read(turn)
    together.read({0: turn, 1: new})
    decoder.read({0: turn, 1: new})
    whole, runs = engine.session.run, []

    def interrupted(*args, **options):
        runs.append(args)
        stops = len(runs) == run
        if not stops or late:
            whole(*args, **options)
        if stops:
            raise KeyboardInterrupt

    for read in (
        lambda: reader.read(turn + more),
        lambda: [together.read({0: turn + more}) for _ in range(2)],
        lambda: decoder.read({0: more}),
    ):
        runs.clear()
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(engine.session, "run", interrupted)
            read()
    assert [decoder.past(number) for number in range(3)] == [12 if stays else 0, 12, 0]
    rest = new if stays else turn + new
    expected = engine.logits(np.array(turn + new))[-1]
    assert nmse(reader.read(turn + new), expected) < SAME
    assert nmse(together.read({0: turn + new})[0], expected) < SAME
    logits = decoder.read({0: rest, 1: more[:3]})
    assert nmse(logits[0], expected) < SAME
    assert nmse(logits[1], engine.logits(np.array(new + more[:3]))[-1]) < SAME


@pytest.mark.parametrize("kind", ["llama", "qwen35", "phi3-long"])
def test_a_refused_read_changes_nothing(kind):
    """A bad id in a later chunk, or where the sequence would become a long one."""
    engine, ids = realized(kind)
    decoder, read = engine.decoder(), ids[:11].tolist()
    decoder.read(read)
    for bad, error, message in (
        ([1] * 70 + [61], LabelError, r"tokens: row 70 is 61; must be 0\.\.60"),
        ([1, -1], LabelError, r"tokens: row 1 is -1; must be 0\.\.60"),
        ([1.5] * 70, ShapeError, "tokens: expected i32; got float64"),
    ):
        with pytest.raises(error, match=message):
            decoder.read(bad)
        assert decoder.past == 11
    expected = engine.logits(np.array([*read, 5]))[-1]
    assert nmse(decoder.read([5]), expected) < SAME


def test_batches_before_leave_nothing_in_the_cache():
    """A new sequence sees nothing of the one before, whose rows lie behind its own."""
    engine, ids = realized("llama")
    engine.decoder().read(ids)
    expected = engine.logits(ids[5:20])[-1]
    assert nmse(engine.decoder().read(ids[5:20]), expected) < SAME


def test_generation_crosses_the_border_of_the_context():
    """It goes on as a full forward over what it has read would."""
    engine, ids = realized("qwen3")
    prompt = [int(id) for id in ids[: CONTEXT - 5]]
    got = sample(engine, prompt, 20, temperature=0)
    expected, seen = list(prompt), list(prompt)
    for _ in range(20):
        if len(seen) > CONTEXT:
            seen = seen[-(CONTEXT // 2) :]
        expected.append(int(engine.logits(np.array(seen), batch=1)[-1].argmax()))
        seen.append(expected[-1])
    assert got == expected[len(prompt) :]


def test_the_same_bits_on_any_number_of_threads():
    engine, ids = realized("llama")
    texts, logits = [], []
    for n_threads in (1, 3):
        engine.session.n_threads = n_threads
        texts.append(sample(engine, ids[:70].tolist(), 30, temperature=1.5, top_k=20, seed=4))
        logits.append(engine.decoder().read(ids).tobytes())
    assert texts[0] == texts[1]
    assert logits[0] == logits[1]


def test_training_goes_on_between_and_is_seen():
    engine, ids = realized("llama")
    before = engine.decoder().read(ids[:9])
    engine.step(ids[:8], None, ids[1:9], HP, is_first=True)
    after = engine.decoder().read(ids[:9])
    assert nmse(after, engine.logits(ids[:9])[-1]) < SAME
    assert nmse(after, before) > 1e-6


def test_an_engine_without_a_training_step_takes_no_memory_for_one():
    engine = toynn.LlamaSeqEngine()
    engine.realize_for_random_init(toynn.LlamaConfig(**SIZES), toynn.RecipeOptions())
    ids = list(range(10))
    full = engine.logits(ids)
    assert nmse(engine.decoder().read(ids), full[-1]) < SAME
    memory = engine.session.memory()
    assert memory.moments == memory.gradients == 0
    engine.build_training_step()
    assert np.array_equal(engine.logits(ids), full)


def test_files_are_read_without_a_training_step(tmp_path):
    ids = np.arange(7)
    for arch in ARCHS:
        path = write_base(tmp_path / f"{arch}.gguf", arch)
        trained, plain = (SequenceEngine.from_gguf(path, build=build) for build in (True, False))
        with gguf.open(path) as file:
            mapped = frozen(file)
        expected = trained.logits(ids)
        for engine in (plain, mapped):
            memory = engine.session.memory()
            assert memory.moments == memory.gradients == 0
            assert memory.activations < 1000
            assert np.array_equal(engine.logits(ids), expected)
            assert np.array_equal(engine.decoder().read(ids), plain.decoder().read(ids))
        assert mapped.session.memory().weights < plain.session.memory().weights / 10
        plain.export_hf(tmp_path / arch)
        again = type(plain).from_hf(tmp_path / arch, build=False)
        assert np.array_equal(again.decoder().read(ids), plain.decoder().read(ids))
        with pytest.raises(LifecycleError, match=r"step before build_training_step\(\)"):
            again.step(ids, None, ids, HP, is_first=True)


@pytest.mark.parametrize("type", ["F16", "Q8_0", "Q4_0"])
def test_quantized_weights_in_their_file(type, tmp_path):
    sizes = {"d_model": 32, "n_heads": 4, "n_kv_heads": 2, "d_ff": 64, "context": CONTEXT}
    path = write_base(tmp_path / "base.gguf", "llama", type, **sizes)
    with gguf.open(path) as file:
        mapped = frozen(file)
    dequantized = LlamaSeqEngine.from_gguf(path, build=False)
    prompt = list(range(5, 50))
    ids = sample(mapped, prompt, 80, temperature=1, seed=1)
    assert ids == sample(dequantized, prompt, 80, temperature=1, seed=1)
    decoder = mapped.decoder()
    for piece in (prompt, ids[:1], ids[1:]):
        logits = decoder.read(piece)
    assert nmse(logits, dequantized.logits(prompt + ids)[-1]) < 1e-10


def test_one_sequence_at_a_time():
    engine, ids = realized("gpt2")
    with pytest.raises(LifecycleError, match=r"decoder\(\) before realize"):
        toynn.GPT2SeqEngine().decoder()
    first = engine.decoder()
    first.read(ids[:3])
    second = engine.decoder()
    with pytest.raises(LifecycleError, match="keeps one batch of each size"):
        first.read(ids[:1])
    for wrong in (ids[:0], ids[:4].reshape(2, 2), np.zeros(CONTEXT + 1, int)):
        with pytest.raises(ShapeError, match=f"1 to {CONTEXT} ids"):
            second.read(wrong)
    for batch, room in ((0, 4), (2, CONTEXT + 1), (2, -1)):
        with pytest.raises(ConfigError, match=f"1 to {CONTEXT} tokens, the context; got {batch}"):
            engine.batch_decoder(batch, room)
    with pytest.raises(LabelError, match=r"tokens: row 1 is 61; must be 0\.\.60"):
        second.read([1, 61])
    assert second.past == 0


def test_a_cache_that_found_no_memory_may_find_it_later(monkeypatch):
    engine, ids = realized("llama")
    storage = engine.session._storage
    keep, made = storage.keep, []

    def scarce(name, shape):
        if len(made) == 3:
            raise MemoryError(name)
        made.append(name)
        return keep(name, shape)

    monkeypatch.setattr(storage, "keep", scarce)
    for _ in range(2):
        with pytest.raises(MemoryError, match=r"blk.1.values"):
            engine.decoder().read(ids[:5])
    monkeypatch.setattr(storage, "keep", keep)
    assert nmse(engine.decoder().read(ids[:5]), engine.logits(ids[:5])[-1]) < SAME
