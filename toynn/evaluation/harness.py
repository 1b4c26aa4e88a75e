"""A model for lm-eval: ``lm_eval.simple_evaluate(model=toynn.evaluation.LM(...))``.

lm-eval is the Language Model Evaluation Harness. It has three kinds of requests: the likelihood of
a continuation, the likelihood of a whole text, and a generation that ends at certain texts. Source:
Gao et al., doi:10.5281/zenodo.12608602; its guide to new models.
"""

from collections.abc import Sequence
from functools import cache
from os import PathLike
from typing import Any

import numpy as np

from toynn import engines
from toynn.errors import ConfigError
from toynn.evaluation.choices import beginning, log_likelihoods
from toynn.evaluation.scores import losses, read
from toynn.formats import adapters, bases
from toynn.formats.tokenizer import Tokenizer
from toynn.generation.completion import complete

MAX_TOKENS = 256  # of a generation, if the task does not say


class Requests:
    """Answer lm-eval's requests with a model and, if given, an adapter.

    ``tokenizer`` is the path of a tokenizer to use instead of the model's own.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        adapter: str | PathLike[str] | None = None,
        tokenizer: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        with bases.open(model) as file:
            self.tokenizer = Tokenizer.for_model(file, tokenizer)
            loaded = None if adapter is None else adapters.load(adapter, file)
            self.engine = engines.frozen(file, loaded)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return log p of each (context, continuation), and whether greedy decoding gives it."""
        pairs = [request.args for request in requests]
        return list(log_likelihoods(self.engine, self.tokenizer, pairs))

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return log p of each text, given as (text,): all of its tokens, after BOS.

        A text that exceeds the model's context is read in windows. Each token counts once, after
        the tokens before it in its window.
        """
        return [self._rolling(request.args[0]) for request in requests]

    def _rolling(self, text: str) -> float:
        ids = np.array(
            [beginning(self.tokenizer), *self.tokenizer.encode(text, add_special=False)], np.int32
        )
        total, context, done = 0.0, self.engine.context, 1
        while done < len(ids):
            end = min(done + context, len(ids))
            window = ids[max(end - context - 1, 0) : end - 1]
            total -= float(losses(read(self.engine, window)[done - end :], ids[done:end])[0].sum())
            done = end
        return total

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the model's continuation of each context, up to one of the texts of ``until``."""
        return [self._generated(*request.args) for request in requests]

    def _generated(self, context: str, options: dict[str, Any]) -> str:
        until = options.get("until") or []
        ends = [until] if isinstance(until, str) else list(until)
        sampled = options.get("do_sample", options.get("temperature", 0) > 0)
        room = int(options.get("max_gen_toks", MAX_TOKENS))
        ids = self.tokenizer.encode(context) or [beginning(self.tokenizer)]
        ids = ids[-max(self.engine.context - room, self.engine.context // 2, 1) :]
        completion = complete(
            self.engine,
            self.tokenizer,
            ids,
            room,
            temperature=float(options.get("temperature", 1.0)) if sampled else 0.0,
            top_p=float(options.get("top_p", 1.0)),
            stop=ends,
        )
        return completion.text


@cache
def lm_class() -> type[Any]:
    """Return the class; lm-eval wants a subclass of its LM. Raises ConfigError without lm-eval."""
    try:
        from lm_eval.api.model import LM as Base
    except ImportError as error:
        raise ConfigError(
            f"toynn.evaluation.LM needs lm-eval: pip install lm-eval ({error})"
        ) from None

    class LM(Requests, Base):  # type: ignore[misc]
        __doc__ = Requests.__doc__

    return LM
