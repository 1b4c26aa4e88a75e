"""Reward functions: their process, what they may return, and what goes wrong in them."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hang import HANG

from toynn.errors import ConfigError, RewardError, flags_stay
from toynn.rewards import Rewards, child, functions

PROMPTS = ["1 + 1 =", "1 + 2 ="]
SAMPLES = [" 2", " 4"]
FIRST = "import os\nfor_later = []\ndef f(prompts, completions, **columns):\n"


def file(folder, body, name="rewards.py"):
    """Write a function of this body, and return its spec."""
    path = folder / name
    path.write_text(FIRST + "".join(f"    {line}\n" for line in body.splitlines()))
    return f"{path}:f"


def score(rewards, **columns):
    return rewards.score(PROMPTS, SAMPLES, columns)


@pytest.fixture(autouse=True)
def flags():
    with flags_stay():
        yield


@pytest.fixture
def told():
    return []


@pytest.fixture
def scored(tmp_path, told):
    """Return what a function of some lines gives, here and in a process."""

    def scored(body, in_process=False):
        with Rewards([file(tmp_path, body)], in_process=in_process, tell=told.append) as rewards:
            return score(rewards, answer=["2", "3"])[:, 0].tolist()

    return scored


@pytest.mark.parametrize("in_process", [False, True])
def test_a_function_gets_prompts_completions_and_columns(scored, in_process):
    body = (
        "return [len(prompts[i]) + int(completions[i]) / int(columns['answer'][i]) for i in (0, 1)]"
    )
    assert scored(body, in_process) == [8, 7 + 4 / 3]


def test_a_column_that_is_missing_is_an_error(scored, tmp_path):
    (tmp_path / "r.py").write_text("def f(completions, result, **columns): return [1, 2]")
    with Rewards([f"{tmp_path}/r.py:f"]) as rewards:
        with pytest.raises(RewardError, match=r"TypeError: f\(\) missing .*'result'"):
            score(rewards, answer=[1, 2])
        assert score(rewards, result=[1, 2]).tolist() == [[1], [2]]


def test_conversations_arrive_as_they_are(tmp_path):
    body = "return [prompts[0][0]['content'] == 'é\\n\\ud800' and len(completions[0])] * 1"
    with Rewards([file(tmp_path, body)]) as rewards:
        message = {"role": "user", "content": "é\n\ud800"}
        assert rewards.score([[message]], [[message, message]], {}).tolist() == [[2]]
        assert rewards.score([], [], {}).shape == (0, 1)


def test_none_is_a_missing_reward(tmp_path, told):
    specs = [file(tmp_path, "return [None, 1]"), file(tmp_path, "return (None, 2.5)", "b.py")]
    with Rewards(specs, weights=[1, -2], tell=told.append) as rewards:
        scores = score(rewards)
        assert np.array_equal(scores, [[math.nan, math.nan], [1, 2.5]], equal_nan=True)
        assert rewards.missing == 2 and told == []
        assert np.array_equal(rewards.totals(scores), [math.nan, -4], equal_nan=True)
        assert rewards.totals(np.array([[math.nan, 3.0]])).tolist() == [-6]
        assert rewards.names == ["f", "f_2"]


WRONG = {
    "[1]": "expected 2 numbers, one for each completion; got 1",
    "[1, 2, 3]": "expected 2 numbers, one for each completion; got more",
    "(1 for _ in iter(int, 1))": "expected 2 numbers, one for each completion; got more",
    "None": "expected a list of 2 numbers; got NoneType",
    "3.0": "expected a list of 2 numbers; got float",
    "'12'": "expected a list of 2 numbers; got str",
    "{0: 1, 1: 2}": "expected a list of 2 numbers; got dict",
    "{0, 1}": "expected a list of 2 numbers; got set",
    "[1, float('nan')]": "expected a finite number, or None, for completion 1; got nan",
    "[-float('inf'), 1]": "expected a finite number, or None, for completion 0; got -inf",
    "[1, '1']": "expected a finite number, or None, for completion 1; got '1'",
    "[1, [1]]": r"expected a finite number, or None, for completion 1; got \[1\]",
    "[1, 1j]": "expected a finite number, or None, for completion 1; got 1j",
    "[1, 10 ** 400]": "expected a finite number, or None, for completion 1; got 1000",
}


@pytest.mark.parametrize("value", WRONG)
def test_what_a_function_may_not_return(scored, value, tmp_path):
    with pytest.raises(RewardError, match=rf"rewards.py:f: {WRONG[value]}"):
        scored(f"return {value}")


@pytest.mark.parametrize("after", [False, True])
def test_wrong_values_are_errors_at_any_time(tmp_path, after):
    with Rewards(
        [file(tmp_path, "for_later.append(1)\nreturn [1] * (3 - len(for_later))")]
    ) as rewards:
        score(rewards)
        with pytest.raises(RewardError, match="got 1"):
            score(rewards)
        with pytest.raises(RewardError, match="got 0"):
            score(rewards)


def test_numbers_of_numpy_and_others(scored):
    assert scored("import numpy\nreturn numpy.array([1, 0.1], numpy.float32)")[1] == np.float32(0.1)
    assert scored("import fractions\nreturn iter([True, fractions.Fraction(1, 4)])") == [1, 0.25]


@pytest.mark.parametrize("in_process", [False, True])
def test_an_exception_is_an_error_until_the_function_has_returned(tmp_path, told, in_process):
    body = (
        "for_later.append(1)\nif 'fine' not in columns:\n    raise KeyError('gone')\nreturn [1, 2]"
    )
    with Rewards([file(tmp_path, body)], in_process=in_process, tell=told.append) as rewards:
        with pytest.raises(RewardError, match=r"rewards.py:f: line 6: KeyError: 'gone'$") as caught:
            score(rewards)
        assert isinstance(caught.value.__cause__, KeyError) == in_process
        assert score(rewards, fine=[1, 1]).tolist() == [[1], [2]]
        assert np.isnan(score(rewards)).all() and rewards.missing == 2
        assert len(told) == 1 and "line 6: KeyError: 'gone'; 2 rewards are missing" in told[0]


ENDS = {
    "raise SystemExit(3)": "line 4: SystemExit: 3",
    "os._exit(3)": r"its process ended \(exit status 3\)",
    "import ctypes; ctypes.string_at(0)": r"its process ended \(exit status ",
    "os.kill(os.getpid(), 9)": "its process ended .*killed, perhaps since memory ran out",
    "raise MemoryError": "line 4: MemoryError$",
    "for_later.append(bytearray(1 << 62))": "line 4: (MemoryError|OverflowError)",
    "f(prompts, completions, **columns)": "line 4: RecursionError",
    "os.closerange(3, 99); os._exit(0)": r"its process ended \(exit status 0\)",
    "raise KeyboardInterrupt": r"its process ended \(exit status ",
}


@pytest.mark.parametrize(
    "line", [each for each in ENDS if "kill" not in each or os.name == "posix"]
)
def test_a_process_that_ends_starts_again(tmp_path, told, capfd, line):
    body = f"if 'fine' not in columns: {line}\nreturn [os.getpid(), 2]"
    with Rewards([file(tmp_path, body)], tell=told.append) as rewards:
        with pytest.raises(RewardError, match=rf"rewards.py:f: {ENDS[line]}"):
            score(rewards)
        first = score(rewards, fine=[1, 1])
        assert np.isnan(score(rewards)).all() and len(told) == 1
        again = score(rewards, fine=[1, 1])
        assert (first != again).any() == ("process" in ENDS[line]) and rewards.missing == 2


@pytest.mark.parametrize(
    "line",
    [
        "import time; time.sleep(99)",
        "import re; re.search('(a+)+$', 'a' * 99 + 'b')",  # holds the interpreter's lock
        "hasattr(os, 'fork') and os.fork(); __import__('time').sleep(99)",  # both have the pipe
    ],
)
def test_a_function_that_hangs_is_ended_and_its_rewards_are_missing(
    tmp_path, told, capfd, monkeypatch, line
):
    monkeypatch.setattr(functions, "GRACE", 1)
    body = f"if 'hang' in columns:\n    {line}\nreturn [1, 2]"
    with Rewards([file(tmp_path, body)], timeout=0.5, tell=told.append) as rewards:
        assert np.isnan(score(rewards, hang=[1, 1])).all()
        wanted = "took more than 0.5 seconds (--reward-timeout); 2 rewards are missing"
        assert len(told) == 1 and wanted in told[0] and rewards.missing == 2
        assert 'rewards.py", line 5 in f' in capfd.readouterr().err
        rewards._timeout = 60
        assert score(rewards).tolist() == [[1], [2]]


def test_a_function_that_only_hangs_is_an_error(tmp_path, told, capfd):
    with Rewards([file(tmp_path, "while True: pass")], timeout=0.1, tell=told.append) as rewards:
        assert np.isnan(score(rewards)).all() and np.isnan(score(rewards)).all()
        with pytest.raises(
            RewardError, match=r"more than 0.1 seconds \(--reward-timeout\), 3 times"
        ):
            score(rewards)
        assert len(told) == 2


def test_a_function_that_holds_off_its_end_is_killed(tmp_path, told, monkeypatch):
    monkeypatch.setattr(functions, "GRACE", 0.1)
    body = "import faulthandler, time\nfaulthandler.cancel_dump_traceback_later()\ntime.sleep(99)"
    with Rewards([file(tmp_path, body)], timeout=0.1, tell=told.append) as rewards:
        assert np.isnan(score(rewards)).all() and "took more than 0.1 seconds" in told[0]


def test_a_process_that_waits_for_requests_has_no_limit(tmp_path):
    with Rewards([file(tmp_path, "return [1, 2]")], timeout=0.5) as rewards:
        score(rewards)
        with pytest.raises(subprocess.TimeoutExpired):
            rewards._process._running.wait(0.8)


def test_what_a_function_prints_goes_to_stderr(tmp_path, capfd):
    body = """print('{"values": [7, 7]}', flush=True)
