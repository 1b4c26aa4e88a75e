"""The op table: for each op its shape rule, its gradient rule, its flops and bytes.

A function here (``linear(s, x, w, b)``) checks shapes and records one node on ``s.tape``; nothing
runs. Below the recording function of an op stands the rule that records its backward nodes. Names
of kernels are those of toynn/_kernels, where the formulas are. All activations are matrices (N, C)
with one row a token, N = B * T.
"""

from collections.abc import Callable, Mapping
from math import prod, sqrt
from typing import Protocol

from toynn import checks
from toynn._kernels.grad_norm import ELEMENTS_PER_PARTIAL
from toynn.autograd import Backward
from toynn.errors import ConfigError, ShapeError
from toynn.tape import Node, Op, Role, Tape, Tensor

__all__ = [
    "ACCUMULATE",
    "ADD",
    "adamw_step",
    "add",
    "attention",
    "cross_entropy",
    "embedding",
    "gelu",
    "grad_norm",
    "layernorm",
    "linear",
    "rmsnorm",
    "rope",
    "rounded",
    "scale",
    "silu",
    "softmax",
    "swiglu",
]

_GELUS = {"tanh": 0, "exact": 1}
_ACTIVATIONS = {None: 0, "gelu": 1, "gelu_exact": 2}
_ROUNDED = {"f16": 0, "bf16": 1}

Sizes = Mapping[str, int]
_Rule = Callable[[Backward, Node, Tensor], None]


class Recorder(Protocol):
    """What an op records on: a Session."""

    tape: Tape


def _flops(factor: int, *names: str) -> Callable[[Sizes], int]:
    """Count ``factor`` times the product of the named sizes."""
    return lambda sizes: factor * prod(sizes[name] for name in names)


def _require(condition: bool, op: str, needed: str, *got: Tensor | None) -> None:
    if not condition:
        shown = ", ".join("None" if t is None else f"{t.name} {t.shape}" for t in got)
        raise ShapeError(f"{op}: needs {needed}; got {shown}")


def _matrix(op: str, x: Tensor) -> tuple[int, int]:
    _require(len(x.shape) == 2, op, "a matrix (N, C)", x)
    return x.shape[0], x.shape[1]


# -- Elementwise ---------------------------------------------------------------------------------


def add(s: Recorder, a: Tensor, b: Tensor) -> Tensor:
    """Record y = a + b, shapes equal."""
    _require(a.shape == b.shape, "add", "two tensors of one shape", a, b)
    y = s.tape.new("add", a.shape)
    s.tape.record(ADD, [y], [], [a, b], {"n": a.size})
    return y


def _add_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    for x in node.inputs:
        back.contribute(_given(x), dy)


def scale(s: Recorder, x: Tensor, alpha: float) -> Tensor:
    """Record y = alpha x."""
    y = s.tape.new("scale", x.shape)
    s.tape.record(SCALE, [y], [], [x], {"n": x.size}, options={"alpha": alpha})
    return y


def _scale_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(SCALE, node.inputs, [dy], node.sizes, options=node.options)


def rounded(s: Recorder, x: Tensor, dtype: str) -> Tensor:
    """Record y = x rounded to ``f16`` or ``bf16``, in float32; y's gradient is taken for x's."""
    if dtype not in _ROUNDED:
        raise ConfigError(f"rounded: dtype must be one of {', '.join(_ROUNDED)}; got {dtype!r}")
    y = s.tape.new(f"{dtype}({x.name})", x.shape)
    s.tape.record(ROUNDING, [y], [], [x], {"n": x.size, "brain": _ROUNDED[dtype]})
    return y


def gelu(s: Recorder, x: Tensor, form: str = "tanh") -> Tensor:
    """Record y = gelu(x), in its ``tanh`` or ``exact`` (erf) form."""
    if form not in _GELUS:
        raise ConfigError(f"gelu: form must be one of {', '.join(_GELUS)}; got {form!r}")
    y = s.tape.new("gelu", x.shape)
    s.tape.record(GELU, [y], [], [x], {"n": x.size, "exact": _GELUS[form]})
    return y


