"""What a survey of data says is what training does: rows, cuts, packing, repeats, leaks."""

import gzip
import json

import numpy as np
import pytest

from toynn.data import jsonl
from toynn.data.preference import read_preferences
from toynn.data.reader import Reader, ReadOptions
from toynn.data.repeats import common, cut_at, repeated
from toynn.data.survey import Characters, Vocabulary, survey
from toynn.data.survey_text import held_lines, survey_text
from toynn.errors import DataError, GGUFError
from toynn.formats.tokenizer import ByteTokenizer

WORDS = ["moon", "dust", "robot", "zork", "eats", "sees", "and", "the", "of", "big"]


def said(rng, count):
    return " ".join(rng.choice(WORDS, count))


def lines(path, rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def looked_at(path, **options):
    return survey(path, Characters(), Characters.vocab_size, **options)


@pytest.fixture
def completions(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"prompt": said(rng, k % 9 + 1), "completion": said(rng, k % 13 + 1), "id": k}
        for k in range(80)
    ]
    rows[3]["prompt"] = "x" * 21  # as much as a row of 20 has room for
    return lines(tmp_path / "rows.jsonl", rows)


@pytest.mark.parametrize("seq", [20, 45, 80, 500])
def test_cuts_and_rows_are_those_of_training(completions, seq):
    facts = survey(completions, ByteTokenizer(), 256)
    cut = cut_at(facts.lengths, facts.trained, facts.prompts, seq)
    data = jsonl.read(completions, ByteTokenizer(), seq, vocab_size=256, packing=True)
    note = data.notes[0]
    assert (f"; {cut.cut:,} cut" in note) == (cut.cut > 0)
    assert (f"; {cut.dropped:,} dropped" in note) == (cut.dropped > 0)
    whole, _ = jsonl.read_all(completions, ByteTokenizer(), seq, vocab_size=256)
    assert len(whole) == facts.rows - cut.dropped
    rows = jsonl.Dataset(whole, whole, None, seq, [], packing=True).batches(1, 0)
    assert cut.rows == rows.per_epoch
    assert cut.filled == pytest.approx(whole.lengths.sum() / (rows.per_epoch * seq))
    kept = (whole.lengths + 1).sum()
    assert cut.lost == pytest.approx(1 - kept / facts.tokens)


def test_fields_forms_and_lengths(completions):
    facts = looked_at(completions)
    assert facts.kind == "lines of JSON" and facts.compression is None
    assert facts.forms == {"prompt and completion": 80} and facts.fields["id"] == 80
    assert facts.read == {"prompt", "completion"}
    rows = [json.loads(line) for line in completions.read_text().splitlines()]
    assert list(facts.lengths) == [len(r["prompt"] + r["completion"]) for r in rows]
    assert list(facts.trained) == [len(r["completion"]) for r in rows]
    compressed = completions.with_name("rows.jsonl.gz")
    compressed.write_bytes(gzip.compress(completions.read_bytes()))
    again = looked_at(compressed)
    assert again.compression == "gzip" and list(again.exact) == list(facts.exact)
    array = completions.with_name("rows.json")
    array.write_text(json.dumps(rows, indent=1))
    again = looked_at(array)
    assert again.kind == "one JSON array" and list(again.exact) == list(facts.exact)


def test_rows_that_training_refuses_are_counted_and_the_next_ones_follow(tmp_path):
    good = {"prompt": "a", "completion": "b"}
    bad = [{"prompt": 3, "completion": "x"}, "{", {"text": "x"}, {"prompt": "a"}, "[1]"]
    path = lines(tmp_path / "rows.jsonl", [good, *bad, good])
    facts = looked_at(path)
    assert facts.rows == 2 and facts.refused == 5 and list(facts.places) == [1, 7]
    for k, message in enumerate(facts.errors, 2):
        assert message.startswith(f"{path}:{k}: ")
        with pytest.raises(DataError) as raised:
            jsonl.read(
                lines(tmp_path / "one.jsonl", [good, bad[k - 2]]),
                ByteTokenizer(),
                9,
                vocab_size=256,
            )
        assert str(raised.value).split(": ", 1)[1] == message.split(": ", 1)[1]


class Strict(Characters):
    """Refuses conversations that begin with another role than user, as some templates do."""

    def encode_talks(self, talks):
        for talk in talks:
            if talk.messages[0]["role"] != "user":
                raise GGUFError("the template refuses the conversation")
            yield from super().encode_talks([talk])


