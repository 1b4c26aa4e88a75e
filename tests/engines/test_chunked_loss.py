"""The head's loss a chunk of rows at a time: what is known of the whole, in less memory."""

import numpy as np
import pytest
from llamas import draw, make, shake
from lora_bases import draw as draw_lora
from lora_bases import make as make_lora
from lora_bases import write_base
from tapes import C, N, Net, V

from toynn import AdamW, GPT2Config, RecipeOptions, Session, ops
from toynn.errors import ConfigError, LabelError, ShapeError
from toynn.ops import loss as head
from toynn.recipes import GPT2
from toynn.testing import gradcheck

IGNORED = -100
LABELS = {
    "all": [3, 0, 6, 2, 2, 5],
    "some": [3, IGNORED, 6, IGNORED, 2, 5],
    "a-chunk-ignored": [3, IGNORED, IGNORED, IGNORED, IGNORED, 5],
}


def trained(net):
    return net.activation(), net.parameter(V, C), net.parameter(V)


def parameters(net):
    return net.parameter(N, C), net.parameter(V, C), None


def frozen(net):
    return net.activation(), net.constant(V, C), net.constant(V)


def frozen_input(net):
    return net.input(N, C), net.parameter(V, C), net.parameter(V)


def computed(net):
    """The rows, and the head, come from the same parameter."""
    w = net.parameter(V, C)
    x = ops.embedding(net.s, w, net.integers(N, V))
    return x, ops.linear(net.s, w, net.parameter(C, C)), None


def tied(net):
    """The rows are used elsewhere too, and so is the head."""
    w = net.parameter(V, C)
    x = ops.silu(net.s, ops.embedding(net.s, w, net.integers(N, V)))
    return ops.add(net.s, x, ops.linear(net.s, x, net.parameter(C, C))), w, None


HEADS = (trained, parameters, frozen, frozen_input, computed, tied)


def tape(build, labels="all", rows=2, *, whole=False, then=None, cap=0.0, **session):
    """A realized tape, its loss in chunks; or that of all logits at once."""
    net = Net(**session)
    x, w, b = build(net)
    labelled = net.declare(net.s.input("labels", (N,), "i32"), np.array(LABELS[labels]))
    if whole:
        logits = ops.linear(net.s, x, w, b)
        logits = ops.softcap(net.s, logits, cap) if cap else logits
        loss = ops.cross_entropy(net.s, logits, labelled)
    else:
        loss = ops.linear_cross_entropy(net.s, x, w, labelled, b, rows, cap)
    net.realize(loss if then is None else then(net.s, loss))
    return net


def result(net, to="grads", weights=(1.0,)):
    for weight in weights:
        net.s.run(to, weight=weight)
    return [net.s.download(t) for t in (net.s.tape.loss, *net.gradients)]


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("rows", [2, 4, 100])
@pytest.mark.parametrize("build", HEADS)
def test_loss_and_gradients(build, rows, labels):
    chunked, whole = (tape(build, labels, rows, whole=whole) for whole in (False, True))
    for weights in ((1.0,), (3.0, 2.0)):  # a micro-batch, and two more that are added to it
        pairs = zip(result(chunked, weights=weights), result(whole, weights=weights), strict=True)
        for got, expected in pairs:
            np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)
    assert gradcheck(chunked.s)


@pytest.mark.parametrize("build", HEADS)
def test_logits_with_a_cap(build):
    chunked, whole = (tape(build, rows=2, whole=whole, cap=0.8) for whole in (False, True))
    for weights in ((1.0,), (3.0, 2.0)):
        pairs = zip(result(chunked, weights=weights), result(whole, weights=weights), strict=True)
        for got, expected in pairs:
            np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)
    assert gradcheck(chunked.s)
    assert result(chunked, "loss")[0] == result(chunked, "grads")[0]


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("rows", [1, 4])
def test_the_loss_has_the_same_bits_wherever_a_run_stops(rows, labels):
    s = tape(trained, labels, rows).s
    losses = []
    for to in ("grads", "loss", "update", "loss"):  # the update moves no weight
        s.run(to)
        losses.append(s.download(s.tape.loss).tobytes())
    assert len(set(losses)) == 1


