"""``toynn info`` of adapters, of folders of all kinds, and of safetensors files."""

import itertools
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import vits
from lora_bases import SIZES, make, write_base
from safetensors.numpy import load_file, save_file

import toynn
from toynn.cli import main
from toynn.formats import adapters, gguf
from toynn.jobs.memory import read_by_step


def told(path, capsys, *more):
    """What info says of a path, by name."""
    assert main(["info", str(path), *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line[:24].strip(): line[24:].strip() for line in lines}


def error(path, capsys):
    assert main(["info", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "base.gguf")


def test_what_a_file_says_is_told_before_the_engines_are_imported(base):
    """The memory of a model of 30 blocks takes seconds; its keys do not wait for that."""
    program = f"""
import sys
from pathlib import Path
from toynn.cli._info import facts
for name, value in facts(Path({str(base)!r}), None, 1, None):
    if name == "training all weights":
        break
    print(name, value, *sys.modules, sep=chr(9))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    rows = [line.split(chr(9)) for line in done.stdout.splitlines()]
    told = {name: value for name, value, *_ in rows}
    assert told["architecture"] == "llama", done.stderr
    assert told["embedding_length"] == str(SIZES["d_model"])
    later = {"toynn.engines", "toynn.session", "toynn.graph", "toynn.models.registry"}
    assert all(later.isdisjoint(modules) for _, _, *modules in rows)


@pytest.mark.parametrize("name", ["adapter.gguf", ".", "adapter_model.safetensors"])
def test_an_adapter(name, base, tmp_path, capsys):
    recipe = make(base, rank=3, alpha=6, use_rslora=True, targets=("q", "down"))
    if name == "adapter.gguf":
        recipe.export_adapter(tmp_path / name)
    else:
        recipe.export_peft(tmp_path)
    found = told(tmp_path / name, capsys)
    assert found["rank"] == "3"
    width, hidden = SIZES["d_model"], SIZES["d_ff"]
    count = 2 * 3 * (2 * width + width + hidden)
    assert found["parameters"].split()[0] == f"{count:,}"
    assert found["base model"] == "base.gguf"
    if name == "adapter.gguf":
        assert found["adapter"] == "LoRA, as llama.cpp reads it"
        assert found["architecture"] == "llama"
        assert found["alpha"] == f"{6 * 3**0.5:g}: B A is scaled by alpha / rank"
        assert found[f"{width} x {hidden}"] == "blk.*.ffn_down.weight, 2 of them"
    else:
        assert found["adapter"] == "LORA, in PEFT's format"
        assert found["alpha"] == "6: B A is scaled by alpha / sqrt(rank)"
        assert found["targets"] == "down_proj, q_proj"
        assert found[f"{width} x {width}"] == "model.layers.*.self_attn.q_proj, 2 of them"


@pytest.mark.parametrize(
    ("free", "verdict"),
    [
        (10**12, "1000.0 GB: enough"),
        (1, "0.0 kB: too little, even with checkpointing and bfloat16 activations"),
        ("between", "enough with checkpointing"),
        ("rounded", "enough with checkpointing and bfloat16 activations"),
        ("beside", "too little: parts of the file would be read again in every step"),
        (None, None),
    ],
)
def test_whether_adapters_can_be_trained_here(free, verdict, base, capsys, monkeypatch):
    """The more tokens a sequence has, the more memory is needed beside the file."""
    with gguf.open(base) as file:
        opts = toynn.RecipeOptions(t_seq=16, t_batch=1, precision="auto")
        block = replace(opts, checkpointing=True)
        plain, again, least = (
            toynn.recipes.LoRA.memory_for(file, 8, each, "all-linear").peak
            for each in (opts, block, replace(block, activations="bfloat16"))
        )
        assert least < again < plain
        read = read_by_step(file, 16)
        known = {"between": read + again, "rounded": read + least}
        known["beside"] = read + least - 1
    monkeypatch.setattr("toynn.cli._info_memory.free_memory", lambda: known.get(free, free))
    found = told(base, capsys, "--seq", "16")
    assert found["training adapters"] == "rank 8, all-linear, 1 x 16 tokens"
    assert found.get("free here", "").endswith(verdict or "")
    assert ("free here" in found) == (free is not None)
    assert found["mapped, not in memory"]
    shorter = told(base, capsys, "--seq", "4")
    assert shorter["peak beside the file"] != found["peak beside the file"]


def test_a_plan_counts_the_part_of_the_file_that_a_run_maps(base):
    """The header, with its words, is read once."""
    opts = toynn.RecipeOptions(t_seq=16, t_batch=1)
    with gguf.open(base) as file:
        mapped = toynn.recipes.LoRA.memory_for(file, 8, opts, "all-linear").mapped
        assert read_by_step(file, 16) == pytest.approx(mapped, rel=1e-3)


def test_plans_are_told_with_their_time(tmp_path, capsys):
    """The table of --memory: the fastest plan first, each slower one is smaller."""
    wide = {"d_model": 256, "n_heads": 4, "n_kv_heads": 2, "d_ff": 512, "n_layers": 2}
    base = write_base(tmp_path / "wide.gguf", vocab=256, context=64, **wide)
    found = told(base, capsys, "--batch", "2")
    names = ("with prepacking", "peak beside the file", "with checkpointing")
    plans = [re.fullmatch(r"([\d.]+) MB(?:, (\d+)% more time)?", found[name]) for name in names]
    sizes, times = ([float(plan[part] or 0) for plan in plans] for part in (1, 2))
    assert sizes == sorted(sizes, reverse=True) and times == sorted(times) and times[0] == 0
    rounded = re.match(r"bfloat16 activations ([\d.]+) MB", found["with checkpointing and"])
    assert float(rounded[1]) <= sizes[-1]


def test_a_run_takes_what_was_told(tmp_path, capsys):
    """A run's rows are its longest example by default: often shorter than info's, and prepacked."""
    wide = {"d_model": 256, "n_heads": 4, "n_kv_heads": 2, "d_ff": 512, "n_layers": 2}
    base = write_base(tmp_path / "wide.gguf", vocab=256, context=4096, **wide)
    (tmp_path / "text.txt").write_text("zork eats moon dust. " * 40)
    run = ["train", "lora", "--model", str(base), "--data", str(tmp_path / "text.txt")]
    run += ["--targets", "all-linear", "--steps", "1", "--eval-every", "0", "--save-every", "0"]
    assert main([*run, "--seq", "64", "--report", "none", "--out", str(tmp_path / "run")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    said = re.search(r"prepacked ([\d.]+), peak ([\d.]+) MB", printed)
    long, short = told(base, capsys, "--seq", "2048"), told(base, capsys, "--seq", "64")
    assert long["at 1 x 64 tokens"] == f"{said[2]} MB, {said[1]} MB of it prepacked weights"
    assert short["with prepacking"] == f"{said[2]} MB" and "at 1 x 64 tokens" not in short


def test_an_adapter_of_embeddings(tmp_path, capsys):
    ones = {f"token_embd.weight.lora_{side}": np.ones((n, 2), np.float32) for side, n in zip(
        "ab", (61, 24), strict=True)}  # fmt: skip
    metadata = {"general.base_model.0.name": "Zork"}
    adapters.write_gguf(
        tmp_path / "a.gguf", adapters.Adapter("llama", 0.0, ones, metadata=metadata)
    )
    found = told(tmp_path / "a.gguf", capsys)
    assert found["61 x 24"] == "token_embd.weight"
    assert found["base model"] == "Zork"


def test_the_folder_of_a_run(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("the robot is called zork. " * 20)
    run = ("--data", str(tmp_path / "text.txt"), "--steps", "2", "--seq", "8", "--seed", "7")
    words = ("train", "gpt2", "--d-model", "8", "--heads", "1", *run)
    assert main([*words, "--out", str(tmp_path / "gpt2")]) == 0
    capsys.readouterr()
    found = told(tmp_path / "gpt2", capsys)
    assert found["run"] == "toynn train gpt2, 2 steps, batch 8, seed 7"
    assert found["data"].endswith("text.txt")
    assert found["architecture"] == "gpt2"
    (tmp_path / "gpt2" / "config.toml").write_text("[run]\nrecipe = 3")
    assert "run" not in told(tmp_path / "gpt2", capsys)


@pytest.mark.parametrize("name", [".", "config.json", "model.safetensors"])
def test_a_hugging_face_folder(name, base, tmp_path, capsys):
    toynn.LlamaSeqEngine.from_gguf(base, 4).export_hf(tmp_path / "hf")
    found = told(tmp_path / "hf" / name, capsys, "--seq", "4", "--batch", "2")
    assert found["folder"].endswith("hf, in Hugging Face's format")
    with gguf.open(base) as file:
        assert found["parameters"] == f"{sum(file[n].size for n in file):,} in {len(file)} tensors"
    assert found["embedding_length"] == str(SIZES["d_model"])
    assert found["training all weights"] == "2 x 4 tokens a step"
    assert "kB" in found["peak"]


def test_a_model_of_pictures(tmp_path, capsys):
    recipe = vits.make()
    recipe.engine.class_names = ("cat", "dog", "\x1b[2J", "fish", "ant")
    recipe.save(tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        found = told(path, capsys, "--batch", "3")
        assert found["architecture"] == "vision transformer, by timm's names"
        assert (found["patch"], found["classes"], found["norm"]) == ("4", "5", "layernorm")
        assert found["names of classes"] == "cat, dog, \ufffd[2J, fish, ant"
        assert found["training all weights"] == "3 pictures a step"


def test_other_tensors(tmp_path, capsys):
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float16)}
    save_file(arrays, tmp_path / "a.safetensors", {"from": "elsewhere"})
    found = told(tmp_path / "a.safetensors", capsys)
    assert found["parameters"] == "10 in 2 tensors"
    assert found["F16"] == "4 in 1 tensors, 0.0 kB"
    assert found["from"] == "elsewhere"
    assert found["model"].startswith("not a model of pictures: ")


@pytest.mark.parametrize("shape", [(), (4,)])
def test_an_adapter_without_matrices(shape, base, tmp_path, capsys):
    make(base, rank=3, targets=("q",)).export_peft(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    save_file({name: np.ones(shape, np.float32) for name in load_file(path)}, path)
    assert re.search(
        r"adapter_model\.safetensors: tensor .*: expected a matrix", error(tmp_path, capsys)
    )


def test_what_holds_nothing(tmp_path, capsys):
    assert "expected a folder with one of model.gguf, adapter.gguf" in error(tmp_path, capsys)
    for name in ("a.gguf", "a.safetensors", "adapter_config.json", "config.json", "b"):
        (tmp_path / name).touch()
        assert name in error(tmp_path / name, capsys)
        (tmp_path / name).unlink()
        assert "No such file" in error(tmp_path / name, capsys)


@pytest.mark.parametrize("seq", [4, 16])
def test_a_mixture_says_what_a_token_uses_and_what_its_adapters_take(seq, tmp_path, capsys):
    path = write_base(tmp_path / "base.gguf", "qwen3moe", n_experts=5, n_experts_used=2)
    found = told(path, capsys, "--seq", str(seq))
    total = int(found["parameters"].split()[0].replace(",", ""))
    expert = 3 * SIZES["d_model"] * SIZES["d_ff"]
    unused = SIZES["n_layers"] * 3 * expert
    assert found["active parameters"] == f"{total - unused:,} for each token"
    assert found["training adapters"] == f"rank 8, all-linear, 1 x {seq} tokens"
    assert found["mapped, not in memory"].endswith(" kB, read as it is used")


def test_a_dense_model_has_no_line_of_active_parameters(base, capsys):
    found = told(base, capsys)
    assert not {"active parameters", "experts that are read"} & found.keys()


@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (1, 2), (2, 3)])
def test_a_mixture_says_what_a_step_reads_of_its_experts(batch, seq, tmp_path, capsys):
    """By counting all that tokens may choose, each 2 of 5; the first of three blocks is dense."""
    sizes = {"n_layers": 3, "attention_blocks": (1,), "dense_blocks": 1, "expert_d_ff": 28}
    path = write_base(tmp_path / "base.gguf", "lfm2moe", n_experts=5, n_experts_used=2, **sizes)
    found = told(path, capsys, "--batch", str(batch), "--seq", str(seq))
    pairs = list(itertools.combinations(range(5), 2))
    chosen = [pairs[n] for n in np.random.default_rng(0).integers(0, 10, 40000 * batch * seq)]
    steps = np.array(chosen).reshape(40000, -1)
    mean = np.mean([np.unique(step).size for step in steps])
    one = 2 * 3 * SIZES["d_model"] * 28 * 4  # bytes of an expert in both blocks
    step, whole, alone = re.findall(r"([0-9.]+) kB", found["experts that are read"])
    assert float(step) == pytest.approx(mean * one / 1000, rel=0.01)
    assert (float(whole), float(alone)) == (round(5 * one / 1000, 1), round(2 * one / 1000, 1))


@pytest.mark.parametrize(("room", "words"), [(70_000, "enough"), (20_000, "too little")])
def test_a_mixture_fits_if_what_a_step_reads_does(room, words, tmp_path, capsys, monkeypatch):
    """The file is larger than the memory that is said to be free."""
    sizes = {"n_experts": 60, "n_experts_used": 1}
    path = write_base(tmp_path / "base.gguf", "qwen3moe", **sizes)
    assert path.stat().st_size > 10 * 70_000
    monkeypatch.setattr("toynn.cli._info_memory.free_memory", lambda: room + 70_000)
    assert words in told(path, capsys, "--seq", "1")["free here"]
