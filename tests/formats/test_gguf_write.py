"""Writing GGUF: round trips, refusals, and files that are whole or absent."""

import os

import gguf as library
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from toynn.errors import CheckpointError, GGUFError
from toynn.formats import gguf
from toynn.formats.files import write_atomically
from toynn.formats.gguf.header import SCALARS

LLAMA = {"general.architecture": "llama"}
WEIGHTS = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)

DTYPES = {name: dtype for name, dtype in SCALARS.values() if name != "BOOL"}


def test_matrices_of_a_stack_are_one_tensor_in_a_file(tmp_path):
    """In one type, in blocks as they are; where types differ, as float32."""
    names = [f"altup_proj.{i}.weight" for i in range(3)]
    parts = [WEIGHTS * (i + 1) for i in range(3)]
    tensors = {name: (part, "q8_0") for name, part in zip(names, parts, strict=True)}
    gguf.write(tmp_path / "one.gguf", LLAMA, tensors | {"a.weight": (WEIGHTS, "f32")})
    (stack,) = [t for t in library.GGUFReader(tmp_path / "one.gguf").tensors if "altup" in t.name]
    assert (stack.name, stack.shape.tolist()) == ("altup_proj.weight", [64, 6, 3])
    with gguf.open(tmp_path / "one.gguf") as file:
        assert [*file] == ["a.weight", *names] and file.tensors[names[1]].type == "Q8_0"
        raw = {name: (np.array(file.raw(name)), "q8_0") for name in names}
        whole = {name: np.array(file[name]) for name in names}
    for name, part in zip(names, parts, strict=True):
        np.testing.assert_allclose(whole[name], part, atol=0.02 * np.abs(part).max())
    gguf.write(tmp_path / "again.gguf", LLAMA, raw)
    mixed = raw | {names[1]: (parts[1], "f32")}
    gguf.write(tmp_path / "mixed.gguf", LLAMA, mixed)
    with gguf.open(tmp_path / "again.gguf") as again, gguf.open(tmp_path / "mixed.gguf") as file:
        assert {info.type for info in file.tensors.values()} == {"F32"}
        for name in names:
            assert np.array_equal(again[name], whole[name])
            expected = parts[1] if name == names[1] else whole[name]
            assert np.array_equal(file[name], expected)


def test_a_written_file_is_read_by_us_and_by_the_library(tmp_path):
    path = tmp_path / "m.gguf"
    metadata = {
        **LLAMA,
        "count": 7,
        "less": -7,
        "more": 2**40,
        "rate": 0.5,
        "yes": True,
        "empty": "",
        "wide": (9, "UINT64"),
        "exact": (0.1, "FLOAT64"),
        "scalar": np.int16(-5),
        "tokens": ["<s>", "é", "\udcff"],
        "types": [1, 2, 3],
        "scores": np.array([0.0, -1.5], np.float32),
        "flags": [True, False],
        "bytes": ([1, 255], "[UINT8]"),
    }
    rows = {type: (WEIGHTS, type) for type in ("f32", "f16", "bf16", "q8_0", "q4_0")}
    gguf.write(path, metadata, {**rows, "norm": (WEIGHTS[0], "F32")})
    with gguf.open(path) as file:
        assert {key: file.metadata[key] for key in list(metadata)[:11]} == {
            **dict(list(metadata.items())[:7]),
            "wide": 9,
            "exact": 0.1,
            "scalar": -5,
            "tokens": metadata["tokens"],
        }
        assert " ".join(file.types.values()) == (
            "STRING UINT32 INT32 INT64 FLOAT32 BOOL STRING UINT64 FLOAT64 INT16 "
            "[STRING] [INT32] [FLOAT32] [BOOL] [UINT8] UINT32"  # and its own last
        )
        assert file.metadata["bytes"].tolist() == [1, 255]
        np.testing.assert_array_equal(file["f32"], WEIGHTS)
        np.testing.assert_array_equal(file["f16"], WEIGHTS.astype(np.float16))
        np.testing.assert_array_equal(file["norm"], WEIGHTS[0])
        for type in rows:
            id = library.GGMLQuantizationType[type.upper()]
            expected = library.quants.quantize(WEIGHTS, id)
            assert file.raw(type).tobytes() == expected.tobytes()
            assert file.tensors[type].shape == WEIGHTS.shape
            np.testing.assert_array_equal(file[type], library.dequantize(expected, id))
    reader = library.GGUFReader(path)
    assert [tensor.name for tensor in reader.tensors] == [*rows, "norm"]
    assert reader.fields["count"].contents() == 7
    assert list(tmp_path.iterdir()) == [path]


