"""``toynn bench``: what its loops compute, what binds a kernel, what it prints; not how fast."""

import json
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest

import toynn
from toynn import Session, ops
from toynn._kernels import limits as loops
from toynn._kernels.base.cpu import PAIRS_NEED
from toynn.cli import main
from toynn.testing import limits, lora_step, roofline, steps
from toynn.testing.cases import CASES
from toynn.testing.limits import Limits, Rates
from toynn.testing.scaling import Call, Launch, Machine, by_op, simulate

GIGA = 10**9
SMALL, LARGE = 2**20, 2**28


@pytest.fixture(autouse=True)
def as_before():
    precision, threads = toynn.get_float32_matmul_precision(), toynn.get_num_threads()
    yield
    toynn.set_float32_matmul_precision(precision)
    toynn.set_num_threads(threads)


@pytest.fixture
def machine(monkeypatch):
    """Two threads of round rates, in place of those of this machine."""
    one = Rates(100e9, 200e9, {SMALL: {"read": 90e9, "triad": 50e9}, LARGE: {"read": 10e9}})
    two = Rates(200e9, 400e9, {SMALL: {"read": 180e9, "triad": 100e9}, LARGE: {"read": 15e9}})
    measured = Limits(2, one, two)
    monkeypatch.setattr(limits, "measure", lambda n_threads: measured)
    return measured


# -- The loops -------------------------------------------------------------------------------------


@pytest.mark.kernels
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_multiply_adds_are_done_and_counted(n_threads):
    """s starts at 0, 1, .. chains - 1, in each lane; every round doubles it and adds 3."""
    flops, start = loops.multiply_adds(0, n_threads=n_threads)
    assert flops == 0
    flops, total = loops.multiply_adds(5, 2, 3, n_threads)
    sums = flops // 10  # two flops a round for each
    assert total == 32 * start + 3 * 31 * sums
    chains = 1 + 2 * start / sums  # the mean of 0 .. chains - 1 is (chains - 1) / 2
    assert chains in (12, 24) and sums % (n_threads * chains) == 0


@pytest.mark.kernels
@pytest.mark.parametrize("n_threads", [1, 3])
def test_multiply_pairs_are_done_and_counted(n_threads):
    if not loops.has_pairs():
        with pytest.raises(ValueError, match=f"needs {PAIRS_NEED}"):
            loops.multiply_pairs(1)
        return
    flops, total = loops.multiply_pairs(7, n_threads)
    _, start = loops.multiply_pairs(0, n_threads)
    assert total == start + flops / 2  # each product is one more


@pytest.mark.kernels
@pytest.mark.parametrize("n_threads", [1, 3])
def test_multiply_tiles_are_done_and_counted(n_threads):
    if not loops.has_tiles():
        with pytest.raises(ValueError, match="needs the ISA level amx"):
            loops.multiply_tiles(1)
        return
    flops, total = loops.multiply_tiles(7, n_threads)
    assert total == flops / 2 == 7 * n_threads * 4 * 16 * 16 * 32


@pytest.mark.kernels
@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 15, 1000, 70_001])
def test_memory_is_read_and_written(n, n_threads):
    x, a, b = np.random.default_rng(0).integers(0, 8, (3, n)).astype(np.float32)
    y = a.copy()
    nbytes, total = loops.read(x, 3, n_threads)
    assert (nbytes, total) == (12 * n, 3 * x.sum(dtype=float))
    assert loops.update(y, x, 3, n_threads) == 36 * n
    np.testing.assert_array_equal(y, a + 3 * x)
    assert loops.triad(y, a, b, 2, n_threads) == 24 * n
    np.testing.assert_array_equal(y, a + 2 * b)


@pytest.mark.kernels
def test_loops_refuse():
    x, y = np.zeros(3, np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match=r"limits.update: x \(3,\) needs y \(3,\); got y \(4,\)"):
        loops.update(y, x)
    with pytest.raises(ValueError, match=r"limits.triad: a \(3,\) needs y \(3,\), b \(3,\)"):
        loops.triad(x, x, y)
    with pytest.raises(ValueError, match=r"limits.read: n_threads must be"):
        loops.read(x, 1, 0)


