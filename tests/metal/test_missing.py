"""Where there is no Metal: the backend imports, says why it is missing, and is refused by name."""

import sys

import pytest

import toynn
from toynn import backends
from toynn.backends import metal
from toynn.backends.config import describe
from toynn.cli import main
from toynn.errors import BackendUnavailable
from toynn.session import Session


@pytest.fixture(autouse=True)
def no_bridge(monkeypatch):
    monkeypatch.setitem(sys.modules, "toynn.backends.metal._bridge", None)
    monkeypatch.delattr(metal, "_bridge", raising=False)


def test_it_is_not_among_what_there_is():
    assert "metal" not in backends.available()
    assert list(backends.unavailable()) == ["metal"]
    assert describe()["backends"] == ", ".join(backends.available())


@pytest.mark.parametrize(
    ("platform", "why"),
    [("linux", "for macOS; this is linux"), ("darwin", "no bridge to it .*xcode-select --install")],
)
def test_it_says_why(platform, why, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(BackendUnavailable, match=f"'metal': .*{why}.*; use backend=\"cpu\""):
        Session(backend="metal")
    assert describe()["  not metal"] == metal.missing()


def test_recipes_refuse_it():
    recipe = toynn.recipes.GPT2(backend="metal")
    with pytest.raises(BackendUnavailable, match="'metal'"):
        recipe.realize(toynn.GPT2Config(11, 8, 2, 16, 1, 4), toynn.RecipeOptions())


def test_config_prints_it(capsys):
    assert main(["config"]) == 0
    assert "\n  not metal" in capsys.readouterr().out


def test_the_selftest_needs_a_device(capsys):
    assert main(["selftest", "--backend", "metal"]) == 2
    assert "backend 'metal': " in capsys.readouterr().err