def test_values_and_blocks_are_copied_as_they_are(tmp_path):
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    odd = {
        "byte": np.uint8(3),
        "wide": np.array([2**60]),
        "exact": (0.1, "FLOAT64"),
        "t": ["\udcff"],
    }
    gguf.write(first, {**LLAMA, **odd}, {"w": (WEIGHTS, "q8_0"), "v": (WEIGHTS, "f16")})
    with gguf.open(first) as file:
        assert file.metadata["general.quantization_version"] == 2
        copies = {name: (file.raw(name), info.type) for name, info in file.tensors.items()}
        values = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        gguf.write(second, values, copies)
    assert first.read_bytes() == second.read_bytes()


def test_alignment_is_the_caller_s_to_choose(tmp_path):
    path = tmp_path / "m.gguf"
    tensors = {name: (WEIGHTS[0, :3], "f32") for name in "ab"}
    gguf.write(path, {**LLAMA, "general.alignment": 128}, tensors)
    with gguf.open(path) as file:
        assert file.tensors["b"].offset - file.tensors["a"].offset == 128
        assert file.tensors["a"].offset % 128 == 0
    for wrong in (0, 13, 2**31, (32, "INT32")):
        with pytest.raises(GGUFError, match=r"general\.alignment: expected"):
            gguf.write(path, {**LLAMA, "general.alignment": wrong}, tensors, overwrite=True)


ODD = (
    "k: expected a text, bool or number of at most 64 bits, or a list or array of one kind of them"
)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, r"general\.architecture: expected a name, got b''"),
        ({**LLAMA, "k": []}, r"k: expected a value, or a list with at least one, got shape \(0,\)"),
        ({**LLAMA, "k": [[1], [2]]}, r"k: expected a value, .* got shape \(2, 1\)"),
        ({**LLAMA, "k": (300, "UINT8")}, "k: expected a value of type UINT8, got '300'"),
        ({**LLAMA, "k": (-1, "UINT64")}, "k: expected a value of type UINT64, got '-1'"),
        ({**LLAMA, "k": (0.5, "INT32")}, "k: expected a value of type INT32, got '0.5'"),
        ({**LLAMA, "k": (1e300, "FLOAT32")}, "k: expected a value of type FLOAT32"),
        ({**LLAMA, "k": ("a", "INT32")}, "k: expected a value of type INT32, got 'a'"),
        ({**LLAMA, "k": (["a"], "[INT32]")}, r"k: expected a value of type \[INT32\]"),
        ({**LLAMA, "k": (1, "[INT32]")}, r"k: expected a value of type \[INT32\]"),
        ({**LLAMA, "k": [[1], [2, 3]]}, f"{ODD}, got \\[\\[1\\], \\[2, 3\\]\\]"),
        ({**LLAMA, "k": ["a", 1]}, ODD),
        ({**LLAMA, "k": [True, 2**40, "a"]}, ODD),
        ({**LLAMA, "k": ["a", None]}, ODD),
        ({**LLAMA, "k": b"bytes"}, ODD),
        ({**LLAMA, "k": {"a": 1}}, ODD),
        ({**LLAMA, "k": object()}, ODD),
        ({**LLAMA, "k": np.datetime64("2026-01-01")}, ODD),
        ({**LLAMA, "k": np.array(["a"])}, ODD),
        ({**LLAMA, "k": np.array([1, None])}, ODD),
        ({**LLAMA, "k": (1, 2)}, r"k: expected \(value, a type's name\), got \(1, 2\)"),
        ({**LLAMA, "k": (None, "UINT8")}, "k: expected a value of type UINT8, got 'None'"),
        ({**LLAMA, "k": (1, "")}, "k: expected a value of type , got '1'"),
        ({**LLAMA, "k": (1, "UINT7")}, "k: expected a value of type UINT7, got '1'"),
        ({**LLAMA, 3: 1}, "metadata: expected names that are str, got 3"),
        (None, "metadata: expected a mapping by name, got NoneType"),
        ({"general.architecture": 3}, r"general\.architecture: expected a name, got 3"),
        ({**LLAMA, "k": 2**64}, ODD),
        ({**LLAMA, "k": None}, f"{ODD}, got None"),
        ({**LLAMA, "k": 1j}, ODD),
        ({**LLAMA, "k": "\ud800"}, "k: cannot be written as UTF-8"),
        ({**LLAMA, "": 1}, "key 1 at byte .* expected a name, got an empty string"),
    ],
)
def test_metadata_that_cannot_be_written(tmp_path, metadata, message):
    path = tmp_path / "m.gguf"
    with pytest.raises(GGUFError, match=rf"m\.gguf: {message}"):
        gguf.write(path, metadata, {})
    assert not list(tmp_path.iterdir())


BAD = WEIGHTS.copy()
BAD[3, 5] = np.nan


