"""Which model an adapter is of: known in every copy of the model, and no other is taken for it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hf_folders import edit_tensors
from llamas import KINDS, NO_FILES, shake
from lora_bases import T, mixed, moved, rewritten, write_base
from safetensors.numpy import load_file
from some_adapters import draw
from test_hf import NOT_WRITTEN, build
from vocabs import bpe_file

import toynn
from toynn import engines
from toynn.cli import main
from toynn.errors import AdapterError
from toynn.evaluation.harness import Requests
from toynn.formats import adapters, bases, gguf
from toynn.formats.adapters.identity import NORMS, TOKENS, Identity
from toynn.formats.fuse import fuse

MADE_FOR = r"made for {}; the base model here is another one, .*{}.*: {}"


def bfloat16(values):
    """Round float32 to even, as torch does."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return rounded.astype(np.uint32).view(np.float32)


def float16(values):
    return values.astype(np.float16).astype(np.float32)


def told_of(path):
    with bases.open(path) as base:
        return Identity.read(adapters.base_metadata(base), path)


@pytest.mark.parametrize("kind", ["gpt2", *sorted(KINDS.keys() - NOT_WRITTEN - NO_FILES)])
def test_both_formats_are_one_model(kind, tmp_path):
    """Gemma's gains are less by 1 in a folder, and float32 rounds them on the way."""
    engine = build(kind)
    engine.export_gguf(tmp_path / "base.gguf")
    engine.export_hf(tmp_path / "base")
    shake(engine, np.random.default_rng(8))
    engine.export_gguf(tmp_path / "other.gguf")
    one, two, other = (told_of(tmp_path / name) for name in ("base.gguf", "base", "other.gguf"))
    assert one.count == two.count > 0
    assert one.unlike(two) == two.unlike(one) == ""
    assert "gains of their norms differ" in other.unlike(one)
    for round in (bfloat16, float16):  # as a folder that is saved again has them
        path = tmp_path / "base" / "model.safetensors"
        norms = {name: round(v) for name, v in load_file(path).items() if v.ndim == 1}
        edit_tensors(path, norms)
        copy = told_of(tmp_path / "base")
        assert copy.unlike(one) == one.unlike(copy) == ""
        assert "gains of their norms differ" in copy.unlike(other)
        engine.load_weights(build(kind).weights())
        (tmp_path / "base").rename(tmp_path / round.__name__)
        engine.export_hf(tmp_path / "base")


def test_every_copy_is_the_model(tmp_path):
    """Any type of the matrices, files that are written again, converted, fused and exported."""
    sizes = {"d_model": 256, "d_ff": 256, "n_heads": 4, "n_kv_heads": 2, "n_layers": 1}
    types = ("F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4")
    paths = [write_base(tmp_path / f"{type}.gguf", "qwen3", type, **sizes) for type in types]
    paths.append(mixed(write_base(tmp_path / "mixed.gguf", "qwen3", **sizes)))
    whole = paths[0]
    made = ["--model", str(whole), "--out"]
    assert main(["export", "--to", "hf", *made, str(tmp_path / "folder")]) == 0
    paths.append(tmp_path / "folder")
    with gguf.open(whole) as base:
        adapters.write_gguf(tmp_path / "a.gguf", draw(base))
    adapter = ["--adapter", str(tmp_path / "a.gguf"), "--strict"]
    assert main(["fuse", *made, str(tmp_path / "fused.gguf"), *adapter, "--outtype", "q8_0"]) == 0
    paths.append(tmp_path / "fused.gguf")
    paths += [
        rewritten(whole, tmp_path / f"{round.__name__}.gguf", round)
        for round in (bfloat16, float16)
    ]
    for path in paths:
        with bases.open(path) as base:
            trained = adapters.load(tmp_path / "a.gguf", base, strict=True)
            adapters.write_gguf(tmp_path / "b.gguf", draw(base), overwrite=True)
            adapters.write_peft(tmp_path / "peft", trained, base, overwrite=True)
        for other in paths:
            with bases.open(other) as base:
                adapters.load(tmp_path / "b.gguf", base, strict=True)
                adapters.load(tmp_path / "peft", base, strict=True)


