"""Perplexity, divergence, accuracy: of models whose every probability is known; and PyTorch."""

import json
import re
import sys
from math import exp, log
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from llamas import SIZES, make, shake
from lora_bases import write_base
from shared import DATA
from some_adapters import draw

from toynn import evaluation
from toynn.data.examples import Examples
from toynn.errors import ConfigError, DataError, NonFiniteError
from toynn.evaluation import accuracy, divergence, example_loss, log_likelihoods, perplexity
from toynn.evaluation.harness import Requests
from toynn.evaluation.scores import losses, read
from toynn.formats import adapters, gguf
from toynn.generation.drawing import Drawn

V = 5


class Known:
    """Says after each token t that t + 1 (mod V) comes, with probability p; the others share."""

    def __init__(self, p, context=64):
        self.p, self.context, self.lengths, self.checks = p, context, [], 0

    def logits(self, ids, batch=None):
        self.lengths.append(len(ids))
        rows = np.full((len(ids), V), log((1 - self.p) / (V - 1)), np.float32)
        rows[np.arange(len(ids)), (np.asarray(ids) + 1) % V] = log(self.p)
        return rows + np.float32(3.7)  # softmax does not mind

    def check_unchanged(self):
        self.checks += 1

    def batch_decoder(self, batch, room):
        return Together(self, batch, room)


class Together:
    """Sequences of such an engine."""

    def __init__(self, engine, batch, room):
        self.engine, self.room, self.ids = engine, room, [[] for _ in range(batch)]

    def past(self, number):
        return len(self.ids[number])

    def rewind(self, number):
        self.ids[number] = []

    def copy(self, source, target):
        self.ids[target] = list(self.ids[source])

    def read(self, pieces):
        for number, piece in pieces.items():
            self.ids[number] += piece
            assert len(self.ids[number]) <= self.room
        return {number: self.engine.logits(piece)[-1] for number, piece in pieces.items()}


def rising(n):
    return (np.arange(n) % V).astype(np.int32)


def test_a_text_that_is_expected_and_one_that_is_not():
    rises = perplexity(Known(0.5), rising(40), 8)
    assert rises.every.loss == pytest.approx(log(2), rel=1e-6)
    assert rises.every.perplexity == pytest.approx(2, rel=1e-6)
    assert rises.every.error == pytest.approx(0, abs=1e-6)
    still = perplexity(Known(0.5), np.zeros(40, np.int32), 8)
    assert still.every.loss == pytest.approx(log(8), rel=1e-6)


def test_windows_are_llama_cpps():
    """43 tokens in windows of 8: five, of each the answers 4 to 6 (of 0 to 6)."""
    ids = rising(43)
    ids[13] = 0  # an answer in the second half of the second window; and then wrong for 14
    scores = perplexity(Known(0.5), ids, 8)
    assert (scores.second_halves.tokens, scores.every.tokens) == (5 * 3, 5 * 7)
    wrong = log(8) - log(2)
    assert scores.second_halves.loss == pytest.approx(log(2) + 2 * wrong / 15, rel=1e-6)
    ids = rising(43)
    ids[10:12] = 0  # answers of a first half
    assert perplexity(Known(0.5), ids, 8).second_halves.loss == pytest.approx(log(2), rel=1e-6)
    assert perplexity(Known(0.5), ids, 8).every.loss > log(2) + 0.01


def test_bos_stands_for_the_first_token_of_each_window():
    scores = perplexity(Known(0.5), rising(40), 8, bos=4)
    wrong = sum(begin % V != 0 for begin in range(0, 40, 8))  # 4 expects 0 + 1's place
    assert scores.every.loss == pytest.approx(log(2) + wrong * (log(8) - log(2)) / 35, rel=1e-6)
    assert scores.second_halves.loss == pytest.approx(log(2), rel=1e-6)


