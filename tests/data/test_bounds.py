"""Lines, and what packed files unpack to, have bounds: beyond them is an error, early and cheap."""

import csv
import gzip
import json
import tracemalloc

import numpy as np
import pytest

from toynn.cli import main
from toynn.data import _containers, _rows, _tables
from toynn.data.bounds import LEAST, LONGEST, Bounds
from toynn.data.stream import silent
from toynn.errors import DataError

LINE = Bounds(line=2**16)
LARGE, PAGE = 2**25, 2**23  # bytes that a bomb unpacks to, and one in a batch or a page
KINDS = (".jsonl", ".json", ".csv", ".tsv")
PACKED = ("", ".gz", ".zst")


def write(path, content):
    """Write a file, packed as its name says."""
    if path.suffix == ".gz":
        content = gzip.compress(content, 1)
    elif path.suffix == ".zst":
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        content = arrow.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(content)


def rows(path, bounds):
    return list(_rows.rows(path, silent, {}, bounds))


def in_little_memory(path, bounds, message):
    """Refused, and most of the file was never in memory."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            rows(path, bounds)
        assert tracemalloc.get_traced_memory()[1] < LARGE / 3
    finally:
        tracemalloc.stop()


def one_line(kind, text):
    """A file of one row with a text."""
    if kind in (".csv", ".tsv"):
        return b"text\n" + text + b"\n"
    row = b'{"text": "' + text + b'"}'
    return b"[" + row + b"]" if kind == ".json" else row + b"\n"


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_line_that_does_not_end(kind, packed, tmp_path):
    path = tmp_path / f"a{kind}{packed}"
    write(path, one_line(kind, b"a" * LARGE))
    name = rf"a{kind}{packed}:\d".replace(".", r"\.")
    in_little_memory(path, LINE, rf"{name}: expected at most 65,536 bytes in a line .*max_line=")
    write(path, one_line(kind, b"a" * 60_000))
    assert [row for _, row in rows(path, LINE)] == [{"text": "a" * 60_000}]


@pytest.mark.parametrize("packed", PACKED[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_many_lines_from_few_bytes(kind, packed, tmp_path):
    path = tmp_path / f"a{kind}{packed}"
    row = one_line(".csv" if kind == ".tsv" else kind, b"a" * 999)
    if kind == ".json":
        row = b"[" + b",".join([row[1:-1]] * 2000) + b"]"
    elif kind == ".jsonl":
        row *= 2000
    else:
        row += (b"a" * 999 + b"\n") * 1999
    write(path, row)
    bound = Bounds(unpacked=2**18)
    with pytest.raises(DataError, match=r"packed bytes to unpack to at most 262,144; .*max_unp"):
        rows(path, bound)
    assert len(rows(path, Bounds(unpacked=len(row)))) == 2000


def test_the_usual_bounds():
    """Texts become 3 to 20 times as long: 100 times is more than any, and 1 GiB no bomb."""
    assert Bounds().line == LONGEST == 2**26
    assert Bounds().most(1000) == LEAST == 2**30
    assert Bounds().most(2**30) == 100 * 2**30


@pytest.mark.parametrize("block", [1, 2, 7, 2**20])
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_lines_of_a_table_end_as_they_end(end, block, tmp_path, monkeypatch):
    """Wherever a block ends; ends in quotes are the field's."""
    monkeypatch.setattr(_containers, "BLOCK", block)
    path = tmp_path / "a.csv"
    quoted = f'"two{end}{end}lines, ü"'
    path.write_bytes("\ufeff".encode() + end.join(["text,b", f"{quoted},1", "", 'c,"d"']).encode())
    expected = [{"text": f"two{end}{end}lines, ü", "b": "1"}, {"text": "c", "b": "d"}]
    assert [row for _, row in rows(path, LINE)] == expected


@pytest.mark.parametrize("end", ["read", "left", "refused"])
def test_the_limit_of_a_table_is_no_other_readers(end, tmp_path):
    """csv has one limit for the whole process: nobody else sees that of our file."""
    (tmp_path / "a.csv").write_text("text\n" + "b" * 300 + "\n" + "c" * 300 + "\n")
    usual = csv.field_size_limit()
    lines = _rows.rows(tmp_path / "a.csv", silent, {}, Bounds(line=400))
    assert next(lines)[1]["text"] == "b" * 300
    assert csv.field_size_limit() == usual
    assert next(csv.reader(["d" * 500])) == ["d" * 500]
    small = _rows.rows(tmp_path / "a.csv", silent, {}, Bounds(line=200))
    with pytest.raises(DataError, match=r"expected at most 200 bytes"):
        next(small)
    if end == "read":
        assert [row["text"] for _, row in lines] == ["c" * 300]
    elif end == "left":
        lines.close()
    else:
        (tmp_path / "b.csv").write_text('text\n"' + "d\n" * 300 + '"\n')
        with pytest.raises(DataError, match=r"not CSV: field larger than field limit \(400\)"):
            next(_rows.rows(tmp_path / "b.csv", silent, {}, Bounds(line=400)))
        assert next(lines)[1]["text"] == "c" * 300
    assert csv.field_size_limit() == usual


