"""What ``toynn eval`` does: it measures a model, and prints the figures."""

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from toynn import engines
from toynn.cli._models import check_named, opened, origin
from toynn.data import jsonl
from toynn.data.labelled import HowToRead
from toynn.engines import PreferenceOptions, SequenceEngine, ViTEngine
from toynn.engines.objectives import KINDS, PARAMETERS
from toynn.errors import ConfigError
from toynn.formats import bases
from toynn.jobs.classified import classifier, of_encoder, text_figures
from toynn.jobs.embedded import score_figures, vector_figures
from toynn.jobs.figures import NO_QUESTIONS, figures, picture_figures, preference_figures, seq_of
from toynn.jobs.paths import local_data, local_path, of_pictures, on_hub, picture_model, text_model
from toynn.jobs.text_options import WINDOW, columns_of
from toynn.jobs.vit_options import TOP
from toynn.options import RecipeOptions
from toynn.system.printing import fact, print_fact
from toynn.train.classify import confusion_text

#: Flags for one kind of model only, or for preferences only.
OF_LOSS = (*PARAMETERS, "batch")
NOT_OF_LOSS = ("against", "no_mask_prompt", "question_delimiter")
OF_TEXT = ("adapter", "tokenizer", "seq", "loss", *NOT_OF_LOSS, *OF_LOSS)
OF_PICTURES = ("top", "skip_unreadable")
OF_ENCODER = ("separator", "corpus")
#: Figures of a classifier of texts, and what they are called.
FIGURES = {name: name for name in ("accuracy", "matthews", "spearman", "precision", "recall")}
FIGURES |= {"macro_f1": "macro-f1", "micro_f1": "micro-f1", "f1": "entity-f1"}


def evaluate(arguments: Namespace) -> int:
    """Print the figures."""
    _fetch(arguments)
    if arguments.model is not None and of_encoder(arguments.model):
        measured, seconds = _classes(arguments)
        print(json.dumps(measured) if arguments.json else _lines(measured, seconds))
        return 0
    _refuse(arguments, OF_ENCODER, "it is for classifiers and vectors of texts")
    if arguments.model is not None and of_pictures(arguments.model):
        measured, seconds = _pictures(arguments)
    elif arguments.loss is not None:
        measured, seconds = _preferences(arguments)
    else:
        measured, seconds = _texts(arguments)
    print(json.dumps(measured) if arguments.json else _lines(measured, seconds))
    return 0


def _fetch(arguments: Namespace) -> None:
    """Download what flags name on the hub, unless they contradict each other.

    Raises ConfigError if they do. The kind of a model on the hub is known only after its download,
    so its flags are checked again then.
    """
    _check(arguments)
    if arguments.model is not None and on_hub(str(arguments.model)):
        arguments.model = local_path(arguments.model)
        _check(arguments)
    if arguments.against is not None:
        arguments.against = local_path(arguments.against)
    if arguments.data is not None:
        arguments.data = Path(local_data(arguments.data, print_fact))


def _check(arguments: Namespace) -> None:
    """Raise ConfigError for flags that contradict each other, or the model."""
    check_named(arguments)
    model = arguments.model
    remote = model is not None and on_hub(str(model))
    if model is not None and not remote and of_pictures(model):
        why = f"it is for models of text; {model} is a model of pictures"
        _refuse(arguments, (*OF_TEXT, "columns"), why)
        return
    if not remote or any(map(partial(_is_given, arguments), OF_TEXT)):
        _refuse(arguments, OF_PICTURES, "it is for models of pictures")
    if arguments.loss is None:
        _refuse(arguments, OF_LOSS, f"it needs --loss {', '.join(KINDS)}")
    else:
        _refuse(arguments, NOT_OF_LOSS, "it is not for preferences (--loss)")
        _preference(arguments)
    if arguments.question_delimiter is not None and arguments.data is None:
        raise ConfigError(NO_QUESTIONS)


def _is_given(arguments: Namespace, name: str) -> bool:
    """Return whether a flag is given. A flag with the value 0 is."""
    value = getattr(arguments, name)
    return value is not None and value is not False


def _refuse(arguments: Namespace, names: Sequence[str], why: str) -> None:
    """Raise ConfigError if one of these flags is given."""
    for name in names:
        if _is_given(arguments, name):
            raise ConfigError(f"--{name.replace('_', '-')}: {why}")


def _pictures(arguments: Namespace) -> tuple[dict[str, Any], float]:
    """Return the figures of a model of pictures, and how many seconds they took."""
    path, options = picture_model(arguments.model), RecipeOptions(n_threads=arguments.threads)
    engine = ViTEngine.load(path, options, backend=arguments.backend)
    start = time.perf_counter()
    top, skip = arguments.top or TOP, arguments.skip_unreadable
    measured = picture_figures(engine, arguments.data, top, skip_unreadable=skip)
    return measured, time.perf_counter() - start