def test_measuring():
    measured = limits.measure(2, 0.0, (2**16, 2**18))
    for rates in (measured.one, measured.all):
        assert rates.float32 > 0 and (rates.bfloat16 > 0) == loops.has_pairs()
        assert [*rates.memory] == [2**16, 2**18]
        assert all([*rates.memory[size]] == ["read", "update", "triad"] for size in rates.memory)
    assert limits.measure(1, 0.0, (2**16,)).all.memory.keys() == {2**16}


# -- What binds ------------------------------------------------------------------------------------


def test_the_larger_of_two_times_binds(machine):
    assert machine.bound(100 * GIGA, 1, 1) == (1.0, "float32")
    assert machine.bound(100 * GIGA, 1, 2) == (0.5, "float32")
    assert machine.bound(100 * GIGA, 1, 1, precision="medium") == (0.5, "bfloat16")
    assert machine.bound(1, 10 * GIGA, 1) == (1.0, "memory")


def test_bytes_are_held_against_the_memory_that_they_fit_in(machine):
    assert machine.one.memory_for(SMALL) == 90e9
    assert machine.one.memory_for(SMALL + 1) == machine.one.memory_for(2**40) == 10e9
    assert machine.bound(1, 9 * SMALL, 1, calls=9).seconds == pytest.approx(9 * SMALL / 90e9)


def test_products_of_parts_in_tiles():
    """Six products of bfloat16 for one of floats, three, or one: if that is faster."""
    rates = Rates(100e9, 200e9, {SMALL: {"read": 1e9}}, tiles=900e9)
    bound = partial(Limits(1, rates, rates).bound, 900 * GIGA, 1, 1)
    assert bound() == (9, "float32")
    assert bound(precision="highest") == (6, "tiles")
    assert bound(precision="high") == (3, "tiles")
    assert bound(precision="medium") == (1, "tiles")
    slow = replace(rates, tiles=150e9)
    assert Limits(1, slow, slow).bound(GIGA, 1, 1, precision="high").limit == "float32"
    quads = bound(precision="int8")  # four terms where float32 takes one
    assert (quads.limit, quads.seconds) == ("int8", 900 * GIGA / 400e9)


def test_threads_in_between(machine):
    """Rates grow with the threads, up to that of all."""
    four = Limits(4, machine.one, machine.all)
    assert [four.bound(100 * GIGA, 1, n).seconds for n in (1, 2, 3, 4)] == [1, 0.5, 0.5, 0.5]


def test_without_pairs_rough_is_float32():
    rates = Rates(100e9, 0.0, {SMALL: {"read": 1e9}})
    assert Limits(1, rates, rates).bound(100 * GIGA, 1, 1, precision="medium").limit == "float32"


def test_a_wrong_kernel_is_not_timed(machine, monkeypatch):
    monkeypatch.setattr(roofline, "times", lambda *_: pytest.fail("timed"))
    monkeypatch.setattr(roofline, "invoke", lambda op, call, n: {n: 0 for n in call.expected})
    with pytest.raises(AssertionError, match=r"gelu.forward: y is off by"):
        next(roofline.kernel_rows(["gelu"], machine))


@pytest.mark.parametrize(("n", "n_threads"), [(64, 1), (2**20, 2)])
def test_a_call_gets_the_threads_that_it_is_worth(n, n_threads, machine, monkeypatch):
    shape = {"n": n, "exact": 0}
    monkeypatch.setitem(CASES, "gelu", replace(CASES["gelu"], bench={"one": shape}))
    assert {row.threads for row in roofline.kernel_rows(["gelu"], machine)} == {n_threads}


