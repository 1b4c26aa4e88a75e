"""Tokens on the disk: the same bits as without, made once, never stale, and no memory for them."""

import errno
import json
import os
import re
import resource
import shutil
import threading

import numpy as np
import pytest
from faults import Faults
from killing import in_child, is_killed
from vocabs import bpe_file, nasty_texts, spm_file

from toynn.data import jsonl, reader, stream
from toynn.data.preference import read_preferences
from toynn.errors import CheckpointError, DataError
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer
from toynn.train import token_cache
from toynn.train.token_cache import TokenCache

pytest.importorskip("tokenizers", reason="tokenizers, of the text extra, is not installed")
pytest.importorskip("sentencepiece", reason="sentencepiece, of the text extra, is not installed")

TEXT = "\n".join(nasty_texts(120, seed=2)) + "the end"
ROWS = {
    "text": [{"text": text} for text in nasty_texts(40, seed=3) if text],
    "pairs": [{"prompt": f"say {n}", "completion": f"caf\u00e9 {n}" * n} for n in range(1, 40)],
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabs")
    bpe, spm = bpe_file(folder / "bpe.gguf"), spm_file(folder / "spm.gguf")
    return {
        "bytes": ByteTokenizer(),
        "bpe": Tokenizer.from_gguf(bpe),
        "spm": Tokenizer.from_gguf(spm),
    }


@pytest.fixture
def blocks(monkeypatch):
    monkeypatch.setattr(stream, "BLOCK", 100)


def cache(folder, told=None):
    return TokenCache(folder / "tokens", (told if told is not None else []).append)


def read(path, tokenizer, store, **more):
    options = {"vocab_size": tokenizer.vocab_size, "store": store, "packing": True} | more
    return jsonl.read(path, tokenizer, 24, **options)


def seen(data):
    """All that training sees of data, in its first batches and in those to evaluate on."""
    batches = data.batches(3, seed=1)
    every = [next(batches) for _ in range(30)] + list(data.valid_batches(2, 4))
    return [array.tolist() for batch in every for array in batch], data.notes, data.seq


def never(*_):
    raise AssertionError("made twice")


@pytest.mark.parametrize("loss", ["dpo", "orpo", "kto"])
def test_preferences_are_made_once_and_are_the_same(loss, tokenizers, tmp_path, monkeypatch):
    tokenizer, path = tokenizers["bpe"], tmp_path / "a.jsonl"
    rows = [{"prompt": f"say {n}", "chosen": "a" * n, "rejected": "b" * 9} for n in range(1, 40)]
    path.write_text("\n".join(json.dumps(row) for row in rows))

    def read(store, loss=loss):
        options = {"vocab_size": tokenizer.vocab_size, "loss": loss, "store": store}
        return read_preferences(path, tokenizer, 24, **options)

    def bits(data):
        batches = data.batches(3, seed=1)
        every = [next(batches) for _ in range(30)] + list(data.valid_batches(2, 4))
        return [array.tolist() for batch in every for array in (*batch, batch.bounds)], data.notes

    plain = bits(read(None))
    assert "cut to 24 tokens" in plain[1][0]
    assert bits(read(cache(tmp_path))) == plain
    monkeypatch.setattr(type(tokenizer), "encode_many", never)
    assert bits(read(cache(tmp_path))) == plain


def test_what_one_loss_takes_another_refuses_from_the_cache_too(tokenizers, tmp_path):
    tokenizer, path = tokenizers["bytes"], tmp_path / "a.jsonl"
    rows = [{"prompt": f"say {n}", "completion": "a", "label": n % 2 == 0} for n in range(40)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    options = {"vocab_size": 256, "store": cache(tmp_path)}
    assert len(jsonl.read(path, tokenizer, 24, **options).train) == 36
    assert len(read_preferences(path, tokenizer, 24, loss="kto", **options).train) == 36
    with pytest.raises(DataError, match="dpo needs chosen and rejected"):
        read_preferences(path, tokenizer, 24, loss="dpo", **options)


@pytest.mark.parametrize("name", ["bytes", "bpe", "spm"])
def test_documents_are_made_once_and_are_the_same(name, tokenizers, tmp_path, blocks, monkeypatch):
    path, tokenizer = tmp_path / "a.txt", tokenizers[name]
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())

    def read(store, separator="\n"):
        options = {"vocab_size": tokenizer.vocab_size, "separator": separator, "store": store}
        return jsonl.documents(path, tokenizer, 24, **options)

    plain = read(None)
    assert seen(read(cache(tmp_path))) == seen(plain)
    with pytest.raises(DataError, match="with 'nowhere' between them; it is not in the text"):
        read(cache(tmp_path), "nowhere")
    assert len(list((tmp_path / "tokens").iterdir())) == 1
    other = seen(read(cache(tmp_path), "e"))
    assert other != seen(plain)
    monkeypatch.setattr(type(tokenizer), "encode_many", never)
    again = read(cache(tmp_path))
    assert seen(again) == seen(plain)
    assert isinstance(again.train.ids, np.memmap) and isinstance(again.train.begins, np.ndarray)


@pytest.mark.parametrize("name", ["bytes", "bpe", "spm"])
def test_a_text_is_made_once_and_is_the_same(name, tokenizers, tmp_path, blocks, monkeypatch):
    path, tokenizer = tmp_path / "a.txt", tokenizers[name]
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    plain = read(path, tokenizer, None)
    first = read(path, tokenizer, cache(tmp_path))
    assert seen(first) == seen(plain)
    assert (first.source.sha256, first.source.bytes) == (plain.source.sha256, plain.source.bytes)
    monkeypatch.setattr(type(tokenizer), "encode_blocks", never)
    again = read(path, tokenizer, cache(tmp_path))
    assert seen(again) == seen(plain)
    assert isinstance(again.train, np.memmap) and not again.train.flags.writeable


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["bytes", "bpe", "spm"])
@pytest.mark.parametrize("packing", [True, False])
def test_examples_are_made_once_and_are_the_same(
    rows, name, packing, tokenizers, tmp_path, monkeypatch
):
    path, tokenizer = tmp_path / "a.jsonl", tokenizers[name]
    path.write_text("\n".join(map(json.dumps, ROWS[rows])))
    plain = read(path, tokenizer, None, packing=packing)
    assert seen(read(path, tokenizer, cache(tmp_path), packing=packing)) == seen(plain)
    monkeypatch.setattr(type(tokenizer), "encode_many", never)
    again = read(path, tokenizer, cache(tmp_path), packing=packing)
    assert seen(again) == seen(plain)
    assert isinstance(again.train._columns.ids, np.memmap)
    assert again.train.labels == plain.train.labels


