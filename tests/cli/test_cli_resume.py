"""`toynn train --resume` and `--config`: the same files, bit for bit; what differs is refused."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hang import HANG
from lora_bases import write_base
from small_encoders import of_bytes

import toynn
from toynn import _kernels
from toynn.cli import main, parsed
from toynn.cli.train import job_of
from toynn.engines.engine import Engine
from toynn.errors import NonFiniteError
from toynn.jobs.made import OPTIONS
from toynn.options import RENAMED
from toynn.runs import Record
from toynn.train import Trainer

TEXT = "the cat sat on the mat and the rat sat on the cat " * 12
RUN = ("--steps", "6", "--warmup", "1", "--lr", "0.01", "--batch", "2", "--grad-accum", "2")
RUN += ("--log-every", "1", "--eval-every", "2", "--save-every", "2", "--max-grad-norm", "0.5")
SHAPE = ("--d-model", "16", "--heads", "2", "--layers", "1")
DECAY, SAMPLES = ("--decay", "matrices"), ("--sample-every", "1")
LINES = ("--data", "pairs.jsonl", "--seq", "24")
TOKENS = ("--data", "tokens.bin", "--seq", "8")
BASE = ("--model", "base.gguf", "--dropout", "0.3", "--targets", "q,v", "--cache", "cached")
GPT2 = (*RUN, *SHAPE, "--seq", "8", "--decay", "matrices", "--sample-every", "2")
GROUPS = ("--data", "prompts.jsonl", "--reward", "rewards.py:low", "length:4", "--beta", "0.1")
GROUPS += ("--num-generations", "3", "--num-iterations", "3", "--max-completion-length", "6")
TEXTS = ("--model", "encoder.gguf", "--data", "texts.csv", "--columns", "label=kind")
COMMANDS = {
    "gpt2": (*GPT2, "--data", "text.txt"),
    "from-scratch": (*RUN, *LINES, "--init-from", "base.gguf", "--checkpointing", *DECAY),
    "warm-start": (*RUN, *TOKENS, *SHAPE, "--donor", "base.gguf", "--lr-schedule", "wsd"),
    "lora": (*RUN, *LINES, *BASE, *SAMPLES),
    "grpo": (*RUN, *BASE[:-2], *SAMPLES, *GROUPS),
    "classify": (*RUN, *TEXTS, "--method", "lora", "--dropout", "0.3", "--metric", "macro-f1"),
    "embed": (*RUN, "--data", "answers.csv", *TEXTS[:2], "--mini-batch", "3", "--epochs", "4"),
    "rerank": (*RUN, "--data", "passages.csv", *TEXTS[:2], "--method", "lora", "--dropout", "0.3"),
    "vit": (*RUN, "--data", "pictures.npz", *SHAPE, "--flip", "--epochs", "0.7", *DECAY),
}
#: Files that say when it was, and how long it took.
TIMED = ("complete.json", "trainer_state.json", "run.json", "report.html")
VARYING = ("time", "peak_memory")
VARYING += tuple(f"{each}_per_second" for each in ("tokens", "images", "pairs", "texts", "samples"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text(TEXT)
    np.frombuffer(TEXT.encode(), np.uint8).astype(np.uint16).tofile(folder / "tokens.bin")
    pairs = [{"prompt": f"say {n}: ", "completion": "abc" * (n % 3 + 1)} for n in range(20)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    write_base(folder / "base.gguf", vocab=256, context=64)
    asked = [{"prompt": f"say {n}: ", "n": n} for n in range(24)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, asked)))
    (folder / "rewards.py").write_text(
        "def low(prompts, completions, n, **columns):\n"
        "    return [sum(ord(c) % 9 < 3 + k % 4 for c in s) for s, k in zip(completions, n)]\n"
    )
    rows = [f'"{n}, {"high" if n % 3 else "low"}",{n % 3}\n' for n in range(20)]
    (folder / "texts.csv").write_text("text,kind\n" + "".join(rows))
    rows = [f"is {n % 7} a cat?,a cat is {n % 5},{n % 3 / 2}\n" for n in range(20)]
    (folder / "answers.csv").write_text("anchor,positive,n\n" + "".join(rows))
    (folder / "passages.csv").write_text("query,passage,score\n" + "".join(rows))
    of_bytes(folder / "encoder.gguf", folder / "encoder", context=32, n_layers=1)
    images = np.random.default_rng(1).integers(0, 256, (40, 8, 8), np.uint8)
    np.savez(folder / "pictures.npz", images=images, labels=np.arange(40) % 2)
    return folder


@pytest.fixture
def here(files, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setattr("toynn.jobs.text.SAMPLE_TOKENS", 2)
    monkeypatch.setattr("toynn.jobs.text.SAMPLE_ON_THE_WAY", 3)
    return files


def contents(folder):
    """All that is alike in two runs that are."""
    found = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = str(path.relative_to(folder))
        if path.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{k: v for k, v in x.items() if k not in VARYING} for x in lines]
        elif path.name not in TIMED:
            found[name] = path.read_bytes()
    return found


class Killed(BaseException):
    """A run is over from one moment to the next."""


def die():
    raise Killed


def begun(name, out, act=die, step=5):
    """A run that is ended by an act behind a step."""

    def on_step(self, event, on_step=Trainer._step):
        on_step(self, event)
        if self.result.iterations == step:
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", on_step)
        with suppress(Killed):
            return main(["train", name, *COMMANDS[name], "--out", str(out)])
    return "killed"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_config_repeats_a_run_and_a_killed_one_is_resumed(name, here, tmp_path, capsys):
    assert main(["train", name, *COMMANDS[name], "--out", str(tmp_path / "a")]) == 0
    config = str(tmp_path / "a" / "config.toml")
    typed = GROUPS[2:5] if name == "grpo" else ()  # a program is typed
    assert main(["train", "--config", config, *typed, "--out", str(tmp_path / "b")]) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert begun(name, tmp_path / "c", step=6) == "killed"
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "c")]) == 0
    assert f"run folder  {tmp_path / 'c'}, resumed from step 4" in capsys.readouterr().out
    assert contents(tmp_path / "c") == contents(tmp_path / "a")


def rewritten(path, text):
    """Write a file of a run, and, where it is a checkpoint's, what its marker says of it."""
    path.write_text(text)
    if (marker := path.with_name("complete.json")).exists():
        said = json.loads(marker.read_text())
        whole = {"bytes": len(text.encode()), "crc32": zlib.crc32(text.encode())}
        said["files"][path.name] = whole
        marker.write_text(json.dumps(said))


