"""Base models for adapters, as GGUF files: every architecture, small, and of any type."""

import llamas
import numpy as np
from llamas import SIZES, shake
from some_adapters import merged

import toynn
from toynn.engines import SequenceEngine
from toynn.formats import gguf, quants

T = 12
#: By type: where a block has scales, and such that random blocks have weights of about 0 +- 0.1.
SCALES = {
    "Q4_1": {0: 0.02, 2: -0.15},
    "Q5_0": {0: 0.01},
    "Q5_1": {0: 0.01, 2: -0.155},
    "Q2_K": {80: 5e-3, 82: 1.5 * 5e-3},
    "Q3_K": {108: 1e-3},
    "Q4_K": {0: 5e-4, 2: 7.5 * 5e-4},
    "Q5_K": {0: 2e-4, 2: 15.5 * 2e-4},
    "Q6_K": {208: 5e-5},
    "IQ2_XXS": {0: 1e-3},
    "IQ2_XS": {0: 1e-3},
    "IQ2_S": {0: 1e-3},
    "IQ3_XXS": {0: 4e-4},
    "IQ3_S": {0: 4e-4},
    "IQ1_S": {0: 1e-2},
    "TQ1_0": {52: 0.1},
    "TQ2_0": {64: 0.1},
    "IQ4_NL": {0: 1e-3},
    "IQ4_XS": {0: 5e-5},
}
#: The same for scales that are no float16: an exponent, small floats, one in four half bytes.
BYTE_SCALES = {
    "MXFP4": {0: 121},
    "NVFP4": {0: 16, 1: 16, 2: 17, 3: 15},
    "IQ1_M": {49: 0, 51: 0, 53: 0, 55: 0x20},
}
ARCHS = ("llama", "qwen2", "qwen3", "gpt2")


def config(arch, **sizes):
    sizes = SIZES | sizes
    if arch == "gpt2":
        sizes.pop("n_kv_heads")
        return toynn.GPT2Config(**sizes)
    return llamas.config(arch, **sizes)


def write_base(path, arch="llama", type="F32", untied=False, **sizes):
    """Write a model with random weights; its matrices are of a type. Return the path."""
    engine = SequenceEngine()
    opts = toynn.RecipeOptions(seed=3, qkv_bias=arch == "qwen2", untied=untied or arch == "qwen3")
    engine.realize_for_random_init(config(arch, **sizes), opts)
    shake(engine, np.random.default_rng(1))
    engine.export_gguf(path)
    if type != "F32":
        retype(path, lambda name: type)
    return path


def retype(path, type_of):
    """Write a file again, its matrices of the types that ``type_of(name)`` gives."""
    rng = np.random.default_rng(2)
    with gguf.open(path) as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        tensors = {}
        for name, info in file.tensors.items():
            type = type_of(name) if len(info.shape) > 1 else "F32"
            values = np.array(file[name])
            tensors[name] = (blocks(values, type, rng), type) if type != "F32" else (values, type)
    gguf.write(path, metadata, tensors, overwrite=True)


def blocks(values, type, rng):
    """Blocks of a type: of these values where toynn can write it, else of random ones."""
    if type in ("F16", "BF16"):
        raw = values.astype("<f2") if type == "F16" else (values.view(np.uint32) >> 16)
        return raw.astype("<f2" if type == "F16" else "<u2").view(np.uint8)
    if type in ("Q8_0", "Q4_0"):
        return quants.quantize(values, type)
    elements, nbytes = quants.BLOCKS[type]
    raw = rng.integers(0, 256, (values.size // elements, nbytes), np.uint8)
    for at, scale in SCALES.get(type, {}).items():
        raw[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    for at, scale in BYTE_SCALES.get(type, {}).items():
        raw[:, at] = scale
    return raw.reshape(*values.shape[:-1], -1)


def dequantized_file(path, out):
    """Write a file again with all tensors in float32. Return its path."""
    with gguf.open(path) as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        tensors = {name: (np.array(file[name], np.float32), "f32") for name in file}
    gguf.write(out, metadata, tensors)
    return out


def rewritten(path, out, change, metadata=None):
    """Write a file again with each of its vectors changed."""
    with gguf.open(path) as file:
        told = gguf.typed_metadata(file.metadata, file.types) | (metadata or {})
        tensors = {
            name: (change(np.array(file[name])) if len(info.shape) == 1 else np.array(file[name]))
            for name, info in file.tensors.items()
        }
    gguf.write(out, told, {name: (values, "f32") for name, values in tensors.items()})
    return out


def moved(path, out):
    """A model of the same shape: each gain is a little off."""
    rng = np.random.default_rng(3)
    return rewritten(path, out, lambda v: v + rng.normal(0, 0.02, v.shape).astype(np.float32))


def make(path, rank=4, **changes):
    """A recipe over a base, with B away from zero."""
    recipe = toynn.recipes.LoRA()
    arguments = {"targets": "all-linear"} | changes
    batch, packed = arguments.pop("t_batch", 1), arguments.pop("packed", False)
    opts = toynn.RecipeOptions(t_seq=T, t_batch=batch, seed=7, init_scale=0.1, packed=packed)
    recipe.realize(path, None, rank, opts, **arguments)
    recipe.engine.session.n_threads = 1  # so small a model is no faster on two
    stir(recipe)
    return recipe


def stir(recipe, seed=5):
    """Load random adapters."""
    rng = np.random.default_rng(seed)
    recipe.engine.load_weights(
        {
            name: 0.2 * rng.standard_normal(values.shape)
            for name, values in recipe.engine.adapter_weights().items()
        }
    )


def draw(batch=1, seed=0, vocab=SIZES["vocab"]):
    """Ids and labels of one batch; a third of the labels does not count."""
    rng = np.random.default_rng(seed)
    ids, labels = rng.integers(0, vocab, (2, batch * T)).astype(np.int32)
    labels[rng.permutation(labels.size)[: labels.size // 3]] = -100
    return ids, labels


def mixed(path, type=None):
    """Give a file's matrices a type; without one, those that llama.cpp's Q4_K_M gives them."""
    finer = ("attn_v.weight", "ffn_down.weight", "token_embd.weight", "output.weight")
    retype(path, lambda name: type or ("Q6_K" if name.endswith(finer) else "Q4_K"))
    return path


def whole(path, recipe, **options):
    """The engine of the merged model, all its weights trained."""
    with gguf.open(path) as file:
        weights = merged(file, recipe.engine.adapter())
        engine = SequenceEngine.from_gguf(path, t_seq=T, **options)
    engine.load_weights({name: weights[name] for name in engine.tensors})
    return engine


def assert_close(got, expected, tolerance=2e-5):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def assert_gradients(recipe, engine, tolerance=2e-5):
    """dB = s dW A^T and dA = s B^T dW, dW being that of the merged model."""
    adapters, gradients, dense = (
        recipe.engine.adapter_weights(),
        recipe.engine.gradients(),
        engine.gradients(),
    )
    assert gradients.keys() == adapters.keys()
    for name, adapter in recipe.engine.adapters.items():
        a, b = adapters[f"{name}.lora_a"], adapters[f"{name}.lora_b"]
        dw = adapter.scale * dense[name].astype(np.float64)
        assert_close(gradients[f"{name}.lora_a"], b.swapaxes(-1, -2) @ dw, tolerance)
        assert_close(gradients[f"{name}.lora_b"], dw @ a.swapaxes(-1, -2), tolerance)
