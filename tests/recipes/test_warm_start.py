"""WarmStart: the window, every bad donor by name, the frozen table, the lens, the export."""

from dataclasses import replace

import gguf as library
import numpy as np
import pytest
from lora_bases import blocks

from toynn import AdamW, LlamaConfig, RecipeOptions
from toynn.engines import GPT2Config, GPT2SeqEngine, LlamaSeqEngine
from toynn.errors import ConfigError, GGUFError, LifecycleError, ShapeError
from toynn.formats import gguf
from toynn.numerics import dtypes
from toynn.recipes import WarmStart

VOCAB, WIDTH, D, T = 24, 32, 16, 8
QUANTIZED = [name.upper() for name in dtypes.QUANTIZED if dtypes.DTYPES[name].elements > 1]
CONFIG = LlamaConfig(VOCAB, D, 4, 2, 32, 1, T, donor_d_in=WIDTH)
OPTIONS = RecipeOptions(untied=True, seed=3)
TABLE = np.random.default_rng(5).normal(0.1, 0.05, (VOCAB + 6, WIDTH)).astype(np.float32)


def write(path, table=TABLE, outtype="f32", arch="llama", width=WIDTH, name="token_embd.weight"):
    metadata = {"general.architecture": arch}
    if width is not None:
        metadata[f"{arch}.embedding_length"] = width
    gguf.write(path, metadata, {name: (table, outtype)})
    return path


@pytest.fixture
def donor(tmp_path):
    return write(tmp_path / "donor.gguf")


@pytest.fixture
def opened():
    """A recipe whose window is open."""
    recipe = WarmStart()
    recipe.realize_scratch(CONFIG, OPTIONS)
    return recipe


def train(recipe, steps=5):
    ids = np.random.default_rng(1).integers(0, VOCAB, T)
    adam = AdamW.for_from_scratch()
    return [
        recipe.step(ids, None, np.roll(ids, -1), adam.hp_for_step(k), is_first=k == 0)
        for k in range(steps)
    ]


def test_the_whole_life(opened, donor):
    assert WarmStart.donor_embed_width(donor) == WIDTH
    opened.realize_warm(donor, CONFIG)
    lens = WarmStart.pca_lens(donor, D)
    opened.upload_lens(lens)
    opened.build()
    before = opened.engine.weights()
    np.testing.assert_array_equal(before["token_embd.weight"], TABLE[:VOCAB])
    np.testing.assert_array_equal(before["lens.proj.weight"], lens)
    losses = train(opened)
    assert losses[-1] < losses[0]
    after = opened.engine.weights()
    np.testing.assert_array_equal(after["token_embd.weight"], TABLE[:VOCAB])  # frozen
    assert (after["lens.proj.weight"] != lens).all()
    assert "token_embd.weight" not in opened.engine.gradients()
    assert "token_embd.weight" not in opened.engine.moments
    assert opened.step_index == 5


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_donors_of_every_kind(opened, tmp_path, arch, outtype):
    path = write(tmp_path / "donor.gguf", outtype=outtype, arch=arch)
    assert WarmStart.donor_embed_width(path) == WIDTH
    opened.realize_warm(path, CONFIG)
    with gguf.open(path) as file:
        table = np.asarray(file["token_embd.weight"], np.float32)[:VOCAB]
    opened.build()
    np.testing.assert_array_equal(opened.engine.weights()["token_embd.weight"], table)


@pytest.mark.parametrize("type", QUANTIZED)
def test_quantized_donors(tmp_path, type):
    values = np.random.default_rng(7).standard_normal((VOCAB, 256)).astype(np.float32)
    raw = blocks(values, type, np.random.default_rng(8))
    path = write(tmp_path / "donor.gguf", raw, type, width=256)
    recipe = WarmStart()
    recipe.realize_scratch(replace(CONFIG, donor_d_in=256), OPTIONS)
    recipe.realize_warm(path, recipe.engine.config)
    recipe.build()
    np.testing.assert_array_equal(
        recipe.engine.weights()["token_embd.weight"],
        library.quants.dequantize(raw, library.GGMLQuantizationType[type]),
    )
    assert np.isfinite(train(recipe)).all()


