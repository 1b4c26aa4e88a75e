"""Which files are a split of a data set: of a repository's names, and of a folder's."""

import hashlib

import pytest

from toynn.data import jsonl
from toynn.data.digest import digest
from toynn.data.splits import choose, files_of
from toynn.data.survey import survey
from toynn.errors import DataError
from toynn.formats.tokenizer import ByteTokenizer
from toynn.train.token_cache import TokenCache

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

CHATS = [f"data/{each}-00000-of-00001.parquet" for each in ("train_sft", "test_sft", "train_gen")]
C4 = [f"en/c4-train.0000{k}-of-00002.json.gz" for k in (0, 1)]
CONVERTED = [f"{each}/train/000{k}.parquet" for each in ("default", "de") for k in (0, 1)]
SAMPLES = [f"sample/{each}/000_{k}.parquet" for each in ("10BT", "100BT") for k in (0, 1)]
#: Names in a repository, a folder, a split; and the path that they mean, or the error.
NAMES = [
    (["README.md", "x.parquet", "x.csv"], "", None, "x.parquet"),
    (["dataset_infos.json", "dolly-15k.jsonl"], "", None, "dolly-15k.jsonl"),
    (["a_train.jsonl", "a_eval.jsonl"], "", "test", "a_eval.jsonl"),
    (["data/train.csv.gz", "data/dev.csv.gz"], "", "validation", "data/dev.csv.gz"),
    (["only_test.json"], "", None, "only_test.json"),
    (C4, "en", None, "en/c4-train.*-of-00002.json.gz"),
    (CHATS, "", "train_sft", "data/train_sft-00000-of-00001.parquet"),
    (CHATS, "", None, "no split is called train: name one after a colon: test_sft, train_gen, "),
    (CONVERTED, "", None, "default/train/*.parquet"),
    (SAMPLES, "sample/10BT", None, "sample/10BT/*.parquet"),
    (["a.jsonl", "b.jsonl", "c_test.jsonl"], "", None, "got 2: name one: a.jsonl, b.jsonl"),
    (["a.bin"], "", None, "expected files (.parquet, .jsonl, "),
    (CONVERTED, "de/", None, "de/train/*.parquet"),
    (
        ["x_test.csv"],
        "x_test.csv",
        "test",
        "x_test.csv is one file, which has no splits: leave :test",
    ),
]
ONLY = " in the cache (connect to a network for others): name one after a "
#: The same where other names may be missing: being the only one is no reason to be taken.
CACHED = [
    (["x.parquet"], "", None, "x.parquet"),
    (["only_test.json"], "", None, f"no split is called train{ONLY}colon: test"),
    (["only_test.json"], "", "test", "only_test.json"),
    (["only_test.json"], "only_test.json", None, "only_test.json"),
    (["only_test.json"], "", "dev", f"there is no split validation{ONLY}colon: test"),
    (CONVERTED[2:], "", None, f"there is one configuration{ONLY}slash: de"),
    (CONVERTED[2:], "", "train", f"there is one configuration{ONLY}slash: de"),
    (CONVERTED[2:], "de", None, "de/train/*.parquet"),
    (CONVERTED[2:], "de/train", None, "de/train/*.parquet"),
    (["de/test/0.csv"], "de/test", None, "de/test/0.csv"),
    (["de/test/0.csv"], "de", None, f"no split is called train{ONLY}colon: test"),
    (CONVERTED[:2], "", None, "default/train/*.parquet"),
    (["README.md"], "", None, "in the cache (connect to a network for others); got README"),
]
BOTH = [(*each, False) for each in NAMES] + [(*each, True) for each in CACHED]


@pytest.mark.parametrize(("names", "within", "split", "expected", "cached"), BOTH)
def test_names_of_a_repository(names, within, split, expected, cached):
    try:
        chosen = choose("hf:o/n", names, within, split, cached=cached).path
    except DataError as error:
        chosen = str(error)
        assert chosen.startswith("hf:o/n: ")
    assert chosen.endswith(expected) or expected in chosen


def write(path, *texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({"text": list(texts)}), path)


@pytest.fixture
def folder(tmp_path):
    """What `hf download --repo-type dataset` leaves."""
    (tmp_path / "README.md").write_text("# not data")
    write(tmp_path / "data/train-00000-of-00002.parquet", "one", "two")
    write(tmp_path / "data/train-00001-of-00002.parquet", "three")
    write(tmp_path / "data/validation-00000-of-00001.parquet", "four")
    return tmp_path


def read(path, **more):
    return jsonl.read(path, ByteTokenizer(), 16, vocab_size=256, **more)


