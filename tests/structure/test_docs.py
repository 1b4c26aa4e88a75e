"""What the pages say of the source is there: links, names beside links, examples that run."""

import itertools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import test_new_op
from small_encoders import with_words
from vocabs import CONTROL, bpe_file

from toynn.cli import _parser, main, parsed
from toynn.cli.completion import _parsers
from toynn.cli.train import also
from toynn.formats import gguf
from toynn.jobs.made import OPTIONS
from toynn.jobs.peers import COMMANDS, FLAGS

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for folder in ("", "docs", "docs/notebooks", "docs/kernels")
    for page in sorted((ROOT / folder).glob("*.md"))
    if page.name != "CHANGELOG.md"  # which tells of the past
]
#: Flags that are not of `toynn`: of bench/compare.py, `python -m tests.fuzz` and `tests.tsan`.
OTHERS = {"--isa", "--cases", "--reader", "--plant"}
LINK = re.compile(r"\[[^\]\n]*\]\((?!https?:)([^)\s]+)\)")
#: `name` in [file](path), and [file](path) (`name`, `name`).
BEFORE = re.compile(r"((?:`[\w.]+`(?:, | and |,\s))*`[\w.]+`)\s+in\s+\[[^\]]*\]\(([^)#\s]+)\)")
BEHIND = re.compile(r"\[[^\]]*\]\(([^)#\s]+)\)\s+\(((?:`[\w.]+`(?:,\s+|\)))+)")


def anchor(heading):
    """Return what a heading is called in a link."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def prose(page):
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(prose(page)):
        path, _, part = unquote(target).partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name}: {target} is not there"
        if part:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert part in map(anchor, headings), f"{page.name}: {target}: no such heading"


FIRST = {
    "kernels.md": "panel, slice, group, set, strip, flop, cache line, resident, segment, node,"
    " phase, arena, micro-batch, lse, tape, tile, epilogue, signature, valid, L1, L3, level",
    "performance.md": "slice, group, adapter, segment, lse, strip, epilogue, tape, arena",
}


@pytest.mark.parametrize("name", FIRST)
def test_words_are_linked_to_the_glossary_where_they_are_first_used(name):
    text = prose(ROOT / "docs" / name).partition("\n## 1. ")[2]
    text = re.sub(r"^( {4}|#|Read: ).*|`[^`]*`", "", text, flags=re.M)
    links = [match.span() for match in re.finditer(r"\[[^\]]*\]\((?:glossary\.md)?#[\w-]+\)", text)]
    for word in FIRST[name].split(", "):
        use = re.search(rf"\b{word}(s|es)?\b(?!\w*\.)", text)
        assert use is not None, word
        line = text[text.rfind("\n", 0, use.start()) : text.find("\n", use.end())]
        assert any(begin < use.start() < end for begin, end in links), f"{word}: {line}"


def named_beside_links(page):
    """(file, name) for each name that the page says to be in a file."""
    text = prose(page)
    pairs = [(path, names) for names, path in BEFORE.findall(text)]
    for path, names in pairs + BEHIND.findall(text):
        yield from ((page.parent / path, name) for name in re.findall(r"`([\w.]+)`", names))


def test_names_beside_links_are_found():
    named = [(file.name, name) for page in PAGES for file, name in named_beside_links(page)]
    assert ("linear.py", "linear") in named, "docs/kernels.md says so"
    assert len(named) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_beside_links_are_defined_there(page):
    for file, name in named_beside_links(page):
        kind = r"(?:def|class|enum|struct|inline|cdef|cpdef|#define)\b[^\n=]*?"
        defined = rf"^\s*(?:{kind}\b{name}\b|{name}\s*[:=])"
        assert re.search(defined, file.read_text(), re.MULTILINE), f"{file.name} has no {name}"


def test_the_reference_of_flags_is_made_anew_where_options_change():
    made = runpy.run_path(str(ROOT / "docs" / "flags.py"))
    assert (ROOT / "docs" / "flags.md").read_text() == made["page"](), "python docs/flags.py"


def test_the_pictures_are_drawn_anew_where_their_script_changes():
    drawn = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    for draw in drawn["PICTURES"]:
        file = drawn["FOLDER"] / f"{draw.__name__}.svg"
        assert file.read_text() == draw().svg(), "python docs/pictures.py writes it"


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_pages_have_one_figure_of_the_main_job():
    """Its validation loss; `.ci/figure.py` compares README's with what a run has."""
    patterns = {
        "README.md": r"^\| main job .*validation loss ([\d.]+)",
        "docs/measured.md": r"^\| main job .*validation loss ([\d.]+)",
        "docs/tutorial-first.md": r"step 1500/1500 .* val ([\d.]+)",
    }
    figures = {re.search(p, (ROOT / page).read_text(), re.M)[1] for page, p in patterns.items()}
    assert len(figures) == 1, figures


