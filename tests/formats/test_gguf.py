"""Reading GGUF: values, views, NaN and infinity, speed, real files."""

import math
import os
import struct
import time
import tracemalloc

import gguf as library
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
    strings,
    tensor,
    text,
    with_tensors,
)
from shared import DATA

from toynn.errors import GGUFError, LifecycleError
from toynn.formats import gguf
from toynn.formats.gguf import mapping
from toynn.formats.gguf.tensors import TYPES


def test_every_type_of_value(tmp_path):
    with gguf.open(small().write(tmp_path)) as file:
        values = file.metadata
        assert file.architecture == "llama"
        assert [values[name] for name in ("u8", "i8", "u16", "i16")] == [200, -2, 60000, -3]
        assert [values[name] for name in ("u32", "i32")] == [2**32 - 1, -4]
        assert [values[name] for name in ("u64", "i64")] == [2**64 - 1, -(2**63)]
        assert [values[name] for name in ("f32", "f64")] == [0.5, 0.1]
        assert values["yes"] is True
        assert values["strings"] == ["a", "", "\udcff\udce2\udc82", "naïve"]
        assert values["strings"][2].encode("utf-8", "surrogateescape") == b"\xff\xe2\x82"
        np.testing.assert_array_equal(values["numbers"], np.array([1, -2, 3], np.int32))
        assert values["numbers"].dtype == np.int32
        assert values["bools"].tolist() == [True, False] and values["bools"].dtype == np.bool_
        assert values["none"].size == 0 and values["none"].dtype == np.float32
        assert file.types["u64"] == "UINT64" and file.types["strings"] == "[STRING]"
        assert file.types["numbers"] == "[INT32]" and file.types["yes"] == "BOOL"


def test_tensors_are_read_only_views_that_outlive_the_file(tmp_path):
    file = gguf.open(small().write(tmp_path))
    info = file.tensors["a"]
    assert (info.name, info.type, info.shape, info.nbytes) == ("a", "F32", (3, 4), 48)
    a, b = file["a"], file["b"]
    np.testing.assert_array_equal(a, VALUES)
    np.testing.assert_array_equal(b, np.arange(5, dtype=np.float16))
    assert (a.dtype, b.dtype) == (np.float32, np.float16)
    assert not a.flags.writeable and not a.flags.owndata
    assert np.shares_memory(a, file["a"]) and np.shares_memory(a, file.raw("a"))
    assert file.raw("a").shape == (3, 16) and not file.raw("a").flags.writeable
    assert file.path.read_bytes()[info.offset :][:48] == VALUES.tobytes()
    assert "a" in file and "c" not in file and list(file) == ["a", "b"] and len(file) == 2
    file.close()
    file.close()
    np.testing.assert_array_equal(a, VALUES)
    with pytest.raises(LifecycleError, match=r"model\.gguf: a is read after close"):
        file["a"]


def test_missing_tensor_and_keys_of_the_wrong_kind(tmp_path):
    keys = [key("general.architecture", text(b"ll\xffma")), key("n", scalar(1, "BOOL"))]
    with gguf.open(File(keys, [tensor("q", [256], 15)], bytes(320)).write(tmp_path)) as file:
        with pytest.raises(GGUFError, match=r"general\.architecture at byte 56: expected str"):
            file.architecture  # noqa: B018
        with pytest.raises(GGUFError, match=r"n at byte .*: expected int, got BOOL"):
            file.require("n", int)
        assert file.require("n", bool) is True
        with pytest.raises(GGUFError, match="missing tensor 'x'"):
            file["x"]
        with pytest.raises(GGUFError, match=r"expected one of F32, .*, got Q8_K"):
            file["q"]
        assert file.raw("q").shape == (292,)


def test_bytes_behind_the_last_tensor_are_ignored_aloud(tmp_path):
    file = with_tensors(tensor("a", [12]), data=floats() + bytes(100))
    with pytest.warns(UserWarning, match=r"model\.gguf: 100 bytes after the last tensor"):
        gguf.open(file.write(tmp_path)).close()


# NaN and infinity.

