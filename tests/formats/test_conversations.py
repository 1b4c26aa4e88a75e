"""Many conversations at once: the ids, the order and the errors of one after another."""

import itertools
import json
import os
import threading
from itertools import islice

import pytest
from hang import HANG
from test_chat import CHATML, LLAMA2, SPECIALS
from vocabs import bpe_file, spm_file

from toynn.data import jsonl
from toynn.data.preference import read_preferences
from toynn.errors import DataError, GGUFError
from toynn.formats.tokenizer import Tokenizer, ahead, chat, conversations

for library in ("tokenizers", "sentencepiece", "jinja2"):
    pytest.importorskip(library, reason=f"{library}, of the text extra, is not installed")

MANY = 33


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    def make(template, write=bpe_file):
        keys = {"tokenizer.chat_template": template}
        path = tmp_path_factory.mktemp("model") / "chat.gguf"
        return Tokenizer.from_gguf(write(path, specials=SPECIALS, keys=keys))

    return make


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    monkeypatch.setattr(ahead, "cpus", lambda: frozenset(range(3)))


def talk(number, role="user"):
    """A conversation; some texts begin with a space, are empty, or name a special token."""
    told = ("", " so", "<|im_end|>", "say")[number % 4]
    messages = [{"role": role, "content": f"{told} {number}"}]
    for turn in range(number % 3 + 1):
        messages.append({"role": "assistant", "content": " " * (number % 2) + f"the {turn}"})
        messages.append({"role": "user", "content": told})
    return messages


def together(monkeypatch, threads=3):
    """From the 19th on, which may be three at once, so many are rendered at once, or none is."""
    ask, waiting, met = chat._Renderer.ask, itertools.count(1), threading.Event()

    def ask_together(self, request):
        number = int(json.loads(request)["messages"][0]["content"].split()[-1])
        if number >= 18 and not met.is_set():
            if next(waiting) == threads:
                met.set()
            assert met.wait(HANG)
        return ask(self, request)

    monkeypatch.setattr(chat._Renderer, "ask", ask_together)