def silu(s: Recorder, x: Tensor) -> Tensor:
    """Record y = x sigmoid(x)."""
    y = s.tape.new("silu", x.shape)
    s.tape.record(SILU, [y], [], [x], {"n": x.size})
    return y


def _pointwise_gradient(backward: Op) -> _Rule:
    """Rule of y = f(x), whose backward kernel reads dy and x."""

    def rule(back: Backward, node: Node, dy: Tensor) -> None:
        back.emit(backward, node.inputs, [dy, *node.inputs], node.sizes)

    return rule


def swiglu(s: Recorder, gate: Tensor, up: Tensor) -> Tensor:
    """Record y = silu(gate) * up."""
    _require(gate.shape == up.shape, "swiglu", "gate and up of one shape", gate, up)
    y = s.tape.new("swiglu", gate.shape)
    s.tape.record(SWIGLU, [y], [], [gate, up], {"n": gate.size})
    return y


# -- Rows ----------------------------------------------------------------------------------------


def softmax(s: Recorder, x: Tensor) -> Tensor:
    """Record y (N, C) = softmax over the rows of x."""
    N, C = _matrix("softmax", x)
    y = s.tape.new("softmax", x.shape)
    s.tape.record(SOFTMAX, [y], [], [x], {"N": N, "C": C})
    return y


def _softmax_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(SOFTMAX_BACKWARD, node.inputs, [dy, node.outputs[0]], node.sizes)