@pytest.mark.parametrize(
    ("op", "precision", "limit"),
    [
        ("matmul", "highest", "float32"),
        ("matmul", "medium", "bfloat16"),
        ("gelu", "medium", "float32"),
        ("attention", "medium", "bfloat16 float32"),  # backward_sinks takes none
        ("random", "medium", "memory"),  # functions without a signature
    ],
)
def test_a_precision_is_for_the_entries_that_take_one(op, precision, limit, machine, monkeypatch):
    quick = Rates(1e9, 2e9, {LARGE: {"read": 1e15}})  # memory never binds
    sinks = {"B": 1, "T": 40, "H": 2, "KV": 1, "D": 8, "causal": 1, "sinks": True}
    shapes = {
        "matmul": {"M": 40, "N": 1000, "K": 513},
        "gelu": {"n": 64, "exact": 0},
        "attention": next(iter(CASES["attention"].bench.values())) | sinks,
        "random": next(iter(CASES["random"].shapes)),
    }
    monkeypatch.setitem(CASES, op, replace(CASES[op], bench={"one": shapes[op]}))
    rows = roofline.kernel_rows([op], Limits(2, quick, quick), precision)
    assert {row.limit for row in rows} == set(limit.split())


# -- The command -----------------------------------------------------------------------------------


def test_a_table_of_one_kernel(machine, capsys, tmp_path):
    words = ["bench", "--only", "silu", "--threads", "2", "--json", str(tmp_path / "b.json")]
    assert main(words) == 0
    out = capsys.readouterr().out
    for line in ("multiply-adds in float32, GFLOP/s", "memory, 1 MB: read", "memory, 256 MB: read"):
        assert line in out
    assert out.count("silu.") == 2 and "memory" in out.splitlines()[-1]
    report = json.loads((tmp_path / "b.json").read_text())
    assert report["limits"]["one"]["float32"] == 100e9
    assert [row["kernel"] for row in report["kernels"]] == ["silu.forward", "silu.backward"]
    assert report["config"]["ISA level in use"] in out


