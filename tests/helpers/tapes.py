"""Small tapes, at least one for every op, whose gradients can be checked."""

import numpy as np

from toynn import Session, ops

N, C, V = 6, 8, 7  # rows, channels, classes
B, T = 2, 3  # the rows as sequences
FREE = np.array([0, 0.9, 0.95, 1, 0, 1, 1], np.float32)  # an update that moves no weight


class Net:
    """A session with short names for declaring things; what it declares gets random values."""

    def __init__(self, **session):
        self.s = Session(seed=1, **session)
        self.rng = np.random.default_rng(2)
        self.values = {}

    def declare(self, tensor, values=None):
        self.values[tensor] = self.rng.standard_normal(tensor.shape) if values is None else values
        return tensor

    def parameter(self, *shape):
        return self.declare(self.s.parameter(f"w{len(self.values)}", shape))

    def constant(self, *shape):
        return self.declare(self.s.constant(f"c{len(self.values)}", shape))

    def input(self, *shape):
        return self.declare(self.s.input(f"x{len(self.values)}", shape))

    def integers(self, n, below, shape=(N,)):
        values = self.rng.integers(0, below, shape)
        return self.declare(self.s.input(f"i{len(self.values)}", shape, "i32"), values)

    def activation(self, columns=C):
        """Rows (N, columns) computed from parameters."""
        return ops.linear(self.s, self.input(N, 5), self.parameter(columns, 5))

    def loss(self, y):
        """The loss of y (N, any number of columns)."""
        return ops.cross_entropy(self.s, y, self.integers(N, y.shape[1]))

    def realize(self, loss):
        """Record backward and an update of every parameter; compile; upload."""
        s = self.s
        s.set_loss(loss)
        s.build_backward()
        hp = self.declare(s.input("hp", (7,)), FREE)
        self.gradients = [s.grad(w) for w in self.values if w.role.value == "parameter"]
        for w, gradient in zip(self.parameters(), self.gradients, strict=True):
            s.opt_step_adamw(w, gradient, hp)
        s.finalize_weights()
        for tensor in [t for t in self.values if t.role.value != "input"]:
            s.upload(tensor, self.values[tensor])
        s.realize()
        for tensor in s.tape.inputs.values():
            s.upload(tensor, self.values[tensor])
        return s

    def parameters(self):
        return [w for w in self.values if w.role.value == "parameter"]

    def kernels(self):
        return [node.op.kernel for node in self.s.tape.nodes if node.phase == "B"]


def linear(net, bias, activation):
    b = net.parameter(C) if bias else None
    return ops.linear(net.s, net.activation(5), net.parameter(C, 5), b, activation)


def linear_of_parameters(net):
    return ops.linear(net.s, net.parameter(N, 5), net.parameter(C, 5))


def linear_with_computed_weight(net):
    w = ops.linear(net.s, net.parameter(C, 4), net.parameter(3, 4))
    return ops.linear(net.s, net.activation(3), w)


def linear_twice(net):
    w, b, s = net.parameter(C, C), net.parameter(C), net.s
    return ops.linear(s, ops.linear(s, net.activation(), w, b, "gelu_tanh"), w, b)


def used_twice(net):
    x = net.activation()
    return ops.add(net.s, ops.add(net.s, x, x), ops.silu(net.s, x))


def residuals(net):
    s, x = net.s, net.activation()
    for _ in range(3):
        x = ops.add(s, x, ops.linear(s, ops.silu(s, x), net.parameter(C, C)))
    return x


def add_parameters(net):
    w = net.parameter(N, C)
    return ops.add(net.s, ops.add(net.s, w, net.activation()), w)


def scale(net):
    return ops.scale(net.s, ops.scale(net.s, net.activation(), -3.0), 0.5)


def dropout(net, active):
    s = net.s
    control = net.declare(s.input("dropout", (2,), "i32"), np.array([3, active]))
    x = ops.silu(s, ops.dropout(s, net.activation(), 0.3, control, 0))
    return ops.add(s, x, ops.dropout(s, net.activation(), 0.6, control, 1))


