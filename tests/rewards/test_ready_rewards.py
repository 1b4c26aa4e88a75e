"""Ready rewards: what each gives, and the columns that it reads."""

import json
import sys
from pathlib import Path

import pytest

from toynn.errors import ConfigError, RewardError
from toynn.rewards import Rewards, functions, ready


def scores(spec, completions, **columns):
    prompts = ["?"] * len(completions)
    with Rewards([spec], in_process=True) as rewards:
        return rewards.score(prompts, completions, columns)[:, 0].tolist()


def test_all_ready_rewards_can_be_typed():
    assert sorted(functions.READY) == ready.__all__


def test_exact_answers():
    assert scores("exact", [" 12\n", "1 2", "12."], answer=[12, "12", "12 "]) == [1, 0, 0]
    assert scores("exact:color", ["red"], color=["red"], answer=["blue"]) == [1]
    said = [[{"role": "user", "content": "no"}, {"role": "assistant", "content": "yes "}]]
    assert scores("exact", said, answer=["yes"]) == [1]


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("First 3, so the answer is 1,234.50.", "1234.5", 1),
        ("it is 12.", 12, 1),
        ("5-3", 3, 1),
        ("= -3", -3, 1),
        ("= -.5", "-0.5", 1),
        ("3,4", 4, 1),
        ("1,2345", 2345, 1),
        ("$1,000,000", 1e6, 1),
        ("0.1", 0.1, 1),
        ("0.10000000000000001", 0.1, 0),
        ("a" * 9 + "7" * 9999, "7" * 9999, 1),
        ("", 3, 0),
        ("none", 3, 0),
        ("3 apples and 2 pears", 3, 0),
    ],
)
def test_numbers(text, answer, reward):
    assert scores("number", [text], answer=[answer]) == [reward]


def test_regular_expressions():
    assert scores(r"regex:^<a>\d+:\d</a>$", ["<a>12:3</a>\n", "<a>12:3</a>!", "x <a>1:2</a>"]) == [
        1,
        0,
        0,
    ]
    assert scores("regex:(?s)a.b", ["a\nb", "ab"]) == [1, 0]


def test_json():
    texts = ['{"a": [1, null]}', "[1,", "NaN", "[Infinity]", "", " 3 ", "[" * 99999]
    assert scores("json", texts) == [1, 0, 0, 0, 0, 1, 0]


def test_json_that_fits_a_schema(tmp_path):
    pytest.importorskip("jsonschema", reason="jsonschema, of the rewards extra, is not installed")
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "object", "required": ["a"]}))
    spec = f"json:{file}"
    assert scores(spec, ['{"a": 1}', "{}", "[]", "{"]) == [1, 0, 0, 0]
    with Rewards([spec]) as one:
        file.write_text(file.read_text() + " ")
        with Rewards([spec]) as other:
            assert one.identity[0][0] == other.identity[0][0] == f"json:{file.resolve()}"
            assert one.identity[0][1] != other.identity[0][1]
    for text, wrong in (('{"type": 3}', "SchemaError"), ("{", "JSONDecodeError")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=wrong):
            Rewards([spec])


def test_a_schema_without_its_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema.validators", None)
    Path(tmp_path, "schema.json").write_text("{}")
    with pytest.raises(ConfigError, match="a schema needs jsonschema: pip install jsonschema"):
        Rewards([f"json:{tmp_path}/schema.json"], in_process=True)


def test_lengths():
    assert scores("length:4", ["1234 ", "12", "", "123456", "1" * 99]) == [1, 0.5, 0, 0.5, 0]


def test_columns_that_are_missing():
    for columns, others in ({}, "none"), ({"b": [1], "c": [2]}, r"b, c\. The .*: exact:NAME"):
        with pytest.raises(
            RewardError, match=rf"number:a: .*no column 'a'; other columns: {others}$"
        ):
            scores("number:a", ["1"], **columns)
    with pytest.raises(
        RewardError, match=r"number: .*ValueError: column 'answer': 'x' has no number"
    ):
        scores("number", ["1"], answer=["x"])


def test_names_differ_and_files_have_hashes():
    with Rewards(["exact", "regex:a:b", "exact:b", "regex:c", "exact"]) as rewards:
        assert rewards.names == ["exact", "regex", "exact_2", "regex_2", "exact_3"]
        assert rewards.identity[:3] == [["exact", ""], ["regex:a:b", ""], ["exact:b", ""]]
        scores = rewards.score(["?"], ["c"], {"answer": ["c"], "b": ["d"]})
        assert scores.tolist() == [[1, 0, 0, 1, 1]] and rewards.totals(scores).tolist() == [3]
