"""Texts that belong together: rows and columns, scores, batches without repeated texts."""

import json

import numpy as np
import pytest

from toynn.data import pairs
from toynn.data.pairs import DistinctBatches, EncodedRows
from toynn.errors import DataError


def rows_of(tmp_path, *rows, **more):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return pairs.read(path, **more)


def encoded(found, prompts=None, longest=9, too_long="cut"):
    """Rows whose tokens are bytes, after a 1."""

    def fit(ids):
        return [1, *ids[: longest - 1]], [0] * longest, max(len(ids) + 1 - longest, 0)

    def encode(texts):
        return [list(text.strip("~").encode()) for text, _ in texts]

    return EncodedRows.of(found, prompts or {}, encode, fit, longest, too_long)


@pytest.mark.parametrize(
    ("row", "columns", "score"),
    [
        ({"positive": "b", "x": 3, "anchor": "a"}, ("anchor", "positive"), None),
        (
            {"anchor": "a", "positive": "b", "negative_2": "d", "negative": "c"},
            ("anchor", "positive", "negative", "negative_2"),
            None,
        ),
        ({"sentence1": "a", "sentence2": "b", "score": -0.5}, ("sentence1", "sentence2"), -0.5),
        ({"query": "a", "passage": "b", "label": "1"}, ("query", "passage"), 1.0),
        ({"query": "a", "passage": "b", "label": True}, ("query", "passage"), 1.0),
    ],
)
def test_the_first_row_says_which_columns(row, columns, score, tmp_path):
    found = rows_of(tmp_path, row)
    assert found.columns == columns
    assert found.rows[0].texts == tuple("abcd"[: len(columns)]) and found.rows[0].score == score


def test_columns_have_other_names(tmp_path):
    (tmp_path / "a.csv").write_text('q,a\n"to be, or\nnot","""is"" it?"\n')
    found = pairs.read(tmp_path / "a.csv", {"anchor": "q", "positive": "a"})
    assert found.rows[0].texts == ("to be, or\nnot", '"is" it?')


GOOD = {"anchor": "a", "positive": "b"}
SCORED = {"sentence1": "a", "sentence2": "b", "score": 0.5}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([GOOD, {"anchor": "a"}], r"rows.jsonl:2: positive: expected a text; got 'anchor'"),
        ([GOOD, {**GOOD, "positive": None}], r":2: positive: expected a text; got null"),
        ([GOOD, {**GOOD, "positive": ""}], r":2: positive: expected a text; got an empty one"),
        ([GOOD, {**GOOD, "positive": " "}], r":2: positive: expected a text; got only spaces"),
        ([GOOD, {**GOOD, "anchor": 3}], r":2: anchor: expected a text; got a number"),
        ([{**GOOD, "negative": "b"}], r":1: negative: the positive is also a negative: 'b'"),
        ([{**GOOD, "negative": "c"}, GOOD], r":2: negative: expected a text; got"),
        ([SCORED, {**SCORED, "score": 4.2}], r":2: score: expected .* -1 to 1; got 4.2: scale"),
        ([SCORED, {**SCORED, "score": "x"}], r":2: score: expected a number .* got 'x'"),
        ([SCORED, {**SCORED, "score": float("nan")}], r":2: score: expected a number"),
        ([SCORED, {"sentence1": "a", "sentence2": "b"}], r":2: score: expected a number .* got"),
        ([{"question": "a", "answer": "b"}], r":1: expected anchor and positive; .*columns"),
        ([GOOD | SCORED], r":1: expected .*: keep the columns of one of them"),
        ([], "it has none"),
    ],
)
def test_a_bad_row_is_named(rows, message, tmp_path):
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path, *rows)


def test_scores_of_a_reranker_are_shares(tmp_path):
    row = {"query": "a", "passage": "b", "label": -0.5}
    with pytest.raises(DataError, match=r":1: label: expected a number from 0 to 1; got -0.5"):
        rows_of(tmp_path, row, lowest=0.0)


