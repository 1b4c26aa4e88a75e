"""The reference backend: every kernel has one, and sessions on it compute what the CPU does."""

import math

import numpy as np
import pytest
import vits
from lora_bases import write_base
from tapes import TAPES, Net
from tiny import HP, Tiny

import toynn
import toynn._kernels as kernels
from toynn import dtypes, ops
from toynn.backends.protocol import Accumulate, Launch, Place, aligned
from toynn.backends.reference import KERNELS, Reference
from toynn.errors import BackendUnavailable, NonFiniteError
from toynn.session import Session
from toynn.testing.cases import CASES, cached_attention
from toynn.testing.cases.quants import blocks
from toynn.testing.doors import check

#: Between kernels both round to float32, within them only the CPU does: a loss is off by a few
#: units in its last place at first, and more as each step starts from what the last one left.
CLOSE = 5e-6
STEPS = 4


def entries():
    for op in kernels.OPS:
        for name, entry in getattr(getattr(kernels, op), "entries", {}).items():
            yield f"{op}.{name}", entry.signature


def test_every_kernel_has_a_reference():
    have = {name: set(signature.tensors) for name, signature in entries()}
    assert set(ops.TABLE) <= set(have) == set(KERNELS)
    for name, signature in entries():
        assert set(KERNELS[name].shapes) == set(signature.tensors), name
        known = {*signature.tensors, *signature.sizes, *signature.options}
        assert set(KERNELS[name].takes) <= known, name


def test_a_kernel_without_a_reference_is_refused_when_it_is_compiled():
    launch = Launch("F", "gelu.sideways", {}, {}, {}, Accumulate.NEVER, 0, 0)
    with pytest.raises(BackendUnavailable, match=r"'reference': has no kernel gelu\.sideways"):
        Reference().compile([launch], {})


# -- The op-case table -----------------------------------------------------------------------------


def run(op, call, shape, accumulate=False):
    """Run a call of the table as a program of one launch; return its outputs."""
    name, backend = f"{op}.{call.entry}", Reference()
    signature = dict(entries())[name]
    arrays = {key: _to_reference(op, key, value) for key, value in call.arrays.items()}
    if accumulate:
        arrays |= {key: np.ones_like(arrays[key]) for key in call.accumulates}
    places, end = {}, 0
    for key, array in arrays.items():
        places[key], end = Place("arena", end), end + aligned(array.nbytes)
    sizes = {"precision": 0, "type": 0, "window": 0, "cap": 0}
    sizes |= shape | call.options | call.sizes
    if "attention" in op:
        H, KV, D = (sizes[key] for key in ("H", "KV", "D"))
        sizes |= {"ldq": H * D, "ldk": KV * D, "ldv": KV * D}
        sizes["scale"] = call.options.get("scale", 1 / math.sqrt(max(D, 1)))
    sizes |= {"type": shape.get("type", 0), "activation": shape.get("activation", 0)}
    launch = Launch(
        *("F", name, {key: places.get(key) for key in signature.tensors}),
        {key: int(sizes[key]) for key in signature.sizes},
        {key: sizes[key] for key in signature.options},
        *(Accumulate.MICRO_BATCH, 0, 0),
    )
    arena = backend.allocate(end)
    for key, array in arrays.items():
        arena.upload(places[key].offset, array)
    backend.compile([launch], {"arena": arena}).run("F", accumulate)
    return {
        key: _from_reference(op, key, arena.download(places[key].offset, value.shape, _kind(value)))
        for key, value in call.expected.items()
    }


def _kind(expected):
    return "f32" if expected.dtype.kind == "f" else "i32"


def _to_reference(op, key, array):
    return cached_attention.plain(array) if (op, key) == ("cached_attention", "kc") else array


def _from_reference(op, key, array):
    return cached_attention.blocked(array) if (op, key) == ("cached_attention", "kc") else array


CALLS = [op for op in CASES if getattr(getattr(kernels, op), "entries", None)]


@pytest.mark.parametrize("op", CALLS)
def test_op(op):
    for shape in CASES[op].shapes:
        for call in CASES[op].calls(np.random.default_rng(3), **shape):
            check(op, call, run(op, call, shape))
            if call.accumulates:
                more = {key: call.expected[key] + 1 for key in call.accumulates}
                got = run(op, call, shape, accumulate=True)
                for key, expected in more.items():
                    np.testing.assert_allclose(got[key], expected, rtol=1e-5, atol=1e-5)


