"""What the text of the shaders keeps to, where Apple's compiler is not there to say so.

The software device accepts what clang accepts. This holds the text to the rest: names of functions
that Metal's library has, arguments as the signatures say, exact mathematics.
"""

import re
from functools import cache
from importlib.resources import files
from itertools import product

import numpy as np
import pytest

from toynn import ops
from toynn.backends.metal import arguments, grids
from toynn.testing.cases import CASES

KERNELS = files("toynn.backends.metal") / "kernels"
TEXTS = {
    path.name.removesuffix(".metal"): path.read_text(encoding="utf-8")
    for path in sorted(KERNELS.iterdir(), key=lambda path: path.name)
}
#: Without comments.
CODE = {name: re.sub(r"//.*", "", text) for name, text in TEXTS.items()}

#: Words of C++ that Metal's language has not, or not everywhere, or that have no place in a shader.
LACKS = set(
    re.findall(
        r"\w+",
        """
        double long asm auto catch const_cast delete dynamic_cast explicit export extern friend goto
        mutable new noexcept nullptr operator private protected reinterpret_cast throw try typeid
        virtual volatile std wchar_t size_t int64_t printf assert malloc memcpy atomic texture
        """,
    )
)
#: Functions and types of Metal's library that the shaders call.
LIBRARY = set(
    re.findall(
        r"\w+",
        """
        float float2 float4 int uint uint2 ulong ulong2 as_type clamp fabs fma isinf isnan max min
        rint ushort threadgroup_barrier simd_sum simd_max simdgroup_barrier simdgroup_load
        simdgroup_store simdgroup_multiply_accumulate
        """,
    )
)
#: Those that fast mathematics would replace: only as precise::.
EXACT = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sin", "cos", "pow", "divide")

#: Of what a buffer is, by the type of the case's array.
KINDS = {"float32": "float", "int32": "int", "uint8": "uchar", "uint16": "ushort"}
#: Ops whose formula is nobody's in particular.
NOBODYS = ("valid_rows", "elementwise", "expert_rows", "softmax", "token_sums")

FUNCTION = re.compile(r"kernel void (\w+)\((.*?)\)\n\{", re.DOTALL)
BUFFER = re.compile(r"(\w[\w ]*[*&]) +(\w+) +\[\[buffer\((\w+)::(\w+)\)\]\]")
FUNCTIONS = {
    found[1]: (op, found[2])
    for op, code in CODE.items()
    if op in CASES  # program.metal is of no op
    for found in FUNCTION.finditer(code)
}


@pytest.mark.parametrize("name", CODE)
def test_words_that_metal_lacks(name):
    assert not LACKS & set(re.findall(r"\w+", CODE[name]))


@pytest.mark.parametrize("name", CODE)
def test_what_is_called_is_defined_or_of_metals_library(name):
    defined = set(
        re.findall(r"^(?:static inline|kernel) \w+ (\w+)\(", "".join(CODE.values()), re.M)
    )
    called = set(re.findall(r"(?<![:\w.])(\w+)\(", CODE[name]))
    keywords = {"if", "for", "while", "switch", "return", "buffer", "defined"}
    keywords.add("max_total_threads_per_threadgroup")
    assert called <= defined | LIBRARY | keywords | {"T"}


@pytest.mark.parametrize("name", CODE)
def test_mathematics_is_exact(name):
    assert "fast::" not in CODE[name]
    assert not re.findall(rf"(?<!precise::)\b(?:{'|'.join(EXACT)})\(", CODE[name])
    assert not re.findall(r"(?<![\w.])\d+\.\d*(?:e[+-]?\d+)?(?![\w.])", CODE[name]), (
        "no f behind it"
    )


@pytest.mark.parametrize("name", CODE)
def test_simd_groups_stand_behind_their_switch(name):
    for part in re.split(r"#if TOYNN_SIMDGROUPS.*?#(?:else|endif)", CODE[name], flags=re.DOTALL):
        assert not re.search(r"\bsimd(?:group)?_", part)


