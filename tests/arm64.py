"""The kernels on an emulated arm64 CPU, levels generic and neon: by hand, and shortened in CI.

    python -m tests.arm64                                   every case, on each CPU below
    python -m tests.arm64 --quick                           a few cases of every op, at -O1
    python -m tests.arm64 --cpus max tests/kernels/test_int8.py -k threads

GCC's cross compiler builds toynn with the headers of Debian's Python for arm64, and QEMU's user
emulation runs pytest. All of it lies in --build (minutes at first), without a chroot or a foreign
architecture of dpkg; as root, missing packages of Debian are installed. Results are right or wrong
there as on a CPU of that kind; how fast they come says nothing.

The CPUs differ in what neon chooses its functions by: max has bfmmla, smmla and sdot, neoverse-n1
sdot alone, cortex-a72 none of them. All must give the same bits, bfloat16 apart: that is compared.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.sanitized import ROOT, copy_tree, finish, installed, pytest_words, run

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = {
    "qemu-aarch64-static": "qemu-user-static",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
}
ARM_PACKAGES = (f"python{VERSION}", f"libpython{VERSION}-dev", "libstdc++6")
WHEELS = ("numpy", "gguf", "safetensors", "tqdm", "pytest", "hypothesis", "ml_dtypes")
GLIBCS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
#: SVE is off: under emulation NumPy's OpenBLAS raises floating-point flags in its kernels for it,
#: and tests turn warnings into errors.
CPUS = {"max": "max,sve=off", "neoverse-n1": "neoverse-n1", "cortex-a72": "cortex-a72"}
UNITS = {"max": "BFMMLA SMMLA", "neoverse-n1": "SDOT", "cortex-a72": "NEON"}
TESTS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "tests").rglob("test_*.py")
    if "mark.kernels" in path.read_text()
)
#: Each shape of every op, products in 8 bits and in bfloat16: some minutes.
QUICK_TESTS = [
    f"tests/kernels/test_{name}.py" for name in ("kernels", "int8", "int8_panels", "bfloat16")
]
QUICK = "matches_float64 or rounded_rows or rounded_operands or largest_sums"

# What apt-get is told, to fetch packages of another architecture beside this system's.
APT = """\
APT::Architecture "arm64"; APT::Architectures { "arm64"; };
Dir::State "%(apt)s"; Dir::State::lists "%(apt)s/lists"; Dir::State::status "%(apt)s/status";
Dir::Cache "%(apt)s/cache"; Acquire::Languages "none";
Dir::Etc::sourcelist "/etc/apt/sources.list"; Dir::Etc::sourceparts "/etc/apt/sources.list.d";
"""
# The emulated Python: a program that others can start, as sys.executable. It compiles a module for
# seconds, so it keeps what it has compiled.
PYTHON = """\
#!/bin/sh
unset PYTHONDONTWRITEBYTECODE
exec qemu-aarch64-static -cpu "$TOYNN_EMULATED" -L "%(root)s" \\
    "%(root)s/usr/bin/python%(version)s" "$@"
