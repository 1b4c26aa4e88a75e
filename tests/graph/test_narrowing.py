"""Activations kept in bfloat16: the same loss, rounded gradients, half the bytes."""

from functools import partial

import numpy as np
import pytest
import vits
from llamas import T, draw, make, shake
from lora_bases import stir, write_base
from tapes import TAPES, C, Net

from toynn import AdamW, LlamaConfig, LlamaSeqEngine, RecipeOptions, Session, ops
from toynn.backends.reference.pointwise import bfloat16
from toynn.data.examples import Examples
from toynn.data.preference import Preferences
from toynn.engines import PreferenceOptions
from toynn.errors import ConfigError
from toynn.recipes import LoRA, Preference
from toynn.testing.reference import computed


def tape(name, **session):
    """A tape of the table, all of it in one block."""
    build, *arguments = TAPES[name]
    net = Net(**session)
    with net.s.tape.block("all"):
        y = build(net, *arguments)
    return net, net.realize(net.loss(ops.scale(net.s, y, 1.0)))


def kept(s):
    """The float32 matrices of the forward pass that the backward pass reads."""
    nodes = s.tape.nodes
    written = {t.root for n in nodes if n.phase in "FE" for t in n.outputs if t}
    read = {t.root for n in nodes if n.phase == "B" for t in n.inputs if t}
    return {t for t in written & read if t.dtype == "f32" and len(t.shape) == 2}


CASES = [(name, {}) for name in TAPES]
CASES += [("add-residuals", {way: True}) for way in ("checkpointing", "recompute_cheap")]


@pytest.mark.parametrize(("name", "recompute"), CASES)
def test_every_op_has_the_gradients_of_rounded_activations(name, recompute):
    """Another tape keeps float32; its backward in float64 reads what was kept, rounded."""
    plain, other = tape(name, **recompute)
    known = {t: np.array(v, float if t.dtype == "f32" else int) for t, v in plain.values.items()}
    read = {t for node in other.tape.nodes if node.phase == "B" for t in node.inputs if t}
    known |= {t: np.ones(()) for t in read if t.name == "d_loss"}

    def look(i, done, value):
        node = other.tape.nodes[i]
        for t in filter(None, node.outputs + node.saved):
            if done and node.phase == "F":
                known[t.root] = np.array(value(t.root), float if t.dtype == "f32" else int)

    other.run("grads", look=look)
    net, s = tape(name, activations="bfloat16", **recompute)
    s.run("grads")
    assert s.download(s.tape.loss) == other.download(other.tape.loss)
    (logits,) = kept(s)
    for t in kept(other):
        known[t] = known[t] if t.name == logits.name else bfloat16(known[t])
    known = computed(other.tape, known, "B")
    for got, expected in zip(net.gradients, plain.gradients, strict=True):
        np.testing.assert_allclose(s.download(got), known[expected], rtol=2e-5, atol=2e-5)


def values_of(op, beside, activations):
    """The values of y = op(x, ...), of its arguments and of their gradients, by name."""
    net = Net(activations=activations)
    s, found = net.s, {}
    given = {"x": net.activation()} | {name: make(net) for name, make in beside.items()}
    with s.tape.block("one"):
        given["y"] = op(s, *given.values())
    net.realize(net.loss(ops.scale(s, given["y"], 1.0)))

    def look(i, done, read):
        if done:
            written = filter(None, s.tape.nodes[i].outputs)
            found.update((t, read(t).astype(float)) for t in written if t.dtype == "f32")

    s.run("grads", look=look)
    found |= {w: s.download(w).astype(float) for w in net.parameters()}
    gradients = {f"d{name}": found[s.grad(t)] for name, t in given.items() if t in s.tape.gradients}
    return {name: found[t] for name, t in given.items()} | gradients


def of_product(v):
    return {"dw": np.abs(v["dy"]).T @ np.abs(v["x"])}


def of_gate(v):
    q, dy, x, z = 1 / (1 + np.exp(-v["x"])), *(np.abs(v[name]) for name in ("dy", "x", "z"))
    slope = np.abs(q * (1 + v["x"] * (1 - q)))
    return {"dx": dy * z * (slope + x / 2), "dz": dy * x * slope}  # |silu''| is at most 1/2


def of_norm(v):
    r = 1 / np.sqrt(np.square(v["x"]).mean(1, keepdims=True) + 1e-5)
    shares = np.abs(v["gain"] * v["dy"] * v["x"] * r).mean(1, keepdims=True)
    return {"dx": 2 * r * np.abs(v["x"] * r) * shares, "dgain": np.abs(v["dy"] * v["x"] * r).sum(0)}