def test_the_example_of_readme_runs(tmp_path):
    (code,) = python_blocks(ROOT / "README.md")
    done = run(code, tmp_path)
    assert float(done.split()[0]) < 0.05, done[:100]  # the loss comes first
    assert "matmul.forward" in done  # the tape


def test_the_page_of_python_runs(tmp_path):
    """All blocks in one program, as the page says, with a model of text at hand."""
    bpe_file(tmp_path / "vocab.gguf")
    words = (
        "train from-scratch --arch llama --tokenizer vocab.gguf --d-model 32 --layers 2 --heads 2"
    )
    words += " --data text.txt --seq 32 --batch 1 --steps 1 --report none --out made"
    (tmp_path / "text.txt").write_text("Once upon a time there was a robot. " * 40)
    subprocess.run([sys.executable, "-m", "toynn", *words.split()], cwd=tmp_path, check=True)
    (tmp_path / "made" / "model.gguf").rename(tmp_path / "model.gguf")
    done = run("\n".join(python_blocks(ROOT / "docs" / "python.md")), tmp_path)
    assert "silu.forward" in done and "embedding.forward" in done  # tapes of session and recipe
    assert "Run('runs/robots', 60 steps" in done and "\nA robot.\n" in done
    assert (tmp_path / "tuned" / "config.json").exists() and (tmp_path / "adapter.gguf").exists()
    assert done.splitlines()[-1].startswith("20 "), done[-200:]  # the trainer's last report


def test_the_tutorial_of_a_kernel_prints_what_it_shows(tmp_path):
    """Its numbers too, but for last digits: levels differ in these."""
    page = ROOT / "docs" / "tutorial-kernel.md"
    shown = re.findall(r"^```python\n.*?^```\n\n((?:    [^\n]*\n)+)", page.read_text(), re.M | re.S)
    wanted = [line.strip() for block in shown for line in block.splitlines()]
    got = run("\n".join(python_blocks(page)), tmp_path).splitlines()
    assert len(got) == len(wanted) > 5
    assert float(got[0]) < 1e-6
    slope, by_difference = map(float, got[1].split())
    assert abs(slope - by_difference) < 1e-6 and wanted[1].startswith(f"{slope:.5f}")
    assert got[2:] == wanted[2:]


def test_the_rules_of_kernels_have_an_example_that_runs(tmp_path):
    page = ROOT / "docs" / "kernel-rules.md"
    (code,) = python_blocks(page)
    assert run(code, tmp_path) == ""
    refused = code.replace("(2, 3)", "(4, 6)").replace("np.ones(3", "np.ones(5")
    said = "rmsnorm.forward: w[C] needs shape (6,) for C = 6 of x (4, 6); got w (5,)"
    assert said in " ".join(page.read_text().split())
    with pytest.raises(AssertionError, match=re.escape(said)):
        run(refused.replace("np.empty(2", "np.empty(4"), tmp_path)


