"""``toynn check``: what is said of data, as a run would take them; exit codes; JSON."""

import json
from pathlib import Path

import pytest
from lora_bases import write_base
from vocabs import CONTROL, bpe_file

from toynn.cli import _check_lines, main
from toynn.data import jsonl
from toynn.data.survey import ShownSequence
from toynn.formats.tokenizer import Tokenizer

for library in ("tokenizers", "jinja2"):
    pytest.importorskip(library, reason=f"{library}, of the text extra, is not installed")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    specials = [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)]
    keys = {"tokenizer.chat_template": CHATML, "llama.context_length": 512}
    bpe_file(tmp_path / "m.gguf", specials=specials, keys=keys)
    talks = [
        [
            {"role": "user", "content": f"Who is {k}?"},
            {"role": "assistant", "content": "Zork\nit is."},
        ]
        for k in range(40)
    ]
    rows = [{"messages": talk, "id": k} for k, talk in enumerate(talks)]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_what_is_said_of_conversations(here, capsys):
    tokenizer = Tokenizer.from_gguf("m.gguf")
    given = {"vocab_size": tokenizer.vocab_size, "packing": True}
    longest = jsonl.read_all("chat.jsonl", tokenizer, 999, vocab_size=999)[0].longest
    data = jsonl.read("chat.jsonl", tokenizer, longest - 1, **given)
    cut = int(data.notes[0].split("; ")[1].split()[0])
    assert 20 < cut < 40
    words = ["--data", "chat.jsonl", "-m", "m.gguf", "--seq", str(longest - 1)]
    assert main(["check", *words]) == 0
    out = capsys.readouterr().out
    assert "file                 lines of JSON, " in out
    assert "rows                 40 of messages (OpenAI's)\n" in out
    assert "  ignored            id (40)\n" in out
    assert "roles                assistant, user\n" in out
    assert "repeats              none\n" in out
    assert f"--seq {longest - 1:<15}cuts {cut} of 40 (" in out
    shown = out.partition("-- chat.jsonl:1: ")[2].splitlines()
    assert shown[1:4] == [
        "  <|im_start|>user\\nWho is 0?<|im_end|>\\n<|im_start|>assistant\\n",
        "+ Zork\\nit is.<|im_end|>\\n",
        shown[3],
    ]
    assert "\x1b" not in out and out.count("\n-- chat.jsonl:") == 3