def aged(run):
    """Give options in a run's folder the names that they had in older runs."""
    for path in (run / "config.toml", *run.rglob("trainer_state.json")):
        text = path.read_text()
        quoted = path.suffix == ".json"
        for old, new in RENAMED.items():
            before, after = (f'"{n}":' if quoted else f"\n{n} = " for n in (new, old))
            assert before in text or (quoted and new == "prepack")  # which need not be the same
            text = text.replace(before, after)
        rewritten(path, text)


def changed(run, change):
    """Change what the checkpoints of a run say of its options."""
    for path in run.rglob("trainer_state.json"):
        state = json.loads(path.read_text())
        change(state["identity"]["config"])
        rewritten(path, json.dumps(state))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_checkpoint_from_before_there_was_an_option_means_its_default(
    name, here, tmp_path, capsys
):
    """As if all options that are compared, and are as usual, had come since it was saved."""
    assert begun(name, tmp_path / "run", step=6) == "killed"
    usual = {each.name: each.default for each in OPTIONS[name].values() if each.source == "same"}
    gone = set()

    def forget(config):
        gone.update(key for key, value in config.items() if usual.get(key) == value)
        for key in gone:
            config.pop(key, None)

    changed(tmp_path / "run", forget)
    assert "allreduce" in gone and len(gone) > 5
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "other"), "--allreduce", "fast"]) == 2
    assert "config.allreduce: 'ordered' then, 'fast' now;" in capsys.readouterr().err


def test_a_run_with_older_names_of_options_is_resumed(here, tmp_path, capsys):
    words = [
        "train",
        "lora",
        *RUN,
        *LINES,
        *BASE,
        "--loraplus-lr-ratio",
        "4",
        "--prepack",
        "always",
    ]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMMANDS, "lora", tuple(words[2:]))
        assert begun("lora", tmp_path / "b", step=5) == "killed"
    aged(tmp_path / "b")
    flags = tmp_path / "flags.toml"
    flags.write_bytes((tmp_path / "b" / "config.toml").read_bytes())
    assert main(["train", "--resume", str(tmp_path / "b")]) == 0
    for run in ("a", "b"):
        (tmp_path / run / "config.toml").unlink()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert main(["train", "--config", str(flags), "--out", str(tmp_path / "c")]) == 0
    kept = tomllib.loads((tmp_path / "c" / "config.toml").read_text())["train"]
    assert (kept["loraplus_lr_ratio"], kept["prepack"], kept["metric"]) == (4, "always", "loss")
    flags.write_text("[run]\nrecipe = 'lora'\n[train]\nb_rate = 2\nloraplus_lr_ratio = 2")
    capsys.readouterr()
    assert main(["train", "--config", str(flags)]) == 2
    said = capsys.readouterr().err
    assert "there is no option 'b_rate'; its name is loraplus_lr_ratio now" in said


