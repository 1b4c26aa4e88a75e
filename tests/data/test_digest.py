"""Whether data are the same: what counts of a folder."""

import pytest

from toynn.data.digest import digest


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "a.md").write_text("one")
    (tmp_path / "below" / "b.txt").write_text("two")
    return tmp_path


def test_a_tree_of_texts_is_all_of_it(texts):
    before = digest(texts)
    (texts / "below" / "picture.png").write_bytes(b"no text")
    assert digest(texts) == before
    (texts / "below" / "b.txt").write_text("2")
    assert digest(texts) != before


def test_the_name_of_a_text_counts(texts):
    before = digest(texts)
    (texts / "below" / "b.txt").rename(texts / "below" / "c.txt")
    assert digest(texts) != before


def test_of_a_folder_with_parts_only_its_own_files_count(texts):
    """A run may write below it."""
    (texts / "train.jsonl").write_text("{}")
    before = digest(texts)
    (texts / "below" / "sample.txt").write_text("three")
    assert digest(texts) == before
    (texts / "train.jsonl").write_text("{} ")
    assert digest(texts) != before
