"""Data as it lies around: other programs' fields, tables, folders of texts, packed files."""

import gzip
import json

import pytest

from toynn.data import _arrays, jsonl
from toynn.data._forms import renamed
from toynn.errors import DataError
from toynn.evaluation.choices import read_questions
from toynn.formats.tokenizer import ByteTokenizer


class Chatty(ByteTokenizer):
    """Writes <role>text; for each message, and the names of tools first."""

    def encode_talks(self, talks):
        return (self.encode_turns(*talk) for talk in talks)

    def encode_turns(self, messages, tools=None):
        names = ",".join(tool["function"]["name"] for tool in tools or ())
        parts = [(list(f"[{names}]".encode()), False)] if names else []
        for message in messages:
            calls = "".join(f"!{c['function']['name']}" for c in message.get("tool_calls", ()))
            parts.append((list(f"<{message['role']}>".encode()), False))
            said = f"{message['content']}{calls};"
            parts.append((list(said.encode()), message["role"] == "assistant"))
        return parts


CALL = {"function": {"name": "f", "arguments": {}}}


KINDS = (".jsonl", ".json", ".csv")
CUT = gzip.compress(b'{"text": "a"}', mtime=0)[:-9]
DAMAGED = bytearray(gzip.compress(b'{"text": "a"}', mtime=0))
DAMAGED[10] |= 6  # a block of no kind


def read(path, **options):
    data = jsonl.read(path, Chatty(), 600, vocab_size=256, **options)
    turns = []
    for part in (data.train, data.valid):
        for ids, labels in (part[k] for k in range(len(part))):
            text = bytes([*ids.tolist(), 0])[:-1].decode()
            turns.append((text, bytes(labels[labels >= 0].tolist()).decode()))
    return sorted(turns)


def lines(tmp_path, *rows, name="data.jsonl"):
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_alpaca(tmp_path):
    rows = [
        {"instruction": "Add.", "input": "1 1", "output": "two"},
        {"instruction": "Sing.", "input": "", "output": "la"},
    ]
    (paired, one), (plain, two) = sorted(read(lines(tmp_path, *rows)), key=lambda pair: pair[1])[
        ::-1
    ]
    assert (one, two) == ("two", "la")
    assert paired.startswith("Below is an instruction that describes a task, paired with an input")
    assert paired.endswith("### Instruction:\nAdd.\n\n### Input:\n1 1\n\n### Response:\ntw")
    assert plain.endswith("the request.\n\n### Instruction:\nSing.\n\n### Response:\nl")


def test_sharegpt(tmp_path):
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]
    rows = [{"conversations": turns, "system": "be"}, {"conversations": turns, "id": 7}]
    assert read(lines(tmp_path, *rows)) == [
        ("<system>be;<user>hi;<assistant>yo", "yo;"),
        ("<user>hi;<assistant>yo", "yo;"),
    ]


def test_openai_messages_with_tools(tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "dust", "arguments": "{}"}}
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "much"},
        {"role": "assistant", "content": "ok"},
    ]
    tools = [{"type": "function", "function": {"name": "dust"}}]
    row = {"messages": talk, "tools": tools}
    expected = "[dust]<user>ab;<assistant>!dust;<tool>much;<assistant>ok"
    assert read(lines(tmp_path, row, row)) == [(expected, "!dust;ok;")] * 2
    ends_with_a_call = {"messages": talk[:2]}
    examples = read(lines(tmp_path, ends_with_a_call, ends_with_a_call))
    assert examples == [("<user>ab;<assistant>!dust", "!dust;")] * 2


def test_tables(tmp_path):
    rows = [{"prompt": f'{n}, "x"\n', "completion": "y"} for n in range(3)]
    expected = [(f'{n}, "x"\n', "y") for n in range(3)]
    table = "prompt,completion\n" + "".join(f'"{n}, ""x""\n",y\n' for n in range(3))
    (tmp_path / "a.csv").write_text(table)
    (tmp_path / "a.tsv").write_text(table.replace("prompt,c", "prompt\tc").replace('",y', '"\ty'))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(table.encode()))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    for name in ("a.csv", "a.tsv", "a.csv.gz", "a.jsonl.gz"):
        assert read(tmp_path / name) == expected, name
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "train.csv").write_text(table)
    (folder / "valid.jsonl").write_text(json.dumps(rows[0]))
    assert len(read(folder)) == 4