def gelu(net, form):
    return ops.gelu(net.s, net.activation(), form)


def sigmoid(net):
    return ops.sigmoid(net.s, net.activation())


def silu(net):
    return ops.silu(net.s, net.activation())


def swiglu(net):
    return ops.swiglu(net.s, net.activation(), net.activation())


def swiglu_within_a_limit(net):
    return ops.swiglu(net.s, net.activation(), net.activation(), limit=1.0, alpha=1.7)


def swiglu_of_one(net):
    x = net.activation()
    return ops.swiglu(net.s, x, x)


def swiglu_of_parameters(net):
    return ops.swiglu(net.s, net.parameter(N, C), net.parameter(N, C))


def softmax(net):
    return ops.softmax(net.s, net.activation())


def layernorm(net, eps):
    return ops.layernorm(net.s, net.activation(), net.parameter(C), net.parameter(C), eps)


def layernorm_sharing_a_gain(net):
    s, w = net.s, net.parameter(C)
    x = ops.layernorm(s, net.activation(), w, net.parameter(C))
    return ops.layernorm(s, ops.silu(s, x), w, net.parameter(C))


def layernorm_gain_is_bias(net):
    w = net.parameter(C)
    return ops.layernorm(net.s, net.activation(), w, w)


def layernorm_twice(net):
    s, w, b = net.s, net.parameter(C), net.parameter(C)
    return ops.layernorm(s, ops.silu(s, ops.layernorm(s, net.activation(), w, b)), w, b)


def rmsnorm(net, eps):
    return ops.rmsnorm(net.s, net.activation(), net.parameter(C), eps)


def rmsnorm_of_heads(net):
    return ops.rmsnorm(net.s, net.activation(), net.parameter(2))


def rope(net, interleaved):
    positions, frequencies = net.integers(N, 50), net.constant(2)
    y = ops.rope(net.s, net.activation(), positions, frequencies, 2, interleaved=interleaved)
    return ops.silu(net.s, y)


def rope_of_a_part(net):
    positions, frequencies = net.integers(N, 50), net.constant(1)
    rotated = {"interleaved": False, "magnitude": 1.5}
    y = ops.rope(net.s, net.activation(), positions, frequencies, 2, **rotated)
    return ops.silu(net.s, y)


def swiglu_halves(net):
    return ops.swiglu_halves(net.s, net.activation(2 * C))


def rope_of_some_heads(net):
    positions, frequencies = net.integers(N, 50), net.constant(1)
    y = ops.rope(net.s, net.activation(), positions, frequencies, 4, interleaved=True, rotated=3)
    return ops.silu(net.s, y)


def shortconv(net, segments):
    first = None
    if segments:
        first = net.declare(net.s.input("first", (N,), "i32"), np.array([0, 0, 2, 3, 3, 3]))
    x, w = net.activation(3 * C), net.parameter(C, 3)
    return ops.shortconv(net.s, x, w, batch=B, first=first)


def biased_taps(net):
    x, w, b = net.activation(), net.parameter(C, 3), net.parameter(C)
    return ops.shortconv(net.s, x, w, b, batch=B)