@pytest.mark.parametrize(
    ("array", "type", "message"),
    [
        (WEIGHTS, "q4_k", "expected a type of F32, F16, BF16, Q8_0, Q4_0, got q4_k"),
        (WEIGHTS.astype(np.int32), "f32", "expected floats, or uint8 blocks, got int32"),
        (WEIGHTS[:, :33], "q8_0", r"expected rows of whole 32s \(Q8_0\), got \(6, 33\)"),
        (np.zeros((2, 35), np.uint8), "Q8_0", r"expected rows of whole 34s \(Q8_0\)"),
        (WEIGHTS[:0], "f32", "expected rows of whole 1s"),
        (np.float32(1)[...], "f32", "expected rows of whole 1s"),
        (WEIGHTS * 1e5, "f16", r"element \d+: expected a number that is finite as F16"),
        (BAD, "f32", "element 197: expected a number that is finite as F32"),
        (BAD, "bf16", "element 197: expected a number that is finite as BF16"),
        (BAD, "q8_0", "quantize: Q8_0 needs finite values .* block 6"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_tensors_that_cannot_be_written(tmp_path, array, type, message):
    path = tmp_path / "m.gguf"
    with pytest.raises(GGUFError, match=rf"m\.gguf: w[:,] {message}"):
        gguf.write(path, LLAMA, {"w": (array, type)})
    assert not list(tmp_path.iterdir())


def test_deferred_arrays_are_made_one_after_the_other(tmp_path):
    made = []

    def deferred(name, array, shape=None):
        def make():
            made.append(name)
            return array

        return gguf.Deferred(shape or array.shape, array.dtype, make)

    path, blocks = tmp_path / "m.gguf", gguf.encode("w", WEIGHTS, "Q8_0")
    tensors = {"v": (deferred("v", WEIGHTS), "f16"), "w": (deferred("w", blocks), "q8_0")}
    gguf.write(path, LLAMA, tensors)
    gguf.write(tmp_path / "now.gguf", LLAMA, {"v": (WEIGHTS, "f16"), "w": (WEIGHTS, "q8_0")})
    assert path.read_bytes() == (tmp_path / "now.gguf").read_bytes()
    assert made == ["v", "w"]
    wrong = {"w": (deferred("w", WEIGHTS, WEIGHTS.shape[::-1]), "f32")}
    with pytest.raises(
        GGUFError, match=r"w: expected float32 .*, as planned; got float32 \(6, 64\)"
    ):
        gguf.write(path, LLAMA, wrong, overwrite=True)
    assert path.read_bytes() == (tmp_path / "now.gguf").read_bytes()


@pytest.mark.parametrize("name", ["", "a" * 64])
def test_names_that_we_would_not_read_are_not_written(tmp_path, name):
    with pytest.raises(GGUFError, match=r"m\.gguf: (length of )?name of tensor 0 at byte"):
        gguf.write(tmp_path / "m.gguf", LLAMA, {name: (WEIGHTS, "f32")})
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_untold_and_nothing_mapped_ever(tmp_path):
    path, link = tmp_path / "m.gguf", tmp_path / "link.gguf"
    tensors = {"w": (WEIGHTS, "f32")}
    gguf.write(path, LLAMA, tensors)
    with pytest.raises(GGUFError, match=r"m\.gguf: already exists; pass overwrite=True"):
        gguf.write(path, LLAMA, tensors)
    os.link(path, link)
    file = gguf.open(path)
    weights = file["w"]
    for name in (path, link):
        with pytest.raises(GGUFError, match=r"cannot write: this file is being read"):
            gguf.write(name, LLAMA, tensors, overwrite=True)
    file.close()
    with pytest.raises(GGUFError, match="is being read"):  # for an array still looks into it
        gguf.write(path, LLAMA, tensors, overwrite=True)
    np.testing.assert_array_equal(weights, WEIGHTS)
    del weights
    gguf.write(path, LLAMA, {"w": (2 * WEIGHTS, "f32")}, overwrite=True)
    with gguf.open(path) as file:
        np.testing.assert_array_equal(file["w"], 2 * WEIGHTS)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (None, "tensors: expected a mapping by name, got NoneType"),
        ({3: (WEIGHTS, "f32")}, "tensors: expected names that are str, got 3"),
        ({"w": WEIGHTS}, r"w: expected a pair \(array, type\), got ndarray"),
        ({"w": (WEIGHTS, "f32", 3)}, r"w: expected a pair \(array, type\), got tuple"),
        ({"w": (WEIGHTS.tolist(), "f32")}, r"w: expected \(a NumPy array, .*, got \(list, str\)"),
        ({"w": (None, "f32")}, r"w: expected \(a NumPy array, .*, got \(NoneType, str\)"),
        ({"w": (WEIGHTS, 0)}, r"w: expected \(a NumPy array, .*, got \(ndarray, int\)"),
        ({"w": (WEIGHTS.astype(object), "f32")}, "w: expected floats, or uint8 blocks, got object"),
        ({"w": (np.array(1.0), "f32")}, r"w: expected rows of whole 1s \(F32\), got \(\)"),
    ],
)
def test_what_is_no_table_of_tensors(tmp_path, tensors, message):
    with pytest.raises(GGUFError, match=rf"m\.gguf: {message}"):
        gguf.write(tmp_path / "m.gguf", LLAMA, tensors)
    assert not list(tmp_path.iterdir())


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "m.gguf", tmp_path / "link.gguf"
    link.symlink_to("far/m.gguf")
    with pytest.raises(GGUFError, match=r"link\.gguf: already exists"):  # though it leads nowhere
        gguf.write(link, LLAMA, {"w": (WEIGHTS, "f32")})
    for factor in (1, 2):
        gguf.write(link, LLAMA, {"w": (factor * WEIGHTS, "f32")}, overwrite=True)
        assert link.is_symlink() and not target.is_symlink()
        with gguf.open(target) as file:
            np.testing.assert_array_equal(file["w"], factor * WEIGHTS)
            del file
    assert list((tmp_path / "far").iterdir()) == [target]
    write_atomically(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    (circle := tmp_path / "circle").symlink_to("circle")
    with pytest.raises(GGUFError, match="circle: cannot write: symbolic links that lead in a circ"):
        gguf.write(circle, LLAMA, {}, overwrite=True)
    with pytest.raises(CheckpointError, match="circle: cannot write: symbolic links"):
        write_atomically(circle, b"new")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.gguf"
    gguf.write(path, LLAMA, {"w": (WEIGHTS, "f32")})
    old = path.read_bytes()
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))

    def full(source, target):
        assert synced == [len(old)]  # the whole file, before it takes its name
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        GGUFError, match=r"m\.gguf: cannot write 1536 bytes of tensors \(\d+ bytes free\): No space"
    ):
        gguf.write(path, LLAMA, {"w": (2 * WEIGHTS, "f32")}, overwrite=True)
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]
    with pytest.raises(GGUFError, match=r"cannot write 0 bytes .*: No such file or directory"):
        gguf.write(tmp_path / "none" / "m.gguf", LLAMA, {})


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
    resource = pytest.importorskip("resource", reason="limits of POSIX")
    path, tensors = tmp_path / "m.gguf", {f"w{n}": (WEIGHTS, "f32") for n in range(3)}
    gguf.write(path, LLAMA, tensors)
    size = path.stat().st_size
    path.unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 50, 300, size - 3000, size - 1000, size - 1):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(GGUFError, match=r"m\.gguf: cannot write 4608 bytes .*too large"):
                gguf.write(path, LLAMA, tensors)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not list(tmp_path.iterdir())


