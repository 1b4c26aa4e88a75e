"""Find llama.cpp's name for the pre-tokenizer of a tokenizer.json.

Pieces are compared, not regular expressions. The name is that of the known kind that cuts a probe
text, with many sorts of characters, into the same pieces.
"""

import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Any

from toynn.errors import ConfigError
from toynn.formats.tokenizer.bpe import cuts, steps_of
from toynn.formats.tokenizer.panics import is_failure
from toynn.formats.tokenizer.pre import KINDS

#: Names that are tried first: if one kind has several names, models have these.
_USUAL = ("gpt-2", "llama-bpe", "smaug-bpe", "qwen2", "smollm", "default", "gpt-4o", "tekken")
#: A text that the kinds cut in different ways.
PROBE = (
    "Hello, World! it's IT'S we'Re I'LL don't ca\xf1on CamelCase HTTPServer aB Ab\u01c5x e"
    "\u0301l 1 12 123 1234 12345 1234567 3.14 0x1F \u2460\u2461\u2462 \u0968\u0969 x2y 20,000"
    ".50 \n\n\n a\n b\r\n\tc \t\t d  e   f    g\n  \n!!! ?.. //\n/ \n/x $5 += ~ ` | @# _ x_y "
    "(a) [b]{c} <|d|> \u2014 \u2026 '''''' ```` \"\" ...... ====== \u4e2d\u6587\u5b57 \u65e5"
    "\u672c\u8a9e\u306e\u30ab\u30bf \ud55c\uad6d\uc5b4 \u043d\u0435\u0449\u043e \u0411\u044a"
    "\u043b \u0e20\u0e32\u0e29\u0e32 \u0627\u0644\u0639\u0631\u0628 \u0939\u093f\u0928\u094d"
    "\u0926\u0940 \u1780\u17b6\u1793 \U0001f680\U0001f469\u200d\U0001f467 \u3000x\xa0y\u200bz"
    " \u3002\uff0c\uff01 \u20ac\xa3\xae2\xb2 def f(x):\n    return x\n   "
)


def name_of_cut(data: Mapping[str, Any]) -> str | None:
    """Return the name for a byte-level tokenizer.json, or None.

    A kind that cuts the whole probe alike is preferred to one that differs only in marks.
    """
    try:
        cutter = _cutter(data.get("pre_tokenizer"))
        asked = {probe: cutter.pre_tokenize_str(probe) for probe in (PROBE, _without_marks(PROBE))}
    except BaseException as error:  # any failure: the file is of another version
        if not is_failure(error) or isinstance(error, ConfigError):
            raise
        return None
    whole_words = bool(data["model"].get("ignore_merges"))
    alike = [name for name in (*_USUAL, *KINDS) if KINDS[name].whole_words == whole_words]
    for probe, pieces in asked.items():
        for name in alike:
            if _pieces(name, probe) == pieces:
                return name
    return None


@cache
def _pieces(name: str, probe: str) -> Any:
    return _cutter(cuts(KINDS[name])).pre_tokenize_str(probe)


def _cutter(pre_tokenizer: Any) -> Any:
    return steps_of({"pre_tokenizer": pre_tokenizer}).pre_tokenizer


def _without_marks(text: str) -> str:
    """Return a text without marks and without letters that have no case.

    llama.cpp cuts such characters differently from the tokenizers that it calls gpt-4o and tekken.
    """
    return "".join(c for c in text if unicodedata.category(c) not in ("Lo", "Lm", "Lt", "Mn", "Mc"))
