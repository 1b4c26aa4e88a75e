"""Parquet, Arrow and Feather files that are damaged, or say one thing twice."""

import io
import random

import pytest

from toynn.data import _containers
from toynn.data.stream import silent
from toynn.errors import DataError

arrow = pytest.importorskip("pyarrow", reason="pyarrow, of the data extra, is not installed")
from pyarrow import feather, ipc, parquet  # noqa: E402  (where there is pyarrow)

TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
WORDS = ["one", "two", "three", "four", "five"]
UNION = arrow.UnionArray.from_sparse(
    arrow.array([0, 1, 0, 1, 0], arrow.int8()), [arrow.array(range(5)), arrow.array(WORDS)]
)
#: Every layout that has offsets, sizes, indices or views, all of which a file can have wrong.
COLUMNS = {
    "string": arrow.array(WORDS),
    "large_string": arrow.array(WORDS, arrow.large_string()),
    "string_view": arrow.array([3 * word for word in WORDS], arrow.string_view()),
    "binary": arrow.array([word.encode() for word in WORDS]),
    "dictionary": arrow.DictionaryArray.from_arrays(
        arrow.array([0, 1, 0, 2, 1], arrow.int8()), ["a", "b", "c"]
    ),
    "list": arrow.array([[1, 2], [], None, [3], [4]]),
    "large_list": arrow.array([[word] for word in WORDS], arrow.large_list(arrow.string())),
    "list_view": arrow.array([[word] for word in WORDS], arrow.list_view(arrow.string())),
    "list_of_struct": arrow.array([TALK] * 5),
    "map": arrow.array([[("a", 1)]] * 5, arrow.map_(arrow.string(), arrow.int64())),
    "run_end_encoded": arrow.RunEndEncodedArray.from_arrays(
        arrow.array([2, 5], arrow.int32()), arrow.array(["a", "b"])
    ),
    "union": UNION,
    "duration": arrow.array(range(5), arrow.duration("s")),
}


def written(column, kind, compression=None):
    """The bytes of a file with one column."""
    table, stream = arrow.table({"text": column}), io.BytesIO()
    if kind == "parquet":
        parquet.write_table(table, stream, compression=compression or "none", use_dictionary=False)
    else:
        new = ipc.new_file if kind == "feather" else ipc.new_stream
        with new(
            stream, table.schema, options=ipc.IpcWriteOptions(compression=compression)
        ) as file:
            file.write_table(table)
    return stream.getvalue()


def rows(path):
    return list(_containers.table_rows(path, silent))


@pytest.mark.parametrize("kind", ["arrow", "feather"])
@pytest.mark.parametrize(
    ("name", "before", "after"),  # numbers of 32 bits in the file
    [
        ("string", (0, 3, 6, 11, 15, 19), (0, 3, 6, 11, 15, 2**31 - 1)),  # beyond the buffer
        ("string", (0, 3, 6, 11, 15, 19), (0, 3, 2**30, 11, 15, 19)),
        ("string", (0, 3, 6, 11, 15, 19), (0, 3, 2, 11, 15, 19)),  # backward, within it
        ("list", (0, 2, 2, 2, 3, 4), (0, 2, 2, 2, 3, 2**31 - 1)),
        ("list_of_struct", (0, 2, 4, 6, 8, 10), (0, 2, 4, 6, 8, 2**31 - 1)),
        ("map", (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 2**31 - 1)),
        ("dictionary", (0, 1, 0, 2, 1), (0, 99, 0, 2, 1)),  # an index beyond the dictionary
    ],
)
def test_offsets_beyond_the_buffer_are_refused(tmp_path, kind, name, before, after):
    """pyarrow reads such a file, and memory that is not the file's, or the process ends."""
    whole = written(COLUMNS[name], kind)
    width = 1 if name == "dictionary" else 4
    old, new = (b"".join(n.to_bytes(width, "little") for n in ns) for ns in (before, after))
    path, at = tmp_path / f"a.{kind}", whole.rindex(old)
    path.write_bytes(whole)
    assert len(rows(path)) == 5
    path.write_bytes(whole[:at] + new + whole[at + len(old) :])
    with pytest.raises(DataError, match=rf"a\.{kind}: cannot read as {kind}: \w"):
        rows(path)