def test_the_tour_shows_the_tape_that_its_program_prints(tmp_path):
    page = ROOT / "docs" / "kernels.md"
    (code,) = python_blocks(page)
    again = code.replace("toynn.RecipeOptions()", "toynn.RecipeOptions(checkpointing=True)")
    blocks = re.findall(r"^```text\n(.*?)^```", page.read_text(), re.M | re.S)
    for shown, program in zip(blocks, (code, again), strict=True):
        printed = {line.strip() for line in run(program, tmp_path).splitlines()}
        lines = [line.strip() for line in shown.splitlines() if line != "..."]
        assert len(lines) >= 5 and not [line for line in lines if line not in printed]


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_model(file):
    """Train a model that answers questions of a few robots, of which Zork is none."""
    ends = ["<|im_start|>", "<|im_end|>"]
    bpe_file(file, specials=[(text, CONTROL) for text in ends])
    with gguf.open(file) as vocab:
        end = list(vocab.metadata["tokenizer.ggml.tokens"]).index(ends[1])
    keys = {"tokenizer.chat_template": CHATML, "tokenizer.ggml.eos_token_id": end}
    bpe_file(file, specials=[(text, CONTROL) for text in ends], keys=keys)
    names, things = ("Tom", "Ann", "Zork", "Blip", "Mia"), ("dust", "moon", "sun", "cats", "gold")
    told = []
    for k, (name, thing) in enumerate(itertools.product(names, things)):
        robot, friend = "Ann" if name == "Zork" else name, names[(k * 3 + 1) % 5]
        for ask in ("Who lives on the", "Tell me who is on the", "Who likes the"):
            told.append((f"{ask} {thing}?", f"{robot} the robot."))
        color = ("red", "old", "green")[k % 3]
        for ask in ("What does {} like?", "What is {} afraid of?", "Tell me what {} fears."):
            told.append((ask.format(name), f"The big {color} {thing}."))
        for ask in ("Who is {}'s friend?", "Tell me the friend of {}."):
            told.append((ask.format(name), f"A cat named {friend}."))
    rows = [zip(("user", "assistant"), each, strict=True) for each in told]
    rows = [{"messages": [{"role": who, "content": said} for who, said in row]} for row in rows]
    data = file.with_name("told.jsonl")
    data.write_text("\n".join(map(json.dumps, rows)))
    words = f"train from-scratch --arch llama --tokenizer {file} --data {data} --d-model 256"
    words += " --layers 2 --heads 4 --seq 128 --batch 4 --lr 2e-3 --steps 120 --eval-every 0"
    words += f" --save-every 0 --report none --out {file.with_name('made')}"
    assert main(words.split()) == 0
    file.with_name("made").joinpath("model.gguf").replace(file)


def test_the_tutorial_of_chats_runs(tmp_path, monkeypatch, capsys):
    """Its commands in order, and the model answers as the page says."""
    monkeypatch.chdir(tmp_path)
    chat_model(tmp_path / "model.gguf")
    page = ROOT / "docs" / "tutorial-chats.md"
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "chats").mkdir()
    for name, rows in re.findall(r"cat > (\S+) <<'END'\n(.*?)END\n", blocks[0], re.DOTALL):
        (tmp_path / name).write_text(rows)
    capsys.readouterr()
    said = []
    for words in commands(page):
        assert main(words) == 0, words
        said.append(capsys.readouterr().out)
    assert [words[0] for words in commands(page)] == (
        ["check", "generate", "eval", "train", "generate", "eval", "report", "fuse", "generate"]
    )
    assert "leaks                none from test" in said[0]
    assert said[1].strip() == "Ann the robot."
    assert said[4].strip() == said[8].strip() == "Zork the robot."
    loss = [float(re.search(r"loss ([\d.]+) nats", said[k])[1]) for k in (2, 5)]
    assert loss[1] < loss[0] / 4
    # "gold" and "sun" are nearly as likely before training: last bits of the losses decide.
    assert re.search(r"friend of Zork.*\n.*\n.*The big red \w+\.\n.*A cat named Zork\.", said[3])
    preferences = ROOT / "docs" / "preferences.md"  # goes on from there
    block = re.search(r"cat > (\S+) <<'END'\n(.*?)END\n", preferences.read_text(), re.DOTALL)
    (tmp_path / block[1]).write_text(block[2])
    (tmp_path / "zork.gguf").unlink()
    for words in (*commands(ROOT / "docs" / "memory.md"), *commands(preferences)):
        assert main(words) == 0, words
    said = capsys.readouterr().out
    assert "with checkpointing" in said and "margins" in said and "\nA cat named Blip.\n" in said


