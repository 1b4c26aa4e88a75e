"""One engine tells what a step takes by every level: it records the forward pass once."""

import pytest
from llamas import KINDS, config
from lora_bases import write_base

from toynn.engines import AdapterOptions, LlamaSeqEngine, SequenceEngine
from toynn.engines.plans import LEVELS, PREPACK, ROUNDED
from toynn.errors import ConfigError
from toynn.formats import gguf
from toynn.graph.lowering import lower
from toynn.options import RecipeOptions


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "base.gguf")


def adapters(base, **options):
    engine = SequenceEngine()
    engine.enable_lora(AdapterOptions(4, targets="all-linear", dropout=0.1))
    with gguf.open(base) as file:
        engine.declare_for_mmap(file, None, RecipeOptions(t_seq=8, **options))
    return engine


def all_weights(kind, **options):
    changes, needed = KINDS[kind]
    engine = LlamaSeqEngine()
    engine.declare(config(**changes), RecipeOptions(t_seq=8, packed=True, **needed | options))
    return engine


@pytest.fixture
def lowered(monkeypatch):
    """The tapes that a session asks about, as they were then."""
    tapes = []

    def spy(tape, *rest):
        tapes.append((tape.to_json(), list(tape.nodes)))
        return lower(tape, *rest)

    monkeypatch.setattr("toynn.session.session.lower", spy)
    return tapes


@pytest.mark.parametrize("kind", ["adapters", "llama", "gemma3", "olmoe"])
def test_a_level_after_others_is_what_it_would_be_alone(kind, base, lowered):
    def engine(**options):
        return adapters(base, **options) if kind == "adapters" else all_weights(kind, **options)

    shared = engine()
    for level in (*LEVELS, *ROUNDED, LEVELS[0]):
        costs = shared.step_costs(PREPACK, level)
        (asked, _) = lowered[-1]
        alone = engine(**level._asdict())
        alone.step_memory()
        assert asked == alone.session.tape.to_json()
        assert costs == alone.session.costs(PREPACK)


def test_the_forward_pass_and_the_updates_are_recorded_once(base, lowered):
    engine = adapters(base)
    for level in (LEVELS[0], LEVELS[2]):
        engine.step_costs(PREPACK, level)
    (_, first), (_, nodes) = lowered
    assert [n for n in first if n.phase != "B"] == [n for n in nodes if n.phase != "B"]
    assert len(first) < len(nodes)


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        ({"checkpointing": True, "keep_attention": True}, ""),
        ({"activations": "bfloat16"}, ""),
        ({"activations": "bf16"}, "activations must be one of float32, bfloat16"),
        ({"keep_attention": True}, "keep_attention=True is for checkpointing=True"),
        ({"foo": True}, "foo"),
    ],
)
def test_a_question_about_costs_leaves_the_step_as_it_was(choices, error, base):
    engine = adapters(base)
    engine.step_memory()
    tape = engine.session.tape
    before, phase = tape.to_json(), tape.phase
    if error:
        with pytest.raises((ConfigError, TypeError), match=error):
            engine.session.costs(PREPACK, choices)
    else:
        engine.session.costs(PREPACK, choices)
    assert (tape.to_json(), tape.phase) == (before, phase)