BLOCK_SCALES = [
    (type, offset)
    for type, offsets in {
        "F32": [0],
        "F16": [0],
        "BF16": [0],
        "Q8_0": [0],
        "Q4_0": [0],
        "Q4_1": [0, 2],
        "Q5_0": [0],
        "Q5_1": [0, 2],
        "Q2_K": [80, 82],
        "Q3_K": [108],
        "Q4_K": [0, 2],
        "Q5_K": [0, 2],
        "Q6_K": [208],
        "IQ4_NL": [0],
        "IQ4_XS": [0],
        "IQ3_S": [0],
        "IQ3_XXS": [0],
        "IQ2_S": [0],
        "IQ2_XS": [0],
        "IQ2_XXS": [0],
        "IQ1_S": [0],
        "IQ1_M": [52],
        "TQ1_0": [52],
        "TQ2_0": [64],
        "MXFP4": [0],
    }.items()
    for offset in offsets
]
NANS = {
    "F32": struct.pack("<f", math.nan),
    "BF16": b"\x80\xff",  # -inf
    "MXFP4": b"\xfd",  # 2^125
    "IQ1_M": b"\x77\xe7\x77\x77",  # its fourth digit is 7, its third e
}


def test_the_table_of_types_is_the_librarys():
    ids = library.GGMLQuantizationType
    theirs = {int(id): (id.name, *library.GGML_QUANT_SIZES[id]) for id in ids}
    assert theirs.items() >= TYPES.items() and [*TYPES] == sorted(TYPES)


@pytest.mark.parametrize(("type", "offset"), BLOCK_SCALES)
def test_a_scale_that_is_not_finite_is_found(tmp_path, type, offset):
    id = library.GGMLQuantizationType[type]
    elements, nbytes = library.GGML_QUANT_SIZES[id]
    raw = bytearray(b"\x77" * (3 * nbytes))
    bad = NANS.get(type, struct.pack("<e", math.inf))
    raw[nbytes + offset : nbytes + offset + len(bad)] = bad
    path = with_tensors(tensor("w", [3 * elements], int(id)), data=bytes(raw)).write(tmp_path)
    where = "element 1" if elements == 1 else "scale of block 1"
    begin = 128 + nbytes + offset
    with pytest.raises(GGUFError, match=f"w, {where} at byte {begin}: expected a finite number"):
        gguf.open(path)
    with gguf.open(path, check=False) as file:
        assert file.raw("w").tobytes() == raw
        with np.errstate(invalid="ignore", over="ignore"):
            values = library.dequantize(file.raw("w"), id)
        assert not np.isfinite(values).all()
        finite = bytes(raw[:nbytes] * 3)
    path.write_bytes(bytes(with_tensors(tensor("w", [3 * elements], int(id)), data=finite)))
    gguf.open(path, check=True).close()


# Speed, and the files of others.


def test_a_large_vocabulary_takes_less_than_half_a_second(tmp_path):
    count = 150_000
    names = [f"token{index}" for index in range(count)]
    keys = [
        ARCHITECTURE,
        key("tokenizer.ggml.tokens", strings(names)),
        key("tokenizer.ggml.token_type", numbers([1] * count, "INT32")),
        key("tokenizer.ggml.scores", numbers([0.0] * count, "FLOAT32")),
        key("tokenizer.ggml.merges", strings([f"a {name}" for name in names])),
    ]
    path = File(keys).write(tmp_path)
    seconds = []
    for _ in range(3):
        begin = time.thread_time()  # of the CPU: a busy machine changes it little
        with gguf.open(path) as file:
            seconds.append(time.thread_time() - begin)
            assert file.metadata["tokenizer.ggml.tokens"] == names
    assert min(seconds) < 0.5


