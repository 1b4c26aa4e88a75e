"""Text to batches: the corpus, the split, the windows, the bigram baseline, bad files."""

import hashlib
import itertools

import numpy as np
import pytest

from toynn.data.batch import IGNORED
from toynn.data.text import ByteBigram, Corpus, RandomWindows, spaced_windows
from toynn.errors import DataError

COUNTING = np.arange(200, dtype=np.uint8)  # token i at offset i: a window names its own place


def test_embedded_corpus_is_english_without_repeats():
    corpus = Corpus.embedded()
    paragraphs = corpus.text.split(b"\n\n")
    assert len(corpus.text) > 200_000
    assert b"statement" in corpus.text
    assert len(paragraphs) == len(set(paragraphs))
    assert corpus.sha256 == hashlib.sha256(corpus.text).hexdigest()


def test_read_drops_the_byte_order_mark(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfna\xc3\xafve")
    assert Corpus.read(path) == Corpus(str(path), "naïve".encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a\.txt: the file is empty"),
        (b"\xef\xbb\xbf", r"a\.txt: the file is empty"),
        (b"one\ntwo \xff three", r"a\.txt:2: not UTF-8 text: byte 0xff at offset 8"),
        (b"cut \xe2\x82", r"a\.txt:1: not UTF-8 text: byte 0xe2 at offset 4 \(unexpected end"),
    ],
)
def test_bad_files_say_where(tmp_path, content, message):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        Corpus.read(path)


def test_missing_file_folder_and_impossible_path(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: cannot read: No such file"):
        Corpus.read(tmp_path / "none.txt")
    with pytest.raises(DataError, match="cannot read: Is a directory"):
        Corpus.read(tmp_path)
    with pytest.raises(DataError, match="not a path: embedded null byte"):
        Corpus.read("a\0b")


def test_random_windows_predict_the_next_token_everywhere():
    batches = RandomWindows(COUNTING, batch=3, seq=5, seed=0)
    seen = set()
    for batch in itertools.islice(batches, 400):
        for array in batch:
            assert array.dtype == np.int32
            assert array.shape == (15,)
        np.testing.assert_array_equal(batch.labels, batch.inputs + 1)
        np.testing.assert_array_equal(batch.positions, [0, 1, 2, 3, 4] * 3)
        seen.update(batch.inputs.tolist(), batch.labels.tolist())
    assert seen == set(range(200))


def test_random_windows_repeat_from_seed_and_from_state():
    def ids(windows, count=4):
        return [batch.inputs.tolist() for batch in itertools.islice(windows, count)]

    first, again, other = (RandomWindows(COUNTING, 2, 3, seed) for seed in (7, 7, 8))
    begin = ids(first)
    assert begin == ids(again)
    assert begin != ids(other)
    state = first.state
    middle = ids(first)
    other.state = state
    assert ids(other) == middle


@pytest.mark.parametrize("size", [6, 7, 26, 27, 200])
def test_spaced_windows_count_each_target_at_most_once(size):
    tokens = COUNTING[:size]
    batches = spaced_windows(tokens, batch=4, seq=5, max_batches=3)
    labels = np.concatenate([batch.labels for batch in batches])
    kept = labels[labels != IGNORED]
    assert all(batch.labels.shape == (20,) for batch in batches)
    assert len(kept) == 5 * min((size - 1) // 5, 12)
    assert len(set(kept.tolist())) == len(kept)
    if len(kept) > 5:
        assert kept[-1] == size - 1
    for batch in batches:
        counts = batch.labels != IGNORED
        assert counts.any()
        np.testing.assert_array_equal(batch.labels[counts], batch.inputs[counts] + 1)


def test_bigram_agrees_with_the_definition():
    train = np.frombuffer(b"abacab", np.uint8)
    valid = np.frombuffer(b"abz", np.uint8)
    batches = spaced_windows(valid, batch=2, seq=2, max_batches=1)
    # After a: b twice, c once. After b: a once. One is added to each of the 256 counts.
    expected = -(np.log((2 + 1) / (3 + 256)) + np.log((0 + 1) / (1 + 256))) / 2
    assert ByteBigram(train).loss(batches) == pytest.approx(expected)
