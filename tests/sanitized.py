"""Builds of toynn with a sanitizer, or for another machine, and pytest in them: for tests/*.py."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "asked",
    "finish",
    "installed",
    "loaded",
    "make",
    "pytest_words",
    "run",
    "runtime",
    "steady",
]

ROOT = Path(__file__).parents[1]


def asked(
    doc: str | None, name: str, *flags: tuple[str, str, str]
) -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments: --build, flags (name, action, help), and those that are pytest's."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--build", type=Path, default=Path(tempfile.gettempdir()) / f"toynn-{name}")
    for flag, action, help_ in flags:
        parser.add_argument(flag, action=action, help=help_)
    return parser.parse_known_args()


def installed(packages: dict[str, str], folder: Path) -> tuple[str | None, str]:
    """Install Debian's packages of programs that are missing; return apt-get, and why that failed.

    ``packages`` has them by program. Without root there is no apt-get: None.
    """
    lacking = [those for name, those in packages.items() if not shutil.which(name)]
    apt = shutil.which("apt-get") if os.geteuid() == 0 else None
    if lacking and apt:
        run([apt, "-qq", "update"], folder, {})
        words = [apt, "-qq", "install", "--yes", "--no-install-recommends"]
        run([*words, *" ".join(lacking).split()], folder, {"DEBIAN_FRONTEND": "noninteractive"})
    elif lacking:
        return apt, f"it needs Debian's packages {' '.join(lacking)}, and root to install them"
    return apt, ""


def make(
    build: Path,
    sanitizers: str,
    levels: str,
    change: Callable[[Path], None] | None = None,
    **settings: str,
) -> None:
    """Copy the sources and tests into a folder, ``change`` them, and build them there."""
    copy_tree(build)
    if change is not None:
        change(build)
    settings = {"TOYNN_SANITIZE": sanitizers, "TOYNN_LEVELS": levels, **settings}
    run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], build, settings)


def loaded(build: Path, *libraries: str) -> dict[str, str]:
    """Return what loads libraries, and C++'s behind them, before Python, and finds the build."""
    preload = " ".join([*libraries, runtime("libstdc++.so")])
    return {"LD_PRELOAD": preload, "PYTHONPATH": str(build)}


def copy_tree(build: Path) -> None:
    """Copy the sources and tests into a folder for a build of their own."""
    build.mkdir(parents=True, exist_ok=True)
    for name in ("toynn", "tests", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        source, skipped = ROOT / name, shutil.ignore_patterns("*.so", "__pycache__")
        if source.is_dir():
            shutil.copytree(source, build / name, ignore=skipped, dirs_exist_ok=True)
        else:
            shutil.copy2(source, build / name)


def pytest_words() -> list[str]:
    """Return the words that start pytest in a build: without capture, which hides a report."""
    return [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]


def run(words: list[str], folder: Path, settings: dict[str, str]) -> None:
    """Run a command in a folder, which must succeed."""
    subprocess.run(words, cwd=folder, env=os.environ | settings, check=True)


def finish(
    words: list[str], folder: Path, settings: dict[str, str], *, capture: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder to its end."""
    return subprocess.run(
        words,
        cwd=folder,
        env=os.environ | settings,
        stdout=subprocess.PIPE if capture else None,
        text=True,
    )


def steady() -> list[str] | None:
    """Return what runs a command at addresses that stay, which ThreadSanitizer needs; or None."""
    words = ["setarch", "-R"]
    if shutil.which(words[0]) is None or subprocess.run([*words, "true"]).returncode:
        return None
    return words


def runtime(name: str) -> str:
    """Return the path of one of the compiler's libraries."""
    words = ["cc", f"-print-file-name={name}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
