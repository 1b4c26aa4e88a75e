"""Data for fine-tuning: forms, masks, what is cut and dropped, batches, bad files."""

import json
import re

import numpy as np
import pytest

from toynn.data import _containers, jsonl
from toynn.data.batch import IGNORED
from toynn.data.examples import Examples, ShuffledExamples
from toynn.data.jsonl import read
from toynn.data.packing import examples_in_order
from toynn.errors import DataError, GGUFError
from toynn.formats.tokenizer import ByteTokenizer

BOS, EOS = 1, 2


class Letters:
    """A letter is its code; a text that does not continue another begins with a space."""

    bos, eos, add_bos = BOS, EOS, True

    def encode(self, text, add_special, *, continues=False):
        assert not add_special
        return [ord(letter) for letter in (text if continues else f" {text}")]

    of_bytes, fingerprint = False, "letters"

    def encode_many(self, texts):
        return [self.encode(text, False, continues=continues) for text, continues in texts]

    def encode_blocks(self, blocks):
        return [np.array([ord(letter) for letter in block], np.int32) for block in blocks]

    def encode_talks(self, talks):
        return (self.encode_turns(*talk) for talk in talks)

    def encode_turns(self, messages, tools=None):
        if messages[0]["role"] == "system":
            raise GGUFError("the template knows no system")
        return [
            ([ord(letter) for letter in f"<{m['content']}>"], m["role"] == "assistant")
            for m in messages
        ]


def load(path, seq=32, **options):
    return read(path, Letters(), seq, **{"vocab_size": 0x110000} | options)


def write(folder, **files):
    for name, rows in files.items():
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def texts(*texts):
    return [{"text": text} for text in texts]


def shown(example):
    """What is read, and what is to be said; a dot where nothing is."""
    names = {BOS: "^", EOS: "$", IGNORED: "."}
    return tuple("".join(names.get(i, chr(max(i, 0))) for i in array.tolist()) for array in example)


# --- forms and masks -----------------------------------------------------------------------------

CHAT = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "r"},
    {"role": "assistant", "content": "bc"},
]


@pytest.mark.parametrize(
    ("row", "masked", "unmasked"),
    [
        ({"text": "abc", "id": 3}, ("^ abc", " abc$"), ("^ abc", " abc$")),
        ({"prompt": "ab", "completion": "cd"}, ("^ abcd", "...cd$"), ("^ abcd", " abcd$")),
        ({"messages": CHAT}, ("<q><a><r><bc", "..<a>...<bc>"), ("<q><a><r><bc", "q><a><r><bc>")),
    ],
)
def test_what_is_learned_of_each_form(tmp_path, row, masked, unmasked):
    folder = write(tmp_path, train=[row, row], valid=[row], test=[row])
    for mask_prompt, expected in ((True, masked), (False, unmasked)):
        data = load(folder, mask_prompt=mask_prompt)
        assert shown(data.train[1]) == shown(data.valid[0]) == shown(data.test[0]) == expected
        assert data.train[0].ids.dtype == data.train[0].labels.dtype == np.int32
        assert data.train.labels == 2 * (data.train[0].labels != IGNORED).sum()


def test_each_file_has_its_own_form_and_blank_lines_are_ignored(tmp_path):
    valid = ["", {"prompt": "a", "completion": "b"}, "   "]
    data = load(write(tmp_path, train=["", *texts("x"), "\r", *texts("y")], valid=valid))
    assert (len(data.train), len(data.valid), data.test) == (2, 1, None)
    assert shown(data.valid[0]) == ("^ ab", "..b$")
    assert data.test_batches(2) == []


def test_a_tokenizer_without_bos_and_eos(tmp_path):
    path = write(tmp_path, train=[{"prompt": "ab", "completion": "\u00e9"}] * 2) / "train.jsonl"
    data = read(path, ByteTokenizer(), 8, vocab_size=256)
    ids, labels = data.train[0]
    assert ids.tolist() == [97, 98, 0xC3] and labels.tolist() == [IGNORED, 0xC3, 0xA9]


def test_a_byte_order_mark_is_dropped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"text": "a"}\r\n' * 2)
    assert shown(load(path).train[0]) == ("^ a", " a$")


# --- lengths -------------------------------------------------------------------------------------