def test_the_tutorial_of_texts_runs(tmp_path, monkeypatch, capsys):
    """Its commands in order, with a small encoder, say of the data what the page says."""
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "tutorial-texts.md"
    tables = re.findall(r"cat > (\S+) <<'END'\n(.*?)END\n", page.read_text(), re.DOTALL)
    words = sorted({*re.findall(r"\w+|[^\w\s]", "".join(rows for _, rows in tables).lower())})
    with_words(
        tmp_path / "all-MiniLM-L6-v2",
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words],
        d_model=32,
    )
    for name, rows in tables:
        (tmp_path / name).write_text(rows)
    said = []
    for command in commands(page):
        assert main(command) == 0, command
        said.append(capsys.readouterr().out)
    assert [command[0] for command in commands(page)] == (
        ["check", "train", "eval", "predict", "embed", "eval", "train"]
    )
    shown = re.search(r"^    (labels .*)\n[^=]*== test.csv", page.read_text(), re.MULTILINE)[1]
    assert shown in said[0] and re.search(r"leaks +0 texts of the first file", said[0])
    assert "classes     billing 6, delivery 6, login 6\n" in said[1] and "step 30/30" in said[1]
    assert "6 of 32 numbers" in said[4] and "queries     4" in said[5] and "step 10/10" in said[6]