def test_each_product_runs_once_and_no_gradient_is_touched_for_the_loss():
    net = tape(trained, rows=2)
    s, nodes = net.s, net.s.tape.nodes
    assert [n.phase for n in nodes] == sorted((n.phase for n in nodes), key="FEBU".index)
    runs = []
    for to in ("loss", "grads", "update"):
        before = [row.calls for row in s.profile().rows if row.op == "matmul.forward"]
        s.run(to)
        after = [row.calls for row in s.profile().rows if row.op == "matmul.forward"]
        runs.append(after[0] - before[0])
    assert runs == [4, 4, 4]  # that before the head, and three chunks
    gradients = [s.download(gradient).tobytes() for gradient in net.gradients]
    s.run("loss")
    assert [s.download(gradient).tobytes() for gradient in net.gradients] == gradients


def test_the_tape_says_what_is_for_evaluation_alone():
    s = tape(trained, rows=3).s
    kernels = {
        segment: [n.op.kernel for n in s.tape.nodes if n.phase == segment] for segment in "EB"
    }
    chunk = ["matmul.forward", "chunked_cross_entropy.forward"]
    assert kernels["E"] == [*chunk, *chunk, "chunked_cross_entropy.mean"]
    chunk = ["matmul.forward", "chunked_cross_entropy.backward", "matmul.backward_weight"]
    chunk += ["elementwise.bias_backward", "matmul.backward_input"]
    assert kernels["B"][:11] == [*chunk, *chunk, "chunked_cross_entropy.mean"]
    logits = {n.outputs[0].shape for n in s.tape.nodes if "linear.4" in n.outputs[0].name}
    assert logits == {(3, V)}


def test_what_else_reads_the_loss_has_it_in_every_run():
    read = []

    def doubled(s, loss):
        read.append(s.output(ops.scale(s, loss, 2.0)))
        return loss

    s = tape(trained, rows=2, then=doubled).s
    for to in ("loss", "grads", "update"):
        s.run(to)
        s.upload(s.tape.inputs["labels"], np.roll(LABELS["all"], len(to)))  # another loss each time
        assert s.download(read[0]) == 2 * s.download(s.tape.loss)


@pytest.mark.parametrize("rows", [2, 4])
def test_a_loss_that_is_computed_on_keeps_its_forward(rows):
    def scaled(s, loss):
        return ops.scale(s, loss, 0.5)

    net, half = tape(trained, rows=rows), tape(trained, rows=rows, then=scaled)
    assert not [n for n in half.s.tape.nodes if n.phase == "E"]
    for got, expected in zip(result(half), result(net), strict=True):
        np.testing.assert_allclose(got, expected / 2, rtol=1e-6, atol=1e-7)


def test_within_a_block_that_is_recomputed():
    net = Net(checkpointing=True)
    labels = net.declare(net.s.input("labels", (N,), "i32"), np.array(LABELS["some"]))
    with net.s.tape.block("all"):
        x, w, b = trained(net)
        loss = ops.linear_cross_entropy(net.s, ops.silu(net.s, x), w, labels, b, 2)
    net.realize(loss)
    assert gradcheck(net.s)


def test_evaluation_alone_needs_no_backward():
    expected = result(tape(trained, "some", whole=True))[0]
    net = Net()
    x, w, b = trained(net)
    labels = net.declare(net.s.input("labels", (N,), "i32"), np.array(LABELS["some"]))
    loss = ops.linear_cross_entropy(net.s, x, w, labels, b, 4)
    net.s.set_loss(loss)
    net.s.finalize_weights()
    for tensor in (w, b, net.parameters()[0]):
        net.s.upload(tensor, net.values[tensor])
    net.s.realize()
    for tensor in net.s.tape.inputs.values():
        net.s.upload(tensor, net.values[tensor])
    for to in ("loss", "update"):
        net.s.run(to)
        assert net.s.download(loss) == pytest.approx(expected, rel=1e-6)


