"""Labelled texts: every form of rows, and what is refused, with file and line."""

import json

import numpy as np
import pytest

from toynn.data.labelled import HowToRead, LabelledTexts, encoded, read, words_of
from toynn.errors import DataError


def lines(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", "utf-8")
    return path


def test_a_table_with_quotes_and_line_breaks(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeffreview,stars\n"a ""good"",\r\nfilm",5\nbad,1\n'.encode())
    found = read(path, HowToRead(columns={"text": "review", "label": "stars"}))
    assert [(row.text, row.label) for row in found.rows] == [
        ('a "good",\r\nfilm', "5"),
        ("bad", "1"),
    ]
    assert found.problem == "classes" and found.classes == ("5", "1")


def test_what_labels_are_follows_from_the_first_row(tmp_path):
    several = read(
        lines(
            tmp_path / "a.jsonl",
            {"text": "x", "labels": ["a", "b", "a"]},
            {"text": "y", "labels": []},
        )
    )
    assert several.problem == "several" and several.rows[0].label == ["a", "b"]
    numbers = [
        {"text": "x", "text_pair": "y", "label": 2},
        {"text": "z", "text_pair": "y", "label": True},
    ]
    classes = read(lines(tmp_path / "b.jsonl", *numbers))
    assert classes.rows[0].text == ("x", "y") and classes.classes == ("2", "true")
    how = HowToRead(problem="number")
    assert (
        read(lines(tmp_path / "c.jsonl", {"text": "x", "label": "2.5"}), how).rows[0].label == 2.5
    )
    (tmp_path / "d.csv").write_text("text,label\nx,a; b\ny,\n")
    apart = read(tmp_path / "d.csv", HowToRead(separator=";"))
    assert [row.label for row in apart.rows] == [["a", "b"], []]
    named = read(
        lines(tmp_path / "e.jsonl", {"text": "x", "label": 1}), HowToRead(names=["no", "yes"])
    )
    assert named.rows[0].label == "yes"


def test_words_and_their_classes(tmp_path):
    text = "John Smith's dog, in York."
    assert [text[a:b] for a, b in words_of(text).places] == [
        "John",
        "Smith",
        "'",
        "s",
        "dog",
        ",",
        "in",
        "York",
        ".",
    ]
    assert words_of(text).pieces[:4] == (
        ("John", False),
        (" Smith", True),
        ("'", True),
        ("s", True),
    )
    spans = [[0, 10, "PER"], {"begin": 21, "end": 25, "label": "LOC"}]
    (row,) = read(lines(tmp_path / "a.jsonl", {"text": text, "spans": spans})).rows
    assert row.label == ["B-PER", "I-PER", *"OOOOO", "B-LOC", "O"]
    (tmp_path / "a.conll").write_text(
        "-DOCSTART- -X- O\n\nJohn NNP B-PER\nsees VB O\n\n\nAnn X B-PER\n"
    )
    found = read(tmp_path / "a.conll")
    assert found.problem == "tokens" and [len(row.label) for row in found.rows] == [2, 1]
    assert [row.where[-1] for row in found.rows] == ["3", "7"]
    listed = lines(tmp_path / "b.jsonl", {"words": ["John", "sees"], "tags": ["B-PER", "O"]})
    assert read(listed).rows[0].text.pieces == (("John", False), (" sees", True))


def encode(texts):
    return [[10 + len(word) for word in text.split()] for text, _ in texts]


def fit(*parts):
    ids = [1, *parts[0][:6], 2]
    return ids, [0] * len(ids), max(len(parts[0]) - 6, 0)


def test_only_the_first_token_of_a_word_has_a_label(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"words": ["a b", "c", "d e f g"], "tags": ["x", "y", "x"]})
    found = encoded(read(path), ("x", "y"), encode, fit, 8)
    assert found.labels[0].tolist() == [-100, 0, -100, 1, 0, -100, -100, -100] and found.cut == 1
    assert found.first[0].tolist() == [1, 3, 4]
    batch = found.batch([0])
    assert batch.labels.tolist() == found.labels[0].tolist() and batch.spans == [(0, 8)]


def test_long_texts_are_cut_dropped_or_refused(tmp_path):
    path = lines(
        tmp_path / "a.jsonl", {"text": "a b", "label": "x"}, {"text": "b " * 7, "label": "y"}
    )
    texts = read(path)
    cut = encoded(texts, ("x", "y"), encode, fit, 8)
    assert len(cut) == 2 and cut.cut == 1 and cut.lengths.tolist() == [4, 8]
    assert len(encoded(texts, ("x", "y"), encode, fit, 8, "drop")) == 1
    with pytest.raises(DataError, match=r"a\.jsonl:2: the text has 9 tokens; the most are 8"):
        encoded(texts, ("x", "y"), encode, fit, 8, "refuse")
    with pytest.raises(DataError, match="every text has more than 8"):
        encoded(LabelledTexts("classes", texts.rows[1:]), ("y",), encode, fit, 8, "drop")
    with pytest.raises(DataError, match=r"a\.jsonl:1: text: the tokenizer finds no token"):
        encoded(texts, ("x", "y"), lambda texts: [[] for _ in texts], fit, 8)


def test_weighted_and_smoothed_labels_are_those_of_their_rows(tmp_path):
    path = lines(tmp_path / "a.jsonl", *({"text": "a", "label": each} for each in "xyy"))
    found = encoded(read(path), ("x", "y"), encode, fit, 8)
    table, weights = np.float32([[4, 0], [0, 1]]), np.array([4.0, 1.0])
    dense = type(found)(**{**vars(found), "table": table, "weights": weights}).batch([0, 1, 2])
    assert dense.labels.tolist() == [[2, 0], [0, 0.5], [0, 0.5]]


BAD = {
    "no text": ({"label": "x"}, "1: expected a text and a label; got 'label'"),
    "empty": ({"text": "", "label": "x"}, "1: text: expected a text; got an empty one"),
    "blank": ({"text": " \n", "label": "x"}, "1: text: expected a text; got only spaces"),
    "null": ({"text": None, "label": "x"}, "1: text: expected a text; got null"),
    "no label": (
        {"text": "x"},
        "1: label: expected a label; got 'text'; if its column has another",
    ),
    "null label": ({"text": "x", "label": None}, "1: label: expected a label; got null"),
    "blank label": ({"text": "x", "label": " "}, "1: label: expected the name of a class; got ' '"),
    "a number": ({"text": "x", "label": 0.5}, 'got 0.5: for numbers: problem="number"'),
    "words": ({"words": [], "tags": []}, "1: words: expected a list of words"),
    "a word": ({"words": ["a", " "], "tags": ["x", "x"]}, "1: words: word 1 is empty"),
    "tags": (
        {"words": ["a"], "tags": ["x", "y"]},
        "expected a tag for each of 1 words; got 2 tags",
    ),
    "a cut word": (
        {"text": "a dog", "spans": [[0, 4, "x"]]},
        r"1: spans: \[0, 4, 'x'\] cuts a word",
    ),
    "outside": ({"text": "a dog", "spans": [[2, 9, "x"]]}, "cuts a word or is empty"),
    "two": ({"text": "a dog", "spans": [[0, 5, "x"], [2, 5, "y"]]}, "overlaps another one"),
    "no span": ({"text": "a dog", "spans": ["a"]}, r"expected \[begin, end, class\]; got 'a'"),
    "spans": ({"text": "a dog", "spans": "a"}, "spans: expected a list; got 'a'"),
}


@pytest.mark.parametrize(("row", "message"), BAD.values(), ids=BAD)
def test_bad_rows_are_refused_with_their_line(row, message, tmp_path):
    with pytest.raises(DataError, match=rf"a\.jsonl:.*{message}"):
        read(lines(tmp_path / "a.jsonl", row))


@pytest.mark.parametrize(
    ("how", "label", "message"),
    [
        ({"problem": "number"}, "four", "2: label: expected a number; got 'four'"),
        ({"problem": "number"}, True, "2: label: expected a number; got True"),
        ({"problem": "number"}, "nan", "2: label: expected a number; got 'nan'"),
        ({"problem": "several"}, "a", "2: label: expected a list of classes, or a text with sep"),
        ({"names": ["1", "2"]}, "3", "2: label: expected one of '1', '2'; got '3', which is new"),
        ({}, ["1"], "2: label: expected the name of a class; .*: problem=.several"),
    ],
)
def test_labels_that_do_not_fit(how, label, message, tmp_path):
    good = ["1"] if how.get("problem") == "several" else "1"
    rows = {"text": "x", "label": good}, {"text": "y", "label": label}
    with pytest.raises(DataError, match=message):
        read(lines(tmp_path / "a.jsonl", *rows), HowToRead(**how))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\ngood,x\nb\xe4d,y\n", r"a\.csv:3: not UTF-8|not UTF-8"),
        ("a.csv", b'text,label\n"good,x\n', "not CSV"),
        ("a.csv", b"text,label\ngood,x,y\n", r"a\.csv:2 \(row 1\): expected 2 columns"),
        ("a.csv", b"text,label\n", "expected rows with a text and a label; got none"),
        ("a.csv", b"text,label\n,x\n", r"a\.csv:2 \(row 1\): text: expected a text; got an empty"),
        ("a.csv", b'text,label\n"a\nb",x\n,x\n', r"a\.csv:4 \(row 2\): text: expected a text"),
        ("a.conll", b"a B-X\nb\n", r"a\.conll:2: expected a word and its tag; got 'b'"),
        ("a.conll", b"a B-X\n\xe4 O\n", r"a\.conll:2: not UTF-8"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl:1: expected a JSON object"),
    ],
)
def test_bad_files_are_refused(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_texts_to_classify_need_no_label(tmp_path):
    (tmp_path / "a.txt").write_text("good\n\n bad \n")
    found = read(tmp_path / "a.txt", HowToRead(problem="tokens", needs_label=False))
    assert [row.text.pieces[0][0] for row in found.rows] == ["good", "bad"]
    path = lines(tmp_path / "b.jsonl", {"text": "x", "label": ["odd"]}, {"text": "y"})
    assert [row.label for row in read(path, HowToRead(needs_label=False)).rows] == [None, None]