def test_tokens_for_bytes(tmp_path):
    """Each byte's token, as the tokenizers of donors spell it."""
    table = np.ones((256, WIDTH), np.float32)
    head = {"general.architecture": "llama", "llama.embedding_length": WIDTH}
    path = tmp_path / "donor.gguf"

    def tokens_of(kind, texts=None, table=table):
        metadata = head | ({} if kind is None else {"tokenizer.ggml.model": kind})
        metadata |= {"tokenizer.ggml.tokens": texts} if texts else {}
        gguf.write(path, metadata, {"token_embd.weight": (table, "f32")}, overwrite=True)
        return WarmStart.byte_tokens(path)

    assert tokens_of(None) is None
    assert tokens_of("no_vocab") is None
    letters = tokens_of("gpt2")
    assert len(set(letters)) == 256
    assert "".join(letters[byte] for byte in b"a b\n") == "aĠbĊ"
    assert letters[0] == "Ā" and letters[255] == "ÿ"
    texts = [f"<0x{byte:02X}>" for byte in range(250)] + ["a", "▁", "é", "<s>", "b", "\n"]
    pieces = tokens_of("llama", texts)
    assert pieces[:10] == texts[:10]
    assert [pieces[byte] for byte in b"ab c"] == ["a", "b", "▁", "<0x63>"]
    assert pieces[0xE9] == "<0xE9>"
    for kind, rows in ((None, TABLE), ("bert", table)):
        with pytest.raises(GGUFError, match=f"expected gpt2 or llama.*{len(rows)} tokens"):
            tokens_of(kind, table=rows)


def test_an_exported_model_is_a_donor(opened, tmp_path):
    model = GPT2SeqEngine()
    model.realize_for_random_init(GPT2Config(VOCAB, WIDTH, 4, 32, 1, T), RecipeOptions())
    model.export_gguf(tmp_path / "donor.gguf")
    opened.realize_warm(tmp_path / "donor.gguf", CONFIG)
    opened.build()
    table = opened.engine.weights()["token_embd.weight"]
    np.testing.assert_array_equal(table, model.weights()["token_embd.weight"])


def test_rows_follow_the_texts_of_tokens(opened, tmp_path):
    texts = [f"t{i}" for i in range(len(TABLE))]
    metadata = {"general.architecture": "llama", "llama.embedding_length": WIDTH}
    metadata["tokenizer.ggml.tokens"] = texts
    path = tmp_path / "donor.gguf"
    gguf.write(path, metadata, {"token_embd.weight": (TABLE, "q8_0")})
    with gguf.open(path) as file:
        table = file["token_embd.weight"]
    drawn = opened.engine.weights()["token_embd.weight"]
    tokens = texts[: -VOCAB - 1 : -1]  # the last first
    tokens[5] = "unheard of"
    opened.realize_warm(path, CONFIG, tokens)
    rows = opened.engine.weights()["token_embd.weight"]
    for row, token in enumerate(tokens):
        expected = drawn[row] if row == 5 else table[texts.index(token)]
        np.testing.assert_array_equal(rows[row], expected)
    with pytest.raises(ConfigError, match="expected 24 tokens; got 2"):
        opened.realize_warm(path, CONFIG, tokens[:2])
    with pytest.raises(GGUFError, match="none of them"):
        opened.realize_warm(path, CONFIG, ["unheard of"] * VOCAB)
    with pytest.raises(
        GGUFError, match=r"tokenizer\.ggml\.tokens: expected 30 token texts; got none"
    ):
        opened.realize_warm(write(tmp_path / "mute.gguf"), CONFIG, tokens)


@pytest.mark.parametrize("flat", [False, True])
def test_a_table_can_be_uploaded(opened, flat):
    opened.upload_donor(TABLE[:VOCAB].reshape(-1) if flat else TABLE[:VOCAB])
    opened.build()
    np.testing.assert_array_equal(opened.engine.weights()["token_embd.weight"], TABLE[:VOCAB])