def test_batches_of_lines_and_single_lines_give_the_same(tokenizers, tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS["pairs"])))
    whole = seen(read(path, tokenizers["bpe"], None))
    monkeypatch.setattr(reader, "TOGETHER", 30)
    assert seen(read(path, tokenizers["bpe"], None)) == whole


def test_what_tokens_depend_on_is_in_the_key(tokenizers, tmp_path):
    """Another file, tokenizer or flag makes others; the old ones stay for who wants them again."""
    path, folder = tmp_path / "a.jsonl", tmp_path / "tokens"
    path.write_text("\n".join(map(json.dumps, ROWS["pairs"])))
    changes = [{}, {"mask_prompt": False}, {"keep_end": True}]
    for count, more in enumerate(changes, 1):
        assert seen(read(path, tokenizers["bpe"], cache(tmp_path), **more)) == seen(
            read(path, tokenizers["bpe"], None, **more)
        )
        assert len(list(folder.iterdir())) == count
    read(path, tokenizers["spm"], cache(tmp_path))
    path.write_text("\n".join(map(json.dumps, ROWS["pairs"][::-1])))
    reversed_rows = read(path, tokenizers["bpe"], cache(tmp_path))
    assert seen(reversed_rows) == seen(read(path, tokenizers["bpe"], None))
    assert len(list(folder.iterdir())) == 5


def edit(folder, change):
    table = json.loads((folder / "table.json").read_text())
    change(table)
    (folder / "table.json").write_text(json.dumps(table))


def other_column(name, change):
    """Give a column other numbers, as many as before."""

    def harm(folder):
        path = folder / f"{name}.bin"
        numbers = np.fromfile(path, token_cache.EXAMPLES[name])
        change(numbers)
        assert len(numbers.tobytes()) == path.stat().st_size
        numbers.tofile(path)

    return harm