"""
# The compiler. A program that it links (setup.py runs one) becomes a script that emulates it.
COMPILER = """\
#!/bin/sh
%(ccache)saarch64-linux-gnu-gcc "$@" %(last)s || exit
out= part=
while [ $# -gt 0 ]; do case $1 in -o) out=$2;; -shared|-c) part=1;; esac; shift; done
[ "$part" ] || [ ! -f "$out" ] || { mv "$out" "$out.elf"
  printf '#!/bin/sh\\nexec qemu-aarch64-static -L "%(root)s" "%%s" "$@"\\n' "$out.elf" > "$out"
  chmod +x "$out"; }
"""
# setup.py asks which machine it builds for.
CROSS = """\
import platform, runpy, sys
platform.machine = lambda: "aarch64"
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# The units in use, then digests of what must not depend on the CPU. float32 has the same bits at
# both levels, too: they add up in the same order, and every such CPU fuses multiply and add.
BITS = """\
import hashlib
import numpy as np
from toynn._kernels import cpu, level, load
from toynn.formats import quants
from toynn.formats.quants import TYPES
from toynn.testing.cases.quants import matrix
assert level == "neon", level
print(cpu.pairs_unit(), load("matmul", level).multiplies_int8())
rng = np.random.default_rng(1)
def show(name, *arrays):
    print(name, hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:16])
for M, N, K in ((1, 40, 65), (5, 33, 97), (25, 1000, 513), (131, 140, 129)):
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((M, K), (N, K)))
    found = []
    for name in ("generic", "neon"):
        y, dx, dw = (np.empty(shape, np.float32) for shape in ((M, N), (M, K), (N, K)))
        load("matmul", name).forward(y, None, x, w, None)
        load("matmul", name).backward_input(dx, y, w)
        load("matmul", name).backward_weight(dw, y, x)
        found.append([a.tobytes() for a in (y, dx, dw)])
    assert found[0] == found[1], f"float32 {M} {N} {K}: generic and neon differ"
    show(f"float32 {M} {N} {K}", y, dx, dw)
for type in ("Q4_0", "Q8_0", "Q4_K", "Q6_K"):
    _, raw, _ = matrix(rng, TYPES[type], 37, 768)
    x = rng.standard_normal((16, 768)).astype(np.float32)
    for M in (1, 2, 3, 7, 16):
        y = np.empty((M, 37), np.float32)
        load("matmul", "neon").forward(y, None, x[:M], raw, None, type=type, precision="medium")
        show(f"8 bits {type} {M}", y)
"""


def main() -> int:
    """Build, and run pytest on each CPU; return its first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path(tempfile.gettempdir()) / "toynn-arm64")
    parser.add_argument("--cpus", help="default: max,cortex-a72; of --quick: max")
    parser.add_argument("--quick", action="store_true", help="a few cases of every op, at -O1")
    arguments, rest = parser.parse_known_args()
    cpus = (arguments.cpus or ("max" if arguments.quick else "max,cortex-a72")).split(",")
    if unknown := set(cpus) - set(CPUS):
        parser.error(f"--cpus: {', '.join(unknown)} is none of {', '.join(CPUS)}")
    folder = arguments.build.resolve()
    if missing := prepare(folder, "-O1" * arguments.quick):
        print(f"arm64: skipped: {missing}", flush=True)
        return 0
    build(folder)
    compare_bits(folder)
    for cpu in cpus:
        print(f"arm64: {cpu}", flush=True)
        words = [str(folder / "python"), *pytest_words()[1:], "-m", "kernels"]
        words += rest or (["-k", QUICK, *QUICK_TESTS] if arguments.quick else TESTS)
        if code := finish(words, folder / "tree", {"TOYNN_EMULATED": CPUS[cpu]}).returncode:
            return code
    return 0


def compare_bits(folder: Path) -> None:
    """See that each CPU has the units that it should, and that they all give the same bits."""
    told = {}
    for cpu, units in UNITS.items():
        settings = {"TOYNN_EMULATED": CPUS[cpu]}
        words = [str(folder / "python"), "-c", BITS]
        out = finish(words, folder / "tree", settings, capture=True).stdout
        found, _, told[cpu] = out.partition("\n")
        if found.split() != units.split():
            sys.exit(f"arm64: {cpu} should have {units}; toynn found {found!r}")
    if len({*told.values()}) > 1:
        sys.exit(
            "arm64: bits depend on the CPU:\n" + "\n".join(f"{c}\n{t}" for c, t in told.items())
        )
    print(f"arm64: the same bits on {', '.join(told)}:\n{told['max']}", flush=True)


def prepare(folder: Path, last: str = "") -> str:
    """Fetch what is missing; return why it cannot be had, or "". ``last``: a last word for GCC."""
    folder.mkdir(parents=True, exist_ok=True)
    apt, why = installed(PACKAGES, folder)
    if why:
        return why
    root = folder / "root"
    if not (root / f"usr/bin/python{VERSION}").exists():
        if not apt:
            return f"it needs apt-get and root to fetch Debian's Python {VERSION} for arm64"
        if not unpack(folder, root, apt):
            return f"Debian has no Python {VERSION} for arm64"
    packages = root / f"usr/local/lib/python{VERSION}/dist-packages"
    if not all((packages / name).exists() for name in WHEELS):
        tag, part = VERSION.replace(".", ""), folder / "packages.part"
        words = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", str(part)]
        words += ["--only-binary=:all:", "--implementation", "cp", "--python-version", tag]
        words += [word for abi in (f"cp{tag}", "abi3", "none") for word in ("--abi", abi)]
        words += [word for glibc in GLIBCS for word in ("--platform", f"{glibc}_aarch64")]
        run([*words, *WHEELS], folder, {})
        replace(packages, part)
    ccache = "ccache " * bool(shutil.which("ccache"))
    values = {"root": root, "version": VERSION, "ccache": ccache, "last": last}
    for name, text in (("python", PYTHON), ("cc", COMPILER), ("cross.py", CROSS)):
        (folder / name).write_text(text if name == "cross.py" else text % values)
        (folder / name).chmod(0o755)
    (packages / "arm_exe.pth").write_text(
        f"import sys; sys.executable = {str(folder / 'python')!r}\n"
    )
    return ""


def replace(target: Path, part: Path) -> None:
    """Put a folder that is whole by now in a target's place: what is there was never cut short."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    part.rename(target)


def unpack(folder: Path, root: Path, apt: str) -> bool:
    """Fetch Debian's Python for arm64 and unpack it; return whether there is one.

    Raises CalledProcessError where there is one and it cannot be fetched.
    """
    state = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "apt.conf").write_text(APT % {"apt": state})
    settings = {"APT_CONFIG": str(state / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}
    run([apt, "-qq", "update", "-o", "APT::Update::Error-Mode=any"], folder, settings)
    words = [apt, "-qq", "install", "--yes", "--no-install-recommends", *ARM_PACKAGES]
    if finish([*words, "--simulate"], folder, settings, capture=True).returncode:
        return False
    run([*words, "--download-only"], folder, settings)
    part = folder / "root.part"
    for package in (state / "cache/archives").glob("*.deb"):
        run(["dpkg", "-x", str(package), str(part)], folder, {})
    replace(root, part)
    return True


def build(folder: Path) -> None:
    """Build both levels in a copy of the tree; what Cython has translated here is taken over."""
    tree, root = folder / "tree", folder / "root"
    copy_tree(tree)
    if (ROOT / "build/cython").exists():
        shutil.copytree(ROOT / "build/cython", tree / "build/cython", dirs_exist_ok=True)
    name = "_sysconfigdata__aarch64-linux-gnu"
    data = folder / "sysconf"
    data.mkdir(exist_ok=True)
    shutil.copy(root / f"usr/lib/python{VERSION}/{name}.py", data)
    settings = {
        "CC": str(folder / "cc"),
        "LDSHARED": f"{folder / 'cc'} -shared",
        "CFLAGS": f"-I{root}/usr/include/python{VERSION} -idirafter {root}/usr/include",
        "PYTHONPATH": str(data),
        "_PYTHON_SYSCONFIGDATA_NAME": name,
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "TOYNN_EMULATED": CPUS["max"],
    }
    words = [sys.executable, "../cross.py", "setup.py", "-q", "build_ext", "--inplace", "-j1"]
    run(words, tree, settings)


if __name__ == "__main__":
    sys.exit(main())