def test_threads_give_the_same_bits():
    results = []
    for n_threads in (1, 2, 3):
        s = Session(n_threads=n_threads)
        x, w = s.parameter("x", (600, 40)), s.parameter("w", (3000, 40))
        labels = s.input("labels", (600,), "i32")
        s.set_loss(ops.linear_cross_entropy(s, x, w, labels, rows=256))
        s.build_backward()
        s.finalize_weights()
        rng = np.random.default_rng(8)
        for tensor in (x, w):
            s.upload(tensor, rng.standard_normal(tensor.shape))
        s.realize()
        s.upload(labels, rng.integers(0, 3000, 600))
        s.run("grads")
        results.append([s.download(t).tobytes() for t in (s.tape.loss, s.grad(x), s.grad(w))])
    assert results[0] == results[1] == results[2]


def test_memory_is_that_of_one_chunk():
    activations = {}
    for rows in (256, 1024):
        s = Session()
        x, w = s.parameter("x", (1024, 8)), s.parameter("w", (5000, 8))
        loss = ops.linear_cross_entropy(s, x, w, s.input("labels", (1024,), "i32"), rows=rows)
        s.set_loss(loss)
        s.build_backward()
        activations[rows] = s.memory().activations
    assert activations[1024] - activations[256] == pytest.approx(768 * 5000 * 4, rel=0.01)


def test_what_is_refused():
    s = Session()
    x, w, b = s.parameter("x", (N, C)), s.parameter("w", (V, C)), s.parameter("b", (V,))
    labels = s.input("labels", (N,), "i32")
    for wrong in (
        lambda: ops.linear_cross_entropy(s, x, s.parameter("w2", (V, C + 1)), labels),
        lambda: ops.linear_cross_entropy(s, x, w, labels, w),
        lambda: ops.linear_cross_entropy(s, x, w, s.input("short", (N - 1,), "i32")),
        lambda: ops.linear_cross_entropy(s, x, w, s.input("dense", (N, V))),
    ):
        with pytest.raises(ShapeError, match="linear_cross_entropy: needs"):
            wrong()
    with pytest.raises(ConfigError, match="rows must be at least 1; got 0"):
        ops.linear_cross_entropy(s, x, w, labels, b, 0)
    net = tape(trained)
    labels = net.s.tape.inputs["labels"]
    with pytest.raises(LabelError, match="all 6 rows are ignored"):
        net.s.upload(labels, np.full(N, IGNORED))
    with pytest.raises(LabelError, match="row 1 is 7"):
        net.s.upload(labels, [0, 7, 0, 0, 0, 0])


# -- Engines ---------------------------------------------------------------------------------------


@pytest.fixture
def chunks(monkeypatch):
    """Have every head in chunks of at most 5 rows."""
    monkeypatch.setattr(head, "WHOLE", 0)
    monkeypatch.setattr(head, "ROWS", 5)


def gpt2(**options):
    recipe = GPT2()
    opts = RecipeOptions(t_seq=13, t_batch=2, seed=5, **options)
    recipe.realize(GPT2Config(61, 24, 6, 40, 2, 16), opts)
    return recipe


def bfloat16(**options):
    """Rounded weights, but products in floats: medium rounds them or not, by the number of rows."""
    known, highest = RecipeOptions.of_session, {"matmul_precision": "highest"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecipeOptions, "of_session", lambda opts: known(opts) | highest)
        return make("llama-untied", 2, weight_dtype="bf16", **options)


MODELS = {
    "gpt2": gpt2,
    "llama-tied": lambda **options: make("llama", 2, **options),
    "llama-untied": lambda **options: make("llama-untied", 2, **options),
    "llama-bf16": bfloat16,
    "llama-lens": lambda **options: make("llama-lens", 2, **options),
}


