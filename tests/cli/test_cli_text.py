"""``toynn train`` on tokens of a tokenizer: data in lines of JSON, adapters, what a run leaves."""

import hashlib
import json
import os
import shutil
import tomllib

import numpy as np
import pytest
from lora_bases import write_base
from vocabs import CONTROL, bpe_file

import toynn
from toynn.cli import main
from toynn.data import jsonl
from toynn.engines import LlamaSeqEngine, SequenceEngine, frozen
from toynn.formats import adapters, gguf
from toynn.formats.tokenizer import Tokenizer
from toynn.jobs import run
from toynn.recipes import FromScratch, WarmStart

TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
MARKS = [("<|user|>", CONTROL), ("<|assistant|>", CONTROL)]
RUN = ("--steps", "20", "--batch", "2", "--lr", "0.02", "--eval-every", "10", "--log-every", "10")
SENTENCES = [f"the robot number {n} is called zork" for n in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A vocabulary, a model with it, and data of each form."""
    folder = tmp_path_factory.mktemp("text")
    vocab = bpe_file(
        folder / "vocab.gguf", specials=MARKS, keys={"tokenizer.chat_template": TEMPLATE}
    )
    tokens = Tokenizer.from_gguf(vocab).vocab_size
    recipe = FromScratch()
    recipe.realize(
        toynn.LlamaConfig(tokens, 16, 2, 1, 24, 1, 64), toynn.RecipeOptions(t_seq=8, seed=3)
    )
    recipe.engine.carry_tokenizer(vocab)
    recipe.save(folder / "base.gguf")
    (folder / "text.txt").write_text("\n".join(SENTENCES * 4))
    rows = {
        "text": [{"text": s} for s in SENTENCES],
        "pairs": [{"prompt": s[:17], "completion": s[17:]} for s in SENTENCES],
        "chats": [
            {"messages": [{"role": "user", "content": s[:17]}, {"role": "assistant", "content": s}]}
            for s in SENTENCES
        ],
    }
    for name, lines in rows.items():
        (folder / name).mkdir()
        parts = {"train": lines[4:], "valid": lines[:2], "test": lines[2:4]}
        for part, some in parts.items():
            path = folder / name / f"{part}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in some))
    return folder


def reports_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses_of(out):
    return [report["val_loss"] for report in reports_of(out) if "val_loss" in report]


def loss_of(engine, batches):
    """The mean loss by the engine's logits, in float64."""
    total, rows = 0.0, 0
    for batch in batches:
        logits = engine.logits(batch.inputs, 2).astype(np.float64)
        counts = batch.labels >= 0
        lse = np.log(np.exp(logits[counts]).sum(axis=1))
        total += (lse - logits[counts, batch.labels[counts]]).sum()
        rows += batch.rows
    return total / rows


def train_lora(folder, data, out, *more):
    words = ["--model", str(folder / "base.gguf"), "--data", str(folder / data), "--out", str(out)]
    return main(["train", "lora", *words, *RUN, *more])


@pytest.mark.parametrize("data", ["text", "pairs", "chats", "text.txt"])
def test_an_adapter_is_trained_and_the_best_one_kept(folder, data, tmp_path, capsys):
    base, out = folder / "base.gguf", tmp_path / "run"
    before = hashlib.sha256(base.read_bytes()).hexdigest()
    length = ("--seq", "8") if data == "text.txt" else ()
    assert train_lora(folder, data, out, "--targets", "q,v,ffn_up", "--rank", "3", *length) == 0
    assert hashlib.sha256(base.read_bytes()).hexdigest() == before
    losses, printed = losses_of(out), capsys.readouterr().out
    assert min(losses) < losses[0]
    assert f"before training {losses[0]:.4f}" in printed
    assert ("test        loss" in printed) == (data != "text.txt")
    assert ("--chat --prompt" in printed) == (data == "chats")
    assert {path.name for path in out.iterdir()} >= {
        "adapter.gguf", "adapter_config.json", "adapter_model.safetensors", "sample.txt"
    }  # fmt: skip

    read = jsonl.read(
        folder / data, Tokenizer.from_gguf(base), 8 if length else 512, vocab_size=10**6
    )
    with gguf.open(base) as file:
        for form in (out / "adapter.gguf", out):
            adapter = adapters.load(form, file)
            assert adapter.rank == 3 and len(adapter.tensors) == 6
            kept = loss_of(frozen(file, adapter), read.valid_batches(2, 16))
            assert kept == pytest.approx(min(losses), rel=1e-5)


def test_the_run_says_which_precision_it_chose_and_why(folder, tmp_path, capsys):
    precision, why = toynn.automatic_precision()
    why = why.partition(". ")[0]  # the base is not quantized
    for words in ([], ["--precision", "high"]):
        out = tmp_path / str(len(words))
        assert train_lora(folder, "text", out, "--steps", "1", *words) == 0
        chosen = words[1] if words else precision
        machine = json.loads((out / "run.json").read_text())["machine"]
        assert machine["matmul precision"] == chosen
        config = tomllib.loads((out / "config.toml").read_text())
        assert config["train"]["precision"] == chosen
        said = " ".join(capsys.readouterr().out.split())
        assert (f"precision {precision}: {why}" in said) == (not words)


def test_what_quantized_weights_gain_is_said_over_them_alone(folder, tmp_path, capsys, monkeypatch):
    chosen = ("highest", "medium is slow. Over a quantized base int8 is fast")
    monkeypatch.setattr("toynn.backends.cpu.automatic", lambda: chosen)
    for type in ("F16", "Q8_0"):
        shutil.copytree(folder / "text", tmp_path / type / "text")
        base = tmp_path / type / "base.gguf"
        write_base(base, type=type, vocab=256, context=64, d_model=192, d_ff=32)
        assert train_lora(base.parent, "text", tmp_path / type / "run", "--steps", "1") == 0
        printed = capsys.readouterr().out
        assert "precision   highest: medium is slow\n" in printed
        assert ("            Over a quantized base int8 is fast\n" in printed) == (type == "Q8_0")


def test_the_best_adapter_is_left_and_not_the_last(folder, tmp_path):
    out = tmp_path / "run"
    wild = ("--steps", "2", "--lr", "30", "--min-lr-ratio", "1", "--targets", "all-linear")
    more = ("--eval-every", "1", "--precision", "highest")
    assert train_lora(folder, "text", out, *wild, *more) == 0
    losses, base = losses_of(out), folder / "base.gguf"
    assert losses[-1] > min(losses) + 0.01
    read = jsonl.read(folder / "text", Tokenizer.from_gguf(base), 512, vocab_size=10**6)
    with gguf.open(base) as file:
        for form in (out / "adapter.gguf", out):
            kept = loss_of(frozen(file, adapters.load(form, file)), read.valid_batches(2, 16))
            assert kept == pytest.approx(min(losses), rel=1e-5)


def test_a_run_goes_on_with_an_adapter(folder, tmp_path, capsys):
    assert train_lora(folder, "pairs", tmp_path / "a", "--seed", "1") == 0
    capsys.readouterr()
    more = ("--adapter", str(tmp_path / "a"), "--checkpointing")
    assert train_lora(folder, "pairs", tmp_path / "b", *more) == 0
    first, second = losses_of(tmp_path / "a"), losses_of(tmp_path / "b")
    assert second[0] == pytest.approx(min(first), rel=1e-6)
    assert min(second) < second[0]
    config = tomllib.loads((tmp_path / "b" / "config.toml").read_text())
    assert config["train"]["adapter"] == str(tmp_path / "a")
    assert len(config["data"].pop("sha256")) == 64
    assert config["data"] == {"name": str(folder / "pairs"), "train": 8, "valid": 2, "test": 2}
    said = []
    for adapter in ("a", "b", "b/adapter.gguf"):
        words = ["--model", str(folder / "base.gguf"), "--prompt", "the robot", "--temp", "0"]
        capsys.readouterr()
        assert main(["generate", *words, "--adapter", str(tmp_path / adapter)]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] != said[1] == said[2]


def test_prompts_are_learned_when_asked(folder, tmp_path):
    for more in ((), ("--no-mask-prompt",)):
        assert train_lora(folder, "pairs", tmp_path / f"run{len(more)}", "--steps", "1", *more) == 0
    masked, whole = (reports_of(tmp_path / f"run{n}") for n in (0, 1))
    assert 0 < masked[-1]["trained_tokens"] < whole[-1]["trained_tokens"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--targets", "w"], "'w'"),
        (["--rank", "0"], "--rank: must be a whole number"),
        (["--alpha", "0"], "--alpha: must be a number above 0"),
        (["--adapter", "x", "--rank", "2"], "--rank: the adapter that --adapter names has its own"),
        (["--adapter", "nothing.gguf"], "nothing.gguf: cannot read"),
        (["--data", "nothing.jsonl"], "nothing.jsonl: cannot read: No such file"),
        (["--data", "table.csv"], "table.csv: cannot read: No such file"),
        (["--model", "text.txt"], "text.txt: not a GGUF file"),
        (["--model", "vocab.gguf"], "vocab.gguf:"),
        (["--data", "text", "--seq", "0"], "--seq: must be a whole number"),
    ],
)
def test_bad_options(folder, monkeypatch, capsys, words, message):
    monkeypatch.chdir(folder)
    defaults = {"--model": "base.gguf", "--data": "text"}
    given = [word for pair in defaults.items() if pair[0] not in words for word in pair]
    assert main(["train", "lora", *given, *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not (folder / "runs").exists()


def test_a_new_model_takes_a_tokenizer(folder, tmp_path):
    words = ["--tokenizer", str(folder / "vocab.gguf"), "--d-model", "16", "--layers", "1"]
    words += ["--data", str(folder / "chats"), "--out", str(tmp_path / "run")]
    assert main(["train", "from-scratch", *words, *RUN]) == 0
    model = tmp_path / "run" / "model.gguf"
    first, again = Tokenizer.from_gguf(folder / "vocab.gguf"), Tokenizer.from_gguf(model)
    assert again.encode("the robot zork") == first.encode("the robot zork")
    assert again.chat([{"role": "user", "content": "x"}]) == "<|user|>x<|assistant|>"
    data = jsonl.read(folder / "chats", again, 128, vocab_size=again.vocab_size)
    loss = loss_of(SequenceEngine.from_gguf(model, 8), data.valid_batches(2, 16))
    assert loss == pytest.approx(min(losses_of(tmp_path / "run")), rel=1e-5)

    words = ["--init-from", str(model), "--data", str(folder / "chats"), *RUN]
    assert main(["train", "from-scratch", *words, "--out", str(tmp_path / "more")]) == 0
    assert losses_of(tmp_path / "more")[0] == pytest.approx(loss, rel=1e-5)
    assert Tokenizer.from_gguf(tmp_path / "more" / "model.gguf").tokens == first.tokens


def test_a_donor_gives_rows_to_tokens_of_the_same_text(folder, tmp_path):
    words = ["--tokenizer", str(folder / "vocab.gguf"), "--donor", str(folder / "base.gguf")]
    words += ["--data", str(folder / "text.txt"), "--d-model", "8", "--heads", "2", "--layers", "1"]
    assert (
        main(["train", "warm-start", *words, *RUN, "--seq", "8", "--out", str(tmp_path / "r")]) == 0
    )
    recipe = WarmStart()
    tokens = Tokenizer.from_gguf(folder / "vocab.gguf").tokens
    config = toynn.LlamaConfig(len(tokens), 8, 2, 2, 32, 1, 8, donor_d_in=16)
    recipe.realize_scratch(config, toynn.RecipeOptions(untied=True))
    recipe.realize_warm(folder / "base.gguf", config, tokens)
    with gguf.open(folder / "base.gguf") as file:
        table = np.array(file["token_embd.weight"])
    np.testing.assert_array_equal(recipe.engine.weights()["token_embd.weight"], table)
    assert min(losses_of(tmp_path / "r")) < losses_of(tmp_path / "r")[0]


@pytest.mark.parametrize("harmed", ["before", "while the model is tested"])
def test_tokens_in_a_cache_that_are_damaged(harmed, folder, tmp_path, monkeypatch, capsys):
    """Junk of the same length, before the run or at its end: the run says so, and learns none."""
    monkeypatch.chdir(tmp_path)
    words = ["train", "lora", "--model", str(folder / "base.gguf"), "--data", str(folder / "text")]
    words += ["--cache", "tokens", *RUN]
    assert main([*words, "--out", "plain"]) == 0

    def harm():
        for path in tmp_path.glob("tokens/*/ids.bin"):
            state = path.stat()
            path.write_bytes(bytes(state.st_size))
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))

    capsys.readouterr()
    if harmed == "before":
        harm()
        assert main([*words, "--out", "again"]) == 0
        assert capsys.readouterr().err.count("ids.bin: damaged") == 3
    else:
        finish = run._finish
        monkeypatch.setattr(run, "_finish", lambda *given: (harm(), finish(*given)))
        assert main([*words, "--out", "again"]) == 2
        said = capsys.readouterr()
        assert "ids.bin: changed since it was opened" in said.err
        assert "the tokens are made again" in said.err and "test   " not in said.out
    learned = [(tmp_path / out / "adapter.gguf").read_bytes() for out in ("plain", "again")]
    assert learned[0] == learned[1]


@pytest.mark.parametrize("arch", LlamaSeqEngine.architectures)
@pytest.mark.parametrize("layers", ["1", "4"])
def test_every_architecture_trains_with_its_defaults(arch, layers, folder, tmp_path, capsys):
    """None needs an option that no flag sets."""
    words = ["train", "from-scratch", "--arch", arch, "--data", str(folder / "text.txt")]
    words += ["--steps", "1", "--batch", "1", "--seq", "8", "--heads", "2", "--d-model", "16"]
    out = ["--out", str(tmp_path / "run"), "--report", "none"]
    code = main([*words, "--layers", layers, *out])
    if (arch, layers) == ("nemotron_h_moe", "1"):  # which needs a state space, and experts
        assert code == 2 and "--layers must be at least 2" in capsys.readouterr().err
        return
    assert code == 0
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])["iteration"]