def test_texts_that_a_table_has_once(tmp_path):
    """A dictionary of Parquet: a file of kilobytes whose rows are gigabytes."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    text = "".join(map(chr, np.random.default_rng(0).integers(33, 126, 2**16)))
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": [text] * 600, "other": [text] * 600}), path)
    assert path.stat().st_size < 2**19
    with pytest.raises(DataError, match=r"a\.parquet: expected .* to unpack to at most 10,000,000"):
        rows(path, Bounds(unpacked=10_000_000))
    declared = parquet.ParquetFile(path).metadata.row_group(0).total_byte_size
    with pytest.raises(DataError, match="to unpack to at most"):
        next(_rows.rows(path, silent, {}, Bounds(unpacked=declared - 1)))


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow", reason="pyarrow is not installed")


POOLS = []  # never freed: what is allocated in one may outlive a test


def account(arrow):
    """A pool that pyarrow's memory comes from, from here on."""
    POOLS.append(arrow.proxy_memory_pool(arrow.system_memory_pool()))
    arrow.set_memory_pool(POOLS[-1])
    return POOLS[-1]


def write_ipc(arrow, path, table, **options):
    from pyarrow import ipc

    new = ipc.new_file if path.suffix == ".feather" else ipc.new_stream
    with new(str(path), table.schema, options=ipc.IpcWriteOptions(**options)) as file:
        file.write(table)


@pytest.mark.parametrize("coded", [False, True], ids=["rows", "dictionary"])
@pytest.mark.parametrize("packing", ["zstd", "lz4"])
@pytest.mark.parametrize("kind", [".feather", ".arrow"])
def test_a_batch_of_arrow_that_becomes_large(kind, packing, coded, tmp_path, arrow):
    path = tmp_path / f"a{kind}"
    column = arrow.array(["a" * PAGE, "b"])
    table = arrow.table({"text": column.dictionary_encode() if coded else column})
    write_ipc(arrow, path, table, compression=packing)
    pool = account(arrow)
    with pytest.raises(DataError, match=r"packed bytes to unpack to at most 1,000,000; .*max_un"):
        rows(path, Bounds(unpacked=1_000_000))
    assert pool.max_memory() < PAGE / 3
    with pytest.raises(DataError, match=rf"a{kind}:1: expected at most 67,108 .*max_line="):
        rows(path, Bounds(line=67_108))
    assert [len(row["text"]) for _, row in rows(path, Bounds(2 * PAGE))] == [PAGE, 1]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary, packing", [(False, "zstd"), (True, "lz4"), (False, "gzip")])
def test_a_page_of_parquet_that_becomes_large(
    packing, dictionary, version, tmp_path, arrow, monkeypatch
):
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    table = arrow.table({"text": ["a" * PAGE, "b"], "other": ["c" * 2 * PAGE, "d"]})
    how = {"compression": packing, "use_dictionary": dictionary, "data_page_version": version}
    parquet.write_table(table, path, write_statistics=False, **how)
    # What the file says of all is not true.
    monkeypatch.setattr(_tables, "_check_parquet", lambda path, metadata, bounds: None)
    pool = account(arrow)
    with pytest.raises(DataError, match=r"packed bytes to unpack to at most 1,000,000; .*max_un"):
        rows(path, Bounds(unpacked=1_000_000))
    assert pool.max_memory() < PAGE / 3
    lines = rows(path, Bounds(2 * PAGE, unpacked=3 * PAGE))  # the other column is not counted
    assert [len(row["text"]) for _, row in lines] == [PAGE, 1]


def many_from_one(arrow, kind, text, count):
    """A column in which many rows are one text."""
    if kind == "dictionary":
        return arrow.DictionaryArray.from_arrays(arrow.array([0] * count, arrow.int8()), [text])
    view = np.array([[len(text), 0, 0, 0]] * count, np.int32)
    view[:, 1:2] = np.frombuffer(text[:4].encode(), np.int32)
    buffers = [None, arrow.py_buffer(view.tobytes()), arrow.py_buffer(text.encode())]
    return arrow.Array.from_buffers(arrow.string_view(), count, buffers)