def columns(net):
    x = ops.silu(net.s, net.activation(2 * C + 3))
    y = ops.gatednorm(
        net.s,
        ops.columns(net.s, x, 3, C),
        ops.columns(net.s, x, C + 3, C),
        net.parameter(2, C // 2),
    )
    return ops.add(net.s, y, ops.columns(net.s, x, 0, C))


def heads_of_columns(net, shared):
    """Keys of two heads, of which a part is of one head or of each; and values behind them."""
    s, x = net.s, ops.silu(net.s, net.activation(2 * 7))
    rotated = ops.silu(s, net.activation(3 * shared))
    keys = ops.joined(s, ops.head_columns(s, x, 2, 0, 4), rotated, 2, shared)
    return ops.joined(s, keys, ops.head_columns(s, x, 2, 4, 3), 2, 2)


def streams(net, added):
    """Streams that are predicted, and corrected by one of another length."""
    s, x = net.s, net.activation(3 * 4)
    predicted = ops.predict(s, x, net.activation(9), 3)
    predicted_first = ops.rescale(s, net.activation(4), ops.columns(s, predicted, 0, 4))
    f = net.activation(4) if added else None
    return ops.correct(s, predicted, predicted_first, net.activation(3), f)


def gaussian_topk(net):
    return ops.gaussian_topk(net.s, net.activation(), 0.3)


def relu2(net):
    return ops.relu2(net.s, net.activation())


def taps_alone(net):
    return ops.shortconv(net.s, net.activation(), net.parameter(C, 3), batch=B)


def delta(net, segments):
    first = None
    if segments:
        first = net.declare(net.s.input("first", (N,), "i32"), np.array([0, 0, 2, 3, 3, 3]))
    g = ops.decay(net.s, net.activation(4), net.declare(*negative(net, 4)), net.parameter(4))
    x = net.activation(2 * 2 * 3 + 4 * 2)
    return ops.delta(net.s, x, g, net.activation(4), batch=B, n_k_heads=2, d_k=3, first=first)


def ssd(net, segments):
    first = None
    if segments:
        first = net.declare(net.s.input("first", (N,), "i32"), np.array([0, 0, 2, 3, 3, 3]))
    x, dt = net.activation(4 * 2 + 2 * 2 * 3), net.activation(4)
    a, bias, skip = net.declare(*negative(net, 4, 1)), net.parameter(4), net.parameter(4, 1)
    return ops.ssd(net.s, x, dt, a, bias, skip, batch=B, n_groups=2, d_state=3, first=first)


def negative(net, *shape):
    """A parameter, and values of it below 0."""
    return net.s.parameter(f"w{len(net.values)}", shape), -net.rng.uniform(0.1, 1, shape)


def gated(net):
    x = net.activation(2 * C)
    return ops.gated(net.s, ops.silu(net.s, ops.queries(net.s, x, 2)), x, 2)


def frozen_taps(net):
    return ops.shortconv(net.s, net.activation(3 * C), net.constant(C, 4), batch=1)


def geglu(net):
    return ops.geglu(net.s, net.activation(), net.activation())


def softcap(net):
    return ops.softcap(net.s, ops.scale(net.s, net.activation(), 2.0), 1.5)


def dora(net):
    x, r = net.activation(), net.constant(C)
    y = ops.dora(net.s, x, net.parameter(C), r, net.parameter(C))
    return ops.add(net.s, y, ops.dora(net.s, x, net.constant(C), r))


def embedding(net):
    return ops.embedding(net.s, net.parameter(4, C), net.integers(N, 4))


def embedding_of_a_computed_table(net):
    s = net.s
    table = ops.linear(s, net.parameter(4, 3), net.parameter(C, 3))
    x = ops.embedding(s, table, net.integers(N, 4))
    return ops.add(s, x, ops.embedding(s, table, net.integers(N, 4)))


def tied(net):
    table = net.parameter(V, C)
    x = ops.add(
        net.s,
        ops.embedding(net.s, table, net.integers(N, V)),
        ops.embedding(net.s, net.parameter(T, C), net.integers(N, T)),
    )
    return ops.linear(net.s, ops.silu(net.s, x), table)


def class_token(net):
    patches = ops.linear(net.s, net.input(B * (T - 1), 5), net.parameter(C, 5))
    return ops.class_token(net.s, patches, net.parameter(C), net.parameter(T, C))


def class_token_on_computed_positions(net):
    s, tokens = net.s, net.parameter(C)
    positions = ops.linear(s, net.input(T, 5), net.parameter(C, 5))
    x = ops.class_token(s, net.input(B * (T - 1), C), tokens, positions)
    return ops.add(s, x, ops.class_token(s, net.constant(B * (T - 1), C), tokens, positions))


def frozen_class_token(net):
    s, patches = net.s, net.parameter(B * (T - 1), C)
    x = ops.class_token(s, patches, net.constant(C), net.parameter(T, C))
    return ops.add(s, x, ops.class_token(s, patches, net.parameter(C), net.constant(T, C)))


def fused(net, heads, kv_heads, causal):
    qkv = net.activation((heads + 2 * kv_heads) * 4)
    return ops.attention(
        net.s, qkv, batch=B, n_heads=heads, n_kv_heads=kv_heads, causal=causal
    )  # fmt: skip


def separate(net, heads, kv_heads, causal):
    q, k, v = (net.activation(n * 4) for n in (heads, kv_heads, kv_heads))
    return ops.attention(
        net.s, q, k, v, batch=B, n_heads=heads, n_kv_heads=kv_heads, causal=causal
    )  # fmt: skip


def attention_with_limits(net):
    q, k, v = (net.activation(n * 4) for n in (2, 1, 1))
    limits = {"window": 2, "cap": 0.7, "scale": 2.0}
    return ops.attention(net.s, q, k, v, batch=B, n_heads=2, n_kv_heads=1, **limits)


def attention_with_sinks(net, trained):
    q, k, v = (net.activation(n * 4) for n in (2, 1, 1))
    sinks = net.parameter(2) if trained else net.constant(2)
    limits = {"window": 2, "sinks": sinks}
    return ops.attention(net.s, q, k, v, batch=B, n_heads=2, n_kv_heads=1, **limits)


def attention_of_one(net):
    x = net.activation()
    return ops.attention(net.s, x, x, x, batch=1, n_heads=2)


def attention_of_parameters(net):
    return ops.attention(net.s, net.parameter(N, 3 * C), batch=B, n_heads=2)


def attention_in_segments(net):
    first = net.declare(net.s.input("first", (N,), "i32"), np.array([0, 0, 2, 3, 3, 3]))
    return ops.attention(
        net.s, net.activation(4 * 4), batch=B, n_heads=2, n_kv_heads=1, first=first
    )


def frozen_keys(net):
    q, v = net.activation(), net.activation()
    return ops.attention(net.s, q, net.constant(N, C), v, batch=B, n_heads=2)


def frozen_gain(net):
    s = net.s
    x = ops.layernorm(s, net.activation(), net.constant(C), net.parameter(C))
    x = ops.layernorm(s, ops.silu(s, x), net.parameter(C), net.constant(C))
    x = ops.layernorm(s, ops.silu(s, x), net.constant(C), net.constant(C))
    return ops.rmsnorm(s, ops.silu(s, x), net.constant(C))


def norms_of_inputs(net):
    s = net.s
    x = ops.layernorm(s, net.input(N, C), net.parameter(C), net.parameter(C))
    y = ops.rmsnorm(s, net.input(N, C), net.parameter(C))
    z = ops.rmsnorm(s, ops.silu(s, net.input(N, C)), net.parameter(C))
    return ops.add(s, ops.add(s, x, y), z)


def frozen_gate(net):
    s = net.s
    x = ops.swiglu(s, net.constant(N, C), net.activation())
    return ops.add(s, x, ops.swiglu(s, net.activation(), net.input(N, C)))


def frozen_matrix(net):
    s = net.s
    x = ops.linear(s, net.activation(), net.constant(C, C), net.constant(C), "gelu_exact")
    return ops.linear(s, x, net.constant(V, C), net.parameter(V))


def mixture(net, k, normalized=False, bias=False, experts=5, score=ops.softmax):
    s, x = net.s, net.activation()
    router = net.parameter(experts, C)
    p = score(s, ops.linear(s, x, router))
    routes = ops.route(s, p, k, normalized=normalized, scale=1.5)
    biases = [net.parameter(experts, n) if bias else None for n in (4, C)]
    h = ops.experts(s, ops.dispatch(s, x, routes), net.parameter(experts, 4, C), routes, biases[0])
    h = ops.weigh(s, ops.silu(s, h), routes)
    h = ops.experts(s, h, net.parameter(experts, C, 4), routes, biases[1])
    return ops.add(s, x, ops.combine(s, h, routes))


def mixture_sharing_a_matrix(net):
    s, x, w = net.s, net.activation(), net.parameter(3, C, C)
    for _ in range(2):
        p = ops.softmax(s, ops.linear(s, x, net.constant(3, C)))
        routes = ops.route(s, p, 2)
        h = ops.experts(s, ops.dispatch(s, x, routes), w, routes)
        x = ops.combine(s, ops.weigh(s, ops.silu(s, h), routes), routes)
    return x


def frozen_experts(net):
    s, x = net.s, net.activation()
    routes = ops.route(s, ops.softmax(s, net.constant(N, 4)), 2)
    h = ops.experts(s, ops.dispatch(s, x, routes), net.constant(4, C, C), routes)
    return ops.combine(s, ops.weigh(s, h, routes), routes)


def arithmetic(net):
    """Operators, numbers on either side, and shapes that broadcast in front, inside and behind."""
    x, y = net.activation(), net.activation()
    c, rows, one = net.parameter(C), net.parameter(N, 1), net.parameter()
    z = (2 - x) * y + 0.5 * x / (3 + y**2) - 1 / (2 + x * x) + (x - y) / 2 + (1 + x) - x / 4
    z = z * c + rows / (2 + c**2) - one * rows + one - x**3
    return z - c * (rows - one) + (-z) * 0.25


def functions(net):
    x, y = net.activation(), net.activation()
    mask = net.integers(N * C, 2, (N, C))
    z = x.exp().sqrt() + (1.5 + x * x).log() + y.tanh() - abs(x) + y.relu() + (1 + y**2) ** 1.5
    z = z + ops.where(net.s, mask, x * y, y.mean(1, keepdims=True)) - ops.where(net.s, mask, 0, x)
    return z + ops.where(net.s, mask, y.sum(0), 0) + ops.square(net.s, x)


def axes(net):
    """Sums, other shapes, parts: of computed tensors, of parameters, and of both once more."""
    x = net.activation().reshape(B, T, 2, C // 2)
    w = net.parameter(C, N).reshape(2, C // 2, B, -1).transpose(2, 3, 0, 1)
    x = x * w + x.sum((1, 3), keepdims=True) - x.mean((0, 2)).reshape(1, T, 1, C // 2)
    x = x + x.mean() * x.sum(-1).transpose(1, 0, 2).reshape(B, T, 2, 1)
    x = ops.concat(net.s, [x[..., 1:], x[..., 0:1]], -1)
    x = ops.concat(net.s, [x[:, 1:], x[:, 0:1], w[:, -1].reshape(B, 1, 2, -1)], 1)
    x = 0.005 * (x[:, :T] + x[:, -1].reshape(B, 1, 2, C // 2))
    return x.reshape(N, C) - net.parameter(C) + (x * x).reshape(N, C)


def products(net):
    """Products of matrices, in a batch, that broadcast, and with vectors."""
    x, w = net.activation(), net.parameter(C, 3)
    heads = x.reshape(B, T, C) @ net.parameter(C, C).transpose()
    scores = (heads @ heads.transpose(0, 2, 1)).tanh()  # (B, T, T)
    mixed = (net.parameter(T, T) @ (scores @ heads)).reshape(N, C)
    ahead = (net.parameter(2, 1, 2, 4) @ net.parameter(3, 4, C)).sum((0, 1, 2))
    return (mixed + x @ w @ w.transpose() + (x @ net.parameter(C)).reshape(N, 1) * ahead) * 0.3


TAPES = {
    **{
        f"linear{'-bias' * bias}-{activation}": (linear, bias, activation)
        for bias in (False, True)
        for activation in (None, "gelu_tanh", "gelu_exact")
    },
    "linear-of-parameters": (linear_of_parameters,),
    "linear-computed-weight": (linear_with_computed_weight,),
    "linear-twice": (linear_twice,),
    "add-used-twice": (used_twice,),
    "add-residuals": (residuals,),
    "arithmetic": (arithmetic,),
    "functions": (functions,),
    "axes": (axes,),
    "products": (products,),
    "add-parameters": (add_parameters,),
    "scale": (scale,),
    "dropout": (dropout, 1),
    "dropout-inactive": (dropout, 0),
    "gelu-tanh": (gelu, "gelu_tanh"),
    "gelu-exact": (gelu, "gelu_exact"),
    "sigmoid": (sigmoid,),
    "silu": (silu,),
    "swiglu": (swiglu,),
    "swiglu-within-a-limit": (swiglu_within_a_limit,),
    "swiglu-of-one": (swiglu_of_one,),
    "swiglu-of-parameters": (swiglu_of_parameters,),
    "softmax": (softmax,),
    "layernorm": (layernorm, 1e-5),
    "layernorm-eps": (layernorm, 0.3),
    "layernorm-sharing-a-gain": (layernorm_sharing_a_gain,),
    "layernorm-gain-is-bias": (layernorm_gain_is_bias,),
    "layernorm-twice": (layernorm_twice,),
    "rmsnorm": (rmsnorm, 1e-5),
    "rmsnorm-eps": (rmsnorm, 0.3),
    "rmsnorm-of-heads": (rmsnorm_of_heads,),
    "rope-interleaved": (rope, True),
    "rope-halves": (rope, False),
    "rope-of-a-part": (rope_of_a_part,),
    "rope-of-some-heads": (rope_of_some_heads,),
    "swiglu-halves": (swiglu_halves,),
    "shortconv": (shortconv, False),
    "shortconv-in-segments": (shortconv, True),
    "frozen-taps": (frozen_taps,),
    "taps-alone": (taps_alone,),
    "biased-taps": (biased_taps,),
    "columns": (columns,),
    "heads-that-share-columns": (heads_of_columns, 1),
    "heads-of-columns": (heads_of_columns, 2),
    "relu2": (relu2,),
    "streams": (streams, False),
    "streams-and-an-addition": (streams, True),
    "gaussian-topk": (gaussian_topk,),
    "delta": (delta, False),
    "delta-in-segments": (delta, True),
    "ssd": (ssd, False),
    "ssd-in-segments": (ssd, True),
    "gated": (gated,),
    "geglu": (geglu,),
    "softcap": (softcap,),
    "dora": (dora,),
    "embedding": (embedding,),
    "embedding-of-a-computed-table": (embedding_of_a_computed_table,),
    "embedding-tied": (tied,),
    **{
        f"attention-{form.__name__}-{heads}-{kv_heads}-{'causal' if causal else 'full'}": (
            form,
            heads,
            kv_heads,
            causal,
        )
        for form in (fused, separate)
        for heads, kv_heads in ((2, 2), (4, 2), (3, 1))
        for causal in (True, False)
    },
    "class-token": (class_token,),
    "class-token-on-computed-positions": (class_token_on_computed_positions,),
    "frozen-class-token": (frozen_class_token,),
    "attention-of-one": (attention_of_one,),
    "attention-with-limits": (attention_with_limits,),
    "attention-with-sinks": (attention_with_sinks, True),
    "attention-with-frozen-sinks": (attention_with_sinks, False),
    "attention-of-parameters": (attention_of_parameters,),
    "attention-in-segments": (attention_in_segments,),
    "frozen-keys": (frozen_keys,),
    "frozen-gain": (frozen_gain,),
    "norms-of-inputs": (norms_of_inputs,),
    "frozen-gate": (frozen_gate,),
    "frozen-matrix": (frozen_matrix,),
    "mixture": (mixture, 2),
    "mixture-normalized": (mixture, 3, True),
    "mixture-bias": (mixture, 2, True, True),
    "mixture-of-one": (mixture, 1, False, True, 1),
    "mixture-sigmoid": (mixture, 2, True, False, 5, ops.sigmoid),
    "mixture-sharing-a-matrix": (mixture_sharing_a_matrix,),
    "frozen-experts": (frozen_experts,),
}
