"""The Metal backend end to end: from a session to the device, against the CPU and the reference."""

import gc
import mmap
from dataclasses import replace

import metal_device
import numpy as np
import pytest
from lora_bases import write_base
from small_recipes import RECIPES, SIZES
from tapes import TAPES, Net
from tiny import HP, Tiny

import toynn
from toynn import backends, ops
from toynn.backends.metal import grids
from toynn.errors import BackendError, BackendUnavailable, LifecycleError, NonFiniteError
from toynn.session import Session
from toynn.testing.calls import check
from toynn.testing.cases import CASES
from toynn.testing.launches import OPS, run

pytestmark = pytest.mark.skipif(metal_device.SKIP is not None, reason=str(metal_device.SKIP))

NMSE = 1e-9
CLOSE = 1e-5  # losses

#: How the software device runs; a real one runs in its own way.
MODES = {
    "plain": {},
    "checked": {"checked": 1},
    "no-simdgroups": {"simdgroups": 0, "checked": 1},
    **{f"order-{seed}": {"seed": seed} for seed in (1, 2, 3)},
}


@pytest.fixture
def device():
    """The controls of the software device; afterwards nothing of it is left alive."""
    controls = metal_device.software()
    if controls is None:
        pytest.skip("steers the software device; this one is real")
    gc.collect()
    before = controls.standin_live()
    yield controls
    controls.standin_reset()
    gc.collect()
    assert controls.standin_live() <= before, "objects of the device are not released"


@pytest.fixture(params=MODES)
def mode(request, device):
    for name, value in MODES[request.param].items():
        getattr(device, f"standin_{name}")(value)
    return request.param


def nmse(got, expected):
    got, expected = np.asarray(got, float), np.asarray(expected, float)
    return ((got - expected) ** 2).sum() / max((expected**2).sum(), 1e-30)


# -- Ops, tapes, recipes ---------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_op(op, device):
    """From a launch on: the checker looks at the same calls in test_shaders.py."""
    backend = backends.get("metal")
    for shape in CASES[op].shapes:
        if shape.get("type", 0) not in grids.TYPES:
            continue
        for call in CASES[op].calls(np.random.default_rng(3), **shape):
            check(op, call, run(backend, op, call))
            if call.accumulates:
                more = {key: call.expected[key] + 1 for key in call.accumulates}
                got = run(backend, op, call, accumulate=True)
                check(op, replace(call, expected=more), got)