def test_long_examples_are_cut_and_what_is_left_without_a_label_is_dropped(tmp_path):
    rows = [
        {"prompt": "p", "completion": "abcdefgh"},  # 12 tokens: cut
        {"prompt": "pqrstuvw", "completion": "a"},  # cut, and nothing of the completion is left
        {"prompt": "p", "completion": "a"},
    ]
    data = load(write(tmp_path, train=rows, valid=rows[2:]), seq=6)
    assert [shown(data.train[index]) for index in range(2)] == [
        ("^ pabc", "..abcd"),
        ("^ pa", "..a$"),
    ]
    assert (data.train.cut, data.train.dropped, data.train.labels) == (2, 1, 6)
    assert data.notes[0].endswith(
        "train.jsonl: 2 examples, 6 tokens with loss; 2 cut to 6 tokens; "
        "1 dropped: no token with loss was left"
    )
    assert data.notes[1].endswith("valid.jsonl: 1 example, 2 tokens with loss")


def test_windows_are_no_longer_than_the_longest_example(tmp_path):
    folder = write(tmp_path, train=texts("ab", "a"), valid=texts("abcd"), test=texts("x") * 3)
    data = load(folder, seq=32)
    assert data.seq == len("^ abcd")
    batches = [next(data.batches(2, 0)), *data.valid_batches(2, 9), *data.test_batches(2)]
    assert [batch.room for batch in batches] == [12] * 4
    assert [batch.rows for batch in batches] == [7, 6, 6, 3]
    assert load(folder, seq=4).seq == 4


def test_conversations_without_an_answer_are_dropped(tmp_path):
    rows = [{"messages": CHAT}, {"messages": CHAT[:1]}]
    assert load(write(tmp_path, train=rows, valid=rows)).train.dropped == 1


def test_nothing_left_at_all_is_an_error(tmp_path):
    rows = [{"prompt": "pqrstuvw", "completion": "a"}]
    with pytest.raises(DataError, match=r"train\.jsonl: 0 examples.*1 dropped.*longer sequence"):
        load(write(tmp_path, train=rows, valid=rows), seq=4)
    rows = [{"messages": [CHAT[0], {"role": "assistent", "content": "a"}]}]
    with pytest.raises(DataError, match=r"of the role assistant, .* got the roles assistent, user"):
        load(write(tmp_path, train=rows, valid=rows))


def test_examples_take_a_few_bytes_per_token():
    examples = Examples(1000)
    for _ in range(200):
        examples.append([(range(500), False), (range(500), True)])
    held = sum(memoryview(part).nbytes for part in examples._columns[:2])
    assert held == 200 * 1000 * 5
    assert not any(isinstance(value, list) for value in examples._columns)


def test_an_index_beyond_the_end():
    with pytest.raises(IndexError, match=r"of 0\.\.-1; got 0"):
        Examples(4)[0]


# --- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "tail"), [(20, 2), (30, 3)])
def test_a_tenth_is_split_off_by_the_seed(tmp_path, count, tail):
    path = write(tmp_path, train=texts(*(f"{n:02}" for n in range(count)))) / "train.jsonl"
    data, again, other = (load(path, seed=seed) for seed in (0, 0, 1))

    def all_of(part):
        return [shown(part[index])[0] for index in range(len(part))]

    assert (len(data.train), len(data.valid)) == (count - tail, tail)
    assert sorted(all_of(data.train) + all_of(data.valid)) == [f"^ {n:02}" for n in range(count)]
    assert all_of(data.train) == sorted(all_of(data.train))  # in order still
    assert all_of(data.valid) == all_of(again.valid)
    assert all_of(data.valid) != all_of(other.valid)
    assert data.notes[-1] == (
        f"no valid.jsonl: {tail} of {count} examples of the training data became "
        "the validation part"
    )
    assert data.valid.labels == 4 * tail and data.train.labels == 4 * (count - tail)


@pytest.mark.parametrize("count", [1, 2, 19])
def test_of_few_examples_none_are_held_out(tmp_path, count):
    path = write(tmp_path, train=texts(*(f"{n:02}" for n in range(count)))) / "train.jsonl"
    data = load(path)
    assert (len(data.train), len(data.valid), data.valid_batches(1, 16)) == (count, 0, [])
    assert data.notes[-1].startswith(f"no valid.jsonl, and {count} example")
    assert len(next(data.batches(1, 0)).inputs)


@pytest.mark.parametrize(("holdout", "tail"), [(0, 0), (1, 1), (3, 3), (0.5, 6), (0.01, 1)])
def test_what_is_asked_for_is_held_out(tmp_path, holdout, tail):
    path = write(tmp_path, train=texts(*(f"{n:02}" for n in range(12)))) / "train.jsonl"
    data = load(path, holdout=holdout)
    assert (len(data.train), len(data.valid)) == (12 - tail, tail)
    assert sum("became the validation part" in note for note in data.notes) == (tail > 0)