BOUNDS = {
    "product": (ops.linear, {"w": lambda net: net.parameter(C, C)}, of_product),
    "gate": (ops.swiglu, {"z": Net.activation}, of_gate),
    "norm": (ops.rmsnorm, {"gain": lambda net: net.parameter(C)}, of_norm),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_gradients_are_within_the_bounds_of_the_page(name):
    """docs/memory.md has them in multiples of 2^-8, but for squares of it."""
    *op, bounds = BOUNDS[name]
    exact, rounded = (values_of(*op, activations) for activations in ("float32", "bfloat16"))
    for which, bound in bounds(exact).items():
        error = np.abs(rounded[which] - exact[which]) * 2**8
        assert (error <= 1.01 * bound + 1e-3).all(), which
        assert (error > bound / 4).any(), which


def step(layers, **options):
    """A declared engine that has recorded its step, and the bytes of its activations."""
    engine = LlamaSeqEngine()
    engine.declare(LlamaConfig(64, 576, 9, 3, 1536, layers, 64), RecipeOptions(t_seq=64, **options))
    return engine, engine.step_memory().activations


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_block_keeps_its_matrices_in_half_the_bytes(checkpointing):
    steps = [
        [step(n, activations=activations, checkpointing=checkpointing) for n in (3, 5)]
        for activations in ("float32", "bfloat16")
    ]
    growths = [more - less for (_, less), (_, more) in steps]
    less, more = (sum(t.nbytes for t in kept(engine.session)) for engine, _ in steps[0])
    assert growths[0] - growths[1] == (more - less) // 2 > 0


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_model_learns_with_any_number_of_threads(name):
    """Weights that are rounded to float16 are no activations: they stay."""
    ids, labels = draw(np.random.default_rng(4), 2)
    found = []
    for activations, n_threads in (("float32", 1), ("bfloat16", 1), ("bfloat16", 2)):
        recipe = make(name, 2, weight_dtype="f16", activations=activations, n_threads=n_threads)
        shake(recipe.engine, np.random.default_rng(3))
        loss = recipe.engine.accumulate(ids, None, labels)
        found.append((loss, {n: g.tobytes() for n, g in recipe.engine.gradients().items()}))
    assert found[1] == found[2]
    assert found[0][0] == found[1][0]
    narrowed = {
        n["x"].name for n in recipe.engine.session.tape.nodes if n.op.kernel == "rounding.narrow"
    }
    assert narrowed and not any("weight" in name for name in narrowed)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "base.gguf")


def vit(base, **options):
    recipe = vits.make(**options)
    pixels, labels = vits.pictures(np.random.default_rng(5), 1)
    return recipe, (vits.cut(pixels, 4)[0], [0], labels), ()


def dora(base, **options):
    recipe = LoRA()
    recipe.realize(base, None, 2, RecipeOptions(t_seq=T, **options), use_dora=True)
    ids, labels = draw(np.random.default_rng(4))
    return recipe, (ids, None, labels), ()


def preference(loss, base, **options):
    options = RecipeOptions(t_seq=T, t_batch=4, packed=True, **options)
    recipe = Preference(PreferenceOptions(loss))
    recipe.realize(base, None, 2, options, targets="all-linear")
    examples = Examples(T)
    for prompt, completion in ((3, 5), (3, 2), (1, 8), (1, 4)):
        examples.append([([5] * prompt, False), ([7, 8] * (completion // 2 + 1), True)])
    wanted = [True, False, False, True] if loss == "kto" else None
    data = Preferences(examples, wanted, whole=loss == "orpo")
    arrays = list(data.batch(range(len(data)), 4 * T))
    return recipe, arrays[:3], arrays[3:]


RECIPES = {"vit": vit, "dora": dora}
RECIPES |= {loss: partial(preference, loss) for loss in ("dpo", "orpo", "kto")}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_same_loss_and_gradients_near_by(name, base):
    """Gradients differ by several roundings of at most 2^-8 each: by 2 % at most."""
    found = []
    for activations in ("float32", "bfloat16"):
        recipe, batch, more = RECIPES[name](base, activations=activations)
        hp = AdamW.for_lora().hp_for_step(0)
        if name != "vit":
            stir(recipe)
        loss = recipe.step(*batch, hp, True, *more)
        gradients = recipe.engine.gradients().values()
        found.append((loss, np.concatenate([gradient.ravel() for gradient in gradients])))
    (loss, exact), (same, rounded) = found
    assert same == loss
    assert 0 < np.linalg.norm(rounded - exact) < 0.02 * np.linalg.norm(exact)


def test_other_types_are_refused():
    with pytest.raises(
        ConfigError, match="activations must be one of float32, bfloat16; got 'f16'"
    ):
        Session(activations="f16")
