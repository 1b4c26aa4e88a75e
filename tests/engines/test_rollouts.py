"""Rollouts: a sample's bits depend on nothing but its seed, its prompt and its number."""

import numpy as np
import pytest
from llamas import KINDS, SIZES, make, shake
from lora_bases import write_base

import toynn
from toynn._kernels import matmul
from toynn.engines import frozen
from toynn.errors import ConfigError
from toynn.formats import gguf
from toynn.generation import Sampling, rollouts, sample
from toynn.generation.sampling import log_probability, log_softmax

CONTEXT = 140
HOW = {"samples": 8, "max_tokens": 12, "seed": 5, "temperature": 1.5}


def engine_of(kind):
    engine = make(kind, length=8, context=CONTEXT).engine
    shake(engine, np.random.default_rng(1))
    return engine


def prompts(*lengths):
    rng = np.random.default_rng(2)
    return [rng.integers(0, SIZES["vocab"], length).tolist() for length in lengths]


def told(found):
    return {(r.prompt, r.sample): (r.tokens, r.log_probabilities.tobytes()) for r in found}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_is_as_if_alone_in_any_model(kind):
    engine, texts = engine_of(kind), prompts(70, 3, 1, 30, 5)
    together = engine.batch_decoder(5, CONTEXT)
    found = [together.read(dict(enumerate(texts)))]
    found += [together.read({n: [n + step] for n in range(5)}) for step in range(30)]
    for number, ids in enumerate(texts):
        alone = engine.batch_decoder(1, CONTEXT)
        for step, logits in enumerate(found):
            piece = [number + step - 1] if step else ids
            assert alone.read({0: piece})[0].tobytes() == logits[number].tobytes(), step


@pytest.mark.parametrize("precision", ["highest", "medium", "int8"])
@pytest.mark.parametrize("type", ["F32", "Q8_0", "Q4_K"])
def test_a_row_alone_is_the_row_among_31_others(type, precision, tmp_path, monkeypatch):
    """On one thread and two, as the first of its prompt or behind others; every level, by turns."""
    if precision == "int8" and not (type != "F32" and matmul.multiplies_quads()):
        pytest.skip("int8 is for quantized weights, where the CPU multiplies bytes")
    sizes = {"d_model": 256, "n_heads": 4, "n_kv_heads": 2, "d_ff": 512, "context": CONTEXT}
    path = write_base(tmp_path / "base.gguf", "llama", type, **sizes)
    monkeypatch.setattr("toynn.numerics.precision._chosen", precision)
    texts = prompts(5, 70, 64, 1)
    with gguf.open(path) as file:
        engine = frozen(file)
    base = told(rollouts(engine, texts, rows=32, **HOW))
    assert len(base) == 32 and len(set(base.values())) == 32
    for rows, n_threads in ((1, 1), (7, 2), (31, 1)):
        engine.session.n_threads = n_threads
        assert told(rollouts(engine, texts, rows=rows, **HOW)) == base
    alone = told(rollouts(engine, texts[:1], rows=1, **HOW | {"samples": 1}))
    assert alone[0, 0] == base[0, 0]
    greedy = rollouts(engine, texts, max_tokens=12, temperature=0.0)
    if precision == "highest":
        assert [list(r.tokens) for r in greedy] == [
            sample(engine, ids, 12, temperature=0) for ids in texts
        ]


def test_a_prompt_that_goes_on_as_an_earlier_sample_is_read_as_a_whole():
    """As turns of a conversation do: read from there on, its logits would be rounded otherwise."""
    engine, (ids,), how = engine_of("llama"), prompts(9), HOW | {"samples": 1}
    (first,) = rollouts(engine, [ids], **how)
    texts = [ids, [*ids, *first.tokens, *range(30)]]
    assert told(rollouts(engine, texts, rows=1, **how)) == told(rollouts(engine, texts, **how))


def test_finished_rows_leave_and_new_ones_enter():
    engine, read = engine_of("llama"), []
    engine.compute, compute = (
        lambda *given: (read.append(len(given[1]["counts"])), compute(*given))[1],
        engine.compute,
    )
    texts, stop = prompts(6, 7, 8), frozenset(range(0, 61, 4))
    found = list(rollouts(engine, texts, rows=4, stop=stop, **HOW))
    assert [(r.prompt, r.sample) for r in found] == [(p, s) for p in range(3) for s in range(8)]
    for r in found:
        assert (r.ended == "token") == (r.tokens[-1] in stop)
        assert not stop.intersection(r.tokens[:-1])
        assert len(r.tokens) == 12 or r.ended == "token"
        assert r.log_probabilities.shape == (len(r.tokens),) and (r.log_probabilities < 0).all()
    tokens, once = sum(len(r.tokens) - 1 for r in found), 3
    assert read.count(1) >= once  # a prompt is read once, and the last row goes on by itself
    assert tokens + once <= sum(read) < 1.4 * tokens


def test_log_probabilities_are_those_of_the_tempered_model_over_all_tokens():
    engine, (ids,) = engine_of("llama"), prompts(9)
    (r,) = rollouts(engine, [ids], max_tokens=8, temperature=0.7, top_k=9, top_p=0.9, seed=1)
    logits = engine.logits(np.array(ids + list(r.tokens)))
    for n, token in enumerate(r.tokens):
        row = logits[len(ids) - 1 + n]
        assert abs(log_softmax(row / 0.7)[token] - r.log_probabilities[n]) < 1e-5
        assert token in Sampling(temperature=0.7, top_k=9, top_p=0.9).distribution(row)[0]
        assert abs(log_probability(row, token) - log_softmax(row)[token]) < 1e-6


def test_a_prompt_is_read_again_after_training():
    engine, (ids,) = engine_of("llama"), prompts(9)
    decoder = engine.batch_decoder(2, CONTEXT)
    before = decoder.read({0: ids})[0]
    engine.step(ids[:8], None, ids[1:9], toynn.AdamW.for_lora().hp_for_step(0), is_first=True)
    after = decoder.read({1: ids})[1]
    assert after.tobytes() != before.tobytes()
    decoder.copy(1, 0)
    assert decoder.read({0: [3]})[0].tobytes() == decoder.read({1: [3]})[1].tobytes()


def test_the_context_ends_a_row():
    engine = engine_of("llama")
    (r,) = rollouts(engine, prompts(CONTEXT - 4), max_tokens=99)
    assert (len(r.tokens), r.ended) == (4, "length")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ([[1]], {"samples": 0}, "samples must be a whole number, 1 or above; got 0"),
        ([[1]], {"rows": 0}, "rows must be a whole number, 1 or above; got 0"),
        ([[1]], {"max_tokens": 0}, "max_tokens must be a whole number, 1 or above; got 0"),
        ([[1]], {"temperature": -1.0}, "temperature must be"),
        ([[1], []], {}, "prompt 1 has 0 tokens; expected 1 to 139"),
        ([[1] * CONTEXT], {}, "prompt 0 has 140 tokens; expected 1 to 139"),
    ],
)
def test_bad_calls_are_refused(given, options, message):
    with pytest.raises(ConfigError, match=message):
        rollouts(engine_of("llama"), given, **options)


def test_no_prompts_give_nothing():
    assert list(rollouts(engine_of("llama"), [])) == []