def put_aside(name, place):
    """Put something else in a column's place; what was there is beside the folder."""

    def harm(folder):
        path = folder / name
        path.replace(folder.parent / f"aside-{name}")
        place(path)

    return harm


def linked(path):
    path.symlink_to(path.parent.parent / f"aside-{path.name}")


def sum_anew(folder, change):
    """Change a table, and let its sum be right."""

    def new(table):
        table.pop("sum")
        change(table)
        table["sum"] = token_cache._sum(table)

    edit(folder, new)


def junk(numbers):
    numbers[:] = np.random.default_rng(0).integers(0, 5, len(numbers))


def swap(numbers):
    numbers[[1, -2]] = numbers[[-2, 1]]


def raise_last(numbers):
    numbers[-1] += 10**6


#: What each does to a folder of examples, and what is said of it.
HARMS_OF_COLUMNS = {
    "junk ids": (other_column("ids", junk), r"ids\.bin: damaged: expected contents with the SHA"),
    "ids beyond the vocabulary": (other_column("ids", raise_last), r"ids\.bin: damaged"),
    "one bit": (other_column("ids", lambda ids: ids.__setitem__(3, ids[3] ^ 1)), r"ids\.bin: dama"),
    "nothing learned": (
        other_column("learned", lambda bits: bits.fill(0)),
        r"learned\.bin: damaged",
    ),
    "disordered begins": (other_column("begins", swap), r"begins\.bin: damaged"),
    "begins beyond the end": (other_column("begins", raise_last), r"begins\.bin: damaged"),
    "a link to a column": (put_aside("ids.bin", linked), r"ids\.bin: .* it is a symbolic link"),
    "a link to the table": (put_aside("table.json", linked), r"table\.json: .* a symbolic link"),
    "a link in a circle": (
        put_aside("begins.bin", lambda path: path.symlink_to(path)),
        r"begins\.bin: .* it is a symbolic link",
    ),
    "a pipe": (put_aside("ids.bin", os.mkfifo), r"ids\.bin: .* it is a pipe"),
    "a folder": (put_aside("ids.bin", os.mkdir), r"ids\.bin: cannot read: Is a directory"),
    "an older table": (
        lambda folder: sum_anew(folder, lambda table: table.pop("sums")),
        r"table\.json: an older toynn wrote it, without checksums of the columns",
    ),
    "another file's": (
        lambda folder: sum_anew(folder, lambda table: table.update(sha256="0" * 64)),
        r"table\.json: it was made from another file, tokenizer or setting",
    ),
}


@pytest.mark.parametrize("harm", HARMS_OF_COLUMNS)
def test_columns_that_are_damaged_are_made_again_with_a_word(harm, tokenizers, tmp_path):
    """The cache is to blame: neither the data nor the tokenizer."""
    path, told = tmp_path / "a.jsonl", []
    path.write_text("\n".join(map(json.dumps, ROWS["pairs"])))
    plain = seen(read(path, tokenizers["bpe"], None))
    read(path, tokenizers["bpe"], cache(tmp_path, told))
    (folder,) = (tmp_path / "tokens").iterdir()
    do, said = HARMS_OF_COLUMNS[harm]
    do(folder)
    assert seen(read(path, tokenizers["bpe"], cache(tmp_path, told))) == plain
    assert len(told) == 1 and re.search(said, told[0]), told
    assert told[0].startswith(str(folder)) and "are made again" in told[0]
    assert seen(read(path, tokenizers["bpe"], cache(tmp_path, told))) == plain and len(told) == 1


@pytest.mark.parametrize("kind", ["text", "documents"])
def test_ids_beyond_the_vocabulary_are_not_the_tokenizers(kind, tokenizers, tmp_path):
    path, tokenizer, told = tmp_path / "a.txt", tokenizers["bpe"], []
    path.write_text(TEXT)

    def open_data(store):
        if kind == "text":
            return read(path, tokenizer, store)
        more = {"vocab_size": tokenizer.vocab_size, "separator": "\n", "store": store}
        return jsonl.documents(path, tokenizer, 24, **more)

    plain = seen(open_data(cache(tmp_path, told)))
    (folder,) = (tmp_path / "tokens").iterdir()
    (folder / "ids.bin").write_bytes(b"\xff" * (folder / "ids.bin").stat().st_size)
    assert seen(open_data(cache(tmp_path, told))) == plain
    assert len(told) == 1 and "ids.bin: damaged" in told[0]


