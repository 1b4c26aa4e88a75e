"""A session: its weights, ids and labels, what it says of memory and time."""

import numpy as np
import pytest
from tiny import N, Tiny, V

import toynn
from toynn import ops
from toynn.errors import (
    ConfigError,
    LabelError,
    ShapeError,
)
from toynn.session import Session


def test_frozen_weights_get_no_gradient_and_no_work():
    tiny = Tiny(frozen=True)
    assert not any(node.op.kernel == "embedding.backward" for node in tiny.s.tape.nodes)
    with pytest.raises(ConfigError, match="wte"):
        tiny.s.grad(tiny.wte)
    before = tiny.s.download(tiny.wte)
    tiny.s.run()
    assert np.array_equal(tiny.s.download(tiny.wte), before)


def test_mapped_weights_stay_in_the_callers_array():
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    table.flags.writeable = False
    s = Session()
    w, ids = s.mapped("w", table), s.input("ids", (2,), "i32")
    y = s.output(ops.embedding(s, w, ids))
    s.finalize_weights()
    s.realize()
    s.upload(ids, [3, 1])
    s.run()
    assert np.array_equal(s.download(y), table[[3, 1]])
    assert s.memory().weights == 0
    with pytest.raises(ShapeError, match="C-contiguous"):
        Session().mapped("w", table.T)


@pytest.mark.parametrize(
    ("tensor", "row", "value"), [("tokens", 5, V), ("tokens", 0, -1), ("labels", 7, -99)]
)
def test_bad_ids_name_row_and_value_before_any_kernel_runs(tensor, row, value):
    tiny = Tiny()
    tiny.s.run()
    calls = tiny.s.profile().rows[0].calls
    before = tiny.s.download(getattr(tiny, tensor))
    ids = np.ones(N, int)
    ids[row] = value
    with pytest.raises(LabelError, match=rf"{tensor}: row {row} is {value}; must be 0..10"):
        tiny.s.upload(getattr(tiny, tensor), ids)
    assert tiny.s.profile().rows[0].calls == calls
    assert np.array_equal(tiny.s.download(getattr(tiny, tensor)), before)


def test_all_rows_ignored_is_an_error():
    tiny = Tiny()
    with pytest.raises(LabelError, match="all 8 rows are ignored"):
        tiny.s.upload(tiny.labels, np.full(N, -100))


def test_memory_is_known_before_any_buffer_exists():
    tiny = Tiny(realize=False)
    planned = tiny.s.memory()
    tiny.realize()
    assert tiny.s.memory() == planned
    assert planned.weights == 2 * 320  # 11 x 6 floats, in whole cache lines
    assert planned.moments == 2 * planned.gradients == 4 * 320
    assert planned.peak == sum(
        (planned.weights, planned.moments, planned.gradients, planned.activations)
    )


def test_profile_counts_calls_and_shares():
    tiny = Tiny()
    for _ in range(3):
        tiny.s.run()
    rows = {row.op: row for row in tiny.s.profile().rows}
    assert rows["adamw.step"].calls == 6
    assert sum(row.share for row in rows.values()) == pytest.approx(1)
    assert "GFLOP/s" in str(tiny.s.profile())


def test_precision_names():
    assert toynn.get_float32_matmul_precision() == "highest"
    with pytest.raises(ConfigError, match="highest, high, medium"):
        toynn.set_float32_matmul_precision("low")
    toynn.set_float32_matmul_precision("high")
    try:
        assert Session().matmul_precision == "high"
        assert Session(matmul_precision="medium").matmul_precision == "medium"
    finally:
        toynn.set_float32_matmul_precision("highest")
