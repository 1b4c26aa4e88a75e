"""Parquet, Arrow and Feather files that are damaged, or say one thing twice."""

import io
import random
import subprocess
import sys

import pytest
from hang import HANG

from toynn.data import _containers, _rows
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
    return list(_containers.table_rows(path, silent, {"text", "input", "tools"}))


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


LETTERS = [number.to_bytes(4, "little") for number in (0, 1, 2, 3)]
BAD_TEXT = arrow.Array.from_buffers(
    arrow.string(), 3, [None, arrow.py_buffer(b"".join(LETTERS)), arrow.py_buffer(b"a\xffb")]
)
PAIRS = arrow.StructArray.from_arrays([arrow.array(WORDS[:3])] * 2, ["x", "x"])
#: Python has no value for these, or the file has none.
UNCONVERTED = {
    "nanoseconds": arrow.array([1, 2, 3], arrow.timestamp("ns")),
    "nanoseconds of UTC": arrow.array([1, 2, 3], arrow.timestamp("ns", "UTC")),
    "a time zone that is none": arrow.array([1, 2, 3], arrow.timestamp("s", "No/Where")),
    "a time zone that is a path": arrow.array([1, 2, 3], arrow.timestamp("s", "/etc")),
    "a far timestamp": arrow.array([2**62] * 3, arrow.timestamp("s")),
    "a far date of 32 bits": arrow.array([2**31 - 1] * 3, arrow.date32()),
    "a far date of 64 bits": arrow.array([2**62] * 3, arrow.date64()),
    "a long duration": arrow.array([2**62] * 3, arrow.duration("s")),
    "a duration in nanoseconds": arrow.array([2**62 + 1] * 3, arrow.duration("ns")),
    "a time beyond the day": arrow.array([2**31 - 1] * 3, arrow.time32("s")),
    "a time beyond the day, in nanoseconds": arrow.array([2**62] * 3, arrow.time64("ns")),
    "invalid UTF-8": BAD_TEXT,
    "invalid UTF-8 in a dictionary": arrow.DictionaryArray.from_arrays(
        arrow.array([0, 1, 2], arrow.int8()), BAD_TEXT
    ),
    "nanoseconds in lists": arrow.array([[1]] * 3, arrow.list_(arrow.timestamp("ns"))),
    "fields of one name": PAIRS,
}


@pytest.mark.parametrize("kind", ["arrow", "feather", "parquet"])
@pytest.mark.parametrize("name", UNCONVERTED)
def test_only_columns_that_are_read_are_converted(tmp_path, name, kind):
    """What is in another column does not matter; in a column that is read it is a DataError."""
    if (kind, name) == ("parquet", "a far timestamp"):
        pytest.skip("pyarrow does not write it")
    path = tmp_path / f"a.{kind}"

    def write(columns):
        table = arrow.table(columns)
        if kind == "parquet":
            parquet.write_table(table, path)
        else:
            new = ipc.new_file if kind == "feather" else ipc.new_stream
            with new(str(path), table.schema) as file:
                file.write_table(table)

    write({"when": UNCONVERTED[name], "text": WORDS[:3], "text.when": UNCONVERTED[name]})
    others = {"when": None, "text.when": None}
    assert rows(path) == [(k + 1, others | {"text": WORDS[k]}) for k in range(3)]
    write({"text": UNCONVERTED[name]})
    with pytest.raises(DataError, match=rf"a\.{kind}: (cannot read as|expected fields of)"):
        rows(path)


def test_a_column_that_is_named_is_converted(tmp_path):
    """By --columns; a column of which nobody knows the name is not."""
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"body": WORDS, "when": [1, 2, 3, 4, 5]}), path)
    rows = list(_rows.rows(path, silent, {"text": "body"}))
    assert rows == [(k + 1, {"text": WORDS[k]}) for k in range(5)]
    with pytest.raises(
        DataError, match=r"a\.parquet:1: expected a column 'x'; got .*'body', 'when'"
    ):
        list(_rows.rows(path, silent, {"text": "x"}))


