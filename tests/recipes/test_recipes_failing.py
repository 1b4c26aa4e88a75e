"""Recipes that fail half way for want of memory: they can be realized again, and train the same."""

import numpy as np
import pytest
from llamas import SIZES
from lora_bases import write_base
from realizing import LLAMA, OPTIONS, RECIPES, one_step

from toynn import LlamaConfig, RecipeOptions
from toynn.backends.cpu import CPU
from toynn.engines import LlamaSeqEngine
from toynn.errors import LifecycleError
from toynn.recipes import WarmStart


@pytest.fixture
def allocations(monkeypatch):
    """How many allocations are still granted; None: all. The next one is a MemoryError."""
    state = {"left": None}
    allocate = CPU.allocate

    def limited(self, nbytes):
        if state["left"] is not None:
            if not state["left"]:
                raise MemoryError(f"{nbytes} bytes")
            state["left"] -= 1
        return allocate(self, nbytes)

    monkeypatch.setattr(CPU, "allocate", limited)
    return state


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_without_memory_can_be_realized_again(tmp_path, allocations, name):
    base = tmp_path / "base.gguf"
    write_base(base)
    make, realize = RECIPES[name]
    whole = make()
    realize(whole, base)
    expected = one_step(whole)
    recipe, failed = make(), 0
    while True:
        allocations["left"] = failed
        try:
            realize(recipe, base)
            break
        except MemoryError:
            allocations["left"] = None
        with pytest.raises(LifecycleError, match=r"before (realize|build)"):
            one_step(recipe)
        failed += 1
    assert failed >= 3  # weights, gradients or moments, activations
    allocations["left"] = None
    assert one_step(recipe) == expected
    with pytest.raises(LifecycleError, match="once only"):
        realize(recipe, base)
    assert np.isfinite(one_step(recipe))  # a refused call has done nothing


def test_a_donors_table_is_not_lost_in_silence(allocations):
    recipe = WarmStart()
    recipe.realize_scratch(LlamaConfig(**SIZES, donor_d_in=8), RecipeOptions(t_seq=8, untied=True))
    recipe.upload_donor(np.ones((SIZES["vocab"], 8)))
    allocations["left"] = 0
    with pytest.raises(MemoryError):
        recipe.build()
    with pytest.raises(LifecycleError, match=r"WarmStart\.build before realize_scratch\(\)"):
        recipe.build()


def test_an_engine_without_memory_says_to_make_a_new_one(allocations):
    engine = LlamaSeqEngine()
    engine.realize_for_random_init(LLAMA, OPTIONS)
    allocations["left"] = 0
    with pytest.raises(MemoryError):
        engine.build_training_step()
    with pytest.raises(LifecycleError, match="build_forward: once only; make a new engine"):
        engine.build_training_step()
    allocations["left"] = 0
    other = LlamaSeqEngine()
    with pytest.raises(MemoryError):
        other.realize_for_random_init(LLAMA, OPTIONS)
    with pytest.raises(LifecycleError, match="random_init: once only; make a new engine"):
        other.realize_for_random_init(LLAMA, OPTIONS)


def test_a_session_without_memory_can_try_again(allocations):
    engine = LlamaSeqEngine()
    engine.declare(LLAMA, OPTIONS)
    for granted in (0, 1):
        allocations["left"] = granted
        with pytest.raises(MemoryError):
            engine.session.finalize_weights()
    allocations["left"] = None
    engine.session.finalize_weights()
    engine.load_weights({name: np.ones(w.shape) for name, w in engine.tensors.items()})
    allocations["left"] = 0
    with pytest.raises(MemoryError):
        engine.logits(np.arange(8))
    allocations["left"] = None
    assert np.isfinite(engine.logits(np.arange(8))).all()
