"""Packed batches: what examples one behind another give, and which are refused."""

import llamas
import lora_bases
import numpy as np
import pytest
from lora_bases import write_base

import toynn
from toynn import AdamW, GPT2Config, RecipeOptions
from toynn.errors import LabelError, ShapeError
from toynn.models.llama import Llama
from toynn.recipes import GPT2
from toynn.testing import gradcheck
from toynn.testing.roofline import least_seconds

VOCAB = llamas.SIZES["vocab"]
LENGTHS = 7, 13, 1, 5
IGNORED = -100


def gpt2(t_batch=1, length=13, **options):
    recipe = GPT2()
    opts = RecipeOptions(t_seq=length, t_batch=t_batch, seed=5, **options)
    recipe.realize(GPT2Config(VOCAB, 24, 2, 40, 2, 16), opts)
    return recipe


def llama(kind):
    def make(t_batch=1, length=13, **options):
        return llamas.make(kind, t_batch, length, **options)

    return make


MODELS = {"gpt2": gpt2} | {
    kind: llama(kind)
    for kind in (
        *("llama", "qwen2", "qwen3", "llama-lens", "qwen35", "lfm2", "lfm2-taps"),
        *("gemma3n", "gemma4", "gemma4-moe", "gemma4-plain", "deepseek2"),
        *("granitehybrid", "nemotron_h", "nemotron_h_moe"),
        *("phi3", "phi3-short", "phi3-long"),
    )
}


