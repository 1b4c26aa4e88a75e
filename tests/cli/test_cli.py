"""The command line: what it prints, writes and returns; one line for each bad input."""

import json
import math
import re
import signal
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from fake_recipe import FakeRecipe
from hang import HANG
from safetensors.numpy import load_file
from shared import STORIES

from toynn.cli import main
from toynn.data.text import Corpus, spaced_windows
from toynn.engines import GPT2Config, LlamaConfig, SequenceEngine
from toynn.formats import gguf
from toynn.jobs.models import FromScratchJob, GPT2Job
from toynn.options import RecipeOptions
from toynn.recipes import GPT2, FromScratch

TEXT = b"the cat sat on the mat and the rat sat on the cat " * 20
# Of 8 blocks: 8 tokens for each of 6,291,456 weights, 1,024 of them a step.
RATE256, STEPS256 = 0.0021, 49152
FAKE = ("--steps", "30", "--batch", "2", "--seq", "8", "--log-every", "10", "--eval-every", "10")


@pytest.fixture
def recipe(monkeypatch):
    """A fake recipe for ``toynn train gpt2``, so that a run takes no time."""
    recipe = FakeRecipe(context=8)

    class Adam:
        def hp_for_step(self, k):
            c1, c2 = (1 / (1 - beta ** (k + 1)) for beta in (0.9, 0.999))
            return np.array([0, 0.9, 0.999, 1e-8, 0, c1, c2], np.float32)

    monkeypatch.setattr("toynn.jobs.run.build", lambda arguments: (recipe, Adam(), lambda k: 0.1))
    return recipe


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    return str(path)


def train_fake(text, out, *more):
    return main(["train", "gpt2", "--data", text, "--out", str(out), *FAKE, *more])