def test_conversations_that_a_template_refuses_do_not_end_it(tmp_path):
    def talk(role, text):
        return {
            "messages": [{"role": role, "content": text}, {"role": "assistant", "content": "b"}]
        }

    rows = [talk("system" if k in (0, 4, 5, 9) else "user", str(k)) for k in range(10)]
    path = lines(tmp_path / "rows.jsonl", rows)
    facts = survey(path, Strict(), Characters.vocab_size)
    assert facts.refused == 4 and list(facts.places) == [2, 3, 4, 7, 8, 9]
    assert facts.errors[1] == f"{path}:5: the template refuses the conversation"
    pairs = [
        {
            "prompt": row["messages"][:1],
            "chosen": row["messages"][1:],
            "rejected": [{"role": "assistant", "content": "c"}],
        }
        for row in rows
    ]
    facts = survey(lines(path, pairs), Strict(), Characters.vocab_size)
    assert facts.rows == 6 and len(facts.lengths) == 12 and facts.refused == 4


def test_bad_rows_among_conversations_are_in_their_order_and_as_training_says_them(tmp_path):
    def talk(k):
        return {"messages": [{"role": "user", "content": f"{k}"}]}

    for bad in (1, 150):  # fewer and more than wait for the rows around them
        rows = [talk(0), *[{"text": "x"}] * bad, talk(1), talk(2), *[{"messages": []}] * bad]
        path = lines(tmp_path / "rows.jsonl", rows)
        reader = Reader(Strict(), ReadOptions(seq=99, vocab_size=Characters.vocab_size))
        examples = list(reader.rows(path, reader.maker(set())))
        assert [row.place for row in examples] == list(range(1, len(rows) + 1))
        assert [row.error is None for row in examples] == [
            row in map(talk, range(3)) for row in rows
        ]
        assert looked_at(path).errors[0] == str(examples[1].error)
        with pytest.raises(DataError) as raised:
            jsonl.read(path, Strict(), 99, vocab_size=Characters.vocab_size)
        assert str(raised.value) == looked_at(path).errors[0]


def test_pairs_are_rows_of_two_sequences(tmp_path):
    rows = [{"prompt": "?", "chosen": "x" * k, "rejected": "y"} for k in (2, 3, 2)]
    path = lines(tmp_path / "p.jsonl", [*rows, {"prompt": "?", "chosen": "y", "rejected": "y"}])
    facts = looked_at(path)
    assert facts.rows == 3 and list(facts.lengths) == [3, 2, 4, 2, 3, 2]
    assert repeated(facts.exact) == (1, (2, 0))
    assert "chosen and rejected are equal" in facts.errors[0]
    lines(path, rows)
    assert len(read_preferences(path, ByteTokenizer(), 9, vocab_size=256).train) == 3


def test_repeats_by_the_letter_and_by_words(tmp_path):
    texts = ["The moon, it eats.", "the  moon it eats", "THE MOON", "The moon, it eats.", "b"]
    facts = looked_at(lines(tmp_path / "t.jsonl", [{"text": text} for text in texts]))
    assert repeated(facts.exact) == (1, (3, 0))
    assert repeated(facts.alike) == (2, (1, 0))
    assert repeated([]) == (0, None)


def test_common_rows_and_prompts():
    assert common([5, 0, 7, 9], [9, 0, 7]) == (2, (2, 2))
    assert common([0], [0]) == (0, None)


def test_parts_of_characters_and_unknown_tokens(tmp_path):
    path = lines(tmp_path / "t.jsonl", [{"text": "aé🙂b"}, {"text": "é?"}])
    fragments = np.arange(256) >= 128
    pieces = {k: bytes([k]) for k in range(128, 256)}
    vocabulary = Vocabulary(ord("?"), fragments, pieces, np.arange(256) == ord("b"))
    facts = survey(path, ByteTokenizer(), 256, vocabulary=vocabulary)
    assert (facts.tokens, facts.unknown, facts.fragments) == (11, 1, 8)
    assert facts.odd == {"é": 2, "🙂": 1}
    row = [*"aé🙂b".encode()]
    assert {id: ids.tolist() for id, ids in facts.special.items()} == {ord("b"): row}


def test_a_text_s_long_lines(tmp_path):
    path = tmp_path / "t.txt"
    rows = [f"line {k} of the text, which is long enough to count" for k in range(50)]
    path.write_text("\n".join(["short", *rows, "short", rows[3], "\n"]))
    facts = survey_text(path, Characters())
    assert facts.rows == 51 and facts.tokens == len(path.read_text())
    before, held = held_lines(facts)
    assert before == list(range(len(before))) and 4 <= len(held) <= 6
    alike = np.array(facts.alike)
    assert common(alike[held], alike[before]) == (1, (len(held) - 1, 3))
    assert facts.where(50) == f"{path}:53"
    facts.lengths.append(2**31)  # where a line ends in a text of more than 2 GB
    assert facts.lengths[-1] == 2**31
