"""tests/arm64.py: what it refuses and runs, without a compiler and an emulator."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import arm64, windows


@pytest.fixture
def told(monkeypatch):
    """What each CPU prints: its units, then digests."""
    printed = {cpu: f"{units}\nfloat32 1\n" for cpu, units in arm64.UNITS.items()}

    def finish(words, folder, settings, *, capture=False):
        cpu = next(c for c, e in arm64.CPUS.items() if e == settings["TOYNN_EMULATED"])
        return SimpleNamespace(stdout=printed[cpu] if capture else words, returncode=0)

    monkeypatch.setattr(arm64, "finish", finish)
    return printed


def test_all_cpus_must_give_the_same_bits(told, tmp_path, capsys):
    arm64.compare_bits(tmp_path)
    assert "the same bits on max, neoverse-n1, cortex-a72:\nfloat32 1" in capsys.readouterr().out
    told["neoverse-n1"] = "SDOT\nfloat32 2\n"
    with pytest.raises(SystemExit, match="bits depend on the CPU:\nmax\nfloat32 1"):
        arm64.compare_bits(tmp_path)


def test_a_cpu_must_be_found_to_have_what_it_has(told, tmp_path):
    told["max"] = "SMMLA\nfloat32 1\n"
    with pytest.raises(SystemExit, match="max should have BFMMLA SMMLA; toynn found 'SMMLA'"):
        arm64.compare_bits(tmp_path)


def test_without_tools_and_rights_it_says_what_it_needs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["arm64", "--build", str(tmp_path)])
    assert arm64.main() == 0
    out = capsys.readouterr().out
    assert "arm64: skipped: it needs Debian's packages qemu-user-static gcc-aarch64-linux" in out


def test_an_unknown_cpu(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["arm64", "--cpus", "max,m1"])
    with pytest.raises(SystemExit):
        arm64.main()
    assert "--cpus: m1 is none of max, neoverse-n1, cortex-a72" in capsys.readouterr().err


@pytest.mark.parametrize("script", [arm64.PYTHON, windows.PYTHON], ids=["arm64", "windows"])
def test_what_python_compiles_is_kept(script, tmp_path):
    """Compiling all modules takes an emulated Python minutes."""
    values = {"root": tmp_path, "version": arm64.VERSION}
    for name, text in (("python", script % values), ("told", "#!/bin/sh\nenv\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name in ("qemu-aarch64-static", "wine"):
        (tmp_path / name).symlink_to("told")
    settings = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "KEPT": "1"}
    out = subprocess.run([tmp_path / "python"], env=settings, capture_output=True, text=True).stdout
    assert "KEPT=1" in out and "PYTHONDONTWRITEBYTECODE" not in out


@pytest.fixture
def cut(monkeypatch, tmp_path):
    """Commands that write: None, or how many parts they write before they are cut short."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    stopped = SimpleNamespace(at=None, ran=[])

    def write(target, parts):
        for part in parts[: stopped.at]:
            (target / part).mkdir(parents=True, exist_ok=True)
        if stopped.at is not None:
            raise KeyboardInterrupt

    def run(words, folder, settings):
        stopped.ran.append(words[0] if words[0] != sys.executable else "pip")
        if words[0] == "dpkg":
            write(Path(words[3]), [f"usr/bin/python{arm64.VERSION}", "usr/lib"])
        elif "--target" in words:
            write(Path(words[words.index("--target") + 1]), arm64.WHEELS)

    monkeypatch.setattr(arm64, "run", run)
    monkeypatch.setattr(arm64, "finish", lambda *w, **k: SimpleNamespace(returncode=0))
    archives = tmp_path / "apt/cache/archives"
    archives.mkdir(parents=True)
    (archives / "a.deb").touch()
    return stopped


@pytest.mark.parametrize("command", ["dpkg", "pip"])
def test_what_was_cut_short_is_fetched_again(command, cut, tmp_path):
    if command == "pip":
        arm64.unpack(tmp_path, tmp_path / "root", "apt-get")
    cut.at = 1
    with pytest.raises(KeyboardInterrupt):
        arm64.prepare(tmp_path)
    assert cut.ran[-1] == command
    cut.at = None
    assert arm64.prepare(tmp_path) == ""
    packages = tmp_path / f"root/usr/local/lib/python{arm64.VERSION}/dist-packages"
    assert (tmp_path / "root/usr/lib").exists()
    assert {path.name for path in packages.iterdir()} == {*arm64.WHEELS, "arm_exe.pth"}
    cut.ran.clear()
    assert arm64.prepare(tmp_path) == "" and cut.ran == []


def test_packages_that_cannot_be_fetched_are_no_reason_to_skip(cut, monkeypatch, tmp_path):
    def fail(words, folder, settings):
        if "--download-only" in words:
            raise subprocess.CalledProcessError(100, words)

    monkeypatch.setattr(arm64, "run", fail)
    with pytest.raises(subprocess.CalledProcessError):
        arm64.prepare(tmp_path)