def test_a_report_to_paste(machine, capsys, monkeypatch, tmp_path):
    """This CPU and build, its limits, and some shapes of some kernels, in highest and medium."""
    monkeypatch.setattr("toynn.cli.bench.SHAPES", ("tiny_attn", "gpt2_tiny"))
    assert main(["bench", "--paste", "--threads", "2", "--json", str(tmp_path / "b.json")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("```\n") and out.endswith("```\n") and out.count("```") == 2
    told = toynn.backends.config.describe()
    for name in ("processor", "ISA level in use", "medium multiplies in", "threads"):
        assert f"{name:24} {told[name]}\n" in out
    for line in ("multiply-adds in float32, GFLOP/s", "kernel, highest", "kernel, medium"):
        assert line in out
    rows = json.loads((tmp_path / "b.json").read_text())["kernels"]
    products = [f"matmul.{entry}" for entry in ("forward", "backward_input", "backward_weight")]
    assert {row["kernel"] for row in rows} == {*products, "adamw.step"}
    assert {row["shape"] for row in rows} == {"tiny_attn", "gpt2_tiny"}


def test_a_run_that_fails_leaves_the_figures_of_the_one_before(monkeypatch, tmp_path):
    def stopped(n_threads):
        raise KeyboardInterrupt

    monkeypatch.setattr(limits, "measure", stopped)
    (tmp_path / "b.json").write_text("{}")
    assert main(["bench", "--json", str(tmp_path / "b.json")]) == 130
    assert (tmp_path / "b.json").read_text() == "{}"


def test_steps_by_kernel(machine, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("toynn.cli.bench.STEPS", ("d64_L2_T32_B1",))
    monkeypatch.setattr("toynn.cli.bench.ROUNDS", 1)
    small = lora_step.Shape(64, 1, 2, 1, 64, 96, True, 16)
    monkeypatch.setitem(lora_step.SHAPES, "smollm2_135m_T256", small)
    words = ["bench", "--steps", "--precision", "medium", "--json", str(tmp_path / "b.json")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "d64_L2_T32_B1: toynn, ms a step" in out and "torch" not in out
    assert "smollm2_135m_T256: toynn, ms a step" in out and "the goal is 1.8 at most" in out
    step, _ = json.loads((tmp_path / "b.json").read_text())["steps"]
    assert {"matmul.forward", "attention.backward", "adamw.step"} <= {
        row["kernel"] for row in step["kernels"]
    }
    work = sum(row["flops"] for row in step["kernels"])
    tape = steps.gpt2_recipe(steps.SHAPES["d64_L2_T32_B1"]).engine.session.tape
    assert work == sum(node.flops for node in tape.nodes)
    assert step["goal"] is None and step["roofline"] > 0


def test_a_roofline_is_the_sum_of_the_limits_of_nodes(machine):
    session = Session()
    x, w = session.input("x", (64, 96)), session.parameter("w", (32, 96))
    y = ops.silu(session, ops.linear(session, x, w))
    session.set_loss(ops.cross_entropy(session, y, session.input("labels", (64,), "i32")))
    nodes = session.tape.nodes
    for node in nodes:
        assert node.nbytes < SMALL
    expected = sum(max(node.flops / 200e9, node.nbytes / 180e9) for node in nodes)
    assert roofline.least_seconds(session, machine) == pytest.approx(expected)
    slow = replace(
        machine, all=replace(machine.all, float32=1e9), one=Rates(1e9, 0, {1: {"r": 1e15}})
    )
    slow = replace(slow, n_threads=1)
    flops = sum(node.flops for node in nodes)
    assert roofline.least_seconds(session, slow) == pytest.approx(flops / 1e9)


# -- Scaling ---------------------------------------------------------------------------------------


def parts_of(lost):
    return {name: value for name, value in asdict(lost).items() if value}


def test_a_launch_lasts_as_long_as_its_last_shares():
    """Serial 10, then a call whose shares take 40 and 20, on cores that are called in 1 + 2."""
    launch = Launch("op", 100, 10, (Call((40, 20)),))
    assert launch.work == 70
    losses = simulate(launch, 60, Machine(2, (1.0, 2.0)))
    expected = {"ideal": 30, "serial": 5, "uneven": 10, "hand_over": 3, "growth": 5}
    assert parts_of(losses) == expected and losses.time == 10 + 3 + 40
    slow = simulate(launch, 60, Machine(2, (1.0, 2.0), bandwidth=1e9))
    assert parts_of(slow) == expected | {"memory": 47} and slow.time == 100
    assert simulate(Launch("op", 0, 10), 10, Machine(5)).time == 10
    assert simulate(Launch("op", 0, 0, (Call((8,)),)), 8, Machine(4)).uneven == 6
    three = Launch("op", 0, 0, (Call((8, 8, 8)),))
    assert parts_of(simulate(three, 24, Machine(3, (1.0, 2.0)))) == {"ideal": 8, "hand_over": 5}


def test_who_is_free_first_takes_the_next_piece():
    call = Call((10, 30), (10, 10, 10))
    assert Machine(2).last(call) == 40
    assert Machine(2, slow=1, pace=0.5).last(call) == 60
    assert Machine(2, slow=2, pace=0.5).last(call) == 80
    assert Machine(4, slow=2, pace=0.25).rate == 2.5


def test_losses_of_ops_add_up_to_the_time():
    one = [Launch("a", 0, 40), Launch("b", 0, 2), Launch("a", 0, 8)]
    four = [
        Launch("a", 0, 1, (Call((10, 10, 10, 11)),)),
        Launch("b", 0, 2),
        Launch("a", 0, 0, (Call((4, 4)),)),
    ]
    losses = by_op(four, one, Machine(4, (0.0, 0.0)))
    assert [*losses] == ["a", "b"]
    assert [losses["a"].time, losses["b"].time] == [1 + 11 + 4, 2]
    assert losses["a"].ideal == 12 and losses["a"].growth == 0.5
    with pytest.raises(ValueError, match="argument 2 is longer"):
        by_op(four[:2], one, Machine(4))


def test_a_table_of_cores(capsys, monkeypatch, tmp_path):
    """Measured as far as this machine goes, then simulated; a row for each, and for ops."""
    monkeypatch.setattr("toynn.cli._scaling.STEPS", {"small": "d64_L2_T32_B1"})
    monkeypatch.setattr("toynn.cli._scaling.TRIES", 1)
    monkeypatch.setattr("toynn.cli._scaling.TEXTS", 4)
    small = lora_step.Shape(64, 1, 2, 1, 64, 96, True, 96)
    monkeypatch.setitem(lora_step.SHAPES, "smollm2_135m_T256", small)
    monkeypatch.setattr("toynn.cli._scaling.LORA_T", 96)
    toynn.set_num_threads(1)
    file = tmp_path / "b.json"
    words = ["--scaling", "small,lora,generation,tokenizing", "--cores", "4", "--bandwidth", "50"]
    assert main(["bench", *words, "--json", str(file)]) == 0
    assert toynn.get_num_threads() == 1
    out = capsys.readouterr().out
    assert "Memory bandwidth: 50 GB/s in all" in out and "2 cores at half the rate" in out
    parts = json.loads(file.read_text())["scaling"]
    assert [part["part"] for part in parts] == ["small", "lora", "generation", "tokenizing"]
    for part in parts:
        kinds = [(row["cores"], row["kind"]) for row in part["rows"]]
        assert kinds == [(1, "measured"), (4, "simulated")]
    assert {"matmul.forward", "adamw.step"} <= parts[0]["rows"][1]["ops"].keys()
    assert parts[0]["rows"][0]["of_ideal"] == 1


@pytest.mark.slow
def test_compare_adds_pytorch(machine, capsys, monkeypatch):
    pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
    monkeypatch.setattr("toynn.cli.bench.STEPS", ("d64_L2_T32_B1",))
    monkeypatch.setattr("toynn.cli.bench.ROUNDS", 1)
    assert main(["bench", "--compare", "--threads", "1"]) == 0
    assert "d64_L2_T32_B1: torch, ms a step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "gemm"], "--only gemm: no such kernel; expected one of adamw, altup"),
        (["--only", "gelu", "--steps"], "--only is for the table of kernels"),
        (["--paste", "--steps"], "--paste cannot be combined with --only, --steps or --compare"),
        (
            ["--paste", "--only", "gelu"],
            "--paste cannot be combined with --only, --steps or --compare",
        ),
        (
            ["--scaling", "--steps"],
            "--scaling cannot be combined with --only, --steps, --compare, --paste",
        ),
        (["--scaling", "all"], "must be of step, small, lora, lora-1.1b, generation, tokenizing"),
        (["--cores", "2"], "--cores and --bandwidth are for --scaling"),
        (["--scaling", "--cores", "2,x"], "must be comma-separated whole numbers, such as 1,2,16"),
        (["--scaling", "--cores", "0"], "must be numbers from 1 to 64; got '0'"),
        (["--scaling", "--bandwidth", "nan"], "must be a number of gigabytes per second > 0"),
        (["--threads", "0"], "argument --threads: must be a whole number from 1"),
        (
            ["--precision", "low"],
            "argument --precision: must be one of highest, high",
        ),
        (["--json", "no/such/folder/a.json"], "no/such/folder/a.json"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_refusals(words, told, capsys):
    assert main(["bench", *words]) == 2
    assert told in capsys.readouterr().err


def test_compare_without_pytorch(monkeypatch, capsys):
    monkeypatch.setattr("toynn.cli.bench.find_spec", lambda name: None)
    assert main(["bench", "--compare"]) == 2
    assert "bench: --compare needs PyTorch (pip install torch)" in capsys.readouterr().err