def test_error_is_the_standard_error_of_the_mean():
    ids = np.random.default_rng(0).integers(0, V, 400).astype(np.int32)
    score = perplexity(Known(0.6), ids, 20).every
    losses = np.where((ids[:-1] + 1) % V == ids[1:], -log(0.6), -log(0.1)).reshape(-1)
    inside = np.delete(losses, np.arange(19, 399, 20))  # across two windows
    assert score.loss == pytest.approx(inside.mean(), rel=1e-6)
    assert score.error == pytest.approx(inside.std() / (len(inside) - 1) ** 0.5, rel=1e-5)
    assert score.perplexity_error == pytest.approx(score.error * exp(score.loss), rel=1e-6)


@pytest.mark.parametrize(
    ("ids", "length", "said"),
    [
        (rising(15), 8, r"the text has 15 tokens; windows of 8 need at least 16"),
        (rising(15), 3, r"at least 4 tokens; got 3"),
        (rising(300), 65, r"1 to 64 tokens, the model's context; got 65"),
    ],
)
def test_texts_and_windows_that_do_not_fit(ids, length, said):
    with pytest.raises(ConfigError, match=said):
        perplexity(Known(0.5), ids, length)


def test_logits_that_are_not_finite_are_an_error():
    class Broken(Known):
        def logits(self, ids, batch=None):
            return super().logits(ids) * np.float32(np.inf)

    with pytest.raises(NonFiniteError, match="not finite"):
        perplexity(Broken(0.5), rising(40), 8)


def test_divergence_of_known_models():
    apart = divergence(Known(0.5), Known(0.8), rising(40), 8)
    kl = 0.8 * log(0.8 / 0.5) + 0.2 * log(0.05 / 0.125)
    assert apart.mean == pytest.approx(kl, rel=1e-5)
    assert apart.largest == pytest.approx(kl, rel=1e-5)
    assert apart.same_top == 1 and apart.rms_delta_p == pytest.approx(0.3, rel=1e-5)
    assert apart.model.loss == pytest.approx(log(2), rel=1e-6)
    assert apart.base.loss == pytest.approx(-log(0.8), rel=1e-6)
    other = divergence(Known(0.1), Known(0.8), rising(40), 8)
    assert other.same_top == 0
    nothing = divergence(Known(0.8), Known(0.8), rising(40), 8)
    assert nothing.mean == pytest.approx(0, abs=1e-12)


def test_against_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(3)
    models = [make(), make()]
    for recipe in models:
        shake(recipe.engine, rng)
    ids = rng.integers(0, SIZES["vocab"], 40).astype(np.int32)
    q, p = (
        torch.log_softmax(
            torch.tensor(
                np.concatenate([m.engine.logits(ids[k : k + 8])[4:7] for k in range(0, 40, 8)])
            ).double(),
            -1,
        )
        for m in models
    )
    apart = divergence(models[0].engine, models[1].engine, ids, 8)
    expected = torch.nn.functional.kl_div(q, p, reduction="batchmean", log_target=True)
    assert apart.mean == pytest.approx(float(expected), rel=1e-5)
    answers = torch.tensor(np.concatenate([ids[k + 5 : k + 8] for k in range(0, 40, 8)])).long()
    assert apart.model.loss == pytest.approx(
        float(torch.nn.functional.nll_loss(q, answers)), rel=1e-5
    )


def test_examples_count_what_is_learned_and_few_tapes_are_needed():
    examples = Examples(60)
    for n in (3, 50, 9, 33, 20, 40):
        prompt, completion = rising(n), [(n + k) % V for k in range(4)]
        completion[2] = completion[1]  # twice wrong: it, and the one behind it
        examples.append([(prompt.tolist(), False), (completion, True)])
    engine = Known(0.5)
    score = example_loss(engine, examples)
    assert score.tokens == 24
    assert score.loss == pytest.approx((2 * log(2) + 2 * log(8)) / 4, rel=1e-6)
    assert set(engine.lengths) == {32, 64} and engine.lengths == sorted(engine.lengths)


