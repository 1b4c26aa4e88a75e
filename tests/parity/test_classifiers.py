"""What ``toynn train classify`` writes and computes, against transformers and PyTorch."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from small_encoders import with_words  # noqa: E402

from toynn.jobs.made import made  # noqa: E402
from toynn.jobs.run import carried_out  # noqa: E402
from toynn.recipes import Classifier  # noqa: E402

pytestmark = pytest.mark.parity

TEXTS = [f"{a} {b}" for a in ("a cat", "dogs sat", "find") for b in ("sat a cat", "a", ": dog a")]
KINDS = [("cat", "dog", "bird")[(n * n + n // 3) % 3] for n in range(9)]
AUTO = {"tokens": "Token"}


def rows(problem):
    for n, (text, kind) in enumerate(zip(TEXTS, KINDS, strict=True)):
        words = text.split()
        yield {
            "classes": {"text": text, "label": kind},
            "several": {"text": text, "labels": [kind, "dog"][: n % 3]},
            "number": {"text": text, "label": n / 4},
            "tokens": {"words": words, "tags": [KINDS[len(w) % 3] for w in words]},
        }[problem]


def losses(tmp_path, monkeypatch, problem, method="full", **more):
    """Train one step; train on from there: return the loss before it, and the first folder."""
    monkeypatch.chdir(tmp_path)
    with_words(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows(problem))))
    given = {"data": "rows.jsonl", "problem": problem, "batch": 9, "steps": 1, "holdout": 0}
    given |= {"lr": 0.01, "warmup": 0, "report": "none", "eval_every": 0}
    carried_out(made("classify", given | {"model": "model", "out": "a", "method": method}))
    result = carried_out(made("classify", given | {"model": "a", "out": "b"} | more)).result
    return result.train_loss, tmp_path / "a"


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("problem", ["classes", "several", "number", "tokens"])
def test_auto_model_loads_the_folder_and_has_the_same_loss(problem, method, tmp_path, monkeypatch):
    got, folder = losses(tmp_path, monkeypatch, problem, method)
    auto = getattr(transformers, f"AutoModelFor{AUTO.get(problem, 'Sequence')}Classification")
    model = auto.from_pretrained(folder).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids, number = model.config.label2id, problem == "number"
    total, count = 0.0, 0
    for row in rows(problem):
        given = tokenizer(row.get("text") or " ".join(row["words"]), return_tensors="pt")
        if problem == "classes":
            labels = torch.tensor([ids[row["label"]]])
        elif problem == "several":
            labels = torch.tensor([[float(name in row["labels"]) for name in ids]]).double()
        elif number:
            labels = torch.tensor([row["label"]]).double()
        else:
            words = given.word_ids()
            first = [w is not None and w not in words[:k] for k, w in enumerate(words)]
            tags = [row["tags"][w] if w is not None else "" for w in words]
            labels = [[ids[t] if f else -100 for t, f in zip(tags, first, strict=True)]]
            labels = torch.tensor(labels)
        weight = int((labels != -100).sum()) if problem == "tokens" else 1
        total += weight * model(**given, labels=labels).loss.item()
        count += weight
    assert got == pytest.approx(total / count, rel=2e-5)
    logits = Classifier.load(folder).outputs([TEXTS[0]])
    expected = model(**tokenizer(TEXTS[0], return_tensors="pt")).logits.detach().numpy()
    assert np.abs(logits - expected.reshape(logits.shape)).max() < 1e-5


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, "cat=2,bird=0.5", "balanced"])
def test_weights_and_smoothing_are_those_of_torch(weights, smoothing, tmp_path, monkeypatch):
    more = {"class_weights": weights, "label_smoothing": smoothing}
    got, folder = losses(tmp_path, monkeypatch, "classes", **more)
    engine = Classifier.load(folder)
    labels = torch.tensor([engine.names.index(kind) for kind in KINDS])
    w = {"cat": 2.0, "bird": 0.5} if weights and "=" in weights else {}
    w = torch.tensor([w.get(name, 1.0) for name in engine.names]).double()
    if weights == "balanced":
        w = 9 / (3 * torch.bincount(labels).double())
    logits = torch.tensor(engine.outputs(TEXTS)).double()
    loss = torch.nn.functional.cross_entropy(logits, labels, w, label_smoothing=smoothing)
    assert got == pytest.approx(loss.item(), rel=2e-5)


def test_weights_of_several_are_pos_weight(tmp_path, monkeypatch):
    got, folder = losses(tmp_path, monkeypatch, "several", class_weights="dog=3")
    engine = Classifier.load(folder)
    labels = [[float(name in row["labels"]) for name in engine.names] for row in rows("several")]
    weight = torch.tensor([3.0 if name == "dog" else 1.0 for name in engine.names]).double()
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    logits = torch.tensor(engine.outputs(TEXTS)).double()
    expected = loss(logits, torch.tensor(labels).double(), pos_weight=weight).item()
    assert got == pytest.approx(expected, rel=2e-5)
