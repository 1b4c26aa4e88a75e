"""What a kernel reads from its slots, its entry names; an op of the tape names the same."""

import re
from pathlib import Path

import numpy as np
import pytest

import toynn
import toynn._kernels as kernels
from toynn import ops
from toynn.errors import ConfigError
from toynn.signature import Signature
from toynn.testing.cases import CASES

KERNELS = Path(toynn.__file__).parent / "_kernels"
ENTRIES = {
    f"{op}.{name}": entry for op in CASES for name, entry in getattr(kernels, op).entries.items()
}

FUNCTION = re.compile(
    r"^(?:cdef|def) [^\n=]*?(\w+)\([^)]*\)[^\n]*:\n(?:(?:[ ][^\n]*)?\n)*", re.MULTILINE
)
SLOT = r"\b\w\.(?P<kind>[tnf])\[(?P<slot>\d+)\]"
#: A variable or a field that becomes a slot, perhaps after a cast.
NAMED = re.compile(rf"(\w+) = (?:\(?<[\w \*]+>)?{SLOT}")
#: Several fields at once: s.B, s.T = a.n[0], a.n[1].
SEVERAL = re.compile(r"^ +((?:\w+\.\w+, )+\w+\.\w+) = (.*)$", re.MULTILINE)


def functions(op):
    """The functions of a kernel's source by name, but for its Python doors."""
    text = (KERNELS / f"{op}.pyx").read_text()
    return {f[1]: f[0] for f in FUNCTION.finditer(text) if "noexcept nogil:" in f[0]}


def reached(start, bodies):
    """Names of the functions that a function leads to, itself first."""
    found = [start]
    for name in found:
        words = set(re.findall(r"\w+", bodies[name]))
        found += [other for other in bodies if other in words and other not in found]
    return found


def variables(body):
    """Return (variable, kind, slot) of each variable that becomes a slot."""
    single = SEVERAL.sub("", body)
    found = {(m[1], m["kind"], int(m["slot"])) for m in NAMED.finditer(single)}
    for several in SEVERAL.finditer(body):
        for field, value in zip(several[1].split(", "), several[2].split(", "), strict=True):
            if slot := re.match(SLOT, value):
                found.add((field.split(".")[1], slot["kind"], int(slot["slot"])))
    return found


@pytest.mark.parametrize("kernel", ENTRIES)
def test_a_slot_is_called_what_the_signature_calls_it(kernel):
    op, _, entry = kernel.partition(".")
    names = dict(zip("tnf", ENTRIES[kernel].signature, strict=False))
    bodies = functions(op)
    seen = set()
    for function in reached(f"_{entry}", bodies):
        slots = {(m["kind"], int(m["slot"])) for m in re.finditer(SLOT, bodies[function])}
        found = variables(bodies[function])
        named = {(kind, slot) for _, kind, slot in found}
        assert slots == named, f"{function}: give each slot a variable"
        for variable, kind, slot in found:
            assert names[kind][slot : slot + 1] == (variable,), f"{variable} = a.{kind}[{slot}]"
        seen |= slots
    for kind, slots in names.items():
        assert {(kind, slot) for slot in range(len(slots))} <= seen, "a slot that nobody reads"


@pytest.mark.parametrize("kernel", ENTRIES)
def test_an_op_and_its_kernel_name_the_same(kernel):
    assert ops.TABLE[kernel].signature.agrees(ENTRIES[kernel].signature)


def test_there_is_an_entry_for_each_op():
    assert ops.TABLE.keys() == ENTRIES.keys()


def recorded(tensors=("y", "r", "x", "w"), sizes=("C", "N"), **changed):
    """Return a realized session of one rmsnorm, whose tensors and sizes come in this order."""
    s = toynn.Session()
    x, w = s.input("x", (3, 4)), s.parameter("w", (4,))
    y, r = s.tape.new("y", (3, 4)), s.tape.new("r", (3,))
    given = {"y": y, "r": r, "x": x, "w": w} | changed
    s.tape.record(
        ops.rows.RMSNORM,
        {name: given[name] for name in tensors},
        {name: {"N": 3, "C": 4}[name] for name in sizes},
        {"eps": 1e-5},
    )
    s.output(y)
    s.finalize_weights()
    s.realize()
    s.upload(x, X)
    s.upload(w, W)
    s.run("loss")
    return s.download(y)


