"""Kinds of models that toynn does not have, by their names in config.json and GGUF files."""

import re
from collections.abc import Iterable

#: What toynn does not do, and what to do instead.
PAGE = "docs/limits.md"
#: The first expression that is found in a name says what the model is.
_KINDS = (
    (r"For(Sequence|Token)Classification$|ForQuestionAnswering$|^cls\.", "a classifier of texts"),
    (r"whisper|wav2vec|hubert|wavtokenizer|speech|moonshine|parakeet", "a model of speech"),
    (r"bert|electra|mpnet|t5encoder|gemma-embedding|llama-embed", "an encoder"),
    (r"^u?m?t5|bart\b|pegasus|marian|m2m_100", "an encoder-decoder"),
    (r"clip|siglip|dinov|\bvit\b|blip", "a model of pictures"),
)


def foreign(names: Iterable[object]) -> str:
    """Return why a model with one of these names is refused; "" if nothing is known about them.

    The names are an architecture, a model_type, classes of transformers, or tensors.
    """
    for name in names:
        for pattern, kind in _KINDS:
            if isinstance(name, str) and re.search(pattern, name):
                return (
                    f"{name!r}: it is {kind}; toynn trains models that predict the next token. "
                    f"{PAGE} says what works instead"
                )
    return ""