def error_line(capsys):
    """The one line of an error, with nothing else on stderr."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("toynn: error: ")
    return lines[0]


def test_train_fills_the_run_folder(recipe, text, tmp_path, capsys):
    out = tmp_path / "runs" / "a"
    assert train_fake(text, out, "--lr", "0.5", "--threads", "1") == 0
    printed = capsys.readouterr()
    for words in (
        f"text.txt: 1,000 bytes, sha256 {Corpus('', TEXT).sha256[:12]}",
        "65,536 parameters",
        "a byte bigram model: validation loss ",
        "--- sample: 32 tokens of the validation data, then the model's own ---",
        "(the best, at step 30); byte bigram ",
        "480 tokens trained",
        str(out),
    ):
        assert words in " ".join(printed.out.split())  # a long path ends its line
    assert len(re.findall(r"^step +\d+/30 ", printed.out, re.MULTILINE)) == 4  # one each report

    names = {path.name for path in out.iterdir()}
    assert names == {
        "checkpoint-30",
        "config.toml", "metrics.jsonl", "model.gguf", "model.safetensors", "report.html",
        "run.json", "sample.txt"
    }  # fmt: skip
    config = tomllib.loads((out / "config.toml").read_text())
    assert config["model"]["vocab"] == 256
    assert (config["train"]["lr"], config["train"]["warmup"]) == (0.5, 3)
    reports = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [report["iteration"] for report in reports] == [0, 10, 20, 30]
    assert reports[-1]["val_loss"] < reports[0]["val_loss"]
    assert (out / "sample.txt").read_text().startswith(TEXT[-100:-68].decode())


def test_embedded_corpus_is_the_default(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "gpt2", *FAKE]) == 0
    assert "pydoc_data.topics" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("gpt2-")


def test_options_reach_the_run(recipe, text, tmp_path):
    assert train_fake(text, tmp_path / "a", "--grad-accum", "3", "--max-grad-norm", "0") == 0
    assert recipe.engine.session.max_grad_norm is None
    last = json.loads((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["trained_tokens"] == 30 * 3 * 16


def test_a_signal_saves_and_exits_130(recipe, text, tmp_path, capfd):
    recipe.on_step = lambda recipe: recipe.steps == 12 and signal.raise_signal(signal.SIGINT)
    assert train_fake(text, tmp_path / "a") == 130
    printed = capfd.readouterr()
    assert "stopped     after 12 steps; the best weights are saved" in printed.out
    names = {path.name for path in (tmp_path / "a").iterdir()} - {"checkpoint-12"}
    kept = {"config.toml", "metrics.jsonl", "model.gguf", "model.safetensors"}
    assert names == {*kept, "report.html", "run.json", "sample.txt"}
    assert "stopped: by SIGINT" in (tmp_path / "a" / "report.html").read_text()
    reports = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(reports[-1])["iteration"] == 12


def test_ctrl_c_outside_the_loop_exits_130(recipe, text, tmp_path, capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("toynn.jobs.run.build", interrupted)
    assert train_fake(text, tmp_path / "a") == 130
    assert capsys.readouterr().err == "toynn: stopped\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read: No such file or directory"),
        ("folder", "expected train.jsonl in it; got an empty folder"),
        (b"", "the file is empty"),
        (b"short", "5 tokens are too few"),
        (b"fine\n\xff\xfe", ":2: not UTF-8 text: byte 0xff at offset 5"),
    ],
)
def test_bad_data(recipe, tmp_path, capsys, content, words):
    path = tmp_path / "text.txt"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    assert train_fake(str(path), tmp_path / "a") == 2
    line = error_line(capsys)
    assert str(path) in line
    assert words in line
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("option", ["--steps", "--batch", "--seq", "--d-model", "--heads"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "", "99999999999"])
def test_bad_whole_numbers(capsys, option, value):
    assert main(["train", "gpt2", f"{option}={value}"]) == 2
    line = error_line(capsys)
    assert f"argument {option}: must be a whole number from 1 to 2147483647; got {value!r}" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "0"], "argument --lr: must be a number above 0 and at most 10000; got '0'"),
        (["--lr", "nan"], "argument --lr: must be a number above 0 and at most 10000; got 'nan'"),
        (["--lr", "inf"], "argument --lr: must be a number above 0 and at most 10000; got 'inf'"),
        (["--lr", "1e39"], "argument --lr: must be a number above 0 and at most 10000; got '1e39'"),
        (["--lr", "1e5"], "argument --lr: must be a number above 0 and at most 10000; got '1e5'"),
        (
            ["--lr", "1e-46"],
            "argument --lr: must be a number above 0 and at most 10000; got '1e-46'",
        ),
        (["--min-lr-ratio", "2"], "must be a number of at least 0 and at most 1; got '2'"),
        (["--weight-decay=-1"], "must be a number of at least 0; got '-1'"),
        (["--max-grad-norm=-1"], "must be a number of at least 0; got '-1'"),
        (["--layers", "1001"], "argument --layers: must be a whole number from 1 to 1000; got"),
        (["--threads", "0"], "argument --threads: must be a whole number from 1 to 1024; got"),
        (["--seed=-1"], "argument --seed: must be a whole number from 0"),
        (["--heads", "3"], "--heads 3 does not divide --d-model 128"),
        (["--warmup", "10", "--steps", "9"], "--warmup 10 is more than --steps 9"),
        (["--stepz", "9"], "unrecognized arguments: --stepz 9"),
        (["--step", "9"], "unrecognized arguments: --step 9"),
        (["--steps"], "argument --steps: expected one argument"),
    ],
)
def test_bad_options(recipe, capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "gpt2", *words]) == 2
    assert message in error_line(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND: one of train, generate, chat"),
        (["train"], "the following arguments are required: RECIPE: one of gpt2, from-scratch"),
        (["train", "gpt5"], "invalid choice: 'gpt5' (choose from"),
    ],
)
def test_bad_commands(capsys, words, message):
    assert main(words) == 2
    assert message in error_line(capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kv-heads", "3"], "--kv-heads 3 does not divide --heads 4"),
        (
            ["--d-model", "12"],
            "--heads 4: RoPE rotates pairs, so a head's width must be even; got 3",
        ),
        (
            ["--weight-dtype", "f64"],
            "argument --weight-dtype: must be f32, f16, bf16 or ggml's",
        ),
        (["--init-scale=-1"], "argument --init-scale: must be a number of at least 0; got '-1'"),
        (["--heads", "3"], "--heads 3 does not divide --d-model 128"),
    ],
)
def test_bad_options_of_from_scratch(capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "from-scratch", *words]) == 2
    assert message in error_line(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Small models of bytes to start from: GGUF files, and folders in Hugging Face's format."""
    folder = tmp_path_factory.mktemp("models")
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_layers": 1, "context": 16}
    for name, vocab in (("bytes", 256), ("words", 300)):
        recipe = GPT2()
        recipe.realize(GPT2Config(vocab, **sizes), RecipeOptions())
        recipe.save(folder / f"gpt2-{name}.gguf")
        recipe.engine.export_hf(folder / f"gpt2-{name}")
        recipe = FromScratch()
        config = LlamaConfig(vocab, **sizes, n_kv_heads=1, arch="qwen2")
        recipe.realize(config, RecipeOptions(untied=True, qkv_bias=True))
        recipe.save(folder / f"qwen2-{name}.gguf", "q8_0")
        recipe.engine.export_hf(folder / f"qwen2-{name}")
    return folder


