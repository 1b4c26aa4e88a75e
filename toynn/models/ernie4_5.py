"""ERNIE 4.5: a Llama whose RoPE rotates interleaved channels, in folders too.

The formulas are those of llama.py. Rows of W_q and W_k have one order in folders and GGUF files.
Source: Baidu 2025, "ERNIE 4.5 Technical Report"; ernie4_5 of transformers and of llama.cpp.
"""

from dataclasses import replace

from toynn.models.llama import Llama
from toynn.models.registry import register
from toynn.models.rows import ATTENDED, MLP, QKV, changed, names


class Ernie45(Llama):
    """The architecture."""

    rope_base = 5e5
    table = changed(Llama.table, attn_q={"pairs": ()}, attn_k={"pairs": ()})
    hf = replace(
        Llama.hf,
        biases={"use_bias": (False, names(*QKV, ATTENDED, *MLP))},
        zero_biases=frozenset(),
        tied=True,
    )


register(Ernie45("ernie4_5", "Ernie4_5", interleaved=True, in_files=("output_bias",)))