def test_many_rows_of_nothing_take_no_room(tmp_path):
    """A column of nulls has no bytes, however many rows it has."""
    path = tmp_path / "a.arrow"
    few, many, most = ((count).to_bytes(8, "little") for count in (12_345, 1 << 26, 1 << 40))
    whole = written(arrow.nulls(12_345), "arrow")
    assert whole.count(few) == 3  # of the batch, of the column, of its nulls
    path.write_bytes(whole.replace(few, many))
    rows = _containers.table_rows(path, silent, {"text"})
    assert [next(rows) for _ in range(3)] == [(1, {}), (2, {}), (3, {})]
    path.write_bytes(whole.replace(few, most))
    with pytest.raises(DataError, match="to unpack to at most"):
        next(_containers.table_rows(path, silent, {"text"}))


def repeated(inner):
    """A struct of two fields of one name, in something."""
    pair = arrow.StructArray.from_arrays([arrow.array(["a"]), arrow.array(["b"])], ["x", "x"])
    whole = arrow.ListArray.from_arrays([0, 1], pair) if inner != "struct" else pair
    if inner == "map":
        return arrow.MapArray.from_arrays([0, 1], arrow.array(["k"]), pair)
    return whole


@pytest.mark.parametrize("kind", ["arrow", "feather", "parquet"])
def test_two_columns_of_one_name_are_refused(tmp_path, kind):
    """The last of them would have loss."""
    path = tmp_path / f"a.{kind}"
    tables = {"columns": arrow.table([arrow.array(["a"]), arrow.array(["b"])], ["text", "text"])}
    tables["fields of 'input'"] = arrow.table({"input": repeated("struct")})
    tables["fields of 'tools'"] = arrow.table({"tools": repeated("list")})
    tables["fields of 'value'"] = arrow.table({"input": repeated("map")})
    for what, table in tables.items():
        if kind == "parquet":
            parquet.write_table(table, path)
        else:
            with (ipc.new_file if kind == "feather" else ipc.new_stream)(
                str(path), table.schema
            ) as file:
                file.write_table(table)
        with pytest.raises(DataError, match=rf"a\.{kind}: expected {what} with different"):
            rows(path)


def test_feather_of_the_first_version_is_refused_by_its_name(tmp_path):
    path = tmp_path / "a.feather"
    with pytest.warns(DeprecationWarning):
        feather.write_feather(arrow.table({"text": WORDS}), str(path), version=1)
    with pytest.raises(DataError, match=r"a\.feather: cannot read as feather: "):
        rows(path)


READ = """
import sys
from pathlib import Path
from toynn.data import _containers, stream
list(_containers.table_rows(Path(sys.argv[1]), stream.silent, {"text"}))
"""


def read_apart(path):
    """Read a file in another process, which may hang; return the end of what it says."""
    words = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG)
    return done.stderr.strip().rpartition("\n")[2]


def test_a_batch_that_goes_back_is_refused(tmp_path):
    """A walk over batches would come to the same one again and again."""
    path, whole = tmp_path / "a.arrow", written(COLUMNS["string"], "arrow")
    schema, batch = ipc.MessageReader.open_stream(arrow.py_buffer(whole))
    table, length = batch.metadata.to_pybytes(), batch.body.size.to_bytes(8, "little")
    assert table.count(length) == 1
    at = whole.index(table) + table.index(length)
    message_bytes = 8 + len(table)
    for back in (
        message_bytes,
        message_bytes + 8 + schema.metadata.size,
    ):  # to this batch; to the file's begin
        path.write_bytes(whole[:at] + (-back).to_bytes(8, "little", signed=True) + whole[at + 8 :])
        assert f"{path.name}: cannot read as arrow: " in read_apart(path)


def test_a_number_of_a_page_that_does_not_end_is_refused(tmp_path):
    """Such a number has 7 bits in each byte; many bytes take hours to add up."""
    path, size = tmp_path / "a.parquet", 2**23
    whole = written(arrow.array(["a" * size]), "parquet")
    begin = 4 + 1  # of the first number of the first page, behind its kind
    path.write_bytes(whole[:begin] + b"\xff" * size + whole[begin + size :])
    assert "a.parquet: cannot read as parquet: " in read_apart(path)