def test_filling_up_changes_nothing():
    engine = make(context=48).engine
    ids = np.arange(33, dtype=np.int32)
    np.testing.assert_allclose(read(engine, ids), engine.logits(ids), rtol=2e-5, atol=2e-5)


class Letters:
    """A tokenizer of digits: a text of them is its ids; spaces are token 0."""

    bos, eos, add_eos = None, 3, False

    def encode(self, text, add_special=True):
        return [0 if c == " " else int(c) for c in text]


def log_likelihood(engine, context, continuation):
    (found,) = log_likelihoods(engine, Letters(), [(context, continuation)])
    return found


def test_log_likelihood():
    one, greedy = log_likelihood(Known(0.5), "123", "40")
    assert one == pytest.approx(-2 * log(2), rel=1e-6) and greedy
    two, greedy = log_likelihood(Known(0.5), "123", "41")
    assert two == pytest.approx(-log(2) - log(8), rel=1e-6) and not greedy
    spaced = log_likelihood(Known(0.5), "4  ", "1")  # the spaces are to be said, too
    assert spaced[0] == pytest.approx(-2 * log(2) - log(8), rel=1e-6)
    alone = log_likelihood(Known(0.5), "", "40")  # behind EOS, 3
    assert alone[0] == pytest.approx(-2 * log(2), rel=1e-6)
    cut = log_likelihood(Known(0.5, context=4), "11111123", "40")
    assert cut[0] == pytest.approx(-2 * log(2), rel=1e-6)
    full = log_likelihood(Known(0.5, context=4), "11111123", "4012")
    assert full[0] == pytest.approx(-4 * log(2), rel=1e-6)
    with pytest.raises(DataError, match="5 tokens exceeds the model's context of 4"):
        log_likelihood(Known(0.5, context=4), "1", "23401")
    with pytest.raises(NonFiniteError, match="logits are not finite"):
        log_likelihood(Known(float("nan")), "123", "40")
    assert list(log_likelihoods(Known(0.5), Letters(), [])) == []


def test_choices_are_read_together_and_their_question_once(monkeypatch):
    """Their scores are those of whole texts, and do not depend on how many are read at a time."""
    engine, runs = make(context=48).engine, []
    pairs = [("1234" * k, answer) for k in (3, 9) for answer in ("0", "123", "01230", "3" * 12)]
    alone = [log_likelihoods(engine, Letters(), [pair]) for pair in pairs]
    alone = [found for (found,) in alone]
    for (context, answer), (log_p, _) in zip(pairs, alone, strict=True):
        ids = np.array(Letters().encode(context + answer), np.int32)
        nats, _ = losses(read(engine, ids[:-1])[len(context) - 1 :], ids[len(context) :])
        assert log_p == pytest.approx(-nats.sum(), rel=1e-5)
    compute = engine.compute
    monkeypatch.setattr(engine, "compute", lambda *all: runs.append(1) or compute(*all))
    for rows in (1, 3, 8):
        runs.clear()
        assert list(log_likelihoods(engine, Letters(), pairs, rows)) == alone
        # a question and its choices' tokens, of which the last is never read
        assert rows != 1 or len(runs) == 2 * (1 + 0 + 2 + 4 + 11)
    assert len(runs) == 2 + 11


def questions(tmp_path, *rows):
    path = tmp_path / "quiz.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return evaluation.read_questions(path)


def test_accuracy_by_both_scores(tmp_path):
    """Of two choices the long one is likelier for its length, the short one in sum."""
    rows = [
        {"question": "34", "choices": ["1234", "3"], "answer": "1234"},
        {"question": "34", "choices": ["1234", "3"], "answer": "B"},
        {"question": "34", "choices": ["1", "3"], "answer": 0},
    ]
    scores = accuracy(Known(0.5), Letters(), questions(tmp_path, *rows))
    # sums: " 1234" 5 log 2, " 3" log 2 + log 8; divided by 4 and by 1
    assert (scores.summed, scores.normalized, scores.questions) == (2 / 3, 2 / 3, 3)
    first = accuracy(Known(0.5), Letters(), questions(tmp_path, rows[0]))
    assert (first.summed, first.normalized) == (0, 1)