@pytest.mark.parametrize("inside", ["texts", "messages"])
@pytest.mark.parametrize("kind", ["dictionary", "views"])
def test_texts_that_a_batch_has_once(kind, inside, tmp_path, arrow):
    """A few rows at a time become objects, and all of them are counted."""
    path, count = tmp_path / "a.arrow", 3000
    column, name = many_from_one(arrow, kind, "abcd" * 2**12, count), "text"
    if inside == "messages":
        roles = arrow.array(["user"] * count)
        talks = arrow.StructArray.from_arrays([column, roles], ["content", "role"])
        column, name = arrow.ListArray.from_arrays(range(count + 1), talks), "messages"
    write_ipc(arrow, path, arrow.table({name: column}))
    with pytest.raises(DataError, match=r"a\.arrow: expected .* to unpack to at most 10,000,000"):
        rows(path, Bounds(unpacked=10_000_000))
    with pytest.raises(DataError, match=r"a\.arrow:1: expected at most 1,000 bytes .*max_line="):
        rows(path, Bounds(line=1000))
    tracemalloc.start()
    try:
        assert sum(1 for _ in _rows.rows(path, silent, {}, Bounds())) == count
        assert tracemalloc.get_traced_memory()[1] < 3 * _tables.PART
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", ["rows", "an item", "an item of fixed size"])
def test_nothing_many_times(shape, tmp_path, arrow):
    """Nulls take no byte."""
    path, count = tmp_path / "a.feather", 2**30
    column = arrow.Array.from_buffers(arrow.null(), count, [None])
    if shape == "an item":
        column = arrow.ListArray.from_arrays(arrow.array([0, count], arrow.int32()), column)
    elif shape == "an item of fixed size":
        column = arrow.FixedSizeListArray.from_arrays(column, count)
    write_ipc(arrow, path, arrow.table({"messages": column}))
    with pytest.raises(DataError, match=r"a\.feather: expected .* max_unpacked="):
        rows(path, Bounds())


@pytest.mark.parametrize("kind", ["run_end_encoded", "list_view", "dense_union"])
def test_columns_that_no_texts_are_written_as(kind, tmp_path, arrow):
    path = tmp_path / "a.feather"
    if kind == "run_end_encoded":
        column = arrow.RunEndEncodedArray.from_arrays([2**30], ["a"])
    elif kind == "list_view":
        column = arrow.ListViewArray.from_arrays([0] * 9, [1] * 9, arrow.array(["a"]))
    else:
        column = arrow.UnionArray.from_dense(
            arrow.array([0], arrow.int8()), arrow.array([0], arrow.int32()), [arrow.array(["a"])]
        )
    write_ipc(arrow, path, arrow.table({"text": column}))
    with pytest.raises(DataError, match=rf"texts, numbers, lists or structs in 'text'; got {kind}"):
        rows(path, Bounds())


def test_the_command_line_says_which_flag(tmp_path, capsys):
    path = tmp_path / "a.jsonl.gz"
    write(path, b"".join(json.dumps({"text": "a" * 200}).encode() + b"\n" for _ in range(400)))
    out = tmp_path / "run"
    for flag, said in (("--max-line", "in a line or"), ("--max-unpacked", "packed bytes to unp")):
        assert main(["check", "--data", str(path), flag, "100"]) == 2
        assert flag in (line := capsys.readouterr().err) and said in line
        words = ["train", "lora", "--model", str(model(tmp_path)), "--data", str(path), flag, "100"]
        assert main([*words, "--out", str(out)]) == 2
        assert flag in (line := capsys.readouterr().err) and said in line
        assert not out.exists()
    assert main(["check", "--data", str(path), "--max-line", "220"]) == 0


def model(folder):
    """A model on bytes."""
    from lora_bases import write_base

    path = folder / "base.gguf"
    return path if path.exists() else write_base(path, vocab=256)


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext"])
def test_the_end_of_a_line_is_not_of_its_length(tmp_path, end):
    path, line = tmp_path / "a.jsonl", b"x" * 100
    path.write_bytes(line + end)
    assert next(_containers.lines_of(path, silent, Bounds(line=100)))[1].rstrip() == line
    with pytest.raises(DataError):
        next(_containers.lines_of(path, silent, Bounds(line=99)))