@pytest.mark.parametrize("name", TAPES)
def test_tape(name, device):
    device.standin_checked(1)
    make, *arguments = TAPES[name]
    results = {}
    for backend in ("reference", "metal"):
        net = Net(backend=backend)
        y = make(net, *arguments)
        s = net.realize(net.loss(y))
        s.max_grad_norm = 0.5
        for _ in range(2):  # micro-batches
            s.run("grads")
        s.run()
        results[backend] = [
            *(s.download(s.tape.loss), s.grad_norm, *map(s.download, net.gradients))
        ]
    for got, expected in zip(results["metal"], results["reference"], strict=True):
        assert nmse(got, expected) < NMSE


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Losses and first gradients of each recipe on the CPU, once."""
    runs = {}

    def train(name):
        if name not in runs:
            recipe, losses = RECIPES[name]("cpu", tmp_path_factory.mktemp("base"))
            runs[name] = losses, recipe.engine.gradients()
        return runs[name]

    return train


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_to_the_losses_of_the_cpu(name, mode, trained, tmp_path):
    expected, gradients = trained(name)
    recipe, losses = RECIPES[name]("metal", tmp_path)
    assert losses[-1] != losses[0]
    np.testing.assert_allclose(losses, expected, rtol=CLOSE)
    metals = recipe.engine.gradients()
    all_of = [np.concatenate([g[key].ravel() for key in gradients]) for g in (metals, gradients)]
    assert nmse(*all_of) < NMSE
    recipe.engine.session.close()


def test_a_cache_is_read_and_written(mode):
    read = {}
    for backend in ("cpu", "metal"):
        engine = toynn.LlamaSeqEngine(backend)
        config = toynn.LlamaConfig(**SIZES | {"context": 80}, n_kv_heads=1)
        engine.realize_for_random_init(config, toynn.RecipeOptions(seed=3))
        decoder, ids = engine.decoder(), np.arange(75) % 61
        read[backend] = [decoder.read(ids[:70]), *(decoder.read(ids[i : i + 1]) for i in (70, 71))]
    for got, expected in zip(read["metal"], read["cpu"], strict=True):
        assert nmse(got, expected) < NMSE


def test_chunks_of_the_loss_and_live_rows(mode):
    losses = []
    for backend in ("cpu", "metal"):
        s = Session(backend)
        w, labels = s.parameter("w", (9, 4)), s.input("labels", (7,), "i32")
        x, hp = s.input("x", (7, 4)), s.input("hp", (7,))
        s.set_loss(ops.linear_cross_entropy(s, x, w, labels, rows=3))
        s.build_backward()
        s.opt_step_adamw(w, s.grad(w), hp)
        s.finalize_weights()
        s.upload(w, np.linspace(-1, 1, 36).reshape(9, 4))
        s.realize()
        s.upload(x, np.eye(7, 4))
        s.upload(hp, HP)
        for kept in ([0, -100, 3, 8, 1, 1, 2], [-100, -100, 3, -100, -100, -100, -100]):
            s.upload(labels, kept)
            for to in ("update", "update", "loss"):
                s.run(to)
                losses.append(float(s.download(s.tape.loss)))
    np.testing.assert_allclose(losses[:6], losses[6:], rtol=CLOSE)


# -- How a step is asked for -----------------------------------------------------------------------


def test_a_step_is_one_commit(device):
    recipe = toynn.recipes.GPT2(backend="metal")
    recipe.realize(toynn.GPT2Config(11, 8, 2, 16, 1, 4), toynn.RecipeOptions())
    ids = np.arange(4)
    for step in range(2):
        before = device.standin_commits()
        recipe.step(ids, None, ids, HP, step == 0)
        assert device.standin_commits() - before == 1
    recipe.engine.session.close()


def test_nothing_runs_until_somebody_looks(device):
    tiny, eager = Tiny(backend="metal"), Tiny()
    before = device.standin_dispatches()
    for _ in range(40):  # more than a device takes at once
        tiny.s.run("grads")
        eager.s.run("grads")
    assert device.standin_commits() >= 40 and device.standin_dispatches() > before
    tiny.s.run()
    eager.s.run()
    for a, b in ((tiny.w, eager.w), (tiny.wte, eager.wte)):
        assert nmse(tiny.s.download(a), eager.s.download(b)) < NMSE
    assert "shared out by work" in str(tiny.s.profile())
    rows = {row.op: row for row in tiny.s.profile().rows}
    assert rows["adamw.step"].calls == 2 and rows["matmul.forward"].ms > 0


def test_a_mapped_file_is_shared_and_an_array_is_copied(device, tmp_path):
    path = tmp_path / "base.gguf"
    write_base(path, "gpt2")
    recipe = toynn.recipes.LoRA(backend="metal")
    recipe.realize(path, None, 2, toynn.RecipeOptions(t_seq=8), targets="all-linear")
    session = recipe.engine.session
    assert session.backend.copied == 0
    session.close()
    s = Session("metal")
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    for start, copied in ((0, 0), (64, 384)):
        table = np.frombuffer(pages, np.uint8)[start : start + 384].view(np.float32).reshape(8, 12)
        buffer = s.backend.wrap(table.reshape(-1).view(np.uint8))
        assert np.array_equal(buffer.download(0, (8, 12), "f32"), table)
        assert s.backend.copied == copied


def test_memory_is_what_the_program_takes(device):
    tiny = Tiny(backend="metal")
    told = tiny.s.memory()
    tiny.s.run()
    assert tiny.s.memory().activations == told.activations > 0


def test_the_device_decides_on_the_precision_of_auto(device):
    chosen, why = toynn.automatic_precision("metal")
    assert chosen == "highest" and backends.get("metal").limits["name"] in why


@pytest.mark.parametrize("backend", ["metal"])
def test_a_buffer_keeps_to_its_bounds(backend):
    buffer = backends.get(backend).allocate(64)
    buffer.upload(56, np.array([1, 2], np.float32))
    assert buffer.download(60, (), "f32") == 2
    for offset, n in ((60, 2), (-4, 1), (64, 1), (0, 17)):
        with pytest.raises(ValueError, match="is not within 64 bytes"):
            buffer.upload(offset, np.zeros(n, np.float32))


# -- What goes wrong -------------------------------------------------------------------------------


def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was(device):
    tiny = Tiny(backend="metal")
    tiny.s.run()
    tiny.s.upload(tiny.w, np.full(tiny.w.shape, 1e38))
    before = tiny.state()
    with pytest.raises(NonFiniteError, match="first bad gradient"):
        tiny.s.run()
    assert all(np.array_equal(a, b) for a, b in zip(before, tiny.state(), strict=True))


def updated(session):
    """Copies of the weights and moments that a step of a session overwrites."""
    nodes = [node for node in session.tape.nodes if node.op.kernel == "adamw.step"]
    return [session.download(node[name]) for node in nodes for name in "wmv"]


def same(before, after):
    return all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_device_that_fails_in_a_step_leaves_the_weights_as_they_were(device, seed):
    """Before any of the step's dispatches, and with some threads of it done; in four orders."""
    device.standin_seed(seed)
    tiny, twin = Tiny(backend="metal"), Tiny(backend="metal")
    for net in (tiny, twin):
        start = device.standin_dispatches()
        net.s.run()
    in_a_step = device.standin_dispatches() - start
    before = updated(tiny.s)
    assert in_a_step > 10 and len(before) == 6
    for failing in range(in_a_step):
        for threads in (0, 1, 40, 70):
            device.standin_fail_after(failing)
            device.standin_fail_inside(threads)
            with pytest.raises(BackendError, match=r"middle of a run: .*Insufficient Memory"):
                tiny.s.run()
            assert same(before, updated(tiny.s)), (failing, threads)
            with pytest.raises(LifecycleError, match=r"before run\(\)"):
                tiny.s.download(tiny.loss)
    for net in (tiny, twin):
        net.s.run()  # the session goes on, to the same bits
    assert same(updated(twin.s), updated(tiny.s)) and not same(before, updated(tiny.s))