@pytest.mark.parametrize("name", CODE)
def test_lines_and_heads(name):
    assert max(map(len, TEXTS[name].splitlines())) <= 120
    head = TEXTS[name].partition("\n\n")[0]
    assert all(line.startswith(("//", "#", "using")) for line in head.splitlines())
    assert "\t" not in TEXTS[name] and TEXTS[name].isascii()
    if name in CASES:
        assert re.search("(?:Sources?|Formulas): ", head) or name in NOBODYS, "where is it from?"


def test_a_kernel_has_the_parameters_of_its_entry():
    assert FUNCTIONS
    for function, (op, declared) in FUNCTIONS.items():
        entry = max((e for e in arguments.entries(op) if function.startswith(f"{op}_{e}")), key=len)
        assert declared.split(",")[0].strip() == f"{op}_{entry}".upper(), function
        assert "buffer(" not in declared, function


@cache
def arrays_of(op, entry):
    """Return an array for each tensor of an entry: its case has calls with all of them."""
    arrays = {}
    for shape in CASES[op].shapes:
        for call in CASES[op].calls(np.random.default_rng(0), **shape):
            arrays |= call.arrays if call.entry == entry else {}
        if set(arguments.entries(op)[entry].tensors) <= set(arrays):
            break
    return arrays


def test_parameters_are_of_the_types_of_the_arrays():
    """Each is of its entry, and has its name, type and direction there; its number by the names."""
    for kernel in ops.TABLE:
        op, _, entry = kernel.partition(".")
        signature, struct = arguments.entries(op)[entry], arguments.struct_name(op, entry)
        declared = arguments.declaration(op, entry).partition(
            f"#define {op.upper()}_{entry.upper()}"
        )[2]
        found = BUFFER.findall(declared)
        names = [name.removesuffix("_") for _, name, _, _ in found]
        assert names == [*signature.tensors, "args", *["scratch"] * (kernel in grids.SCRATCH)]
        for type_, name, scope, number in found:
            assert (scope, number) == (struct, name), kernel
            spec = signature[name.removesuffix("_")] if name not in ("args", "scratch") else None
            if spec is None:
                expected = {"args": f"constant {struct}&", "scratch": "device float*"}[name]
            else:
                kind = arrays_of(op, entry)[spec.name].dtype.name
                of = "uchar" if spec.kind == "type" else KINDS[kind]
                expected = f"device {'' if spec.written else 'const '}{of}*"
            assert type_.strip() == expected, (kernel, name)


def test_each_function_is_run_by_some_pass():
    run = {}
    for kernel in ops.TABLE:
        op, _, entry = kernel.partition(".")
        signature = arguments.entries(op)[entry]
        for shape, there, precision in product(CASES[op].shapes, (0, 1), range(3)):
            sizes = dict.fromkeys(signature.sizes, 9) | shape | {"precision": precision}
            sizes |= {f"has_{name}": there for name in signature.nullable}
            for one in grids.dispatches_of(kernel, signature, sizes):
                run.setdefault(one.function, set()).add(one.threads)
            assert kernel not in grids.SCRATCH or grids.SCRATCH[kernel](sizes) >= 0
    assert set(run) == set(FUNCTIONS)
    for function, threads in run.items():
        op = FUNCTIONS[function][0]
        most = re.search(rf"threadgroup\((\w+)\)\]\]\nkernel void {function}\(", CODE[op])
        assert len(threads) == 1
        assert not most or (getattr(grids, most[1]), 1, 1) in threads, function


def test_numbers_that_python_knows_too():
    for name in ("GROUP", "LINE", "RUN", "BLOCK", "TILE", "PRODUCT", "GEMV_ROWS", "WIDE"):
        said = {
            int(n) for n in re.findall(rf"constexpr uint {name} = (\d+);", "".join(CODE.values()))
        }
        assert said == {getattr(grids, name)}, name