SHORT = ("--seq", "8", "--batch", "2", "--steps", "20", "--lr", "0.01", "--eval-every", "10")


def run(text, out, *words):
    """The validation losses of a run, and the model that it left."""
    assert main(["train", *words, *SHORT, "--data", text, "--out", str(out)]) == 0
    reports = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    with gguf.open(out / "model.gguf"):
        model = SequenceEngine.from_gguf(out / "model.gguf", 8, 2)
    losses = [report["val_loss"] for report in reports if "val_loss" in report]
    assert losses[-1] < losses[0]
    valid = np.frombuffer(TEXT[-100:], np.uint8)
    again = [(model.evaluate(*b) * b.rows, b.rows) for b in spaced_windows(valid, 2, 8, 99)]
    total, rows = map(sum, zip(*again, strict=True))
    assert total / rows == pytest.approx(min(losses), rel=1e-4)
    return losses, model


@pytest.mark.parametrize("form", ["", ".gguf"])
@pytest.mark.parametrize(("recipe", "name"), [("gpt2", "gpt2"), ("from-scratch", "qwen2")])
def test_a_run_starts_from_a_model(recipe, name, form, models, text, tmp_path):
    first, model = run(text, tmp_path / "a", recipe, "--init-from", f"{models}/{name}-bytes{form}")
    assert (model.context, model.d_ff) == (16, 12)
    config = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    assert (config["model"]["context"], config["model"]["d_ff"]) == (16, 12)
    assert config["train"].get("untied", True)
    second, _ = run(text, tmp_path / "b", recipe, "--init-from", f"{tmp_path}/a/model.gguf")
    assert second[0] == pytest.approx(min(first), rel=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt2", "--init-from", "gpt2-words.gguf"], "no vocabulary and 300 tokens"),
        (["gpt2", "--init-from", "gpt2-words"], "the model has 300 tokens, the tokenizer 256"),
        (
            ["gpt2", "--init-from", "qwen2-bytes.gguf"],
            "does not train qwen2: use `toynn train from-s",
        ),
        (
            ["from-scratch", "--init-from", "gpt2-bytes"],
            "does not train gpt2: use `toynn train gpt2 --",
        ),
        (["from-scratch", "--init-from", "nothing"], "nothing: cannot read: No such file"),
        (
            ["from-scratch", "--init-from", "."],
            "--init-from .: expected a .gguf file, a run folder",
        ),
        (["gpt2", "--init-from", "gpt2-bytes", "--seq", "17"], "17 is longer than the context 16"),
        (["gpt2", "--init-from", "gpt2-bytes", "--heads", "2"], "--heads: the model that --init"),
        (["gpt2", "--init-from", "gpt2-bytes", "--depth", "2"], "--depth: the model that --init"),
        (["from-scratch", "--init-from", "qwen2-bytes", "--init-scale", "0"], "--init-scale: the"),
        (["from-scratch", "--init-from", "qwen2-bytes", "--qkv-bias"], "--qkv-bias: the model"),
        (["warm-start"], "the following arguments are required: --donor"),
        (["warm-start", "--donor", "nothing.gguf"], "nothing.gguf: cannot read: No such file"),
        (["warm-start", "--donor", "gpt2-words.gguf"], "expected gpt2 or llama, whose tokens for"),
        (["warm-start", "--donor", "gpt2-bytes.gguf", "--init", "pca"], "expected 1 to 8; got 128"),
        (
            ["warm-start", "--donor", "gpt2-bytes.gguf", "--init", "none"],
            "must be one of scratch, don",
        ),
        (["warm-start", "--donor", "gpt2-bytes.gguf", "--untied"], "unrecognized arguments"),
        (["warm-start", "--donor", "gpt2-bytes.gguf", "--init-from", "x"], "`toynn train from-"),
    ],
)
def test_bad_models(models, capsys, monkeypatch, words, message):
    monkeypatch.chdir(models)
    length = [] if "--seq" in words else ["--seq", "8"]
    assert main(["train", *words, *length]) == 2
    assert message in error_line(capsys)
    assert not (models / "runs").exists()


