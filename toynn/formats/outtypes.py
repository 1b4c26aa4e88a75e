"""The types that a model's file is written in, and the mixes that llama.cpp's quantizer makes."""

from toynn.errors import ConfigError

#: The types that a model can be written in, with llama.cpp's file type.
OUTTYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
#: The mixes that need no importance matrix.
MIXES = (
    "q2_k",
    "q3_k_s",
    "q3_k_m",
    "q3_k_l",
    "q4_0",
    "q4_1",
    "q4_k_s",
    "q4_k_m",
    "q5_0",
    "q5_1",
    "q5_k_s",
    "q5_k_m",
    "q6_k",
    "iq3_s",
    "iq3_m",
    "iq4_nl",
    "iq4_xs",
    "tq1_0",
    "tq2_0",
)
#: All outtypes: a type for all matrices, or a mix.
KINDS = (*OUTTYPES, *MIXES)


def check_kind(outtype: str, who: str) -> None:
    """Raise ConfigError for an unknown outtype; ``who`` begins the message."""
    if outtype not in KINDS:
        raise ConfigError(f"{who}: outtype must be {', '.join(KINDS)}; got {outtype!r}")
