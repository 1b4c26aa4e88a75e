"""Completions: stop texts, what ends one, and what was read before."""

import pytest
from fake_recipe import FakeDecoder, FakeRecipe

from toynn.errors import ConfigError
from toynn.formats.tokenizer import ByteTokenizer
from toynn.generation.completion import Stops, complete, complete_all
from toynn.generation.drawing import Reader, generate


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "stopped_by"),
    [
        ([], ["ab", "c"], ["ab", "c"], False),
        (["bc"], ["ab", "c", "d"], ["a", "", ""], True),
        (["bc"], ["ab", "d"], ["a", "bd"], False),
        (["bc"], ["abc"], ["a"], True),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""], True),
        (["xyz", "b"], ["x", "y", "b"], ["", "", "xy"], True),
        (["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", ""], True),
    ],
)
def test_what_may_become_a_stop_text_is_held_back(stops, pieces, shown, stopped_by):
    stop = Stops(stops)
    assert [stop.push(piece) for piece in pieces] == shown
    assert stop.found == stopped_by


def test_what_was_held_back_comes_in_the_end():
    stop = Stops(["abc"])
    assert stop.push("xab") == "x" and stop.end() == "ab" and stop.end() == ""


@pytest.mark.parametrize("bad", ["ab", [""], ["a", 3]])
def test_bad_stop_texts(bad):
    with pytest.raises(ConfigError, match="stop must be a list of non-empty texts"):
        Stops(bad)


@pytest.fixture
def engine():
    """After byte t comes t + 1."""
    engine = FakeRecipe(vocab=256, context=8)
    engine.table[:] = -30
    for t in range(256):
        engine.table[t, (t + 1) % 256] = 2
    return engine


def test_what_ends_a_completion(engine):
    tokenizer = ByteTokenizer()
    completion = complete(engine, tokenizer, "ab", 4, temperature=0)
    assert (completion.text, completion.ended, completion.prompt_tokens) == ("cdef", "length", 2)
    completion = complete(engine, tokenizer, "ab", 9, temperature=0, stop=["x", "ef"])
    assert (completion.text, completion.ended) == ("cd", "stop")
    assert "".join(chr(each.id) for each in completion.drawn) == "cdef"
    tokenizer.eog = frozenset(b"e")
    completion = complete(engine, tokenizer, [97], 9, temperature=0, log_probabilities=1)
    assert (completion.text, completion.ended) == ("bcd", "token")
    assert all(each.likeliest[0] == (each.id, each.log_probability) for each in completion.drawn)


def test_ctrl_c_is_an_error_unless_it_is_not(engine):
    def stopped(text):
        if text == "d":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        complete(engine, ByteTokenizer(), "ab", 4, temperature=0, show=stopped)
    options = {"temperature": 0, "show": stopped, "interruptible": True}
    completion = complete(engine, ByteTokenizer(), "ab", 4, **options)
    assert (completion.text, completion.ended) == ("cd", "interrupt")


def test_a_reader_reads_what_is_new(engine):
    reads = []

    class Watched(FakeDecoder):
        def read(self, ids):
            reads.append((self.past, list(ids)))
            return super().read(ids)

    engine.decoder = lambda: Watched(engine)
    reader = Reader(engine)
    assert list(generate(engine, [1, 2], 2, temperature=0, reader=reader)) == [3, 4]
    assert list(generate(engine, [1, 2, 3, 4, 9], 1, temperature=0, reader=reader)) == [10]
    assert list(generate(engine, [1, 2, 5], 1, temperature=0, reader=reader)) == [6]
    assert list(generate(engine, [1, 2, 5], 1, temperature=0, reader=reader)) == [6]
    assert reads == [(0, [1, 2]), (2, [3]), (3, [4, 9]), (0, [1, 2, 5]), (0, [1, 2, 5])]


