"""``toynn train embed`` and ``rerank`` on small encoders: what they learn, write and refuse."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed")

from lora_bases import write_base
from small_encoders import with_words

import toynn
from toynn.cli import main
from toynn.engines.encoder import Encoder, Task
from toynn.errors import ConfigError
from toynn.formats.sentences import Sentences
from toynn.recipes import Embedder, Reranker

NAMES = "abcdefghijklmnop"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "is", "find", ":", *NAMES]
WORDS += [f"{a}1" for a in NAMES]
STEPS = ("--steps", "60", "--batch", "8", "--lr", "3e-3", "--eval-every", "20", "--out", "run")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A question names letters, its answer the same letters with a 1."""
    monkeypatch.chdir(tmp_path)
    encoder = Encoder.load(with_words(tmp_path / "plain", [*WORDS], d_model=32))
    encoder.sentences = Sentences("mean", True, 20)
    encoder.export_hf("model")
    some = [(a, b) for a in NAMES for b in NAMES if a < b]
    rows = [{"q": f"is {a} {b}", "a": f"{a}1 {b}1"} for a, b in some]
    rng = np.random.default_rng(0)
    write(tmp_path / "pairs.jsonl", rows)
    triples = [
        r | {"negative": rows[k - rng.integers(1, len(rows))]["a"]} for k, r in enumerate(rows)
    ]
    write(tmp_path / "triples.jsonl", triples)
    scored = [
        {"sentence1": f"is {a}", "sentence2": f"{c}1", "score": float(a == c)}
        for a in NAMES
        for c in [a, a, *rng.choice([*NAMES], 4)]
    ]
    write(tmp_path / "scored.jsonl", scored)
    return tmp_path


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(job, data, *more, model="model", steps=STEPS):
    columns = ("--columns", "anchor=q,positive=a") if data in ("pairs", "triples") else ()
    words = ["train", job, "--model", model, "--data", f"{data}.jsonl", *steps, *columns, *more]
    return main(list(map(str, words)))


def metrics(key):
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    return [found[key] for found in map(json.loads, lines) if found.get(key) is not None]


@pytest.mark.parametrize(
    ("data", "more", "figure"),
    [
        ("pairs", (), "val_retrieval/ndcg@10"),
        ("pairs", ("--loss", "CachedMultipleNegativesRankingLoss", "--symmetric"), None),
        ("triples", ("--dims", "32,8", "--loss", "mnrl"), "val_retrieval/ndcg@10"),
        ("triples", ("--loss", "TripletLoss"), "val_retrieval/ndcg@10"),
        ("scored", (), "val_numbers/spearman"),
        ("pairs", ("--method", "lora", "--mini-batch", "5", "--lr", "0.02"), None),
    ],
)
def test_vectors_are_learned_and_kept(data, more, figure, here, capsys):
    assert train("embed", data, *more) == 0, capsys.readouterr().err
    found = metrics(figure or "val_retrieval/ndcg@10")
    assert max(found[1:]) > found[0] + 0.1, found
    encoder = Embedder.load("run")
    assert encoder.sentences == Sentences("mean", True, 20)
    assert "SentenceTransformer('run')" in capsys.readouterr().out
    assert main(["train", "embed", "--resume", "run", "--steps", "62"]) == 0


