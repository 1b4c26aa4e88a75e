"""A run that does not fit into what is free is refused before its first step, with a way out."""

import json
import re
import tomllib

import numpy as np
import pytest
from lora_bases import write_base

from toynn._kernels import matmul
from toynn.backends.host import HostBuffer
from toynn.cli import main
from toynn.engines.engine import Engine
from toynn.engines.plans import OPTIONS
from toynn.jobs.run import build as build_job
from toynn.options import nbytes_or
from toynn.system.printing import size

MIB = 2**20
SHAPE = ("--d-model", "32", "--heads", "2", "--layers", "2")
TEXTS = ("--data", "text.txt", "--seq", "16")
RUNS = {
    "gpt2": (*TEXTS, *SHAPE),
    "gpt2 fine": ("--init-from", "gpt2.gguf", *TEXTS),
    "from-scratch": (*TEXTS, *SHAPE),
    "from-scratch fine": ("--init-from", "base.gguf", "--data", "pairs.jsonl", "--seq", "16"),
    "gpt2 lines": ("--data", "pairs.jsonl", "--seq", "16", *SHAPE),
    "lora lines": ("--model", "base.gguf", "--data", "pairs.jsonl", "--dropout", "0.1"),
    "warm-start": (*TEXTS, *SHAPE, "--donor", "base.gguf"),
    "lora": ("--model", "base.gguf", *TEXTS),
    "lora packed": ("--model", "wide.gguf", "--prepack", "always", *TEXTS, "--batch", "4"),
    "lora last": ("--model", "deep.gguf", "--num-layers", "1", *TEXTS, "--batch", "16"),
    "lora on": ("--model", "base.gguf", "--adapter", "adapted", *TEXTS),
    "vit": ("--data", "pictures.npz", *SHAPE),
    "vit fine": ("--data", "pictures.npz", "--init-from", "pictured"),
    "vit other": ("--data", "pictures.npz", "--init-from", "pictured", "--image-size", "16"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text("the cat sat on the mat and the rat sat on the cat " * 12)
    pairs = [{"prompt": f"say {n}: ", "completion": "abc" * (n % 3 + 1)} for n in range(20)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    prefer = [
        {"prompt": f"{n}: ", "chosen": "ab" * (n % 3 + 1), "rejected": "x"} for n in range(20)
    ]
    (folder / "prefer.jsonl").write_text("\n".join(map(json.dumps, prefer)))
    write_base(folder / "base.gguf", vocab=256, context=64)
    write_base(folder / "gpt2.gguf", "gpt2", vocab=256, context=64)
    wide = {"d_model": 256, "n_heads": 4, "n_kv_heads": 2, "d_ff": 512, "n_layers": 1}
    write_base(folder / "wide.gguf", vocab=256, context=64, **wide)
    deep = {"d_model": 64, "n_heads": 2, "n_kv_heads": 2, "d_ff": 64, "n_layers": 48}
    write_base(folder / "deep.gguf", vocab=256, context=64, **deep)
    images = np.random.default_rng(1).integers(0, 256, (40, 8, 8), np.uint8)
    np.savez(folder / "pictures.npz", images=images, labels=np.arange(40) % 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        short = ("--steps", "1")
        assert main(["train", "vit", *RUNS["vit"], *short, "--out", "pictured"]) == 0
        assert main(["train", "lora", *RUNS["lora"], *short, "--out", "adapted"]) == 0
    return folder


def words(name, *more):
    return ["train", name.split()[0], *(RUNS | MORE)[name], *more, "--steps", "1"]


@pytest.mark.parametrize("name", RUNS)
def test_what_a_step_needs_is_promised_and_refused(name, files, tmp_path, monkeypatch, capsys):
    """A byte less than what the realized step takes is too little; as much is enough."""
    monkeypatch.chdir(files)
    taken = []

    def build(run):
        built = build.before(run)
        taken.append(built[0].engine.session.memory().peak)
        return built

    build.before = build_job
    monkeypatch.setattr("toynn.jobs.run.build", build)
    assert main(words(name, "--out", str(tmp_path / "a"))) == 0
    (peak,) = taken
    monkeypatch.setattr("toynn.jobs.run.build", build.before)
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: peak)
    assert main(words(name, "--out", str(tmp_path / "b"))) == 0
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: peak - 1)
    capsys.readouterr()
    assert main(words(name, "--out", str(tmp_path / "c"))) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("toynn: error: not enough memory: a step needs ")
    assert " are free" in line and "--batch" in line and "--checkpointing" in line
    assert "--memory auto" in line
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", RUNS)
def test_a_batch_of_millions_is_refused_before_anything_is_recorded(
    name, files, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(files)
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: 100 * MIB)
    monkeypatch.setattr(Engine, "step_memory", lambda self: pytest.fail("recorded"))
    assert main(words(name, "--batch", "100000000", "--out", str(tmp_path / "a"))) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "a step needs more than " in line and "--batch" in line


def test_where_nobody_knows_what_is_free_nothing_is_refused(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: None)
    assert main(words("gpt2", "--out", str(tmp_path / "a"))) == 0


def test_a_base_is_kept_packed_where_that_is_asked_for(files, tmp_path, monkeypatch, capsys):
    """It says so, and the adapter is the same."""
    monkeypatch.chdir(files)
    adapters, said = {}, {}
    for pack in ("never", "auto", "always"):
        run = words("lora packed", "--prepack", pack, "--out", str(tmp_path / pack))
        assert main(run) == 0
        adapters[pack] = (tmp_path / pack / "adapter.gguf").read_bytes()
        said[pack] = next(line for line in capsys.readouterr().out.splitlines() if "memory" in line)
    assert len(set(adapters.values())) == 1
    assert "prepacked" in said["always"] and "prepacked" in said["auto"]  # of 64 rows
    assert "prepacked" not in said["never"]


# -- Plans for --memory ----------------------------------------------------------------------------


#: Of which packing takes the same part at every level; in medium other plans are faster at some.
HIGHEST = ("--precision", "highest")


class Built(Exception):
    """Ends a run once its step is compiled."""


@pytest.fixture
def built(files, monkeypatch, capsys):
    """A function that builds the step of a run; returns facts about it, or the error of the run."""
    monkeypatch.chdir(files)
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: 10**9)
    whole = HostBuffer.zeros.__func__

    def build(job):
        taken = []

        def zeros(kind, nbytes):
            taken.append(nbytes)
            return whole(kind, nbytes)

        with monkeypatch.context() as patch:
            patch.setattr(HostBuffer, "zeros", classmethod(zeros))
            recipe, *_ = build_job(job)
        plan = [getattr(job.options, name) for name in OPTIONS if hasattr(job.options, name)]
        memory, read = recipe.engine.session.memory(), job.read_by_step()
        if memory.prepacked:  # of all that is mapped, constants too
            read = max(read, memory.mapped)
        raise Built(plan, memory.peak, sum(taken), read, " ".join(job.said))

    monkeypatch.setattr("toynn.jobs.run.build", build)

    def run(name, room):
        try:
            assert main(words(name, *HIGHEST, "--memory", str(room), "--out", "never")) == 2
        except Built as found:
            return found.args
        return capsys.readouterr().err

    return run


NOTHING, CHEAP, KEEP, BLOCKS = LEVELS = [
    [cheap, blocks, "float32", keep]
    for cheap, blocks, keep in (
        *((False, False, False), (True, False, False)),
        *((False, True, True), (False, True, False)),
    )
]
#: The plans of each run, the fastest first: recompute_cheap, checkpointing, activations,
#: keep_attention, prepack.
PLANS = {
    "gpt2": LEVELS,
    "warm-start": LEVELS,
    "vit": [NOTHING, CHEAP, KEEP],  # BLOCKS would take as much
    "lora pairs": [[*level, "auto"] for level in LEVELS],
    "lora wide": [[*NOTHING, "auto"], [*NOTHING, "never"], [*KEEP, "never"]],  # one block
}
MORE = {
    "lora pairs": (
        "--model",
        "base.gguf",
        "--data",
        "prefer.jsonl",
        "--seq",
        "32",
        "--loss",
        "dpo",
    ),
    "lora wide": ("--model", "wide.gguf", "--data", "text.txt", "--seq", "16", "--batch", "4"),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_fastest_plan_that_fits_takes_what_it_says(name, built):
    """A byte less leads to the next plan, and after the last one to an error."""
    room, found = 10**8, []
    while not isinstance(known := built(name, room), str):
        plan, promised, taken, read, said = known
        assert taken == promised and f": {size(promised)}" in said
        needed = promised + read
        if needed <= room:
            assert built(name, needed)[0] == plan
            found.append(plan)
            room = needed - 1
        else:
            assert plan == found[-1] and "parts of the file are read again" in said
            room = promised - 1
    if not (name.startswith("lora") and matmul.multiplies_tiles()):  # where more plans pay
        assert found == PLANS[name]
    flags = "--checkpointing" + (" --keep-attention" if plan[3] else "")
    flags += " --prepack never" if plan[-1] == "never" else ""
    needs = (
        rf"the smallest plan, {flags}, needs (\S+ \w+) \((\S+) \w+ with --activations bfloat16\)"
    )
    ((needed, rounded),) = re.findall(needs, known)
    assert needed == size(promised) and float(rounded) <= float(needed.split()[0])
    assert "; --memory allows" in known
    advice = known.partition("; try ")[2]
    assert "--batch" in advice and "--checkpointing" not in advice


def test_a_plan_is_kept_and_changes_no_bit(files, tmp_path, monkeypatch, capsys):
    """A resumed run follows it, whatever is free by then."""
    monkeypatch.chdir(files)
    room = (files / "wide.gguf").stat().st_size  # too little beside the file: the smallest plan
    for name, more in {"plain": (), "small": ("--memory", str(room))}.items():
        assert main(words("lora wide", *more, "--out", str(tmp_path / name))) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "plan --checkpointing --keep-attention --prepack never: " in out
    assert " more time; --memory allows" in out
    assert "too large: the fastest " in out

    def config():
        found = tomllib.loads((tmp_path / "small" / "config.toml").read_text())["train"]
        return found["checkpointing"], found["keep_attention"], found["prepack"]

    assert config() == (True, True, "never")
    resumed = ("train", "--resume", str(tmp_path / "small"), "--memory", "1G", "--steps", "2")
    assert main([*resumed]) == 0 and config() == (True, True, "never")
    assert main(["train", "--resume", str(tmp_path / "plain"), "--steps", "2"]) == 0
    one, other = ((tmp_path / name / "adapter.gguf").read_bytes() for name in ("plain", "small"))
    assert one == other
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: None)
    assert main([*resumed[:3], "--memory", "auto", "--steps", "3"]) == 0
    assert config() == (True, True, "never")


@pytest.mark.parametrize("text", ["0", "8X", "-1G", "much", "0.0001K", "9" * 320 + "G"])
def test_a_size_that_is_none_is_refused(text, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    assert main(words("gpt2", f"--memory={text}")) == 2
    expected = f"argument --memory: must be a size such as 8G or 500M, or auto; got '{text}'"
    assert expected in capsys.readouterr().err


def test_sizes_are_read_as_they_are_printed():
    parse = nbytes_or("auto")
    assert [parse(text) for text in ("8G", "7.5GiB", "500 MB", "12k", "3", "auto")] == [
        8 * 10**9,
        15 * 2**29,
        5 * 10**8,
        12000,
        3,
        "auto",
    ]


def test_auto_is_refused_where_nobody_knows_what_is_free(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    monkeypatch.setattr("toynn.jobs.memory.free_memory", lambda: None)
    assert main(words("gpt2", "--memory", "auto", "--out", "never")) == 2
    assert "--memory auto: this system does not tell how much memory is free" in (
        capsys.readouterr().err
    )


def test_a_plan_decides_whether_to_checkpoint_and_a_flag_how(built, monkeypatch):
    monkeypatch.setitem(MORE, "gpt2", (*RUNS["gpt2"], "--keep-attention"))
    plan, promised, _, read, said = built("gpt2", 10**8)
    assert plan == NOTHING and "plan        the fastest: " in said
    while not plan[1]:
        plan, promised, _, read, said = built("gpt2", promised + read - 1)
    assert plan == KEEP and "plan        --checkpointing --keep-attention: " in said
    plan, promised, *_ = built("gpt2", promised + read - 1)
    assert plan == BLOCKS
    assert "the smallest plan, --checkpointing, needs " in built("gpt2", promised - 1)


def test_a_plan_that_kept_attention_resumes_with_less_memory(built, monkeypatch):
    """A resumed run is given the flags of its plan. No flag says not to keep attention."""
    needs = {}
    for name, flags in {"new": (), "resumed": ("--checkpointing", "--keep-attention")}.items():
        monkeypatch.setitem(MORE, "gpt2", (*RUNS["gpt2"], *flags))
        room, plan = 10**8, None
        while plan != BLOCKS:
            plan, promised, _, read, said = built("gpt2", room)
            needs[name], room = promised, promised + read - 1
    assert needs["new"] == needs["resumed"]
    assert "plan        without --keep-attention: " in said
    assert "the smallest plan, without --keep-attention, needs " in built("gpt2", promised - 1)
