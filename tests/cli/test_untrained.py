"""Rows of special tokens that look untrained, of models whose other rows do not."""

import json

import numpy as np
import pytest
from lora_bases import retype
from vocabs import CONTROL, UNUSED, bpe_file

import toynn
from toynn.cli import main
from toynn.engines import LlamaSeqEngine
from toynn.formats import bases, gguf, quants
from toynn.formats.tokenizer import Tokenizer
from toynn.jobs.untrained import untrained_rows

pytest.importorskip("tokenizers", reason="tokenizers, of the text extra, is not installed")
pytest.importorskip("jinja2", reason="jinja2, of the text extra, is not installed")

C = 128
NAMES = ("<|zero|>", "<|alike|>", "<|mean|>", "<|drawn|>", "<|fine|>", "<|loud|>", "<|copy|>")
SPARE = [f"<|spare_{k}|>" for k in range(6)]
TEMPLATE = "{% for m in messages %}" + "".join(NAMES[:3]) + "{{ m.content }}<|fine|>{% endfor %}"


def rows_of(count, rng):
    """Rows as trained ones are: of a few main directions, around a mean that is not 0."""
    main = rng.normal(size=(12, C)) * np.geomspace(2, 0.4, 12)[:, None]
    shared = rng.normal(size=C)
    own = rng.normal(size=(count, 12)) @ main + 0.4 * rng.normal(size=(count, C))
    return (own + shared).astype(np.float32)


def with_specials(table, ids, rng):
    """Set the rows that the names of special tokens say."""
    mean, norm = table.mean(0), np.median(np.linalg.norm(table, axis=1))
    pushed = rng.normal(size=C) * norm / np.sqrt(C)
    for name in ("<|alike|>", *SPARE[:3]):
        table[ids[name]] = pushed + 0.01 * rng.normal(size=C)
    table[ids["<|zero|>"]] = 1e-4 * rng.normal(size=C)
    table[ids["<|mean|>"]] = mean + 0.01 * rng.normal(size=C)
    table[ids["<|drawn|>"]] = rng.normal(size=C) * norm / np.sqrt(C)
    loud = 0.1 * rng.normal(size=C)
    loud[[3, 70]] = 20 * norm, -9 * norm  # a few outliers, as rows of BOS have them
    table[ids["<|loud|>"]] = loud
    table[ids["<|copy|>"]] = table[ids["<eos>"]]
    return table


