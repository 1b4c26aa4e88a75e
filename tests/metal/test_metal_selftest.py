"""`toynn selftest --backend metal`: its report, and what is wrong in it."""

import metal_device
import numpy as np
import pytest

from toynn.cli import main
from toynn.testing import selftest

pytestmark = pytest.mark.skipif(metal_device.SKIP is not None, reason=str(metal_device.SKIP))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(selftest, "OPS", ["rmsnorm", "embedding"])
    recipes = {name: selftest._RECIPES[name] for name in ("GPT2", "LoRA over Q4_K")}
    monkeypatch.setattr(selftest, "_RECIPES", recipes)
    # Three processes compile all shaders; CI has them in a self-test of its own.
    fine = selftest.Found("killed and resumed", True, "as one that was not")
    monkeypatch.setattr(selftest, "resumed", lambda name: [fine])


def test_a_report(monkeypatch, capsys):
    speeds = selftest.speeds
    monkeypatch.setattr(selftest, "speeds", lambda name: speeds(name, 32, 16))
    assert main(["selftest", "--backend", "metal"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("```\ntoynn ") and out.endswith("\nall right\n```\n")
    for line in (
        "device family ",
        "  rmsnorm ",
        "  embedding ",
        "  GPT2 ",
        "  LoRA over Q4_K ",
        "  killed ",
    ):
        assert f"\n{line}" in out
    assert " calls" in out and "not read" not in out
    assert out.count(" GFLOP/s; cpu ") == 2 and out.count(" tokens/s; cpu ") == 1
    assert ", highest: " in out and ", medium: " in out


def test_what_is_wrong_is_said(monkeypatch, capsys):
    run = selftest.run

    def off(backend, op, call):
        arrays = run(backend, op, call)
        return {key: value + (op == "rmsnorm") for key, value in arrays.items()}

    monkeypatch.setattr(selftest, "run", off)
    train = selftest._RECIPES["GPT2"]
    wrong = {"GPT2": lambda name, folder: list(np.multiply(train(name, folder), 2 - len(name) / 3))}
    monkeypatch.setattr(selftest, "_RECIPES", wrong)
    assert main(["selftest", "--backend", "metal", "--no-speeds"]) == 2
    out = capsys.readouterr().out
    assert "rmsnorm                  WRONG {'N': " in out and "GFLOP/s" not in out
    assert "GPT2                     WRONG loss " in out and "\n2 wrong\n```\n" in out