def test_a_folder_of_tokens_behind_a_link_is_taken(tokenizers, tmp_path):
    """Who needs the room moves one to another disk. Its contents are compared there."""
    path, told = tmp_path / "a.txt", []
    path.write_text(TEXT)
    plain = seen(read(path, tokenizers["bpe"], cache(tmp_path, told)))
    (folder,) = (tmp_path / "tokens").iterdir()
    moved = tmp_path / "elsewhere"
    folder.replace(moved)
    folder.symlink_to(moved)
    assert seen(read(path, tokenizers["bpe"], cache(tmp_path, told))) == plain and not told
    (moved / "ids.bin").write_bytes(bytes((moved / "ids.bin").stat().st_size))
    assert seen(read(path, tokenizers["bpe"], cache(tmp_path, told))) == plain and len(told) == 1
    assert folder.is_symlink() and any((moved / "ids.bin").read_bytes())


def test_a_large_column_is_compared_behind_the_opening(tokenizers, tmp_path, monkeypatch):
    """In the background, as it is for ids of 1 GiB: the first check waits and says what to do."""
    monkeypatch.setattr(token_cache, "LARGE", 1)
    path, told = tmp_path / "a.jsonl", []
    path.write_text("\n".join(map(json.dumps, ROWS["pairs"])))
    first = read(path, tokenizers["bpe"], cache(tmp_path, told))
    first.check_unchanged()
    plain = seen(first)
    (folder,) = (tmp_path / "tokens").iterdir()
    going, compare = threading.Event(), token_cache._File.compare

    def later(column):
        if column.state.path.name == "ids.bin":
            assert going.wait(60)
        compare(column)

    monkeypatch.setattr(token_cache._File, "compare", later)
    other_column("ids", junk)(folder)
    data = read(path, tokenizers["bpe"], cache(tmp_path, told))  # does not wait
    going.set()
    todo = rf"remove {folder} and start again: the tokens are made again"
    for _ in range(2):
        with pytest.raises(DataError, match=rf"ids\.bin: damaged: .*; {todo}"):
            data.check_unchanged()
    assert not told
    shutil.rmtree(folder)
    again = read(path, tokenizers["bpe"], cache(tmp_path, told))
    again.check_unchanged()
    assert seen(again) == plain and not told
    other_column("begins", swap)(folder)  # which is read at once
    assert seen(read(path, tokenizers["bpe"], cache(tmp_path, told))) == plain
    assert len(told) == 1 and "begins.bin: damaged" in told[0]