def test_samples_on_the_way(here, tmp_path, capsys):
    """The same start goes on otherwise as the model learns; they are printed, too."""
    out = tmp_path / "out"
    assert main(["train", "gpt2", *COMMANDS["gpt2"], "--out", str(out)]) == 0
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [2, 4, 6]
    said = capsys.readouterr().out
    for line in lines:
        assert len(line["text"].encode()) >= 32 + 3
        assert f"--- sample, step {line['iteration']} ---" in said
    assert TEXT.find(lines[0]["text"][:32]) >= 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_a_checkpoint(number, here, tmp_path, capsys):
    out = tmp_path / "out"
    code = begun("gpt2", out, lambda: signal.raise_signal(number), 3)
    assert code == 128 + number
    assert f"continue with: toynn train --resume {out}" in capsys.readouterr().out
    assert (out / "checkpoint-3" / "complete.json").exists()
    assert main(["train", "gpt2", "--resume", str(out / "checkpoint-3")]) == 0


def test_a_run_that_goes_back_says_what_it_drops(here, tmp_path, capsys):
    out, more = tmp_path / "out", ("--save-total-limit", "0")
    assert main(["train", "gpt2", *COMMANDS["gpt2"], *more, "--out", str(out)]) == 0
    assert main(["train", "--resume", str(out), "--steps", "8"]) == 0
    assert "is dropped" not in capsys.readouterr().out
    before = contents(out)
    assert main(["train", "--resume", str(out / "checkpoint-6")]) == 0
    told = "resumed from step 6; what was saved after it, up to step 8, is dropped\n"
    assert told in capsys.readouterr().out
    assert contents(out) == before


def test_a_signal_within_a_slow_first_step_says_how_to_go_on(here, tmp_path, capsys, monkeypatch):
    """The gradients of its first micro-batch are in the checkpoint."""
    out, accumulate = tmp_path / "out", Engine.accumulate

    def interrupted(engine, batch):
        signal.raise_signal(signal.SIGINT)
        return accumulate(engine, batch)

    monkeypatch.setattr(Engine, "accumulate", interrupted)
    monkeypatch.setattr("toynn.train.loop.PATIENCE", -1.0)
    words = ["train", "gpt2", *COMMANDS["gpt2"]]
    assert main([*words, "--out", str(out)]) == 130
    assert f"continue with: toynn train --resume {out}" in capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert main(["train", "--resume", str(out)]) == 0
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    assert (out / "model.gguf").read_bytes() == (tmp_path / "whole" / "model.gguf").read_bytes()


@pytest.mark.parametrize(("name", "flag"), [("gpt2", "--model"), ("lora", "--adapter")])
def test_what_a_kill_leaves_is_usable(name, flag, here, tmp_path, capsys):
    out, more = tmp_path / "out", [] if name == "gpt2" else ["--model", "base.gguf"]
    assert begun(name, out, step=1) == "killed"
    assert main(["info", str(out)]) == 0
    words = [*more, flag, str(out)]
    assert main(["generate", *words, "--prompt", "the", "--max-tokens", "2"]) == 0
    if name == "gpt2":
        assert main(["export", *words, "--to", "hf", "--out", str(tmp_path / "hf")]) == 0
        start = ["--init-from", str(out), "--data", "text.txt", "--seq", "8", "--steps", "1"]
        assert main(["train", name, *start, "--out", str(tmp_path / "next")]) == 0
    else:
        assert main(["export", *words, "--to", "peft", "--out", str(tmp_path / "peft")]) == 0
        assert main(["fuse", *words, "--out", str(tmp_path / "fused.gguf")]) == 0
        start = ["--adapter", str(out), *more, "--data", "pairs.jsonl", "--steps", "1"]
        assert main(["train", name, *start, "--out", str(tmp_path / "next")]) == 0


def test_differences_are_refused_unless_forced(here, tmp_path, capsys):
    out = tmp_path / "out"
    begun("lora", out)
    lines = (here / "pairs.jsonl").read_bytes()
    try:
        (here / "pairs.jsonl").write_bytes(lines.replace(b"abc", b"abd"))
        capsys.readouterr()
        words = ["train", "--resume", str(out), "--lr", "0.5", "--threads", "1"]
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "config.lr: 0.01 then, 0.5 now; data.sha256: " in said and "threads" not in said
        assert main([*words, "--force-resume"]) == 0
    finally:
        (here / "pairs.jsonl").write_bytes(lines)