def test_a_teacher_says_which_texts_are_alike(here, capsys):
    """Every positive is a wrong one, so only the teacher knows; it has other dimensions."""
    big = Encoder.load(with_words(here / "wide", [*WORDS], d_model=48))
    big.sentences = Sentences("mean", True, 20)
    big.export_hf("big")
    words = ("--steps", "100", "--batch", "16", "--lr", "3e-3", "--eval-every", "50")
    assert train("embed", "pairs", model="big", steps=(*words, "--out", "teacher")) == 0
    rows = [json.loads(line) for line in Path("pairs.jsonl").read_text().splitlines()]
    wrong = np.roll([row["a"] for row in rows], 7).tolist()
    write(here / "wrong.jsonl", [{"q": r["q"], "a": a} for r, a in zip(rows, wrong, strict=True)])
    columns = ("--columns", "anchor=q,positive=a", "--valid", "pairs.jsonl")
    found = {}
    for share in ("0", "1"):
        Path("run").rename("before") if Path("run").exists() else None
        more = (*columns, "--teacher", "teacher", "--teacher-weight", share)
        assert train("embed", "wrong", *more, steps=(*words, "--out", "run")) == 0
        found[share] = metrics("val_retrieval/ndcg@10")
    assert "teacher: 1 of the labels" in capsys.readouterr().out
    assert found["1"][0] == found["0"][0]
    assert found["1"][-1] > max(found["0"]) + 0.2, found
    assert main(["train", "embed", "--resume", "run", "--steps", "102"]) == 0


def test_prompts_are_kept_by_their_use(here, capsys):
    steps = ("--steps", "2", "--batch", "4", "--out", "run")
    assert train("embed", "pairs", "--prompts", "anchor=find: ,positive=is ", steps=steps) == 0
    assert Embedder.load("run").sentences.prompts == {"query": "find: ", "document": "is "}


def test_repeated_positives_are_counted(here, capsys):
    rows = [{"anchor": f"is {a}", "positive": "a1" if a < "d" else f"{a}1"} for a in NAMES]
    write(here / "few.jsonl", rows)
    steps = ("--steps", "2", "--batch", "4", "--holdout", "0", "--out", "run")
    assert train("embed", "few", steps=steps) == 0
    assert "2 positives repeated: never in one batch" in capsys.readouterr().out


def test_a_reranker_learns_scores(here, capsys):
    steps = ("--steps", "150", "--batch", "16", "--lr", "5e-3", "--eval-every", "50")
    words = ("--metric", "accuracy", "--out", "run")
    assert train("rerank", "scored", *words, steps=steps) == 0
    assert "head        new: the model has no cls" in capsys.readouterr().out
    first, *found = metrics("val_accuracy")
    assert max(found) > max(first, 0.7)
    reranker = Reranker.load("run")
    pairs = [("is a", "a1"), ("is a", "h1"), ("is h", "h1")]
    scores, logits = reranker.scores(pairs), reranker.outputs(pairs)[:, 0]
    assert np.abs(scores - 1 / (1 + np.exp(-logits.astype(float)))).max() < 1e-12
    alone = [float(reranker.scores([("is h", text)])[0]) for text in ("b1", "h1", "c1")]
    assert reranker.rank("is h", ["b1", "h1", "c1"]) == np.argsort(alone)[::-1].tolist()
    config = json.loads((here / "run" / "config.json").read_text())
    assert config["id2label"] == {"0": "LABEL_0"}
    shown = config["sentence_transformers"]["activation_fn"]
    assert shown == "torch.nn.modules.activation.Sigmoid"
    reranker.export_gguf("run.gguf")
    assert Reranker.load("run.gguf").scores(pairs).tobytes() == scores.tobytes()


