"""The "lcg" init against a replica of the Ruby program's rand_unit and its order of drawing."""

import numpy as np
import pytest

from toynn import GPT2Config, GPT2SeqEngine, RecipeOptions
from toynn.recipes import GPT2


class Ruby:
    """Its generator: Ruby integers and floats are Python's."""

    def __init__(self, seed):
        self.state = seed

    def rand_unit(self):
        self.state = (self.state * 1103515245 + 12345) & 0x7FFFFFFF
        return float(self.state >> 8) / 8388608.0 - 1.0

    def random_mat(self, rows, cols):
        values = [self.rand_unit() * 0.02 for _ in range(rows * cols)]
        return np.array(values).reshape(rows, cols).astype(np.float32)


def expected_weights(vocab, d_model, n_heads, d_ff, n_layers, context, seed):
    """Draw in the order of its realize!, then lay the heads of q, k, v side by side."""
    ruby = Ruby(seed)
    d_head = d_model // n_heads
    weights = {
        "token_embd.weight": ruby.random_mat(vocab, d_model),
        "position_embd.weight": ruby.random_mat(context, d_model),
    }
    for n in range(n_layers):
        q, k, v = [], [], []
        for _ in range(n_heads):
            for part in (q, k, v):
                part.append(ruby.random_mat(d_head, d_model))
        weights[f"blk.{n}.attn_qkv.weight"] = np.concatenate(q + k + v)
        weights[f"blk.{n}.attn_output.weight"] = ruby.random_mat(d_model, d_model)
        weights[f"blk.{n}.ffn_up.weight"] = ruby.random_mat(d_ff, d_model)
        weights[f"blk.{n}.ffn_down.weight"] = ruby.random_mat(d_model, d_ff)
    return weights


@pytest.mark.parametrize("seed", [0, 1, 42, -7, 2**31 - 1, 2**70 + 5])
def test_engine_realize_draws_it_bit_for_bit(seed):
    sizes = (23, 12, 3, 20, 2, 7)
    engine = GPT2SeqEngine()
    engine.realize(*sizes, seed)
    expected = expected_weights(*sizes, seed)
    for name, w in engine.weights().items():
        if name in expected:
            assert w.tobytes() == expected[name].tobytes(), name
            assert w.max() < 0, "the stream lies in [-1, 0)"
        else:
            assert (w == name.endswith("norm.weight")).all(), name


def test_recipe_draws_the_same():
    recipe, engine = GPT2(), GPT2SeqEngine()
    recipe.realize(GPT2Config(23, 12, 3, 20, 2, 7, init="lcg"), RecipeOptions(seed=4))
    engine.realize(23, 12, 3, 20, 2, 7, seed=4)
    theirs = engine.weights()
    for name, w in recipe.engine.weights().items():
        assert w.tobytes() == theirs[name].tobytes(), name