@pytest.mark.parametrize("init", ["scratch", "donor", "pca"])
@pytest.mark.parametrize("donor", ["gpt2-bytes", "qwen2-bytes"])
def test_warm_start(donor, init, models, text, tmp_path):
    own = ("--d-model", "8", "--heads", "2", "--layers", "1", "--seed", "1", "--init", init)
    path = models / f"{donor}.gguf"
    _, model = run(text, tmp_path / "a", "warm-start", "--donor", str(path), *own)
    assert model.config.donor_d_in == 0  # the lens is folded
    weights = load_file(tmp_path / "a" / "model.safetensors")
    with gguf.open(path) as file:
        same = np.array_equal(weights["token_embd.weight"], file["token_embd.weight"])
    assert same == (init != "scratch")
    assert weights["lens.proj.weight"].shape == (8, 8)
    config = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    assert config["model"]["donor_d_in"] == 8
    assert (config["train"]["donor"], config["train"]["init"]) == (str(path), init)


@pytest.mark.skipif(not STORIES.exists(), reason="stories260K.gguf is not at ../shared/data")
def test_warm_start_from_a_pretrained_donor(text, tmp_path):
    own = ("--d-model", "8", "--heads", "2", "--layers", "1", "--donor", str(STORIES))
    run(text, tmp_path / "a", "warm-start", *own)
    table = load_file(tmp_path / "a" / "model.safetensors")["token_embd.weight"]
    with gguf.open(STORIES) as file:
        texts = file.metadata["tokenizer.ggml.tokens"]
        np.testing.assert_array_equal(table[ord("a")], file["token_embd.weight"][texts.index("a")])


def test_options_of_another_recipe_are_refused(capsys):
    assert main(["train", "gpt2", "--kv-heads", "1"]) == 2
    assert "unrecognized arguments: --kv-heads 1" in error_line(capsys)


def test_out_that_exists_or_cannot_be_made(recipe, text, tmp_path, capsys):
    (tmp_path / "a").mkdir()
    assert train_fake(text, tmp_path / "a") == 2
    assert f"{tmp_path / 'a'}: already exists" in error_line(capsys)
    assert train_fake(text, text) == 2
    assert "text.txt: already exists" in error_line(capsys)
    assert train_fake(text, f"{text}/a") == 2
    assert "cannot make the run folder: Not a directory" in error_line(capsys)
    assert recipe.steps == 0


LLAMA = ("--kv-heads", "1", "--d-ff", "12", "--weight-dtype", "bf16", "--untied", "--qkv-bias")
LLAMA += ("--checkpointing",)
REAL = ("--d-model", "8", "--heads", "2", "--layers", "1", "--seq", "8", "--batch", "2")
# As typed in a terminal: a shell that runs pytest in the background has SIGINT ignored.
TYPED = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from toynn.cli import main; sys.exit(main())"
)