def test_leaks_are_those_of_the_split_that_a_run_makes(here, capsys):
    rows = [json.loads(line) for line in (here / "chat.jsonl").read_text().splitlines()]
    rows[17]["messages"] = rows[5]["messages"]
    for seed in range(12):
        (here / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
        tokenizer = Tokenizer.from_gguf("m.gguf")
        data = jsonl.read("chat.jsonl", tokenizer, 99, vocab_size=10**4, seed=seed)
        parts = [
            {data_part[k].ids.tobytes() for k in range(len(data_part))}
            for data_part in (data.train, data.valid)
        ]
        words = ["check", "--data", "chat.jsonl", "-m", "m.gguf", "--seed", str(seed), "--json"]
        assert main(words) == 0
        (source,) = json.loads(capsys.readouterr().out)["sources"]
        assert source["parts"]["train"]["repeated"] == 1
        assert source["leaks"]["held out"]["rows"] == len(parts[0] & parts[1])
        if parts[0] & parts[1]:
            return
    raise AssertionError("no seed parted the two rows")


def test_leaks_between_files(here, capsys):
    rows = (here / "chat.jsonl").read_text().splitlines()
    (here / "data").mkdir()
    (here / "data" / "train.jsonl").write_text("\n".join(rows[:30]))
    (here / "data" / "valid.jsonl").write_text("\n".join(rows[28:]))
    assert main(["check", "--data", "data"]) == 0
    out = capsys.readouterr().out
    assert "2 rows of valid are in training, too: data/valid.jsonl:1 is data/train.jsonl:29" in out
    assert main(["check", "--data", "data", "--strict"]) == 1


def test_rows_that_two_sources_share(here, capsys):
    rows = (here / "chat.jsonl").read_text().splitlines()
    (here / "b.jsonl").write_text("\n".join(row.replace("Who is", "WHO is") for row in rows[10:13]))
    (here / "c.jsonl").write_text('{"text": "a"}')
    words = ["check", "--data", "chat.jsonl", "b.jsonl", "c.jsonl"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.endswith("shared               3 rows of b.jsonl are in chat.jsonl, too\n")
    assert main([*words, "--json"]) == 0
    shared = json.loads(capsys.readouterr().out)["shared"]
    assert shared == [{"path": "b.jsonl", "in": "chat.jsonl", "rows": 3}]
    assert main(["check", "--data", "b.jsonl", "c.jsonl", "--strict"]) == 0
    assert "no row is in two sources" in capsys.readouterr().out
    assert main([*words, "--strict"]) == 1


def test_errors_and_their_exit_code(here, capsys):
    with (here / "chat.jsonl").open("a") as file:
        file.write('\n{"messages": []}\n{')
    assert main(["check", "--data", "chat.jsonl"]) == 2
    out = capsys.readouterr().out
    assert "refused              2 rows, which training stops at; the first:\n" in out
    assert "chat.jsonl:41: messages: expected a list of messages; got an empty list" in out
    for words, message in (
        (["--data", "none.jsonl"], "none.jsonl: cannot read: No such file"),
        (["--data", "chat.jsonl", "--seq", "9"], "--seq: counting tokens needs a model"),
        (["--data", "m.gguf"], "m.gguf: expected a folder with train.jsonl, a .jsonl file"),
    ):
        assert main(["check", *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.csv", "empty.txt"])
@pytest.mark.parametrize("model", [[], ["-m", "m.gguf"]], ids=["characters", "tokens"])
def test_data_without_rows_are_refused_as_training_does(name, model, here, capsys):
    (here / name).write_text("a,b\n" * (name == "empty.csv"))
    assert main(["check", "--data", name, *model]) == 2
    assert "refused              training stops at it: it is empty\n" in capsys.readouterr().out


def test_pairs_are_shown_cut_and_by_what_becomes_of_them(here, capsys):
    pairs = [{"prompt": f"Who is {k}?", "chosen": "Zork", "rejected": "I am."} for k in range(3)]
    (here / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    assert main(["check", "--data", "pairs.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "-- pairs.jsonl:1, chosen: 13 characters, + 4 made likelier --\n" in out
    assert "-- pairs.jsonl:2, rejected: 14 characters, + 5 made less likely --\n" in out
    assert "with loss --" not in out
    assert main(["check", "--data", "chat.jsonl", "-m", "m.gguf", "--seq", "5"]) == 2
    first = capsys.readouterr().out.partition("-- chat.jsonl:1: ")[2].splitlines()
    assert first[0].startswith("6 of ") and "+ 0 with loss" in first[0]
    assert first[2].startswith("-- chat.jsonl:2")
    text = (here / "chat.jsonl").read_text().split("\n")[0]
    (here / "two.jsonl").write_text(f"{text}\n{text}")
    assert main(["check", "--data", "two.jsonl", "-m", "m.gguf", "--seq", "99"]) == 0
    out = capsys.readouterr().out
    assert "1 row instead of 2, filled" in out and "1 row repeats another; the first" in out


def test_a_fault_of_the_model_is_said_once(here, capsys):
    bpe_file(here / "bare.gguf")
    assert main(["check", "--data", "chat.jsonl", "-m", "bare.gguf"]) == 2
    out = capsys.readouterr().out
    assert "40 rows, which training stops at" in out
    assert out.count("tokenizer.chat_template: missing") == 1


def test_a_role_that_is_none_is_named_with_its_line(here, capsys):
    odd = [{"role": "usr", "content": "a"}, {"role": "assistant", "content": "b"}]
    with (here / "chat.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"messages": odd}))
    said = "role: expected system, developer, user, assistant, tool, function, or one that the "
    said += "chat template names; got 'usr': did you mean user?"
    assert main(["check", "--data", "chat.jsonl", "-m", "m.gguf"]) == 2
    out = capsys.readouterr().out
    assert "1 row, which training stops at" in out
    assert f" chat.jsonl:41: message 0: {said}\n" in out
    assert main(["check", "--data", "chat.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "roles                assistant, user, usr\n" in out
    assert f"  'usr': {said.partition(': ')[2]}\n" in out
    assert main(["check", "--data", "chat.jsonl", "--strict"]) == 1
    keys = {"tokenizer.chat_template": CHATML + "{# 'usr' #}"}
    bpe_file(here / "usr.gguf", specials=[("<|im_end|>", CONTROL)], keys=keys)
    capsys.readouterr()
    assert main(["check", "--data", "chat.jsonl", "-m", "usr.gguf"]) == 0
    assert "did you mean" not in capsys.readouterr().out


def test_a_text_without_a_model(here, capsys):
    (here / "a.txt").write_text("the cat sat on the mat and the rat sat on the cat\n" * 40)
    assert main(["check", "--data", "a.txt", "--strict"]) == 1
    out = capsys.readouterr().out
    assert "39 lines of 32 and more characters repeat another; the first: a.txt:2 repeats 1" in out
    assert "rows of the last tenth, held out are in training, too" in out


def test_colour_and_none(monkeypatch):
    class Terminal:
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert _check_lines.colours(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not _check_lines.colours(Terminal())
    shown = ShownSequence("a:1", [97, 98, 99], [False, True, True])
    decode = bytes.decode
    plain = list(_check_lines.example(shown, lambda ids: decode(bytes(ids)), False))
    assert plain == ["  a", "+ bc"]
    colour = list(_check_lines.example(shown, lambda ids: decode(bytes(ids)), True))
    assert colour == ["\x1b[2m  a\x1b[0m", "\x1b[32m+ bc\x1b[0m"]


def test_a_histogram_has_every_length_once():
    lengths = [3] * 50 + list(range(100, 300)) + [9000]
    rows = list(_check_lines.histogram(lengths, seq=250))
    counts = [
        int(row.partition("#")[2].lstrip("#").split()[0].replace(",", ""))
        for row in rows
        if "#" in row
    ]
    assert sum(counts) == len(lengths) and max(map(len, rows)) <= 78 and len(rows) <= 12
    assert "9,000" in rows[-1] and rows[-1].endswith("cut by --seq")
    assert not rows[0].endswith("cut by --seq")
    assert len(list(_check_lines.histogram([50, 58, 60]))) == 3


@pytest.mark.parametrize(
    ("row", "more", "said"),
    [
        ({"prompt": "a" * 99, "completion": "b"}, ["--seq", "8"], "no row has a token with loss"),
        ({"messages": [{"role": "user", "content": "a"}]}, [], "no row has a token with loss"),
        ("a short text", ["--seq", "64"], "it is too short for two windows at --seq 64"),
    ],
)
def test_data_that_training_refuses_as_a_whole(here, row, more, said, capsys):
    """Each row can be read, and no token with loss is left."""
    path = here / ("bad.txt" if isinstance(row, str) else "bad.jsonl")
    path.write_text(row if isinstance(row, str) else "\n".join([json.dumps(row)] * 3))
    assert main(["check", "--data", str(path), "--model", "m.gguf", *more]) == 2
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["GGUF", "folder"])
@pytest.mark.parametrize("more", [[], ["--seq", "99"]])
def test_rows_are_no_longer_than_the_model_sees(tmp_path, monkeypatch, capsys, kind, more):
    """What it says is what training says, and the cuts are those of training."""
    monkeypatch.chdir(tmp_path)
    model = str(write_base(tmp_path / "m.gguf", vocab=256, context=16))
    rows = [{"prompt": f"{k}: ", "completion": "yes" * 9} for k in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--model", model, "--data", "rows.jsonl", *more]
    assert main(["train", "lora", *words, "--steps", "2", "--warmup", "0", "--out", "run"]) == 0
    trained = capsys.readouterr().out
    if kind == "folder":
        config = {"model_type": "llama", "max_position_embeddings": 16}
        (tmp_path / "config.json").write_text(json.dumps(config))
        tokenizer = Tokenizer.of(model)
        monkeypatch.setattr(Tokenizer, "of", lambda path: tokenizer)
        words[1] = str(tmp_path)
        Path(model).unlink()
    assert main(["check", *words]) == 0
    checked = capsys.readouterr().out
    said = f"--seq {(more or ['', '512'])[1]}: the model's context is 16 tokens: rows have 16\n"
    assert f"model                {said}" in checked and f"data        {said}" in trained
    assert "30 cut to 16 tokens" in " ".join(trained.split())
    assert "--seq 16             cuts 30 of 30" in checked
    assert main(["check", *words, "--json"]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert source["parts"]["train"]["seq"]["seq"] == 16
