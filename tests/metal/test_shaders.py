"""Shaders of the Metal backend: each call of the op-case table on the software device."""

import msl
import numpy as np
import pytest
import shaders

from toynn import ops
from toynn.backends.metal import arguments, grids, sources
from toynn.testing.calls import check, numbers
from toynn.testing.cases import CASES

pytestmark = pytest.mark.skipif(shaders.available() is not None, reason=str(shaders.available()))

#: As it runs on a device; with the checker; and with groups and threads in some other order.
HOW = {
    "plain": {},
    "checked": {"checked": True},
    "simdgroups": {"simdgroups": True, "checked": True},
    **{f"order-{seed}": {"seed": seed} for seed in (1, 2, 3)},
}
OPS = sorted({kernel.partition(".")[0] for kernel in ops.TABLE})


def test_dispatches_and_scratch_are_of_entries():
    known = {f"{op}.{entry}" for op in CASES for entry in arguments.entries(op)}
    assert known >= set(grids.DISPATCHES) | set(grids.SCRATCH)


def within(op, got, expected):
    tolerance = CASES[op].tolerance * (1 + np.abs(expected).max(initial=0))
    assert np.abs(got - expected).max(initial=0) <= tolerance


def calls(op, read=grids.TYPES):
    for shape in CASES[op].shapes:
        if shape.get("type", 0) in read:
            for call in CASES[op].calls(np.random.default_rng(3), **shape):
                yield shape, call


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("op", OPS)
def test_op(op, how):
    for _, call in calls(op):
        check(op, call, shaders.run_case(op, call, **HOW[how]))
        if call.accumulates:
            got = shaders.run_case(op, call, accumulate=True, **HOW[how])
            for key in call.accumulates:
                within(op, got[key], call.expected[key] + 1)


@pytest.mark.parametrize("op", OPS)
def test_the_order_of_threads_does_not_change_a_bit(op):
    for _, call in list(calls(op, read=(0, 12)))[:8]:
        outputs = [shaders.run_case(op, call, seed=seed) for seed in (None, 1)]
        for name in call.expected:
            assert outputs[0][name].tobytes() == outputs[1][name].tobytes(), (call.entry, name)


#: Ops whose rows may be fewer than planned.
LIVE = [
    *("rmsnorm", "layernorm", "softmax", "gelu", "silu", "swiglu", "dropout", "rope", "embedding"),
    *("matmul", "cross_entropy", "chunked_cross_entropy", "elementwise", "geglu", "softcap"),
    "sigmoid",
]


@pytest.mark.parametrize("op", LIVE)
@pytest.mark.parametrize("simdgroups", [False, True])
def test_a_grid_for_more_rows_than_there_are(op, simdgroups):
    """The grid is planned for 70 rows more: nothing behind the buffers is read or written."""
    counting = {"matmul": "M"}.get(op)
    for _, call in list(calls(op, read=(0,)))[:8]:
        if not max(array.size for array in call.arrays.values()):
            continue
        size = counting or ("N" if "N" in call.named()[0] else "n")
        how = {"checked": True, "simdgroups": simdgroups}
        got = shaders.run_case(op, call, more={size: 70}, **how)
        check(op, call, got)


@pytest.mark.parametrize("op", OPS)
def test_in_place(op):
    """An output that may be stored where an input is: no thread reads what another overwrote."""
    for _, call in list(calls(op, read=(0,)))[:12]:
        for output, source in call.in_place:
            shared = call.arrays[source].copy()
            both = {output: shared, source: shared}
            check(op, call, shaders.run_case(op, call, replaced=both, checked=True))


@pytest.mark.parametrize("op", OPS)
def test_a_nan_is_not_lost(op):
    """Wherever a NaN in an input of the CPU's kernel shows in its outputs, it does so here."""
    rng = np.random.default_rng(5)
    ordinary = [(shape, call) for shape, call in calls(op, read=(0,)) if smallest(call) > 0]
    for _, call in ordinary[:4]:
        for name in call.inputs:
            if call.arrays[name].dtype != np.float32 or name in call.loses_nan:
                continue
            spoiled = {key: array.copy() for key, array in call.arrays.items()}
            spoiled[name].flat[rng.integers(spoiled[name].size)] = np.nan
            got = shaders.run_case(op, call, replaced=spoiled)
            assert any(np.isnan(numbers(output)).any() for output in got.values()), call


def smallest(call):
    return min(array.size for array in call.arrays.values())


@pytest.mark.parametrize("simdgroups", [False, True])
@pytest.mark.parametrize(
    ("op", "rows"), [("matmul", grids.GEMV_ROWS), ("experts", grids.GEMV_COPIES)]
)
def test_rough_products(op, rows, simdgroups):
    """With precision "medium" the bound of the case holds; and the products are rougher for it."""
    for shape, call in calls(op, read=(0, 8)):
        if shape["M"] > 200 or call.entry == "backward_bias":
            continue
        call.options["precision"] = "medium"
        how = {"simdgroups": simdgroups, "checked": simdgroups}
        got = shaders.run_case(op, call, **how)
        check(op, call, got)
        if shape["M"] > rows and min(shape[name] for name in "MNK") > 16:
            key = next(iter(call.expected))
            error = np.abs(got[key] - call.expected[key]).max()
            assert error > CASES[op].tolerance * np.abs(call.expected[key]).max()


@pytest.mark.parametrize("simdgroups", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_expert_that_is_not_finite_spoils_its_own_rows_alone(simdgroups, bad):
    """Rows of several experts are in one tile of the products: it holds them all."""
    shape = {"E": 7, "M": 40, "N": 20, "K": 33}
    for call in CASES["experts"].calls(np.random.default_rng(3), **shape):
        if "w" not in call.arrays:
            continue
        (key, expected), offsets = next(iter(call.expected.items())), call.arrays["offsets"]
        w = call.arrays["w"].copy()
        w[3] = bad
        spoiled = np.zeros(len(expected), bool)
        spoiled[offsets[3] : offsets[4]] = True
        assert 0 < spoiled.sum() < len(spoiled) <= grids.TILE
        got = shaders.run_case("experts", call, replaced={"w": w}, simdgroups=simdgroups)
        assert not np.isfinite(got[key][spoiled]).any()
        within("experts", got[key][~spoiled], expected[~spoiled])


def test_a_struct_is_packed_as_the_compiler_lays_it_out():
    """Sizes and offsets of each struct, asserted in the shaders' own language."""
    text = sources.source("rmsnorm", simdgroups=False)
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
    msl.compiled(text)


def test_an_older_metal_has_no_bfloat():
    """Then products of precision "medium" are float32: the text compiles without the type."""
    text = sources.source("matmul", simdgroups=False).replace("__METAL_VERSION__ >= 310", "0")
    assert "typedef float rough" in text
    msl.compiled(text)
    with pytest.raises(msl.Refused):
        msl.compiled(text.replace("typedef float rough", "typedef float other"))