def examples(lengths=LENGTHS, seed=0):
    """Ids and labels of examples; a part of each is a prompt, and all of the last one but one."""
    rng, rows = np.random.default_rng(seed), []
    for length in lengths:
        ids, labels = rng.integers(0, VOCAB, (2, length))
        labels[: length // 3] = IGNORED
        rows.append((ids, labels))
    return rows


def packed(parts):
    """The batch as step takes it: ids, positions, labels; and segments."""
    lengths = [len(ids) for ids, _ in parts]
    starts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    ids, labels = (np.concatenate(x) for x in zip(*parts, strict=True))
    return (ids, np.arange(len(ids)) - starts, labels), starts


HP = AdamW.for_lora().hp_for_step(0)
STILL = np.array([0, 0.9, 0.95, 1, 0, 1, 1], np.float32)  # an update that moves no weight


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_those_of_the_examples_one_by_one(model, checkpointing):
    recipe = MODELS[model](2, packed=True, checkpointing=checkpointing)
    weights = llamas.shake(recipe.engine, np.random.default_rng(3))
    batch, segments = packed(examples())
    loss = recipe.step(*batch, STILL, True, segments)
    total, rows, expected, sizes = 0.0, 0, {}, {}
    for ids, labels in examples():
        alone = MODELS[model](1, len(ids))
        alone.engine.load_weights(weights)
        count = np.count_nonzero(labels != IGNORED)
        total += count * alone.step(ids, None, labels, STILL, True)
        rows += count
        for name, gradient in alone.engine.gradients().items():
            part = count * gradient.astype(np.float64)
            expected[name] = expected.get(name, 0) + part
            sizes[name] = sizes.get(name, 0) + np.linalg.norm(part)  # they may cancel in the sum
    assert loss == pytest.approx(total / rows, rel=1e-6)
    for name, gradient in recipe.engine.gradients().items():
        size = sizes[name] / rows
        assert np.linalg.norm(gradient - expected[name] / rows) <= 2e-6 * size + 1e-7, name


@pytest.mark.parametrize("model", ["gpt2", "llama", "qwen3"])
def test_gradients_are_those_of_finite_differences(model):
    recipe = MODELS[model](2, packed=True)
    llamas.shake(recipe.engine, np.random.default_rng(3))
    batch, segments = packed(examples())
    recipe.step(*batch, STILL, True, segments)
    assert gradcheck(recipe.engine.session, samples=4)


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_what_a_batch_gives_does_not_depend_on_the_room(model):
    by_room = []
    for options in ({"t_batch": 2, "packed": True}, {"t_batch": 7, "packed": True}, {}):
        recipe = MODELS[model](**options)  # the last one has no room, and makes some
        batch, segments = packed(examples())
        losses = [recipe.step(*batch, HP, k == 0, segments) for k in range(3)]
        losses.append(recipe.evaluate(*batch, segments))
        assert losses[3] < losses[0]
        by_room.append([losses, *recipe.engine.weights().values()])
    for got in by_room[1:]:
        for a, b in zip(got, by_room[0], strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_whole_sequences_need_no_segments():
    rng = np.random.default_rng(1)
    ids, labels = llamas.draw(rng, 2)
    losses = [
        llamas.make(batch=2, packed=packed).step(ids, None, labels, HP, True)
        for packed in (False, True)
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("type", ["F32", "Q8_0"])
def test_adapters_learn_the_same_whatever_the_room(type, checkpointing, tmp_path):
    path = write_base(tmp_path / "base.gguf", type=type, d_model=32, d_ff=64, n_heads=4)
    by_room = []
    for t_batch in (3, 5):
        recipe = toynn.recipes.LoRA()
        opts = RecipeOptions(t_seq=12, t_batch=t_batch, seed=7, packed=True)
        recipe.realize(
            path, None, 4, opts, targets="all-linear", dropout=0.2, checkpointing=checkpointing
        )
        lora_bases.stir(recipe)
        batch, segments = packed(examples())
        more, others = packed(examples((3, 4, 9), seed=1))
        losses = [recipe.accumulate(*more, others), recipe.step(*batch, HP, True, segments)]
        by_room.append([losses, *recipe.engine.adapter_weights().values()])
    for a, b in zip(*by_room, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_micro_batches_weigh_by_the_tokens_that_they_learn():
    parts = examples()
    whole, pieces = (llamas.make(batch=2, packed=True) for _ in range(2))
    batch, segments = packed(parts)
    whole.step(*batch, STILL, True, segments)
    for part in (parts[:2], parts[2:3]):
        batch, segments = packed(part if len(part) > 1 else [*part, ([0, 0], [IGNORED] * 2)])
        pieces.accumulate(*batch, segments)
    batch, segments = packed(parts[3:])
    pieces.step(*batch, STILL, False, segments)
    for a, b in zip(
        whole.engine.gradients().values(), pieces.engine.gradients().values(), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", [k for k in llamas.KINDS if "nemotron" not in k])  # a mixer each
def test_behind_the_last_attention_only_rows_that_count_are_computed(kind):
    """Those of the last block: what its attention gave, what that is added to, MLP, norm, head."""
    recipe = llamas.make(kind, batch=2, packed=True)
    nodes = [node for node in recipe.engine.session.tape.nodes if node.phase == "F"]
    kernels = [node.op.kernel for node in nodes]
    count = nodes[kernels.index("valid_rows.forward")].outputs[2]
    mixers = {"attention.forward", "shortconv.forward", "delta.forward", "ssd.forward"}
    last = max(i for i, kernel in enumerate(kernels) if kernel in mixers)
    behind = nodes[last + 1 :]
    assert kernels[last + 1] == "embedding.forward"  # the rows of what it gave
    assert kernels[-1] == "cross_entropy.forward" and len(behind) > 8
    for node in behind:
        sorted_by_expert = node.leader is None or node.leader.name.startswith("dispatched")
        assert sorted_by_expert or node.leader.root.valid.count is count, node.op.kernel


def test_a_forward_pass_that_says_nothing_of_rows_computes_all(monkeypatch):
    expected = llamas.make(batch=2).engine
    ids = np.arange(26) % VOCAB
    monkeypatch.setattr(Llama, "narrows", False)
    engine = llamas.make(batch=2).engine
    kernels = [n.op.kernel for n in engine.session.tape.nodes if n.phase == "F"]
    assert kernels[-4:] == [
        "embedding.forward",
        "rmsnorm.forward",
        "matmul.forward",
        "cross_entropy.forward",
    ]
    labels = np.where(ids % 3, ids, -100)
    got, want = (each.evaluate(ids, None, labels) for each in (engine, expected))
    assert abs(got - want) < 1e-6


def test_logits_of_some_rows():
    engine = llamas.make(batch=2).engine
    ids = np.arange(26) % VOCAB
    whole = engine.logits(ids, 2)
    for rows in ([25], [3, 0, 3], list(range(26))):
        np.testing.assert_allclose(engine.logits(ids, 2, rows), whole[rows], rtol=1e-4, atol=1e-6)
    assert (
        engine.logits(ids, 2, [1, 2, 3])[1].tobytes()
        == engine.logits(ids, 2, [9, 2, 5])[1].tobytes()
    )
    with pytest.raises(ShapeError, match=r"logits: rows must be flat, at least one; got \(0,\)"):
        engine.logits(ids, 2, [])
    with pytest.raises(LabelError, match=r"rows: row 1 is 26; must be 0\.\.25"):
        engine.logits(ids, 2, [0, 26])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segments": [0, 0, 0, 2, 2, 2]}, "segments: row 3 is 2; must be 0, as in the row befo"),
        ({"segments": [0, 0, 0, 4, 4, 4]}, "segments: row 3 is 4; must be at most 3"),
        ({"segments": [0, 0, 0, 3, 3]}, r"upload segments: expected \(6,\); got \(5,\)"),
        ({"segments": [0.0] * 6}, "upload segments: expected i32; got float64"),
        ({"segments": range(6)}, "segments: every one of 6 rows begins a segment, so no tok"),
        (
            {"positions": [0, 1, 2, 3, 4, 5]},
            "positions: row 3 is 3; must be 0: positions start at 0 in each segment, and this",
        ),
        ({"positions": [0, 1]}, r"upload positions: expected \(6,\); got \(2,\)"),
        ({"labels": np.ones((6, VOCAB))}, r"segments: labels must be integers \(6,\); got \(6, 61"),
        ({"labels": [IGNORED] * 6}, "labels: all .* rows are ignored"),
        ({"labels": [1, 2]}, r"upload labels: expected \(6,\); got \(2,\)"),
        ({"ids": [1, 2, 3, 4, 5, 61]}, r"tokens: row 5 is 61; must be 0\.\.60"),
    ],
)
def test_bad_batches_are_refused(change, message):
    recipe = llamas.make(batch=2, packed=True)
    good = {"ids": [1, 2, 3, 4, 5, 6], "positions": [0, 1, 2, 0, 1, 2], "labels": [1] * 6}
    batch = good | {"segments": [0, 0, 0, 3, 3, 3]} | change
    with pytest.raises((ShapeError, LabelError), match=message):
        recipe.evaluate(*(batch[name] for name in ("ids", "positions", "labels", "segments")))


def test_work_of_attention_in_segments_is_said_to_be_the_most_that_it_may_be():
    recipe, plain = llamas.make(batch=2, packed=True), llamas.make(batch=2)
    batch, segments = packed(examples())
    recipe.step(*batch, STILL, True, segments)
    session = recipe.engine.session
    marked = {row.op for row in session.profile().rows if row.at_most}
    assert marked == {"attention.forward", "attention.backward"}
    *lines, _, note = str(session.profile()).splitlines()
    assert {line.split()[0] for line in lines if " <" in line} == marked
    assert note.startswith("<: upper bounds, as if there were no segments")
    tape = session.tape
    lines = str(tape).splitlines()[1 + len(tape.inputs) :]
    for node, line in zip(tape.nodes, lines, strict=True):
        assert line.count(" <") == node.at_most == (node.op.kernel in marked)
    for shown in (plain.engine.session.tape, plain.engine.session.profile()):
        assert "<" not in str(shown)
    with pytest.raises(ValueError, match="packed rows have no roofline"):
        least_seconds(session, None)


def test_an_example_longer_than_the_context_is_refused():
    recipe = llamas.make(batch=2, packed=True)
    batch, segments = packed(examples((5, 17)))
    with pytest.raises(
        ShapeError, match="begins at row 5 has 17 tokens; the context is 16: cut it"
    ):
        recipe.evaluate(*batch, segments)


def test_nothing_is_computed_below_the_lowest_adapter(tmp_path):
    """Adapters in the last block only: none but its backward, and the head's, is on the tape."""
    path = write_base(tmp_path / "base.gguf", "llama", "Q8_0", d_model=32, d_ff=64, n_heads=4)
    kernels = {}
    for targets in (["blk.1.ffn_down"], ["blk.1.attn_q"], ["blk.0.attn_q"]):
        recipe = toynn.recipes.LoRA()
        recipe.realize(path, None, 4, RecipeOptions(t_seq=12, packed=True), targets=targets)
        nodes = recipe.engine.session.tape.nodes
        kernels[targets[0]] = [node.op.kernel for node in nodes if node.phase == "B"]
        for i, node in enumerate(nodes):
            written = {t.root for t in node.outputs if t is not None}
            read = {t for later in nodes[i + 1 :] for t in later.roots}
            read |= recipe.engine.session.tape.outputs
            assert node.phase == "U" or written <= read or node.op.weights, node.op.kernel
    assert kernels["blk.1.ffn_down"] == [
        "cross_entropy.backward",
        "matmul.backward_input",  # of the head
        "rmsnorm.backward",
        "matmul.backward_weight",  # of B
        "matmul.backward_input",
        "matmul.backward_weight",  # of A
    ]
    assert kernels["blk.1.attn_q"].count("attention.backward") == 1
    assert kernels["blk.0.attn_q"].count("attention.backward") == 2
