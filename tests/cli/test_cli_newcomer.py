"""What a new user met on the way: words nearly right, files of another kind, what is shown."""

import json
import re
import shlex
import tomllib
from argparse import SUPPRESS, ArgumentTypeError
from pathlib import Path

import numpy as np
import pytest
import vits
from lora_bases import write_base
from some_adapters import draw
from vocabs import bpe_file

import toynn
from toynn.cli import _parser, main
from toynn.cli.completion import _parsers
from toynn.engines import SequenceEngine
from toynn.errors import DataError
from toynn.formats import adapters, gguf
from toynn.formats.tokenizer import ByteTokenizer
from toynn.jobs import before_after
from toynn.jobs.made import JOBS, OPTIONS
from toynn.jobs.peers import ADVICE, COMMANDS, FLAGS, VALUES
from toynn.recipes import LoRA
from toynn.train.folder import RunFolder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_base(tmp_path / "base.gguf", vocab=256, context=64)
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the rat sat on the cat " * 12)
    return tmp_path


SMALL = ["--steps", "4", "--warmup", "1", "--batch", "2", "--seq", "8", "--data", "text.txt"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "lora", "--modle", "x"], "--modle (did you mean --model?); and the following"),
        (["generate", "--model", "x", "--promt", "a"], "--promt (did you mean --prompt?); and"),
        (["train", "gpt2", "--data", ""], "argument --data: must be a path, not empty; got ['']"),
        (["generate", "-m", "", "-p", "a"], "argument -m/--model: must be a path, not empty"),
        (["train", "lora", "--mask-prompt"], "--mask-prompt (prompts carry no loss anyway: leave"),
        (["train", "gpt2", "--eval_iters=20"], "--eval_iters (an evaluation reads all validation"),
        (
            ["generate", "-m", "x", "-p", "a", "-ngl", "0"],
            "arguments: -ngl (did you mean --backend?) (",
        ),
        (
            ["generate", "-m", "x", "-p", "a", "-n", "q"],
            "argument -n/--max-tokens: must be a whole",
        ),
        (["train", "vit", "--skip_unreadable"], "(did you mean --skip-unreadable?)"),
        (["train", "gpt2", "--batchsize", "3"], "--batchsize (did you mean --batch?)"),
        (["lora", "--model", "x"], "; did you mean train lora?"),
        (["perplexity"], "; did you mean eval?"),
        (["merge"], "; did you mean fuse?"),
        (["train", "sft"], "; did you mean lora? (see `toynn train --help`)"),
        (["train", "llama"], "; did you mean from-scratch?"),
        (["generate", "-m", "x", "-p", "a", "--lora", "y"], "--lora (did you mean --adapter?)"),
        (["generate", "-m", "x", "-p", "a", "--temperature", "0"], "did you mean --temp?"),
        (["train", "gpt2", "--wandb"], "--wandb (did you mean --report?)"),
        (["train", "gpt2", "--lora_alpha", "3"], "unrecognized arguments: --lora_alpha 3 (see"),
        (["train", "gpt2", "--max_iters", "3"], "--max_iters (did you mean --steps?)"),
        (["train", "gpt2", "--n-embd", "3"], "did you mean --d-model?"),
        (["train", "gpt2", "--precision", "bf16"], "; did you mean medium?"),
        (["train", "gpt2", "--lr-schedule", "cosine_decay"], "; did you mean cosine?"),
        (["train", "--model", "x"], "lora, grpo, vit, classify, embed, rerank, before --model"),
        (["train"], "RECIPE: one of gpt2, from-scratch, warm-start, lora, grpo, vit, "),
        (["train", "--resume"], "--resume: expected the folder of a run after it; got none"),
        (["train", "lora", "--config"], "--config: expected a file after it; got none"),
        ([], "COMMAND: one of train, generate"),
        (["train", "gpt2", "--xyzzy"], "unrecognized arguments: --xyzzy (see"),
        (["train", "gpt2", "--measure", "loss"], "--measure (did you mean --metric?)"),
        (["train", "lora", "--b-rate=4"], "--b-rate (did you mean --loraplus-lr-ratio?)"),
        (["trian", "lora"], "; did you mean train?"),
        (["train", "loar"], "; did you mean lora?"),
        (["train", "gpt2", "--lr-schedule", "cosin"], "; did you mean cosine?"),
        (["train", "gpt2", "--dropout", "0.2"], "--dropout (only adapters have dropout"),
        (["train", "lora", "--beta2", "0.99"], "--beta2 (AdamW's betas are 0.9 and 0.999"),
        (["train", "gpt2", "--adam_beta1=0.8"], "--adam_beta1 (AdamW's betas are 0.9"),
        (
            ["train", "gpt2", "--lr_decay_iters=5"],
            "--lr_decay_iters (the rate falls along --lr-sch",
        ),
        (["train", "gpt2", "--compile=False"], "--compile (the kernels are compiled"),
        (
            ["train", "lora", "--fine-tune-type", "full"],
            "(the type is LoRA, or DoRA (--dora); `toynn train",
        ),
        (["train", "lora", "--test"], "--test (`toynn eval --adapter RUN --data FOLDER` measures"),
        (["train", "lora", "--load_in_4bit"], "--load_in_4bit (the model may be a quantized file"),
        (["train", "gpt2", "-t", "4"], ": -t (did you mean --threads?) (see"),
        (["train", "gpt2", "-c", "64"], ": -c (did you mean --seq?) (see"),
        (["generate", "-s", "4"], "-s (did you mean --seed?); and one of the arguments"),
        (["generate", "-n1", "-p-s"], "toynn: error: --model: name the model"),
        (["generate", "-m", "x", "-p", "a", "-c", "64"], "-c (the context is the model's own"),
        (["generate", "-m", "x", "-p", "a", "--ignore-eos"], "--ignore-eos (the model's end"),
        (["generate", "--num_samples=3"], "--num_samples (did you mean --num-samples?)"),
        (["serve"], "; toynn does not serve, but llama-server loads what it writes: see docs/l"),
        (["encode"], "; did you mean embed?"),
        (["train", "text-classification"], "; did you mean classify?"),
        (
            ["train", "classify", "-m", "x", "--data", "y", "--metric", "f1"],
            "once each; got 'f1'; did you mean macro-f1?",
        ),
        (["train", "--config", "."], "--config .: expected a file, such as config.toml"),
        (["predict", "-m", "none", "--text", "a"], "--model none: no such file or folder exists"),
        (["predict", "-m", ".", "--text", "a"], "run folder of `toynn train vit` or classify, or"),
        (["tape", "xro"], "xro: expected one of xor, gpt2, "),
    ],
)
def test_a_word_that_is_nearly_right(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_no_path_is_empty(capsys):
    """Path("") is the current folder, and an unset variable of the shell is empty."""
    places = ("PATH", "FILE", "DIR", "FOLDER", "RUN")
    checks = {
        (name, action.dest): action.type
        for name, parser in _parsers(_parser(), "toynn")
        for action in parser._actions
        if str(action.metavar).partition("[")[0] in places and not name.startswith("toynn train")
    }
    options = {(name, each.flag): each for name in JOBS for each in OPTIONS[name].values()}
    checks |= {
        name: each.check for name, each in options.items() if each.is_path and each.help != SUPPRESS
    }
    assert len(checks) > 50
    for check in checks.values():
        with pytest.raises(ArgumentTypeError, match="must be a path, not empty; got "):
            check("")
    for words in (["train", "--resume", ""], ["train", "gpt2", "--resume="]):
        assert main(words) == 2
        assert "--resume: expected the folder of a run after it" in capsys.readouterr().err


def test_every_name_of_others_stands_for_one_of_our_own():
    """And is not one itself."""
    parser = _parser()
    commands = {name: parser.known([name]) for name in parser._subparsers._group_actions[0].choices}
    flags = {flag[2:] for known in commands.values() for flag in known if flag.startswith("--")}
    for recipe in JOBS:
        flags |= {flag[2:] for flag in parser.known(["train", recipe]) if flag.startswith("--")}
    assert set(FLAGS.values()) <= flags
    assert {own.split()[0] for own in COMMANDS.values()} <= {*commands, *JOBS}
    assert not set(COMMANDS) & set(commands)
    for table in (COMMANDS, FLAGS, VALUES):
        assert all(name != own for name, own in table.items())
    known = {f"--{flag}" for flag in flags}
    for name, advice in ADVICE.items():
        assert name not in COMMANDS and name not in commands
        assert set(re.findall(r"--[a-z-]+", advice)) <= known
        assert all(name in commands for name in re.findall(r"toynn ([a-z]+) -", advice))
        assert all((ROOT / page).exists() for page in re.findall(r"docs/[\w.]+", advice))


def test_words_of_other_programs(files, monkeypatch):
    lora = ["train", "lora", "-m", "base.gguf", "--iters", "3", "--batch-size", "1", "--out", "run"]
    lora += ["--learning-rate", "0.01", "--max-seq-length", "8", "--steps-per-eval", "2"]
    assert main([*lora, "--data", "text.txt", "--warmup", "0"]) == 0
    text = (files / "run" / "config.toml").read_text()
    assert "steps = 3\n" in text and "batch = 1\n" in text and "seq = 8\n" in text
    assert "lr = 0.01\n" in text and "eval_every = 2\n" in text
    assert main(["generate", "-m", "base.gguf", "-p", "a", "-n", "2"]) == 0


def test_files_of_another_kind(files, capsys):
    (files / "some.jsonl").write_text(json.dumps({"text": "a"}))
    bpe_file(files / "vocab.gguf")
    for path in ("a/x.png", "run/config.toml", "run/metrics.jsonl", "run/model.gguf"):
        (files / path).parent.mkdir(exist_ok=True)
        (files / path).touch()
    lora = ["train", "lora", "--model", "base.gguf", "--data", "text.txt"]
    for words, message in (
        (["predict", "--model", "base.gguf", "x.png"], "base.gguf: it is a text model; predict"),
        (
            ["train", "vit", "--data", "some.jsonl"],
            "expected pictures: a folder with one folder per class",
        ),
        (["train", "lora", "-m", "base.gguf", "--data", "run"], ": this is the folder of a run, n"),
        (["train", "lora", "-m", "base.gguf", "--data", "a", "--loss", "dpo"], "got x.png"),
        (["train", "warm-start", "--donor", "a"], "--donor a: expected a GGUF file; got a folder"),
        (["convert", "a", "--out", "o.gguf"], "a Hugging Face folder, with config.json; got anoth"),
        (["convert", "b", "--out", "o.gguf"], "with config.json; no such folder exists"),
        (
            ["convert", "run", "--out", "o.gguf"],
            f"a GGUF file already, {Path('run', 'model.gguf')}",
        ),
        (["tokenizer", "train", "--data", "a", "--out", "o"], "expected train.jsonl in it; got x"),
        (["generate", "-m", "vocab.gguf", "-p", "a"], "it has a vocabulary and no weights"),
        ([*lora, "--adapter", "a", "--adapter", "b"], "--adapter: given twice"),
        (
            ["train", "vit", "--data", "a", "--data", "b"],
            "--data: given twice; a run has one data set",
        ),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


def test_a_folder_of_another_kind_is_named_and_what_reads_it(files, capsys):
    gpt2 = ["train", "gpt2", *SMALL, "--d-model", "16", "--heads", "2", "--layers", "1"]
    assert main([*gpt2, "--out", "text"]) == 0
    lora = ["train", "lora", "--model", "base.gguf", "--data", "text.txt", "--steps", "1"]
    assert main([*lora, "--warmup", "0", "--seq", "8", "--out", "lora"]) == 0
    with gguf.open("base.gguf"):
        SequenceEngine.from_gguf("base.gguf", 4, build=False).export_hf("hf")
    for folder, recipe in (("begun", "gpt2"), ("begun-vit", "vit"), ("vit", "vit")):
        (files / folder).mkdir()
        (files / folder / "config.toml").write_text(f'[run]\nrecipe = "{recipe}"\n')
    vits.make().save(files / "vit" / "model.safetensors")
    (files / "bad").mkdir()
    (files / "bad" / "config.toml").write_bytes(b"\xff = [")
    (files / "bad" / "config.json").write_text("{")
    for folder, message in (
        ("text", "this run is a text model; predict takes models of `toynn train vit` and "
         "classify. `toynn generate --model text` runs a text model"),
        ("lora", "this run is an adapter of a text model; `toynn generate --model BASE --adapter "
         "lora` generates"),
        ("hf", "it is a text model; predict"),
        ("begun", "this run is a text model"),
        ("begun-vit", "this run has no model yet: it was stopped, or is still running; `toynn "
         "train --resume begun-vit`"),
        ("bad", "bad/config.json: not JSON"),
        ("none", "none: no such file or folder exists"),
    ):  # fmt: skip
        assert main(["predict", "--model", folder, "x.png"]) == 2
        assert message in capsys.readouterr().err
    for command in ("generate -p a", "chat", "export --to hf --out o",
                    "check --data text.txt"):  # fmt: skip
        assert main([*command.split(), "--model", "vit"]) == 2
        assert "this run is a model of pictures; `toynn predict" in capsys.readouterr().err
        assert main([*command.split(), "--model", "begun"]) == 2
        assert "this run has no model yet" in capsys.readouterr().err


def test_what_to_install_is_on_the_index():
    """Messages name libraries: toynn itself, with its extras, may be a checkout alone."""
    for path in Path(toynn.__file__).parent.rglob("*.py"):
        assert not re.search(r"install ['\"]?toynn\[", path.read_text()), path


def test_what_is_more_than_there_can_be_is_said(files, capsys):
    lora = ["train", "lora", "--model", "base.gguf", "--data", "text.txt", "--steps", "2"]
    assert main([*lora, "--warmup", "0", "--rank", "99", "--seq", "100", "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "rank 99 is more than blk.0.attn_q.weight has rows or columns" in out
    assert "--seq 100: the model's context is 64 tokens: rows have 64" in out


def test_runs_of_one_second_have_folders_of_their_own(files, monkeypatch, capsys):
    monkeypatch.setattr("toynn.jobs.run.time.strftime", lambda _: "now")
    for _ in range(2):
        words = ["train", "gpt2", *SMALL, "--d-model", "16", "--heads", "2", "--layers", "1"]
        assert main(words) == 0
    assert sorted(path.name for path in (files / "runs").iterdir()) == ["gpt2-now", "gpt2-now-2"]
    with RunFolder.fresh(files / "runs" / "gpt2-now") as folder:
        assert folder.path.name == "gpt2-now-3"


def test_info_says_how_far_a_run_came(files, capsys):
    words = ["train", "gpt2", *SMALL, "--d-model", "16", "--heads", "2", "--layers", "1"]
    assert main([*words, "--out", "run", "--save-every", "2", "--eval-every", "2"]) == 0
    reports = [
        json.loads(line) for line in (files / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    best = min((r for r in reports if "val_loss" in r), key=lambda r: r["val_loss"])
    capsys.readouterr()
    assert main(["info", "run"]) == 0
    out = capsys.readouterr().out
    assert "steps reached          4 of 4" in out and "state                  done" in out
    assert f"{best['val_loss']:.4f} at step {best['iteration']}, the best" in out
    kept = reports[: [r["iteration"] for r in reports].index(2) + 1]
    (files / "run" / "metrics.jsonl").write_text("\n".join(map(json.dumps, kept)) + "\n")
    (files / "run" / "run.json").unlink()  # which says how it ended
    assert main(["info", "run"]) == 0
    out = capsys.readouterr().out
    assert "2 of 4" in out and "stopped before its end: toynn train --resume run" in out


def test_what_things_look_like(files):
    recipe = LoRA()
    assert repr(recipe) == "LoRA(not realized)"
    recipe.realize("base.gguf", None, 2, toynn.RecipeOptions(t_seq=8))
    session = recipe.engine.session
    assert repr(session.tape).startswith("Tape(") and len(repr(session.tape)) < 60
    assert "parameters, " in repr(recipe) and len(repr(recipe)) < 120
    assert repr(session).startswith("Session(cpu, ") and len(repr(session)) < 140
    assert repr(ByteTokenizer()) == "ByteTokenizer(Bytes, 256 tokens)"
    ids = np.arange(8, dtype=np.int32)
    recipe.step(ids, None, ids, toynn.AdamW.for_lora().hp_for_step(0), True)
    folded = session.tape._repr_html_()
    assert folded.startswith("<pre") and folded.count("<details>") == folded.count("</details>") > 1
    for shown in (session.profile(), session.memory()):
        html = shown._repr_html_()
        assert html.startswith("<pre") and html.endswith("</pre>") and "<" not in html[4:-6]
    session.close()
    assert repr(session) == "Session(closed)"
    names = dir(toynn)
    assert "Session" in names and not {"sys", "Path", "said", "flags_stay"} & set(names)
    assert {"linear", "TABLE"} < set(dir(toynn.ops))
    assert not {"ADD", "import_module"} & set(dir(toynn.ops))
    assert all(hasattr(toynn, name) for name in names)


def test_adapters_summed_by_export(files, capsys):
    with gguf.open("base.gguf") as file:
        for name, seed in (("a.gguf", 1), ("b.gguf", 2)):
            adapters.write_gguf(name, draw(file, seed=seed))
        words = ["export", "--to", "gguf", "--adapter", "a.gguf:0.5", "b.gguf", "--out", "c.gguf"]
        assert main(words) == 0
        some = [adapters.load(name, file) for name in ("a.gguf", "b.gguf")]
        expected = adapters.combine(some, [0.5, 1.0])
        found = adapters.load("c.gguf", file)
    for name, values in expected.tensors.items():
        np.testing.assert_allclose(found.tensors[name], values, rtol=1e-6)
    assert main([*words[:-1], "d.gguf", "--method", "linear"]) == 0


def test_an_adapter_is_shown_before_and_after(files, capsys):
    rows = [{"prompt": f"{n}: ", "completion": "yes"} for n in range(12)]
    (files / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (files / "valid").mkdir()
    for name, part in (("train", rows[:8]), ("valid", rows[8:])):
        (files / "valid" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
    words = ["train", "lora", "--model", "base.gguf", "--data", "valid", "--steps", "30"]
    assert main([*words, "--warmup", "0", "--lr", "0.05", "--rank", "8", "--out", "run"]) == 0
    out = capsys.readouterr().out
    shown = out.partition("--- held-out prompts, greedy ---\n")[2].partition("\n---")[0]
    lines = shown.splitlines()
    assert len(lines) == 3 * 4
    assert lines[0] == "prompt    8: " and lines[1] == "expected  yes"
    assert lines[2].startswith("before    ") and lines[3].startswith("after     yes")
    assert not lines[2].startswith("before    yes")
    assert (files / "run" / "sample.txt").read_text().startswith("prompt    8: \n")


def test_of_long_prompts_and_answers_the_near_ends_are_shown(monkeypatch):
    monkeypatch.setattr(before_after, "sample", lambda *given, **more: [33])
    ids, labels = np.full(1300, 98), np.full(1300, -100)
    ids[:90], ids[90:600], labels[599:-1], labels[700:] = 97, 99, 98, 100
    (found,) = before_after.before_and_after(
        lambda: None, None, ByteTokenizer(), [[(ids, labels)]], 4
    )
    assert found["prompt"] == "..." + "a" * 2 + "c" * 510
    assert found["expected"] == "b" * 101 + "d" * 411 + "..."
    assert found["before"] == found["after"] == "!"


def test_a_run_ends_with_a_line_for_each_program_that_loads_its_adapter(files, capsys):
    """Not llama.cpp, for the base's tokens are bytes."""
    assert main(["train", "lora", "--model", "base.gguf", *SMALL, "--out", "run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("try it "))
    assert lines[first:] == [
        "try it      toynn generate --adapter run --prompt ...",
        "for PEFT    toynn export --to hf --model base.gguf --out FOLDER",
    ]


def test_lines_fit_into_a_terminal(files, capsys):
    """All but commands, which are there to be copied, and what models write."""
    (files / "rows.jsonl").write_text('{"prompt": "a ", "completion": "b"}\n' * 9)
    lora = ["train", "lora", "--model", "base.gguf", "--data", "rows.jsonl", "--steps", "2"]
    lora += ["--warmup", "0", "--rank", "99", "--seq", "900", "--dora", "--targets", "q,embed"]
    assert main([*lora[:-2], "--out", "run"]) == 0
    fuse = ["fuse", "--model", "base.gguf", "--adapter", "run", "--out", "new.gguf"]
    assert main([*fuse, "--outtype", "Q8_0"]) == 0
    assert main(["eval", "--model", "base.gguf", "--data", "text.txt"]) == 0
    printed = capsys.readouterr()
    lines = [*printed.out.splitlines(), *printed.err.splitlines()]
    assert any(line.startswith("precision ") for line in lines)
    assert any("there will be no adapter.gguf" in line for line in lines)
    shown = ("prompt ", "expected ", "before ", "after ", "try it ", "for PEFT ")
    assert [line for line in lines if len(line) > 80 and not line.startswith(shown)] == []
    assert "MiB" not in printed.out and " MB" in printed.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lora", "--model", "base.gguf", "--targets", "x"], "--targets: this llama has no 'x'"),
        (["lora", "--model", "base.gguf", "--adapter", "none.gguf"], "none.gguf: cannot read"),
        (["lora", "--model", "empty"], "--model empty: expected a .gguf file, a run folder"),
        (
            ["lora", "--model", "base.gguf", "--loss", "dpo", "--metric", "kl"],
            "--metric kl: it is for texts",
        ),
        (
            ["gpt2", "--init-from", "base.gguf"],
            "does not train llama: use `toynn train from-scratch --init-",
        ),
        (["gpt2", "--init-from", "empty"], "--init-from empty: expected a .gguf file, a run"),
    ],
)
def test_what_cannot_be_is_said_before_data_are_read(files, words, message, capsys):
    (files / "empty").mkdir()
    assert main(["train", *words, "--data", "none.jsonl"]) == 2
    assert message in capsys.readouterr().err


LORA = ["train", "lora", "--model", "base.gguf", "--data"]


@pytest.mark.parametrize(
    "words",
    [
        ["train", "lora", "--model", "none.gguf", "--data", "text.txt"],
        [*LORA, "none.jsonl"],
        [*LORA, "bad.jsonl", "--seq", "999"],
        [*LORA, "text.txt", "bad.jsonl"],
        [*LORA, "text.txt", "--batch", "9999999", "--precision", "auto"],
        [*LORA, "text.txt", "--epochs", "1", "--steps", "3", "--warmup", "99", "--seq", "8"],
        [*LORA, "text.txt", "--out", "run"],
        ["train", "--resume", "run", "--steps", "8", "--lr", "0.5"],
        ["train", "gpt2", "--data", "text.txt", "--batch", "9999999"],
        ["train", "from-scratch", "--data", "text.txt", "--heads", "3"],
        ["train", "warm-start", "--data", "text.txt", "--donor", "none.gguf"],
        ["train", "vit", "--data", "none"],
        ["train", "vit", "--patch", "3"],
        ["eval", "--model", "base.gguf", "--data", "bad.jsonl"],
        ["generate", "--model", "none.gguf", "--prompt", "a"],
        ["chat", "--model", "base.gguf"],
        ["check", "--model", "none.gguf", "--data", "text.txt"],
        ["fuse", "--model", "base.gguf", "--adapter", "none", "--out", "new.gguf"],
        ["export", "--to", "peft", "--adapter", "none", "--out", "new"],
        ["convert", "none", "--out", "new.gguf"],
        ["info", "none"],
        ["predict", "--model", "none", "a.png"],
        ["runs", "none"],
        ["plot", "run", "none"],
        ["report", "none"],
        ["bench", "--only", "none"],
    ],
    ids=" ".join,
)
def test_nothing_is_printed_before_an_error(started, words, capsys, monkeypatch):
    monkeypatch.chdir(started)
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("toynn: ") and printed.err.count("\n") == 1


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A run that has begun, and data of which a row is wrong."""
    files = tmp_path_factory.mktemp("started")
    write_base(files / "base.gguf", vocab=256, context=64)
    (files / "text.txt").write_text("the cat sat on the mat and the rat sat on the cat " * 12)
    (files / "bad.jsonl").write_text('{"prompt": "a ", "completion": "b"}\n{}\n')
    lora = [*LORA, "text.txt", "--steps", "2", "--warmup", "0", "--seq", "8", "--out", "run"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(files)
        assert main(lora) == 0
    return files


def test_losses_go_to_stdout(files, capsys):
    """As lines, where there is no terminal: `> log.txt` keeps them."""
    assert main(["train", "gpt2", *SMALL, *TINY, "--log-every", "2", "--out", "run"]) == 0
    printed = capsys.readouterr()
    steps = [line.split()[1] for line in printed.out.splitlines() if line.startswith("step ")]
    assert steps == ["0/4", "2/4", "4/4"] and "step 4/4  loss " in printed.out
    assert printed.err == ""


@pytest.mark.parametrize(
    "words",
    [
        ["gpt2", "--data", "text.txt"],
        ["gpt2", "--data", "rows.jsonl"],
        ["from-scratch", "--data", "text.txt"],
        ["from-scratch", "--data", "text.txt", "--init-from", "base.gguf"],
        ["from-scratch", "--data", "text.txt", "--tokenizer", "words.gguf"],
        ["warm-start", "--data", "text.txt", "--donor", "base.gguf"],
        ["lora", "--data", "text.txt", "--model", "base.gguf"],
        ["lora", "--data", "rows.jsonl", "--model", "base.gguf", "--dora"],
    ],
    ids=" ".join,
)
def test_try_it_is_a_command_that_works(files, words, capsys):
    """As typed in the folder where the run was started."""
    try_it(files, words, capsys)


def test_try_it_names_a_tokenizer_that_the_model_has_not(files, capsys, monkeypatch):
    def carry_tokenizer(self, path):
        raise DataError("it has no place in such a file")

    monkeypatch.setattr(SequenceEngine, "carry_tokenizer", carry_tokenizer)
    words = ["from-scratch", "--data", "text.txt", "--tokenizer", "words.gguf"]
    assert try_it(files, words, capsys)[4:6] == ["--tokenizer", "words.gguf"]


def try_it(files, words, capsys):
    """Train, and do what the run says last; return that."""
    (files / "rows.jsonl").write_text('{"prompt": "a ", "completion": "b"}\n' * 3)
    bpe_file(files / "words.gguf")
    shape = [] if "lora" in words or "--init-from" in words else TINY
    assert main(["train", *words, *SMALL[:-2], *shape, "--out", "a run"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("try it ")]
    command = shlex.split(line.removeprefix("try it"))
    assert command[:2] == ["toynn", "generate"]
    assert main([*command[1:], "--max-tokens", "3"]) == 0
    return command


TINY = ["--d-model", "16", "--heads", "2", "--layers", "1"]


def test_refusals_name_flags_not_fields(files, capsys):
    for words, message in (
        (["--patch", "3"], "error: --patch must divide --image-size; got --patch 3, --image-size"),
        (["--heads", "3"], "error: --heads must divide --d-model; got 3 and 64"),
    ):
        assert main(["train", "vit", *words]) == 2
        assert message in capsys.readouterr().err
    assert (
        main(["train", "from-scratch", "--data", "text.txt", "--arch", "phi3", "--qkv-bias"]) == 2
    )
    assert "got --qkv-bias\n" in capsys.readouterr().err


def test_what_is_typed_goes_before_an_adapter_of_a_file(files, capsys):
    with gguf.open("base.gguf") as file:
        adapters.write_gguf("a.gguf", draw(file))
    lora = ["train", "lora", "--model", "base.gguf", *SMALL, "--adapter", "a.gguf"]
    assert main([*lora, "--out", "run"]) == 0
    again = ["train", "--config", "run/config.toml", "--adapter", "run", "--out", "again"]
    assert main(again) == 0, capsys.readouterr().err
    assert 'adapter = "run"' in (files / "again" / "config.toml").read_text()


# --- what is held out ----------------------------------------------------------------------------


@pytest.fixture
def few(files):
    rows = [{"prompt": f"{n}: ", "completion": "yes"} for n in range(6)]
    (files / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (files / "other.jsonl").write_text("\n".join(map(json.dumps, rows[:2])))
    return ["train", "lora", "--model", "base.gguf", "--data", "rows.jsonl", *SMALL[:8]]


def test_of_few_rows_none_are_held_out(files, few, capsys):
    assert main([*few, "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "6 examples: nothing is held out" in out and "(the newest, at step 4)" in out
    assert "--- training prompts" in out and "validation" not in out.partition("\nloss ")[2]
    lines = [
        json.loads(line) for line in (files / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert not any("val_loss" in line for line in lines)
    assert main(["train", "--resume", "run", "--steps", "6"]) == 0


@pytest.mark.parametrize(
    ("more", "rows"), [(["--valid", "other.jsonl"], 2), (["--holdout", "2"], 2)]
)
def test_what_is_held_out_is_said(files, few, more, rows, capsys):
    assert main([*few, *more, "--out", "run"]) == 0
    assert "validation" in capsys.readouterr().out.partition("\nloss ")[2]
    counts = tomllib.loads((files / "run" / "config.toml").read_text())["data"]
    assert (counts["train"], counts["valid"]) == (6 if "--valid" in more else 4, 2)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--valid", "other.jsonl", "--holdout", "1"], "is the validation data already: give one"),
        (["--valid", "text.txt"], "text.txt: the validation data are a text"),
        (["--holdout", "6"], "and 6 to hold out; got 6 in all"),
        (["--holdout", "1.5"], "must be a share below 1, a whole number of rows, or 0"),
        (["--holdout", "-1"], "must be a share below 1"),
        (["--metric", "kl"], "--metric kl: nothing is held out to measure it on: name a file"),
        (["--early-stopping", "2"], "--metric loss: nothing is held out"),
        (["--questions", "quiz.jsonl"], "or hold rows out by --holdout, or choose by"),
    ],
)
def test_nothing_is_held_out_and_something_is_asked_of_it(files, few, more, message, capsys):
    quiz = {"question": "a", "choices": ["b", "c"], "answer": 0}
    (files / "quiz.jsonl").write_text(json.dumps(quiz))
    assert main([*few, *more, "--out", "run"]) == 2
    assert message in capsys.readouterr().err


def test_the_best_by_questions_alone(files, few, capsys):
    quiz = {"question": "a", "choices": ["b", "c"], "answer": 0}
    (files / "quiz.jsonl").write_text(json.dumps(quiz))
    more = ["--questions", "quiz.jsonl", "--metric", "accuracy", "--out", "run"]
    assert main([*few, *more]) == 0
    assert "(the best by accuracy, at step 4)" in capsys.readouterr().out
    assert main(["train", "--resume", "run", "--steps", "6"]) == 0


def test_a_text_of_which_nothing_is_held_out(files, capsys):
    gpt2 = ["train", "gpt2", *SMALL, "--d-model", "16", "--heads", "2", "--layers", "1"]
    assert main([*gpt2, "--holdout", "0", "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "600 tokens, none of them held out" in out and "baseline" not in out
    assert "of the training data, then" in out
    assert main([*gpt2, "--valid", "text.txt", "--out", "two"]) == 0
