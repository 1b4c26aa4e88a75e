"""``toynn chat``: turns by the template, what was read is not read again."""

import io
import json
import sys

import numpy as np
import pytest
from lora_bases import config
from vocabs import CONTROL, bpe_file

import toynn
from toynn.cli import chat, main
from toynn.engines import LlamaSeqEngine
from toynn.engines.decoding import Decoder
from toynn.engines.files import passed_on
from toynn.formats import gguf
from toynn.formats.tokenizer import Tokenizer
from toynn.generation import completion
from toynn.generation.drawing import Drawn
from toynn.generation.sampling import Sampling

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ROLES = ("system", "user", "assistant")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    specials = [(f"<|{name}|>", CONTROL) for name in (*ROLES, "im_end")]
    bpe_file(folder / "vocab.gguf", specials=specials, keys={"tokenizer.chat_template": TEMPLATE})
    with gguf.open(folder / "vocab.gguf", check=False) as file:
        engine = LlamaSeqEngine()
        sizes = config("llama", vocab=len(file.metadata["tokenizer.ggml.tokens"]), context=40)
        engine.realize_for_random_init(sizes, toynn.RecipeOptions())
        engine._carried = passed_on(file)
    engine.export_gguf(folder / "model.gguf")
    return str(folder / "model.gguf")


@pytest.fixture
def talk(model, monkeypatch, capsys):
    """Say lines to a model that answers "ok"; return what it was asked, and what was printed."""
    tokenizer = Tokenizer.from_gguf(model)
    ok = tokenizer.encode("ok")

    def talk(*said, flags=(), answers=True):
        asked = []

        def drawn(engine, ids, max_tokens, sampling, **options):
            asked.append(tokenizer.decode(ids, special=True))
            return (Drawn(token, np.nan, ()) for token in ok)

        if answers:
            monkeypatch.setattr(completion, "draw", drawn)
        text = "".join(f"{line}\n" for line in said).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert main(["chat", "--model", model, *flags]) == 0
        return asked, capsys.readouterr()

    return talk


def test_turns_are_written_by_the_template(talk):
    asked, printed = talk("hi", "", "again", flags=["--system", "be kind"])
    begin = "<|system|>be kind<|im_end|><|user|>hi<|im_end|><|assistant|>"
    assert asked == [begin, f"{begin}ok<|im_end|><|user|>again<|im_end|><|assistant|>"]
    assert printed.out == "ok\nok\n"


def test_commands(talk, tmp_path):
    (tmp_path / "system.txt").write_text("be kind\n")
    asked, printed = talk("a", "b", "/undo", "/help", "c", "/clear", "d", "/exit", "e")
    assert "/undo removes the last turn, /regen draws" in printed.err
    turn = "<|user|>{}<|im_end|><|assistant|>".format
    assert asked == [
        turn("a"),
        turn("a") + "ok<|im_end|>" + turn("b"),
        turn("a") + "ok<|im_end|>" + turn("c"),
        turn("d"),
    ]
    asked, _ = talk("a", "/clear", "b", flags=["--system", f"@{tmp_path / 'system.txt'}"])
    assert asked[1] == "<|system|>be kind<|im_end|>" + turn("b")


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("/foo", "there is no command /foo. /clear starts over, /undo removes"),
        ("/clera", "there is no command /clera; did you mean /clear?"),
        ("/q", "did you mean /exit?"),
        ("/retry", "did you mean /regen?"),
        ("/reset", "did you mean /clear?"),
        ("/CLEAR", "did you mean /clear?"),
        ("/?", "did you mean /help?"),
        ("/", "there is no command /. /clear starts"),
        ("/undo 2", "/undo takes no words; got '2'. /clear starts"),
        ("/foo bar", "there is no command /foo."),
        ("/exit now", "/exit takes no words; got 'now'."),
        ("/system", "/system takes TEXT; got ''."),
        ("/save a\0b", r"'a\x00b': not a path: embedded null byte"),
        ("/system @a\0b", r"'a\x00b': not a path: embedded null byte"),
        ("/save  ", "/save takes FILE; got ''."),
    ],
)
def test_an_unknown_command_is_answered_and_not_sent(talk, said, answer):
    asked, printed = talk("a", said, "b")
    assert len(asked) == 2
    assert said.split()[0] not in "".join(asked)
    assert answer in " ".join(printed.err.split())
    assert printed.out == "ok\nok\n"


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("/usr/bin is full", "/usr/bin is full"),
        ("/tmp/", "/tmp/"),
        (" /foo", "/foo"),
        ("a /foo", "a /foo"),
        ("// what is this", "// what is this"),
    ],
)
def test_a_path_and_what_a_space_precedes_are_sent(talk, said, sent):
    asked, printed = talk(said)
    assert asked == [f"<|user|>{sent}<|im_end|><|assistant|>"]
    assert printed.err == ""