def test_more_than_there_is_cannot_be_held_out(tmp_path):
    folder = write(tmp_path, train=texts("a", "b"), valid=texts("c"))
    with pytest.raises(DataError, match=r"an example to train on and 2 to hold out; got 2 in all"):
        load(folder / "train.jsonl", holdout=2)
    with pytest.raises(DataError, match=r"it has a validation part; got holdout=0\.5 as well"):
        load(folder, holdout=0.5)
    assert len(load(folder, holdout=0).valid) == 1


def test_of_a_text_as_much_is_held_out_as_is_asked_for(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(chr(0x400 + n) for n in range(200)))
    for holdout, tail in ((0, 0), (0.25, 50), (30, 30), (2, 6)):
        data = load(path, seq=5, holdout=holdout)
        assert (len(data.train), len(data.valid)) == (200 - tail, tail)
        assert len(data.valid_batches(1, 99)) == max(0, tail - 1) // 5
    path.write_text("abcdef")
    assert len(load(path, seq=5, holdout=0).train) == 6
    with pytest.raises(DataError, match=r"6 tokens are too few.*holdout=0"):
        load(path, seq=5)


def test_data_to_validate_on_are_of_the_same_kind(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("abcdefghijkl")
    rows = load(write(tmp_path, train=texts("a")) / "train.jsonl")
    other = load(write(tmp_path, train=texts("bcdef", "x")) / "train.jsonl", seq=3)
    both = rows.with_valid(other, "other")
    assert (len(both.train), len(both.valid), both.seq) == (1, 2, max(rows.seq, other.seq))
    assert both.valid.seq == both.train.seq == both.seq
    with pytest.raises(DataError, match=r"^there: .* are a text, the training data examples"):
        rows.with_valid(load(path, seq=5), "there")


def test_a_text_is_read_in_windows(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(chr(0x400 + n) for n in range(200)))
    data = load(path, seq=5)
    (note,) = data.notes
    assert note.endswith("book.txt: 200 tokens, the last 20 of them for validation")
    batch = next(data.batches(3, seed=0))
    assert batch.inputs.dtype == np.int32 and batch.inputs.min() >= 0x400
    np.testing.assert_array_equal(batch.labels, batch.inputs + 1)
    assert {id for batch in data.valid_batches(2, 9) for id in batch.inputs} <= set(
        range(0x4B4, 0x4C8)
    )


def test_a_text_that_is_too_short(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("abcdefghijk")
    with pytest.raises(DataError, match=r"book\.txt: 11 tokens are too few.*a window of 6"):
        load(path, seq=5)


# --- batches -------------------------------------------------------------------------------------


def numbered(count, seq=4):
    """Examples of 2 to 4 tokens, each of which names it."""
    examples = Examples(seq)
    for number in range(count):
        examples.append([([number] * (2 + number % 3), True)])
    return examples


def drawn(batches, count):
    """The numbers of the examples in the next batches, in order."""
    return [number for _ in range(count) for number in numbers(next(batches))]


def numbers(batch):
    """The numbers of the examples in a batch, in order."""
    return batch.inputs[np.flatnonzero(batch.positions == 0)].tolist()


def test_examples_of_a_batch_stand_one_behind_another():
    examples = numbered(3)
    for batch in (next(ShuffledExamples(examples, 3, 0)), *examples_in_order(examples, 3)):
        assert all(array.shape == (6,) and array.dtype == np.int32 for array in batch)
        assert (batch.rows, batch.tokens, batch.examples, batch.room) == (6, 6, 3, 12)
        for number in range(3):
            (rows,) = np.nonzero(batch.inputs == number)
            np.testing.assert_array_equal(batch.positions[rows], range(1 + number))
            assert (batch.segments[rows] == rows[0]).all()
            assert (batch.labels[rows] == number).all()


def test_every_example_comes_once_in_an_epoch_and_each_epoch_has_its_order():
    batches = ShuffledExamples(numbered(7), 3, seed=5)
    numbers = drawn(batches, 14)
    epochs = [numbers[at : at + 7] for at in range(0, 42, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert numbers == drawn(ShuffledExamples(numbered(7), 3, seed=5), 14)
    assert numbers != drawn(ShuffledExamples(numbered(7), 3, seed=6), 14)
    assert len(drawn(ShuffledExamples(numbered(2), 5, seed=0), 1)) == 5  # fewer than a batch


@pytest.mark.parametrize("before", [0, 1, 5])
def test_training_goes_on_from_a_state(before):
    first, second = ShuffledExamples(numbered(7), 3, 5), ShuffledExamples(numbered(7), 3, 0)
    drawn(first, before)
    drawn(second, 2)
    second.state = json.loads(json.dumps(first.state))
    assert drawn(first, 9) == drawn(second, 9)


def test_validation_is_in_order():
    batches = examples_in_order(numbered(7), 3)
    assert [numbers(batch) for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    few = examples_in_order(numbered(9), 2, max_batches=2)
    assert [numbers(batch) for batch in few] == [[0, 2], [4, 6]]
    assert examples_in_order(Examples(4), 3, 2) == []


# --- bad files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "not JSON: Expecting ',' delimiter at column 13"),
        ("{'text': 'a'}", "not JSON: Expecting property name"),
        ("[" * 100_000, "JSON nested too deep to be read"),
        ('{"text": "a", "n": ' + "1" * 5000 + "}", "JSON with a number too"),
        ("3", "expected an object with text, prompt and completion, or messages; got a number"),
        ("null", "got null"),
        ('["a"]', "got an array"),
        ("{}", "expected text, prompt and completion, or messages; got an empty object"),
        (
            '{"txt": "a", "label": 1}',
            r"your columns have other names: .*columns=.prompt=\.{3},completion=\.{3}.$",
        ),
        ('{"prompt": "a"}', "expected text, .*; got 'prompt'"),
        (
            '{"text": "a", "messages": []}',
            "got 'text', 'messages', which fits more than one format",
        ),
        ('{"text": 3}', "text: expected a text; got a number"),
        ('{"text": null}', "text: expected a text; got null"),
        ('{"text": true}', "text: expected a text; got a boolean"),
        ('{"text": ""}', "text: expected a text; got an empty one"),
        (
            '{"text": "ab\\ud800"}',
            r"text: expected Unicode text; got half .*'\\ud800', at character 2",
        ),
        ('{"prompt": "a", "completion": "b"}', "expected text, as line 1 has; got prompt and comp"),
    ],
)
def test_a_bad_row_says_where_what_and_what_is_accepted(tmp_path, line, message):
    with pytest.raises(DataError, match=rf"train\.jsonl:3: .*{message}"):
        load(write(tmp_path, train=[*texts("a"), "", line]))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "", "completion": "b"}, "prompt: expected a text; got an empty one"),
        ({"prompt": "a", "completion": ["b"]}, "completion: expected a text; got an array"),
        ({"messages": []}, "messages: expected a list of messages; got an empty list"),
        ({"messages": "hi"}, "messages: expected a list of messages; got a string"),
        ({"messages": ["hi"]}, "message 0: expected an object with role and content; got a string"),
        (
            {"messages": [*CHAT, {"role": "user"}]},
            "message 4: expected role and content; got 'role'",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "message 0: content: .*; got null"),
        ({"messages": [{"role": "", "content": "a"}]}, "message 0: role: .*; got an empty one"),
        ({"messages": [{"role": "system", "content": ""}]}, "the template knows no system"),
    ],
)
def test_bad_prompts_and_conversations(tmp_path, row, message):
    with pytest.raises(DataError, match=rf"train\.jsonl:1: .*{message}"):
        load(write(tmp_path, train=[row]))