class Lines(Letters):
    def encode(self, text, add_special=True):
        return super().encode(text.replace("\n", "3"))


@pytest.mark.parametrize(
    ("question", "delimiter", "right", "said"),
    [
        ("34", None, "1", 'with " " between'),  # 3 4 0 1
        ("34", "", "0", 'with "" between'),  # 3 4 0
        ("2\n", None, "4", "with nothing between: all questions end in whitespace"),  # 2 3 4
        ("2\n", " ", "1", 'with " " between'),  # 2 3 0 1, of which 0 is wrong in any case
        ("12", "\n", "4", r'with "\n" between'),  # 1 2 3 4
    ],
)
def test_a_delimiter_stands_between_question_and_choice(tmp_path, question, delimiter, right, said):
    """The choice that follows on the delimiter's token is the likelier one."""
    rows = [{"question": question, "choices": ["0", "1", "4"], "answer": right}]
    quiz = questions(tmp_path, *rows)
    assert accuracy(Known(0.5), Lines(), quiz, delimiter).summed == 1
    assert evaluation.delimited(quiz, delimiter) == said
    both = [*quiz, *quiz, evaluation.Question("\n", ("a", "b"), 0)]
    if delimiter is None and not question.endswith("\n"):
        some = ", or nothing after a question that ends in whitespace (1)"
        assert evaluation.delimited(both, None) == said + some


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"quiz.jsonl:1: not JSON"),
        ("[]", r"quiz.jsonl:1: expected an object with question, choices, answer; got list"),
        ('{"question": "a"}', r"got question"),
        ('{"question": "a", "choices": ["b"], "answer": 0}', r"at least 2 choices"),
        ('{"question": "a", "choices": ["b", 2], "answer": 0}', r"choices of text"),
        ('{"question": "a", "choices": ["b", "c"], "answer": 2}', r"0 to 1, A to B.*got 2"),
        ('{"question": "a", "choices": ["b", "c"], "answer": true}', r"got True"),
        ('{"question": "a", "choices": ["b", "b"], "answer": "b"}', r"got 'b'"),
        (" ", r"a question per line; got none"),
    ],
)
def test_bad_questions(tmp_path, line, said):
    path = tmp_path / "quiz.jsonl"
    path.write_text(line)
    with pytest.raises(DataError, match=said):
        evaluation.read_questions(path)


class Request:
    def __init__(self, *args):
        self.args = args


def requests(engine):
    """The answers to lm-eval's requests, over an engine and letters."""
    model = Requests.__new__(Requests)
    model.engine, model.tokenizer = engine, Letters()
    return model


@pytest.mark.parametrize("context", [64, 8, 3])
def test_a_rolling_text_counts_each_token_once(context):
    text = "40123401234012340123"
    whole, wrong = requests(Known(0.5, context)).loglikelihood_rolling(
        [Request(text), Request(text[:10] + "0" + text[10:])]
    )
    assert whole == pytest.approx(-len(text) * log(2), rel=1e-6)
    assert wrong == pytest.approx(-(len(text) - 1) * log(2) - 2 * log(8), rel=1e-6)


def test_generation_ends_before_the_first_of_the_texts(monkeypatch):
    class Stream:
        push, end = staticmethod(str), staticmethod(lambda: "")

    asked = []

    def drawn(engine, ids, room, sampling, **options):
        asked.append((ids, room, sampling.temperature))
        return (Drawn(id, np.nan, ()) for id in (1, 2, 3, 4, 0, 1, 2))

    model = requests(Known(0.5))
    monkeypatch.setattr("toynn.generation.completion.draw", drawn)
    monkeypatch.setattr(Letters, "stream", lambda self: Stream(), raising=False)
    monkeypatch.setattr(Letters, "eog", frozenset(), raising=False)
    said = model.generate_until(
        [
            Request("12", {"until": ["34", "4"], "max_gen_toks": 5}),
            Request("12", {"until": "77", "temperature": 0.7, "do_sample": True}),
        ]
    )
    assert said == ["12", "1234012"]
    assert asked == [([1, 2], 5, 0.0), ([1, 2], 256, 0.7)]