@pytest.mark.parametrize("end", ["/exit", "/quit", "/bye "])
def test_the_usual_words_end_the_chat(talk, end):
    asked, printed = talk("a", end, "b")
    assert len(asked) == 1 and printed.err == ""


def test_an_answer_is_drawn_anew(talk, monkeypatch):
    seeds = []
    monkeypatch.setattr(
        completion,
        "complete",
        lambda *given, seed, complete=completion.complete, **more: (
            seeds.append(seed),
            complete(*given, seed=seed, **more),
        )[1],
    )
    asked, printed = talk("/regen", "a", "/regen", "/regen", "b", flags=["--seed", "7"])
    assert asked[0] == asked[1] == asked[2] == "<|user|>a<|im_end|><|assistant|>"
    assert asked[3] == asked[0] + "ok<|im_end|><|user|>b<|im_end|><|assistant|>"
    assert seeds == [7, 8, 9, 7]
    assert "toynn: /regen: there is no answer yet" in printed.err


def test_the_system_message_is_changed(talk, tmp_path):
    (tmp_path / "system.txt").write_text("be short\n")
    said = ["a", "/system be  kind ", "b", f"/system @{tmp_path}/system.txt", "/clear", "c"]
    asked, printed = talk(*said, f"/system @{tmp_path}/none", "d", flags=["--system", "x"])
    systems = [text.partition("<|user|>")[0] for text in asked]
    assert systems == [
        f"<|system|>{each}<|im_end|>" for each in ("x", "be  kind", *["be short"] * 2)
    ]
    assert [text.count("<|user|>") for text in asked] == [1, 2, 1, 2]
    assert "none: cannot read" in " ".join(printed.err.split())


def test_a_conversation_is_saved_as_a_row_of_data(talk, model, tmp_path):
    first, second = tmp_path / "two words.jsonl", tmp_path / "more.jsonl"
    said = [f"/save {first}", "a", f"/save {first}", "b", f"/save {first}", f"/save {second}"]
    _, printed = talk(*said, f"/save {tmp_path}/none/x", "c", flags=["--system", "é"])
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "ok"}]
    system = {"role": "system", "content": "é"}
    assert json.loads(first.read_text("utf-8")) == {"messages": [system, *turns]}
    assert len(json.loads(second.read_text("utf-8"))["messages"]) == 5
    assert main(["check", "--data", str(second), "--model", model]) == 0
    err = " ".join(printed.err.split())
    assert "/save: nothing was said yet" in err and "exists already; name a new file" in err
    assert "more.jsonl: 4 messages" in err and "none/x: cannot write" in err
    assert printed.out == "ok\nok\nok\n"


def test_an_overlong_message_is_refused_and_the_conversation_goes_on(talk):
    asked, printed = talk("a", "x" * 300, "b")
    assert asked[1].startswith(asked[0]) and "xx" not in asked[1] and len(asked) == 2
    err = " ".join(printed.err.split())
    assert "the message is not sent: with it the conversation is" in err
    assert "the model sees at most 40" in err and "forgotten" not in err


def test_a_command_may_have_spaces_behind_it(talk):
    asked, _ = talk("a", "/clear ", "b", "/exit  ", "c")
    assert asked == [f"<|user|>{said}<|im_end|><|assistant|>" for said in "ab"]