#: Gains; float16 has few bits left for the small ones.
GAINS = np.random.default_rng(0).normal(1, 0.3, 64).astype(np.float32)
SMALL = np.random.default_rng(1).normal(0, 1e-6, 64).astype(np.float32)
#: By what copies are rounded: all gains, or less 1, or every other one less 1.
ROUNDED = {
    "whole": lambda v, less: v,
    "bfloat16": lambda v, less: bfloat16(v - less) + less,
    "float16": lambda v, less: float16(v - less) + less,
    "bfloat16 of float16": lambda v, less: bfloat16(float16(v - less)) + less,
}
ONCE = [pair for pair in itertools.permutations(ROUNDED, 2) if "bfloat16 of float16" not in pair]
ONCE += [("float16", "bfloat16 of float16"), ("bfloat16 of float16", "float16")]


SOME = [(GAINS, 0), (GAINS, 1), (GAINS, 2), (SMALL, 0), (1 + SMALL, 1), (100 * GAINS, 0)]
SOME += [(np.ones(64, np.float32), 0), (np.arange(64, dtype=np.float32), 0)]


@pytest.mark.parametrize(("values", "less"), SOME)
@pytest.mark.parametrize(("one", "two"), ONCE)
def test_copies_of_one_number_are_one(one, two, values, less):
    less = np.float32(less) if less < 2 else np.arange(64, dtype=np.float32) % 2
    a, b = (Identity(64, ROUNDED[each](values, less)) for each in (one, two))
    assert a.unlike(b) == ""


@pytest.mark.parametrize("round", [float16, bfloat16])
def test_neighbours_in_one_format_are_two_numbers(round):
    """Where both models have gains of a format, nothing was rounded on the way between them."""
    values, step = round(GAINS), {float16: 2**-11, bfloat16: 2**-8}[round]
    other = values.copy()
    other[7] = round(values[7] * (1 + 1.1 * step))
    assert other[7] != values[7]
    assert Identity(64, values).unlike(Identity(64, other)) == (
        "1 of 64 compared gains of their norms differ"
    )
    assert "64 of 64" in Identity(64, GAINS).unlike(Identity(64, GAINS + np.float32(1e-5)))
    assert Identity(65, values).unlike(Identity(64, values)) == ("their norms have 65 and 64 gains")


# -- where adapters are used ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models of one shape, and an adapter of the first in both forms."""
    folder = tmp_path_factory.mktemp("models")
    write_base(folder / "zork.gguf", vocab=256)
    moved(folder / "zork.gguf", folder / "bork.gguf")
    with gguf.open(folder / "zork.gguf") as base:
        adapters.write_gguf(folder / "a.gguf", draw(base))
        adapters.write_peft(folder / "peft", draw(base), base)
    return folder


@pytest.mark.parametrize("form", ["a.gguf", "peft"])
def test_another_model_of_the_same_shape_is_told(models, form, tmp_path):
    message = MADE_FOR.format("zork.gguf", "bork.gguf", r"64 of 64 compared gains of their norms")
    opts = toynn.RecipeOptions(t_seq=T)
    path, bork = models / form, models / "bork.gguf"
    with gguf.open(models / "zork.gguf") as zork:
        adapter = adapters.load(path, zork, strict=True)
    recipe = toynn.recipes.LoRA()
    recipe.realize(bork, None, 4, opts, alpha=8, targets="all-linear")
    with gguf.open(bork) as base:
        uses = [
            lambda: adapters.load(path, base),
            lambda: adapters.check(adapter, base),
            lambda: adapters.write_peft(tmp_path / "peft", adapter, base),
            lambda: fuse(base, adapter, tmp_path / "fused.gguf"),
            lambda: engines.frozen(base, adapter),
            lambda: Requests(bork, path),
            lambda: toynn.recipes.LoRA().realize_from_adapter(bork, path, opts),
            lambda: recipe.load_adapter(path),  # the file was closed long since
        ]
        for use in uses:
            with pytest.warns(UserWarning, match=message):
                use()
        for use in (adapters.load, adapters.check):
            with pytest.raises(AdapterError, match=message):
                use(adapter if use is adapters.check else path, base, strict=True)
    recipe.export_adapter(tmp_path / "b.gguf")  # trained on is what it is of
    with gguf.open(bork) as base:
        adapters.load(tmp_path / "b.gguf", base, strict=True)


def test_a_run_over_a_closed_file_knows_its_base(models):
    recipe = toynn.recipes.LoRA()
    recipe.realize(models / "zork.gguf", None, 4, toynn.RecipeOptions(t_seq=T))
    told = Identity.read(recipe.engine.adapter().metadata, "a")
    assert told and told.unlike(told_of(models / "zork.gguf")) == ""