def layernorm(s: Recorder, x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    """Record y (N, C) = (x - mean) / sqrt(var + eps) * w + b; saves mean and 1/std of each row."""
    N, C = _matrix("layernorm", x)
    _require(w.shape == b.shape == (C,), "layernorm", f"w and b ({C},)", x, w, b)
    y, mean, r = s.tape.new("layernorm", x.shape), s.tape.new("mean", (N,)), s.tape.new("r", (N,))
    s.tape.record(LAYERNORM, [y], [mean, r], [x, w, b], {"N": N, "C": C}, options={"eps": eps})
    return y


def _layernorm_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    x, w, _ = node.inputs
    back.emit(LAYERNORM_BACKWARD, node.inputs, [dy, x, w, *node.saved], node.sizes)


def rmsnorm(s: Recorder, x: Tensor, w: Tensor, eps: float = 1e-5) -> Tensor:
    """Record y (N, C) = x / sqrt(mean x^2 + eps) * w; saves the factor of each row.

    A shorter w (D,), D dividing C, normalises each group of D columns by itself: heads of width D.
    """
    N, C = _matrix("rmsnorm", x)
    D = w.size
    _require(w.shape == (D,) and C % D == 0, "rmsnorm", f"w (D,) with D dividing {C}", x, w)
    groups = N * (C // D)
    y, r = s.tape.new("rmsnorm", x.shape), s.tape.new("r", (groups,))
    s.tape.record(RMSNORM, [y], [r], [x, w], {"N": groups, "C": D}, options={"eps": eps})
    return y


def _rmsnorm_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(RMSNORM_BACKWARD, node.inputs, [dy, *node.inputs, *node.saved], node.sizes)


def rope(
    s: Recorder,
    x: Tensor,
    positions: Tensor,
    inverse_frequency: Tensor,
    n_heads: int,
    *,
    interleaved: bool,
) -> Tensor:
    """Record y (N, H D): pairs of each head of x turned by position * inverse_frequency (D/2,)."""
    N, C = _matrix("rope", x)
    D = 2 * inverse_frequency.size
    needed = f"positions ({N},), {n_heads} heads of {D}"
    fits = positions.shape == (N,) and n_heads * D == C
    _require(fits, "rope", needed, x, positions, inverse_frequency)
    y = s.tape.new("rope", x.shape)
    sizes = {"N": N, "H": n_heads, "D": D, "interleaved": int(interleaved)}
    s.tape.record(ROPE, [y], [], [x, positions, inverse_frequency], sizes)
    return y


def _rope_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    back.emit(ROPE_BACKWARD, node.inputs[:1], [dy, *node.inputs[1:]], node.sizes)


# -- Embedding, linear ---------------------------------------------------------------------------


def embedding(s: Recorder, w: Tensor, ids: Tensor) -> Tensor:
    """Record y (N, C) = the rows of w (V, C) that ids (N,) name."""
    V, C = _matrix("embedding", w)
    _require(len(ids.shape) == 1 and ids.dtype == "i32", "embedding", "ids (N,) of i32", w, ids)
    N = ids.shape[0]
    s.tape.checks.setdefault(ids, []).append(checks.ids_below(V))
    y = s.tape.new("embedding", (N, C))
    s.tape.record(EMBEDDING, [y], [], [w, ids], {"N": N, "V": V, "C": C})
    return y


def _embedding_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    w, ids = node.inputs
    back.emit(EMBEDDING_BACKWARD, [w], [dy, ids], node.sizes)


def linear(
    s: Recorder, x: Tensor, w: Tensor, b: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """Record y (M, N) = x (M, K) w (N, K)^T + b (N,), then a GELU if asked.

    With ``activation`` ("gelu": tanh form, "gelu_exact") the sum before it is saved.
    """
    (M, K), (N, columns) = _matrix("linear", x), _matrix("linear", w)
    _require(columns == K, "linear", f"w (N, {K})", x, w)
    _require(b is None or b.shape == (N,), "linear", f"b ({N},)", x, w, b)
    if activation not in _ACTIVATIONS:
        raise ConfigError(
            f"linear: activation must be gelu, gelu_exact or None; got {activation!r}"
        )
    y = s.tape.new("linear", (M, N))
    pre = s.tape.new("pre", (M, N)) if activation else None
    sizes = {"M": M, "N": N, "K": K, "activation": _ACTIVATIONS[activation]}
    s.tape.record(LINEAR, [y], [pre], [x, w, b], sizes)
    return y


def _linear_gradient(back: Backward, node: Node, dy: Tensor) -> None:
    x, w, b = node.inputs
    M, N, K = (node.sizes[name] for name in "MNK")
    if node.sizes["activation"]:
        pre = _given(node.saved[0])
        d_pre = back.new(pre)
        sizes = {"n": pre.size, "exact": node.sizes["activation"] - 1}
        back.tape.record(GELU_BACKWARD, [d_pre], [], [dy, pre], sizes)
        dy = d_pre
    back.emit(LINEAR_BACKWARD_WEIGHT, [w], [dy, x], {"M": M, "N": N, "K": K})
    back.emit(BIAS_BACKWARD, [b], [dy], {"N": M, "C": N})
    back.emit(LINEAR_BACKWARD_INPUT, [x], [dy, w], {"M": M, "N": N, "K": K})


# -- Attention -----------------------------------------------------------------------------------


def attention(
    s: Recorder,
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    batch: int,
    n_heads: int,
    n_kv_heads: int | None = None,
    causal: bool = True,
) -> Tensor:
    """Record o (B T, H D) = softmax(q k^T / sqrt(D)) v, per sequence and head.

    q (B T, H D), k and v (B T, KV D); or q alone, holding all three side by side
    (B T, (H + 2 KV) D). Saves the log-sum-exp of each row of scores, never the scores.
    """
    H, KV = n_heads, n_kv_heads or n_heads
    N, columns = _matrix("attention", q)
    fused = k is None
    D = columns // (H + 2 * KV if fused else H)
    _require(N % batch == 0 and H % KV == 0, "attention", f"rows in {batch} sequences, KV | H", q)
    if k is None or v is None:
        _require(columns == (H + 2 * KV) * D, "attention", f"q, k, v of {H} + 2 x {KV} heads", q)
        k, v = q.at(H * D), q.at((H + KV) * D)
    else:
        fits = columns == H * D and k.shape == v.shape == (N, KV * D)
        _require(fits, "attention", f"q ({N}, {H * D}), k and v ({N}, {KV * D})", q, k, v)
    T = N // batch
    o, lse = s.tape.new("attention", (N, H * D)), s.tape.new("lse", (batch, H, T))
    sizes = {"B": batch, "T": T, "H": H, "KV": KV, "D": D}
    sizes |= {"ldq": q.shape[1], "ldk": k.shape[1], "ldv": v.shape[1], "causal": int(causal)}
    s.tape.record(ATTENTION, [o], [lse], [q, k, v], sizes, options={"scale": 1 / sqrt(D)})
    return o


def _attention_gradient(back: Backward, node: Node, do: Tensor) -> None:
    q, k, v = (_given(t) for t in node.inputs)
    o, lse = _given(node.outputs[0]), _given(node.saved[0])
    dq = back.new(q.root)
    dk = dq.at(k.offset) if k.base else back.new(k)
    dv = dq.at(v.offset) if v.base else back.new(v)
    delta = back.tape.new("delta", lse.shape)
    back.tape.record(
        ATTENTION_BACKWARD,
        [dq, dk, dv],
        [delta],
        [do, o, lse, q, k, v],
        node.sizes,
        options=node.options,
    )
    for x, dx in ((q, dq), (k, dk), (v, dv)):
        if not x.base:
            back.contribute(x, dx)


# -- Loss and update -----------------------------------------------------------------------------


def cross_entropy(s: Recorder, logits: Tensor, labels: Tensor) -> Tensor:
    """Record the mean cross-entropy () over the rows of logits (N, V) that count.

    labels: i32 (N,), where -100 marks a row that does not count; or f32 (N, V), dense, where an
    all-zero row does not.
    """
    N, V = _matrix("cross_entropy", logits)
    dense = labels.dtype == "f32"
    expected = (N, V) if dense else (N,)
    _require(labels.shape == expected, "cross_entropy", f"labels {expected}", logits, labels)
    if labels.role is not Role.INPUT:
        raise ConfigError(f"cross_entropy: labels must be an input; got {labels!r}")
    check = checks.dense_labels if dense else checks.labels_below(V)
    s.tape.checks.setdefault(labels, []).append(check)
    loss = s.tape.new("loss", ())
    saved = [s.tape.new("lse", (N,)), s.tape.new("rows", ())]
    op = CROSS_ENTROPY_DENSE if dense else CROSS_ENTROPY
    s.tape.record(op, [loss], saved, [logits, labels], {"N": N, "V": V})
    return loss


def _cross_entropy_gradient(backward: Op) -> _Rule:
    def rule(back: Backward, node: Node, dy: Tensor) -> None:
        back.emit(backward, node.inputs[:1], [dy, *node.inputs, *node.saved], node.sizes)

    return rule


def grad_norm(s: Recorder, norm: Tensor, factor: Tensor, every: Tensor, control: Tensor) -> None:
    """Record the norm of all gradients, and the factor by which AdamW is to multiply them.

    control (2,): the norm to clip to (0: do not), and one over the weight of all micro-batches.
    """
    partial = s.tape.new("partial", (-(-every.size // ELEMENTS_PER_PARTIAL),))
    s.tape.record(GRAD_NORM, [norm, factor], [partial], [every, control], {"n": every.size})


def adamw_step(
    s: Recorder, w: Tensor, m: Tensor, v: Tensor, g: Tensor, hp: Tensor, factor: Tensor
) -> None:
    """Record one AdamW update of w, m and v in place; g is first multiplied by ``factor`` ()."""
    _require(w.shape == g.shape and hp.shape == (7,), "adamw", "g like w, hp (7,)", w, g, hp)
    s.tape.checks.setdefault(hp, [checks.finite])
    s.tape.record(ADAMW, [w, m, v], [], [g, hp, factor], {"n": w.size})


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


# -- The table -----------------------------------------------------------------------------------

_PRODUCT = _flops(2, "M", "N", "K")


def _attention_flops(products: int) -> Callable[[Sizes], int]:
    """Count ``products`` products of T x T x D per head; half of each when causal."""

    def count(sizes: Sizes) -> int:
        full = 2 * products * sizes["B"] * sizes["H"] * sizes["T"] ** 2 * sizes["D"]
        return full // 2 if sizes["causal"] else full

    return count


ADD = Op("elementwise.add", _flops(1, "n"), _add_gradient, inplace={0: 0})
ACCUMULATE = Op("elementwise.accumulate", _flops(1, "n"), weights=(0,))
SCALE = Op("elementwise.scale", _flops(1, "n"), _scale_gradient, inplace={0: 0})
BIAS_BACKWARD = Op("elementwise.bias_backward", _flops(1, "N", "C"), weights=(0,))
ROUNDING = Op("rounding.forward", _flops(1, "n"), straight_through=True)
GELU_BACKWARD = Op("gelu.backward", _flops(16, "n"), inplace={0: 0})
GELU = Op("gelu.forward", _flops(12, "n"), _pointwise_gradient(GELU_BACKWARD))
SILU_BACKWARD = Op("silu.backward", _flops(12, "n"), inplace={0: 0})
SILU = Op("silu.forward", _flops(10, "n"), _pointwise_gradient(SILU_BACKWARD))
SWIGLU_BACKWARD = Op("swiglu.backward", _flops(14, "n"))
SWIGLU = Op("swiglu.forward", _flops(11, "n"), _pointwise_gradient(SWIGLU_BACKWARD))
SOFTMAX_BACKWARD = Op("softmax.backward", _flops(4, "N", "C"), inplace={0: 0})
SOFTMAX = Op("softmax.forward", _flops(12, "N", "C"), _softmax_gradient)
LAYERNORM_BACKWARD = Op("layernorm.backward", _flops(14, "N", "C"), weights=(1, 2))
LAYERNORM = Op("layernorm.forward", _flops(8, "N", "C"), _layernorm_gradient)
RMSNORM_BACKWARD = Op("rmsnorm.backward", _flops(11, "N", "C"), weights=(1,))
RMSNORM = Op("rmsnorm.forward", _flops(4, "N", "C"), _rmsnorm_gradient)
ROPE_BACKWARD = Op("rope.backward", _flops(3, "N", "H", "D"), integers=(1,))
ROPE = Op("rope.forward", _flops(3, "N", "H", "D"), _rope_gradient, integers=(1,))
EMBEDDING_BACKWARD = Op(
    "embedding.backward",
    _flops(1, "N", "C"),
    nbytes=_flops(12, "N", "C"),
    weights=(0,),
    integers=(1,),
)
EMBEDDING = Op(
    "embedding.forward",
    _flops(0, "N", "C"),
    _embedding_gradient,
    nbytes=_flops(8, "N", "C"),
    integers=(1,),
)
LINEAR_BACKWARD_INPUT = Op("matmul.backward_input", _PRODUCT)
LINEAR_BACKWARD_WEIGHT = Op("matmul.backward_weight", _PRODUCT, weights=(0,))
LINEAR = Op("matmul.forward", _PRODUCT, _linear_gradient)
ATTENTION_BACKWARD = Op("attention.backward", _attention_flops(5))
ATTENTION = Op("attention.forward", _attention_flops(2), _attention_gradient)
CROSS_ENTROPY_BACKWARD = Op(
    "cross_entropy.backward", _flops(12, "N", "V"), inplace={0: 1}, integers=(2,)
)
CROSS_ENTROPY = Op(
    "cross_entropy.forward",
    _flops(12, "N", "V"),
    _cross_entropy_gradient(CROSS_ENTROPY_BACKWARD),
    integers=(1,),
)
CROSS_ENTROPY_DENSE_BACKWARD = Op(
    "cross_entropy.backward_dense", _flops(14, "N", "V"), inplace={0: 1}
)
CROSS_ENTROPY_DENSE = Op(
    "cross_entropy.forward_dense",
    _flops(14, "N", "V"),
    _cross_entropy_gradient(CROSS_ENTROPY_DENSE_BACKWARD),
)
GRAD_NORM = Op("grad_norm.forward", _flops(2, "n"), updates=True)
ADAMW = Op("adamw.step", _flops(13, "n"), updates=True)
