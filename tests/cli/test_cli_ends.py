"""Stop tokens: their loss beside that of the rest, and what is said of those not learned."""

import json
import re

import numpy as np
import pytest
from lora_bases import write_base
from vocabs import bpe_file

from toynn.cli import main
from toynn.engines import LlamaSeqEngine, frozen
from toynn.formats import adapters, gguf
from toynn.formats.tokenizer import Tokenizer
from toynn.jobs import ends

RUN = ["--batch", "2", "--seq", "24", "--save-every", "0", "--report", "none"]
ROWS = [{"prompt": f"say {n}: ", "completion": "abc abc abc abc"} for n in range(6)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Models whose row of the stop token is 0, tied and untied."""
    folder = tmp_path_factory.mktemp("ends")
    bpe_file(folder / "words.gguf")
    tokenizer = Tokenizer.of(folder / "words.gguf")
    for name, untied in (("tied", False), ("untied", True)):
        shape = {"vocab": tokenizer.vocab_size, "context": 48, "n_layers": 1}
        write_base(folder / "plain.gguf", untied=untied, **shape)
        engine = LlamaSeqEngine.from_gguf(folder / "plain.gguf", t_seq=8, build=False)
        engine.carry_tokenizer(folder / "words.gguf")
        weights = engine.weights()
        weights["output.weight" if untied else "token_embd.weight"][tokenizer.eos] = 0
        engine.load_weights(weights)
        engine.export_gguf(folder / f"{name}.gguf")
        (folder / "plain.gguf").unlink()
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (folder / "rows.jsonl").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def here(files, tmp_path, monkeypatch):
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(folder="run"):
    with open(f"{folder}/metrics.jsonl") as file:
        return [json.loads(line) for line in file]


def by_hand(model, adapter=None, rows=ROWS):
    """Losses of stop tokens, and of the rest, in float64, example by example."""
    with gguf.open(model) as file:
        tokenizer = Tokenizer.of(file)
        found = None if adapter is None else adapters.load(adapter, file)
        engine = frozen(file, found)
    stop, rest = [], []
    for row in rows:
        prompt = tokenizer.encode(row["prompt"], add_special=tokenizer.add_bos)
        ids = [*prompt, *tokenizer.encode(row["completion"], add_special=False), tokenizer.eos]
        logits = engine.logits(ids[:-1]).astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), ids[1:]]
        losses = losses[len(prompt) - 1 :].tolist()
        rest += losses[:-1]
        stop.append(losses[-1])
    return np.mean(stop), np.mean(rest)


def lora(model, *more):
    typed = ["train", "lora", "-m", model, "--data", "rows.jsonl", "--out", "run", *RUN]
    return main([*typed, "--precision", "highest", *more])


def test_an_evaluation_reports_both(capsys):
    more = ["--valid", "rows.jsonl", "--steps", "4", "--eval-every", "2", "--lr", "1e-3"]
    assert lora("untied.gguf", *more) == 0
    reports = [each for each in told() if "val_loss" in each]
    assert len(reports) == 3
    first = reports[0]
    stop, rest = by_hand("untied.gguf")
    assert first["val_stop/loss"] == pytest.approx(stop, rel=1e-4)
    assert first["val_rest/loss"] == pytest.approx(rest, rel=1e-4)
    for each in reports:
        count = len(Tokenizer.of("words.gguf").encode(ROWS[0]["completion"], add_special=False))
        whole = (each["val_stop/loss"] + count * each["val_rest/loss"]) / (count + 1)
        assert each["val_loss"] == pytest.approx(whole, rel=1e-5)
    printed = capsys.readouterr()
    assert f"stop {first['val_stop/loss']:.4f}" in printed.out + printed.err


@pytest.mark.parametrize("recipe", ["gpt2", "from-scratch"])
def test_recipes_of_new_models_report_both(recipe):
    typed = ["train", recipe, "--tokenizer", "words.gguf", "--data", "rows.jsonl", "--steps", "2"]
    typed += ["--d-model", "16", "--heads", "2", "--layers", "1", "--valid", "rows.jsonl"]
    assert main([*typed, "--out", "run", *RUN]) == 0
    last = told()[-1]
    stop, rest = by_hand("run/model.gguf")
    assert last["val_stop/loss"] == pytest.approx(stop, rel=1e-3)
    assert last["val_rest/loss"] == pytest.approx(rest, rel=1e-3)


def test_of_a_text_without_stop_tokens_there_is_one_loss(here):
    (here / "text.txt").write_text("abc abd abe " * 100)
    typed = ["train", "from-scratch", "--tokenizer", "words.gguf", "--data", "text.txt"]
    typed += ["--d-model", "16", "--heads", "2", "--layers", "1", "--steps", "2"]
    assert main([*typed, "--out", "run", *RUN]) == 0
    assert not {"val_stop/loss", "val_rest/loss"} & told()[-1].keys()


@pytest.mark.parametrize("valid", [True, False], ids=["held-out", "nothing-held-out"])
@pytest.mark.parametrize("model", ["tied", "untied"])
def test_a_stop_that_is_not_learned_is_said(model, valid, capsys):
    """Its logit is 0, and those of 657 other tokens cannot all be far below."""
    more = ["--valid", "rows.jsonl"] if valid else []
    more += ["--steps", "60", "--targets", "all-linear", "--lr", "0.02"]
    assert lora(f"{model}.gguf", *more) == 0
    out = capsys.readouterr().out
    line = re.search(
        r"stop        loss ([\d.]+) on stop tokens \(<eos>\), ([\d.]+) on the rest", out
    )
    stop, rest = by_hand(f"{model}.gguf", "run/adapter.gguf")
    assert line, (stop, rest, out)
    assert (float(line[1]), float(line[2])) == pytest.approx((stop, rest), abs=0.02)
    out = " ".join(out.split())
    assert ("--targets all-linear,head" in out) == (model == "untied")
    assert ("toynn train from-scratch --init-from tied.gguf" in out) == (model == "tied")


def test_what_is_said_works(capsys):
    """As printed: with the head adapted the stop token is learned, and nothing is said."""
    more = ["--steps", "60", "--lr", "0.02", "--targets", "all-linear,head"]
    assert lora("untied.gguf", *more) == 0
    out = capsys.readouterr().out
    assert "stop tokens" not in out
    stop, _ = by_hand("untied.gguf", "run/adapter.gguf")
    assert stop < 0.5


def test_with_the_head_adapted_another_advice(capsys, monkeypatch):
    monkeypatch.setattr(ends, "unlearned", lambda means, counts: True)
    assert lora("untied.gguf", "--steps", "2", "--lr", "1e-7", "--targets", "q,head") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "on stop tokens (<eos>)" in out and "train longer (--steps)" in out


def test_a_run_that_makes_nothing_better_says_so_and_has_its_last_weights(capsys, monkeypatch):
    """Its best weights are those from before training: what they know of ends is no news."""
    monkeypatch.setattr(ends, "unlearned", lambda means, counts: True)
    more = ["--valid", "rows.jsonl", "--warmup", "0", "--save-every", "2"]
    assert lora("untied.gguf", *more, "--steps", "2", "--lr", "9") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(the best, at step 0)" in out and "on stop tokens" not in out
    said = "warning no evaluation has a better loss: the weights are those from before training"
    assert f"{said}; run/last has the last ones" in out
    found = [by_hand("untied.gguf", path) for path in (None, "run", "run/last")]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[2] == pytest.approx((told()[-1]["val_stop/loss"], told()[-1]["val_rest/loss"]))
    typed = ["generate", "-m", "untied.gguf", "--adapter", "run/last", "-p", "say", "-n", "1"]
    assert main(typed) == 0
    assert main(["train", "--resume", "run", "--steps", "3"]) == 0
    assert by_hand("untied.gguf", "run/last") != found[2]


def test_a_run_whose_last_weights_are_the_best_has_them_once(here):
    more = ["--valid", "rows.jsonl", "--steps", "2", "--lr", "1e-3"]
    assert lora("untied.gguf", *more) == 0
    assert (here / "run" / "adapter.gguf").exists() and not (here / "run" / "last").exists()


def test_when_a_stop_counts_as_not_learned():
    def is_said(stop, rest, stops, others):
        means = {ends.STOP: stop, ends.REST: rest}
        return ends.unlearned(means, {ends.STOP: stops, ends.REST: others})

    assert is_said(5.4, 0.29, 10, 90)  # the issue's
    assert not is_said(0.2, 0.29, 10, 90)
    assert not is_said(2.2, 0.29, 10, 90)  # better than its share, 10 %: ln 10 = 2.30
    assert is_said(2.4, 0.29, 10, 90)
    assert not is_said(6.0, 2.5, 1, 999)  # of long documents, none could know it
    assert not is_said(5.4, 6.0, 10, 90)  # nothing is known yet


def test_eval_reports_both(capsys):
    typed = ["eval", "-m", "untied.gguf", "--data", "rows.jsonl"]
    assert main([*typed, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stop, rest = by_hand("untied.gguf")
    assert (found["loss_stop"], found["loss_rest"]) == pytest.approx((stop, rest), rel=1e-5)
    assert found["counted_stop"] == len(ROWS)
    assert found["counted_stop"] + found["counted_rest"] == found["counted"]
    assert main(typed) == 0
    assert f"loss {stop:.4f} on 6 stop tokens, {rest:.4f} on the rest" in capsys.readouterr().out
    assert main([*typed, "--json", "--against", "untied.gguf"]) == 0
    own = {name: value for name, value in found.items() if not name.startswith("tokens")}
    assert own.items() <= json.loads(capsys.readouterr().out).items()