def state_of(folder):
    """Each file and folder below one: its bytes, and when it was last written."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in (folder, *folder.rglob("*"))
    }


def level_beside():
    """A level of the kernels that this CPU has beside the one in use."""
    others = [level for level in _kernels.supported_levels() if level != _kernels.level]
    if not others:
        pytest.skip("this CPU has one level of the kernels")
    return others[0]


@pytest.mark.parametrize("name", ["gpt2", "lora", "vit"])
def test_a_refused_resume_leaves_the_folder_as_it_was(name, here, tmp_path, capsys):
    """Of a run that is done: its files, their times and the folder's own."""
    out = tmp_path / "out"
    assert main(["train", name, *COMMANDS[name], "--out", str(out)]) == 0
    before, record = state_of(out), Record.read(out)
    resume = ["train", "--resume", str(out)]
    capsys.readouterr()
    for words, message in (
        (["--steps", "5"], "6 steps (batches: "),
        (["--steps", "5", "--force-resume"], "expected at least as many; got steps: 5; give"),
        (["--epochs", "0.1"], "give more --steps or --epochs, or resume from an earlier"),
        (
            ["--lr", "0.5", "--steps", "9"],
            "config.lr: 0.01 then, 0.5 now; change these back, or force it",
        ),
        (["--batch", "3"], "config.batch: 2 then, 3 now"),
        (["--warmup", "2"], "config.warmup: 1 then, 2 now"),
        (["--metric", "perplexity"], "config.metric: 'loss' then, 'perplexity' now"),
        (["--backend", "reference"], "backend: 'cpu' then, 'reference' now"),
        (["--precision", "high"], "matmul precision: '"),
        (["--early-stopping", "0", "--grad-accum", "3"], "config.grad_accum: 2 then, 3 now"),
        (["--out", "x"], "stays in its own folder"),
        (["--data", "none"], "none"),
    ):
        if name == "vit" and words[0] == "--metric":
            words, message = ["--metric", "accuracy"], "config.metric: 'loss' then, 'accuracy'"
        assert main([*resume, *words]) == 2, words
        assert message in capsys.readouterr().err, words
        assert state_of(out) == before, words
    assert Record.read(out).state == record.state == (True, "done")


