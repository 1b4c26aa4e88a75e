"""By which name llama.cpp knows the way in which a tokenizer.json cuts texts."""

import pytest

pytest.importorskip("tokenizers", reason="tokenizers, of the text extra, is not installed")

from toynn.formats.tokenizer.pre import KINDS
from toynn.formats.tokenizer.recognized import name_of_cut

SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = rf"{SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|NUMBERS| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{REST}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = r"[^\r\n\p{L}\p{N}]?"
O200K = (
    rf"{CASED}{UPPER}*{LOWER}+{SUFFIX}?|{CASED}{UPPER}+{LOWER}*{SUFFIX}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{REST}"
)


def by_bytes(**changes):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True} | changes


def split(regex):
    cut = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, by_bytes(use_regex=False)]}


DIGITS = {"type": "Digits", "individual_digits": True}
#: As the models have it: the step, whether whole words need no merges, and the name.
STEPS = {
    "gpt2": (by_bytes(use_regex=True), False, "gpt-2"),
    "qwen": (split(CL100K.replace("NUMBERS", r"\p{N}")), False, "qwen2"),
    "llama3": (split(CL100K.replace("NUMBERS", r"\p{N}{1,3}")), True, "llama-bpe"),
    "olmo2": (split(CL100K.replace("NUMBERS", r"\p{N}{1,3}")), False, "smaug-bpe"),
    "smollm": (
        {"type": "Sequence", "pretokenizers": [DIGITS, by_bytes(use_regex=True)]},
        False,
        "smollm",
    ),
    "seed-oss": (
        split(CL100K.replace("NUMBERS", r"\p{N}").replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+")),
        False,
        "seed-coder",
    ),
    "glm4": (split(CL100K.replace("NUMBERS", r"\p{N}{1,3}")), True, "llama-bpe"),
    "phi4-mini": (split(O200K), False, "gpt-4o"),
    "with a space": (by_bytes(use_regex=True, add_prefix_space=True), False, None),
    "nothing": (None, False, None),
    "of the future": ({"type": "Quantum"}, False, None),
}


@pytest.mark.parametrize("case", STEPS)
def test_a_step_has_the_name_that_llama_cpp_knows_it_by(case):
    step, whole_words, name = STEPS[case]
    data = {"pre_tokenizer": step, "model": {"ignore_merges": whole_words}}
    assert name_of_cut(data) == name
    assert name is None or name in KINDS