X = np.random.default_rng(0).standard_normal((3, 4), np.float32)
W = np.arange(1, 5, dtype=np.float32)


def test_the_order_in_which_an_op_names_things_does_not_matter():
    expected = X / np.sqrt((X.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * W
    for tensors in ("yrxw", "wxry", "xwyr"):
        for sizes in ("NC", "CN"):
            np.testing.assert_allclose(recorded(tensors, sizes), expected, 1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tensors": "yxw"}, r"its tensors are y, r, x, w; got y, x, w: no r$"),
        (
            {"tensors": "yrxwz", "z": None},
            r"its tensors are y, r, x, w; got y, r, x, w, z: z is not one$",
        ),
        ({"sizes": "N"}, r"its sizes are N, C; got N: no C$"),
        ({"w": None}, r"w must not be None$"),
    ],
)
def test_a_name_that_does_not_fit_is_refused_when_recorded(given, message):
    with pytest.raises(ConfigError, match=f"^recording rmsnorm.forward: {message}"):
        recorded(**given)


def test_a_kernel_that_names_other_things_is_refused_when_compiled(monkeypatch):
    entry = kernels.rmsnorm.entries["forward"]
    other = entry._replace(signature=Signature.of("y r x w", "N D", "eps"))
    monkeypatch.setitem(kernels.rmsnorm.entries, "forward", other)
    message = r"^the kernel rmsnorm.forward: its sizes are N, D; got C, N: no D, C is not one$"
    with pytest.raises(ConfigError, match=message):
        recorded()


def test_what_may_be_missing_belongs_to_a_signature():
    assert Signature.of("a b?", "N").agrees(Signature.of("b? a", "N"))
    assert not Signature.of("a b?", "N").agrees(Signature.of("b a", "N"))
    assert not Signature.of("a b?", "N").agrees(Signature.of("b? a", "M"))


def test_the_work_of_a_call_is_what_its_op_counts():
    sizes = {"M": 3, "N": 5, "K": 7}
    forward, *_ = CASES["matmul"].calls(np.random.default_rng(0), **sizes)
    assert CASES["matmul"].work(forward, sizes) == (2 * 3 * 5 * 7, 4 * (2 * 15 + 21 + 35 + 5))
    sizes = {"N": 3, "C": 5}  # of elementwise.add: n = 15
    add, *_ = CASES["elementwise"].calls(np.random.default_rng(0), **sizes)
    assert CASES["elementwise"].work(add, sizes) == (15, 4 * 45)
    sizes = {"B": 1, "T": 1, "H": 2, "KV": 1, "D": 4, "S": 64, "past": 9}
    cached, *_ = CASES["cached_attention"].calls(np.random.default_rng(0), **sizes)
    keys, rest = 4 * 2 * 10 * 4, 4 * 2 * 4 * (2 + 1)  # of 10 keys and values; q, k, v and o
    assert CASES["cached_attention"].work(cached, sizes) == (4 * 2 * 10 * 4, keys + rest)


@pytest.mark.parametrize("kernel", ENTRIES)
def test_each_entry_that_a_bench_times_has_its_work_counted(kernel):
    op, _, entry = kernel.partition(".")
    shape = next(
        shape for shape in CASES[op].shapes if min(shape[n] for n in shape if n in "nNMBC")
    )
    call = next(c for c in CASES[op].calls(np.random.default_rng(0), **shape) if c.entry == entry)
    flops, nbytes = CASES[op].work(call, shape)
    assert nbytes > 0 and (flops > 0 or kernel == "embedding.forward")
