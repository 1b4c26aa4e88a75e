"""One engine tells what a step takes by every level: it records the forward pass once."""

import pytest
from llamas import KINDS, config
from lora_bases import write_base

from toynn.engines import AdapterOptions, LlamaSeqEngine, SequenceEngine
from toynn.engines.plans import LEVELS, PREPACK, ROUNDED
from toynn.formats import gguf
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


@pytest.mark.parametrize("kind", ["adapters", "llama", "gemma3", "olmoe"])
def test_a_level_after_others_is_what_it_would_be_alone(kind, base):
    def engine(**options):
        return adapters(base, **options) if kind == "adapters" else all_weights(kind, **options)

    shared = engine()
    for level in (*LEVELS, *ROUNDED, LEVELS[0]):
        costs = shared.step_costs(PREPACK, level)
        alone = engine(**level._asdict())
        alone.step_memory()
        assert shared.session.tape.to_json() == alone.session.tape.to_json()
        assert costs == alone.session.costs(PREPACK)


def test_the_forward_pass_and_the_updates_are_recorded_once(base):
    engine = adapters(base)
    engine.step_costs(PREPACK, LEVELS[0])
    first = engine.session.tape.nodes
    engine.step_costs(PREPACK, LEVELS[2])
    nodes = engine.session.tape.nodes
    assert [n for n in first if n.phase != "B"] == [n for n in nodes if n.phase != "B"]
    assert len(first) < len(nodes)
