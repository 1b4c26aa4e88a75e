"""Layers: the vocabulary of a model's forward pass.

A model's forward pass names its weights and the layers to apply. Layers know whether weights are
trained, frozen, mapped or rounded, whether a matrix has an adapter, and whether keys and values are
cached. So training, LoRA, evaluation and generation record the same forward pass, each with layers
of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toynn import ops
from toynn.errors import ConfigError
from toynn.graph.tape import Tensor
from toynn.nn.caches import Caches
from toynn.nn.lora import LoRA, linear, scaled
from toynn.session import Session

_TABLE, _HEAD = "token_embd.weight", "output.weight"
_SCORES = {"softmax": ops.softmax, "sigmoid": ops.sigmoid}  # of experts, from a router's logits


@dataclass(frozen=True)
class Dropout:
    """Dropout of adapters' inputs: each element becomes 0 with this probability."""

    probability: float
    control: Tensor  # i32 (2,): step, active; see ops.dropout


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Layers over named weights, recorded on a session, for ``batch`` sequences laid flat (B T,).

    Attributes
    ----------
    weights, constants
        Weights by name; other arrays that the model reads, by name.
    rounding
        Type that matrices are rounded to before a product: "f32", "f16" or "bf16".
    adapters, dropout
        Adapters by the name of their matrix; dropout of their inputs, in a training step.
    caches
        Keys and values of earlier tokens, in generation.
    segments
        For each token the index of its segment's first token, if sequences have several segments.
    wanted
        Indices (R,) of the rows that are read after the last block; None: all rows. The last block
        computes other rows only as far as its attention needs them.
    long
        Whether sequences exceed the model's original context, if it has other constants for these.
    long_positions
        Given if a batch may hold both short and long examples: positions in long examples, 0 in
        short ones. The usual positions are then 0 in long examples.
    types
        Token types, if the model has a table of them.
    teacher
        What a teacher says of the rows of the head, if the loss has a part of it.
    prefix
        Prefix of the names of a block's weights.
    """

    session: Session
    weights: Mapping[str, Tensor]
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    batch: int = 1
    rounding: str = "f32"
    adapters: Mapping[str, LoRA] = field(default_factory=dict)
    dropout: Dropout | None = None
    caches: Caches | None = None
    segments: Tensor | None = None
    wanted: Tensor | None = None
    long: bool = False
    long_positions: Tensor | None = None
    types: Tensor | None = None
    teacher: ops.Teacher | None = None
    prefix: str = ""

    def blocks(self, count: int, name: str = "blk") -> Iterator["Layers"]:
        """Yield the layers of each block; names are then relative to the block: "attn_q"."""
        for n in range(count):
            with self.session.tape.block(f"{name}.{n}"):
                wanted = self.wanted if n == count - 1 else None
                yield replace(self, prefix=f"{name}.{n}.", wanted=wanted)

    def weight(self, name: str) -> Tensor:
        """Return a weight by its name within the block, ``.weight`` included."""
        return self.weights[self.prefix + name]

    def has(self, name: str) -> bool:
        """Return whether the block has a module of this name."""
        return f"{self.prefix}{name}.weight" in self.weights

    def bias(self, name: str) -> Tensor | None:
        """Return the bias of a module, if it has one."""
        return self.weights.get(f"{self.prefix}{name}.bias")

    # -- With weights --------------------------------------------------------------------------

    def embedding(self, name: str, ids: Tensor) -> Tensor:
        """Record the rows (N, C) of a table for ids (N,), plus an adapter's.

        An adapter adds s A[id] B^T, with A (V, r) and B (C, r); it has no dropout here.
        """
        s, adapter = self.session, self.adapters.get(f"{self.prefix}{name}.weight")
        y = ops.embedding(s, self.weight(f"{name}.weight"), ids)
        if adapter is None:
            return y
        low = self.scale(ops.embedding(s, adapter.a, ids), adapter.scale)
        return ops.add(s, y, ops.linear(s, low, adapter.b))

    def class_token(self, patches: Tensor, token: str, positions: str) -> Tensor:
        """Record a class token before the patches of each image, plus the position embeddings."""
        return ops.class_token(self.session, patches, self.weight(token), self.weight(positions))

    def linear(self, x: Tensor, name: str, activation: str | None = None) -> Tensor:
        """Record f(W x + b); if W has an adapter, its product is added before f.

        f is "gelu_tanh", "gelu_exact", "silu", "relu2" or None; b is added if there is one.
        """
        s, adapter = self.session, self._adapter(name)
        seen = self._dropped(x, name) if adapter is not None else x
        apart = {"silu": ops.silu, "relu2": ops.relu2}.get(activation or "")
        fused = activation if apart is None else None
        matrix, bias, measured = self.matrix(name), self.bias(name), self.caches is not None
        y = linear(s, x, matrix, bias, fused, adapter, seen, measured=measured)
        return y if apart is None else apart(s, y)

    def _adapted(self, name: str) -> str:
        """Return the name of a matrix's adapter; for a tied table, used as the head, the head's."""
        weight = f"{self.prefix}{name}.weight"
        return _HEAD if weight == _TABLE else weight

    def _adapter(self, name: str) -> LoRA | None:
        """Return the adapter of a matrix, if it has one."""
        return self.adapters.get(self._adapted(name))

    def _dropped(self, x: Tensor, name: str) -> Tensor:
        """Record the input of a matrix's adapter: x, with dropout if there is any."""
        if self.dropout is None:
            return x
        site = list(self.adapters).index(self._adapted(name))
        return ops.dropout(self.session, x, self.dropout.probability, self.dropout.control, site)

    def matrix(self, name: str) -> Tensor:
        """Return a matrix as products read it: rounded, unless ``rounding`` is "f32"."""
        w = self.weight(f"{name}.weight")
        return w if self.rounding == "f32" else ops.rounded(self.session, w, self.rounding)

    def layernorm(self, x: Tensor, name: str, eps: float) -> Tensor:
        """Record (x - mean) / sqrt(var + eps) * w + b by row; a missing b is no_bias."""
        gain, bias = self.weight(f"{name}.weight"), self.bias(name)
        bias = self.constants["no_bias"] if bias is None else bias
        return ops.layernorm(self.session, x, gain, bias, eps)

    def rmsnorm(self, x: Tensor, name: str, eps: float) -> Tensor:
        """Record x / sqrt(mean x^2 + eps) * w by row, or by head if w is as wide as a head.

        w is the weight of the module ``name``, else the weight with this full name, else the
        constant with this name.
        """
        gains = (self.weights.get(f"{self.prefix}{name}{end}") for end in (".weight", ""))
        w = next((weight for weight in gains if weight is not None), None)
        return ops.rmsnorm(self.session, x, self.constants[name] if w is None else w, eps)

    def mlp(self, x: Tensor, up: str, down: str, activation: str) -> Tensor:
        """Record down(f(up(x))); f as in ``linear``."""
        return self.linear(self.linear(x, up, activation), down)

    def swiglu(
        self, x: Tensor, gate: str, up: str, down: str, routes: ops.Routes | None = None
    ) -> Tensor:
        """Record down(silu(gate(x)) * up(x)). Source: Shazeer 2020, arXiv:2002.05202.

        With ``routes`` to one expert, each row is multiplied by its weight before ``down``.
        """
        gates, values = self.linear(x, gate), self.linear(x, up)
        h = ops.swiglu(self.session, gates, values)
        return self.linear(h if routes is None else ops.weigh(self.session, h, routes), down)

    def routes(
        self,
        x: Tensor,
        name: str,
        used: int,
        *,
        normalized: bool,
        score: str = "softmax",
        scale: float = 1.0,
        eps: float = 0.0,
        choice: str = "",
        groups: tuple[int, int] = (1, 1),
        best: int = 2,
        factors: str = "",
    ) -> ops.Routes:
        """Record which experts each row of x (N, C) goes to, by the scores of a router (E, C).

        Scores are the "softmax" of the router's logits, or the "sigmoid" of each. The experts with
        the ``used`` largest scores are chosen. ``choice`` names a module whose bias (E,), if it has
        one, is added to the scores for this choice only. The weights are the plain scores times
        ``scale``; if ``normalized``, they are first divided by their sum + ``eps``. ``factors`` is
        the full name of a weight (E,): the weights of each expert are multiplied by its factor.
        ``groups`` and ``best`` are those of ops.route. The router's product is computed in float32.
        Raises ConfigError for another score.
        """
        s = self.session
        if score not in _SCORES:
            raise ConfigError(f"score must be one of {', '.join(_SCORES)}; got {score!r}")
        precision, s.matmul_precision = s.matmul_precision, "highest"
        try:
            logits = self.linear(x, name)
        finally:
            s.matmul_precision = precision
        scores, b = _SCORES[score](s, logits), self.bias(choice) if choice else None
        f = self.weight(factors) if factors else None
        how: dict[str, Any] = {"normalized": normalized, "scale": scale, "eps": eps}
        return ops.route(s, scores, used, b, f, groups=groups, best=best, **how)

    def mixture(
        self,
        x: Tensor,
        gate: str,
        up: str,
        down: str,
        routes: ops.Routes,
        *,
        limit: float = 0.0,
        alpha: float = 1.0,
    ) -> Tensor:
        """Record the sum of w down(silu(gate(x)) * up(x)) over the experts of each row of x.

        Without a gate, down reads relu(up(x))^2. Without a bias in ``down``, the weight w is
        applied before ``down``: then no gradient needs the output of ``down``. ``limit`` and
        ``alpha`` are those of ops.swiglu.
        """
        s, copies = self.session, ops.dispatch(self.session, x, routes)
        if gate:
            gates, values = (self.experts(copies, name, routes) for name in (gate, up))
            h = ops.swiglu(s, gates, values, limit=limit, alpha=alpha)
        else:
            h = ops.relu2(s, self.experts(copies, up, routes))
        if self.bias(down) is None:
            return ops.combine(s, self.experts(ops.weigh(s, h, routes), down, routes), routes)
        return ops.combine(s, ops.weigh(s, self.experts(h, down, routes), routes), routes)

    def experts(self, x: Tensor, name: str, routes: ops.Routes) -> Tensor:
        """Record W[e] x + b[e] for each row and its expert e, plus the product of W's adapter."""
        s, adapter = self.session, self._adapter(name)
        y = ops.experts(s, x, self.matrix(name), routes, self.bias(name))
        if adapter is None:
            return y
        low = self.scale(ops.experts(s, self._dropped(x, name), adapter.a, routes), adapter.scale)
        return ops.add(s, y, ops.experts(s, low, adapter.b, routes))

    def swiglu_of(self, x: Tensor, both: str, down: str) -> Tensor:
        """Record down(silu(gate) * up), where gate and up are the halves of both(x)."""
        return self.linear(ops.swiglu_halves(self.session, self.linear(x, both)), down)

    def geglu_of(self, x: Tensor, both: str, down: str) -> Tensor:
        """Record down(gelu(gate) * up), where gate and up are the halves of both(x); exact GELU."""
        whole = self.linear(x, both)
        F = whole.shape[1] // 2
        gate, up = self.columns(whole, 0, F), self.columns(whole, F, F)
        return self.linear(ops.geglu(self.session, gate, up, exact=True), down)

    def geglu(
        self, x: Tensor, gate: str, up: str | Tensor, down: str, cutoff: float | None = None
    ) -> Tensor:
        """Record down(gelu(gate(x)) * up(x)), with GELU's tanh form; up may be a tensor itself.

        ``cutoff`` is the z of ops.gaussian_topk, which is then applied before GELU. Source: see
        ``swiglu``.
        """
        gates, values = self.linear(x, gate), self.linear(x, up) if isinstance(up, str) else up
        gates = gates if cutoff is None else ops.gaussian_topk(self.session, gates, cutoff)
        return self.linear(ops.geglu(self.session, gates, values), down)

    def geglu_mixture(self, x: Tensor, gate: str, up: str, down: str, routes: ops.Routes) -> Tensor:
        """Record the sum of w down(gelu(gate(x)) * up(x)) over the experts of each row of x.

        Without a name of up, gate and up are the halves of gate's result. w is applied before
        ``down``, as in ``mixture``.
        """
        s, copies = self.session, ops.dispatch(self.session, x, routes)
        gates = self.experts(copies, gate, routes)
        if up:
            values = self.experts(copies, up, routes)
        else:
            F = gates.shape[1] // 2
            gates, values = self.columns(gates, 0, F), self.columns(gates, F, F)
        h = ops.geglu(s, gates, values)
        return ops.combine(s, self.experts(ops.weigh(s, h, routes), down, routes), routes)

    def shortconv(self, x: Tensor, into: str, taps: str, out: str) -> Tensor:
        """Record out(g * conv(i * v)); i, g and v are the thirds of into(x). See ops.shortconv.

        With caches, the convolution reads earlier rows from the cache and adds these rows to it.
        """
        return self.linear(self.narrowed(self.convolution(self.linear(x, into), taps)), out)

    def convolution(self, x: Tensor, taps: str) -> Tensor:
        """Record conv(x) by channel, or g * conv(b * v) if x holds b, g and v; see ops.shortconv.

        Caches are used as in ``shortconv``.
        """
        w, where = self.weight(f"{taps}.weight"), dict[str, Any](first=self.segments)
        if (caches := self.caches) is not None:
            where |= {"ring": caches.ring(self.prefix, self.batch, w.shape[0]), "past": caches.past}
        return ops.shortconv(self.session, x, w, self.bias(taps), batch=self.batch, **where)

    def delta(
        self, x: Tensor, g: Tensor, c: Tensor, n_k_heads: int, d_k: int, *, grouped: bool = False
    ) -> Tensor:
        """Record the gated delta rule's output for q, k and v in x; see ops.delta.

        With caches, the states start from the cached ones and are cached again.
        """
        where = self._recurrent(x, g.shape[1], n_k_heads, d_k)
        where |= {"n_k_heads": n_k_heads, "d_k": d_k, "grouped": grouped}
        return self.narrowed(ops.delta(self.session, x, g, c, **where))

    def _recurrent(self, x: Tensor, heads: int, groups: int, rows: int) -> dict[str, Any]:
        """Return where the states of a recurrence begin, as arguments of its op.

        x (N, 2 G D + V E) holds G groups of D rows twice, then V heads of E channels.
        """
        where: dict[str, Any] = {"batch": self.batch, "first": self.segments}
        if (caches := self.caches) is None:
            return where
        columns = (x.shape[1] - 2 * groups * rows) // heads
        state = caches.state(self.prefix, (self.batch, heads, rows, columns))
        return where | {"state": state, "past": caches.past, "count": caches.counts}

    def ssd(
        self, x: Tensor, dt: Tensor, a: str, bias: str, skip: str, n_groups: int, d_state: int
    ) -> Tensor:
        """Record the output of a selective state space; see ops.ssd.

        ``a``, ``bias`` and ``skip`` are full names of weights. Caches are used as in ``delta``.
        """
        where = self._recurrent(x, dt.shape[1], n_groups, d_state)
        where |= {"n_groups": n_groups, "d_state": d_state}
        weights = [self.weight(name) for name in (a, bias, skip)]
        return self.narrowed(ops.ssd(self.session, x, dt, *weights, **where))

    def predict(self, x: Tensor, w: Tensor, n_streams: int) -> Tensor:
        """Record streams (N, A C) predicted from all of x, by w (N, A A); see ops.predict."""
        return ops.predict(self.session, x, w, n_streams)

    def correct(self, p: Tensor, a: Tensor, w: Tensor, f: Tensor | None = None) -> Tensor:
        """Record streams p (N, A C) corrected by a (N, C) and w (N, A), plus f; see ops.correct."""
        return ops.correct(self.session, p, a, w, f)

    def rescale(self, z: Tensor, x: Tensor) -> Tensor:
        """Record z (N, C), each row scaled to the length of the row of x."""
        return ops.rescale(self.session, z, x)

    def beside(self, x: Tensor, y: Tensor) -> Tensor:
        """Record (x | y) of x (N, A) and y (N, B)."""
        return ops.joined(self.session, x, y, 1)

    def weighed(self, x: Tensor, name: str, ones: str) -> Tensor:
        """Record x (N, C) times a weight (C,) by its full name; ``ones`` names ones (C,)."""
        return ops.dora(self.session, x, self.weight(name), self.constants[ones])

    def columns(self, x: Tensor, first: int, count: int) -> Tensor:
        """Record ``count`` columns of x (N, C), from ``first`` on."""
        return ops.columns(self.session, x, first, count)

    def gatednorm(self, x: Tensor, z: Tensor, name: str, eps: float) -> Tensor:
        """Record the RMSNorm of each group of x silu(z); the gain has a row for each group."""
        return ops.gatednorm(self.session, x, z, self.weight(f"{name}.weight"), eps)

    def decay(self, x: Tensor, gain: str, bias: str) -> Tensor:
        """Record gain * log(1 + e^(x + bias)); both are full names of weights. See ops.decay."""
        return ops.decay(self.session, x, self.weight(gain), self.weight(bias))

    def latent_attention(
        self,
        q: Tensor,
        c: Tensor,
        r: Tensor,
        name: str,
        *,
        n_heads: int,
        d_value: int,
        scale: float,
    ) -> Tensor:
        """Record attention of q (B T, H (P + R)) over keys (W_k c | r) and values W_v c.

        c (B T, C) holds the latents; all heads share r (B T, R). ``name`` is the matrix
        (H (P + E), C): for each head, P rows of W_k, then E rows of W_v. Caches hold only c and r:
        queries absorb W_k (see the kernel latent).
        """
        s, H, E = self.session, n_heads, d_value
        R, C = r.shape[1], c.shape[1]
        P = q.shape[1] // H - R
        if self.caches is None:
            kv = self.linear(c, name)
            k = ops.joined(s, ops.head_columns(s, kv, H, 0, P), r, H)
            v = ops.head_columns(s, kv, H, P, E)
            return self.attention(q, k, v, n_heads=H, scale=scale)
        low = ops.head_columns(s, q, H, 0, P)
        low = self._latent_product(low, name, H, 0, P, P + E, absorbs=True)
        q = ops.joined(s, low, ops.head_columns(s, q, H, P, R), H, H)
        k = ops.joined(s, c, r, 1)
        o = self.attention(q, k, n_heads=H, n_kv_heads=1, scale=scale, d_value=C)
        return self._latent_product(o, name, H, P, E, P + E, absorbs=False)

    def _latent_product(
        self,
        x: Tensor,
        name: str,
        n_heads: int,
        first: int,
        width: int,
        rows: int,
        *,
        absorbs: bool,
    ) -> Tensor:
        """Record ops.absorbed or ops.expanded of x by ``width`` rows of each head of a matrix.

        The product of the matrix's adapter is added. DoRA's magnitudes apply to these rows.
        """
        s, adapter, at = self.session, self._adapter(name), (n_heads, first)

        def magnified(y: Tensor) -> Tensor:
            if adapter is None or (dora := adapter.magnitude) is None:
                return y
            whole = ops.dora(s, ops.placed(s, y, *at, rows), dora.m, dora.inverse)
            return ops.head_columns(s, whole, *at, width)

        if absorbs:
            x = magnified(x)
            y = ops.absorbed(s, x, self.matrix(name), *at, rows)
        else:
            y = ops.expanded(s, x, self.matrix(name), *at, width, rows)
        for a, b, factor in () if adapter is None else adapter.pairs():
            r = a.shape[0]
            if absorbs:
                added = ops.absorbed(s, x, b, *at, rows)
                added = ops.absorbed(s, added, a, n_heads, 0, r, shared=True)
            else:
                added = ops.expanded(s, x, a, n_heads, 0, r, r, shared=True)
                added = ops.expanded(s, added, b, *at, width, rows)
            y = ops.add(s, y, self.scale(added, factor))
        return y if absorbs else magnified(y)

    def rope_behind(self, x: Tensor, positions: Tensor, n_heads: int, **rope: Any) -> Tensor:
        """Record heads of x (B T, H D) with RoPE on their last channels; see ``rope``."""
        s, R = self.session, 2 * self.constants["inverse_frequencies"].size
        P = x.shape[1] // n_heads - R
        last = self.rope(ops.head_columns(s, x, n_heads, P, R), positions, n_heads, **rope)
        return ops.joined(s, ops.head_columns(s, x, n_heads, 0, P), last, n_heads, n_heads)

    def head(
        self, x: Tensor, name: str, labels: Tensor, cap: float = 0.0
    ) -> tuple[Tensor | None, Tensor]:
        """Record the loss of x (N, C) with the head's matrix (V, C); return logits and loss.

        With a cap, logits become cap tanh(logits / cap). Many logits are computed in chunks of rows
        and returned as None, unless dense labels or DoRA's magnitudes need all of them; with a
        teacher always. Raises ConfigError for a teacher and such magnitudes.
        """
        s, adapter = self.session, self._adapter(name)
        (N, _), (V, _) = x.shape, self.weight(f"{name}.weight").shape
        whole = adapter is not None and adapter.magnitude is not None
        if whole and self.teacher is not None:
            raise ConfigError(
                f"{name}: DoRA does not adapt the head where a teacher is: leave it out of the "
                "targets"
            )
        chunked = self.teacher is not None or ops.chunk_rows(N, V) < N
        if whole or labels.dtype == "f32" or not chunked:
            logits = self.softcap(self.linear(x, name), cap)
            return logits, ops.cross_entropy(s, logits, labels)
        added = list(adapter.products(s, self._dropped(x, name))) if adapter is not None else []
        matrix, bias = self.matrix(name), self.bias(name)
        more: dict[str, Any] = {"cap": cap, "added": added, "teacher": self.teacher}
        return None, ops.linear_cross_entropy(s, x, matrix, labels, bias, **more)

    # -- Without weights -----------------------------------------------------------------------

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Record x + y."""
        return ops.add(self.session, x, y)

    def residual(self, x: Tensor, y: Tensor) -> Tensor:
        """Record x + y, where y is attention's result; in the last block, for wanted rows only."""
        return ops.add(self.session, self.narrowed(x), y)

    def narrowed(self, x: Tensor) -> Tensor:
        """Record x (B T, C), in the last block only its wanted rows."""
        return x if self.wanted is None else self.rows(x, self.wanted)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """Record x times a number."""
        return scaled(self.session, x, factor)

    def silu(self, x: Tensor) -> Tensor:
        """Record x / (1 + e^-x)."""
        return ops.silu(self.session, x)

    def relu(self, x: Tensor) -> Tensor:
        """Record max(x, 0)."""
        return ops.relu(self.session, x)

    def gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """Record x silu(gate)."""
        return ops.swiglu(self.session, gate, x)

    def queries(self, x: Tensor, n_heads: int, part: int = 0) -> Tensor:
        """Record a half of each head of x, such as q (part 0) and its gate (part 1)."""
        return ops.queries(self.session, x, n_heads, part)

    def gated(self, x: Tensor, gates: Tensor, n_heads: int) -> Tensor:
        """Record x sigmoid(gate), with the gates beside the queries; see ops.gated.

        x has the wanted rows only, the gates have all rows.
        """
        return ops.gated(self.session, x, self.narrowed(gates), n_heads)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """Record cap tanh(x / cap); return x itself if the cap is 0."""
        return ops.softcap(self.session, x, cap) if cap else x

    def rows(self, x: Tensor, ids: Tensor) -> Tensor:
        """Record the rows of x with the indices ids (N,)."""
        return ops.embedding(self.session, x, ids)

    def rope(
        self,
        x: Tensor,
        positions: Tensor,
        n_heads: int,
        frequencies: str = "inverse_frequencies",
        *,
        interleaved: bool = False,
        **how: Any,
    ) -> Tensor:
        """Record x (B T, H D) with pairs of each head rotated by position; see ops.rope.

        ``frequencies`` names a constant: the angle per position of each pair that rotates.
        ``interleaved``: channels 2i and 2i + 1 are a pair, instead of i and i + R/2. ``how`` are
        magnitude, growth, span and rotated of ops.rope.
        """
        how |= {"interleaved": interleaved}
        return ops.rope(self.session, x, positions, self.constants[frequencies], n_heads, **how)

    def attention(
        self,
        q: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        *,
        n_heads: int,
        n_kv_heads: int | None = None,
        causal: bool = True,
        scale: float | None = None,
        window: int = 0,
        cap: float = 0.0,
        sinks: str | None = None,
        d_value: int | None = None,
    ) -> Tensor:
        """Record softmax(scale q k^T) v of each sequence and head; see ops.attention.

        If k is None, q holds q, k and v side by side. If only v is None, with caches, values are
        the first ``d_value`` columns of keys. Scale None means 1 / sqrt(D). A window or cap of 0
        means none. ``sinks`` names weights. With caches, earlier keys and values are read from the
        cache and new ones are added; a block can then have only one attention.
        """
        heads, cache = n_kv_heads or n_heads, None
        if self.caches is not None:
            d_head = q.shape[1] // (n_heads if k is not None else n_heads + 2 * heads)
            d_values = d_head if v is None else v.shape[1] // heads
            width = d_values if d_value is None else None
            cache = self.caches.of(self.prefix, self.batch, heads, d_head, width)
        all_rows = ops.attention(
            self.session,
            q,
            k,
            v,
            batch=self.batch,
            n_heads=n_heads,
            n_kv_heads=heads,
            causal=causal,
            first=self.segments,
            scale=scale,
            window=window,
            cap=cap,
            sinks=None if sinks is None else self.weight(f"{sinks}.weight"),
            cache=cache,
            d_value=d_value,
        )
        return self.narrowed(all_rows)