def test_texts_become_tokens_column_by_column(tmp_path):
    long = {"anchor": "abcdefghijk", "positive": "z"}
    found = rows_of(tmp_path, {"anchor": "ab", "positive": "xyz"}, long, GOOD)
    texts = encoded(found, {"anchor": "?"})
    assert texts.ids[0] == [[1, *b"?ab"], [1, *b"xyz"]] and texts.cut == 1 and len(texts) == 3
    batch = texts.batch([2, 0])
    words = [bytes(batch.inputs[a + 1 : b].tolist()) for a, b in batch.spans]
    assert words == [b"?a", b"?ab", b"b", b"xyz"] and batch.labels is None
    assert texts.lengths.tolist() == [8, 11, 5]
    assert len(encoded(found, too_long="drop")) == 2
    with pytest.raises(DataError, match=r"jsonl:2: a text has 12 tokens; the most are 9"):
        encoded(found, too_long="refuse")
    with pytest.raises(DataError, match=r"jsonl:1: the tokenizer finds no token in a text"):
        encoded(rows_of(tmp_path, {"anchor": "~", "positive": "b"}))
    with pytest.raises(DataError, match="every row has a text of more than 2"):
        encoded(rows_of(tmp_path, long), longest=2, too_long="drop")


def test_no_text_comes_twice_in_a_batch_and_none_is_lost(tmp_path):
    rng = np.random.default_rng(0)
    rows = [{"anchor": f"q{rng.integers(9)}", "positive": f"a{rng.integers(9)}"} for _ in range(60)]
    texts = encoded(rows_of(tmp_path, *rows))
    assert texts.repeated == 60 - len({row["positive"] for row in rows})
    drawn = texts.distinct(range(60), 4)
    assert sorted(k for rows in drawn for k in rows) == list(range(60))
    for batch in drawn:
        keys = [key for row in batch for key in texts.keys[row]]
        assert len(keys) == len(set(keys)) and len(batch) <= 4
    same = encoded(rows_of(tmp_path, *[GOOD] * 5))
    assert same.distinct(range(5), 4) == [[0], [1], [2], [3], [4]]
    scored = encoded(rows_of(tmp_path, *[SCORED] * 5))
    assert scored.distinct(range(5), 4) == [[0, 1, 2, 3], [4]]


def test_what_is_to_be_found():
    keys = [("q", "a", "x"), ("r", "b", "a"), ("q", "b", "x"), ("x", "c", "q")]
    queries, places, relevant = pairs.search(keys)
    assert queries == [0, 1, 3]
    assert [keys[row][column] for row, column in places] == ["a", "x", "b", "c", "q"]
    assert relevant == [{0, 2}, {2}, {3}]


def test_a_corpus_and_its_queries(tmp_path):
    corpus = [{"id": 7, "text": "seven"}, {"_id": "x", "title": "T", "text": "ten"}]
    asked = [{"query": "a", "relevant": 7}, {"query": "b", "relevant": ["x", "7"]}]
    files = tmp_path / "queries.jsonl", tmp_path / "corpus.jsonl"

    def read(corpus=corpus, asked=asked):
        for path, rows in zip(files, (asked, corpus), strict=True):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return pairs.read_search(*files)

    assert read() == (["a", "b"], ["seven", "T ten"], [{0}, {0, 1}])
    (tmp_path / "q.csv").write_text('query,relevant\na,7\nb,"[""x"", 7]"\n')
    assert pairs.read_search(tmp_path / "q.csv", files[1])[2] == [{0}, {0, 1}]
    for changed, message in (
        ({"corpus": [*corpus, {"text": "c"}]}, r"corpus.jsonl:3: id: expected one"),
        ({"corpus": [*corpus, {"id": "7", "text": "c"}]}, r"corpus.jsonl:3: id: .* got '7'"),
        ({"corpus": [{"id": 7}]}, r"corpus.jsonl:1: text: expected a text"),
        ({"asked": [{"query": "a", "relevant": 8}]}, r"queries.jsonl:1: relevant: .* got 8"),
        ({"asked": [{"query": "a", "relevant": []}]}, r"queries.jsonl:1: relevant: .* got \[\]"),
        ({"asked": [{"query": "a"}]}, r"queries.jsonl:1: relevant: .* got None"),
        ({"asked": [{"relevant": 7}]}, r"queries.jsonl:1: query: expected a text"),
        ({"asked": []}, "queries.jsonl: expected queries; it has none"),
    ):
        with pytest.raises(DataError, match=message):
            read(**changed)


def test_batches_go_on_where_they_were(tmp_path):
    rows = [{"anchor": f"q{n}", "positive": f"a{n % 7}"} for n in range(20)]
    texts = encoded(rows_of(tmp_path, *rows))
    first, again = DistinctBatches(texts, 3, 5), DistinctBatches(texts, 3, 0)
    seen = [next(first).inputs.tobytes() for _ in range(9)]
    state = first.state
    expected = [next(first).inputs.tobytes() for _ in range(9)]
    again.state = state
    assert [next(again).inputs.tobytes() for _ in range(9)] == expected
    assert seen[0] != expected[0] and len({*seen, *expected}) == 18