# -- Tapes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TAPES)
def test_tape(name):
    make, *arguments = TAPES[name]
    results = []
    for backend in ("cpu", "reference"):
        net = Net(backend=backend)
        y = make(net, *arguments)
        s = net.realize(net.loss(y))
        s.max_grad_norm = 0.5
        for _ in range(2):  # micro-batches
            s.run("grads")
        s.run()
        results.append([s.download(s.tape.loss), s.grad_norm, *map(s.download, net.gradients)])
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was():
    tiny = Tiny(backend="reference")
    tiny.s.run()
    tiny.s.upload(tiny.w, np.full(tiny.w.shape, 1e38))
    before = tiny.state()
    with pytest.raises(NonFiniteError, match="first bad gradient"):
        tiny.s.run()
    assert all(np.array_equal(a, b) for a, b in zip(before, tiny.state(), strict=True))


@pytest.mark.parametrize("dtype", dtypes.BLOCKS)
def test_blocks(dtype):
    """Frozen weights of every type, in products forward and back, and in a table."""
    rng = np.random.default_rng(0)
    N, K = 8, 512
    kind = dtypes.DTYPES[dtype]
    raw = blocks(rng, kind.ggml, N * K // kind.elements).reshape(-1)
    results = []
    for backend in ("cpu", "reference"):
        s = Session(backend)
        a = s.parameter("a", (K, 4))
        w = s.mapped("w", raw, dtype, (N, K))
        ids, x = s.input("ids", (3,), "i32"), s.input("x", (3, 4))
        labels = s.input("labels", (3,), "i32")
        y = ops.add(s, ops.linear(s, x, a), ops.embedding(s, w, ids))
        s.set_loss(ops.cross_entropy(s, ops.linear(s, y, w, activation="gelu_tanh"), labels))
        s.build_backward()
        s.finalize_weights()
        s.upload(a, np.linspace(-1, 1, a.size).reshape(a.shape))
        s.realize()
        s.upload(ids, [1, 7, 1])
        s.upload(x, np.eye(3, 4))
        s.upload(labels, [0, 3, 5])
        s.run("grads")
        results.append((s.download(s.tape.loss), s.download(s.grad(a))))
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


# -- Recipes ---------------------------------------------------------------------------------------

T = 12
OPTIONS = {"t_seq": T, "t_batch": 2, "seed": 4}
SIZES = {"vocab": 61, "d_model": 20, "n_heads": 5, "d_ff": 28, "n_layers": 2, "context": 16}


def text(recipe, steps=STEPS, first=0):
    """Train on texts whose last labels do not count."""
    rng = np.random.default_rng(2)
    adamw = toynn.AdamW.for_lora() if first else toynn.AdamW.for_from_scratch()
    positions = np.tile(np.arange(T, dtype=np.int32), 2)
    losses = []
    for k in range(first, first + steps):
        ids, labels = rng.integers(0, SIZES["vocab"], (2, 2 * T))
        labels[-3:] = -100
        losses.append(recipe.step(ids, positions, labels, adamw.hp_for_step(k), k == first))
    return losses


def gpt2(backend, tmp_path):
    recipe = toynn.recipes.GPT2(backend=backend)
    recipe.realize(toynn.GPT2Config(**SIZES), toynn.RecipeOptions(**OPTIONS, checkpointing=True))
    return recipe, text(recipe)


def from_scratch(arch, dtype="f32"):
    def train(backend, tmp_path):
        recipe = toynn.recipes.FromScratch(backend=backend)
        config = toynn.LlamaConfig(**SIZES, n_kv_heads=1, arch=arch)
        options = toynn.RecipeOptions(**OPTIONS, qkv_bias=arch == "qwen2", weight_dtype=dtype)
        recipe.realize(config, options)
        return recipe, text(recipe)

    return train


def warm_start(backend, tmp_path):
    recipe = toynn.recipes.WarmStart(backend=backend)
    config = toynn.LlamaConfig(**SIZES, n_kv_heads=5, donor_d_in=12)
    recipe.realize_scratch(config, toynn.RecipeOptions(**OPTIONS, untied=True))
    recipe.upload_donor(np.random.default_rng(1).standard_normal((SIZES["vocab"], 12)))
    recipe.build()
    return recipe, text(recipe)


def lora(arch, type):
    def train(backend, tmp_path):
        width = {"d_model": 256, "n_heads": 4, "d_ff": 256, "n_layers": 1, "context": 16}
        path = tmp_path / f"{backend}.gguf"
        write_base(path, arch, type, **width)
        recipe = toynn.recipes.LoRA(backend=backend)
        options = toynn.RecipeOptions(**OPTIONS)
        recipe.realize(path, None, 2, options, targets="all-linear", dropout=0.2)
        return recipe, text(recipe, first=1)

    return train


def vit(backend, tmp_path):
    recipe = toynn.recipes.VitTiny(backend=backend)
    recipe.realize(vits.config(), toynn.RecipeOptions(seed=4))
    rng, adamw = np.random.default_rng(5), toynn.AdamW.for_from_scratch()
    pixels, labels = vits.pictures(rng, 1)
    image = vits.cut(pixels, 4)[0]
    return recipe, [
        recipe.step(image, [0], labels, adamw.hp_for_step(k), k == 0) for k in range(STEPS)
    ]


RECIPES = {
    "gpt2": gpt2,
    **{f"from-scratch-{arch}": from_scratch(arch) for arch in ("llama", "qwen2", "qwen3")},
    "from-scratch-f16": from_scratch("llama", "f16"),
    "warm-start": warm_start,
    **{
        f"lora-{arch}-{type}": lora(arch, type)
        for arch, type in (("llama", "Q4_K"), ("gpt2", "Q8_0"))
    },
    "vit": vit,
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_to_the_same_losses(name, tmp_path):
    (one, losses), (other, expected) = (
        RECIPES[name](backend, tmp_path) for backend in ("cpu", "reference")
    )
    assert losses[-1] != losses[0]
    np.testing.assert_allclose(losses, expected, rtol=CLOSE)
    for key, gradient in one.engine.gradients().items():
        scale = np.abs(gradient).max() + 1e-6
        np.testing.assert_allclose(gradient, other.engine.gradients()[key], atol=1e-3 * scale)


def test_reading_a_sequence_piece_by_piece():
    read = {}
    for backend in ("cpu", "reference"):
        engine = toynn.LlamaSeqEngine(backend)
        config = toynn.LlamaConfig(**SIZES | {"context": 80}, n_kv_heads=1)
        engine.realize_for_random_init(config, toynn.RecipeOptions(seed=3))
        decoder, ids = engine.decoder(), np.arange(75) % 61
        read[backend] = [decoder.read(ids[:70]), *(decoder.read(ids[i : i + 1]) for i in (70, 71))]
    np.testing.assert_allclose(read["cpu"], read["reference"], rtol=1e-4, atol=1e-6)


def test_chunks_of_the_loss():
    losses = []
    for backend in ("cpu", "reference"):
        s = Session(backend)
        w, labels = s.parameter("w", (9, 4)), s.input("labels", (7,), "i32")
        x, hp = s.input("x", (7, 4)), s.input("hp", (7,))
        s.set_loss(ops.linear_cross_entropy(s, x, w, labels, rows=3))
        s.build_backward()
        s.opt_step_adamw(w, s.grad(w), hp)
        s.finalize_weights()
        s.upload(w, np.linspace(-1, 1, 36).reshape(9, 4))
        s.realize()
        s.upload(x, np.eye(7, 4))
        s.upload(hp, HP)
        s.upload(labels, [0, -100, 3, 8, 1, 1, 2])
        for to in ("update", "update", "loss"):
            s.run(to)
            losses.append(float(s.download(s.tape.loss)))
    np.testing.assert_allclose(losses[:3], losses[3:], rtol=1e-6)


def test_a_profile_counts_the_calls_of_each_op():
    tiny = Tiny(backend="reference")
    for _ in range(3):
        tiny.s.run()
    rows = {row.op: row for row in tiny.s.profile().rows}
    assert rows["matmul.forward"].calls == 3 and rows["matmul.forward"].ms > 0
    assert tiny.s.memory().activations < Tiny().s.memory().activations
