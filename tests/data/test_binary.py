"""Tokens in .bin files, nanoGPT's and llm.c's: what is refused, and that nothing is run."""

import pickle

import numpy as np
import pytest

from toynn.data import binary, jsonl
from toynn.data.text import RandomWindows
from toynn.errors import DataError
from toynn.formats.tokenizer import ByteTokenizer

IDS = np.arange(200) % 7


def nanogpt(path, ids=IDS):
    np.asarray(ids, np.uint16).tofile(path)
    return path


def llmc(path, ids=IDS, magic=20240520, version=1, count=None, dtype="<u2", order="<"):
    """As write_datafile of llm.c's data_common.py writes it."""
    header = np.zeros(256, f"{order}i4")
    header[:3] = magic, version, len(ids) if count is None else count
    path.write_bytes(header.tobytes() + np.asarray(ids, dtype).tobytes())
    return path


def read(path, vocab_size=7, seq=8):
    return jsonl.read(path, ByteTokenizer(), seq, vocab_size=vocab_size)


@pytest.mark.parametrize("write", [nanogpt, llmc])
def test_both_formats_and_the_last_tenth(write, tmp_path):
    data = read(write(tmp_path / "a.bin"))
    np.testing.assert_array_equal(np.concatenate([data.train, data.valid]), IDS)
    assert len(data.valid) == 20 and data.notes == [
        f"{tmp_path / 'a.bin'}: 200 tokens, the last 20 of them for validation"
    ]
    assert isinstance(data.train, np.memmap) and not data.train.flags.writeable
    batch = next(data.batches(2, seed=0))
    expected = next(RandomWindows(IDS[:180], 2, 8, 0))
    for ours, theirs in zip(batch, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_tokens_of_four_bytes(tmp_path):
    """As llm.c has them of Llama 3's vocabulary."""
    path = llmc(tmp_path / "a.bin", IDS + 128_000, 20240801, 7, dtype="<u4")
    tokens = binary.map_tokens(path, 128_256)
    np.testing.assert_array_equal(tokens, IDS + 128_000)


@pytest.mark.parametrize("names", [("train", "val"), ("tiny_train", "tiny_val")])
def test_a_folder_with_a_part_to_evaluate_on(names, tmp_path):
    nanogpt(tmp_path / f"{names[0]}.bin", [1] * 50)
    nanogpt(tmp_path / f"{names[1]}.bin", [2] * 9)
    data = read(tmp_path)
    assert set(data.train) == {1} and set(data.valid) == {2}
    assert data.notes == [
        f"{tmp_path / names[0]}.bin: 50 tokens",
        f"{tmp_path / names[1]}.bin: 9 tokens",
    ]


class Runs:
    """A pickle of it writes a file as soon as it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickle_beside_the_tokens_is_not_opened(tmp_path):
    for name in ("train", "val"):
        nanogpt(tmp_path / f"{name}.bin")
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(Runs(str(tmp_path / "ran"))))
    data = read(tmp_path)
    assert not (tmp_path / "ran").exists()
    assert "meta.pkl is not opened, since a pickle can run any code" in data.notes[-1]


BAD = {
    "empty": (lambda path: path.touch(), "the file is empty"),
    "odd": (
        lambda path: path.write_bytes(bytes(201)),
        "tokens of two bytes, .*got 201 bytes, an odd number",
    ),
    "header cut": (
        lambda path: path.write_bytes(np.int32(20240520).tobytes() * 2),
        "of 1024 bytes; got 8 in all",
    ),
    "version": (lambda path: llmc(path, version=2), "llm.c's version: expected 1; got 2"),
    "no tokens": (lambda path: llmc(path, count=0), "number of tokens: expected at least 1; got 0"),
    "fewer than none": (lambda path: llmc(path, count=-5), "expected at least 1; got -5"),
    "cut short": (
        lambda path: llmc(path, count=201),
        "expected 1426 bytes, .* got 1424: it is cut short",
    ),
    "too long": (lambda path: llmc(path, count=2), "got 1424: it is too long"),
    "too many": (lambda path: llmc(path, count=2**31 - 1), "2147483647 tokens; got 1424"),
    "wide": (lambda path: llmc(path, magic=20240801, version=7), "expected 1824 bytes"),
    "big-endian": (lambda path: llmc(path, order=">"), "magic number in big-endian order"),
    "model": (lambda path: llmc(path, magic=20240326), "it is a model of llm.c"),
    "torch": (
        lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)),
        "a zip archive, as PyTorch's",
    ),
    "pickle": (lambda path: path.write_bytes(pickle.dumps([1], 2)), "a pickle, as PyTorch's old"),
    "gguf": (lambda path: path.write_bytes(b"GGUF" + bytes(100)), "a GGUF file: a model"),
    "beyond": (
        lambda path: nanogpt(path, [*IDS, 7]),
        r"token 200: expected ids of 0\.\.6; got 7: the file was made with another tokenizer",
    ),
    "beyond, llm.c": (
        lambda path: llmc(path, [9, *IDS]),
        r"token 0: expected ids of 0\.\.6; got 9",
    ),
    "few": (lambda path: nanogpt(path, IDS[:17]), "17 tokens are too few"),
    "folder": (lambda path: path.mkdir(), "expected train.jsonl in it; got an empty folder"),
    "missing": (lambda path: None, "cannot read: No such file"),
}


@pytest.mark.parametrize(("write", "message"), BAD.values(), ids=BAD)
def test_what_is_refused(write, message, tmp_path):
    path = tmp_path / "a.bin"
    write(path)
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_which_part_is_too_short_and_which_files_are_too_many(tmp_path):
    nanogpt(tmp_path / "train.bin")
    nanogpt(tmp_path / "val.bin", IDS[:8])
    with pytest.raises(DataError, match=r"val\.bin: 8 tokens are too few for a window of 9"):
        read(tmp_path)
    nanogpt(tmp_path / "b_train.bin")
    with pytest.raises(
        DataError, match=r"expected one train.bin, or .* got b_train\.bin, train\.bin"
    ):
        read(tmp_path)


def test_tokens_that_change_while_they_are_mapped_are_noticed(tmp_path):
    data = read(nanogpt(tmp_path / "a.bin"))
    data.check_unchanged()
    nanogpt(tmp_path / "a.bin", IDS[::-1])
    with pytest.raises(DataError, match=r"a\.bin: changed since it was opened"):
        data.check_unchanged()