def processes(monkeypatch):
    """What is started from now on."""
    started, start = [], chat.subprocess.Popen

    def popen(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(chat.subprocess, "Popen", popen)
    return started


@pytest.mark.parametrize(
    ("template", "write"), [(CHATML, bpe_file), (CHATML, spm_file), (LLAMA2, spm_file)]
)
def test_many_have_the_ids_of_one_after_another(make, template, write, monkeypatch):
    tokenizer, started = make(template, write), processes(monkeypatch)
    monkeypatch.setattr(conversations, "TOGETHER", 300)  # so that they are encoded in some parts
    many = [talk(number) for number in range(MANY)]
    alone = [tokenizer.encode_turns(messages) for messages in many]
    before = len(started)
    together(monkeypatch)
    assert list(tokenizer.encode_talks((messages, None) for messages in many)) == alone
    assert 2 <= len(started) - before <= 3  # the first is there already, or it was never needed
    assert all(child.poll() is not None for child in started[before:][-2:])  # and they have ended


def test_a_few_need_no_other_process(make, monkeypatch):
    tokenizer = make(CHATML)
    tokenizer.chat(talk(0))
    started = processes(monkeypatch)
    assert len(list(tokenizer.encode_talks([(talk(number), None) for number in range(8)]))) == 8
    assert not started


def test_ids_that_end_as_no_piece_said_are_found_again(make):
    """A plain text whose last token is a special one: what follows it continues no text."""
    tokenizer = make(CHATML, spm_file)
    made = tokenizer._conversations
    special = next(iter(made._special_ids))
    usual = made._model.encode_all
    made._model.encode_all = lambda texts: [
        [*ids, special] if text == "end" else ids
        for (text, _), ids in zip(texts, usual(texts), strict=True)
    ]
    parts = made._encoded([conversations._Rendered(["so", "end", "so"], "")])[0]
    assert parts[0].ids[1:] == parts[2].ids == usual([("so", False)])[0]
    assert usual([("so", True)]) != usual([("so", False)])


@pytest.mark.parametrize("at", [3, 20])
def test_the_first_that_is_wrong_is_told_of_in_its_turn(make, at):
    tokenizer = make(LLAMA2, spm_file)
    many = [(talk(number, "system" if number >= at else "user"), None) for number in range(MANY)]
    made = tokenizer.encode_talks(many)
    assert len(list(islice(made, at))) == at
    with pytest.raises(GGUFError, match="refuses the conversation: no system here"):
        next(made)


def test_an_error_leaves_everybodys_renderer_as_it_is(make):
    """Whoever asks next, in this thread or in another, would be told that it was killed."""
    tokenizer = make(LLAMA2, spm_file)
    talks = [(talk(number, "user" if number < 20 else "system"), None) for number in range(MANY)]
    tokenizer.chat(talk(0))
    child = chat._the_renderer._child
    for _ in range(3):
        with pytest.raises(GGUFError, match="no system here"):
            list(tokenizer.encode_talks(talks))
        assert chat._the_renderer._child is child and child.poll() is None


def test_lines_are_named(make, tmp_path):
    tokenizer = make(LLAMA2, spm_file)

    def read(**bad):
        lines = {number: json.dumps({"messages": talk(number)}) for number in range(MANY)}
        lines |= {int(number[1:]): line for number, line in bad.items()}
        (tmp_path / "a.jsonl").write_text("\n".join(lines.values()))
        seen = []
        progress = lambda done, of: seen.append((done, of))  # noqa: E731
        size = len(tokenizer.tokens)
        conversations = jsonl.read(
            tmp_path / "a.jsonl", tokenizer, 64, vocab_size=size, progress=progress
        )
        assert seen[-1][0] == seen[-1][1]
        return conversations

    assert len(read().train) == MANY - MANY // 10
    refused = json.dumps({"messages": talk(0, "system")})
    with pytest.raises(DataError, match=r"a\.jsonl:26: .*refuses the conversation: no system"):
        read(_25=refused, _26="{", _20="")
    with pytest.raises(DataError, match=r"a\.jsonl:26: "):
        read(_25=refused)
    with pytest.raises(DataError, match=r"a\.jsonl:26: not JSON"):
        read(_25="{", _26=refused)


@pytest.mark.parametrize(
    ("role", "meant"),
    [
        ("usr", "user"),
        ("User", "user"),
        ("human", "user"),
        ("gpt", "assistant"),
        ("asistant", "assistant"),
        ("sytem", "system"),
        ("narrator", None),
    ],
)
def test_a_role_that_is_none_is_refused_by_name(make, tmp_path, role, meant):
    tokenizer = make(CHATML)
    talks = [talk(k) for k in range(30)]
    talks[20][2]["role"] = role
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"messages": t}) + "\n" for t in talks))
    hint = f": did you mean {meant}?" if meant else ""
    said = "message 2: role: expected system, developer, user, assistant, tool, function, or one "
    said += f"that the chat template names; got {role!r}{hint}"
    for encode in (tokenizer.encode_chat, tokenizer.encode_turns):
        with pytest.raises(DataError) as caught:
            encode(talks[20])
        assert str(caught.value) == said
    with pytest.raises(DataError) as caught:
        jsonl.read(tmp_path / "a.jsonl", tokenizer, 64, vocab_size=tokenizer.vocab_size)
    assert str(caught.value) == f"{tmp_path / 'a.jsonl'}:21: {said}"
    pairs = {"prompt": talks[0][:1], "chosen": talks[20], "rejected": talks[0]}
    (tmp_path / "b.jsonl").write_text(json.dumps(pairs))
    with pytest.raises(DataError, match=f"b.jsonl:1: message 3: role: expected .*{role}"):
        read_preferences(tmp_path / "b.jsonl", tokenizer, 64, vocab_size=tokenizer.vocab_size)


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_role_that_the_template_names_is_taken(make, quote):
    tokenizer = make(
        f"{{% for m in messages %}}{{% if m.role == {quote}ipython{quote} %}}[{{{{ m.content }}}}]"
        "{% else %}{{ m.role }}: {{ m.content }}{% endif %}{% endfor %}"
    )
    messages = [{"role": role, "content": "x"} for role in ("ipython", "developer", "function")]
    ids = tokenizer.encode_chat(messages)
    assert tokenizer.decode(ids) == "[x]developer: xfunction: x"
    with pytest.raises(DataError, match=r"message 0: role: .* got 'observation'"):
        tokenizer.encode_chat([{"role": "observation", "content": "x"}])


def test_whoever_stops_leaves_no_process_behind(make, monkeypatch):
    tokenizer = make(CHATML)
    tokenizer.chat(talk(0))  # everybody's renderer stays
    started = processes(monkeypatch)
    monkeypatch.setattr(conversations, "TOGETHER", 1)
    together(monkeypatch)
    made = tokenizer.encode_talks((talk(number), None) for number in range(10**6))
    assert len(list(islice(made, MANY))) == MANY
    made.close()
    assert started  # one at least, as many as there are cores at most
    assert all(child.poll() is not None for child in started)


def test_forked_children_encode_many(make):
    tokenizer = make(CHATML, spm_file)
    many = [(talk(number), None) for number in range(12)]
    expected = list(tokenizer.encode_talks(many))
    child = os.fork()
    if child == 0:
        same = False
        try:
            same = list(tokenizer.encode_talks(many)) == expected
        finally:
            os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert list(tokenizer.encode_talks(many)) == expected