def test_another_isa_level_is_refused(here, tmp_path):
    out = tmp_path / "out"
    assert main(["train", "gpt2", *COMMANDS["gpt2"], "--out", str(out)]) == 0
    before, level = state_of(out), level_beside()
    words = [sys.executable, "-m", "toynn", "train", "--resume", str(out), "--steps", "8"]
    said = {"capture_output": True, "text": True, "env": {**os.environ, "TOYNN_ISA": level}}
    done = subprocess.run(words, check=False, **said)
    assert done.returncode == 2
    assert f"ISA level: '{_kernels.level}' then, '{level}' now" in done.stderr
    assert state_of(out) == before
    assert subprocess.run([*words, "--force-resume"], check=False, **said).returncode == 0
    state = json.loads((out / "checkpoint-8" / "trainer_state.json").read_text())
    assert state["identity"]["ISA level"] == level


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_that_is_extended_can_itself_be_resumed(name, here, tmp_path, capsys):
    """Its config.toml says how long it is: no flag is typed again."""
    more = ["--epochs", "1.35"] if name == "vit" else ["--steps", "11"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for out in (whole, cut):
        assert main(["train", name, *COMMANDS[name], "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", str(whole), *more, "--eval-every", "3"]) == 0
    assert "extended    from 6 steps to 11; 6 are done\nrates       " in capsys.readouterr().err

    def on_step(self, event, on_step=Trainer._step):
        on_step(self, event)
        if self.result.iterations == 9:
            die()

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(Trainer, "_step", on_step)
        main(["train", "--resume", str(cut), *more, "--eval-every", "3"])
    assert (cut / "checkpoint-8").is_dir() and not (cut / "checkpoint-10").exists()
    assert main(["train", "--resume", str(cut)]) == 0
    assert contents(cut) == contents(whole)
    kept = tomllib.loads((cut / "config.toml").read_text())
    assert (kept["train"]["eval_every"], kept["train"]["warmup"]) == (3, 1)
    assert kept["run"]["steps"] == 11
    record = Record.read(cut)
    assert (record.planned, record.steps, record.state) == (11, 11, (True, "done"))
    assert f"toynn train --resume {cut} --steps 22" in (cut / "report.html").read_text()


def test_steps_that_are_typed_go_before_the_epochs_of_the_file(here, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["train", "vit", *COMMANDS["vit"], "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", str(out), "--steps", "8"]) == 0
    assert "extended    from 6 steps to 8" in capsys.readouterr().err
    flags = tomllib.loads((out / "config.toml").read_text())["train"]
    assert flags["steps"] == 8 and "epochs" not in flags
    assert main(["train", "--resume", str(out), "--epochs", "1.2"]) == 0
    assert tomllib.loads((out / "config.toml").read_text())["train"]["epochs"] == 1.2


def test_a_forced_resume_is_what_the_run_then_is(here, tmp_path, capsys):
    out = tmp_path / "out"
    begun("gpt2", out)
    assert main(["train", "--resume", str(out), "--lr", "0.5", "--force-resume"]) == 0
    assert tomllib.loads((out / "config.toml").read_text())["train"]["lr"] == 0.5
    assert main(["train", "--resume", str(out)]) == 0


def test_a_run_that_ended_early_is_not_extended_but_with_more_patience(here, tmp_path, capsys):
    out = tmp_path / "out"
    words = [*COMMANDS["gpt2"], "--lr", "5", "--min-lr-ratio", "1", "--early-stopping", "1"]
    assert main(["train", "gpt2", *words, "--out", str(out)]) == 0
    before, more = state_of(out), ["train", "--resume", str(out), "--steps", "8"]
    assert main(more) == 2
    assert "has ended early, after 1 evaluations without a better one" in capsys.readouterr().err
    assert state_of(out) == before
    assert main([*more, "--early-stopping", "0"]) == 0
    assert Record.read(out).steps == 8


@pytest.mark.parametrize("name", ["gpt2", "from-scratch"])
def test_the_same_bits_with_tokens_on_the_disk(name, here, tmp_path, monkeypatch):
    """Beside the folder of the run, where there is much data; as for a run that is resumed."""
    assert main(["train", name, *COMMANDS[name], "--out", str(tmp_path / "a")]) == 0
    assert not (tmp_path / "tokens").exists()
    monkeypatch.setattr("toynn.jobs.text.CACHED", 100)
    below = tmp_path / "below"
    assert main(["train", name, *COMMANDS[name], "--out", str(below / "a")]) == 0
    assert contents(below / "a") == contents(tmp_path / "a")
    assert begun(name, below / "c") == "killed"
    monkeypatch.setattr("toynn.data.jsonl.rows", lambda *_: pytest.fail("made twice"))
    assert main(["train", "--resume", str(below / "c" / "checkpoint-4")]) == 0
    assert contents(below / "c") == contents(tmp_path / "a")
    made = [each.name for each in (below / "tokens").glob("*")]
    assert len(made) == (name == "from-scratch"), "bytes are mapped where they are"


def test_tokens_are_those_of_the_text(here, tmp_path):
    """A .bin of bytes, and the text: one model. The hash is that of the file."""
    for name, data in (("a", "text.txt"), ("b", "tokens.bin")):
        words = [*GPT2, "--data", data, "--out", str(tmp_path / name)]
        assert main(["train", "gpt2", *words]) == 0
    a, b = (contents(tmp_path / name) for name in "ab")
    assert tomllib.loads(a.pop("config.toml").decode())["data"]["bytes"] == len(TEXT)
    data = tomllib.loads(b.pop("config.toml").decode())["data"]
    assert data["sha256"] == hashlib.sha256((here / "tokens.bin").read_bytes()).hexdigest()
    assert data["train"] + data["valid"] == len(TEXT)
    assert a == b


def test_data_that_change_are_noticed(here, tmp_path, capsys):
    """Mapped ones at the next evaluation, others when the run is resumed."""
    tokens, before = here / "tokens.bin", (here / "tokens.bin").read_bytes()
    words = [*GPT2, "--data", "tokens.bin", "--out", str(tmp_path / "out")]
    try:
        with pytest.MonkeyPatch.context() as patch:

            def on_step(self, event, on_step=Trainer._step):
                on_step(self, event)
                if self.result.iterations == 3:
                    tokens.write_bytes(np.frombuffer(before, np.uint16)[::-1].tobytes())

            patch.setattr(Trainer, "_step", on_step)
            assert main(["train", "gpt2", *words]) == 2
        assert "tokens.bin: changed since it was opened" in capsys.readouterr().err
        assert not (tmp_path / "out" / "checkpoint-4").exists()
        assert main(["train", "--resume", str(tmp_path / "out")]) == 2
        assert "data.sha256: '" in capsys.readouterr().err
    finally:
        tokens.write_bytes(before)
    assert main(["train", "--resume", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("recipe", ["gpt2", "from-scratch", "warm-start", "lora"])
def test_tokens_that_are_refused(recipe, here, tmp_path, capsys):
    bad = tmp_path / "bad.bin"
    source = {"lora": ["--model", "base.gguf"], "warm-start": ["--donor", "base.gguf"]}
    words = [recipe, *source.get(recipe, []), "--data", str(bad), "--out", str(tmp_path / "out")]
    for content, message in (
        (bytes(7), "got 7 bytes, an odd number"),
        (np.full(999, 256, np.uint16).tobytes(), "token 0: expected ids of 0..255; got 256"),
        (b"PK\x03\x04" + bytes(999), "it is a zip archive, as PyTorch's checkpoints are"),
    ):
        bad.write_bytes(content)
        assert main(["train", *words]) == 2
        said = capsys.readouterr().err
        assert f"toynn: error: {bad}: " in said and message in said
    assert not (tmp_path / "out").exists()


def test_another_base_is_refused(here, tmp_path, capsys):
    out, base = tmp_path / "out", here / "base.gguf"
    begun("lora", out)
    content = base.read_bytes()
    try:
        base.write_bytes(content[:-4] + bytes(4))
        assert main(["train", "--resume", str(out)]) == 2
        assert "base.model: '" in capsys.readouterr().err
    finally:
        base.write_bytes(content)
    assert main(["train", "--resume", str(out)]) == 0


def test_two_runs_in_one_folder(here, tmp_path, capsys):
    out = tmp_path / "out"
    begun("gpt2", out)
    ready = "import sys; from pathlib import Path; from toynn.train.lock import Lock; "
    ready += "lock = Lock(Path(sys.argv[1])); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", ready, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        assert main(["train", "--resume", str(out)]) == 2
        assert f"another run is writing there (process {other.pid})" in capsys.readouterr().err
        other.communicate()
    assert main(["train", "--resume", str(out)]) == 0


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("[train]\nstep = 3", "gpt2", "gpt2: there is no option 'step'; did you mean steps?"),
        ("[train]\nzzz = 3", "gpt2", "there is no option 'zzz'; it has data, "),
        ("[tran]\nsteps = 3", "gpt2", "tran is not known; did you mean train?"),
        ("train = 3", "gpt2", "train: expected a table, [train]; got 3"),
        ("[train]\nsteps = 0", "gpt2", "argument --steps: must be a whole number from 1"),
        (
            "[train]\nsteps = true",
            "gpt2",
            "from 1 to 2147483647; got True",
        ),
        (
            "[train]\nsteps = [1]",
            "gpt2",
            "from 1 to 2147483647; got [1]",
        ),
        (
            "[train]\ncheckpointing = 1",
            "gpt2",
            "--checkpointing: must be True or False; got 1",
        ),
        (
            "[train]\nlr_schedule = 'x'",
            "gpt2",
            "--lr-schedule: must be one of cosine, linear",
        ),
        ("[train]\nout = 'x'", "gpt2", "there is no option 'out'"),
        ("[train]", "", "run.recipe: missing"),
        (
            "[run]\nrecipe = 'gpt3'",
            "",
            "expected one of gpt2, from-scratch, warm-start, lora, grpo, vit",
        ),
        ("[run]\nrecipe = ['gpt2']", "", "got ['gpt2']"),
        ("[run]\nrecipe = 'vit'", "gpt2", "this file belongs to a run of vit, not of gpt2"),
        ("[run", "gpt2", "not TOML: "),
        (None, "gpt2", "cannot read: No such file"),
    ],
)
def test_bad_files_of_flags(text, words, message, here, tmp_path, capsys):
    path = tmp_path / "flags.toml"
    if text is not None:
        path.write_text(text)
    assert main(["train", *words.split(), "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said and (str(path) in said or "argument" in said)


def test_typed_flags_go_before_those_of_the_file(here, tmp_path):
    path = tmp_path / "flags.toml"
    flags = ("steps = 3", "crop = false", "flip = true", "lr = 1e-3", "data = 'pictures.npz'")
    path.write_text("\n".join(("[run]", "recipe = 'vit'", "[train]", *flags)))
    words = [f"--config={path}", "--steps", "2", "--no-flip", "--out", str(tmp_path / "out")]
    assert main(["train", *words]) == 0
    kept = tomllib.loads((tmp_path / "out" / "config.toml").read_text())["train"]
    assert (kept["steps"], kept["flip"], kept["crop"], kept["lr"]) == (2, False, False, 1e-3)
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(("warmup", "kept"), [(100, None), (50, 50)])
def test_a_warmup_that_was_derived_is_derived_anew(warmup, kept, tmp_path):
    path = tmp_path / "flags.toml"
    path.write_text(f"[run]\nrecipe = 'gpt2'\n[train]\nsteps = 1500\nwarmup = {warmup}\n")
    found = job_of(parsed(["train", f"--config={path}", "--steps", "40"]))
    assert found.options.warmup == kept


def test_resume_has_its_own_folder_and_needs_a_checkpoint(here, tmp_path, capsys):
    out = tmp_path / "out"
    begun("gpt2", out, step=1)
    assert main(["train", "--resume", str(out)]) == 2
    assert f"{out}: no complete checkpoint in it" in capsys.readouterr().err
    assert main(["train", "--resume", str(out), "--out", "x"]) == 2
    assert "--out: a resumed run stays in its own folder" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "none")]) == 2
    assert f"--resume {tmp_path / 'none'}: no such run folder exists" in capsys.readouterr().err
    (tmp_path / "no run").mkdir()
    assert main(["train", "--resume", str(tmp_path / "no run")]) == 2
    assert (
        f"--resume {tmp_path / 'no run'}: expected the folder of a run" in capsys.readouterr().err
    )


