"""Sizes of a node: found from its tensors by the signature, and shapes that do not fit it."""

import re

import pytest

from toynn import ops
from toynn.errors import ConfigError, ShapeError
from toynn.session import Session


@pytest.fixture
def s():
    return Session()


def only(s):
    (node,) = s.tape.nodes
    return node


def test_a_matrix_stands_for_an_array_of_more_axes(s):
    x, positions = s.input("x", (6, 24)), s.input("p", (6,), "i32")
    y = ops.rope(s, x, positions, s.constant("f", (3,)), 2, interleaved=True)
    assert y.shape == (6, 24)
    expected = {"N": 6, "H": 2, "D": 12, "R": 6, "P": 2, "interleaved": 1, "span": 1}
    assert only(s).sizes == expected
    assert only(s).options == {"magnitude": 1.0, "growth": 0.0}


def test_rows_of_heads_are_rows_of_the_kernel(s):
    y = ops.rmsnorm(s, s.input("x", (6, 24)), s.parameter("w", (4,)))
    node = only(s)
    assert (node.sizes, y.shape, node["r"].shape) == ({"N": 36, "C": 4}, (6, 24), (36,))


def test_elements_keep_their_shape_and_a_loss_is_a_scalar(s):
    x = s.input("x", (2, 3, 4))
    assert ops.silu(s, x).shape == (2, 3, 4)
    assert only(s).sizes == {"n": 24}
    loss = ops.cross_entropy(s, s.input("logits", (2, 5)), s.input("labels", (2,), "i32"))
    assert loss.shape == ()
    assert {name: t.shape for name, t in s.tape.nodes[-1].named.items()} == {
        **{"loss": (), "lse": (2,), "rows": ()},
        **{"logits": (2, 5), "labels": (2,)},
    }


def test_columns_of_heads_may_be_some_of_a_row(s):
    qkv = s.input("qkv", (6, 4 * 5))
    assert ops.attention(s, qkv, batch=2, n_heads=2, n_kv_heads=1).shape == (6, 10)
    sizes = only(s).sizes
    assert {name: sizes[name] for name in ("B", "T", "H", "KV", "D", "ldq", "ldk")} == {
        **{"B": 2, "T": 3, "H": 2, "KV": 1, "D": 5, "ldq": 20, "ldk": 20}
    }


def test_a_row_is_as_long_as_what_is_read_of_it(s):
    q = s.input("q", (6, 8))
    sizes = {"B": 2, "H": 2, "KV": 1, "D": 5}
    with pytest.raises(ShapeError, match=r"q\[B\*T H\*D\] needs 10 columns; got q \(6, 8\)"):
        s.tape.record(ops.TABLE["attention.forward"], {"q": q, "k": q, "v": q}, **sizes)


