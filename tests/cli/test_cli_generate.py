"""``toynn generate``: what it prints and returns, and one line for each bad input."""

import io
import subprocess
import sys

import numpy as np
import pytest
from lora_bases import config, write_base
from some_adapters import draw
from vocabs import CONTROL, bpe_file

import toynn
from toynn.cli import generate, main
from toynn.engines import LlamaSeqEngine, frozen
from toynn.engines.files import passed_on
from toynn.formats import adapters, gguf
from toynn.formats.tokenizer import Tokenizer
from toynn.generate import sample

BYTES = {"vocab": 256, "context": 48}
TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|model|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run folder with a model on bytes; as in any folder of a run, it is called model.gguf."""
    folder = tmp_path_factory.mktemp("run")
    write_base(folder / "model.gguf", **BYTES)
    return folder


@pytest.fixture
def model(folder):
    return str(folder / "model.gguf")


def run(model, *more, prompt="one two"):
    return main(["generate", "--model", str(model), "--prompt", prompt, *more])


def shown(tokens):
    text = bytes(tokens).decode(errors="replace")
    return "".join(
        "\ufffd" if (c < " " and c not in "\t\n") or "\x7f" <= c < "\xa0" else c for c in text
    )


@pytest.fixture
def says(monkeypatch):
    """Have the model say certain bytes, whatever it is asked for; return what it was asked."""
    asked = {}

    def say(tokens):
        def generator(engine, ids, max_tokens, **options):
            asked.update(options, ids=ids, max_tokens=max_tokens)
            return iter(tokens)

        monkeypatch.setattr(generate, "generate", generator)
        return asked

    return say


@pytest.mark.parametrize("greedy", [True, False])
def test_it_prints_what_the_model_samples(model, folder, capsys, greedy):
    options = {"temperature": 0} if greedy else {"temperature": 1.2, "top_k": 50, "top_p": 0.9}
    given = ["--temp", "0"] if greedy else ["--temp", "1.2", "--top-k", "50", "--top-p", "0.9"]
    assert run(model, *given, "--seed", "3", "--max-tokens", "70") == 0
    printed = capsys.readouterr()
    with gguf.open(model) as file:
        expected = sample(frozen(file), list(b"one two"), 70, seed=3, **options)
    assert printed.out == shown(expected) + "\n"
    assert printed.err.startswith("7 tokens read in ")
    assert printed.err.endswith(" tokens/s\n")
    assert ", 70 written, " in printed.err
    assert run(folder, *given, "--seed", "3", "--max-tokens", "70", "--threads", "1") == 0
    assert capsys.readouterr().out == printed.out


def test_what_is_not_given_has_defaults(model, says, capsys):
    asked = says(b"abc")
    assert run(model) == 0
    assert asked == {
        "ids": list(b"one two"),
        "max_tokens": 256,
        "temperature": 0.8,
        "top_k": 0,
        "top_p": 1.0,
        "seed": 0,
        "stop": frozenset(),
    }
    assert capsys.readouterr().out == "abc\n"


def test_characters_come_whole_and_harmless(model, says, monkeypatch):
    writes = []
    monkeypatch.setattr(
        generate, "print", lambda text, file=None, **_: file or writes.append(text), raising=False
    )
    says("é\x1b[2J\x9b\ttab\u200d\n".encode() + b"\xe2\x82")
    assert run(model) == 0
    assert "".join(writes) == "é\ufffd[2J\ufffd\ttab\u200d\n\ufffd"
    assert writes[:3] == ["", "é", "\ufffd"]


def test_a_prompt_from_standard_input(model, says, monkeypatch, capsys):
    asked = says(b"")
    for given, prompt in ((b"a\nb\n", b"a\nb"), (b"\n\n", b"\n"), ("é".encode(), "é".encode())):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert run(model, prompt="-") == 0
        assert asked["ids"] == list(prompt)
    assert capsys.readouterr().err.startswith("3 tokens read, none written")


def test_an_adapter(model, tmp_path, capsys):
    with gguf.open(model) as file:
        adapter = draw(file, size=0.5)
        expected = sample(frozen(file, adapter), list(b"one two"), 30, temperature=0)
        plain = sample(frozen(file), list(b"one two"), 30, temperature=0)
    adapters.write_gguf(tmp_path / "adapter.gguf", adapter)
    given = ["--adapter", str(tmp_path / "adapter.gguf"), "--temp", "0", "--max-tokens", "30"]
    assert run(model, *given) == 0
    assert capsys.readouterr().out == shown(expected) + "\n" != shown(plain) + "\n"


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A model with a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("chatty")
    specials = [(text, CONTROL) for text in ("<|user|>", "<|model|>", "<|im_end|>")]
    bpe_file(folder / "vocab.gguf", specials=specials, keys={"tokenizer.chat_template": TEMPLATE})
    with gguf.open(folder / "vocab.gguf", check=False) as file:
        engine = LlamaSeqEngine()
        sizes = config("llama", vocab=len(file.metadata["tokenizer.ggml.tokens"]), context=32)
        engine.realize_for_random_init(sizes, toynn.RecipeOptions())
        engine._carried = passed_on(file)
    engine.export_gguf(folder / "model.gguf")
    return folder


def test_chat_writes_the_prompt_as_the_template_does(chatty, says, capsys):
    tokenizer = Tokenizer.from_gguf(chatty / "model.gguf")
    asked = says(tokenizer.encode("yes, I am"))
    assert run(chatty, "--chat", prompt="are you <|model|>?") == 0
    user, model, end = (tokenizer.tokens.index(f"<|{n}|>") for n in ("user", "model", "im_end"))
    assert asked["ids"] == [user, *tokenizer.encode("are you <|model|>?"), model]
    assert end in asked["stop"]
    assert capsys.readouterr().out == "yes, I am\n"
    assert run(chatty, prompt="hello") == 0
    assert asked["ids"] == tokenizer.encode("hello")


def test_ctrl_c_ends_the_line_and_exits_130(model, says, capsys):
    def interrupted():
        yield from b"abc"
        raise KeyboardInterrupt

    says(interrupted())
    assert run(model) == 130
    printed = capsys.readouterr()
    assert printed.out == "abc\n"
    assert "3 written" in printed.err


def test_a_reader_that_leaves_is_no_error(model):
    command = [sys.executable, "-m", "toynn", "generate", "--model", model, "--prompt", "a"]
    process = subprocess.Popen(
        [*command, "--max-tokens", "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def error_line(capsys):
    """The one line of an error, with nothing else on stderr."""
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line.removeprefix("toynn: error: ")


def test_errors_are_one_line(model, folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "text").write_text("no model")
    (tmp_path / "folder").mkdir()
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter.gguf").touch()
    for path, more, message in (
        (tmp_path / "none.gguf", {}, "none.gguf: cannot read: No such file"),
        (tmp_path / "text", {}, "text: not a GGUF file"),
        (tmp_path / "folder", {}, "expected a .gguf file, or a folder with model.gguf"),
        (tmp_path / "lora", {}, "name the model that this is for, and the folder as --adapter"),
        (model, {"prompt": ""}, "--prompt: it is empty"),
        (model, {"prompt": "x" * 49}, "it is 49 tokens long; the model sees at most 48"),
    ):
        assert run(path, **more) == 2
        assert message in error_line(capsys)
    for more, message in (
        (["--chat"], "tokenizer.chat_template: missing"),
        (["--adapter", str(tmp_path / "none")], "none"),
        (["--temp", "-1"], "--temp: must be a number of at least 0; got '-1'"),
        (["--top-p", "0"], "--top-p: must be a number above 0"),
        (["--top-k", "x"], "--top-k: must be a whole number"),
        (["--max-tokens", "0"], "--max-tokens: must be a whole number from 1"),
    ):
        assert run(model, *more) == 2
        assert message in error_line(capsys)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    assert run(model, prompt="-") == 2
    assert "--prompt -: expected UTF-8; got 0xff at byte 2" in error_line(capsys)


def test_an_architecture_that_is_not_here(model, tmp_path, capsys):
    with gguf.open(model) as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        metadata |= {"general.architecture": "mamba", "mamba.vocab_size": 256}
        gguf.write(tmp_path / "mamba.gguf", metadata, {"w": (np.ones((1, 2), np.float32), "F32")})
    assert run(tmp_path / "mamba.gguf") == 2
    assert "its architecture is 'mamba'; toynn has gpt2, llama" in error_line(capsys)
