"""``import toynn`` imports little: what a program does not use costs it no time."""

import ast
import re
import subprocess
import sys
from importlib import import_module

import pytest
from layers import PACKAGE

import toynn
from toynn.cli._commands import COMMANDS
from toynn.engines import LlamaSeqEngine, SequenceEngine
from toynn.formats.hf.name_mapping import NAME_MAPPINGS
from toynn.jobs.made import RECIPES
from toynn.models import ARCHITECTURES, ENCODERS, architecture, architectures
from toynn.models.phi3 import Phi3Config

#: Packages that are imported when something of them is first asked for.
LATER = ("models", "engines", "session", "ops", "graph", "jobs", "train", "cli", "testing", "data")
OTHERS = (
    "pyarrow",
    "jinja2",
    "tokenizers",
    "safetensors",
    "torch",
    "PIL",
    "argparse",
    "subprocess",
    "gguf",
    "yaml",
)
#: What models need, and jobs that train them.
HEAVY = ("models", "engines", "session", "ops", "data", "train.trainer", "jobs.made")
#: What a command imports when it runs, and not for its help.
WORK = ("backends.cpu", "data.jsonl", "distributed.ranks", "engines.engine", "formats.gguf")
WORK += ("formats.hf", "formats.tokenizer", "graph.tape", "jobs.job", "jobs.lora")
WORK += ("models.registry", "nn", "ops", "recipes", "session", "train.trainer")
LIBRARIES = ("gguf", "importlib.metadata", "jinja2", "logging", "numpy.random", "pyarrow")
LIBRARIES += ("safetensors", "tokenizers", "tomllib", "tqdm")
QUIETLY = "import contextlib\nwith contextlib.suppress(SystemExit, __import__('toynn').ToynnError):"


def modules_after(statement):
    words = [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()  # after what the statement prints


def test_toynn_imports_its_kernels_and_no_model():
    modules = modules_after("import toynn")
    assert "toynn._kernels.matmul" in modules
    assert not set(modules) & {f"toynn.{name}" for name in LATER} | set(modules) & set(OTHERS)


@pytest.mark.parametrize("words", [["--version"], ["config"], ["completion", "bash"]])
def test_a_command_imports_its_own_module(words):
    """And no other one's: those of training and of chats bring all architectures."""
    modules = set(modules_after(f"from toynn.cli import parsed\n{QUIETLY} parsed({words})"))
    assert not modules & {"toynn.cli.train", "toynn.cli.chat", "toynn.models.llama", "pyarrow"}


@pytest.mark.parametrize("words", [["-h"], ["generat"], []])
def test_the_list_of_commands_imports_none_of_them(words):
    modules = modules_after(f"from toynn.cli import parsed\n{QUIETLY} parsed({words})")
    commands = {name for name in modules if re.fullmatch(r"toynn\.cli\.[a-z]\w*", name)}
    assert not commands and not set(modules) & {f"toynn.{name}" for name in HEAVY}


@pytest.mark.parametrize("command", ["bench", "runs", "plot", "report", "selftest", "puzzles"])
def test_a_command_without_a_model_imports_no_model(command):
    """Nor what trains one: its options need neither the loop nor the other jobs."""
    modules = set(
        modules_after(f"from toynn.cli import parsed\n{QUIETLY} parsed([{command!r}, '-h'])")
    )
    assert f"toynn.cli.{command}" in modules or command in ("plot", "report")
    assert not modules & {f"toynn.{name}" for name in HEAVY}


def test_help_imports_no_library_that_only_work_needs():
    """gguf writes files and has the codebooks of IQ types; tqdm draws; numpy.random draws, too.

    One process asks for the help of each command and recipe, and prints which one imported what.
    """
    asked = [[name] for name in COMMANDS] + [["train", recipe] for recipe in RECIPES]
    work = {*LIBRARIES, *(f"toynn.{name}" for name in WORK)}
    program = f"""
import contextlib, io, sys
from toynn.cli import parsed
for words in {asked}:
    before = set(sys.modules)
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        parsed([*words, "-h"])
    for name in sorted((sys.modules.keys() - before) & {work}):
        print(*words, "imports", name)
print("that is all of", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    *told, last = done.stdout.splitlines()
    assert "toynn.cli.predict" in last.split(), done.stderr
    assert not told


def architectures_of(modules):
    return {name.removeprefix("toynn.models.") for name in modules} & {
        *architectures.DECODERS,
        *architectures.ENCODERS,
    }


def test_an_engine_without_a_model_imports_no_architecture():
    assert not architectures_of(modules_after("from toynn.engines import SequenceEngine"))


def test_the_flag_lists_the_architectures_of_the_reference_program_s_engine():
    assert [*architectures.LLAMAS] == [*LlamaSeqEngine.architectures]


def test_an_engine_imports_the_architecture_of_its_file(tmp_path):
    cfg = Phi3Config(vocab=32, d_model=8, n_heads=1, n_kv_heads=1, d_ff=8, n_layers=1, context=8)
    engine = SequenceEngine(n_threads=1)
    engine.realize_for_random_init(cfg, toynn.RecipeOptions())
    engine.export_gguf(tmp_path / "phi.gguf")
    read = f"SequenceEngine.from_gguf({str(tmp_path / 'phi.gguf')!r})"
    modules = modules_after(f"from toynn.engines import SequenceEngine; {read}")
    assert architectures_of(modules) == {"llama", "phi3"}  # whose configuration is a LlamaConfig


def test_the_registry_lists_all_architectures_and_their_files():
    """A file that is not listed, or that registers more than the list says, is found here."""
    listed = {**architectures.DECODERS, **architectures.ENCODERS}
    for path in (PACKAGE / "models").glob("*.py"):
        assert (path.stem in listed) == ("\nregister(" in path.read_text())
        import_module(f"toynn.models.{path.stem}")
    names = [name for of_file in listed.values() for name in of_file]
    assert [*ARCHITECTURES, *ENCODERS] == names
    for name in names:
        assert architecture(name).architecture == NAME_MAPPINGS[name].architecture == name


@pytest.mark.parametrize("name", ["models", "engines", "session", "jobs"])
def test_a_package_is_imported_when_it_is_asked_for(name):
    assert f"toynn.{name}" in modules_after(f"import toynn; toynn.{name}")


def test_editors_see_the_names_that_programs_get():
    """The imports for editors, and the table of homes, which __getattr__ reads."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if ast.unparse(node).startswith("if TYPE_CHECKING"))
    seen = {
        alias.asname: statement.module.removeprefix("toynn").removeprefix(".")
        for statement in block.body
        for alias in statement.names
    }
    assert {name: home for name, home in seen.items() if home} == toynn._HOMES
    assert seen.keys() | {"errors"} | {*toynn.errors.__all__} >= {*toynn.__all__}
    for name in {*toynn.__all__, *seen}:
        assert getattr(toynn, name) is not None
    with pytest.raises(AttributeError, match="'toynn' has no attribute 'sesion'"):
        _ = toynn.sesion


def test_a_class_of_an_architecture_is_found_in_the_package():
    program = "from toynn.models import Phi3Config, rope; print(Phi3Config.__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "toynn.models.phi3\n", done.stderr
    with pytest.raises(ImportError, match="Phi9Config"):
        from toynn.models import Phi9Config  # noqa: F401