os.write(1, b'[3, 3]\\n')
os.system('echo from a shell')
print("\\ud800 é", end="")
assert not os.read(0, 1)
return [1, 2]"""
    with Rewards([file(tmp_path, body)]) as rewards:
        assert score(rewards).tolist() == score(rewards).tolist() == [[1], [2]]
    out, err = capfd.readouterr()
    assert out == ""
    assert '{"values": [7, 7]}\n[3, 3]\nfrom a shell\n\\ud800 é' in err.replace("\r", "")


def test_the_text_that_was_hashed_runs(tmp_path, told):
    """Also in a process that starts again; and in a debugger, by a new Rewards, the new text."""
    spec = file(tmp_path, "if 'end' in columns: os._exit(1)\nreturn [1, 1]")
    path = Path(spec[:-2])
    with Rewards([spec], tell=told.append) as rewards:
        assert rewards.identity == [
            [str(path.resolve()) + ":f", hashlib.sha256(path.read_bytes()).hexdigest()]
        ]
        assert json.loads(json.dumps(rewards.identity)) == rewards.identity
        assert score(rewards).tolist() == [[1], [1]]
        file(tmp_path, "return [2, 2]")
        assert np.isnan(score(rewards, end=[1, 1])).all()
        assert score(rewards).tolist() == [[1], [1]]
    for value in (2, 3):
        file(tmp_path, f"return [{value}, {value}]")
        with Rewards([spec], in_process=True) as rewards:
            assert score(rewards).tolist() == [[value], [value]]


def test_a_file_runs_once_and_finds_its_neighbours(tmp_path):
    (tmp_path / "neighbour.py").write_text("import json\nworth = [3, 4]\n")
    (tmp_path / "two.py").write_bytes(
        b"# coding: latin-1\nfrom __future__ import annotations\n"
        b"from dataclasses import dataclass\n"
        b"from neighbour import worth\n@dataclass\nclass One:\n    x: int\n"
        b"assert __name__ != '__main__'\nworth = list(worth)\n"
        b"def a(completions, **_): worth.append('\xe9'); return worth[:2]\n"
        b"def b(completions, **_): return [len(worth), len(worth[-1])]\n"
    )
    with Rewards([f"{tmp_path}/two.py:a", f"{tmp_path}/two.py:b"]) as rewards:
        assert score(rewards).tolist() == [[3, 3], [4, 1]]


def test_values_do_not_change_in_the_parent(tmp_path):
    with Rewards(
        [file(tmp_path, "completions.clear()\nreturn [1, 2]")], in_process=True
    ) as rewards:
        samples = list(SAMPLES)
        rewards.score(PROMPTS, samples, {})
        assert samples == SAMPLES


SPECS = {
    "rewards": r"--reward rewards: expected FILE.py:FUNCTION, or exact\[:COLUMN\], number",
    "rewards.py:": "expected FILE.py:FUNCTION",
    ":f": "expected FILE.py:FUNCTION",
    "C:\\rewards.py": "expected FILE.py:FUNCTION",
    "none.py:f": "--reward none.py:f: none.py cannot be read: ",
    ".:f": "cannot be read",
    "nul.py:f": "cannot be read",
    "syntax.py:f": "--reward syntax.py:f: SyntaxError: .*syntax.py, line 2",
    "raises.py:f": "--reward raises.py:f: line 2: ZeroDivisionError: division by zero",
    "ends.py:f": r"--reward ends.py:f: its process ended \(exit status 4\)",
    "fine.py:g": "--reward fine.py:g: LookupError: the file has no function g",
    "fine.py:x": "LookupError: the file has no function x",
    "regex": r"--reward regex: .*missing 1 required.*; expected regex:PATTERN",
    "regex:(": "--reward regex:.: .*expected regex:PATTERN",
    "length:many": "--reward length:many: .*expected length:CHARACTERS",
    "length:0": "--reward length:0: .*expected a number of characters > 0",
    "length:nan": "expected a number of characters > 0",
    "json:none.json": "--reward json:none.json: none.json cannot be read",
}


@pytest.mark.parametrize("spec", SPECS)
def test_specs_that_cannot_be(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "nul.py": b"# coding: nothing\n",
        "syntax.py": b"\ndef f(:\n",
        "raises.py": b"x = 0\n1 / x\n",
        "ends.py": b"import os\nos._exit(4)\n",
        "fine.py": b"x = 1\ndef f(completions, **_): return [1, 2]\n",
    }.items():
        Path(name).write_bytes(text)
    with pytest.raises(ConfigError, match=SPECS[spec]):
        Rewards(["fine.py:f", spec])


def test_weights_times_and_values_that_cannot_be(tmp_path):
    fine = file(tmp_path, "return [1, 2]")
    for weights in ([1, 2], [math.nan], []):
        with pytest.raises(
            ConfigError, match=r"--reward-weights: expected a finite number for each"
        ):
            Rewards([fine], weights=weights)
    with pytest.raises(ConfigError, match=r"--reward-weights: .* for 0: none"):
        Rewards([], weights=[1])
    none = Rewards([])
    assert none.score(["a"], ["b"], {}).shape == (1, 0) and np.isnan(none.totals(np.ones((1, 0))))
    for seconds in (0, -1, math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"--reward-timeout .*: expected seconds"):
            Rewards([fine], timeout=seconds)
    with (
        Rewards([fine]) as rewards,
        pytest.raises(RewardError, match="2 values in prompts, answer"),
    ):
        rewards.score(["1"], SAMPLES, {"answer": [1], "fine": [1, 2]})


@pytest.mark.parametrize("in_process", [False, True])
def test_columns_that_json_does_not_have_are_left_out(tmp_path, told, in_process):
    with Rewards(
        [file(tmp_path, "return [len(columns), 'b' in columns]")],
        in_process=in_process,
        tell=told.append,
    ) as rewards:
        for raw in ([b"", b""], [b"", "1"], ["1", "2"]):
            assert score(rewards, a=[1, 2], b=raw).tolist() == [[1], [0]]
        assert len(told) == 1
        assert "column 'b' is left out" in told[0] and "Object of type bytes is not" in told[0]
        assert rewards.missing == 0
        with pytest.raises(RewardError, match=r"expected 2 values in c$"):
            score(rewards, c=[1])
        for name in ("prompts", "completions"):
            with pytest.raises(
                RewardError, match=f"a column is called '{name}', as an argument is"
            ):
                rewards.score(PROMPTS, SAMPLES, {name: [1, 2]})


def test_a_process_ends_with_its_rewards(tmp_path, monkeypatch):
    body = "import threading, time, atexit\natexit.register(print, 'bye', file=open('bye', 'w'))\n"
    body += "open('bye')\nreturn [os.getpid(), 0]"
    monkeypatch.chdir(tmp_path)
    with Rewards([file(tmp_path, body)]) as rewards:
        score(rewards)
        process = rewards._process._running
    assert process.poll() == 0 and Path("bye").read_text() == "bye\n"
    rewards.close()


def test_a_process_ends_with_its_parent_in_spite_of_its_threads():
    """The parent may be killed, so that nobody kills the process."""
    source = "import threading\nthreading.Thread(target=threading.Event().wait).start()\nf = print"
    loaded = {"path": "r.py", "source": source, "name": "f", "arguments": None}
    request = json.dumps({"path": sys.path, "load": loaded, "seconds": 60}).encode() + b"\n"
    code = "from toynn.rewards import child; child.LAST = 0.2; child.main()"
    done = subprocess.run(
        [sys.executable, "-c", code], input=request, capture_output=True, timeout=HANG
    )
    assert done.stdout == b"{}\n" and done.returncode == 1


def test_a_process_whose_parent_was_killed_says_nothing():
    process = subprocess.Popen(
        [sys.executable, child.__file__], stdin=-1, stdout=-1, stderr=-1, text=True
    )
    process.stdout.close()
    request = {"index": 0, "values": {"completions": []}, "seconds": 60}
    loaded = {"path": "r.py", "source": "f = len", "name": "f", "arguments": None}
    said = [{"path": sys.path, "load": loaded, "seconds": 60}, request]
    with process:
        process.stdin.write("".join(json.dumps(each) + "\n" for each in said))
        process.stdin.close()
        assert process.stderr.read() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a score for its memory killer")
def test_memory_that_ends_ends_the_functions_first(scored):
    assert scored("return [int(open('/proc/self/oom_score_adj').read()), 0]") == [1000, 0]


def test_the_page_of_rewards_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
    file, program = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    Path("rewards.py").write_text(file)
    exec(program, {})
    assert f"    {capsys.readouterr().out}" in page
    typed = re.findall(
        r"`([a-z]+)(?::[^`]*)?`", re.search(r"^\| spec.*?\n\n", page, re.M | re.S)[0]
    )
    assert set(functions.READY) <= set(typed)