def test_peft_folders_say_the_architecture(models, tmp_path):
    """A llama's and a qwen3's modules have the same names and shapes."""
    write_base(tmp_path / "qwen3.gguf", "qwen3")
    with (
        gguf.open(tmp_path / "qwen3.gguf") as base,
        pytest.raises(AdapterError, match=r"architecture: expected 'qwen3', .*; got 'llama'"),
    ):
        adapters.load(models / "peft", base)


def test_adapters_of_other_programs_pass(models):
    with gguf.open(models / "zork.gguf") as base, gguf.open(models / "bork.gguf") as other:
        foreign = replace(draw(base), metadata={})
        adapters.check(foreign, other, strict=True)


def test_several_adapters_are_of_one_model(models, tmp_path):
    with gguf.open(models / "zork.gguf") as one, gguf.open(models / "bork.gguf") as two:
        some = [replace(draw(one), metadata={}), draw(one, seed=1), draw(two, seed=2)]
    assert adapters.combine(some[:2], [1, 1], strict=True).metadata == some[1].metadata
    message = r"made for bork\.gguf; .* for another model, zork\.gguf: 64 of 64"
    with pytest.warns(UserWarning, match=message):
        adapters.combine(some, [1, 1, 1])
    with pytest.raises(AdapterError, match=message):
        adapters.combine(some, [1, 1, 1], strict=True)


def test_gains_that_nothing_trained_do_not_tell(tmp_path):
    """They are all 1: two such models count as one; it is a copy's gain that tells."""
    paths = [write_base(tmp_path / f"{name}.gguf") for name in "ab"]
    ones = [rewritten(p, p.with_suffix(".1.gguf"), np.ones_like) for p in paths]
    assert told_of(ones[0]).unlike(told_of(ones[1])) == ""
    assert "differ" in told_of(ones[0]).unlike(told_of(paths[1]))


# -- tokenizers ------------------------------------------------------------------------------------


def with_tokens(path, out, change):
    """Write a model with a vocabulary, of which some texts are changed."""
    bpe_file(out.with_suffix(".vocab"))
    with gguf.open(out.with_suffix(".vocab")) as file:
        told = gguf.typed_metadata(file.metadata, file.types)
        told = {key: value for key, value in told.items() if key.startswith("tokenizer.")}
        tokens = change(list(file.metadata["tokenizer.ggml.tokens"]))
    return rewritten(path, out, lambda v: v, told | {"tokenizer.ggml.tokens": tokens})


def test_other_tokens_are_told(models, tmp_path):
    def named(name, change):
        return with_tokens(models / "zork.gguf", tmp_path / f"{name}.gguf", change)

    base = told_of(named("base", lambda tokens: tokens))
    few = told_of(named("few", lambda t: [*t[:-5], *(f"<added{n}>" for n in range(5))]))
    longer = told_of(named("longer", lambda t: [*t, *(f"[PAD{n}]" for n in range(len(t)))]))
    other = told_of(named("other", lambda t: t[::-1]))
    assert base.sums and longer.stride > base.stride
    for one, two in itertools.permutations((base, few, longer), 2):
        assert one.unlike(two) == ""
    assert "compared tokens differ" in base.unlike(other)
    assert "compared tokens differ" in other.unlike(longer)
    assert base.unlike(told_of(models / "zork.gguf")) == ""  # which has none
    assert Identity.read(base.written(), "a").written() == base.written()


# -- damage ----------------------------------------------------------------------------------------


DAMAGED = ("x", "3:", "0:AAAA", "-1:AAAA", "3:AAAA", "120:AAAA", "3:zz!", f"{10**30}:AAAA", "é")
DAMAGED += ("3:AAAA=", "1:AADAfw==", "3:000000")  # NaN; a stride that is no power of 2


@pytest.mark.parametrize("key", [NORMS, TOKENS])
@pytest.mark.parametrize("text", DAMAGED)
def test_what_is_said_of_the_base_is_checked(models, key, text, tmp_path):
    with gguf.open(models / "zork.gguf") as base:
        bad = replace(draw(base), metadata={key: text})
        adapters.write_gguf(tmp_path / "a.gguf", bad)
        with pytest.raises(AdapterError, match=rf"a\.gguf: {key}: expected a number, a colon and"):
            adapters.load(tmp_path / "a.gguf", base)
