"""The arithmetic of each precision of matrix products on this CPU, and the choice of "auto"."""

from typing import Any

import toynn._kernels as kernels
from toynn._kernels.base import cpu

#: Share of highest's time that a LoRA step over Q8_0 takes in int8, by unit: docs/performance.md.
_INT8 = {"AVX2": 0.79, "AVX_VNNI": 0.46, "AVX512_VNNI": 0.44}


def multiplies_in() -> dict[str, str]:
    """Return the arithmetic of products in each precision."""
    matmul = kernels.load("matmul", kernels.level)
    software = " in software" * kernels.software_tiles()
    if tiles := matmul.multiplies_tiles():
        unit = f"AMX{software}"
        units = {
            "highest": f"three parts of bfloat16, six products ({unit})",
            "high": f"two parts of bfloat16, three products ({unit})",
            "medium": f"bfloat16 ({unit})" + _gemv_rows(matmul),
        }
    else:
        pairs = matmul.multiplies_pairs()
        medium = f"bfloat16 ({cpu.pairs_unit()})" if pairs else f"float32 ({_no_pairs()})"
        units = {"highest": "float32", "high": "float32", "medium": medium + _gemv_rows(matmul)}
    if unit := matmul.multiplies_quads():
        units["int8"] = f"8 bits ({unit}{software * tiles}) by quantized weights; else as medium"
    return units


def _gemv_rows(matmul: Any) -> str:
    """Return how medium multiplies a few rows by quantized weights, to be appended; "" if not."""
    unit = matmul.multiplies_int8()
    return f"; a few rows by blocks: 8 bits ({unit})" if unit else ""


def automatic() -> tuple[str, str]:
    """Return the precision that "auto" means on this CPU, and why.

    "medium" if bfloat16 is multiplied at least as fast as the floats of "highest", otherwise
    "highest". AMX is as fast, and so is AVX512_BF16 on CPUs that gain by it. The kind of CPU
    decides; nothing is timed. A second sentence of the reason is about quantized bases only.
    """
    matmul = kernels.load("matmul", kernels.level)
    if matmul.multiplies_tiles():
        return "medium", "bfloat16 in the tiles of AMX is the fastest that this CPU has"
    if matmul.multiplies_pairs():
        if not cpu.pairs_pay(*cpu.maker()):
            return "highest", f"bfloat16 ({cpu.pairs_unit()}) was never timed on such a CPU"
        return "medium", f"this CPU multiplies bfloat16 ({cpu.pairs_unit()}) faster than float32"
    why = f"medium would not be faster: {_no_pairs()}"
    if share := _INT8.get(unit := matmul.multiplies_quads()):
        why += (
            f". Over a quantized base --precision int8 ({unit}) takes {share} of the time; the "
            "loss changes less than by another seed"
        )
    return "highest", why


def _no_pairs() -> str:
    """Return why products do not multiply pairs of bfloat16."""
    vendor, family = cpu.maker()
    if (unit := cpu.pairs_unit()) and not cpu.gains_by_pairs():
        return f"{unit} is slower than float32 on a CPU of {vendor}, family {family}"
    return f"bfloat16 needs {cpu.PAIRS_NEED}"
