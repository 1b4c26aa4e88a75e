"""Tokens in several files: what one file of all of them gives, in the order of their numbers."""

import itertools
import os

import numpy as np
import pytest
from test_binary import llmc, nanogpt, read

from toynn.data import binary
from toynn.data.digest import digest
from toynn.data.mixture import Mixture
from toynn.data.shards import Shards
from toynn.data.text import ByteBigram
from toynn.errors import DataError

IDS = np.random.default_rng(3).integers(0, 7, 400)
CUTS = [IDS[:150], IDS[150:155], IDS[155:156], IDS[156:]]  # some are shorter than a window


def shards(folder, kind="train", cuts=CUTS, write=llmc):
    """As fineweb.py of llm.c names them; the tenth is behind the second."""
    for number, ids in zip((1, 2, 10, 11), cuts, strict=True):
        write(folder / f"tiny_{kind}_{number}.bin", ids)
    return folder


def seen(data):
    batches = data.batches(3, seed=1)
    every = [*itertools.islice(batches, 60), *data.valid_batches(2, 20)]
    return [array.tolist() for batch in every for array in batch]


@pytest.mark.parametrize("write", [nanogpt, llmc])
@pytest.mark.parametrize("held_out", [False, True])
def test_they_are_as_one_file(write, held_out, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    write(whole / "train.bin", IDS)
    shards(cut, write=write)
    if held_out:
        write(whole / "val.bin", IDS[::-1])
        shards(cut, "val", [IDS[:150:-1], IDS[150:140:-1], IDS[140:139:-1], IDS[139::-1]], write)
    one, several = read(whole), read(cut)
    assert seen(several) == seen(one)
    assert len(several.train) == len(one.train) == (400 if held_out else 360)
    assert "4 shards, tiny_train_1.bin to tiny_train_11.bin" in several.notes[0]
    mixed = [Mixture.of({"a": data, "b": data}) for data in (one, several)]
    assert seen(mixed[1]) == seen(mixed[0])


def test_what_is_used_of_an_array():
    tokens = Shards([part.astype(np.uint16) for part in CUTS])
    assert (len(tokens), tokens.dtype, len(tokens[3:3])) == (400, np.uint16, 0)
    assert list(tokens[-4:]) == IDS[-4:].tolist() and [tokens[0], tokens[-1]] == [IDS[0], IDS[-1]]
    for first, end in itertools.combinations(range(0, 401, 25), 2):
        np.testing.assert_array_equal(tokens[first:end], IDS[first:end])
        np.testing.assert_array_equal(tokens[first:][: end - first], IDS[first:end])
    at = np.random.default_rng(0).integers(0, 400, (5, 7))
    np.testing.assert_array_equal(tokens[at], IDS[at])
    np.testing.assert_array_equal(ByteBigram(tokens)._log_p, ByteBigram(IDS)._log_p)
    for bad in (400, -401):
        with pytest.raises(IndexError, match=r"expected a token of 0\.\.399"):
            tokens[bad]
    with pytest.raises(IndexError, match="a step of 1; got 2"):
        tokens[::2]
    nothing = tokens[9:9]
    assert len(nothing[0:0]) == 0 and np.array(nothing[0:0]).dtype == tokens.dtype


@pytest.mark.parametrize("other", ["train.bin", "big_train_000.bin", "tiny_train.bin"])
def test_files_of_two_series_are_refused(other, tmp_path):
    nanogpt(shards(tmp_path) / other)
    with pytest.raises(DataError, match=r"or the shards of one series; got .*tiny_train_1"):
        read(tmp_path)


def test_every_shard_is_looked_at_and_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "BLOCK", 100)
    data = read(shards(tmp_path))
    data.check_unchanged()
    before = digest(tmp_path)
    last = tmp_path / "tiny_train_11.bin"
    state = last.stat()
    llmc(last, CUTS[3][::-1])
    os.utime(last, ns=(state.st_atime_ns, state.st_mtime_ns + 1))  # however coarse the clock is
    assert digest(tmp_path) != before
    with pytest.raises(DataError, match=r"tiny_train_11\.bin: changed since it was opened"):
        data.check_unchanged()
    llmc(last, [*CUTS[3], 9])
    with pytest.raises(DataError, match=r"tiny_train_11\.bin: token 244: expected ids of 0\.\.6"):
        read(tmp_path)
    last.write_bytes(b"")
    with pytest.raises(DataError, match=r"tiny_train_11\.bin: the file is empty"):
        read(tmp_path)


def test_shards_that_are_too_short_together(tmp_path):
    shards(tmp_path, cuts=[[1], [2], [3], [4]])
    with pytest.raises(DataError, match=f"{tmp_path}: 4 tokens are too few"):
        read(tmp_path)
    shards(tmp_path)
    shards(tmp_path, "val", [[1], [2], [3], [4]])
    with pytest.raises(DataError, match=r"4 shards, tiny_val_1.* 4 tokens are too few .* of 9"):
        read(tmp_path)