def test_arrays_of_strings_are_sequences(tmp_path):
    texts = [f"text {index}" * (index % 3) for index in range(50)] + ["\udcff\udce2", "na\u00efve"]
    path = File([ARCHITECTURE, key("k", strings(_raw(texts))), key("none", strings([]))])
    with gguf.open(path.write(tmp_path)) as file:
        strings_read, none = file.metadata["k"], file.metadata["none"]
    assert isinstance(strings_read, gguf.Strings)
    assert list(strings_read) == texts
    assert [strings_read[index] for index in range(-52, 52)] == texts * 2
    assert (
        strings_read[3:40:7] == texts[3:40:7]
        and strings_read[::-1] == texts[::-1]
        and strings_read[60:] == []
    )
    for outside in (52, -53):
        with pytest.raises(IndexError):
            strings_read[outside]
    assert (
        strings_read == texts
        and strings_read == tuple(texts)
        and strings_read == strings_read
        and texts == strings_read
    )
    assert (
        strings_read != texts[1:]
        and strings_read != texts[1:] + texts[:1]
        and strings_read != none
        and strings_read != 3
    )
    assert (
        "text 1" in strings_read
        and "text" not in strings_read
        and strings_read.index("text 1") == 1
    )
    assert (len(none), list(none), none == []) == (0, [], True) and not none
    assert repr(strings_read) == "['', 'text 1', 'text 2text 2', ...]" and repr(none) == "[]"
    with pytest.raises(TypeError):
        hash(strings_read)
    gguf.write(tmp_path / "copy.gguf", {"general.architecture": "llama", "k": strings_read}, {})
    with gguf.open(tmp_path / "copy.gguf") as file:
        assert file.metadata["k"] == strings_read


def _raw(texts):
    return [text.encode("utf-8", "surrogateescape") for text in texts]


def test_a_large_file_is_mapped_not_read(tmp_path):
    path = with_tensors(tensor("a", [2**28])).write(tmp_path)  # 1 GiB of zeros, a sparse file
    os.truncate(path, path.stat().st_size + 2**30)
    tracemalloc.start()
    begin = time.thread_time()
    with gguf.open(path) as file:
        assert file["a"][-1] == 0
        seconds = time.thread_time() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 0.5 and peak < 2**20


def test_a_file_that_changed_is_noticed(tmp_path):
    path = small().write(tmp_path)
    with gguf.open(path) as file:
        file.check_unchanged()
        other = tmp_path / "other"
        other.write_bytes(path.read_bytes() + b"x")
        os.replace(other, path)
        with pytest.raises(GGUFError, match="changed since it was opened"):
            file.check_unchanged()
        path.unlink()
        with pytest.raises(GGUFError, match="changed since it was opened: No such file"):
            file.check_unchanged()


def test_a_file_is_mapped_while_mapped_files_are_looked_through(tmp_path):
    """As another thread may: every time that the list is looked at, it grows."""
    path = small().write(tmp_path)

    class Watched:
        @property
        def identity(self):
            mappings.append(mapping.map_file(path))
            return None

    mappings = [mapping.map_file(path) for _ in range(3)]
    for each in mappings[:2]:
        each.watched = Watched()
    other = tmp_path / "other"
    other.touch()
    assert not mapping.is_mapped(other) and mapping.is_mapped(path)
    assert len(mappings) > 4
    for each in mappings:
        each.close()
    assert not mapping.is_mapped(path)


REAL = (
    "stories260K.gguf",
    "stories260K-q8_0.gguf",
    "ggml-vocab-gpt-2.gguf",
    "ggml-vocab-llama-spm.gguf",
)


@pytest.mark.parametrize("name", REAL)
def test_real_files_agree_with_the_gguf_library(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not in the data folder; TOYNN_TEST_DATA names another folder")
    reference = library.GGUFReader(path)
    with gguf.open(path, check=True) as file:
        keys = [key for key in reference.fields if not key.startswith("GGUF.")]
        assert list(file.metadata) == keys
        for name_ in keys:
            ours, theirs = file.metadata[name_], reference.fields[name_]
            if theirs.types[0] == library.GGUFValueType.ARRAY:
                assert len(ours) == len(theirs.data)
                ours = ours[::97]  # the library takes its time
                np.testing.assert_array_equal(ours, theirs.contents(slice(None, None, 97)))
            else:
                assert ours == theirs.contents()
        assert [tensor.name for tensor in reference.tensors] == list(file.tensors)
        for expected in reference.tensors:
            info = file.tensors[expected.name]
            assert info.type == expected.tensor_type.name
            assert info.shape == tuple(reversed(expected.shape.tolist()))
            assert info.offset == expected.data_offset
            assert file.raw(expected.name).tobytes() == expected.data.tobytes()
            if info.type == "F32":
                np.testing.assert_array_equal(file[expected.name], expected.data)
