"""Opening GGUF files: a large vocabulary, and a gigabyte of floats against the bare mapping."""

import mmap
import os
import struct

import numpy as np
import pytest

from toynn.formats import gguf

TOKENS = 150_000
GIB = 2**30


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "vocabulary.gguf"
    tokens = [f"token{index}" for index in range(TOKENS)]
    metadata = {
        "general.architecture": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.ones(TOKENS, np.int32),
        "tokenizer.ggml.merges": [f"a {token}" for token in tokens],
    }
    gguf.write(path, metadata, {})
    return path


@pytest.fixture(scope="module")
def gigabyte(tmp_path_factory):
    """Return a sparse file of one tensor; its zeros take no space on the disk."""
    path = tmp_path_factory.mktemp("gguf") / "gigabyte.gguf"
    row = struct.pack("<QsIQQIQ", 1, b"w", 2, 1024, GIB // 4096, 0, 0)
    path.write_bytes((b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + row).ljust(96, b"\0"))
    os.truncate(path, 96 + GIB)
    return path


def test_vocabulary(benchmark, vocabulary):
    def read():
        with gguf.open(vocabulary) as file:
            return file.metadata["tokenizer.ggml.tokens"]

    benchmark.group = "gguf: 150 000 tokens and merges"
    assert benchmark(read)[-1] == f"token{TOKENS - 1}"


def test_gigabyte(benchmark, gigabyte):
    def read():
        with gguf.open(gigabyte) as file:
            return file["w"]

    benchmark.group = "gguf: 1 GiB of floats"
    assert benchmark(read).nbytes == GIB


def test_gigabyte_bare_mapping(benchmark, gigabyte):
    def read():
        with gigabyte.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(data, "<f4", offset=96)

    benchmark.group = "gguf: 1 GiB of floats"
    assert benchmark(read).nbytes == GIB
