"""Windows over documents: no border is crossed, whatever a window cuts."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from toynn import GPT2Config, RecipeOptions
from toynn.data import jsonl
from toynn.data.batch import IGNORED
from toynn.data.documents import DocumentWindows, parted, spaced_documents
from toynn.data.store import InMemory
from toynn.errors import DataError
from toynn.formats.tokenizer import ByteTokenizer
from toynn.recipes import GPT2
from toynn.train.trainer import Trainer

LENGTHS = 3, 1, 9, 2, 30
TEXT = "\n--\n".join("abcdefghij"[:n] * 6 for n in (3, 1, 9, 10))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    return path


def stored(parts):
    fill = lambda: (part.astype(np.int32) for part in parts)  # noqa: E731
    return InMemory().documents(Path("a.txt"), {}, 1000, fill)[0]


def documents():
    """Tokens 100 d + k: the k-th of document d."""
    return stored(100 * d + np.arange(n) for d, n in enumerate(LENGTHS))


def whole(batch, seq, count):
    source = DocumentWindows(documents(), batch, seq, seed=0)
    drawn = list(itertools.islice(source, count))
    return drawn + spaced_documents(documents(), batch, seq, 4)


def test_a_row_sees_its_document_within_its_window_and_answers_with_the_next_token():
    seen = set()
    for batch in whole(3, 7, 60):
        rows = np.arange(batch.tokens)
        starts = rows // 7 * 7  # of windows
        for i in rows:
            document = batch.inputs // 100
            first = next(j for j in range(starts[i], i + 1) if document[j] == document[i])
            assert (batch.segments[i], batch.positions[i]) == (first, i - first)
            at = batch.inputs[i] % 100
            last = at + 1 == LENGTHS[document[i]]
            assert batch.labels[i] == (IGNORED if last else batch.inputs[i] + 1)
            seen.add((bool(last), bool(first > starts[i])))
    assert len(seen) == 4


def test_the_windows_of_a_state_follow_again():
    source = DocumentWindows(documents(), 2, 5, seed=3)
    next(source)
    state = source.state
    expected = [next(source).inputs.tolist() for _ in range(3)]
    source.state = state
    assert [next(source).inputs.tolist() for _ in range(3)] == expected


@pytest.mark.parametrize("at", [3, 4, 8, 13])
def test_parts_of_the_documents_have_their_own_borders(at):
    left, right = documents().parted(at)
    joined = np.concatenate([left.ids, right.ids])
    assert (joined == documents().ids).all()
    for part in (left, right):
        border = np.diff(part.ids // 100, prepend=-1) != 0
        assert (np.flatnonzero(border) == part.begins).all()


def ending():
    """Bytes, with a token that begins a document and one that ends it."""
    tokenizer = ByteTokenizer()
    tokenizer.bos, tokenizer.eos, tokenizer.add_bos = 256, 257, True
    return tokenizer


def test_documents_of_a_text_end_with_eos_or_with_the_separator(text):
    data = jsonl.documents(text, ByteTokenizer(), 5, vocab_size=256, separator="\n--\n")
    ids = np.concatenate([data.train.ids, data.valid.ids])
    assert bytes(ids.astype(np.uint8)).decode() == TEXT + "\n--\n"
    assert "4 documents; attention stays within each" in data.notes[0]
    marked = jsonl.documents(text, ending(), 5, vocab_size=258, separator="\n--\n")
    ids = np.concatenate([marked.train.ids, marked.valid.ids])
    assert ids[0] == 256 and ids[-1] == 257
    assert np.count_nonzero(ids == 256) == np.count_nonzero(ids == 257) == 4
    assert len(ids) == len(TEXT) - 3 * 4 + 8


@pytest.mark.parametrize("separator", ["", "|"])
def test_a_separator_that_is_not_there(separator, text):
    with pytest.raises(DataError, match=r"a\.txt: expected documents with .* not in the text"):
        jsonl.documents(text, ByteTokenizer(), 5, vocab_size=256, separator=separator)


def test_lines_of_json_have_no_separator(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' * 3)
    with pytest.raises(DataError, match=r"a\.jsonl: a separator of documents needs a text"):
        jsonl.documents(path, ByteTokenizer(), 5, vocab_size=256, separator="|")


@pytest.mark.parametrize("separator", ["\n--\n", "--", "a", "aa", "\n-", "nowhere"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_text_in_blocks_is_parted_as_a_whole_one_is(separator, size):
    text = TEXT + "aaa\n--\n--\n-"
    blocks = (text[at : at + size] for at in range(0, len(text), size))
    assert list(parted(blocks, separator)) == text.split(separator)


def test_what_stands_before_a_document_changes_nothing():
    """A window that begins in one document and goes on in the next: the loss of both alone."""
    recipe = GPT2()
    recipe.realize(GPT2Config(256, 16, 2, 32, 1, 16), RecipeOptions(t_seq=12, packed=True))
    documents = stored([np.arange(7), np.arange(50, 70)])
    both = documents.windows(np.array([0]), 12)
    total = 0.0
    for rows in (slice(0, 7), slice(7, 12)):
        ids, labels = both.inputs[rows], both.labels[rows]
        count = np.count_nonzero(labels != IGNORED)
        total += count * recipe.evaluate(ids, np.arange(len(ids)), labels, np.zeros(len(ids), int))
    assert recipe.evaluate(*both) == pytest.approx(total / both.rows, rel=1e-6)


def test_the_trainer_takes_them(text):
    data = jsonl.documents(text, ByteTokenizer(), 8, vocab_size=256, separator="\n--\n")
    recipe = GPT2()
    recipe.realize(GPT2Config(256, 16, 2, 32, 1, 16), RecipeOptions(t_seq=8, t_batch=2))
    trainer = Trainer(recipe, data, steps=20, lr=0.02, eval_every=10, progress=False)
    losses = [report.val_loss for report in trainer.fit().reports if report.val_loss is not None]
    assert losses[-1] < losses[0]