def test_the_block_of_the_docs_for_lm_eval(tmp_path, monkeypatch, capsys):
    """On a small model with its run, and a fake of the library that asks what a task of it asks."""

    class Base:
        pass

    def simple_evaluate(*, model, tasks, bootstrap_iters):
        (task,) = tasks
        assert isinstance(model, Base) and task["output_type"] == "multiple_choice"
        rows = Path(task["dataset_kwargs"]["data_files"][task["test_split"]]).read_text()
        right = 0
        for row in map(json.loads, rows.splitlines()):
            text, choices = (row[task[f"doc_to_{k}"].strip("{}")] for k in ("text", "choice"))
            scores = model.loglikelihood([Request(text, f" {choice}") for choice in choices])
            best = max(range(len(scores)), key=lambda k: scores[k][0])
            right += best == row[task["doc_to_target"].strip("{}")]
        assert [entry["metric"] for entry in task["metric_list"]] == ["acc", "acc_norm"]
        return {"results": {task["task"]: {"acc,none": right / len(rows.splitlines())}}}

    library = ModuleType("lm_eval")
    library.simple_evaluate = simple_evaluate
    monkeypatch.setitem(sys.modules, "lm_eval", library)
    monkeypatch.setitem(sys.modules, "lm_eval.api", ModuleType("lm_eval.api"))
    api = ModuleType("lm_eval.api.model")
    api.LM = Base
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", api)
    monkeypatch.chdir(tmp_path)
    write_base(tmp_path / "base.gguf", vocab=256, context=64)
    (tmp_path / "runs" / "zork").mkdir(parents=True)
    with gguf.open("base.gguf") as file:
        adapters.write_gguf(tmp_path / "runs" / "zork" / "adapter.gguf", draw(file))
    quiz = [
        {"question": "who is on the moon?", "choices": ["zork", "nobody"], "answer": n % 2}
        for n in range(3)
    ]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in quiz))
    page = (Path(__file__).parents[2] / "docs" / "fine-tuning.md").read_text("utf-8")
    (code,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "lm_eval" in b]
    names = {}
    exec(code, names)
    model = names["model"]
    assert model.engine.adapters  # that of the run
    ours = accuracy(model.engine, model.tokenizer, questions(tmp_path, *quiz))
    assert names["found"]["results"]["quiz"] == {"acc,none": ours.summed}
    assert "acc,none" in capsys.readouterr().out


@pytest.mark.slow
def test_lm_eval_takes_the_model(tmp_path):
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not there")
    from lm_eval.tasks import TaskManager

    rows = [
        {"q": "Once upon a time, there was a little girl named", "c": ["Lily", "Quark"], "a": 0},
        {"q": "The cat sat on the", "c": ["xylophone", "mat"], "a": 1},
        {"q": "Tom and Sue went to the park to", "c": ["play", "integrate"], "a": 1},  # wrong
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "small",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(tmp_path)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{c}}",
        "doc_to_target": "{{a}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    path = DATA / "stories260K.gguf"
    model = evaluation.LM(path)
    theirs = lm_eval.simple_evaluate(
        model=model,
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
    )
    results = theirs["results"]["small"]
    quiz = questions(
        tmp_path, *({"question": r["q"], "choices": r["c"], "answer": r["a"]} for r in rows)
    )
    ours = accuracy(model.engine, model.tokenizer, quiz)
    assert results["acc,none"] == ours.summed == 2 / 3
    assert results["acc_norm,none"] == ours.normalized