def test_arrow_and_zstd(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow, of the data extra, is not installed")
    from pyarrow import feather, ipc, parquet

    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    table = arrow.table({"messages": [talk, talk], "id": [1, 2]})
    parquet.write_table(table, tmp_path / "a.parquet")
    feather.write_feather(table, str(tmp_path / "a.feather"))
    with ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    text = "\n".join(json.dumps({"messages": talk}) for _ in range(2)).encode()
    with arrow.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as stream:
        stream.write(text)
    for name in ("a.parquet", "a.feather", "a.arrow", "a.jsonl.zst"):
        assert read(tmp_path / name) == [("<user>hi;<assistant>yo", "yo;")] * 2, name
    with pytest.raises(DataError, match=r"a\.parquet:1: expected a column 'text'; got 'mess"):
        read(tmp_path / "a.parquet", columns={"text": "text"})
    packed = (tmp_path / "a.jsonl.zst").read_bytes()
    for damaged in (packed[:-9], packed[:9] + b"\xff" * 9 + packed[18:]):
        for name in ("a.jsonl.zst", "a.json.zst", "a.csv.zst"):
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(DataError, match=rf"{name}: cannot read: "):
                read(tmp_path / name)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"a\.parquet: cannot read as parquet: "):
        read(tmp_path / "a.parquet")


def test_folders_of_texts(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "deep" / "b.md").write_text("# two")
    (tmp_path / "c.png").write_bytes(b"\xff")
    (tmp_path / "empty.txt").write_text(" \n")
    assert [text for text, _ in read(tmp_path)] == ["# tw", "on"]
    (tmp_path / "deep" / "d.md").write_bytes(b"ab\xff")
    with pytest.raises(DataError, match=r"d\.md: not UTF-8 text: byte 0xff at byte 2"):
        read(tmp_path)


@pytest.mark.parametrize("of_run", ["metrics.jsonl", "run.json"])
def test_runs_and_hidden_folders_are_not_read_as_texts(tmp_path, of_run):
    for name in ("a.txt", "site/b.md", "runs/1/sample.txt", "runs/1/checkpoint-5/sample.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for name in (".cache/c.txt", "site/config.toml", "runs/1/config.toml", f"runs/1/{of_run}"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [text for text, _ in read(tmp_path)] == ["a.tx", "site/b.m"]


def test_what_of_a_folder_is_read_is_listed(tmp_path):
    for k in range(7):
        (tmp_path / f"{k}.txt").write_text("text")
    reader = jsonl.Reader(ByteTokenizer(), jsonl.ReadOptions.of(9, {"vocab_size": 256}))
    reader.read(tmp_path)
    assert reader.notes[0].endswith("; read 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 more")
    (tmp_path / "chats").mkdir()
    for name in ("pairs.jsonl", "chats/more.jsonl.gz"):
        (tmp_path / name).write_text("")
    reader.read(tmp_path)
    said = f"; not chats/more.jsonl.gz, pairs.jsonl: to train on such a file, name it: {tmp_path}/"
    assert f"{said}chats/more.jsonl.gz" in reader.notes[1]
    for k in range(7):
        (tmp_path / f"{k}.txt").unlink()
    with pytest.raises(DataError, match=r"got chats, pairs\.jsonl: name a file: .*/pairs\.jsonl$"):
        jsonl.read(tmp_path, ByteTokenizer(), 9, vocab_size=256)


def test_columns_by_name(tmp_path):
    rows = [{"q": "a", "completion": "b", "id": 3}] * 2
    path = lines(tmp_path, *rows)
    assert read(path, columns={"prompt": "q"}) == [("a", "b")] * 2
    swapped = {"prompt": "completion", "completion": "q"}
    assert read(path, columns=swapped) == [("b", "a")] * 2
    pair = {"q": "a", "chosen": "b", "rejected": "c", "score": 1}
    assert renamed("x:1", pair, {"prompt": "q"}) == {"prompt": "a", "chosen": "b", "rejected": "c"}
    both = {"prompt": "a", "completion": "b", "better": "c"}
    assert renamed("x:1", both, {"completion": "better"}) == {"prompt": "a", "completion": "c"}
    alpaca = {"instruction": "a", "input": "b", "output": "c", "text": "abc"}
    row = renamed("x:1", alpaca, {"instruction": "instruction", "output": "output"})
    assert row == {"instruction": "a", "input": "b", "output": "c"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"conversations": []}, "conversations: expected a list of turns"),
        ({"conversations": [{"from": "human"}]}, "turn 0: expected from and value; got from"),
        ({"conversations": [{"from": "bot", "value": "x"}]}, "turn 0: from: expected one of human"),
        ({"instruction": 3, "output": "x"}, "instruction: expected a text; got 3"),
        ({"instruction": "a", "output": "b", "text": "c"}, "which fits more than one format"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "these are preferences: use loss="),
        ({"messages": [{"role": "assistant", "tool_calls": ["f"]}]}, "tool call 0: expected"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL, {"name": "f"}]}]},
            """tool call 1: expected {"function": {"name": ..., "arguments": ...}}; got {'name'""",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "message 0: content: expected parts of type text; got 'image_url'",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": "", "tool_calls": [CALL]},
                    {"role": "user", "content": "x"},
                ]
            },
            "message 0: 1 tool calls: expected as many results",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x"}], "tools": 3},
            "tools: expected a list",
        ),
    ],
)
def test_bad_rows_are_named(tmp_path, row, message):
    with pytest.raises(DataError, match=r"data\.jsonl:1: ") as error:
        read(lines(tmp_path, row))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,text\na,b", r"a\.csv:1: expected column names, each once"),
        ("a.csv", b"", r"a\.csv:1: expected column names"),
        ("a.csv", b"text\n\xff", r"a\.csv:2: not UTF-8 text: byte 0xff"),
        ("a.csv", b"text,b\na,b\na,b,c", r"a\.csv:3 \(row 2\): expected 2 columns, .* got 3"),
        ("a.csv", b'text,b\n"a\n\n",b\nc,"\n"\nd', r"csv:7 \(row 3\): .* got 1; .* on line 7"),
        ("a.csv", b'text\n"a"b', r"a\.csv: not CSV: "),
        ("a.jsonl.gz", b"no gzip", r"a\.jsonl\.gz: cannot read: Not a gzipped file"),
        ("a.jsonl.gz", CUT, r"cannot read: its compressed data is cut short"),
        ("a.csv.gz", CUT, r"a\.csv\.gz: cannot read: its compressed data is cut short"),
        *((f"a{kind}.gz", DAMAGED, rf"a\{kind}\.gz: cannot read: .* damaged") for kind in KINDS),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


