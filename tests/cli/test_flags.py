"""Flags of ``toynn train``: every one of every recipe changes something that can be seen.

Each run is made twice, once with the flag and once without; what is seen is what is printed, the
files but those that repeat the flags, the memory of a step, and the process's settings.
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args, get_origin

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow, of the images extra, is not installed")
from lora_bases import write_base
from pictures import class_folders
from small_encoders import of_bytes
from some_adapters import draw
from vocabs import bpe_file

import toynn
from toynn.cli import main, parsed, train
from toynn.engines import LlamaSeqEngine
from toynn.errors import ConfigError
from toynn.formats import adapters, gguf
from toynn.formats.tokenizer import Tokenizer
from toynn.jobs import text
from toynn.jobs.made import JOBS, OPTIONS, made
from toynn.jobs.options import arranged
from toynn.jobs.run import build as build_job
from toynn.options import option, options_of, whole

TEXT = "the cat sat on the mat and the rat sat on the cat " * 12
RUN = {"--steps": "4", "--warmup": "1", "--lr": "0.01", "--batch": "2", "--out": "out"}
RUN |= {"--log-every": "2", "--eval-every": "2"}
SHAPE = {"--d-model": "16", "--heads": "2", "--layers": "1"}
TEXTS = {"--data": "text.txt", "--seq": "8"}
#: The words of a run without the flag.
BASES = {
    "gpt2": {**RUN, **TEXTS, **SHAPE},
    "from-scratch": {**RUN, **TEXTS, **SHAPE},
    "warm-start": {**RUN, **TEXTS, **SHAPE, "--donor": "base.gguf"},
    "lora": {**RUN, **TEXTS, "--model": "base.gguf"},
    "grpo": {**RUN, "--data": "asked.csv", "--model": "base.gguf", "--reward": "length:4"}
    | {"--num-generations": "3", "--max-completion-length": "5"},
    "classify": {**RUN, "--data": "kinds.csv", "--model": "encoder.gguf"},
    "embed": {**RUN, "--data": "answers.csv", "--model": "encoder.gguf"},
    "rerank": {**RUN, "--data": "passages.csv", "--model": "encoder.gguf"},
    "vit": {**RUN, "--data": "pictures.npz", **SHAPE},
}
CRAFTED = {"--method": "lora"}
WRITTEN = {"--teacher": "other.gguf", "--data": "pairs.jsonl", "--seq": "64"}
TWICE = {"--num-iterations": "2"}
TRIPLES = {"--data": "triples.csv", "--loss": "triplet"}
FRESH = dict.fromkeys(SHAPE)
#: What each flag is given; "" is a switch. In a pair, the second are more words, of both runs; a
#: None takes a flag of the base away: --init-from leaves no choice about it. By recipe, if that
#: matters.
SEEN = {
    "--adapter": "adapter.gguf",
    "--act": "silu",
    "--alpha": {"classify": ("3", CRAFTED), "": "3"},
    "--arch": "qwen3",
    "--loraplus-lr-ratio": {"classify": ("16", CRAFTED), "": "16"},
    "--backend": "reference",
    "--batch": "3",
    "--beta": {
        "grpo": "0.5",
        "": ("0.5", {"--data": "prefer.jsonl", "--seq": "24", "--loss": "dpo"}),
    },
    "--delta": ("1.0001", TWICE),
    "--epsilon": ("0.0001", TWICE),
    "--epsilon-high": ("0.0001", TWICE),
    "--importance-cap": "0.9",
    "--importance-sampling-level": ("sequence", TWICE),
    "--loss-type": ("grpo", {"--max-completion-length": "70", "--reward": "length:50"}),
    "--mask-truncated-completions": "",
    "--lmbda": ("1", WRITTEN),
    "--max-completion-length": {"grpo": "3", "": ("3", WRITTEN | {"--lmbda": "1"})},
    "--num-generations": "4",
    "--num-iterations": "2",
    "--reward": "number:n",
    "--reward-weights": "2",
    "--scale-rewards": "none",
    "--temperature": "0.5",
    "--top-k": "3",
    "--top-p": "0.5",
    "--activations": ("bfloat16", {"--steps": "3"}),
    "--checkpointing": {
        "lora": "",
        "grpo": "",
        "classify": ("", {"--model": "another.gguf"}),
        "": ("", {"--layers": "2"}),
    },
    "--cache": ("tokens", {"--data": "pairs.jsonl", "--seq": "64"}),
    "--class-weights": "balanced",
    "--labels": "2,1,0",
    "--method": {"embed": "lora", "": "head"},
    "--problem": "number",
    "--separator": (";", {"--data": "several.jsonl", "--holdout": "1"}),
    "--too-long": {"rerank": ("drop", {"--seq": "30"}), "": ("drop", {"--seq": "12"})},
    "--columns": {
        "classify": "label=other",
        "embed": "positive=other",
        "grpo": ("answer=n", {"--reward": "number"}),
        "rerank": "label=other",
        "": ("text=other", {"--data": "columns.csv", "--seq": "64"}),
    },
    "--crop": "--no-crop",
    "--dims": "4,16",
    "--margin": ("1", TRIPLES),
    "--mini-batch": {"grpo": "1", "": "3"},
    "--prompts": "anchor=x",
    "--scale": "3",
    "--symmetric": "",
    "--d-ff": "40",
    "--d-model": "8",
    "--data": {
        "vit": "other.npz",
        "grpo": "more_asked.csv",
        "classify": "others.csv",
        "embed": "triples.csv",
        "rerank": "more.csv",
        "": "other.txt",
    },
    "--decay": {"classify": "all", "": "matrices"},
    "--depth": ("1", {"--layers": None}),
    "--desirable-weight": ("2", {"--data": "prefer.jsonl", "--seq": "24", "--loss": "kto"}),
    "--donor": "other.gguf",
    "--dora": {"classify": ("", CRAFTED), "": ""},
    "--document-separator": " the ",
    "--dropout": {"classify": ("0.5", CRAFTED), "": "0.5"},
    "--config": "flags.toml",
    "--early-stopping": ("1", {"--lr": "5", "--min-lr-ratio": "1", "--eval-every": "1"}),
    "--epochs": "0.3",
    "--eval-every": "1",
    "--eval-pictures": "3",
    "--flip": "",
    "--grad-accum": "2",
    "--heads": "1",
    "--image-size": "4",
    "--init": {"lora": "normal", "grpo": "normal", "classify": ("normal", CRAFTED), "": "scratch"},
    "--init-from": {"vit": ("vit", FRESH), "gpt2": ("gpt2.gguf", FRESH), "": ("base.gguf", FRESH)},
    "--init-scale": "3",
    "--kv-heads": "1",
    "--label-smoothing": {
        "lora": ("0.3", {"--data": "prefer.jsonl", "--seq": "24", "--loss": "dpo"}),
        "": "0.3",
    },
    "--loss": {
        "embed": ("infonce", TRIPLES),
        "": ("orpo", {"--data": "prefer.jsonl", "--seq": "24", "--loss": "dpo"}),
    },
    "--keep-attention": {
        "lora": ("", {"--checkpointing": ""}),
        "grpo": ("", {"--checkpointing": ""}),
        "classify": ("", {"--checkpointing": "", "--model": "deeper.gguf"}),
        "": ("", {"--checkpointing": "", "--layers": "4"}),
    },
    "--layers": "2",
    "--log-every": "1",
    "--lorafa": {"classify": ("", CRAFTED), "": ""},
    "--lr": "0.02",
    "--lr-schedule": {"classify": "wsd", "": "linear"},
    "--max-grad-norm": "0.01",
    "--memory": "1G",
    "--metric": {
        "vit": "accuracy",
        "classify": "accuracy",
        "embed": "loss",
        "rerank": "accuracy",
        "": "loss,perplexity",
    },
    "--min-lr-ratio": "0.5",
    "--momentum": ("0.5", {"--optimizer": "muon"}),
    "--mixup": "0",
    "--holdout": "0",
    "--model": {"classify": "another.gguf", "": "other.gguf"},
    "--no-bias": "",
    "--no-mask-prompt": ("", {"--data": "pairs.jsonl", "--seq": "64"}),
    "--no-packing": ("", {"--data": "pairs.jsonl", "--seq": "64"}),
    "--norm": "rmsnorm",
    "--num-layers": {"classify": ("1", CRAFTED | {"--model": "another.gguf"}), "": "1"},
    "--optimizer": "muon",
    "--out": "elsewhere",
    "--patch": "4",
    "--precision": {"lora": "high", "grpo": "high", "": "medium"},
    "--qkv-bias": "",
    "--prepack": {
        "grpo": ("never", {"--model": "wide.gguf"}),
        "": ("never", {"--model": "wide.gguf", "--seq": "64"}),
    },
    "--rank": {"classify": ("3", CRAFTED), "": "3"},
    "--sample-every": "2",
    "--save-every": {"classify": "1", "": "2"},
    "--save-total-limit": ("1", {"--save-every": "1"}),
    "--questions": "asked.jsonl",
    "--recompute-cheap": "",
    "--report": "none",
    "--rslora": {"classify": ("", CRAFTED), "": ""},
    "--seed": "7",
    "--seq": "6",
    "--skip-unreadable": ("", {"--data": "folders", "--image-size": "8"}),
    "--steps": "3",
    "--teacher": {"classify": "tuned", "embed": "another.gguf", "": "other.gguf"},
    "--teacher-beta": ("0.5", {"--teacher": "other.gguf"}),
    "--teacher-temperature": ("2", {"--teacher": "other.gguf"}),
    "--teacher-top-k": ("2", {"--teacher": "other.gguf"}),
    "--teacher-weight": {
        "classify": ("0.9", {"--teacher": "tuned"}),
        "embed": ("0.9", {"--teacher": "another.gguf"}),
        "": ("0.9", {"--teacher": "other.gguf"}),
    },
    "--targets": {"classify": ("q", CRAFTED), "": "q"},
    "--threads": "3",
    "--tokenizer": {
        "warm-start": ("words.gguf", {"--init": "scratch"}),
        "lora": ("fewer.gguf", {"--model": "named.gguf"}),
        "grpo": ("fewer.gguf", {"--model": "named.gguf"}),
        "": "words.gguf",
    },
    "--truncation-mode": ("keep_end", {"--data": "pairs.jsonl", "--seq": "10"}),
    "--undesirable-weight": ("2", {"--data": "prefer.jsonl", "--seq": "24", "--loss": "kto"}),
    "--untied": "",
    "--warmup": "3",
    "--valid": {
        "grpo": "more_asked.csv",
        "classify": "others.csv",
        "embed": "more_answers.csv",
        "rerank": "more.csv",
        "": "other.txt",
    },
    "--weight-decay": "0.9",
    "--weight-dtype": "bf16",
}
UNITS = ("tokens", "images", "texts", "samples")
#: Files that repeat the flags, and say how long it took.
TOLD = ("config.toml", "run.json", "report.html")
#: Recipes whose parser knows a flag only to say why it is none.
REFUSED = {("warm-start", "--init-from"), ("grpo", "--metric"), ("grpo", "--activations")}
#: What only changes a run that was begun before, or that goes wrong: tests/cli/test_cli_resume.py;
#: or one of several processes: tests/train/test_ranks.py; or of another model's adapter:
#: tests/cli/test_cli_strict.py; or that refuses data: tests/data/test_bounds.py; or is seen in a
#: model that answers otherwise: tests/cli/test_cli_metrics.py; or where the rewards run:
#: tests/cli/test_cli_grpo.py.
ELSEWHERE = ("--resume", "--force-resume", "--on-nonfinite", "--allreduce", "--strict")
ELSEWHERE += ("--max-line", "--max-unpacked", "--rank-timeout", "--question-delimiter")
ELSEWHERE += ("--reward-timeout", "--reward-in-process")
CASES = [
    (name, each.flag)
    for name, options in OPTIONS.items()
    for each in options.values()
    if each.flag not in ELSEWHERE
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Models, adapters, texts and pictures."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text(TEXT)
    (folder / "other.txt").write_text(TEXT[::-1])
    (folder / "flags.toml").write_text("[train]\nmax_grad_norm = 0.01\n")
    pairs = [{"prompt": f"say {n}: ", "completion": "abc" * (n % 3 + 1)} for n in range(20)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (folder / "columns.csv").write_text("text,other\n" + "the cat,a rat\na rat,a mat\n" * 4)
    asked = {"question": "the cat", "choices": ["sat", "x"], "answer": 0}
    for name in ("kinds", "others"):
        rows = [f'"the {name}, {n}",{n % 3},{n % 2}\n' for n in range(20)]
        (folder / f"{name}.csv").write_text("text,label,other\n" + "".join(rows))
    for name, fields, tail in (
        ("answers", "anchor,positive,other", "the dog {0},the rat {0}"),
        ("more_answers", "anchor,positive,other", "a dog {0},a rat {0}"),
        ("triples", "anchor,positive,negative", "the dog {0},the mat {0}"),
        ("passages", "query,passage,label,other", "the dog {0},{1},{2}"),
        ("asked", "prompt,n,other", "{0},{1}"),
        ("more_asked", "prompt,n,other", "{1},{0}"),
        ("more", "query,passage,label,other", "a dog {0},{1},{2}"),
    ):
        tails = [tail.format(n, n % 2, n % 3 / 2) for n in range(20)]
        rows = [f"the {n} cat {'sat ' * (n % 5)},{each}" for n, each in enumerate(tails)]
        (folder / f"{name}.csv").write_text("\n".join([fields, *rows]))
    rows = ['{"text": "the cat", "labels": "0;2"}', '{"text": "a rat", "labels": "2"}'] * 5
    (folder / "several.jsonl").write_text("\n".join(rows))
    for n, name in enumerate(("encoder", "another", "deeper")):
        of_bytes(folder / f"{name}.gguf", folder / name, context=32, n_layers=n + 1)
    (folder / "asked.jsonl").write_text(json.dumps(asked) + "\n")
    prefer = [{"prompt": f"{n}: ", "chosen": "ab" * (n % 3 + 1), "rejected": "x"} for n in range(9)]
    (folder / "prefer.jsonl").write_text("\n".join(map(json.dumps, prefer)))
    write_base(folder / "base.gguf", vocab=256, context=64)
    write_base(folder / "other.gguf", vocab=256, context=64, d_model=48)
    write_base(folder / "gpt2.gguf", "gpt2", vocab=256, context=64)
    wide = {"d_model": 256, "n_heads": 4, "n_kv_heads": 2, "d_ff": 512, "n_layers": 1}
    write_base(folder / "wide.gguf", vocab=256, context=64, **wide)
    with gguf.open(folder / "base.gguf") as file:
        adapters.write_gguf(folder / "adapter.gguf", draw(file))
    rng = np.random.default_rng(1)
    for name in ("pictures", "other"):
        images = rng.integers(0, 256, (40, 8, 8), np.uint8)
        np.savez(folder / f"{name}.npz", images=images, labels=np.arange(40) % 2)
    with pytest.MonkeyPatch.context() as context:
        context.chdir(folder)
        assert main(["train", "vit", *words(BASES["vit"] | {"--out": "vit"})]) == 0
        assert main(["train", "classify", *words(BASES["classify"] | {"--out": "tuned"})]) == 0
    bpe_file(folder / "words.gguf")
    bpe_file(folder / "fewer.gguf", missing=("q",))  # other ids
    size = Tokenizer.of(folder / "words.gguf").vocab_size
    write_base(folder / "plain.gguf", vocab=size, context=64)
    named = LlamaSeqEngine.from_gguf(folder / "plain.gguf", build=False)
    named.carry_tokenizer(folder / "words.gguf")
    named.export_gguf(folder / "named.gguf")
    class_folders(folder / "folders", {"x": 10, "y": 10})
    (folder / "folders" / "x" / "bad.png").write_bytes(b"no picture")
    return folder


class See:
    """Runs commands, and sees what comes of them."""

    def __init__(self, files, known, folder, monkeypatch, capsys):
        self.files, self.known, self.folder = files, known, folder
        self.patch, self.capsys = monkeypatch, capsys

    def once(self, recipe, flags):
        """What is seen of a run that has been made before, perhaps."""
        key = recipe, *flags.items()
        if key not in self.known:
            self.known[key] = self(recipe, flags, "once")
        return self.known[key]

    def __call__(self, recipe, flags, name):
        built = []

        def build(job):
            built.append(self.build(job))
            return built[-1]

        self.patch.setattr("toynn.jobs.run.build", build)
        here = self.folder / name
        here.mkdir()
        for path in self.files.iterdir():
            (here / path.name).symlink_to(path)
        self.patch.chdir(here)
        code = main(["train", recipe, *words(flags)])
        printed = self.capsys.readouterr()
        out = re.sub(r"(?m)^time .*|ETA \S+|[\d,]+ \w+/s", "", printed.out + printed.err)
        seen = {"code": code, "printed": out}
        seen["files"] = {
            str(path.relative_to(here)): self.content(path)
            for path in sorted(here.glob("*/*"))
            if not path.parent.is_symlink()
        }
        if built:
            session = built[0][0].engine.session
            seen["memory"] = session.memory()
            seen["threads"], seen["precision"] = session.n_threads, session.matmul_precision
        return seen

    build = staticmethod(build_job)

    @staticmethod
    def content(path):
        if path.name != "metrics.jsonl":
            return path.is_dir() or path.name in TOLD or path.read_bytes()
        timed = ("time", "peak_memory", *(f"{unit}_per_second" for unit in UNITS))
        reports = [json.loads(line) for line in path.read_text().splitlines()]
        return [{k: v for k, v in report.items() if k not in timed} for report in reports]


@pytest.fixture(scope="module")
def known():
    """What was seen of runs, by their words."""
    return {}


@pytest.fixture
def see(files, known, tmp_path, monkeypatch, capsys):
    """A function that runs a command and says what is seen of it."""
    monkeypatch.setattr(text, "SAMPLE_TOKENS", 2)
    before = toynn.get_float32_matmul_precision(), toynn.get_num_threads()
    yield See(files, known, tmp_path, monkeypatch, capsys)
    assert (toynn.get_float32_matmul_precision(), toynn.get_num_threads()) == before


def seen_by(recipe, option):
    """The value that a flag is given, and flags of both runs."""
    value = SEEN[option]
    if isinstance(value, dict):
        like = "classify" if recipe in ("embed", "rerank") else recipe
        value = value.get(recipe, value.get(like, value.get("")))
    return value if isinstance(value, tuple) else (value, {})


def words(flags):
    """Flags as they are typed."""
    given = ((name, value) for name, value in flags.items() if value is not None)
    return [word for pair in given for word in pair if word]


@pytest.mark.parametrize(("recipe", "option"), CASES)
def test_a_flag_changes_something_or_is_refused(recipe, option, see, files):
    if (recipe, option) in REFUSED:
        assert main(["train", recipe, *words(BASES[recipe]), option, "x"]) == 2
        return
    value, more = seen_by(recipe, option)
    base = BASES[recipe] | more
    switch = {value: ""} if value.startswith("--") else {option: value}
    before, after = see.once(recipe, base), see(recipe, base | switch, "given")
    assert after["code"] == 0, after["printed"]
    assert before != after


@pytest.mark.parametrize("name", JOBS)
def test_a_parser_takes_the_flags_of_its_recipe_and_no_others(name):
    parser = argparse.ArgumentParser()
    train.add_parser(parser.add_subparsers())
    (command,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    (recipes,) = (
        action
        for action in command.choices["train"]._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    offered = [each.dest for each in recipes.choices[name]._actions if "help" not in each.dest]
    assert offered == [*OPTIONS[name]]


def test_the_table_of_recipes_names_their_classes():
    assert [*JOBS] == [*OPTIONS] == [*train.HELP] == [*train.EXAMPLES]
    for name, job in JOBS.items():
        assert job.name == name and arranged(job.kind) == OPTIONS[name]


OWN = [
    (name, each)
    for name, options in OPTIONS.items()
    for each in options.values()
    if each.source == "own" and name != "warm-start" and JOBS[name].source[0] in options
]


@pytest.mark.parametrize(("name", "option"), OWN, ids=lambda value: getattr(value, "name", value))
def test_what_a_source_has_of_its_own_is_refused(name, option, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    source, what = JOBS[name].source
    path = {"lora": "adapter.gguf", "gpt2": "gpt2.gguf"}.get(name, "base.gguf")
    typed = f"--{source.replace('_', '-')}"
    flags = BASES[name] | FRESH | {typed: path, option.flag: seen_by(name, option.flag)[0]}
    assert main(["train", name, *words(flags)]) == 2
    expected = f"{option.flag}: the {what} that {typed} names has its own"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("name", JOBS)
def test_an_option_fills_one_field_and_its_type_names_its_words(name):
    options = OPTIONS[name].values()
    filled = [each.of for each in options if each.of[0] is not None]
    assert len({*filled}) == len(filled)
    assert all(field in kind.__dataclass_fields__ for kind, field in filled)
    assert all(each.group and each.help for each in options)
    for each in options:
        literal = [
            part for part in (each.kind, *get_args(each.kind)) if get_origin(part) is Literal
        ]
        words = {word for part in literal for word in get_args(part)}
        assert not words or words >= {*each.words}, each.name
        assert not words or words == {*each.words} or each.name == "precision", each.name
        kind, field = each.of
        theirs = {*options_of(kind)[field].words} if kind and not each.read else set()
        known = {"loss": {"sft"}, "precision": {"int8"}}.get(each.name, set())
        assert not theirs or theirs ^ {*each.words} <= known, each.name


@dataclass
class Deep:
    """A class that takes options."""

    deep: int = option(default=1, read=whole(0, 9))
    most: float | None = 2.0
    other: int = 4


@dataclass(kw_only=True)
class Bundle:
    """Options, as a job has them."""

    GROUP: ClassVar[str] = "depths"
    depth: int = option("how deep", 3, of=(Deep, "deep"))
    most: float | None = option("at most (default: no limit)", None, of=Deep)


@dataclass(kw_only=True)
class Changed(Bundle):
    """Another default, and another help."""

    GROUP: ClassVar[str] = "others"
    depth: int = 5
    most: float | None = option("at the most", 0.5, also="--top")


def test_an_option_is_what_its_field_says():
    depth, most = options_of(Bundle).values()
    assert (depth.flag, depth.group, depth.of) == ("--depth", "depths", (Deep, "deep"))
    assert depth.described == "how deep (default 3)"
    assert most.described == "at most (default: no limit)"
    assert depth.check("7") == depth.check(7) == 7
    with pytest.raises(argparse.ArgumentTypeError, match=r"from 0 to 9; got 10$"):
        depth.check(10)
    depth, most = options_of(Changed).values()
    assert (depth.described, depth.group) == ("how deep (default 5)", "depths")
    assert (most.described, most.also) == ("at the most (default 0.5)", "--top")
    assert (depth.of, most.of) == ((Deep, "deep"), (Deep, "most"))


@pytest.mark.parametrize(
    ("name", "text", "python", "expected"),
    [
        ("lr", "3e-4", np.float64(3e-4), 3e-4),
        ("batch", "2", np.int64(2), 2),
        ("memory", "8GB", 8_000_000_000, 8_000_000_000),
        ("targets", "q,v", ["q", "v"], "q,v"),
        ("data", "a.txt", "a.txt", "a.txt"),
        ("model", "a.gguf", Path("a.gguf"), "a.gguf"),
        ("holdout", "0.25", 0.25, 0.25),
    ],
)
def test_a_value_is_the_same_of_a_flag_of_a_file_and_of_python(
    name, text, python, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    base = {"model": "m.gguf", "data": "d.txt"}
    base.pop(name, None)
    typed = [word for each in base for word in (f"--{each}", base[each])]
    words = ["train", "lora", *typed, f"--{name}", text]
    told = json.dumps(
        str(python) if isinstance(python, Path) else python, default=lambda n: n.item()
    )
    (tmp_path / "a.toml").write_text(f"[train]\n{name} = {told}\n")
    jobs = train.job_of(parsed(words)), made("lora", base | {name: python})
    jobs += (made("lora", base | {"config": "a.toml"}),)
    values = [getattr(job.options, name) for job in jobs]
    assert values == [expected] * 3
    assert {type(value) for value in values} == {type(expected)}


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("lr", "x", "must be a number above 0"),
        ("batch", True, "must be a whole number from 1 to 2147483647; got True"),
        ("loss", "dp", "must be one of sft, dpo, orpo, kto; got 'dp'; did you mean dpo?"),
        ("data", {}, "must be a path, not empty; got {}"),
    ],
)
def test_a_wrong_value_is_refused_in_the_same_words(name, wrong, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value = "true" if wrong is True else json.dumps(wrong)
    (tmp_path / "a.toml").write_text(f"[train]\n{name} = {value}\n")
    given = {"model": "m.gguf", "data": "d.txt"}
    made_of = [lambda: made("lora", given | {name: wrong})]
    made_of.append(lambda: made("lora", given | {"config": "a.toml"}))
    if isinstance(wrong, str):
        words = ["--model", "m.gguf", "--data", "d.txt", f"--{name}", wrong]
        made_of.append(lambda: train.job_of(parsed(["train", "lora", *words])))
    for make in made_of:
        with pytest.raises(ConfigError) as caught:
            make()
        assert f"{name}: {told}" in str(caught.value)


def test_checkpointing_of_pictures_saves_memory_and_keeps_the_bits(see):
    flags = BASES["vit"] | {"--layers": "4"}
    plain = see("vit", flags, "plain")
    again = see("vit", flags | {"--checkpointing": ""}, "again")
    assert again["memory"].activations < 0.7 * plain["memory"].activations
    assert again["files"] == plain["files"]
    assert "out/model.safetensors" in again["files"]
