"""A few hundred damaged files for each reader, always the same; and all that was ever found.

`python -m tests.fuzz --minutes 30` makes as many others as there is time for, and
`python -m tests.fuzz --cases 200000 --reader csv` so many of a reader.
"""

import pytest
from finds import past
from readers import READERS
from run import case, little_room, read

CASES = {
    "jsonl": 60,
    "packed": 60,
    "vit": 80,
    "pictures": 60,
    "run": 60,
    "hf": 80,
    "bpe": 60,
    "spm": 80,
    "idx": 80,
    "gguf-blocks": 80,
    "shards": 60,
    "template": 40,
    "tokenizer": 80,
}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damaged_files_are_refused_or_read(reader, tmp_path):
    refused = sum(read(reader, files, tmp_path) for files in reader.whole())
    assert refused == 0, "a whole file is refused"
    with little_room():
        for number in range(CASES.get(reader.name, 150)):
            refused += read(reader, case(reader, 0, number), tmp_path)
    assert refused > 0


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_past_finds(reader, tmp_path):
    with little_room():
        for files in past(reader):
            read(reader, files, tmp_path)