def test_a_completion_of_messages_alone_has_loss(tmp_path):
    """As TRL has them: what the assistant says in the prompt has none."""
    row = {"prompt": CHAT[:3], "completion": CHAT[3:]}
    whole, asked = (load(write(tmp_path, train=[each])) for each in ({"messages": CHAT}, row))
    (ids, labels), (same, fewer) = (shown(each.train[0]) for each in (whole, asked))
    assert ids == same and asked.chats
    assert labels == "..<a>...<bc>"
    assert fewer == "........<bc>"
    (ids, labels) = shown(load(tmp_path, mask_prompt=False).train[0])
    assert "." not in labels
    for other in (row | {"prompt": "q"}, row | {"completion": "b"}):
        with pytest.raises(DataError, match="expected a text; got an array"):
            load(write(tmp_path, train=[other]))


@pytest.mark.parametrize("key", ["label", "labels"])
def test_a_class_that_is_not_read_is_said(tmp_path, key):
    rows = [{"text": "good", key: 1}, {"text": "bad", key: 0}]
    (note,) = [n for n in load(write(tmp_path, train=rows)).notes if "train.jsonl: 2 ex" in n]
    assert note.endswith(f"; {key} not read: to learn a class, write it as a completion")
    assert "not read" not in "".join(load(write(tmp_path, train=texts("a", "b"))).notes)


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ({"promt": "a", "completion": "b"}, "'promt': did you mean 'prompt'?"),
        ({"message": CHAT}, "'message': did you mean 'messages'?"),
        ({"question": "a", "answer": "b"}, "'answer'; if your columns have other names"),
    ],
)
def test_a_key_that_is_nearly_one_is_told(tmp_path, row, hint):
    with pytest.raises(DataError, match=re.escape(hint)):
        load(write(tmp_path, train=[row]))


