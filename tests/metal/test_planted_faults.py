"""Faults planted in shaders, one at a time: refused, or caught by the checker or by numbers.

python tests/metal/test_planted_faults.py        what catches each of them
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "metal_standin"))
    sys.path.insert(0, str(Path(__file__).parents[2]))

import msl
import numpy as np
import pytest
import shaders

from toynn.backends.metal import sources
from toynn.testing.calls import check
from toynn.testing.cases import CASES

pytestmark = pytest.mark.skipif(shaders.available() is not None, reason=str(shaders.available()))

WAIT = "threadgroup_barrier(mem_flags::mem_threadgroup);"
DEVICE = "threadgroup_barrier(mem_flags::mem_device);"
SIMD = "simdgroup_barrier(mem_flags::mem_threadgroup);"

#: Name: op, which of its texts (0: for any device, 1: with SIMD groups), what is replaced, by what.
FAULTS = {
    # States, of rows and of columns in turn.
    "delta: no barrier before columns are read as rows": (
        "delta",
        0,
        f"db = group_sum(db, part, tid);\n                {DEVICE}",
        "db = group_sum(db, part, tid);",
    ),
    "delta: no barrier behind q and k": (
        "delta",
        0,
        f"k[tid] = own_k * of_k;\n                {WAIT}",
        "k[tid] = own_k * of_k;",
    ),
    "delta: a segment sees the one before": (
        "delta",
        0,
        "R[tid * E + e] = fresh ? 0.0f : forget * grown;",
        "R[tid * E + e] = forget * grown;",
    ),
    "delta: a row beyond the count is written": ("delta", 0, "t >= uint(count[b])", "t > T"),
    "ssd: no barrier before columns are read as rows": (
        "ssd",
        0,
        f"passed = group_sum(passed, part, tid);\n                {DEVICE}",
        "passed = group_sum(passed, part, tid);",
    ),
    "ssd: a segment sees the one before": (
        "ssd",
        0,
        "fresh ? 0.0f : kept * before[i * E]",
        "kept * before[i * E]",
    ),
    # Barriers.
    "group_sum: no barrier after partial sums": (
        "rmsnorm",
        0,
        f"part[tid] = value;\n    {WAIT}",
        "part[tid] = value;",
    ),
    "group_sum: no barrier before the total": (
        "rmsnorm",
        0,
        f"{WAIT}\n    float total = part[0]",
        "float total = part[0]",
    ),
    "group_sum: none at the end": (
        "layernorm",
        0,
        f"{WAIT}\n    return total;",
        "return total;",
    ),
    "group_sum: one of device memory": (
        "rmsnorm",
        0,
        f"{WAIT}\n    float total",
        f"{DEVICE}\n    float total",
    ),
    "group_sum: no barrier, SIMD groups": (
        "rmsnorm",
        1,
        f"{WAIT}\n    float total",
        "float total",
    ),
    "group_max: no barrier before the maximum": (
        "softmax",
        0,
        f"{WAIT}\n    float most = part[0]",
        "float most = part[0]",
    ),
    "line_sum: no barrier at the end": (
        "attention",
        0,
        f"{WAIT}\n    return total;\n#endif",
        "return total;\n#endif",
    ),
    "column_sum: no barrier": (
        "layernorm",
        0,
        f"part[tid] = value;\n    {WAIT}\n    float total = 0.0f;\n    for (uint line",
        "part[tid] = value;\n    float total = 0.0f;\n    for (uint line",
    ),
    "valid_rows: no barrier before the next labels": (
        "valid_rows",
        0,
        f"found += all;\n        {WAIT}",
        "found += all;",
    ),
    "matmul: no barrier before a tile is fetched": (
        "matmul",
        0,
        f"{WAIT}\n        fetch(A, (device const uchar*)x",
        "fetch(A, (device const uchar*)x",
    ),
    "matmul: no barrier after": (
        "matmul",
        0,
        f"{WAIT}\n        multiply<true, true>",
        "multiply<true, true>",
    ),
    "matmul: no barrier after, SIMD groups": (
        "matmul",
        1,
        f"{WAIT}\n        multiply<false, false>",
        "multiply<false, false>",
    ),
    "matmul: sums stored too early": (
        "matmul",
        1,
        f"if (e % 2 == 0) {{\n        {SIMD}",
        "if (e % 2 == 0) {",
    ),
    "matmul: sums read too early": ("matmul", 1, f"patch, 8);\n        {SIMD}", "patch, 8);"),
    "attention: no barrier before keys are taken": (
        "attention",
        0,
        f"{WAIT}\n            take(Q, q, args.ldq",
        "take(Q, q, args.ldq",
    ),
    "attention: no barrier before values are multiplied": (
        "attention",
        0,
        f"{WAIT}\n            add_columns",
        "add_columns",
    ),
    "attention: no barrier before dk": (
        "attention",
        0,
        f"{WAIT}\n                if (args.has_dk) add_turned",
        "if (args.has_dk) add_turned",
    ),
    "cached attention: no barrier before values": (
        "cached_attention",
        0,
        f"P[tid] = p;\n        {WAIT}",
        "P[tid] = p;",
    ),
    "cached attention: none before the next keys": (
        "cached_attention",
        0,
        f"        {WAIT}\n    }}\n    P[tid]",
        "    }\n    P[tid]",
    ),
    # Threads that leave, or are too many.
    "rmsnorm: some threads leave": (
        "rmsnorm",
        0,
        "if (n >= args.N) return",
        "if (tid > 99) return",
    ),
    "softmax: a barrier for some": (
        "softmax",
        0,
        "sum = group_sum(sum, part, tid);",
        "if (tid < 64) sum = group_sum(sum, part, tid);",
    ),
    "line_sum for some lanes": (
        "cached_attention",
        1,
        "value = simd_max(value);",
        "if (tid % 2) value = simd_max(value);",
    ),
    "gelu: no test of bounds": ("gelu", 0, "if (i >= args.n) return;\n    y", "y"),
    "silu: one too many": ("silu", 0, "if (i >= args.n)", "if (i > args.n)"),
    "swiglu: one too few": ("swiglu", 0, "if (i >= args.n)", "if (i + 1 >= args.n)"),
    "rope: rows that are not there": ("rope", 0, "if (at >= args.N * half_d) return;", ""),
    "layernorm: columns that are not there": (
        "layernorm",
        0,
        "if (tid >= LINE || c >= args.C) return",
        "if (tid >= LINE) return",
    ),
    "embedding: the end of a row": ("embedding", 0, "i < min(RUN, C - first)", "i < RUN"),
    "matmul: rows of x": ("matmul", 0, "row + i < rows && ", ""),
    "matmul: results": (
        "matmul",
        0,
        "if (m >= args.M || n >= args.N) continue",
        "if (n >= args.N) continue",
    ),
    "matmul: half floats behind a row": (
        "matmul",
        0,
        "y[i] = j + i < K ? half_of(w + 2 * (first + j + i)) : 0.0f",
        "y[i] = half_of(w + 2 * (first + j + i))",
    ),
    "attention: keys of the next sequence": (
        "attention",
        0,
        "n < rows && c < columns",
        "c < columns",
    ),
    "attention: rows behind T": (
        "attention",
        0,
        "if (row < T && column < D) dq",
        "if (column < D) dq",
    ),
    "cached attention: keys that are not there": (
        "cached_attention",
        0,
        "? K[j * D + c] : 0.0f",
        "? K[(j + 64) * D + c] : 0.0f",
    ),
    # Two threads and one number.
    "two threads write one": ("gelu", 0, "y[i] = args.exact", "y[i / 2] = args.exact"),
    "embedding: two groups add to one row": (
        "embedding",
        0,
        "if (group_max(seen, part, tid) > 0.0f) return;",
        "group_max(seen, part, tid);",
    ),
    "chunked loss: the logit after it was overwritten": (
        "chunked_cross_entropy",
        0,
        "(most - own) + precise::log(sum)",
        "(most - dx[label]) + precise::log(sum)",
    ),
    "every thread writes the mean": (
        "layernorm",
        0,
        "if (tid == 0) {\n        mean[n]",
        "{\n        mean[n]",
    ),
    # Formulas.
    "rmsnorm: eps left out": ("rmsnorm", 0, " + args.eps)", ")"),
    "layernorm: variance about 0": (
        "layernorm",
        0,
        "sum += (x[c] - middle) * (x[c] - middle)",
        "sum += x[c] * x[c]",
    ),
    "softmax: no maximum": ("softmax", 0, "precise::exp(x[c] - most)", "precise::exp(x[c])"),
    "gelu: the other form": ("gelu", 0, "args.exact ? gelu_exact(", "!args.exact ? gelu_exact("),
    "gelu: a digit of erf": ("gelu", 0, "1.1283791e+00f", "1.1284791e+00f"),
    "rope: rotated the other way": ("rope", 0, "cos_sin(-float(", "cos_sin(float("),
    "rope: the angle in one float": (
        "rope",
        0,
        "-1.7151245e-15f, r) + lo",
        "-1.7151245e-15f, r)",
    ),
    "dropout: one bit of the hash": ("dropout", 0, "x >> 27", "x >> 28"),
    "dropout: the halves of a hash": ("dropout", 0, "uint(h >> 32) >= least", "uint(h) >= least"),
    "rounding: ties": ("rounding", 0, "(dropped >> 1) + ((u", "(dropped >> 1) + 1 + 0 * ((u"),
    "adamw: the old v": (
        "adamw",
        0,
        "precise::sqrt(c2 * v_i)",
        "precise::sqrt(c2 * v[i] * 0.999f)",
    ),
    "grad_norm: a block left out": (
        "grad_norm",
        0,
        "(args.n + BLOCK - 1) / BLOCK",
        "args.n / BLOCK",
    ),
    "grad_norm: no factor in scale": ("grad_norm", 0, "weight_inverse * clip", "clip"),
    "loss: ignored rows count": ("cross_entropy", 0, "uint(label) < V", "label != 0"),
    "loss: dense rows of zeros": (
        "cross_entropy",
        0,
        "any = p[v] != 0.0f ? 1.0f : any;",
        "any = 1.0f;",
    ),
    "class_token: the wrong patch": ("class_token", 0, "t - 1) * C + c]) +", "t - 1) * C]) +"),
    "matmul: dx overwritten": ("matmul", 0, "args.accumulate ? dx[at] + sum : sum", "sum"),
    "matmul: a transposed matrix": (
        "matmul",
        1,
        "* PITCH + r, PITCH, 0, true);",
        "* PITCH + r, PITCH);",
    ),
    "blocks: high bits of Q6_K": ("matmul", 0, "run * 2, 3, 4, scale", "run * 2, 3, 5, scale"),
    "blocks: scales of Q4_K": ("embedding", 0, "(raw[s] >> 6) << 4", "(raw[s] >> 5) << 4"),
    "blocks: half of a block of Q8_0": ("embedding", 0, "2 + r % 2 * RUN + i", "2 + i"),
    "blocks: the eighth sign": ("embedding", 0, "seven | (odd & 1) << 7", "seven"),
    "blocks: digits to the base of 2": ("embedding", 0, "x = 3 * x & 255", "x = 2 * x & 255"),
    "blocks: the wrong codebook": (
        "embedding",
        0,
        "constant const uchar* row = IQ2_XXS",
        "constant const uchar* row = IQ2_S",
    ),
    "attention: who sees whom": ("attention", 0, "j < T && j <= i", "j < T && j < i"),
    "attention: the other side": ("attention", 0, "j < i + window", "j <= i + window"),
    "attention: the other segment": ("attention", 0, "first[i] == first[j]", "true"),
    "attention: borders of segments": ("attention", 0, "return j >= from && j", "return j"),
    "attention: sums not shrunk": ("attention", 0, "out[c][i] *= shrunk", "out[c][i] *= 1.0f"),
    "attention: keys as if dv were theirs": (
        "attention",
        0,
        "if (args.has_dk) take(V, v",
        "if (args.has_dv) take(V, v",
    ),
    "attention: the wrong head of keys": (
        "attention",
        0,
        "k += b * T * args.ldk + h / (H / args.KV) * D",
        "k += b * T * args.ldk + h % args.KV * D",
    ),
    "cached attention: not its own key": ("cached_attention", 0, "+ t + 1, head", "+ t, head"),
    "cached attention: a span that another has": (
        "cached_attention",
        0,
        "left = scratch + (group.y * spans + span)",
        "left = scratch + (group.y * spans)",
    ),
    "cached attention: spans of one weight": (
        "cached_attention",
        0,
        "const float weight = precise::exp(left[n * (E + 2) + E] - most);",
        "const float weight = 1.0f;",
    ),
    "cached attention: a span that nobody wrote": (
        "cached_attention",
        0,
        "first_key(i, 0, args.window) / KEYS",
        "0",
    ),
    "attention: a key before the window": ("attention", 0, "i + 1 - window)", "i - window)"),
    "attention: no slope of the cap": ("attention", 0, "slope * args.scale", "args.scale"),
    "experts: rows of the expert before": ("experts", 0, "r >= from && ", ""),
    "experts: one bias for all": ("experts", 0, "b[e * N + n]", "b[n]"),
    "experts: no barrier after": (
        "experts",
        0,
        f"{WAIT}\n        multiply<false, false>",
        "multiply<false, false>",
    ),
    "routing: groups by two experts always": (
        "routing",
        0,
        "best > 1 ? most + second : most",
        "most + second",
    ),
    "routing: the smallest first": ("routing", 0, "return x > y", "return x < y"),
    "dispatch: dw of some columns": ("dispatch", 0, "dot = group_sum(dot, part, tid);", ""),
    "expert_rows: an expert's own before it": (
        "expert_rows",
        0,
        "experts[i] < e",
        "experts[i] <= e",
    ),
    "expert_rows: even has one offset less": ("expert_rows", 0, "at <= args.E", "at < args.E"),
    "sums: every thread writes": ("sums", 0, "if (tid == 0) y[at]", "y[at]"),
    "sums: the first of each run alone": ("sums", 0, "x[n * args.B]", "x[n]"),
    "transpose: axes not swapped": (
        "transpose",
        0,
        "(a * args.N + n) * args.M + m",
        "(a * args.M + m) * args.N + n",
    ),
    "pointwise: masks the other way round": ("pointwise", 0, "!= 0) == (args", "!= 0) != (args"),
    "columns: what is placed is behind it": (
        "columns",
        0,
        "y[at] = x[n * args.C + c - args.K]",
        "y[at] = x[n * args.C + c]",
    ),
    "altup: weights of predict transposed": (
        "altup",
        0,
        "fma(w[(n * A + i) * A + j], dy",
        "fma(w[(n * A + j) * A + i], dy",
    ),
    "altup: sums of lines that are not there": (
        "altup",
        0,
        "if (own && tid % LINE == 0) dw[row] = sum;",
        "if (tid % LINE == 0) dw[row] = sum;",
    ),
    "altup: stream 0 gets f": ("altup", 0, "args.has_f && row % A > 0", "args.has_f"),
    "altup: dp of stream 0 as of the others": (
        "altup",
        0,
        "if (A > 0) dp[first] = dy[first] - sum;",
        "if (A > 0) dp[first] = dy[first];",
    ),
    "altup: rows that are not there": (
        "altup",
        0,
        "if (at >= args.N * C) return;",
        "",
    ),
    "altup: a slope below the floor": (
        "altup",
        0,
        "own < args.floor ? 0.0f : dot * s / own",
        "dot * s / own",
    ),
    "gaussian_topk: every thread writes the mean": (
        "gaussian_topk",
        0,
        "if (tid == 0) {\n        mean[n]",
        "{\n        mean[n]",
    ),
    "gaussian_topk: variance about 0": (
        "gaussian_topk",
        0,
        "fma(x[c] - m, x[c] - m, squares)",
        "fma(x[c], x[c], squares)",
    ),
    "gaussian_topk: a sum for some threads": (
        "gaussian_topk",
        0,
        "const float total = group_sum(sum, part, tid)",
        "const float total = tid > 99 ? sum : group_sum(sum, part, tid)",
    ),
    "gaussian_topk: the cutoff has no gradient": (
        "gaussian_topk",
        0,
        "d - (total + slope * (x[c] - m))",
        "d - total",
    ),
    # What Metal refuses.
    "double": ("softmax", 0, "float sum = 0.0f", "double sum = 0.0f"),
    "std::": ("rmsnorm", 0, "precise::sqrt", "std::sqrt"),
    "erf": ("gelu", 0, "0.5f * erf_(", "0.5f * erf("),
    "an address space": (
        "rmsnorm",
        0,
        "float sum = 0.0f;",
        "float sum = 0.0f; threadgroup const float* z = x;",
    ),
    "a pointer without one": (
        "rmsnorm",
        0,
        "float sum = 0.0f;",
        "float sum = 0.0f; const float* z = x;",
    ),
    "a buffer given twice": ("silu", 0, "[[buffer(SiluForward::x)]]", "[[buffer(SiluForward::y)]]"),
    "a buffer that there is not": ("silu", 0, "(SiluForward::x)", "(SiluForward::z)"),
    "a buffer that is not bound": ("silu", 0, "[[buffer(SiluForward::args)]]", "[[buffer(9)]]"),
    "a write to constants": ("silu", 0, "if (i >= args.n) return;", "args.n = 3;"),
    "a semicolon": ("silu", 0, "return;", "return"),
    "too much threadgroup memory": ("rmsnorm", 0, "part[GROUP]", "part[GROUP * 33]"),
    "SIMD functions on any device": ("softmax", 0, "group_sum(sum, part, tid)", "simd_sum(sum)"),
    "positions of two widths": (
        "matmul",
        0,
        "uint tid [[thread_index_in_threadgroup]]",
        "uint tid [[thread_position_in_threadgroup]]",
    ),
}
#: Calls at more elements than this are left out, so that all faults take little time.
LARGEST = 150_000


def small_calls(op):
    """Shapes and calls; first those with least work, which catch most faults."""
    found = list(_small_calls(op))
    return sorted(found, key=lambda one: CASES[op].work(one[1], one[0])[0])


def _small_calls(op):
    for shape in CASES[op].shapes:
        calls = CASES[op].calls(np.random.default_rng(3), **shape)
        sizes = [array.size for call in calls for array in call.arrays.values()]
        if (
            shape.get("type", 0) in (0, 1, 8, 12, 14, 16, 34, 40)
            and max(sizes, default=0) < LARGEST
        ):
            for call in calls:
                yield shape, call


def caught(op, text, simdgroups):
    """Return what sees that the text of a library is wrong, or None."""
    how = {"checked": True, "simdgroups": bool(simdgroups), "text": text}
    try:
        for _, call in small_calls(op):
            for accumulate in [False, True][: 1 + bool(call.accumulates)]:
                got = shaders.run_case(op, call, accumulate, **how)
                extra = {name: call.expected[name] + accumulate for name in call.accumulates}
                check(op, _expecting(call, extra), got)
    except msl.Refused as refused:
        return f"refused: {_first_error(str(refused))}"
    except shaders.ShaderError as error:
        return f"checker: {error}"
    except AssertionError as error:
        return f"numbers: {error}"
    return None


def _expecting(call, extra):
    return call.__class__(**{**vars(call), "expected": {**call.expected, **extra}})


def _first_error(text):
    return next((line for line in text.splitlines() if "error:" in line), text)


def plant(name):
    op, simdgroups, old, new = FAULTS[name]
    text = sources.source(op, bool(simdgroups))
    assert old in text, f"{name}: not in the text of {op}"
    return op, text.replace(old, new), simdgroups


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name):
    assert caught(*plant(name)) is not None


@pytest.mark.parametrize("op", sorted({fault[0] for fault in FAULTS.values()}))
def test_without_a_fault_nothing_is_caught(op):
    assert caught(op, sources.source(op, simdgroups=False), simdgroups=False) is None


if __name__ == "__main__":
    seen = {name: caught(*plant(name)) for name in sys.argv[1:] or FAULTS}
    for name, what in seen.items():
        print(f"{name:50}  {what or 'NOT CAUGHT'}"[:200])
    print(f"{sum(map(bool, seen.values()))} of {len(seen)} caught")