def test_no_evaluations(here, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["train", "gpt2", *COMMANDS["gpt2"], "--eval-every", "0", "--out", str(out)]) == 0
    assert "(the newest, at step 6)" in capsys.readouterr().out
    assert "val_loss" not in (out / "metrics.jsonl").read_text()
    newest = (out / "checkpoint-6" / "best" / "model.gguf").read_bytes()
    assert newest == (out / "model.gguf").read_bytes()


@pytest.mark.parametrize("by", ["flags", "file"])
@pytest.mark.parametrize(("epochs", "steps", "taken"), [("1", "2", 2), ("0.5", "99", 5)])
def test_of_epochs_and_steps_what_ends_first_ends_the_run(
    here, epochs, steps, taken, by, tmp_path, capsys
):
    words = [
        "train",
        "from-scratch",
        *COMMANDS["from-scratch"],
        "--grad-accum",
        "1",
        "--no-packing",
    ]
    words += ["--out", str(tmp_path / "run")]
    if by == "file":
        at = words.index("--steps")
        del words[at : at + 2]
        config = f"[train]\nsteps = {steps}\nepochs = {epochs}\n"
        (tmp_path / "some.toml").write_text(config)
        words += ["--config", str(tmp_path / "some.toml")]
    else:
        words += ["--epochs", epochs, "--steps", steps]
    assert main(words) == 0
    said = f"--steps {steps}" if taken == 2 else f"--epochs {epochs}"
    assert f"the run ends after {said}" in " ".join(capsys.readouterr().out.split())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["iteration"] == taken
    kept = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (kept["train"]["steps"], kept["train"]["epochs"]) == (int(steps), float(epochs))
    assert kept["run"]["steps"] == taken
    config = str(tmp_path / "run" / "config.toml")
    assert main(["train", "--config", config, "--out", str(tmp_path / "again")]) == 0
    assert f"the run ends after {said}" in " ".join(capsys.readouterr().out.split())
    assert contents(tmp_path / "again") == contents(tmp_path / "run")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "7"]) == 0