def test_texts_that_are_none_are_refused(tmp_path):
    for kind in ("arrow", "feather", "parquet"):
        path = tmp_path / f"a.{kind}"
        path.write_bytes(written(COLUMNS["string"], kind).replace(b"three", b"thr\xffe"))
        with pytest.raises(DataError, match=rf"a\.{kind}: cannot read as {kind}: .*UTF-?8"):
            rows(path)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("kind", ["arrow", "feather", "parquet"])
@pytest.mark.parametrize("name", COLUMNS)
def test_damaged_files_are_refused_or_read(tmp_path, name, kind, compression):
    if kind == "parquet" and name in ("union", "run_end_encoded", "list_view"):
        pytest.skip("Parquet has no such type")
    whole, path = written(COLUMNS[name], kind, compression), tmp_path / f"a.{kind}"
    draw = random.Random(f"{name} {kind} {compression}")
    refused = 0
    for _ in range(15):
        content, at = bytearray(whole), draw.randrange(len(whole)) & ~3
        number = draw.choice([0, 1, 5, 127, 255, 2**20, 2**30, 2**31 - 1, 2**31, 2**32 - 1])
        content[at : at + 4] = number.to_bytes(4, "little")
        path.write_bytes(content)
        try:
            rows(path)
        except DataError as error:
            assert f"a.{kind}: " in str(error)
            refused += 1
    assert refused > 0


def test_values_that_python_has_none_for_are_refused(tmp_path):
    path = tmp_path / "a.arrow"
    path.write_bytes(written(arrow.array([2**62], arrow.timestamp("s")), "arrow"))
    with pytest.raises(DataError, match=r"a\.arrow: cannot read as arrow: .*too large"):
        rows(path)
    path.write_bytes(written(arrow.array([1], arrow.timestamp("s", tz="No/Where")), "arrow"))
    with pytest.raises(DataError, match=r"a\.arrow: cannot read as arrow: .*(No.Where|zone)"):
        rows(path)


def test_many_rows_of_nothing_take_no_room(tmp_path):
    """A column of nulls has no bytes, however many rows it has."""
    path = tmp_path / "a.arrow"
    few, many = ((count).to_bytes(8, "little") for count in (12_345, 1 << 40))
    whole = written(arrow.nulls(12_345), "arrow")
    assert whole.count(few) == 3  # of the batch, of the column, of its nulls
    path.write_bytes(whole.replace(few, many))
    found = _containers.table_rows(path, silent)
    assert [next(found) for _ in range(3)] == [(1, {}), (2, {}), (3, {})]


def repeated(inner):
    """A struct of two fields of one name, in something."""
    pair = arrow.StructArray.from_arrays([arrow.array(["a"]), arrow.array(["b"])], ["x", "x"])
    whole = arrow.ListArray.from_arrays([0, 1], pair) if inner != "struct" else pair
    if inner == "map":
        return arrow.MapArray.from_arrays([0, 1], arrow.array(["k"]), pair)
    return whole


@pytest.mark.parametrize("kind", ["arrow", "feather", "parquet"])
def test_two_columns_of_one_name_are_refused(tmp_path, kind):
    """Of which the last would be learned."""
    path = tmp_path / f"a.{kind}"
    tables = {"columns": arrow.table([arrow.array(["a"]), arrow.array(["b"])], ["text", "text"])}
    tables["fields of 'in'"] = arrow.table({"in": repeated("struct")})
    tables["fields of 'each'"] = arrow.table({"each": repeated("list")})
    tables["fields of 'value'"] = arrow.table({"in": repeated("map")})
    for what, table in tables.items():
        if kind == "parquet":
            parquet.write_table(table, path)
        else:
            with (ipc.new_file if kind == "feather" else ipc.new_stream)(
                str(path), table.schema
            ) as file:
                file.write_table(table)
        with pytest.raises(DataError, match=rf"a\.{kind}: expected {what} of different"):
            rows(path)


def test_feather_of_the_first_version_is_refused_by_its_name(tmp_path):
    path = tmp_path / "a.feather"
    with pytest.warns(DeprecationWarning):
        feather.write_feather(arrow.table({"text": WORDS}), str(path), version=1)
    with pytest.raises(DataError, match=r"a\.feather: cannot read as feather: "):
        rows(path)
