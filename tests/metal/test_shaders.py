"""Shaders of the Metal backend: each call of the op-case table on the software device."""

import msl
import numpy as np
import pytest
import shaders

from toynn.backends.metal import arguments, grids, library
from toynn.testing.cases import CASES
from toynn.testing.doors import check

pytestmark = pytest.mark.skipif(shaders.available() is not None, reason=str(shaders.available()))

#: As it runs on a device; with the checker; and with groups and threads in some other order.
HOW = {
    "plain": {},
    "checked": {"checked": True},
    "simdgroups": {"simdgroups": True, "checked": True},
    **{f"order-{seed}": {"seed": seed} for seed in (1, 2, 3)},
}
OPS = sorted({kernel.partition(".")[0] for kernel in grids.PASSES} & set(CASES))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("op", OPS)
def test_op(op, how):
    for shape in CASES[op].shapes:
        for call in CASES[op].calls(np.random.default_rng(3), **shape):
            if f"{op}.{call.entry}" not in grids.PASSES:
                continue
            check(op, call, shaders.run_case(op, call, shape, **HOW[how]))
            if call.accumulates:
                got = shaders.run_case(op, call, shape, accumulate=True, **HOW[how])
                for key in call.accumulates:
                    expected = call.expected[key] + 1
                    np.testing.assert_allclose(got[key], expected, rtol=1e-5, atol=1e-5)


def test_a_struct_is_packed_as_the_compiler_lays_it_out():
    """Sizes and offsets of each struct, asserted in the shaders' own language."""
    text = library.source("rmsnorm", simdgroups=False)
    for op in OPS:
        for entry, signature in arguments.entries(op).items():
            name = arguments.struct_name(op, entry)
            values = {member.name: 0 for member in arguments.members(signature)}
            text += "" if op == "rmsnorm" else arguments.declaration(op, entry)
            text += (
                f'static_assert(sizeof({name}) <= {len(arguments.pack(signature, values))}, "");\n'
            )
            for member in arguments.members(signature):
                at = arguments.offset(signature, member.name)
                text += f'static_assert(__builtin_offsetof({name}, {member.name}) == {at}, "");\n'
    shaders.compiled(text)


def rmsnorm(**how):
    x = np.linspace(-1, 1, 600, dtype=np.float32).reshape(2, 300)
    arrays = {"y": np.full_like(x, np.nan), "r": np.zeros(2, np.float32), "x": x}
    arrays["w"] = np.ones(300, np.float32)
    shaders.run("rmsnorm.forward", arrays, {"N": 2, "C": 300}, {"eps": 0.0}, **how)
    return arrays["y"]


FAULTS = {
    "a barrier gone": (
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    for",
        "    for",
        "before it is written",
    ),
    "a barrier of the wrong memory": (
        "mem_threadgroup);\n    for",
        "mem_device);\n    for",
        "race",
    ),
    "one past the end": ("c < args.C; c += GROUP) sum", "c <= args.C; c += GROUP) sum", "bounds"),
    "a row too many": ("x += n * args.C", "x += (n + 1) * args.C", "bounds"),
    "some return before a barrier": (
        "if (n >= args.N) return",
        "if (tid > 99) return",
        "100 of 256",
    ),
    "threadgroup memory unwritten": (
        "    part[tid] = x;",
        "    if (tid > 0) part[tid] = x;",
        "before",
    ),
    "double": ("float sum", "double sum", "no double"),
    "std::": ("precise::sqrt", "std::sqrt", "no std"),
    "erf": ("precise::sqrt", "erf", "erf"),
    "an address space": (
        "float sum = 0.0f;",
        "float sum = 0.0f; threadgroup const float* z = x;",
        "cannot initialize",
    ),
    "a pointer without an address space": (
        "float sum = 0.0f;",
        "float sum = 0.0f; const float* z = x;",
        "cannot initialize",
    ),
    "a buffer given twice": ("[[buffer(1)]]", "[[buffer(0)]]", "twice"),
    "a write to constants": ("float sum = 0.0f;", "float sum = 0.0f; args.C = 1;", "const"),
    "an early simdgroup": ("sum = group_sum(sum, part, tid);", "sum = simd_sum(sum);", "simd_sum"),
    "a semicolon": ("float sum = 0.0f;", "float sum = 0.0f", "';'"),
    "too much threadgroup memory": ("part[GROUP]", "part[GROUP * 33]", "32768"),
    "a buffer that is not bound": ("[[buffer(4)]]", "[[buffer(9)]]", "not bound"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault):
    old, new, says = FAULTS[fault]
    text = library.source("rmsnorm", simdgroups=False)
    assert text.count(old) >= 1
    with pytest.raises((shaders.ShaderError, msl.Refused), match=says):
        rmsnorm(checked=True, text=text.replace(old, new, 1))


def test_without_a_fault_it_runs():
    y = rmsnorm(checked=True, text=library.source("rmsnorm", simdgroups=False))
    np.testing.assert_array_equal(y, rmsnorm(seed=5))
