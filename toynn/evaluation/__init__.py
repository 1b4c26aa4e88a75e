"""Evaluation: perplexity, divergence from another model, accuracy, and a model for lm-eval.

    engine = toynn.engines.frozen(file)
    perplexity(engine, tokenizer.encode_array(text), 512, bos)  # llama-perplexity's figure
    divergence(engine, base, ids)  # mean KL divergence, share of the same top tokens
    accuracy(engine, tokenizer, read_questions("quiz.jsonl"))
    lm_eval.simple_evaluate(model=LM("model.gguf", adapter="adapter.gguf"), tasks=[...])

Losses and divergences are in nats. Any engine for sequences will do, trained or frozen.
"""

from typing import Any

from toynn.evaluation.choices import (
    Accuracy,
    Question,
    accuracy,
    delimited,
    log_likelihoods,
    read_questions,
)
from toynn.evaluation.divergence import Divergence, divergence, example_divergence
from toynn.evaluation.perplexity import (
    Score,
    TextScore,
    example_loss,
    example_scores,
    perplexity,
)

__all__ = [
    "Accuracy",
    "Divergence",
    "Question",
    "Score",
    "TextScore",
    "accuracy",
    "delimited",
    "divergence",
    "example_divergence",
    "example_loss",
    "example_scores",
    "log_likelihoods",
    "perplexity",
    "read_questions",
]


def __getattr__(name: str) -> Any:
    """Make ``LM``, the class for lm-eval, on first use: importing lm-eval takes seconds."""
    if name == "LM":
        from toynn.evaluation.harness import lm_class

        return lm_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
