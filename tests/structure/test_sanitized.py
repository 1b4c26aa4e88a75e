"""tests/asan.py and tests/tsan.py: what they build and run, without a compiler."""

import sys
from types import SimpleNamespace

import pytest

from tests import asan, sanitized, tsan

PARALLEL = "toynn/_kernels/base/_parallel.pxd"


@pytest.fixture
def ran(monkeypatch):
    """Commands, each with what the environment has beside the usual."""
    commands = []

    def run(words, **options):
        new = dict(set(options.get("env", {}).items()) - set(sanitized.os.environ.items()))
        commands.append((list(map(str, words)), new))
        return SimpleNamespace(stdout=f"{words[-1].partition('=')[2]}\n", returncode=0)

    monkeypatch.setattr(sanitized.subprocess, "run", run)
    return commands


@pytest.mark.parametrize("flags", [[], ["--plant"]])
def test_the_build_of_tsan_is_that_of_the_sources_but_for_a_planted_race(
    flags, ran, tmp_path, monkeypatch
):
    words = ["tsan", "--build", str(tmp_path / "build"), *flags, "-k", "some"]
    monkeypatch.setattr(sys, "argv", words)
    assert tsan.main() == 0
    source = (sanitized.ROOT / PARALLEL).read_text()
    built = (tmp_path / ("build-planted" if flags else "build") / PARALLEL).read_text()
    assert (built != source) == bool(flags)
    assert built.replace("m, fixed)\n", f"m, {tsan.STRETCH})\n") == source
    assert ran[1][1] == {"TOYNN_SANITIZE": "thread", "TOYNN_LEVELS": "generic"}
    assert ran[-1][0][:2] == ["setarch", "-R"] and ran[-1][0][-2:] == ["-k", "some"]
    assert "libtsan.so" in ran[-1][1]["LD_PRELOAD"]


@pytest.mark.parametrize("setarch", [None, "/usr/bin/setarch"])
def test_tsan_says_where_addresses_cannot_stay(setarch, tmp_path, monkeypatch):
    """The program is not there, or the system refuses it: nothing is built."""
    monkeypatch.setattr(sys, "argv", ["tsan", "--build", str(tmp_path / "build")])
    monkeypatch.setattr(sanitized.shutil, "which", lambda name: setarch)
    monkeypatch.setattr(sanitized.subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=1))
    with pytest.raises(SystemExit, match="needs setarch -R"):
        tsan.main()
    assert not list(tmp_path.iterdir())


def test_the_build_of_asan_is_one_for_all_levels(ran, tmp_path, monkeypatch):
    words = ["asan", "--build", str(tmp_path), "--levels", "avx2", "tests/x.py"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(
        asan, "finish", lambda *a, **k: SimpleNamespace(stdout="avx2", returncode=7)
    )
    assert asan.main() == 7  # what pytest returns at the first level that has a finding
    assert ran[0][1] == {
        "TOYNN_SANITIZE": "address,undefined",
        "TOYNN_LEVELS": "avx2",
        "TOYNN_DEBUG": "1",
    }