class FakeBatch:
    """Several decoders."""

    def __init__(self, engine, batch):
        self.engine = engine
        self.decoders = [FakeDecoder(engine) for _ in range(batch)]
        self.most = 0

    def past(self, number):
        return self.decoders[number].past

    def rewind(self, number):
        self.decoders[number] = FakeDecoder(self.engine)

    def copy(self, source, target):
        self.decoders[target] = FakeDecoder(self.engine)
        self.decoders[target].past = self.decoders[source].past

    def read(self, pieces):
        self.most = max(self.most, len(pieces))
        return {number: self.decoders[number].read(ids) for number, ids in pieces.items()}


@pytest.fixture
def together(engine):
    """An engine that reads several sequences; its batches so far."""
    batches, engine.rooms = [], (rooms := [])

    def batch_decoder(batch, room):
        rooms.append(room)
        batches.append(FakeBatch(engine, batch))
        return batches[-1]

    engine.batch_decoder = batch_decoder
    return batches


@pytest.mark.parametrize("batch", [1, 2, 3, 9])
def test_many_are_what_each_alone_is_in_their_order(engine, together, batch):
    prompts = ["ab", "abcde", "f", "abcdefgh", "zzzzzz", [120]]
    options = {"temperature": 1.3, "seed": 3, "stop": ["q"], "log_probabilities": 1}
    alone = [complete(engine, ByteTokenizer(), ids, 11, **options) for ids in prompts]
    assert list(complete_all(engine, ByteTokenizer(), prompts, 11, batch=batch, **options)) == alone
    assert together[0].most == min(batch, len(prompts))
    assert list(complete_all(engine, ByteTokenizer(), [])) == []
    nothing = complete_all(engine, ByteTokenizer(), ["a", "b"], 0)
    assert [(each.text, each.ended) for each in nothing] == [("", "length")] * 2


@pytest.mark.parametrize("batch", [1, 4, 9])
def test_several_of_each_prompt_have_seeds_of_their_own(engine, together, batch):
    options = {"temperature": 20, "max_tokens": 11, "log_probabilities": 1}
    alone = [
        complete(engine, ByteTokenizer(), ids, seed=seed, **options)
        for ids in ("ab", "f")
        for seed in (3, 4, 5)
    ]
    many = complete_all(
        engine, ByteTokenizer(), ["ab", "f"], batch=batch, samples=3, seed=3, **options
    )
    assert list(many) == alone
    assert len({completion.text for completion in alone[:3]}) == 3


def test_calls_of_about_a_length_need_the_same_room(engine, together):
    engine.context = 100
    for length, most in ((3, 3), (4, 4), (5, 5), (5, 15), (40, 20), (60, 30), (90, 90)):
        list(complete_all(engine, ByteTokenizer(), ["a", "a" * length], most))
    assert engine.rooms == [8, 8, 16, 32, 64, 100, 100]


def test_bad_batches_are_refused_before_anything_is_read(engine, together):
    for prompts, options, message in (
        (["a"], {"batch": 0}, "batch must be 1 or more; got 0"),
        (["a"], {"samples": 0}, "samples must be 1 or more; got 0"),
        (["a", ""], {}, "the prompt is empty"),
        (["a"], {"temperature": -1}, "temperature"),
    ):
        with pytest.raises(ConfigError, match=message):
            complete_all(engine, ByteTokenizer(), prompts, **options)
    assert not together


def test_ctrl_c_ends_those_that_have_begun(engine, together, monkeypatch):
    reads = []

    def read(self, pieces, whole=FakeBatch.read):
        reads.append(pieces)
        if len(reads) == 3:
            raise KeyboardInterrupt
        return whole(self, pieces)

    monkeypatch.setattr(FakeBatch, "read", read)
    options = {"temperature": 0, "batch": 2, "max_tokens": 5}
    with pytest.raises(KeyboardInterrupt):
        list(complete_all(engine, ByteTokenizer(), ["a", "b", "c"], **options))
    reads.clear()
    ended = complete_all(engine, ByteTokenizer(), ["a", "b", "c"], interruptible=True, **options)
    assert [(each.text, each.ended) for each in ended] == [("bc", "interrupt"), ("cd", "interrupt")]