def test_a_folder_is_no_name_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("", ".", "/", tmp_path):
        with pytest.raises(GGUFError, match="cannot write: it is a folder; name the file to write"):
            gguf.write(name, LLAMA, {"w": (WEIGHTS, "f32")}, overwrite=True)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TOKEN = st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
NUMBERS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda name: arrays.arrays(DTYPES[name], st.integers(1, 9))
)
SINGLE = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(width=32),
    TEXT,
    TOKEN,
    st.lists(TOKEN, min_size=1),
    NUMBERS,
)
KEY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
NAME = KEY.filter(lambda name: len(name.encode()) < 64)
SHAPES = arrays.array_shapes(min_dims=1, max_dims=4, max_side=5)
TENSOR = arrays.arrays(
    np.float32, SHAPES, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)


@settings(max_examples=60)
@given(st.dictionaries(KEY, SINGLE, max_size=6), st.dictionaries(NAME, TENSOR, max_size=4))
def test_round_trip(tmp_path_factory, metadata, tensors):
    path = tmp_path_factory.mktemp("round") / "m.gguf"
    metadata = {
        **LLAMA,
        **{key: value for key, value in metadata.items() if not key.startswith("general.")},
    }
    gguf.write(path, metadata, {name: (array, "f32") for name, array in tensors.items()})
    with gguf.open(path) as file:
        assert list(file.metadata) == list(metadata)
        for key, value in metadata.items():
            np.testing.assert_array_equal(file.metadata[key], value)
            if isinstance(value, np.ndarray):
                assert file.metadata[key].dtype == value.dtype
        assert list(file.tensors) == list(tensors)
        for name, array in tensors.items():
            np.testing.assert_array_equal(file[name], array)
            assert file[name].shape == array.shape