@pytest.mark.parametrize("block", [1, 7, 2**20])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_file_of_one_array(tmp_path, monkeypatch, block, indent):
    monkeypatch.setattr(_arrays, "BLOCK", block)
    rows = [
        {"instruction": f'Add {k}, ["{{é🙂"].', "input": "", "output": "x" * k + "\\"}
        for k in range(1, 9)
    ]
    path = tmp_path / "data.json"
    path.write_text("\ufeff \n" + json.dumps(rows, indent=indent, ensure_ascii=False) + " \n")
    examples = read(path)
    assert examples == read(lines(tmp_path, *rows))
    packed = tmp_path / "data.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed) == examples


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"text": "a"}, 3]', r":2: expected an object with text, .*; got a number"),
        ('[{"text": "a"}, {"text": }]', r":2: not JSON: Expecting value"),
        ('[{"text": "a"}, {"text": "b"', r":2: not JSON: Expecting ',' delimiter"),
        ('[{"text": "a"}, {"text": "b"}', r":2: not JSON: expected ']'; got ''"),
        ('[{"text": "a"} {"text": "b"}]', r":1: not JSON: expected ']'; got '{'"),
        ('[{"text": "a"},]', r":2: not JSON: Expecting value"),
        ('[{"text": "a"}] {"text": "b"}', r":1: not JSON: text after the array, '{"),
        (
            '[{"text": "a"}, {"text": ' + "1" * 5000 + "}]",
            r":2: JSON with a number too long to be read",
        ),
        ('[{"text": "a"}, ' + "[" * 10**5, r":2: JSON nested too deep to be read"),
        ('[{"txt": "a"}]', r":1: expected text, .*; got 'txt'"),
        ("[]", "expected a JSON object per line; got none"),
    ],
)
def test_arrays_that_are_none(tmp_path, text, message):
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read(path)
    path.write_bytes(b'[{"text": "a"}, {"text": "\xff"}]')
    with pytest.raises(DataError, match="not UTF-8 text: byte 0xff"):
        read(path)


def test_a_folder_of_arrays(tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.json").write_text(json.dumps([{"text": name}, {"text": "both"}]))
    assert [text for text, _ in read(tmp_path)] == ["bot", "bot", "trai", "vali"]


@pytest.mark.parametrize(
    "row",
    [
        '{"text": "a", "text": "b"}',
        '{"messages": [{"role": "user", "content": "a", "content": "b"}], "text": "x"}',
    ],
)
@pytest.mark.parametrize(
    ("name", "whole"),
    [("a.jsonl", "{}"), ("a.json", "[{}]"), ("a.json", '[{{"text": "c"}}, {}]'), ("q.jsonl", "{}")],
)
def test_a_key_that_comes_twice_is_refused(tmp_path, name, whole, row):
    """Of two values the json library keeps the last, and nobody knows which is meant."""
    path = tmp_path / name
    path.write_text(whole.format(row))
    key = "text" if row.startswith('{"text') else "content"
    with pytest.raises(DataError, match=rf"{name}:\d: .*the key '{key}' comes twice"):
        read_questions(path) if name[0] == "q" else read(path)
