"""What pyproject.toml and the workflows say of wheels: they agree, and cibuildwheel takes it."""

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEELS = PROJECT["tool"]["cibuildwheel"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_wheels_are_for_the_versions_that_are_supported():
    text = "\n".join(PROJECT["project"]["classifiers"])
    supported = re.findall(r"^Programming Language :: Python :: 3\.(\d+)$", text, re.MULTILINE)
    assert [f"cp3{minor}-*" for minor in supported] + ["cp314t-*"] == WHEELS["build"]
    assert PROJECT["project"]["requires-python"] == f">=3.{supported[0]}"


def test_groups_are_no_extras():
    """What contributors need is not in what is published."""
    assert {"test", "parity"} <= PROJECT["dependency-groups"].keys()
    assert not PROJECT["dependency-groups"].keys() & PROJECT["project"]["optional-dependencies"]


def test_what_is_asked_for_is_there():
    """Extras and groups in documents, workflows and CI."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *WORKFLOWS, ROOT / ".ci/run"]
    text = "\n".join(page.read_text() for page in pages if page.name != "CHANGELOG.md")
    extras = {name for names in re.findall(r'"\.\[([\w,-]+)\]"', text) for name in names.split(",")}
    groups = set(re.findall(r"--group ([\w-]+)", text))
    assert extras and extras <= PROJECT["project"]["optional-dependencies"].keys()
    assert groups and groups <= PROJECT["dependency-groups"].keys()


def test_nothing_tells_to_install_another_program():
    """The package index has a toynn since 2021, of somebody else; this one is toynn-train."""
    assert PROJECT["project"]["name"] == "toynn-train"
    sources = (path for end in ("py", "pyx") for path in ROOT.glob(f"toynn/**/*.{end}"))
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *WORKFLOWS, *sources]
    theirs = re.compile(r"pip3? install [^`\n&;]*(?<![\w./-])toynn(?![\w-])")
    assert pages and not [page.name for page in pages if theirs.search(page.read_text())]


def test_the_workflow_publishes_what_it_tested():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    jobs = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]
    publish = jobs["publish"]
    assert set(publish["needs"]) == jobs.keys() - {"publish"}
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"] == "pypi"
    assert "refs/tags/v" in publish["if"]
    assert WHEELS["test-command"].startswith("toynn selftest")
    built = "\n".join(step.get("run", "") for step in jobs["sdist"]["steps"])
    for each in ("for cc in gcc clang", 'CC=$cc "$RUNNER_TEMP/$cc/bin/pip" install', "selftest"):
        assert each in built
    systems = {name.partition("-")[0] for name in jobs["wheels"]["strategy"]["matrix"]["os"]}
    assert systems == {"ubuntu", "macos", "windows"}
    may_fail = jobs["wheels"]["continue-on-error"]  # what never ran keeps no other wheel back
    assert may_fail == "${{ startsWith(matrix.os, 'windows') }}"


@pytest.mark.skipif(find_spec("cibuildwheel") is None, reason="cibuildwheel is not installed")
@pytest.mark.parametrize("platform", ["linux", "macos", "windows"])
def test_cibuildwheel_takes_the_options(platform):
    command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", str(ROOT)]
    command += ["--platform", platform]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition("-")[0] for name in found} == {
        name.partition("-")[0] for name in WHEELS["build"]
    }
