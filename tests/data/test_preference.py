"""Preferences from lines of JSON: forms, what of them counts, and one named error for each bad."""

import json

import numpy as np
import pytest

from toynn.data.batch import IGNORED
from toynn.data.preference import read_preferences
from toynn.errors import DataError
from toynn.formats.tokenizer import ByteTokenizer


class Chatty(ByteTokenizer):
    """Writes <role>text; for each message; what the assistant says has loss."""

    def encode_talks(self, talks):
        return (self.encode_turns(*talk) for talk in talks)

    def encode_turns(self, messages, tools=None):
        parts = []
        for message in messages:
            parts.append((list(f"<{message['role']}>".encode()), False))
            parts.append((list(f"{message['content']};".encode()), message["role"] == "assistant"))
        return parts


def read(tmp_path, *rows, seq=40, **options):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return read_preferences(path, Chatty(), seq, vocab_size=256, **{"holdout": 1} | options)


def pair(n=0, **more):
    return {"prompt": f"say {n}: ", "chosen": "good", "rejected": "bad"} | more


def spoken(batch):
    """Of each sequence: what is read, and what of it counts as prompt and as completion."""
    texts, counting = [], np.flatnonzero(batch.labels != IGNORED)
    starts = [*np.flatnonzero(batch.segments == np.arange(len(batch.inputs))), len(batch.inputs)]
    for k in range(len(batch.bounds) // 2):
        a, b, c = batch.bounds[2 * k : 2 * k + 3]
        text = bytes(batch.inputs[starts[k] : starts[k + 1]].tolist()).decode()
        parts = [bytes(batch.labels[counting[i:j]].tolist()).decode() for i, j in ((a, b), (b, c))]
        texts.append((text, *parts))
    return texts


def everything(data, whole=False):
    part = data.train
    return spoken(part.batch(range(len(part)), 1000))


def test_pairs(tmp_path):
    data = read(tmp_path, *[pair() for _ in range(3)])
    assert (len(data.train), len(data.valid)) == (2, 1)
    assert everything(data)[:2] == [("say 0: goo", "", "good"), ("say 0: ba", "", "bad")]
    assert "3 pairs" in data.notes[0]


def test_orpo_learns_the_chosen_from_its_prompt_on(tmp_path):
    data = read(tmp_path, pair(), pair(), loss="orpo")
    assert everything(data) == [("say 0: goo", "ay 0: ", "good"), ("say 0: ba", "", "bad")]


def test_labelled_completions_and_pairs_for_kto(tmp_path):
    rows = [{"prompt": "say: ", "completion": c, "label": c == "yes"} for c in ("yes", "no") * 2]
    data = read(tmp_path, *rows, loss="kto")
    assert {
        (text, bool(w)) for (text, *_), w in zip(everything(data), data.train.wanted, strict=True)
    } == {
        ("say: ye", True),
        ("say: n", False),
    }
    data = read(tmp_path, pair(), pair(), loss="kto")
    assert data.train.wanted.sum() in (1, 2) and len(data.train) == 3


def test_messages(tmp_path):
    prompt = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    good, bad = ([{"role": "assistant", "content": text}] for text in ("d", "e"))
    explicit = {"prompt": prompt, "chosen": good, "rejected": bad}
    implicit = {"chosen": prompt + good, "rejected": prompt + bad}
    for row in (explicit, implicit):
        data = read(tmp_path, row, row, seq=80)
        begin = "<user>a;<assistant>b;<user>c;<assistant>"
        assert [text for text, *_ in everything(data)] == [f"{begin}d", f"{begin}e"]
        assert [completion for *_, completion in everything(data)] == ["d;", "e;"]
        assert data.chats


def test_what_is_too_long_is_cut_or_left_out_and_counted(tmp_path):
    long = pair(chosen="x" * 100)
    gone = pair(prompt="p" * 60)
    data = read(tmp_path, pair(), pair(), long, gone)
    assert "3 pairs" in data.notes[0]
    assert "1 cut to 40 tokens" in data.notes[0] and "1 dropped" in data.notes[0]


def test_batches_repeat_and_are_resumed(tmp_path):
    data = read(tmp_path, *[pair(n) for n in range(30)])
    batches, again = data.batches(2, 5), data.batches(2, 5)
    some = [next(batches) for _ in range(4)]
    state = batches.state
    for _ in range(4):
        next(again)
    rest = next(batches)
    other = data.batches(2, 0)
    other.state = state
    for one, two in zip(rest, next(other), strict=True):
        assert (one == two).all()
    assert max(batch.tokens for batch in some) <= some[0].room == 2 * 2 * data.seq
    assert sum(batch.rows for batch in data.valid_batches(1, 99)) == len(data.valid)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (pair(rejected="good"), "chosen and rejected are equal: such a pair has no gradient"),
        ({"promt": "a", "chosen": "b", "rejected": "c"}, "'promt': did you mean 'prompt'?"),
        (pair(score=3), "unknown field 'score': expected prompt, chosen and rejected"),
        ({"prompt": "a", "chosen": "b"}, "expected prompt, chosen and rejected, or"),
        ({"prompt": "a", "completion": "b", "label": True}, "dpo needs chosen and rejected"),
        ({"chosen": "a", "rejected": "b"}, "expected a prompt; only messages can do without"),
        (pair(chosen=""), "chosen: expected a text; got an empty one"),
        (pair(chosen=3), "chosen: expected a text; got a number"),
        (pair(prompt=[]), "chosen: expected messages, as the prompt is; got a text"),
        (pair(chosen=[{"role": "assistant", "content": "x"}]), "prompt: expected messages, as"),
        ("[1]", "expected an object"),
        ('{"prompt": }', "not JSON"),
    ],
)
def test_bad_lines_are_named(tmp_path, row, message):
    with pytest.raises(DataError, match=r"data\.jsonl:2: ") as error:
        read(tmp_path, pair(), row)
    assert message in str(error.value)


def test_mixed_forms_and_labels(tmp_path):
    labelled = {"prompt": "a", "completion": "b", "label": True}
    with pytest.raises(DataError, match=r"jsonl:2: expected completion and label, as line 1 has"):
        read(tmp_path, labelled, pair(), loss="kto")
    with pytest.raises(DataError, match=r"jsonl:1: label: expected true or false; got 1"):
        read(tmp_path, labelled | {"label": 1}, loss="kto")
    with pytest.raises(DataError, match="label: expected both true and false; all are wanted"):
        read(tmp_path, labelled, labelled, loss="kto")
    with pytest.raises(DataError, match="an example to train on and 1 to hold out; got 1 in all"):
        read(tmp_path, pair())
    alone = read(tmp_path, pair(), holdout=None)
    assert (len(alone.train), len(alone.valid), alone.valid_batches(1, 16)) == (1, 0, [])
    assert alone.prompt() == list(b"say 0: ")
    both = alone.with_valid(read(tmp_path, pair(1), pair(2), holdout=0), "other")
    assert (len(both.train), len(both.valid)) == (1, 2)
    assert len(both.valid_batches(1, 16)) and both.prompt() == list(b"say 1: ")
    with pytest.raises(DataError, match="per line; got none"):
        read(tmp_path, "")