def _classes(arguments: Namespace) -> tuple[dict[str, Any], float]:
    """Return the figures of a classifier of texts, and how many seconds they took.

    Raises ConfigError for flags that are not for one, and without data.
    """
    why = f"it is not for encoders; {arguments.model} is one"
    _refuse(arguments, (*(set(OF_TEXT) - {"seq"}), *OF_PICTURES), why)
    if arguments.data is None:
        raise ConfigError("--data: name texts with labels, or pairs, as for training")
    options = RecipeOptions(n_threads=arguments.threads)
    more = {"options": options, "backend": arguments.backend}
    engine = classifier(arguments.model, headless=True, **more)
    if arguments.seq is not None:
        engine.sentences = replace(engine.sentences, length=min(arguments.seq, engine.context))
    how = HowToRead(columns=columns_of(arguments.columns), separator=arguments.separator or "")
    start, data = time.perf_counter(), jsonl.measured_part(arguments.data)
    if engine.task.kind == "vectors":
        _refuse(arguments, ("separator",), f"{arguments.model} has vectors, and no classes")
        measured = vector_figures(engine, data, how.columns, arguments.corpus)
        return measured, time.perf_counter() - start
    _refuse(arguments, ("corpus",), f"{arguments.model} has classes, and no vectors")
    if engine.is_reranker:
        _refuse(arguments, ("separator",), f"{arguments.model} has scores, and no classes")
        return score_figures(engine, data, how.columns), time.perf_counter() - start
    measured = text_figures(engine, data, how)
    return measured, time.perf_counter() - start


def _preference(arguments: Namespace) -> PreferenceOptions:
    """Return the loss of preferences. Raises ConfigError if it lacks data or an adapter."""
    if arguments.data is None:
        raise ConfigError("--loss: name preferences by --data")
    options = {name: getattr(arguments, name) for name in PARAMETERS}
    options = {name: value for name, value in options.items() if value is not None}
    preference = PreferenceOptions(arguments.loss, **options)
    if preference.loss != "orpo" and not arguments.adapter:
        raise ConfigError(
            f"--loss {preference.loss}: it compares an adapter's model with the base: name the "
            "adapter by --adapter"
        )
    return preference


def _preferences(arguments: Namespace) -> tuple[dict[str, Any], float]:
    """Return the figures of preferences, and how many seconds they took."""
    preference = _preference(arguments)
    model = Path(origin(arguments).model)
    seq = seq_of(arguments.seq, bases.context_length(text_model(model)) or WINDOW)
    batch = arguments.batch or 1
    room = batch * (2 if preference.paired else 1)
    options = RecipeOptions(n_threads=arguments.threads, t_seq=seq, t_batch=room)
    tokenizer, engine = opened(arguments, options)
    engine.enable_preference(preference)
    start = time.perf_counter()
    columns = columns_of(arguments.columns)
    measured = preference_figures(engine, tokenizer, arguments.data, seq, batch, columns)
    return measured, time.perf_counter() - start


def _texts(arguments: Namespace) -> tuple[dict[str, Any], float]:
    """Return the figures of texts, examples or questions, and how many seconds they took."""
    options = RecipeOptions(n_threads=arguments.threads)
    tokenizer, engine = opened(arguments, options)
    against = None
    if arguments.against is not None:
        against = partial(_beside, arguments, options)
    start = time.perf_counter()
    measured = figures(
        engine,
        tokenizer,
        arguments.data,
        arguments.seq,
        mask_prompt=not arguments.no_mask_prompt,
        against=against,
        delimiter=arguments.question_delimiter,
        columns=columns_of(arguments.columns),
    )
    seconds = time.perf_counter() - start
    if against is not None:
        measured["against"] = str(arguments.against)
    if "tokens" in measured:
        measured["tokens_per_second"] = measured["tokens"] / seconds
    return measured, seconds


def _beside(arguments: Namespace, options: RecipeOptions) -> SequenceEngine[Any]:
    """Return the model that --against names."""
    with bases.open(text_model(arguments.against)) as file:
        return engines.frozen(file, None, arguments.backend, options)


