"""What a compiler makes of the level neon's C: its loops keep their sums in registers.

An emulator shows that results are right, and says nothing of speed. What can be seen without such a
CPU is the machine code: how many multiply-adds a step has, what it loads, and that nothing goes to
the stack. GCC's cross compiler is needed, of Debian: gcc-aarch64-linux-gnu.
"""

import platform
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

GCC, OBJDUMP = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objdump"
ROOT = Path(__file__).parents[2]
GEMM = ROOT / "toynn/_kernels/gemm"
ROWS = 12  # TN_MR

pytestmark = pytest.mark.skipif(
    not (shutil.which(GCC) and shutil.which(OBJDUMP)),
    reason=f"{GCC} and {OBJDUMP} are not installed (Debian: gcc-aarch64-linux-gnu)",
)


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """Instructions of each function of a .c file, compiled as setup.py does: (address, text)."""
    for name in ("Cython", "setuptools.modified"):  # setup.py, which has the flags, imports them
        pytest.importorskip(name, reason=f"{name} is not installed")
    made, folder = {}, tmp_path_factory.mktemp("code")

    def compiled(name):
        if name not in made:
            built = folder / f"{name}.o"
            words = [GCC, "-fPIC", *flags(), "-c", GEMM / f"{name}.c", "-o", built]
            subprocess.run(words, check=True)
            words = [OBJDUMP, "-d", "--no-show-raw-insn", built]
            made[name] = functions(
                subprocess.run(words, check=True, capture_output=True, text=True)
            )
        return made[name]

    return compiled


def flags():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "aarch64")
        patch.delenv("TOYNN_SANITIZE", raising=False)
        setup = runpy.run_path(str(ROOT / "setup.py"))
    folders = [f"-I{ROOT / folder}" for folder in setup["INCLUDE"]]
    return [*setup["COMPILE"], *setup["LEVELS"]["neon"], *folders]


def functions(listing):
    bodies = {}
    for line in listing.stdout.splitlines():
        if match := re.match(r"[0-9a-f]+ <(.+)>:", line):
            bodies[match[1]] = instructions = []
        elif match := re.match(r" *([0-9a-f]+):\t(.+)", line):
            instructions.append((int(match[1], 16), match[2]))
    return bodies


def inner_loops(instructions, *operations):
    """The innermost loops that have one of these instructions, as lists of instructions."""
    ends = [
        (int(match[1], 16), address)
        for address, text in instructions
        if (match := re.match(r"(?:b|b\.\w+|cbn?z|tbn?z)\t(?:.*, )?([0-9a-f]+) <", text))
        and int(match[1], 16) <= address
    ]
    inner = [
        (first, last)
        for first, last in ends
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in ends)
    ]
    loops = [[text for at, text in instructions if a <= at <= b] for a, b in inner]
    return [loop for loop in loops if count(loop, *operations)]


def count(loop, *operations):
    return sum(text.split("\t")[0] in operations for text in loop)


def stack(loop):
    return [text for text in loop if "[sp" in text]


def test_a_step_of_the_packed_tile(code):
    """A loop for each height: 2 multiply-adds a row, and 2 vectors of B and 3 of A in 3 loads."""
    loops = inner_loops(code("gemm")["tn_multiply_floats"], "fmla")
    assert sorted(count(loop, "fmla") for loop in loops) == [2 * h for h in range(1, ROWS + 1)]
    for loop in loops:
        assert not stack(loop)
    highest = max(loops, key=len)
    assert count(highest, "ldr", "ldur", "ldp") == 3 and len(highest) <= 2 * ROWS + 8


def test_steps_of_tiles_in_place(code):
    """Both widths, rows side by side and apart: nothing goes to the stack."""
    loops = inner_loops(code("gemm")["tn_tile"], "fmla")
    counts = {count(loop, "fmla") for loop in loops}
    assert counts >= {*range(1, ROWS + 1), *range(2, 2 * ROWS + 1, 2)}
    for loop in loops:
        assert not stack(loop)


def test_a_step_of_the_tile_of_pairs(code):
    """2 rows by 2 columns an instruction, of 8 columns: 4 for two rows."""
    loops = inner_loops(code("gemm_neon")["tn_multiply_pairs"], "bfmmla")
    heights = sorted(count(loop, "bfmmla") // 4 for loop in loops)
    assert {*heights} == {h // 2 for h in range(2, ROWS + 1, 2)}
    for loop in loops:
        assert not stack(loop)


@pytest.mark.parametrize(("tile", "operation"), [("smmla", "smmla"), ("sdot", "sdot")])
def test_a_step_of_the_tile_of_8_bits(code, tile, operation):
    """12 rows by 8 columns: smmla takes 2 rows by 2 columns, sdot a row by 4 columns."""
    loops = inner_loops(code("gemm_int8")[f"tn_multiply_{tile}"], operation)
    assert max(count(loop, operation) for loop in loops) == 24
    for loop in loops:
        assert not stack(loop)


@pytest.mark.parametrize(
    ("unit", "operations"),
    [("neon", ["smlal", "sadalp"]), ("sdot", ["sdot"]), ("smmla", ["smmla", "sdot"])],
)
def test_sums_of_8_bits_stay_in_registers(code, unit, operations):
    """Addresses may come from the stack, sums go to none."""
    for type in ("q4_0", "q8_0", "q4_k", "q6_k"):
        name = f"tn_dot_{type}_{unit}"
        loops = inner_loops(code("dot_neon")[name], *operations)
        assert len(loops) >= 3  # for 1, 2 and 4 rows of x
        if unit != "neon":  # for CPUs of before 2017, which spill some
            assert not [
                text for loop in loops for text in stack(loop) if re.match(r"st\w*\tq", text)
            ]