def test_without_a_donor_it_starts_from_scratch(opened):
    opened.build()
    assert np.isfinite(train(opened)).all()


CALLS = {
    "realize_warm": lambda recipe: recipe.realize_warm("donor.gguf", CONFIG),
    "upload_donor": lambda recipe: recipe.upload_donor(TABLE[:VOCAB]),
    "upload_lens": lambda recipe: recipe.upload_lens(np.zeros((D, WIDTH))),
    "build": lambda recipe: recipe.build(),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_window_is_closed_before_realize_scratch_and_after_build(opened, call):
    with pytest.raises(LifecycleError, match=rf"WarmStart\.{call} before realize_scratch\(\)"):
        CALLS[call](WarmStart())
    opened.build()
    with pytest.raises(LifecycleError, match=rf"WarmStart\.{call} after build\(\)"):
        CALLS[call](opened)


def test_other_wrong_orders(opened):
    for recipe in (WarmStart(), opened):
        with pytest.raises(LifecycleError, match=r"WarmStart\.step before build\(\)"):
            train(recipe)
    with pytest.raises(LifecycleError, match="once only"):
        opened.realize_scratch(CONFIG, OPTIONS)


def nothing(path):
    return path


def text(path):
    path.write_text("# a model\n")
    return path


NAN = TABLE.copy()
NAN[7, 3] = np.nan


def with_nan(path):
    write(path)
    raw = bytearray(path.read_bytes())
    at = raw.index(TABLE[7].tobytes())
    raw[at + 12 : at + 16] = np.float32(np.nan).tobytes()
    path.write_bytes(raw)
    return path


BAD = {
    "no file": (nothing, "No such file"),
    "not a GGUF": (text, "not a GGUF file"),
    "architecture": (lambda path: write(path, arch="mamba"), "expected .*gpt2, .*'mamba'"),
    "no width": (
        lambda path: write(path, width=None),
        r"key not found in model: llama\.embedding_length",
    ),
    "width 0": (lambda path: write(path, width=0), "expected at least 1; got 0"),
    "no table": (lambda path: write(path, name="other.weight"), "has no tensor token_embd.weight"),
    "no matrix": (
        lambda path: write(path, np.ones(WIDTH, np.float32)),
        r"as wide as llama\.embedding_length, 32; got shape \(32,\)",
    ),
    "a lie about the width": (
        lambda path: write(path, width=16),
        r"as wide as llama\.embedding_length, 16; got shape \(30, 32\)",
    ),
}
BAD_FOR_THE_MODEL = {
    "another width": (
        lambda path: write(path, TABLE[:, :16], width=16),
        "expected the width donor_d_in, 32; got 16",
    ),
    "too few rows": (
        lambda path: write(path, TABLE[: VOCAB - 1]),
        "expected rows for the vocab, 24; got 23",
    ),
    "NaN": (with_nan, "row 7 is not finite"),
}


@pytest.mark.parametrize("case", BAD | BAD_FOR_THE_MODEL)
def test_bad_donors_are_refused_by_name(opened, tmp_path, case):
    make, message = (BAD | BAD_FOR_THE_MODEL)[case]
    path = make(tmp_path / "donor.gguf")
    before = opened.engine.weights()["token_embd.weight"]
    with pytest.raises(GGUFError, match=rf"(?s)WarmStart\.realize_warm: .*{message}") as error:
        opened.realize_warm(path, CONFIG)
    assert str(path) in str(error.value)
    np.testing.assert_array_equal(opened.engine.weights()["token_embd.weight"], before)
    if case in BAD:
        with pytest.raises(GGUFError, match=rf"WarmStart\.donor_embed_width: .*{message}"):
            WarmStart.donor_embed_width(path)
        with pytest.raises(GGUFError, match=rf"WarmStart\.pca_lens: .*{message}"):
            WarmStart.pca_lens(path, D)


def test_a_type_that_cannot_be_read(tmp_path):
    config = LlamaConfig(VOCAB, D, 4, 2, 32, 1, T, donor_d_in=256)
    recipe = WarmStart()
    recipe.realize_scratch(config, OPTIONS)
    rows = np.zeros((VOCAB, 292), np.uint8)  # a block of 256 elements each
    path = write(tmp_path / "donor.gguf", rows, "q8_k", width=256)
    with pytest.raises(GGUFError, match=r"WarmStart\.realize_warm: .*Q8_K"):
        recipe.realize_warm(path, config)


def test_arrays_that_do_not_fit(opened, donor):
    with pytest.raises(
        ShapeError, match=r"upload_donor: expected shape \(24, 32\).*got \(30, 32\)"
    ):
        opened.upload_donor(TABLE)
    with pytest.raises(ShapeError, match=r"upload_lens: expected shape \(16, 32\).*got \(32, 16\)"):
        opened.upload_lens(np.zeros((WIDTH, D)))
    with pytest.raises(ShapeError, match="finite"):
        opened.upload_donor(NAN[:VOCAB])
    with pytest.raises(ConfigError, match=r"expected the vocab and donor_d_in.*24 and 32; got 12"):
        opened.realize_warm(donor, LlamaConfig(12, D, 4, 2, 32, 1, T, donor_d_in=WIDTH))


def test_a_lens_needs_an_output_matrix_and_a_donor():
    with pytest.raises(ConfigError, match="untied"):
        WarmStart().realize_scratch(CONFIG, RecipeOptions())
    recipe = WarmStart()
    recipe.realize_scratch(LlamaConfig(VOCAB, D, 4, 2, 32, 1, T), RecipeOptions())
    with pytest.raises(ConfigError, match="donor_d_in is 0"):
        recipe.upload_lens(np.zeros((D, WIDTH)))


def test_pca_keeps_the_most_of_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr("toynn.recipes._donor.CHUNK", 7)
    rng = np.random.default_rng(2)
    table = rng.normal(1, 1, (60, 4)) @ rng.normal(0, 1, (4, WIDTH)) + 5
    path = write(tmp_path / "donor.gguf", table.astype(np.float32))
    lens = WarmStart.pca_lens(path, 4)
    assert lens.shape == (4, WIDTH) and lens.dtype == np.float32
    np.testing.assert_allclose(lens @ lens.T, np.eye(4), atol=1e-5)
    centred = table - table.mean(0)
    np.testing.assert_allclose(centred @ lens.T @ lens, centred, atol=1e-4)
    variances = (centred @ lens.T).var(0)
    assert (np.diff(variances) < 0).all()
    assert (np.take_along_axis(lens, np.abs(lens).argmax(1)[:, None], 1) > 0).all()
    with pytest.raises(ConfigError, match="d_model: expected 1 to 32; got 33"):
        WarmStart.pca_lens(path, 33)


def test_export_folds_the_lens(opened, donor, tmp_path):
    opened.realize_warm(donor, CONFIG)
    opened.build()
    train(opened)
    path = tmp_path / "model.gguf"
    opened.engine.export_gguf(path)
    weights = opened.engine.weights()
    again = LlamaSeqEngine.from_gguf(path)
    assert "lens.proj.weight" not in again.weights()
    np.testing.assert_allclose(
        again.weights()["token_embd.weight"],
        TABLE[:VOCAB] @ weights["lens.proj.weight"].T,
        1e-5,
        1e-6,
    )
    ids = np.arange(T)
    np.testing.assert_allclose(again.logits(ids), opened.engine.logits(ids), 1e-4, 1e-5)


def test_realize_scratch_is_for_once(opened):
    with pytest.raises(LifecycleError, match=r"WarmStart.realize_scratch: once only"):
        opened.realize_scratch(CONFIG, OPTIONS)


def test_numbers_that_float32_cannot_hold(opened):
    with pytest.raises(ShapeError, match="finite"):
        opened.upload_donor(np.full((VOCAB, WIDTH), 1e300))


def test_calls_before_build_name_it(opened):
    ids = np.zeros(T, np.int32)
    for call in (opened.evaluate, opened.accumulate):
        with pytest.raises(LifecycleError, match=r"WarmStart.\w+ before build\(\)"):
            call(ids, None, ids)