def texts(part):
    rows = (part[k] for k in range(len(part)))
    return [bytes([*ids.tolist(), int(labels[-1])]).decode() for ids, labels in rows]


def test_a_folder_of_shards(folder, tmp_path):
    for path in (folder, folder / "data"):
        shards = read(path)
        assert texts(shards.train) == ["one", "two", "three"] and texts(shards.valid) == ["four"]
    parts = jsonl.parts_of(folder)
    assert list(parts) == ["train", "valid"] and parts["train"].name == "train-*-of-00002.parquet"
    shards = survey(parts["train"], ByteTokenizer(), 256)
    assert shards.rows == 3 and shards.kind == "2 files, Parquet"
    assert shards.where(2) == f"{folder}/data/train-00001-of-00002.parquet:1"


def test_an_error_names_the_shard_and_its_row(folder):
    path = folder / "data/train-00001-of-00002.parquet"
    parquet.write_table(pa.table({"prompt": ["x"], "completion": ["y"]}), path)
    before = folder / "data/train-00000-of-00002.parquet:1"
    with pytest.raises(DataError) as caught:
        read(folder)
    assert str(caught.value).startswith(f"{path}:1: expected text, as {before} has; got prompt")
    path.unlink()
    for each in (folder, folder / "data/train-*-of-00002.parquet"):
        with pytest.raises(DataError, match="expected 2 shards; got 1: train-00000-of-00002"):
            read(each)


def test_other_names_and_nested_folders(tmp_path):
    (tmp_path / "README.md").write_text("# not data")
    write(tmp_path / "qa/0000.parquet", "one")
    write(tmp_path / "qa/0001.parquet", "two")
    write(tmp_path / "de/0000.parquet", "drei")
    with pytest.raises(
        DataError, match=r"its data are in folders below it: name one: .*/de, .*/qa$"
    ):
        read(tmp_path)
    for path in (tmp_path / "qa", tmp_path / "qa/*.parquet"):
        assert texts(read(path, holdout=0).train) == ["one", "two"]
    assert files_of(tmp_path / "qa/0001.parquet") == [tmp_path / "qa/0001.parquet"]


def test_a_folder_of_texts_may_have_tables_below(tmp_path):
    for name in ("README.md", "a.txt", "below/b.txt", ".cache/note.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("words")
    (tmp_path / "picture.png").write_bytes(b"no text")
    write(tmp_path / "tables/0000.parquet", "one")
    assert len(read(tmp_path, holdout=0).train) == 3
    assert jsonl.parts_of(tmp_path) == {"train": tmp_path}
    facts = survey(tmp_path, ByteTokenizer(), 256)
    assert (facts.kind, facts.bytes) == ("texts, read README.md, a.txt, below/b.txt", 15)
    (tmp_path / "a.txt").unlink()
    (tmp_path / "below/b.txt").unlink()
    with pytest.raises(
        DataError, match=r"its data are in folders below it: name one: [^,]*/tables$"
    ):
        read(tmp_path)


def test_tables_in_hidden_folders_are_no_data(tmp_path):
    write(tmp_path / ".cache/0000.parquet", "one")
    with pytest.raises(DataError, match=r"expected train\.jsonl in it; got \.cache"):
        read(tmp_path)


def test_every_shard_counts_for_digests_and_cached_tokens(folder, tmp_path):
    series = folder / "data/train-*-of-00002.parquet"
    store = TokenCache(tmp_path / "tokens")
    assert len(read(series, holdout=0, store=store).train) == 3
    before = [digest(path) for path in (series, folder)]
    write(folder / "data/train-00001-of-00002.parquet", "three", "more")
    assert all(digest(path) != was for path, was in zip((series, folder), before, strict=True))
    assert len(read(series, holdout=0, store=store).train) == 4


def test_a_text_beside_shards_does_not_count_for_digests(folder):
    before = digest(folder), digest(folder / "data")
    (folder / "README.md").write_text("# more")
    (folder / "data" / "LICENSE.txt").write_text("any")
    assert (digest(folder), digest(folder / "data")) == before
    write(folder / "data/validation-00000-of-00001.parquet", "five")
    assert digest(folder) != before[0] and digest(folder / "data") != before[1]


@pytest.mark.parametrize("name", ["a.txt", "train.jsonl", "model.safetensors"])
def test_files_below_that_are_not_read_do_not_count_for_digests(tmp_path, name):
    """As without data/ and shards: a run that was saved before they were known goes on."""
    (tmp_path / name).write_text("words")
    alone = hashlib.sha256(b"words").hexdigest()
    expected = hashlib.sha256(f"{name}\0{alone}".encode()).hexdigest()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("a,b")
    write(tmp_path / "tables/0000.parquet", "one")
    assert digest(tmp_path) == expected
