"""Completions: stop texts, what ends one, and what was read before."""

import pytest
from fake_recipe import FakeDecoder, FakeEngine

from toynn.completion import Stops, complete
from toynn.errors import ConfigError
from toynn.formats.tokenizer import ByteTokenizer
from toynn.generate import Reader, generate


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "found"),
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
def test_what_may_become_a_stop_text_is_held_back(stops, pieces, shown, found):
    stop = Stops(stops)
    assert [stop.push(piece) for piece in pieces] == shown
    assert stop.found == found


def test_what_was_held_back_comes_in_the_end():
    stop = Stops(["abc"])
    assert stop.push("xab") == "x" and stop.end() == "ab" and stop.end() == ""


@pytest.mark.parametrize("bad", ["ab", [""], ["a", 3]])
def test_bad_stop_texts(bad):
    with pytest.raises(ConfigError, match="stop texts"):
        Stops(bad)


@pytest.fixture
def engine():
    """After byte t comes t + 1."""
    engine = FakeEngine(vocab=256, context=8)
    engine.table[:] = -30
    for t in range(256):
        engine.table[t, (t + 1) % 256] = 2
    return engine


def test_what_ends_a_completion(engine):
    tokenizer = ByteTokenizer()
    found = complete(engine, tokenizer, "ab", 4, temperature=0)
    assert (found.text, found.ended, found.prompt_tokens) == ("cdef", "length", 2)
    found = complete(engine, tokenizer, "ab", 9, temperature=0, stop=["x", "ef"])
    assert (found.text, found.ended) == ("cd", "stop")
    assert "".join(chr(each.id) for each in found.drawn) == "cdef"
    tokenizer.eog = frozenset(b"e")
    found = complete(engine, tokenizer, [97], 9, temperature=0, log_probabilities=1)
    assert (found.text, found.ended) == ("bcd", "token")
    assert all(each.likeliest[0] == (each.id, each.log_probability) for each in found.drawn)


def test_ctrl_c_is_an_error_unless_it_is_not(engine):
    def stopped(text):
        if text == "d":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        complete(engine, ByteTokenizer(), "ab", 4, temperature=0, show=stopped)
    given = {"temperature": 0, "show": stopped, "interruptible": True}
    found = complete(engine, ByteTokenizer(), "ab", 4, **given)
    assert (found.text, found.ended) == ("cd", "interrupt")


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
