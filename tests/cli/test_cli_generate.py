"""``toynn generate``: what it prints and returns, and one line for each bad input."""

import io
import json
import math
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hang import HANG
from lora_bases import config, write_base
from some_adapters import draw
from vocabs import CONTROL, bpe_file, spm_file

import toynn
from toynn.cli import _generate, main
from toynn.engines import LlamaSeqEngine, frozen
from toynn.engines.files import passed_on
from toynn.formats import adapters, gguf
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer
from toynn.generation import completion
from toynn.generation.drawing import Drawn, sample
from toynn.generation.sampling import Sampling

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
        def drawn(engine, ids, max_tokens, sampling, **options):
            asked.update(options, ids=ids, max_tokens=max_tokens, sampling=sampling)
            return (Drawn(token, math.nan, ()) for token in tokens)

        monkeypatch.setattr(completion, "draw", drawn)
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
        "sampling": Sampling(),
        "stop": frozenset(),
        "reader": None,
    }
    assert capsys.readouterr().out == "abc\n"


def test_characters_come_whole_and_harmless(model, says, monkeypatch):
    writes = []
    monkeypatch.setattr(
        _generate,
        "print",
        lambda text="", file=None, **_: file or writes.append(text),
        raising=False,
    )
    says("é\x1b[2J\x9b\ttab\u200d\n".encode() + b"\xe2\x82")
    assert run(model) == 0
    assert "".join(writes) == "é\ufffd[2J\ufffd\ttab\u200d\n\ufffd"
    assert writes[:3] == ["", "é", "\ufffd"]


def test_a_prompt_from_standard_input(model, says, monkeypatch, capsys):
    asked = says(b"")
    for given in (b"a\nb\n", b"\n\n", "é".encode()):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert run(model, prompt="-") == 0
        assert asked["ids"] == list(given)
    assert capsys.readouterr().err.startswith("4 tokens read, none written")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (r"a\n\n", b"a\n\n"),
        (r"\t\r\\n\'\"", b"\t\r\\n'\""),
        (r"\x41\x0a\x4", b"A\n\\x4"),
        (r"\q\d{1}", rb"\q\d{1}"),
        ("a\\", b"a\\"),
    ],
)
def test_escapes_in_a_prompt_are_read_if_asked(model, says, typed, meant):
    asked = says(b"")
    assert run(model, "--escape", "--stop", r"\n", prompt=typed) == 0
    assert asked["ids"] == list(meant)
    assert run(model, prompt=typed) == 0
    assert asked["ids"] == list(typed.encode())


def test_escapes_in_a_stop_are_read_if_asked(model, says, capsys):
    says(b"one\ntwo")
    for more, out in ((["-e"], "one\n"), ([], "one\ntwo\n")):
        assert run(model, "--stop", r"\n", *more) == 0
        assert capsys.readouterr().out == out


def test_an_empty_prompt_where_there_is_a_bos(model, says, monkeypatch, capsys):
    asked = says(b"")
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text, **_: [7, *text.encode()])
    assert run(model, prompt="") == 0
    assert asked["ids"] == [7]
    capsys.readouterr()
    assert run(model, "--chat", prompt="") == 2
    assert "--prompt: it is empty" in error_line(capsys)