def three_steps(recipe):
    """All that steps of two micro-batches compute, and whether evaluation agrees."""
    rng, engine, optimizer = np.random.default_rng(3), recipe.engine, AdamW.for_lora()
    shake(engine, rng)
    results = []
    for k in range(3):
        ids, labels = draw(rng, 2)
        results.append(engine.accumulate(ids, None, labels))
        ids, labels = draw(rng, 2)
        before = engine.evaluate(ids, None, labels)
        results.append(engine.step(ids, None, labels, optimizer.hp_for_step(k), k == 0))
        assert results[-1] == before
        results += engine.gradients().values()
    return [*results, engine.logits(ids)]  # the bias of keys, whose gradient is noise, drops out


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_model_trains_as_with_all_logits(model, checkpointing, monkeypatch, chunks):
    chunked = MODELS[model](checkpointing=checkpointing)
    assert chunked.engine.t_logits is None
    monkeypatch.undo()
    whole = MODELS[model](checkpointing=checkpointing)
    assert whole.engine.t_logits.shape == (26, 61)
    for got, expected in zip(three_steps(chunked), three_steps(whole), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


def test_dense_labels_have_all_logits_at_once(chunks):
    recipe, rng = gpt2(), np.random.default_rng(1)
    ids, labels = draw(rng, 2, ignored=False)
    dense = np.eye(61)[labels]
    expected = recipe.evaluate(ids, None, labels)
    assert recipe.evaluate(ids, None, dense) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("targets", ["q", ["q", "head"]])
def test_a_frozen_head_and_one_with_an_adapter(targets, tmp_path, monkeypatch, chunks):
    write_base(tmp_path / "base.gguf", "llama", "Q8_0", untied=True, d_model=32, d_ff=64, n_heads=4)
    recipes = [make_lora(tmp_path / "base.gguf", targets=targets, dropout=0.2)]
    monkeypatch.undo()
    recipes.append(make_lora(tmp_path / "base.gguf", targets=targets, dropout=0.2))
    kernels = {node.op.kernel for node in recipes[0].engine.session.tape.nodes}
    assert "chunked_cross_entropy.backward" in kernels
    ids, labels = draw_lora()
    first, second = (
        [recipe.step(ids, None, labels, AdamW.for_lora().hp_for_step(k), k == 0) for k in range(3)]
        for recipe in recipes
    )
    assert first == pytest.approx(second, rel=1e-6)
    pairs = (recipe.engine.gradients().values() for recipe in recipes)
    for got, expected in zip(*pairs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-7)


def with_teacher(weight, rows=2, beta=0.3, temperature=1.5, whole=False):
    """A tape with a teacher of two tokens a row; or without one."""
    net = Net()
    x, w, b = trained(net)
    labelled = net.declare(net.s.input("labels", (N,), "i32"), np.array(LABELS["some"]))
    random = np.random.default_rng(4)
    p = random.dirichlet(np.ones(3), N)
    ids = np.array([random.permutation(V)[:2] for _ in range(N)])
    of_rows = [("ids", ids, "i32"), ("log_p", np.log(p[:, :2]), "f32")]
    of_rows += [("log_rest", np.log(p[:, 2]), "f32"), ("weight", np.array(weight), "f32")]
    teacher = None
    if not whole:
        inputs = [net.declare(net.s.input(n, v.shape, t), v) for n, v, t in of_rows]
        teacher = ops.Teacher(*inputs, beta, temperature)
    net.realize(ops.linear_cross_entropy(net.s, x, w, labelled, b, rows, teacher=teacher))
    return net, ids


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_a_teacher_in_chunks(beta):
    nets = [with_teacher(0.4, rows, beta)[0] for rows in (2, 100)]
    for got, expected in zip(*map(result, nets), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)
    assert gradcheck(nets[0].s)
    losses = [result(nets[0], to)[0].tobytes() for to in ("loss", "grads")]
    assert losses[0] == losses[1]


def test_a_teacher_of_weight_0_changes_nothing():
    pairs = zip(result(with_teacher(0.0)[0]), result(with_teacher(0.0, whole=True)[0]), strict=True)
    for got, expected in pairs:
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)
    with pytest.raises(LabelError, match="ids"):
        net, ids = with_teacher(0.4)
        net.s.upload(net.s.tape.inputs["ids"], ids + V)
