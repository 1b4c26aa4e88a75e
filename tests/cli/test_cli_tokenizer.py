"""Folders without a tokenizer: every command takes one by --tokenizer, and carries it along."""

import json
import shutil
import tomllib

import numpy as np
import pytest
from lora_bases import write_base
from vocabs import bpe_file

import toynn
from toynn.cli import main
from toynn.engines import LlamaSeqEngine, frozen
from toynn.evaluation.harness import Requests
from toynn.formats import bases, gguf
from toynn.formats.tokenizer import Tokenizer

TEXT = "the cat sat on the mat and the rat sat on the cat " * 12
RUN = ["--data", "rows.jsonl", "--out", "run", "--steps", "1", "--batch", "2"]
RUN += ["--seq", "16", "--eval-every", "0", "--save-every", "0", "--report", "none"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of a model without tokenizer, a file with the tokenizer alone, the same as one."""
    folder = tmp_path_factory.mktemp("apart")
    bpe_file(folder / "words.gguf")
    size = Tokenizer.of(folder / "words.gguf").vocab_size
    write_base(folder / "bare.gguf", vocab=size + 3, context=48, untied=True)
    engine = LlamaSeqEngine.from_gguf(folder / "bare.gguf", t_seq=16)
    engine.export_hf(folder / "bare")
    (folder / "text.txt").write_text(TEXT)
    rows = [{"prompt": f"say {n}: ", "completion": "the cat"} for n in range(4)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(autouse=True)
def here(made, tmp_path, monkeypatch):
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(name):
    """A command on the folder without tokenizer."""
    return {
        "generate": ["generate", "--model", "bare", "--prompt", "the cat", "-n", "4"],
        "eval": ["eval", "--model", "bare", "--data", "rows.jsonl", "--json"],
        "check": ["check", "--model", "bare", "--data", "rows.jsonl", "--json"],
        "convert": ["convert", "bare", "--out", "made.gguf"],
        "info": ["info", "bare"],
        "lora": ["train", "lora", "-m", "bare", *RUN],
        "from": ["train", "from-scratch", "--init-from", "bare", *RUN],
    }[name]


@pytest.mark.parametrize("name", ["generate", "eval", "check", "lora"])
def test_a_folder_without_a_tokenizer_says_what_to_do(name, capsys):
    assert main(words(name)) == 2
    error = capsys.readouterr().err
    assert "expected tokenizer.json or tokenizer.model" in error and "with --tokenizer" in error


@pytest.mark.parametrize("name", ["generate", "eval", "check", "lora", "convert", "info"])
def test_the_tokenizer_of_a_file_is_taken(name, capsys):
    assert main([*words(name), "--tokenizer", "words.gguf"]) in (0, None), capsys.readouterr().err


def test_figures_are_those_of_the_tokenizer(capsys):
    assert main([*words("eval"), "--tokenizer", "words.gguf"]) == 0
    found = json.loads(capsys.readouterr().out)
    with bases.open("bare") as file:
        engine, tokenizer = frozen(file), Tokenizer.of("words.gguf")
    rows = [(tokenizer.encode(f"say {n}: "), tokenizer.encode("the cat")) for n in range(4)]
    losses = []
    for prompt, answer in rows:
        ids = [*prompt, *answer, tokenizer.eos]
        logits = engine.logits(ids[:-1]).astype(np.float64)[len(prompt) - 1 :]
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        losses += [-row[id] for row, id in zip(log_p, ids[len(prompt) :], strict=True)]
    assert found["counted"] == len(losses) and engine.vocab == tokenizer.vocab_size + 3
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    lm = Requests("bare", tokenizer="words.gguf")
    assert lm.tokenizer.tokens == tokenizer.tokens


def test_a_tokenizer_of_more_tokens_is_another_models(tmp_path, capsys):
    write_base(tmp_path / "small.gguf", vocab=64, context=48)
    typed = ["generate", "-m", "small.gguf", "--tokenizer", "words.gguf", "-p", "x"]
    assert main(typed) == 2
    assert "rows for 64: it is another model's" in capsys.readouterr().err


def test_a_run_knows_its_tokenizer_and_its_base(tmp_path, monkeypatch, capsys):
    """In the run's folder alone, from another working directory."""
    assert main([*words("lora"), "--tokenizer", "words.gguf"]) == 0
    assert "try it      toynn generate --adapter run --prompt" in capsys.readouterr().out
    typed = ["generate", "--adapter", "run", "--prompt", "the cat", "-n", "6", "--temp", "0"]
    given = [*typed, "-m", "bare", "--tokenizer", "words.gguf"]
    assert main(given) == 0
    expected = capsys.readouterr().out
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    typed[2] = str(tmp_path / "run")
    assert main(typed) == 0 and capsys.readouterr().out == expected
    typed[2] = str(tmp_path / "run" / "adapter.gguf")
    assert main(typed) == 0 and capsys.readouterr().out == expected
    rows = str(tmp_path / "rows.jsonl")
    assert main(["eval", "--adapter", str(tmp_path / "run"), "--data", rows]) == 0
    made = ["fuse", "--adapter", str(tmp_path / "run"), "--out", "fused.gguf"]
    assert main(made) == 0, capsys.readouterr().err
    assert Tokenizer.of("fused.gguf").encode("the cat") == Tokenizer.of(
        tmp_path / "words.gguf"
    ).encode("the cat")
    more = ["train", "lora", "--adapter", str(tmp_path / "run"), "--out", "second"]
    assert main([*more, "--data", rows, "--steps", "1"]) == 0, capsys.readouterr().err
    config = tomllib.loads((elsewhere / "second" / "config.toml").read_text())["train"]
    assert config["model"] == str(tmp_path / "bare")
    assert config["tokenizer"] == str(tmp_path / "words.gguf")
    assert main(more) == 2 and "required: --data" in capsys.readouterr().err
    out = ["export", "--to", "peft", "--adapter", str(tmp_path / "run"), "--out", "exported"]
    assert main(out) == 0
    base = json.loads((elsewhere / "exported" / "adapter_config.json").read_text())
    assert base["base_model_name_or_path"] == str(tmp_path / "bare")
    # a PEFT folder names its base, too
    assert main(["eval", "--adapter", "exported", "--data", rows]) == 2  # it names no tokenizer
    assert "with --tokenizer" in capsys.readouterr().err


def test_a_base_that_is_gone_is_said(tmp_path, capsys):
    shutil.copytree(tmp_path / "bare", tmp_path / "copy")
    typed = words("lora")
    typed[typed.index("bare")] = "copy"
    assert main([*typed, "--tokenizer", "words.gguf"]) == 0
    shutil.rmtree(tmp_path / "copy")
    capsys.readouterr()
    for command in ("generate", "chat", "eval"):
        more = ["--prompt", "x"] if command == "generate" else []
        assert main([command, "--adapter", "run", *more]) == 2
        error = capsys.readouterr().err
        assert "names the base model" in error and "which does not exist" in error
        assert "by --model" in error
    (tmp_path / "run" / "config.toml").write_text("[run\n")
    assert main(["eval", "--adapter", "run"]) == 2
    assert "config.toml: not the configuration of a run" in capsys.readouterr().err


def test_what_names_no_base_is_said(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "adapter.gguf").touch()
    for command in ("generate", "eval", "chat", "fuse"):
        more = ["--prompt", "x"] if command == "generate" else []
        more += ["--out", "x.gguf"] if command == "fuse" else []
        assert main([command, "--adapter", "empty", *more]) == 2
        assert "nothing beside it names its base model" in capsys.readouterr().err
        if command != "fuse":
            assert main([command, *more]) == 2
            assert "--model: name the model" in capsys.readouterr().err


def test_runs_over_two_bases_are_not_added_up(tmp_path, capsys):
    write_base(tmp_path / "one.gguf", vocab=256, context=48)
    write_base(tmp_path / "two.gguf", vocab=256, context=48)
    for name in ("one", "two"):
        typed = ["train", "lora", "-m", f"{name}.gguf", *RUN]
        typed[typed.index("run")] = name
        assert main(typed) == 0
    capsys.readouterr()
    assert main(["generate", "--adapter", "one", "one", "-p", "x", "-n", "2"]) == 0
    assert main(["generate", "--adapter", "one", "two", "-p", "x", "-n", "2"]) == 2
    assert "two: it was trained over" in capsys.readouterr().err


def test_a_run_goes_on_with_rows_that_no_token_has(tmp_path):
    """Its model.gguf names them, as llama.cpp's converter does."""
    assert main([*words("from"), "--tokenizer", "words.gguf"]) == 0
    whole, own = Tokenizer.of(tmp_path / "run" / "model.gguf"), Tokenizer.of("words.gguf")
    count = own.vocab_size
    assert whole.tokens == [*own.tokens, *(f"[PAD{count + k}]" for k in range(3))]
    assert whole.encode("the cat") == own.encode("the cat")
    with gguf.open(tmp_path / "run" / "model.gguf") as file:
        assert list(file.metadata["tokenizer.ggml.token_type"][-4:]) == [1, 5, 5, 5]


def test_finetune_takes_one_and_a_file_keeps_its_own(tmp_path, capsys):
    rows = [{"prompt": "say: ", "completion": "the cat"}] * 4
    more = {"steps": 1, "batch": 2, "seq": 16, "eval_every": 0, "report": "none", "quiet": True}
    found = toynn.finetune("bare", rows=rows, tokenizer="words.gguf", out="run", **more)
    assert found.tokenizer.tokens[:-3] == Tokenizer.of("words.gguf").tokens[:-3]
    given = ["fuse", "-m", "bare.gguf", "--adapter", "run", "--out", "fused.gguf"]
    assert main([*given, "--tokenizer", "words.gguf"]) == 2
    assert "bare.gguf is a GGUF file, and keeps its own tokenizer" in capsys.readouterr().err
