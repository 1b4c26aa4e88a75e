r"""The ways BPE cuts a text into pieces before merging, by `tokenizer.ggml.pre`.

A kind is a list of regular expressions. Each one cuts all pieces of the one before: every match is
a piece, and so is the text between two matches. No merge crosses the end of a piece, so a wrong
expression would silently give wrong ids. Hence an unknown name is an error.

Sources: tokenizer.json of the models. Names and ids are llama.cpp's.
"""

from dataclasses import dataclass

# 's|'t|... in upper case too, written out: (?i:'s) would match the long s as well
SUFFIX = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
QWEN2 = rf"{SUFFIX}|{WORDS}|\p{{N}}|{SIGNS}|{SPACES}"
QWEN35 = (  # a mark belongs to its letter
    rf"{SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
)
LLAMA3 = rf"{SUFFIX}|{WORDS}|\p{{N}}{{1,3}}|{SIGNS}|{SPACES}"
# Words of capitals and small letters; letters that are neither count as both.
UPPER, LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
GPT4O = (  # the words keep a suffix
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&\S]+"
#: Letters that have a case, as the tokenizer.json of deepseek-llm lists them.
CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376-\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183-\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2-\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to cut, and what comes with it where the file does not say otherwise."""

    regexes: tuple[str, ...]
    whole_words: bool = False  # a piece that is a token needs no merges ("ignore_merges")
    add_bos: bool = False
    spaced: bool = False  # spaces are spelled U+2581, other bytes <0x00> to <0xFF>


#: For files whose tokenizer.ggml.model is "gemma4": merges cross spaces, but not line breaks.
GEMMA4 = Kind(("[^\\n]+|\\n+",), add_bos=True, spaced=True)
_DEFAULT = Kind((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_GPT2 = Kind((GPT2,))
_DIGITS = Kind((r"\p{N}", GPT2))
_LLAMA3 = Kind((LLAMA3,))
_LLAMA3_BOS = Kind((LLAMA3,), whole_words=True, add_bos=True)
_QWEN2 = Kind((QWEN2,))
_BLOOM = Kind((BLOOM,))

#: By the value of tokenizer.ggml.pre.
KINDS: dict[str, Kind] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4"), _GPT2),
    **dict.fromkeys(("mpt", "olmo", "jais", "trillion", "granite-docling"), _GPT2),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell"), _DIGITS),
    **dict.fromkeys(("exaone", "minerva-7b", "mellum2"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1"), _LLAMA3_BOS),
    **dict.fromkeys(("pixtral", "midm-2.0", "lfm2"), _LLAMA3_BOS),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("glm4", "glm5"), Kind((LLAMA3,), whole_words=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), _QWEN2),
    **dict.fromkeys(("grok-2", "solar-open", "kormo"), _QWEN2),
    "qwen35": Kind((QWEN35,)),
    "falcon": Kind((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": Kind(
        (
            r"[\r\n]",
            rf"\s?[{CASED}]+",
            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+",
            r"\s+\z",
            CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": Kind((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}")),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense"),
        Kind((r"\p{N}{1,3}", r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3)),
    ),
    **dict.fromkeys(("gpt-4o", "llama4"), Kind((GPT4O,))),
    "tekken": Kind((TEKKEN,), whole_words=True, add_bos=True),
    "seed-coder": Kind((rf"{SUFFIX}|{WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}",)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _BLOOM),
    "viking": Kind((BLOOM, r"\p{N}")),
}
