"""Hostile GGUF files: llama.cpp's own list of them, more that hurt somebody, a fuzz."""

import math
import os
import time
import tracemalloc
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import (
    ARCHITECTURE,
    VALUES,
    File,
    floats,
    key,
    numbers,
    scalar,
    small,
    string,
    strings,
    tensor,
    text,
    u32,
    u64,
    with_key,
    with_tensors,
)

from toynn.errors import GGUFError
from toynn.formats import gguf


def refused(folder, file, *parts):
    """The file is refused, in under a second of the CPU, by a message that has the parts."""
    path = Path(folder) / "model.gguf"
    path.write_bytes(file if isinstance(file, bytes) else bytes(file))
    tracemalloc.start()
    begin = time.thread_time()
    with pytest.raises(GGUFError) as caught:
        gguf.open(path)
    seconds = time.thread_time() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 1
    assert peak < path.stat().st_size + 2**18
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    for part in parts:
        assert part in message, message


# What is no GGUF file at all.


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "not a GGUF file (0 bytes)"),
        (b"GGU", "not a GGUF file (3 bytes)"),
        (b"GGML" + bytes(60), "a format before GGUF"),
        (b"tjgg" + bytes(60), "GGJT"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (u64(70) + b'{"__metadata__":{}}', "a safetensors file"),
        (b"PK\x03\x04" + bytes(60), "a zip archive"),
    ],
)
def test_other_files_are_named(tmp_path, content, part):
    refused(tmp_path, content, part)


def test_paths_that_cannot_be_read(tmp_path):
    with pytest.raises(GGUFError, match=r"none\.gguf: cannot read: No such file"):
        gguf.open(tmp_path / "none.gguf")
    with pytest.raises(GGUFError, match="not a regular file"):
        gguf.open(tmp_path)
    with pytest.raises(GGUFError, match="not a path"):
        gguf.open("a\0b")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(GGUFError, match="not a regular file"):
            gguf.open(tmp_path / "pipe")


# The list of llama.cpp's test-gguf, one to one, under its names.


