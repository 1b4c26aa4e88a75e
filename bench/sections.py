"""The sections of compare.py, which starts this file; contestants take turns."""

import sys

from prepack import prepacked
from sections_encoders import encoders
from sections_files import decode, generation, load, rollouts
from sections_kernels import attention, matmul, medium, stored
from sections_lora import blocks, context, experts, lora, precisions, real, seeds, types
from sections_steps import busy, families, lengths, llama, memory, scaling, step, tiny, vit

import toynn
from toynn._kernels import level

SECTIONS = {
    "matmul": matmul,
    "medium": medium,
    "stored": stored,
    "attention": attention,
    "tiny": tiny,
    "step": step,
    "llama": llama,
    "vit": vit,
    "decode": decode,
    "lora": lora,
    "blocks": blocks,
    "context": context,
    "precisions": precisions,
    "experts": experts,
    "real": real,
    "encoders": encoders,
    "prepack": prepacked,
    "types": types,
    "lengths": lengths,
    "families": families,
    "load": load,
    "scaling": scaling,
    "memory": memory,
    "busy": busy,
    "seeds": seeds,
    "generation": generation,
    "rollouts": rollouts,
}


def main() -> None:
    """Run sections; arguments: threads, rounds, precision, part of a name, sections."""
    n_threads, rounds, precision, only, *names = sys.argv[1:]
    toynn.set_float32_matmul_precision(precision)
    for name in names:
        print(f"{name}, {n_threads} thread{'s' if n_threads != '1' else ''}, {level}")
        SECTIONS[name](int(n_threads), int(rounds), only)


if __name__ == "__main__":
    main()