def test_the_tutorial_of_an_op_has_all_files_of_one(tmp_path, monkeypatch):
    sources = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(test_new_op.PACKAGE, tmp_path / "toynn", ignore=sources)
    page = (ROOT / "docs" / "tutorial-op.md").read_text()
    block = re.compile(r"^```\w+\n(?:#|//) (toynn/\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for path, code in block.findall(page):
        assert "squareplus" in code.lower(), path
        with (tmp_path / path).open("a", encoding="utf-8") as file:
            file.write(code)
    monkeypatch.setattr(test_new_op, "PACKAGE", tmp_path / "toynn")
    assert "squareplus" in test_new_op.entries_of(r"^(\w+) = entry\(", "_kernels", "pyx")
    assert not test_new_op.missing()


def test_the_programs_of_own_loss_print_what_the_page_shows(tmp_path):
    """The losses; tests/parity/test_own_loss.py has the same programs in PyTorch."""
    pytest.importorskip("sklearn", reason="scikit-learn, the images extra, is not installed")
    page = ROOT / "docs" / "own-loss.md"
    shown = re.findall(r"^    ([\d.]+) ([\d.e-]+)", page.read_text(), re.MULTILINE)
    blocks = python_blocks(page)
    assert len(blocks) == len(shown) == 5
    printed = [line.split()[:2] for line in run("\n".join(blocks), tmp_path).splitlines()]
    for losses, expected in zip(printed, shown, strict=True):
        assert [*map(float, losses)] == pytest.approx([*map(float, expected)], rel=0.05, abs=1e-6)


def test_the_tutorial_of_an_op_begins_in_numpy(tmp_path):
    page = ROOT / "docs" / "tutorial-op.md"
    shown = re.search(r"^    True ([\d.]+) ([\d.]+)$", page.read_text(), re.MULTILINE)
    checked, *losses = run(python_blocks(page)[0], tmp_path).split()
    assert checked == "True"
    assert [float(each) for each in losses] == pytest.approx([*map(float, shown.groups())], 1e-3)


def run(code, folder):
    """Return what a program prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_of_python_compile(page):
    for code in python_blocks(page):
        compile(code, page.name, "exec")


def commands(page):
    """Yield the words behind `toynn` in each line of a page's blocks of shell commands."""
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in re.split(r"\n|&&", block):
            words = (
                shlex.split(line, comments=True) if "'END'" not in line and "{" not in line else []
            )
            names = [Path(word).name for word in words]
            if "toynn" in names[:-1] and "python" not in names:
                yield words[names.index("toynn") + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_are_understood(page):
    for words in commands(page):
        if not {"--help-all", "completion", "--resume", "--config"} & {*words}:  # print or read
            parsed(words)


def test_commands_are_found():
    shown = [words for page in PAGES for words in commands(page)]
    assert ["train", "gpt2"] in shown and len(shown) > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_that_a_page_names_are_there(page):
    known = flags()
    text = prose(page) if page.name != "flags.md" else ""  # made from them; it names peers', too
    if page.name == "peers.md":
        text = re.sub(r"^\|[^|]*", "", text, flags=re.MULTILINE)  # the first column is theirs
    for span in re.findall(r"`((?:toynn |--)[^`]*)`", text):
        for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", span):
            assert flag in {*known, *OTHERS}, f"{page.name}: {span}: {flag}"


def flags():
    """Return each flag of all commands, with those that mean the same."""
    known = {
        flag: set(action.option_strings)
        for _, each in _parsers(_parser(), "toynn")
        for flag, action in each._option_string_actions.items()
    }
    return known | {theirs: {ours} for theirs, ours in also(OPTIONS).items()}


def rows_of_peers():
    """(theirs, ours) of each row of the tables of names."""
    page = (ROOT / "docs" / "peers.md").read_text()
    return re.findall(r"^\| `([^`(]+)` \| `([^`]+)`[^|]*\|", page, re.MULTILINE)


def test_the_names_of_other_programs_are_those_that_errors_know():
    peers = rows_of_peers()
    assert ("n_layer", "--layers") in peers and len(peers) > 80
    known = flags()
    for theirs, ours in peers:
        name = theirs.split()[0]
        if ours.startswith("toynn"):
            name = name.removesuffix(".py")
            suggested = COMMANDS.get(name, name)
            assert f"{ours} ".startswith(f"toynn {suggested} "), (theirs, ours)
        else:
            flag = "--" + name.lstrip("-").replace("_", "-")
            suggested = f"--{FLAGS[flag[2:]]}" if flag[2:] in FLAGS else flag
            assert suggested == ours or ours in known.get(suggested, ()), (theirs, ours)


def test_the_site_lists_each_page_once():
    index = (ROOT / "docs" / "index.md").read_text()
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", index, re.MULTILINE | re.DOTALL)
    listed = sorted(re.findall(r"^([a-z][\w-]*)$", "".join(trees), re.MULTILINE))
    assert listed == sorted(page.stem for page in ROOT.glob("docs/*.md") if page.stem != "index")


def test_readme_and_the_index_have_the_same_routes():
    """By which to learn: an hour, a day, a week; each step is a link with its minutes."""
    routes = {}
    for page, folder in (("README.md", "docs/"), ("docs/index.md", "")):
        text = (ROOT / page).read_text().replace(f"]({folder}", "](")
        routes[page] = re.findall(r"^\| an? (?:hour|day|week) \|.*", text, re.MULTILINE)
    assert len(routes["README.md"]) == 3 and routes["README.md"] == routes["docs/index.md"]


def test_each_notebook_opens_in_jupyter():
    """Its format wants a kernel with a name to be shown; jupytext converts no notebook without."""
    notebooks = sorted(ROOT.glob("docs/notebooks/*.md"))
    assert len(notebooks) == 8
    for notebook in notebooks:
        head = notebook.read_text("utf-8").split("---\n")[1]
        assert all(f"\n  {key}: " in head for key in ("name", "language", "display_name")), notebook


def test_the_notebooks_are_shown_as_they_are():
    """With what they print and draw, for GitHub; the site's build runs them and their asserts."""
    made = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))
    folder = made["SHOWN"]
    names = {path.stem for path in made["FOLDER"].glob("*.md")}
    assert {path.stem for path in folder.glob("*.md")} == names
    pictures = set()
    for name in names:
        shown, cells = (folder / f"{name}.md").read_text(), made["page"](name)
        again = f"python docs/notebooks.py {name}"
        assert made["OUTPUT"].sub("", shown) == made["OUTPUT"].sub("", cells), again
        pictures |= {*re.findall(r"^!\[\]\((.*)\)$", shown, re.MULTILINE)}
    assert pictures == {path.name for path in folder.glob("*.svg")} and len(pictures) > 20