def _lines(measured: Mapping[str, Any], seconds: float) -> str:
    """Return the figures as lines for people."""
    lines, end = [fact("data", str(measured["data"]))], f"time        {seconds:.1f} s"
    if "pictures" in measured:
        return "\n".join([*lines, *_of_pictures(measured), end])
    if "cut" in measured and "problem" not in measured:
        figures = [(name, x) for name, x in measured.items() if name != "data"]
        told = (fact(n, f"{x:,}" if isinstance(x, int) else f"{x:.4f}") for n, x in figures)
        return "\n".join([*lines, *told, end])
    if "problem" in measured:
        return "\n".join([*lines, *_of_texts(measured), end])
    if "loss_of" in measured:
        return "\n".join([*lines, *_of_preferences(measured), end])
    if "questions" in measured:
        said = (
            f"{100 * measured['accuracy']:.1f} % of {measured['questions']:,} questions; by "
            f"length-normalized scores {100 * measured['accuracy_normalized']:.1f} %"
        )
        lines += [fact("questions", f"joined to their choices {measured['joined']}")]
        return "\n".join([*lines, fact("accuracy", said), end])
    what = f"{measured['counted']:,} tokens"
    if "windows" in measured:
        what += f", in the second halves of {measured['windows']:,} windows of {measured['window']}"
    said = f"{measured['perplexity']:.4f} +/- {measured['perplexity_error']:.5f}"
    lines.append(fact("perplexity", f"{said}, loss {measured['loss']:.4f} nats, over {what}"))
    if "perplexity_every" in measured:
        said = f"{measured['perplexity_every']:.4f} +/- {measured['perplexity_error_every']:.5f}"
        said += f", loss {measured['loss_every']:.4f}, over all {measured['counted_every']:,}"
        lines.append(fact("", said))
    if "loss_stop" in measured:
        said = f"loss {measured['loss_stop']:.4f} on {measured['counted_stop']:,} stop tokens"
        lines.append(fact("", f"{said}, {measured['loss_rest']:.4f} on the rest"))
    if "kl_mean" in measured:
        base = f"{measured['perplexity_base']:.4f} +/- {measured['perplexity_error_base']:.5f}"
        kl = f"{measured['kl_mean']:.6f} +/- {measured['kl_error']:.6f} nats"
        same = f"{100 * measured['same_top']:.3f} +/- {100 * measured['same_top_error']:.3f} %"
        lines += [
            fact("against", f"{measured['against']}: perplexity {base}"),
            fact("divergence", f"{kl}, at most {measured['kl_largest']:.4f}"),
            fact("same top", f"{same} of the tokens"),
            fact("rms dp", f"{100 * measured['rms_delta_p']:.3f} %"),
        ]
    rate = f", {measured['tokens_per_second']:,.0f} tokens/s" if "tokens" in measured else ""
    return "\n".join([*lines, f"{end}{rate}"])


def _of_texts(measured: Mapping[str, Any]) -> Iterator[str]:
    cut = f", {measured['cut']:,} of them cut" if measured["cut"] else ""
    yield fact("texts", f"{measured['texts']:,}{cut}")
    yield fact("loss", f"{measured['loss']:.4f}")
    for name, value in measured.items():
        if name in FIGURES:
            yield fact(FIGURES[name], f"{value:.4f}")
    if "confusion" in measured:
        yield "--- confusion: a row for each class ---"
        yield confusion_text(np.array(measured["confusion"]), measured["classes"])


def _of_pictures(measured: Mapping[str, Any]) -> Iterator[str]:
    count, right = measured["pictures"], round(measured["accuracy"] * measured["pictures"])
    which = "its held-out part" if measured["part"] == "held out" else "all of it"
    yield fact("pictures", f"{count:,} of {measured['classes']} classes, {which}")
    if "skipped" in measured:
        yield fact("skipped", f"{measured['skipped']:,} unreadable files")
    said = f"{measured['accuracy']:.2%}, {right:,} of {count:,} right"
    if "top_accuracy" in measured:
        said += f"; in the top {measured['top']} {measured['top_accuracy']:.2%}"
    yield fact("accuracy", said)
    yield fact("loss", f"{measured['loss']:.4f} nats")


def _of_preferences(measured: Mapping[str, Any]) -> Iterator[str]:
    unit = "pairs" if "pairs" in measured else "completions"
    how = f"{measured['loss_of']}, beta {measured['beta']:g}"
    yield fact("loss", f"{measured['loss']:.4f} ({how}), over {measured[unit]:,} {unit}")
    if unit == "pairs":
        yield fact("margins", f"{measured['rewards/margins']:.4f}")
        yield fact("accuracy", f"{measured['rewards/accuracies']:.2%} of the chosen are likelier")
    for what in ("rewards", "logps"):
        both = [(which, measured.get(f"{what}/{which}")) for which in ("chosen", "rejected")]
        said = ", ".join(f"{which} {value:.4f}" for which, value in both if value is not None)
        yield fact(what, said)