@pytest.mark.parametrize("first", ['[{"text": "a"},', '[{"text": "a"}]'])
def test_a_json_array_is_named_as_such(tmp_path, first):
    (tmp_path / "data.jsonl").write_text(f'{first}\n{{"text": "b"}}]\n')
    with pytest.raises(
        DataError, match=r"data.jsonl:1: expected a JSON object on each line; got a JSON a"
    ):
        load(tmp_path / "data.jsonl")


def test_bytes_that_are_not_utf_8(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(
        DataError, match=r"a\.jsonl:2: not UTF-8 text: byte 0xff at byte 10 of the line"
    ):
        load(tmp_path / "a.jsonl")


def test_ids_beyond_the_model(tmp_path):
    with pytest.raises(DataError, match=r"jsonl:2: expected token ids of 0\.\.99; got 122"):
        load(write(tmp_path, train=texts("abc", "xyz")), vocab_size=100)
    (tmp_path / "a.txt").write_text("abcxyz" * 10)
    with pytest.raises(DataError, match=r"a\.txt: expected token ids of 0\.\.99; got 122"):
        load(tmp_path / "a.txt", seq=4, vocab_size=100)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_rows(tmp_path, content):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=r"a\.jsonl: expected a JSON object per line; got none"):
        load(tmp_path / "a.jsonl")


def test_folders_and_files_that_hold_no_data(tmp_path):
    with pytest.raises(DataError, match=r"expected train\.jsonl in it; got an empty folder"):
        load(tmp_path)
    for name in ("a.xml", "b.csv", "c.csv", "d.csv", "e.csv", "f.csv"):
        (tmp_path / name).write_text("a,b")
    with pytest.raises(
        DataError, match=r"expected train\.jsonl in it; got a\.xml, .*e\.csv, \.\.\.$"
    ):
        load(tmp_path)
    with pytest.raises(
        DataError, match=r"a\.xml: expected a folder with train\.jsonl, .*; got a \.xml"
    ):
        load(tmp_path / "a.xml")
    with pytest.raises(DataError, match=r"none\.jsonl: cannot read: No such file"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="not a path: embedded null byte"):
        load("a\0b")
    (tmp_path / "train.jsonl").write_text('{"text": "a"}')
    (tmp_path / "valid.jsonl").mkdir()
    with pytest.raises(DataError, match=r"valid\.jsonl: cannot read: Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize("name, text", [("a.jsonl", "oops\n{}"), ("a.csv", "text\na,b\n")])
def test_a_file_is_closed_after_an_error(tmp_path, monkeypatch, name, text):
    opened, open_file = [], _containers.open_file

    def recorded(path):
        opened.append(open_file(path))
        return opened[-1]

    monkeypatch.setattr(_containers, "open_file", recorded)
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as error:  # the error and its frames are still there below
        read(tmp_path / name, Letters(), 16, vocab_size=300)
    assert error.value and opened and all(file.closed for file in opened)


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.jsonl", '{"prompt": "x", "answer": 3, "tag": [1]}', {"answer": 3, "tag": [1]}),
        ("a.csv", "question,answer,tag\nx,3,y\n", {"answer": "3", "tag": "y"}),
    ],
)
def test_prompts_come_with_their_other_columns(tmp_path, name, text, columns):
    (tmp_path / name).write_text(text)
    renamed = {"prompt": "question"} if name == "a.csv" else {}
    ((_, prompt, others),) = jsonl.prompts(tmp_path / name, renamed)
    assert (prompt, others) == ("x", columns)


def test_a_prompt_may_be_messages(tmp_path):
    row = {"prompt": CHAT[:3], "n": 1}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    ((_, prompt, others),) = jsonl.prompts(tmp_path / "a.jsonl")
    assert (prompt, others) == (CHAT[:3], {"n": 1})