MISFITS = {
    "w[N K] needs shape (5, 4) for N = 5, K = 4 of x (3, 4); got w (5, 3)": lambda s, x: ops.linear(
        s, x, s.parameter("w", (5, 3))
    ),
    "b[N] needs shape (5,) for N = 5 of w (5, 4); got b (3,)": lambda s, x: ops.linear(
        s, x, s.parameter("w", (5, 4)), s.parameter("b", (3,))
    ),
    "b[C] needs shape (4,) for C = 4 of x (3, 4); got b (3,)": lambda s, x: ops.layernorm(
        s, x, s.parameter("w", (4,)), s.parameter("b", (3,))
    ),
    "equal, or 1; got x (3, 4), b (4, 3)": lambda s, x: ops.add(s, x, s.input("b", (4, 3))),
    "up[n] needs shape (3, 4), as gate has; got up (12,)": lambda s, x: ops.geglu(
        s, x, s.input("up", (12,))
    ),
    "x[N C] needs 2 axes; got x (4,) (x is flat)": lambda s, x: ops.softmax(
        s, s.input("flat", (4,))
    ),
    "x[N 2*F] needs shape (3, 2*F) for N = 3; got x (3, 5) (x is odd)": lambda s, x: (
        ops.swiglu_halves(s, s.input("odd", (3, 5)))
    ),
    "ids[N] needs 1 axes; got ids (2, 3)": lambda s, x: ops.embedding(
        s, s.parameter("w", (7, 2)), s.input("ids", (2, 3), "i32")
    ),
    "positions[N] needs shape (3,) for N = 3 of x (3, 4); got positions (6,)": lambda s, x: (
        ops.rope(s, x, s.input("p", (6,), "i32"), s.constant("f", (1,)), 2, interleaved=False)
    ),
    "cls[C] needs shape (4,) for C = 4 of x (3, 4); got cls (5,)": lambda s, x: ops.class_token(
        s, x, s.parameter("cls", (5,)), s.parameter("pos", (2, 4))
    ),
    "x[B*(T-1) C] needs shape (B*(T-1), 4) for T = 3, C = 4 of pos (3, 4)": lambda s, x: (
        ops.class_token(s, x, s.parameter("cls", (4,)), s.parameter("pos", (3, 4)))
    ),
    "g[R R] needs shape (2, 2) for R = 2 of p (2, 4); got g (3, 3)": lambda s, x: ops.dora_norms(
        s, *(s.constant(f"c{n}", shape) for n, shape in enumerate([(4,), (2, 4), (3, 3), (4, 2)])),
        1.0,
    ),
    "w[n] needs shape (4,), as g has; got w (5,) (w is p0, m is p1": lambda s, x: ops.adamw_step(
        s, *(s.parameter(f"p{n}", shape) for n, shape in enumerate([(5,)] * 3 + [(4,), (7,), ()]))
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", MISFITS)
def test_a_shape_that_does_not_fit_is_refused_by_name(s, message):
    """The message names tensors as the signature does, what each needs and why."""
    x = s.input("x", (3, 4))
    with pytest.raises(ShapeError, match=re.escape(message)):
        MISFITS[message](s, x)
    assert not s.tape.nodes
    assert not s.tape.checks


SWAPPED = {
    "embedding.forward: w must be f32; got i32 (w is words)": lambda s, x, words, table: (
        ops.embedding(s, words, table)
    ),
    "embedding.forward: ids must be i32; got f32 (ids is x)": lambda s, x, words, table: (
        ops.embedding(s, table, x)
    ),
    "cross_entropy: needs a matrix (N, C); got logits (3,) (logits is words)": (
        lambda s, x, words, table: ops.cross_entropy(s, words, x)
    ),
    "linear: needs a matrix (N, C); got w (3,) (w is words)": lambda s, x, words, table: ops.linear(
        s, x, words
    ),
    "rmsnorm: needs w (D,) with D dividing 4; got x (3, 4), w (7, 4) (w is table)": (
        lambda s, x, words, table: ops.rmsnorm(s, x, table)
    ),
    "layernorm.forward: b must be f32; got i32 (b is words)": (
        lambda s, x, words, table: ops.layernorm(s, x, table, words)
    ),
    "joined: needs a matrix (N, C); got b (3,) (b is words)": (
        lambda s, x, words, table: ops.joined(s, x, words, 2)
    ),
}


@pytest.mark.parametrize("message", SWAPPED)
def test_arguments_in_the_wrong_order_are_named_by_the_parameter(s, message):
    x, words = s.input("x", (3, 4)), s.input("words", (3,), "i32")
    with pytest.raises(ShapeError, match=re.escape(message)):
        SWAPPED[message](s, x, words, s.parameter("table", (7, 4)))
    assert not s.tape.nodes


def test_a_word_that_there_is_not_is_refused(s):
    w = s.parameter("w", (5, 4))
    with pytest.raises(ConfigError, match=r"matmul.forward: activation needs one of none, .*relu"):
        s.tape.record(ops.TABLE["matmul.forward"], {"x": w, "w": w}, activation="relu")


def test_layers_that_are_alike_are_solved_once(s, monkeypatch):
    """They share what they are told, and nobody can change it."""
    x, w = s.input("x", (3, 4)), s.parameter("w", (4,))
    first = ops.rmsnorm(s, x, w)
    monkeypatch.setattr("toynn.graph.tape.solve", None)
    ops.rmsnorm(s, first, w)
    one, other = s.tape.nodes
    assert one.sizes is other.sizes
    with pytest.raises(TypeError):
        one.sizes["C"] = 5
    with pytest.raises(TypeError):
        ops.rmsnorm(s, x, w, eps=1e-6)