@pytest.mark.parametrize(
    ("job", "typed", "expected"),
    [
        (GPT2Job, {}, (256, 8, 8, RATE256, STEPS256)),
        (FromScratchJob, {"optimizer": "muon"}, (256, 8, 8, 0.0085, STEPS256)),
        (GPT2Job, {"seq": 256, "batch": 16, "grad_accum": 2}, (256, 8, 8, RATE256, STEPS256 // 8)),
        (GPT2Job, {"d_model": 128, "heads": 2}, (128, 8, 2, 0.003, STEPS256 // 4)),
        (GPT2Job, {"lr": 0.1, "steps": 7, "layers": 3}, (256, 3, 8, 0.1, 7)),
        (GPT2Job, {"epochs": 2.0}, (256, 8, 8, RATE256, 1500)),
    ],
)
def test_one_dial(job, typed, expected):
    options = job({"data": "x", "depth": 8, **typed}).options
    names = ("d_model", "layers", "heads", "lr", "steps")
    assert tuple(getattr(options, name) for name in names) == expected


def test_what_the_dial_sets_is_printed(text, tmp_path, capsys):
    words = ["--depth", "1", "--seq", "8", "--batch", "2", "--steps", "1", "--data", text]
    assert main(["train", "gpt2", *words, "--out", str(tmp_path / "a")]) == 0
    shape = "--d-model 32 --layers 1 --heads 1 --batch 2 --lr 0.006 --steps 1"
    assert f"depth       {shape}\n" in capsys.readouterr().out
    train = tomllib.loads((tmp_path / "a" / "config.toml").read_text())["train"]
    assert (train["d_model"], "depth" in train) == (32, False)


@pytest.mark.parametrize(
    ("name", "own", "make", "config_of", "shapes"),
    [
        ("gpt2", (), GPT2, GPT2Config, {"position_embd.weight": (8, 8)}),
        ("from-scratch", (), FromScratch, LlamaConfig, {"blk.0.ffn_up.weight": (32, 8)}),
        (
            "from-scratch",
            LLAMA,
            FromScratch,
            LlamaConfig,
            {"blk.0.attn_k.bias": (4,), "output.weight": (256, 8), "blk.0.ffn_up.weight": (12, 8)},
        ),
    ],
)
def test_a_model_learns_and_its_weights_are_kept(
    name, own, make, config_of, shapes, text, tmp_path
):
    out = tmp_path / "a"
    words = ["--data", text, "--steps", "40", "--lr", "0.01", "--eval-every", "10", "--out"]
    assert main(["train", name, *REAL, *own, *words, str(out)]) == 0
    reports = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [report["val_loss"] for report in reports if "val_loss" in report]
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)
    assert losses[-1] < losses[0] - 1.5
    weights = load_file(out / "model.safetensors")
    for tensor, shape in {"token_embd.weight": (256, 8), **shapes}.items():
        assert weights[tensor].shape == shape
    config = tomllib.loads((out / "config.toml").read_text())
    assert config["run"]["recipe"] == name
    assert config["train"]["checkpointing"] == (own == LLAMA)
    kept = {k: v for k, v in config["train"].items() if k in vars(RecipeOptions()) and k != "seed"}
    recipe = make()
    recipe.realize(config_of(**config["model"]), RecipeOptions(t_batch=2, **kept))
    recipe.engine.load_weights(weights)
    valid = np.frombuffer(TEXT[-100:], np.uint8)
    again = [(recipe.evaluate(*b) * b.rows, b.rows) for b in spaced_windows(valid, 2, 8, 99)]
    total, rows = map(sum, zip(*again, strict=True))
    assert total / rows == pytest.approx(min(losses), rel=1e-6)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_from_outside(number, text, tmp_path):
    out = tmp_path / "a"
    words = [*REAL, "--data", text, "--steps", "1000000", "--log-every", "1", "--out", str(out)]
    command = [sys.executable, "-c", TYPED, "train", "gpt2", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        steps = (line for line in process.stdout if line.startswith("step "))
        seen = [next(steps) for _ in range(4)]
        process.send_signal(number)
        try:
            stdout, stderr = process.communicate(timeout=HANG)
        finally:
            process.kill()  # or the end of the block would wait for it
    assert process.returncode == 128 + number, stderr
    assert "finishing the step" in stderr
    assert "Traceback" not in "".join(seen) + stderr
    assert "the best weights are saved" in stdout
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["iteration"] >= 3
    assert last["val_loss"] > 0
    assert (out / "model.safetensors").exists()