@pytest.mark.parametrize(
    ("more", "taken"), [([], 18), (["--steps", "3"], 3), (["--epochs", "0.5"], 9)]
)
def test_a_run_by_epochs_begins_anew_with_other_data(here, more, taken, tmp_path):
    """An epoch is 9 steps, and 18 of twice the data; what is typed replaces the file's length."""
    at = COMMANDS["from-scratch"].index("--steps")
    words = [*COMMANDS["from-scratch"][at + 2 :], "--grad-accum", "1", "--no-packing"]
    run = tmp_path / "run"
    assert main(["train", "from-scratch", *words, "--epochs", "1", "--out", str(run)]) == 0
    kept = tomllib.loads((run / "config.toml").read_text())
    assert kept["run"]["steps"] == 9 and "steps" not in kept["train"]
    assert Record.read(run).planned == 9
    rows = (here / "pairs.jsonl").read_text()
    (tmp_path / "twice.jsonl").write_text(f"{rows}\n{rows}")
    words = ["--config", str(run / "config.toml"), "--data", str(tmp_path / "twice.jsonl")]
    assert main(["train", *words, *more, "--out", str(tmp_path / "again")]) == 0
    lines = (tmp_path / "again" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["iteration"] == taken


def test_epochs_take_what_is_left(here, tmp_path):
    """18 examples in batches of 2, by 4: updates of 4, 4 and 1 of them."""
    words = [*COMMANDS["from-scratch"], "--epochs", "1", "--grad-accum", "4", "--log-every", "1"]
    words.append("--no-packing")
    assert main(["train", "from-scratch", *words, "--out", str(tmp_path / "out")]) == 0
    lines = map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines())
    trained = [line["trained_tokens"] for line in lines]
    assert len(trained) == 4
    assert trained[3] - trained[2] < trained[2] - trained[1]


def test_early_stopping(here, tmp_path, capsys):
    words = [*COMMANDS["gpt2"], "--lr", "5", "--min-lr-ratio", "1", "--early-stopping", "1"]
    assert main(["train", "gpt2", *words, "--out", str(tmp_path / "out")]) == 0
    said = "stopped     after 2 steps: 1 evaluation in a row without a better metric"
    assert said in capsys.readouterr().out


def test_updates_that_are_not_finite_are_skipped_when_asked(here, tmp_path, monkeypatch, capsys):
    def train(self, *given, train=toynn.recipes.GPT2.train):
        if self.step_index == 2 and not hasattr(self, "failed"):
            self.failed = True
            raise NonFiniteError("gradient norm is nan")
        return train(self, *given)

    monkeypatch.setattr(toynn.recipes.GPT2, "train", train)
    for more, code in (((), 2), (("--on-nonfinite", "skip"), 0)):
        words = [*COMMANDS["gpt2"], *more, "--out", str(tmp_path / f"out{code}")]
        assert main(["train", "gpt2", *words]) == code
    assert "step 3: gradient norm is nan; try a lower" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("closed", "code", "message"),
    [
        ("> /dev/full", 0, None),
        ("2>&-", 0, None),
        (">&- 2>&- <&-", 0, None),
        ("2> /dev/full", 0, None),
    ],
)
def test_streams_that_cannot_be_written(closed, code, message, here, tmp_path):
    words = " ".join(["train", "gpt2", *COMMANDS["gpt2"], "--out", str(tmp_path / "out")])
    command = f"exec {sys.executable} -m toynn {words} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    if message is None:
        assert (tmp_path / "out" / "model.gguf").exists()
    else:
        assert message in done.stderr and not (tmp_path / "out").exists()


def test_no_file_gets_the_number_of_a_closed_stream():
    """What is said on stderr by its number, as a signal's handler does, would land in that file."""
    code = (
        "import os; from toynn.cli import main; main(['config']); "
        "assert os.path.samestat(os.fstat(2), os.stat(os.devnull))"
    )
    command = f'exec {sys.executable} -c "{code}" > /dev/null 2>&-'
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0