def test_an_update_behind_a_run_that_failed_is_put_back(device):
    """It is on the queue when the other one fails, and runs on gradients that are none."""
    tiny = Tiny(backend="metal")
    tiny.s.run()
    before = updated(tiny.s)
    program = tiny.s._compiled[tiny.s.tape].program
    device.standin_fail_after(3)
    program.run("FB", False)
    program.run("FBU", True)
    with pytest.raises(BackendError, match="middle of a run"):
        tiny.s.backend.wait()
    assert same(before, updated(tiny.s))


def test_there_is_one_undo_log_for_one_update(device):
    """A second update waits for the first: it would copy what that has left half done."""
    tiny = Tiny(backend="metal")
    start = device.standin_dispatches()
    tiny.s.run()
    before, program = updated(tiny.s), tiny.s._compiled[tiny.s.tape].program
    device.standin_fail_after(device.standin_dispatches() - start - 1)
    device.standin_fail_inside(40)
    with pytest.raises(BackendError, match="middle of a run"):
        for _ in range(2):
            program.run("FBU", False)
    assert same(before, updated(tiny.s))


def test_micro_batches_of_a_step_that_failed_are_forgotten(device):
    tiny, twin = Tiny(backend="metal"), Tiny(backend="metal")
    device.standin_fail_after(4)
    tiny.s.run("grads")
    with pytest.raises(BackendError, match="middle of a run"):
        tiny.s.download(tiny.w)
    assert not tiny.s.pending
    for net in (tiny, twin):
        net.s.run()
    assert same(updated(twin.s), updated(tiny.s))


def test_what_an_undo_log_costs(device, monkeypatch):
    """Three dispatches in a step's one commit; no memory: it is stored where activations were."""
    costs = []
    for undo_logs in (False, True):
        monkeypatch.setattr("toynn.backends.metal.backend.Metal.undo_logs", undo_logs)
        recipe = toynn.recipes.GPT2(backend="metal")
        recipe.realize(toynn.GPT2Config(61, 16, 2, 32, 2, 32), toynn.RecipeOptions(t_batch=16))
        session, ids = recipe.engine.session, np.arange(512) % 61
        commits, dispatches = device.standin_commits(), device.standin_dispatches()
        recipe.step(ids, None, ids, HP, True)
        assert device.standin_commits() - commits == 1
        memory, scratch = session.memory(), session._compiled[session.tape].program.scratch
        costs.append((memory.activations - scratch, device.standin_dispatches() - dispatches))
        session.close()
    (arena, without), (with_undo_log, dispatches) = costs
    assert arena == with_undo_log > 1.5 * memory.moments and dispatches == without + 3


def test_a_buffer_that_is_too_long(device):
    device.standin_limit(1 << 16)
    with pytest.raises(BackendError, match=r"a buffer of 70016 bytes.* at most 65536 in one; use"):
        backends.get("metal").allocate(70000)


def test_a_shader_that_does_not_compile(device, monkeypatch):
    from toynn.backends.metal import device as module

    text = "kernel void gelu_forward(device float* y [[buffer(0)]]) { y[0] = 1 }"
    monkeypatch.setattr(module, "source", lambda op, simdgroups: text)
    call = CASES["gelu"].calls(np.random.default_rng(0), **CASES["gelu"].shapes[1])[0]
    with pytest.raises(BackendError, match=r"newLibraryWithSource: .*expected ';'"):
        run(backends.get("metal"), "gelu", call, CASES["gelu"].shapes[1])


def test_blocks_that_no_shader_reads_are_refused_when_compiled(device, monkeypatch):
    from toynn.backends.metal import program

    monkeypatch.setattr(program, "TYPES", frozenset((0,)))
    s = Session("metal")
    blocks = np.zeros(66, np.uint8)
    w = s.mapped("w", blocks, "iq2_xxs", (1, 256))
    s.output(ops.linear(s, s.input("x", (1, 256)), w))
    s.finalize_weights()
    with pytest.raises(BackendUnavailable, match=r"matmul\.forward.*iq2_xxs"):
        s.realize()


def test_without_a_device_it_says_so(device):
    device.standin_absent(1)
    assert "metal" not in backends.available()
    with pytest.raises(BackendUnavailable, match=r"no Metal device.*backend=\"cpu\""):
        Session("metal")


def test_a_function_of_numpy_is_refused():
    with Session(backend="metal") as s:
        x, w = s.input("x", (2,)), s.parameter("w", (2,))
        s.set_loss(ops.numpy(s, np.sin, None, [x], (2,)).sum() + w.sum())
        s.build_backward()
        s.finalize_weights()
        with pytest.raises(BackendUnavailable, match=r"'metal': numpy.sin is a function of NumPy"):
            s.realize()