def stdin_that_is(kind):
    """Standard input that cannot be read as a file can."""
    if kind == "none":
        return None
    if kind == "a text":
        return io.StringIO("a\n\nb\n")
    if kind == "closed":
        closed = io.TextIOWrapper(io.BytesIO())
        closed.close()
        return closed
    return io.TextIOWrapper(io.FileIO(os.open(os.devnull, os.O_WRONLY), "r"))  # its mode is a lie


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes without names only")
def test_prompts_from_a_pipe(model, tmp_path, capsys):
    """As /dev/stdin and <(program) are."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[b"a\nb\n"], daemon=True)
    writer.start()
    words = ["--prompts", str(tmp_path / "pipe"), "--batch", "1", "--max-tokens", "1"]
    assert main(["generate", "--model", model, *words]) == 0
    writer.join()
    assert [found["prompt"] for found in objects(capsys)] == ["a", "b"]


@pytest.mark.parametrize(
    ("kind", "flag", "said"),
    [
        ("none", "--prompt", "--prompt -: standard input is empty"),
        ("none", "--prompts", "standard input: expected a prompt per line"),
        ("closed", "--prompt", "--prompt -: standard input is empty"),
        ("closed", "--prompts", "standard input: expected a prompt per line"),
        ("for writing", "--prompt", "standard input: cannot read: Bad file descriptor"),
        ("for writing", "--prompts", "standard input: cannot read: Bad file descriptor"),
    ],
)
def test_standard_input_that_is_none(model, monkeypatch, capsys, kind, flag, said):
    stdin = stdin_that_is(kind)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["generate", "--model", model, flag, "-"]) == 2
    assert said in error_line(capsys)
    if stdin is not None:
        stdin.close()


def test_prompts_from_standard_input(model, says, monkeypatch, capsys):
    """Texts, as in a file of prompts; a text in the place of a file, too, as in a notebook."""
    asked = says(b"")
    monkeypatch.setattr(sys, "stdin", stdin_that_is("a text"))
    assert main(["generate", "--model", model, "--prompts", "-", "--batch", "1"]) == 0
    assert [found["prompt"] for found in objects(capsys)] == ["a", "b"]
    monkeypatch.setattr(sys, "stdin", stdin_that_is("a text"))
    assert run(model, prompt="-") == 0
    assert asked["ids"] == list(b"a\n\nb\n")
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\xff\n")))
    assert main(["generate", "--model", model, "--prompts", "-"]) == 2
    assert "standard input:2: not UTF-8 text: byte 0xff" in error_line(capsys)


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
    assert process.wait(timeout=HANG) == 141
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
        (tmp_path / "folder", {}, "expected a .gguf file, a run folder with model.gguf"),
        (tmp_path / "lora", {}, "name the adapter's base model here, and the folder by --adapter"),
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


@pytest.mark.parametrize(
    ("architecture", "tensor", "message"),
    [
        ("mamba", "w", "its architecture is 'mamba'; toynn has llama"),
        ("nomic-bert", "w", "'nomic-bert': it is an encoder; toynn trains models that predict"),
        ("clip", "w", "'clip': it is a model of pictures; toynn trains models that predict"),
        (
            "llama",
            "cls.output.weight",
            "it is a classifier of texts, for `toynn predict`, eval and",
        ),
    ],
)
def test_an_architecture_that_is_not_here(architecture, tensor, message, model, tmp_path, capsys):
    with gguf.open(model) as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        metadata |= {"general.architecture": architecture, "mamba.vocab_size": 256}
        weights = {name: (np.array(file[name]), "F32") for name in file}
        weights |= {tensor: (np.ones((1, 2), np.float32), "F32")}
        gguf.write(tmp_path / "other.gguf", metadata, weights)
    assert run(tmp_path / "other.gguf") == 2
    assert message in error_line(capsys)
    (tmp_path / "d.jsonl").write_text('{"text": "a"}')
    for words in (["train", "lora", "--model"], ["eval", "--model"], ["check", "--model"]):
        if words[0] == "check" and architecture == "mamba":
            continue  # its tokenizer is all that is needed
        if words[0] != "train" and architecture == "llama":
            continue  # they read classifiers
        assert (
            main([*words, str(tmp_path / "other.gguf"), "--data", str(tmp_path / "d.jsonl")]) == 2
        )
        assert message in capsys.readouterr().err


def objects(capsys):
    """The lines of JSON that were printed."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_several_continuations_of_a_prompt_differ_and_come_again(model, tmp_path, capsys):
    """Each is what its own seed gives alone; for one seed all bits are the same."""
    words = ["--temp", "1.2", "--max-tokens", "9", "--num-samples", "3", "--seed", "4"]
    assert run(model, *words) == 0
    printed = capsys.readouterr()
    found = printed.out.split("--- ")[1:]
    assert [each.split(" ---\n")[0] for each in found] == [
        f"{n} of 3, seed {n + 3}" for n in (1, 2, 3)
    ]
    assert printed.err.count("tokens read in") == 3
    alone = []
    for seed in ("4", "5", "6"):
        assert run(model, "--temp", "1.2", "--max-tokens", "9", "--seed", seed) == 0
        alone.append(capsys.readouterr().out)
    assert [each.split(" ---\n", 1)[1] for each in found] == alone and len({*alone}) == 3
    assert run(model, *words) == 0
    assert capsys.readouterr().out == printed.out
    (tmp_path / "prompts.txt").write_text("one two\nthree\n")
    many = ["generate", "--model", model, "--prompts", str(tmp_path / "prompts.txt"), *words]
    assert main(many) == 0
    lines = objects(capsys)
    assert [(each["prompt"], each["seed"]) for each in lines] == [
        (prompt, seed) for prompt in ("one two", "three") for seed in (4, 5, 6)
    ]
    assert main([*many, "--batch", "1", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith("out: 6 completions\n")
    again = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [each["completion"] for each in again] == [each["completion"] for each in lines]
    assert [shown(each["completion"].encode()) for each in again[:3]] == [a[:-1] for a in alone]


def test_continuations_that_would_all_be_the_same_are_refused(model, capsys):
    assert run(model, "--temp", "0", "--num-samples", "2") == 2
    assert "--num-samples: with --temp 0 all would be the same" in error_line(capsys)
    assert run(model, "--num-samples", "0") == 2


def test_ctrl_c_ends_all_continuations(model, capsys, monkeypatch):
    def drawn(*_, **__):
        yield Drawn(97, math.nan, ())
        raise KeyboardInterrupt

    monkeypatch.setattr(completion, "draw", drawn)
    assert run(model, "--num-samples", "3") == 130
    assert capsys.readouterr().out == "--- 1 of 3, seed 0 ---\na\n"


def test_a_prompt_of_a_role_that_is_none_is_named_with_its_line(chatty, tmp_path, capsys):
    turns = [{"role": "usr", "content": "hello"}]
    (tmp_path / "prompts.jsonl").write_text("\n" + json.dumps({"messages": turns}))
    words = ["--model", str(chatty), "--prompts", str(tmp_path / "prompts.jsonl")]
    assert main(["generate", *words]) == 2
    said = capsys.readouterr().err
    assert "prompts.jsonl:2: message 0: role: expected system" in said and "mean user?" in said


def test_prompts_of_a_file_become_lines_of_json(chatty, tmp_path, capsys):
    turns = [{"role": "user", "content": "hello"}]
    (tmp_path / "prompts.jsonl").write_text(
        json.dumps({"prompt": "the cat"}) + "\n\n" + json.dumps({"messages": turns}) + "\n"
    )
    (tmp_path / "prompts.txt").write_text("the cat\n  \nhello\n")
    options = ["--temp", "0", "--max-tokens", "3"]
    for name, flags in (("prompts.jsonl", []), ("prompts.txt", ["--chat"])):
        given = ["generate", "--model", str(chatty), "--prompts", str(tmp_path / name)]
        assert main([*given, *options, *flags, "--out", str(tmp_path / f"{name}.out")]) == 0
        assert capsys.readouterr().out.endswith(".out: 2 completions\n")
        assert main([*given, *options, *flags, "--batch", "1"]) == 0
        assert capsys.readouterr().out == (tmp_path / f"{name}.out").read_text()
    tokenizer = Tokenizer.from_gguf(chatty / "model.gguf")
    with gguf.open(chatty / "model.gguf") as file:
        engine = frozen(file)

    def expected(ids):
        return tokenizer.decode(sample(engine, ids, 3, temperature=0, stop=tokenizer.eog))

    first, second = map(json.loads, (tmp_path / "prompts.jsonl.out").read_text().splitlines())
    assert first["prompt"] == "the cat" and second["messages"] == turns
    assert first["completion"] == expected(tokenizer.encode("the cat"))
    assert second["completion"] == expected(tokenizer.encode_chat(turns))
    assert first["ended"] == ("length" if first["tokens"] == 3 else "token")
    assert first["prompt_tokens"] == len(tokenizer.encode("the cat"))
    third, fourth = map(json.loads, (tmp_path / "prompts.txt.out").read_text().splitlines())
    assert fourth["completion"] == second["completion"]
    assert third["prompt"] == "the cat"  # as a user's message


def test_log_probabilities_are_the_models_own(model, capsys):
    assert run(model, "--json", "--logprobs", "2", "--max-tokens", "4", "--temp", "1.5") == 0
    (found,) = objects(capsys)
    with gguf.open(model) as file:
        engine = frozen(file)
    ids = list(b"one two")
    assert len(found["log_probabilities"]) == 4
    for token in found["log_probabilities"]:
        logits = engine.logits(ids)[-1].astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum())
        assert token["log_probability"] == pytest.approx(expected[token["id"]], abs=1e-4)
        best = [each["id"] for each in token["likeliest"]]
        assert best == np.argsort(-logits)[:2].tolist()
        ids.append(token["id"])


def test_tokens_of_log_probabilities_keep_their_spaces(tmp_path):
    tokenizer = Tokenizer.from_gguf(spm_file(tmp_path / "spm.gguf"))
    ids = [id for id, text in enumerate(tokenizer.tokens) if text.startswith("\u2581")][:3]
    for id in ids:
        told = _generate._token(tokenizer, Drawn(id, -1.0, ((id, -1.0),)))
        assert told["text"] == told["likeliest"][0]["text"] == tokenizer.piece(id).decode()
        assert told["text"].startswith(" ")


def test_stop_texts_end_it(model, says, capsys):
    says(b"one END two")
    assert run(model, "--stop", "nothing", "--stop", "END", "--json") == 0
    (found,) = objects(capsys)
    assert found["completion"] == "one " and found["ended"] == "stop"
    says(b"one EN")
    assert run(model, "--stop", "END") == 0
    assert capsys.readouterr().out == "one EN\n"


def test_several_adapters_with_weights(model, tmp_path, capsys):
    with gguf.open(model) as file:
        some = [draw(file, size=0.5, seed=seed, ranks=(seed + 2,)) for seed in range(2)]
        both = adapters.combine(some, [0.5, 1.0])
        expected = sample(frozen(file, both), list(b"one two"), 30, temperature=0)
    names = [str(tmp_path / f"{seed}.gguf") for seed in range(2)]
    for name, adapter in zip(names, some, strict=True):
        adapters.write_gguf(name, adapter)
    options = ["--temp", "0", "--max-tokens", "30"]
    assert run(model, *options, "--adapter", f"{names[0]}:0.5", names[1]) == 0
    assert capsys.readouterr().out == shown(expected) + "\n"
    assert run(model, *options, "--adapter", f"{names[0]}:0.5", "--adapter", names[1]) == 0
    assert capsys.readouterr().out == shown(expected) + "\n"
    assert run(model, *options, "--adapter", names[0]) == 0
    assert capsys.readouterr().out != shown(expected) + "\n"


def test_bad_prompts_are_named(model, tmp_path, capsys):
    for name, content, message in (
        ("a.jsonl", '{"prompt": "a"}\n{"text": "b"}', "a.jsonl:2: expected prompt, or messages"),
        ("b.jsonl", '{"prompt": ""}', "b.jsonl:1: prompt: expected a text; got an empty one"),
        ("c.txt", "\n \n", "c.txt: expected a prompt per line"),
        ("d.txt", "a\n" + "x" * 49, "d.txt:2: it is 49 tokens long; the model sees at most 48"),
    ):
        (tmp_path / name).write_text(content)
        assert main(["generate", "--model", model, "--prompts", str(tmp_path / name)]) == 2
        assert message in error_line(capsys)
    assert run(model, "--logprobs", "3") == 2
    assert "--logprobs: it needs JSON output" in error_line(capsys)
    assert run(model, "--json", "--out", model) == 2
    assert "the file exists already" in error_line(capsys)
    assert run(model, "--stop", "") == 2
    assert "stop must be a list of non-empty texts" in error_line(capsys)


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_products_are_as_exact_as_asked_for(model, monkeypatch, precision):
    """What medium means for a few rows over blocks is tested in tests/kernels/test_int8.py."""
    seen = []

    def drawn(engine, *arguments, **options):
        seen.append(engine.session.matmul_precision)
        return iter([Drawn(65, math.nan, ())])

    monkeypatch.setattr(completion, "draw", drawn)
    before = toynn.get_float32_matmul_precision()
    try:
        assert run(model, "--precision", precision) == 0
    finally:
        toynn.set_float32_matmul_precision(before)
    assert seen == [precision]