SLOW = """
import sys, time
from toynn.cli import main
from toynn.recipes import GPT2

def train(self, *given, train=GPT2.train):
    if self.step_index == 4:
        print("slow", flush=True)
        time.sleep(3600)
    return train(self, *given)

GPT2.train = train
sys.exit(main(sys.argv[1:]))
"""


def test_a_second_signal_stops_at_once_and_costs_no_checkpoint(here, tmp_path):
    """Within a step that takes an hour; the run goes on from the last checkpoint."""
    out, run = tmp_path / "out", ["train", "gpt2", *COMMANDS["gpt2"], "--sample-every", "0"]
    words = [sys.executable, "-c", SLOW, *run, "--out", str(out)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while b"slow" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        while b"finishing the step" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG) == -signal.SIGINT
    assert (out / "checkpoint-4" / "complete.json").exists()
    assert main(["train", "--resume", str(out)]) == 0
    assert main([*run, "--out", str(tmp_path / "straight")]) == 0
    ours, straight = contents(out), contents(tmp_path / "straight")
    assert ours.pop("sample.txt") and straight.pop("sample.txt")
    assert ours == straight


def test_a_terminal_that_goes(here, tmp_path):
    """SIGHUP comes with a terminal that cannot be written any more."""
    import pty

    main_end, other = pty.openpty()
    words = [*COMMANDS["gpt2"], "--steps", "1000000", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "toynn", "train", "gpt2", *words],
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
    )
    os.close(other)
    seen = b""
    while b"20/1000000" not in seen:
        seen += os.read(main_end, 10_000)
    os.close(main_end)
    process.send_signal(signal.SIGHUP)
    assert process.wait(HANG) == 129
    assert main(["train", "--resume", str(tmp_path / "out"), "--steps", "1"]) == 2
    assert len(list((tmp_path / "out").glob("checkpoint-*/complete.json"))) == 2


def test_what_cannot_be_written_at_last_is_dropped(tmp_path, monkeypatch):
    """Or Python, flushing at exit, would end with 120 whatever a run's own exit code is."""
    stream = (tmp_path / "log").open("w")
    stream.write("pending")
    with Path("/dev/full").open("wb", buffering=0) as full:
        os.dup2(full.fileno(), stream.fileno())
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(["config"]) == 0
    stream.close()  # flushes, and no longer into what is full


# --- from another folder -------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", COMMANDS)
@pytest.mark.parametrize("by", ["resume", "config"])
def test_a_run_goes_on_from_another_folder(here, recipe, by, tmp_path, monkeypatch):
    """Relative paths are of the run's first working directory, which config.toml keeps."""
    run = tmp_path / "run"
    more = ["--questions", "quiz.jsonl"] if recipe == "lora" else []
    quiz = {"question": "a", "choices": ["b", "c"], "answer": 0}
    (here / "quiz.jsonl").write_text(json.dumps(quiz))
    assert main(["train", recipe, *COMMANDS[recipe], *more, "--out", str(run)]) == 0
    kept = tomllib.loads((run / "config.toml").read_text())
    monkeypatch.chdir(tmp_path)
    if by == "config":
        typed = ["--reward", "length:4"] if recipe == "grpo" else []  # a program is typed
        assert main(["train", "--config", "run/config.toml", *typed, "--out", "again"]) == 0
        found = tomllib.loads((tmp_path / "again" / "config.toml").read_text())
        assert found["data"] | {"name": ""} == kept["data"] | {"name": ""}
        assert found["run"]["directory"] == str(tmp_path)
        assert Path(found["train"]["data"]).is_absolute()
        return
    more = ["--epochs", "1.5"] if recipe == "vit" else ["--steps", "8"]
    assert main(["train", "--resume", "run", *more]) == 0
    found = tomllib.loads((run / "config.toml").read_text())
    changed = ("steps", "epochs")
    assert found["data"] == kept["data"]
    assert found["run"] | {"steps": 6} == kept["run"]
    assert {k: v for k, v in found["train"].items() if k not in changed} == {
        k: v for k, v in kept["train"].items() if k not in changed
    }


def test_a_tree_that_was_moved_goes_on(here, tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "text.txt").write_text(TEXT)
    monkeypatch.chdir(first)
    assert main(["train", "gpt2", *COMMANDS["gpt2"], "--out", "run"]) == 0
    monkeypatch.chdir(tmp_path)
    first.rename(second)
    monkeypatch.chdir(second)
    assert main(["train", "--resume", "run", "--steps", "8"]) == 0


def test_a_path_that_is_typed_elsewhere_is_kept_whole(here, tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert main(["train", "gpt2", *COMMANDS["gpt2"], "--out", str(run)]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "run", "--steps", "8", "--cache", "tokens"]) == 0
    kept = tomllib.loads((run / "config.toml").read_text())["train"]
    assert (kept["data"], kept["cache"]) == ("text.txt", str(tmp_path / "tokens"))