BIG = 0x7FFFFFFFFFFFFFC0
UNALIGNED = [tensor("a", [3]), tensor("b", [3], 0, 12)]
LLAMA_CPP = {
    "HEADER_BAD_MAGIC": (File(magic=b"FUGG"), "magic at byte 0: expected b'GGUF', got b'FUGG'"),
    "HEADER_BAD_VERSION_0": (File(version=0), "version at byte 4: expected 2 or 3, got 0"),
    "HEADER_BAD_VERSION_1": (File(version=1), "version at byte 4: expected 2 or 3, got 1"),
    "HEADER_BAD_VERSION_FUTURE": (File(version=4), "version at byte 4: expected 2 or 3, got 4"),
    "HEADER_BAD_N_TENSORS": (File(n_tensors=-1), "tensor count at byte 8"),
    "HEADER_BAD_N_KV": (File(n_keys=-1), "key count at byte 16"),
    "KV_BAD_KEY_SIZE": (
        with_key(u64(-1) + b"my_key" + scalar(1, "UINT8")),
        "length of key 1 at byte 69: expected at most",
    ),
    "KV_EMPTY_KEY": (with_key(key("", scalar(1, "UINT8"))), "expected a name, got an empty string"),
    "KV_BAD_TYPE": (
        with_key(key("my_key", u32(13) + b"\1")),
        "type of my_key at byte 83",
        "got 13",
    ),
    "KV_DUPLICATE_KEY": (
        with_key(key("k", scalar(1, "UINT8")), key("k", scalar(2, "UINT8"))),
        "key 2 at byte 83: expected a new key, got 'k' again",
    ),
    "KV_BAD_ALIGN": (
        with_key(key("general.alignment", scalar(13, "UINT32"))),
        "general.alignment at byte 98: expected a UINT32 and power of two",
        "got UINT32 13",
    ),
    "KV_WRONG_TYPE_ALIGN": (
        with_key(key("general.alignment", scalar(32, "INT32"))),
        "got INT32 32",
    ),
    "TENSORS_BAD_NAME_SIZE": (
        with_tensors(tensor("a" * 64, [4]), data=floats()),
        "length of name of tensor 0 at byte 69: expected at most 63, got 64",
    ),
    "TENSORS_BAD_N_DIMS": (
        with_tensors(tensor("a", [1] * 5), data=floats()),
        "dimension count of a at byte 78: expected 1 to 4, got 5",
    ),
    "TENSORS_BAD_SHAPE": (with_tensors(tensor("a", [-1])), "dimensions of a at byte 82"),
    "TENSORS_NE_TOO_BIG": (
        with_tensors(tensor("a", [4 * (2**31 - 1)] * 2)),
        "expected less than 2^63 elements",
    ),
    "TENSORS_NBYTES_TOO_BIG": (
        with_tensors(tensor("a", [math.isqrt(2**64 // 8) + 1] * 2, 27)),
        "data of a is not within the file bounds",
    ),
    "TENSORS_NBYTES_PAD_WRAP": (
        with_tensors(tensor("a", [2**62 - 1], 24), tensor("b", [2**62 - 1], 24, 2**62)),
        "data of a is not within the file bounds",
    ),
    "TENSORS_BAD_TYPE": (
        with_tensors(tensor("a", [32], 42), data=floats()),
        "type of a at byte 90: expected one of F32, F16,",
        "got 42, a type that toynn does not support",
    ),
    "TENSORS_BAD_OFFSET": (
        with_tensors(tensor("a", [4], 0, -1), data=floats()),
        "offset of a at byte 94: expected a multiple of 32, got 18446744073709551615",
    ),
    "TENSORS_DUPLICATE_NAME": (
        with_tensors(tensor("a", [8]), tensor("a", [8], 0, 32), data=floats(16)),
        "name of tensor 1 at byte 102: expected a new name, got 'a' again",
    ),
    "TENSORS_BAD_ALIGN": (
        with_tensors(*UNALIGNED, keys=[key("general.alignment", scalar(13, "UINT32"))]),
        "got UINT32 13",
    ),
    "TENSORS_INCONSISTENT_ALIGN": (
        with_tensors(*UNALIGNED, data=floats()),
        "offset of b at byte 127: expected a multiple of 32, got 12",
    ),
    "DATA_NOT_ENOUGH_DATA": (
        with_tensors(tensor("a", [12]), data=floats()[:47]),
        "data of a is not within the file bounds, the model is corrupted or incomplete",
        "expected 48 bytes, a file of 176, got a file of 175 bytes",
    ),
    "DATA_BAD_ALIGN": (
        with_tensors(
            *UNALIGNED, keys=[key("general.alignment", scalar(13, "UINT32"))], data=floats()
        ),
        "got UINT32 13",
    ),
    "DATA_INCONSISTENT_ALIGN": (with_tensors(*UNALIGNED, data=floats()), "a multiple of 32"),
    "DATA_MEM_SIZE_OVERFLOW": (
        with_tensors(tensor("a", [BIG], 24), tensor("b", [BIG], 24, BIG), data=bytes(32)),
        "data of a is not within the file bounds",
    ),
}


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_llama_cpp_refuses_and_so_do_we(tmp_path, name):
    refused(tmp_path, *LLAMA_CPP[name])


def test_llama_cpp_header_empty(tmp_path):
    with gguf.open(File().write(tmp_path)) as file:
        assert not file.metadata and not file.tensors
        with pytest.raises(GGUFError, match=r"key not found in model: general\.architecture"):
            file.architecture  # noqa: B018


def test_llama_cpp_kv_success(tmp_path):
    gguf.open(File(small().keys).write(tmp_path)).close()


def test_llama_cpp_tensors_zero_dim(tmp_path):
    """As in llama.cpp the table is read; the tensor itself is refused."""
    rows = [tensor("empty", [4, 0]), tensor("a", [12])]
    with gguf.open(with_tensors(*rows, data=floats()).write(tmp_path)) as file:
        np.testing.assert_array_equal(file["a"], VALUES.ravel())
        with pytest.raises(GGUFError, match=r"dimensions of empty: .* got \(0, 4\)"):
            file["empty"]


@pytest.mark.parametrize("alignment", [1, 8, 64, 65536])
def test_llama_cpp_custom_align(tmp_path, alignment):
    """TENSORS_CUSTOM_ALIGN, DATA_CUSTOM_ALIGN. Floats at odd addresses are copied."""
    offset = -(-48 // alignment) * alignment
    data = VALUES.tobytes().ljust(offset, b"\0") + VALUES.tobytes()
    keys = [ARCHITECTURE, key("general.alignment", scalar(alignment, "UINT32"))]
    rows = [tensor("odd", [4, 3]), tensor("b", [4, 3], 0, offset)]
    with gguf.open(File(keys, rows, data, alignment=alignment).write(tmp_path)) as file:
        assert file.alignment == alignment
        for name in ("odd", "b"):
            np.testing.assert_array_equal(file[name], VALUES)
            assert file[name].flags.aligned and not file[name].flags.writeable


# The other bad files that are known to have hurt somebody.

HOSTILE = {
    "big-endian": (File(version=3 << 24), "got 50331648 (the file is big-endian"),
    "n_tensors 2^40": (File(n_tensors=2**40), "expected at most 0 (16 bytes left of the file)"),
    "n_kv 2^63": (File(n_keys=2**63), "key count at byte 16: expected at most 0"),
    "string 2^40": (with_key(key("k", u32(8) + u64(2**40) + b"a")), "length of k at byte 82"),
    "array 2^62": (
        with_key(key("k", u32(9) + u32(5) + u64(2**62))),
        "length of k at byte 86: expected at most",
    ),
    "strings 2^40": (with_key(key("k", u32(9) + u32(8) + u64(2**40))), "length of k at byte 86"),
    "string in an array 2^63": (
        with_key(key("k", u32(9) + u32(8) + u64(2) + string("a") + u64(2**63) + bytes(40))),
        "length of string 1 of k at byte 103",
    ),
    "arrays in arrays": (
        with_key(key("k", u32(9) + (u32(9) + u64(1)) * 2000)),
        "element type of k at byte 82",
        "got 9",
    ),
    "type of an array": (
        with_key(key("k", u32(9) + u32(77) + u64(1))),
        "element type of k",
        "got 77",
    ),
    "type 77": (with_key(key("k", u32(77) + u64(1))), "type of k at byte 78", "4 UINT32", "got 77"),
    "bool 7": (
        with_key(key("k", scalar(7, "BOOL"))),
        "k at byte 82: expected a bool, 0 or 1, got 7",
    ),
    "bools 7": (with_key(key("k", numbers([1, 0, 7], "BOOL"))), "k at byte 96", "got 7"),
    "key not UTF-8": (with_key(key(b"k\xff", scalar(1, "UINT8"))), r"expected UTF-8, got b'k\xff'"),
    "key of 65536": (
        with_key(key("k" * 65536, scalar(1, "UINT8"))),
        "expected at most 65535, got 65536",
    ),
    "alignment 0": (with_key(key("general.alignment", scalar(0, "UINT32"))), "got UINT32 0"),
    "alignment 2^31": (with_key(key("general.alignment", scalar(2**31, "UINT32"))), "2147483648"),
    "n_dims 0": (with_tensors(tensor("a", [])), "expected 1 to 4, got 0"),
    "n_dims 2^32-1": (with_tensors(tensor("a", [4], n_dims=2**32 - 1)), "got 4294967295"),
    "dims wrap 2^64": (with_tensors(tensor("a", [4, 2**42 + 1, 2**22], 0)), "2^63 elements"),
    "removed type": (with_tensors(tensor("a", [32], 4), data=floats()), "got 4, a type that"),
    "type 99": (with_tensors(tensor("a", [32], 99), data=floats()), "NVFP4, got 99, a type that"),
    "33 in blocks": (
        with_tensors(tensor("a", [33], 8), data=floats()),
        "dimensions of a at byte 82: expected rows of whole blocks of 32 (Q8_0), got (33,)",
    ),
    "offset past the end": (
        with_tensors(tensor("a", [4], 0, 2**40), data=floats()),
        "not within the file bounds",
    ),
    "offset 2^64-32": (with_tensors(tensor("a", [16], 0, -32), data=floats()), "file bounds"),
    "overlap": (
        with_tensors(tensor("a", [12]), tensor("b", [4], 0, 32), data=floats()),
        "offset of b at byte 127: expected 64, where the one before ends, got 32: it overlaps",
    ),
    "same place": (
        with_tensors(tensor("a", [12]), tensor("b", [12]), data=floats()),
        "expected 64, where the one before ends, got 0: it overlaps",
    ),
    "gap": (
        with_tensors(tensor("a", [8]), tensor("b", [4], 0, 64), data=floats(20)),
        "expected 32, where the one before ends, got 64: a gap",
    ),
    "gap at the start": (with_tensors(tensor("a", [4], 0, 32), data=floats()), "a gap"),
    "empty tensor name": (with_tensors(tensor("", [4]), data=floats()), "expected a name"),
    "tensor name not UTF-8": (with_tensors(tensor(b"\xff", [4]), data=floats()), r"b'\xff'"),
    "no data": (with_tensors(tensor("a", [4])), "not within the file bounds"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path, name):
    refused(tmp_path, *HOSTILE[name])


def test_a_header_has_a_largest_size(tmp_path, monkeypatch):
    monkeypatch.setattr("toynn.formats.gguf.cursor.MAX_HEADER_BYTES", 4096)
    long = key("k", text("a" * 5000))
    refused(tmp_path, with_key(long), "bytes left of a header, 4096 at most")
    monkeypatch.setattr("toynn.formats.gguf.header.MAX_STRINGS", 3)
    refused(
        tmp_path, with_key(key("k", strings(["a"] * 2)), key("l", strings(["a"] * 2))), "most 1"
    )


def many(count, make):
    return [make(f"{index:x}") for index in range(count)]


WIDE = "\N{GRINNING FACE}"  # a letter that makes every other one of its string take four bytes
EMPTY = u32(9) + u32(8) + u64(300_000) + bytes(2_400_000)
TALL = [0, 2**33, 2**34, 2**35]  # large numbers, and no data
SWOLLEN = {
    "empty strings": lambda: with_key(key("k", EMPTY)),
    "short strings": lambda: with_key(key("k", strings(["ab"] * 300_000))),
    "keys": lambda: with_key(*many(4000, lambda name: key(name, strings([])))),
    "more keys": lambda: with_key(*many(40_000, lambda name: key(name, strings([])))),
    "long keys": lambda: with_key(
        *many(300, lambda name: key(f"{name}{WIDE}{'a' * 60_000}", scalar(1, "UINT8")))
    ),
    "a long text": lambda: with_key(key("k", text(WIDE + "a" * 20_000_000))),
    "texts": lambda: with_key(*many(200, lambda name: key(name, text(WIDE + "a" * 100_000)))),
    "numbers": lambda: with_key(key("k", numbers([1] * 10_000_000, "BOOL"))),
    "tensors": lambda: with_tensors(*many(8000, lambda name: tensor(name + WIDE * 8, TALL))),
    "more tensors": lambda: with_tensors(*many(80_000, lambda name: tensor(name + WIDE * 8, TALL))),
}


@pytest.mark.parametrize("name", SWOLLEN)
def test_no_header_takes_more_memory_than_its_file_and_a_constant(tmp_path, name):
    path = SWOLLEN[name]().write(tmp_path)
    tracemalloc.start()
    with suppress(GGUFError):
        gguf.open(path).close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size + 8 * 2**20


# Any damage gives a file that loads, or a GGUFError.


def loads(path, content):
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            with gguf.open(path) as file:
                for name in file:
                    assert file.raw(name).nbytes == file.tensors[name].nbytes
            return True
        except GGUFError:
            return False


def test_every_prefix_is_refused(tmp_path):
    content = bytes(small())
    data_end = len(content) - 22  # the padding of the last tensor is not needed
    assert content[data_end:] == bytes(22) and loads(tmp_path / "f", content[:data_end])
    for length in range(data_end):
        assert not loads(tmp_path / "f", content[:length]), length


def test_every_changed_byte_loads_or_is_refused(tmp_path):
    content = bytes(small())
    random = np.random.default_rng(0)
    outcomes = set()
    for place in range(len(content)):
        for value in (0, 255, int(random.integers(256))):
            damaged = bytearray(content)
            damaged[place] = value
            outcomes.add(loads(tmp_path / "f", bytes(damaged)))
    assert outcomes == {True, False}


def test_random_damage_loads_or_is_refused(tmp_path):
    content = bytes(small())
    random = np.random.default_rng(1)
    for _ in range(1000):
        damaged = np.frombuffer(content, np.uint8).copy()
        places = random.integers(len(content), size=random.integers(1, 9))
        damaged[places] = random.choice([0, 1, 127, 128, 255], size=len(places))
        cut = random.integers(len(content)) if random.random() < 0.3 else len(content)
        loads(tmp_path / "f", damaged[:cut].tobytes())