def test_vectors_of_a_decoder_are_measured(here, capsys):
    write_base(here / "decoder.gguf", vocab=256, context=48)
    steps = ("--steps", "1", "--batch", "4", "--out", "run")
    assert train("embed", "pairs", model="decoder.gguf", steps=steps) == 0
    capsys.readouterr()
    words = "--data pairs.jsonl --columns anchor=q,positive=a --json"
    assert main(["eval", "--model", "run", *words.split()]) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["ndcg@10"] <= 1
    assert main(["generate", "--model", "run", "-p", "is a"]) == 2
    assert "it makes vectors of texts: use `toynn embed`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "data", "more", "message"),
    [
        ("embed", "pairs", ("--loss", "cosent"), "--loss cosent: it needs scored rows; the col"),
        ("embed", "scored", ("--loss", "mnrl"), "--loss mnrl: it needs anchors and positives"),
        ("embed", "pairs", ("--loss", "triplet"), "it needs anchor, positive and one negative"),
        ("embed", "pairs", ("--loss", "softmax"), "--loss: must be infonce"),
        ("embed", "pairs", ("--method", "head"), "--method head: vectors have no head"),
        ("embed", "pairs", ("--dims", "64"), "dims must be at most 32"),
        ("embed", "pairs", ("--dims", "8,x"), "--dims: must be a whole number"),
        ("embed", "pairs", ("--prompts", "text=a"), "--prompts: must be COLUMN=TEXT"),
        ("embed", "scored", ("--teacher", "model"), "--teacher: it is for anchors and positives"),
        ("embed", "pairs", ("--teacher", "model", "--symmetric"), "without --symmetric"),
        ("embed", "pairs", ("--teacher-weight", "0.1"), "--teacher-weight: it needs --teacher"),
        ("embed", "pairs", ("--teacher", "pairs.jsonl"), "pairs.jsonl: not a GGUF file"),
        ("embed", "pairs", ("--valid", "scored.jsonl"), "expected a column 'q'"),
        ("embed", "bare", ("--valid", "scored.jsonl"), "expected the columns of the training data"),
        ("rerank", "pairs", (), "--data pairs.jsonl: expected query, passage and label; got"),
        ("rerank", "low", (), "low.jsonl:2: score: expected a number from 0 to 1; got -0.5"),
        (
            "rerank",
            "unscored",
            (),
            "got 'sentence1', 'sentence2': --columns score=... names its",
        ),
        ("rerank", "scored", ("--model", "three"), "its head has 3 outputs; a reranker has 1"),
        ("embed", "pairs", ("--model", "odd"), "expected one of pooling_mode_mean_tokens"),
    ],
)
def test_what_does_not_fit_is_refused(job, data, more, message, here, capsys):
    write(here / "bare.jsonl", [{"anchor": "is a", "positive": "a1"}] * 20)
    low = {"sentence1": "a", "sentence2": "a1", "score": 0.5}
    write(here / "low.jsonl", [low, low | {"score": -0.5}])
    write(here / "unscored.jsonl", [{"sentence1": "a", "sentence2": "a1"}])
    Encoder.load("plain", Task("sequence", 3)).export_hf("three")
    Encoder.load("model").export_hf("odd")
    (here / "odd" / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    assert train(job, data, *more) == 2
    assert message in capsys.readouterr().err
    assert not (here / "run").exists()


def test_eval_says_what_vectors_are_good_for(here, capsys):
    def evaluated(*words, model="model"):
        assert main(["eval", "--model", model, *words, "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    encoder = Embedder.load("model")
    encoder.sentences = Sentences("mean", True, 20, {"query": "find: "})
    encoder.export_hf("asks")
    scored = [json.loads(line) for line in (here / "scored.jsonl").read_text().splitlines()]
    first, second = (encoder.encode([row[f"sentence{k}"] for row in scored]) for k in (1, 2))
    found = evaluated("--data", "scored.jsonl")
    both = (first * second).sum(1), np.array([row["score"] for row in scored])
    ranks = [[((x < v).sum() + (x <= v).sum()) / 2 for v in x] for x in both]
    assert abs(found["spearman"] - np.corrcoef(*ranks)[0, 1]) < 1e-9 and found["pairs"] == 96
    write(here / "corpus.jsonl", [{"id": a, "text": f"{a}1"} for a in NAMES])
    write(here / "asked.jsonl", [{"query": f"is {a}", "relevant": [a]} for a in NAMES[:5]])
    for model, prompt in (("model", ""), ("asks", "find: ")):
        found = evaluated("--data", "asked.jsonl", "--corpus", "corpus.jsonl", model=model)
        texts = encoder.encode([f"{a}1" for a in NAMES])
        likeness = encoder.encode([f"{prompt}is {a}" for a in NAMES[:5]]) @ texts.T
        places = [int((row > row[k]).sum()) for k, row in enumerate(likeness)]
        expected = np.mean([1 / (1 + place) if place < 10 else 0 for place in places])
        assert abs(found["mrr@10"] - expected) < 1e-6 and found["texts"] == 16
        assert abs(found["recall@1"] - np.mean([place == 0 for place in places])) < 1e-6
    columns = ("--data", "pairs.jsonl", "--columns", "anchor=q,positive=a")
    found = evaluated(*columns)
    assert found["queries"] == found["texts"] == 120
    assert main(["eval", "--model", "model", *columns]) == 0
    assert f"ndcg@10     {found['ndcg@10']:.4f}" in capsys.readouterr().out
    assert main(["eval", "--model", "model", *columns, "--separator", ";"]) == 2
    assert "--separator: model has vectors, and no classes" in capsys.readouterr().err


def test_eval_says_what_scores_are_good_for(here, capsys):
    Encoder.load("plain", Task("sequence", 1, "binary")).export_hf("scores")
    names = ("q", "passage", "label")
    asked = [("a", "b1", 1), ("a", "c1", 0), ("a", "d1", 0), ("b", "c1", 1), ("c", "c1", 0.2)]
    asked += [("d", f"{a}1", float(a == "d")) for a in NAMES]
    write(here / "asked.jsonl", [dict(zip(names, row, strict=True)) for row in asked])
    words = ["eval", "--model", "scores", "--data", "asked.jsonl", "--columns", "query=q"]
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    z = Reranker.load("scores").outputs([row[:2] for row in asked])[:, 0].astype(float)
    labels = np.array([row[2] for row in asked])
    loss = -(labels * np.log(1 / (1 + np.exp(-z))) + (1 - labels) * np.log(1 / (1 + np.exp(z))))
    assert abs(found["loss"] - loss.mean()) < 1e-9 and found["pairs"] == 21
    assert found["accuracy"] == ((z > 0) == (labels > 0.5)).mean()
    places = [1 + (z[1:3] > z[0]).sum(), 1 + (z[5:] > z[8]).sum()]
    assert found["queries"] == 2  # b and c have right passages alone, or none
    assert abs(found["mrr@10"] - np.mean([1 / p if p <= 10 else 0 for p in places])) < 1e-9
    gains = [1 / np.log2(1 + p) if p <= 10 else 0 for p in places]
    assert abs(found["ndcg@10"] - np.mean(gains)) < 1e-9
    assert main(words) == 0 and "accuracy    0." in capsys.readouterr().out
    assert main([*words, "--separator", ";"]) == 2
    assert "--separator: scores has scores, and no classes" in capsys.readouterr().err
    assert main([*words[:4], "pairs.jsonl", "--columns", "anchor=q,positive=a"]) == 2
    assert "pairs.jsonl: expected query, passage and label; got anchor" in capsys.readouterr().err


def test_finetune_trains_vectors_and_scores(here):
    given = {"columns": "anchor=q,positive=a", "steps": 3, "quiet": True}
    run = toynn.finetune("model", "pairs.jsonl", "run", recipe="embed", **given)
    assert isinstance(run.engine, Embedder) and run.engine.encode(["is a"]).shape == (1, 32)
    assert run.evaluate("pairs.jsonl")["queries"] == 120
    rows = [json.loads(line) for line in (here / "scored.jsonl").read_text().splitlines()]
    ranks = toynn.finetune("plain", rows=rows, out="b", recipe="rerank", steps=3, quiet=True)
    assert isinstance(ranks.engine, Reranker) and ranks.engine.scores([("is a", "a1")]).size == 1
    assert ranks.evaluate()["loss"] > 0
    assert ranks.evaluate("scored.jsonl")["pairs"] == 96
    with pytest.raises(ConfigError, match="the model is no classifier"):
        run.predict(["is a"])


def test_a_reranker_has_one_output(here):
    Encoder.load("plain", Task("sequence", 3)).export_hf("three")
    with pytest.raises(ConfigError, match="its head has 3 outputs; a reranker has 1"):
        Reranker.load("three")