@pytest.fixture(scope="module", params=["tied", "untied"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("untrained")
    specials = [(name, CONTROL) for name in (*NAMES, *SPARE[:-1])] + [(SPARE[-1], UNUSED)]
    keys = {"tokenizer.chat_template": TEMPLATE}
    bpe_file(folder / "words.gguf", specials=specials, keys=keys)
    tokenizer = Tokenizer.of(folder / "words.gguf")
    ids = {text: id for id, text in enumerate(tokenizer.tokens)}
    engine = LlamaSeqEngine()
    cfg = toynn.LlamaConfig(tokenizer.vocab_size, C, 4, 4, 64, 1, 48)
    untied = request.param == "untied"
    engine.realize_for_random_init(cfg, toynn.RecipeOptions(untied=untied))
    rng, weights = np.random.default_rng(0), engine.weights()
    table = with_specials(rows_of(tokenizer.vocab_size, rng), ids, rng)
    weights["token_embd.weight"] = table
    if untied:
        weights["token_embd.weight"] = rows_of(tokenizer.vocab_size, rng)
        weights["output.weight"] = table
    weights["output_norm.weight"][:] = 0.02  # logits of a few units
    engine.load_weights(weights)
    engine.carry_tokenizer(folder / "words.gguf")
    engine.export_gguf(folder / "model.gguf")
    engine.export_hf(folder / "folder")
    rows = [{"messages": [{"role": "user", "content": "hi"}]}]
    rows[0]["messages"].append({"role": "assistant", "content": "ho"})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


WHYS = {
    "<|zero|>": "nearly 0",
    "<|alike|>": "like rows of unused tokens",
    "<|mean|>": "the mean of all rows",
    "<|drawn|>": "as drawn at random",
}
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1")


@pytest.mark.parametrize("type", TYPES)
def test_rows_of_a_file_of_any_type(model, type, tmp_path, monkeypatch):
    path = model / "model.gguf"
    if type != "F32":
        path = tmp_path / "model.gguf"
        path.write_bytes((model / "model.gguf").read_bytes())
        quantize(path, type)
    looked, plain = [], quants.dequantize
    monkeypatch.setattr(
        quants,
        "dequantize",
        lambda raw, type, shape: looked.append(shape) or plain(raw, type, shape),
    )
    with bases.open(path) as file:
        tokenizer = Tokenizer.of(file)
        row = np.array([5, *(tokenizer.tokens.index(name) for name in NAMES)], np.int32)
        used = {int(id): row[: k + 2] for k, id in enumerate(row[1:])}
        found = untrained_rows(file, tokenizer, used)
        weight = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    assert {row.token: row.why for row in found} == WHYS
    assert {row.weight for row in found} == {weight}
    assert all(shape[0] <= 512 for shape in looked)  # of 670 rows: those that are compared


def quantize(path, type):
    """Give the matrices of a file a type, rounded as llama.cpp's reference does."""
    from gguf import GGMLQuantizationType
    from gguf import quants as reference

    with gguf.open(path) as file:
        values = {
            name: np.array(file[name])
            for name in ("token_embd.weight", "output.weight")
            if name in file.tensors
        }
    retype(path, lambda name: type if name in values else "F32")
    with gguf.open(path) as file:
        assert {file.tensors[name].type for name in values} == {type}
        offsets = {name: file.tensors[name].offset for name in values}
    raw = bytearray(path.read_bytes())
    for name, array in values.items():
        blocks = reference.quantize(array, GGMLQuantizationType[type]).tobytes()
        raw[offsets[name] : offsets[name] + len(blocks)] = blocks
    path.write_bytes(raw)


def test_check_names_those_that_the_template_writes(model, monkeypatch, capsys):
    monkeypatch.chdir(model)
    typed = ["check", "--data", "rows.jsonl", "-m", "model.gguf"]
    assert main(typed) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("untrained")]
    with bases.open("model.gguf") as file:
        weight = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    for name, line in zip(NAMES[:3], lines, strict=False):
        assert f"{name}, which is in the data" in line and WHYS[name] in line and weight in line
        assert "the model gives it p = " in line
    if weight == "output.weight":
        assert lines[3].endswith("--targets all-linear,head")
    else:  # llama.cpp cannot load an adapter of a tied head
        assert "--targets" not in lines[3]
        assert "toynn train from-scratch --init-from model.gguf; or end with" in lines[3]
    assert len(lines) == 4
    assert main([*typed, "--strict"]) == 1
    capsys.readouterr()
    assert main([*typed, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["untrained"]
    assert [row["token"] for row in found] == list(NAMES[:3])


def test_a_token_that_the_model_predicts_is_not_called_untrained(
    model, tmp_path, monkeypatch, capsys
):
    """Its row is close to those of unused tokens, as in SmolLM2, and p = 1 where it stands."""
    monkeypatch.chdir(model)
    tokenizer, engine = Tokenizer.of("model.gguf"), LlamaSeqEngine.from_gguf("model.gguf", 48)
    ids = {text: id for id, text in enumerate(tokenizer.tokens)}
    weights = engine.weights()
    head = weights.get("output.weight", weights["token_embd.weight"])
    known, unused, before = ids["<|alike|>"], ids["<|spare_0|>"], ids["<|zero|>"]
    head[known] = 1.1 * head[unused]
    weights["token_embd.weight"][before] = head[unused]  # which so is predicted after <|zero|>
    for name in ("blk.0.attn_output.weight", "blk.0.ffn_down.weight"):
        weights[name][:] = 0
    weights["output_norm.weight"][:] = 1
    engine.load_weights(weights)
    engine.carry_tokenizer("model.gguf")
    engine.export_gguf(tmp_path / "known.gguf")
    assert main(["check", "--data", "rows.jsonl", "-m", str(tmp_path / "known.gguf")]) == 0
    assert "<|alike|>, which is in the data" not in capsys.readouterr().out


def test_of_a_token_that_only_begins_rows_nothing_is_said(model):
    with bases.open(model / "model.gguf") as file:
        tokenizer = Tokenizer.of(file)
        id = tokenizer.tokens.index("<|zero|>")
        assert untrained_rows(file, tokenizer, {id: np.array([id, 5, id], np.int32)})
        assert not untrained_rows(file, tokenizer, {id: np.array([id], np.int32)})


def test_a_folder_and_a_tokenizer_apart(model, monkeypatch, capsys):
    monkeypatch.chdir(model)
    typed = ["check", "--data", "rows.jsonl", "--json", "-m"]
    assert main([*typed, "model.gguf"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert main([*typed, "folder", "--tokenizer", "words.gguf"]) == 0
    found = json.loads(capsys.readouterr().out)
    for row, other in zip(found["untrained"], expected["untrained"], strict=True):
        assert row.pop("p") == pytest.approx(other.pop("p"), rel=1e-3)
    assert found == expected
    (model / "none").mkdir(exist_ok=True)
    (model / "none" / "config.json").write_text((model / "folder" / "config.json").read_text())
    assert main([*typed, "words.gguf"]) == 0  # a vocabulary without rows
    assert json.loads(capsys.readouterr().out)["untrained"] == []


def test_a_new_model_has_no_rows_that_differ(tmp_path):
    """All are as drawn: then that tells nothing."""
    bpe_file(tmp_path / "words.gguf", specials=[("<|a|>", CONTROL), ("<|b|>", CONTROL)])
    size = Tokenizer.of(tmp_path / "words.gguf").vocab_size
    engine = LlamaSeqEngine()
    engine.realize_for_random_init(
        toynn.LlamaConfig(size, C, 4, 4, 64, 1, 48), toynn.RecipeOptions()
    )
    engine.carry_tokenizer(tmp_path / "words.gguf")
    engine.export_gguf(tmp_path / "new.gguf")
    with gguf.open(tmp_path / "new.gguf") as file:
        tokenizer = Tokenizer.of(file)
        id = tokenizer.tokens.index("<|a|>")
        assert untrained_rows(file, tokenizer, {id: np.array([5, id], np.int32)}) == []