def test_what_cannot_be_compared_is_not_taken(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(token_cache, "LARGE", 1)
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    read(path, tokenizers["bpe"], cache(tmp_path)).check_unchanged()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def fail(column):
        raise MemoryError

    monkeypatch.setattr(token_cache._File, "compare", fail)
    with pytest.raises(DataError, match=r"ids\.bin: its contents were not compared; remove"):
        read(path, tokenizers["bpe"], cache(tmp_path)).check_unchanged()


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_tokens_that_another_process_replaces_stay_as_they_are_here(how, tokenizers, tmp_path):
    """Two runs may make the same tokens at once: the mapping keeps the files that it has."""
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    data = read(path, tokenizers["bpe"], cache(tmp_path))
    plain = seen(data)
    (folder,) = (tmp_path / "tokens").iterdir()
    if how == "replaced":
        (folder / "table.json").unlink()
        read(path, tokenizers["bpe"], cache(tmp_path))
    else:
        shutil.rmtree(folder)
    data.check_unchanged()
    assert seen(data) == plain


HARMS = {
    "no table": lambda folder: (folder / "table.json").unlink(),
    "not JSON": lambda folder: (folder / "table.json").write_text("{"),
    "other JSON": lambda folder: (folder / "table.json").write_text('{"counts": 3}'),
    "other counts": lambda folder: edit(folder, lambda table: table["counts"].clear()),
    "other facts": lambda folder: edit(folder, lambda table: table["facts"].update(labels=3)),
    "another key": lambda folder: edit(folder, lambda table: table.update(vocab_size=3)),
    "cut": lambda folder: (folder / "ids.bin").write_bytes(bytes(7)),
    "gone": lambda folder: (folder / "ids.bin").unlink(),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_tokens_that_are_not_whole_are_made_again_with_a_word(harm, tokenizers, tmp_path):
    path, told = tmp_path / "a.txt", []
    path.write_text(TEXT)
    plain = seen(read(path, tokenizers["bpe"], None))
    read(path, tokenizers["bpe"], cache(tmp_path, told))
    (folder,) = (tmp_path / "tokens").iterdir()
    harm(folder)
    assert not told
    assert seen(read(path, tokenizers["bpe"], cache(tmp_path, told))) == plain
    assert (
        len(told) == 1
        and str(folder) in told[0]
        and f"the tokens of {path} are made again" in told[0]
    )
    assert seen(read(path, tokenizers["bpe"], cache(tmp_path, told))) == plain and len(told) == 1


def test_bad_lines_and_texts_leave_no_tokens(tokenizers, tmp_path, blocks):
    (tmp_path / "a.txt").write_bytes(TEXT.encode() + b"\n\xff")
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n{"text": 3}\n')
    lines = TEXT.count("\n") + 2
    for name, message in (
        ("a.txt", rf"a\.txt:{lines}: not UTF-8"),
        ("a.jsonl", r":2: text: expect"),
    ):
        for store in (None, cache(tmp_path)):
            with pytest.raises(DataError, match=message):
                read(tmp_path / name, tokenizers["bpe"], store)
    with pytest.raises(DataError, match=r"a\.txt: expected token ids of 0\.\.9; got"):
        (tmp_path / "a.txt").write_text(TEXT)
        read(tmp_path / "a.txt", tokenizers["bpe"], cache(tmp_path), vocab_size=10)
    assert not list((tmp_path / "tokens").iterdir())


def test_a_full_disk_is_named_and_leaves_nothing(tokenizers, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS["pairs"])))
    with pytest.MonkeyPatch.context() as patch:
        counted = Faults(patch)
        read(path, tokenizers["bpe"], TokenCache(tmp_path / "counted", print))
    assert {"create", "write", "sync", "sync_folder", "rename", "make_folder"} <= set(counted.calls)
    for at in range(len(counted.calls)):
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, errno.ENOSPC)
            with pytest.raises(
                CheckpointError, match=r"tokens/a\.jsonl-.*: cannot write .*No space"
            ):
                read(path, tokenizers["bpe"], cache(tmp_path))
        left = [each for each in (tmp_path / "tokens").glob("*") if each.name.startswith(".")]
        assert not left
    plain = seen(read(path, tokenizers["bpe"], None))
    assert seen(read(path, tokenizers["bpe"], cache(tmp_path))) == plain


def test_a_text_that_changes_while_it_is_read(tokenizers, tmp_path, blocks):
    path, calls = tmp_path / "a.txt", []

    def change(done, of):
        if not calls:
            calls.append(path.write_text(TEXT[::-1]))

    for name in ("bytes", "bpe"):
        path.write_text(TEXT)
        calls.clear()
        with pytest.raises(DataError, match=r"a\.txt: changed since it was opened"):
            read(path, tokenizers[name], cache(tmp_path), progress=change)
    assert not list((tmp_path / "tokens").glob("*"))


def limited(action, room):
    """Run an action in a process that may take only so many bytes of its own more."""

    def act():
        with open("/proc/self/status") as file:
            data = next(int(line.split()[1]) for line in file if line.startswith("VmData"))
        limit = data * 1024 + room
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        action()

    return in_child(act)


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_data_of_300_mb_need_no_memory(kind, tmp_path):
    """Files with holes, which take no disk either; the process may take 64 MiB."""
    path, size = tmp_path / f"a.{'txt' if kind == 'text' else 'bin'}", 300_000_000
    with path.open("wb") as file:
        file.truncate(size)

    def act():
        data = jsonl.read(path, ByteTokenizer(), 256, vocab_size=256, store=cache(tmp_path))
        assert len(data.train) + len(data.valid) == size // (1 + (kind == "tokens"))
        batches = data.batches(4, seed=0)
        for _ in range(100):
            assert next(batches).rows == 4 * 256
        data.valid_batches(4, 16)

    assert not is_killed(limited(act, 2**26))

    def without():
        with pytest.raises(MemoryError):
            jsonl.read(path, ByteTokenizer(), 256, vocab_size=256)

    if kind == "text":
        assert not is_killed(limited(without, 2**26))