def test_the_oldest_turns_are_forgotten_and_it_is_said(talk):
    asked, printed = talk(*["one two three"] * 5, flags=["--system", "x"])
    assert all(text.startswith("<|system|>x<|im_end|><|user|>one") for text in asked)
    assert asked[-1].count("<|user|>") < 5
    assert "messages are forgotten: the model sees 40 tokens" in printed.err


def test_a_conversation_is_read_once(talk, model, monkeypatch):
    read = []
    whole = Decoder.read

    def watched(self, ids):
        read.append((self.past, len(list(ids))))
        return whole(self, ids)

    monkeypatch.setattr(Decoder, "read", watched)
    x = Tokenizer.from_gguf(model).encode("x")
    monkeypatch.setattr(Sampling, "pick", lambda *_: x[0])
    _, printed = talk("a", "b", flags=["--max-tokens", "1"], answers=False)
    assert printed.out == "x\nx\n"
    (begin, first), (past, second) = read
    # what is new: x <|im_end|> <|user|> b <|im_end|> <|assistant|>
    assert (begin, first, past, second) == (0, 4, 4, 6)


@pytest.mark.parametrize("kind", ["none", "closed"])
def test_without_standard_input_there_is_nothing_to_answer(model, monkeypatch, capsys, kind):
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    monkeypatch.setattr(sys, "stdin", {"none": None, "closed": closed}[kind])
    assert main(["chat", "--model", model]) == 0
    assert capsys.readouterr() == ("", "")


def test_what_cannot_be(model, tmp_path, capsys):
    with gguf.open(model) as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        metadata.pop("tokenizer.chat_template")
        tensors = {name: (np.array(file[name]), "f32") for name in file}
        gguf.write(tmp_path / "plain.gguf", metadata, tensors)
    assert main(["chat", "--model", str(tmp_path / "plain.gguf")]) == 2
    assert "tokenizer.chat_template: missing" in capsys.readouterr().err
    assert main(["chat", "--model", model, "--system", f"@{tmp_path / 'none'}"]) == 2
    assert "none: cannot read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        (["a\\", "b"], ["a\nb"]),
        (["a\\", "", "\\", "b", "c"], ["a\n", "\nb", "c"]),
        (["a\\", "/exit"], ["a\n/exit"]),
        (["/foo\\", "b"], ["/foo\nb"]),
        (["a\\b"], ["a\\b"]),
        (["a", "b\\"], ["a", "b"]),  # the input ends
        (["\\", "  "], []),
    ],
)
def test_a_backslash_goes_on_in_the_next_line(talk, lines, sent):
    asked, printed = talk(*lines)
    told = [text.rpartition("<|user|>")[2].partition("<|im_end|>")[0] for text in asked]
    assert told == sent and printed.err == ""


def test_in_a_terminal_the_end_drops_what_was_begun(talk, monkeypatch, capsys):
    said = iter(["a\\", "b", "c\\", None])
    prompts = []

    def ask(prompt):
        prompts.append(prompt)
        return next(said)

    monkeypatch.setattr(chat, "_ask", ask)
    assert chat._said(True) == "a\nb" and chat._said(True) is None
    assert prompts == ["> ", "... ", "> ", "... "]


def test_escapes_are_read_if_asked(talk, monkeypatch):
    flags = ["--system", r"be\tkind\x21", "--stop", r"\n"]
    stops = []

    def complete(*given, stop, complete=completion.complete, **more):
        stops.append(stop)
        return complete(*given, stop=stop, **more)

    monkeypatch.setattr(completion, "complete", complete)
    asked, _ = talk("a", flags=flags)
    assert asked[0].startswith(r"<|system|>be\tkind\x21<|im_end|>")
    asked, _ = talk(r"a\n", flags=[*flags, "--escape"])
    assert asked[0].startswith("<|system|>be\tkind!<|im_end|>") and r"a\n<|im_end|>" in asked[0]
    assert stops == [[r"\n"], ["\n"]]
