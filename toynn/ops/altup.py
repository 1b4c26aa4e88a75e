"""Ops of Gemma 3n: streams of a token that a block predicts and corrects, and Gaussian top-k."""

from toynn.graph.tape import Op, Tensor
from toynn.ops._shape import Recorder, by_names, flops, itself, matrix, require


def predict(s: Recorder, x: Tensor, w: Tensor, n_streams: int) -> Tensor:
    """Record y_i = x_i + sum_j w_ij x_j for the streams of x (N, A C); w (N, A A)."""
    _, across = matrix("predict", x=x)
    fits = w.shape == (x.shape[0], n_streams**2) and across % n_streams == 0
    require(fits, "predict", f"x (N, {n_streams} C) and w (N, {n_streams**2})", x=x, w=w)
    return s.tape.record(PREDICT, {"x": x, "w": w}, A=n_streams).output


def correct(s: Recorder, p: Tensor, a: Tensor, w: Tensor, f: Tensor | None = None) -> Tensor:
    """Record y_i = p_i + (1 + w_i) (a - p_0) for the streams of p (N, A C); a (N, C), w (N, A).

    f (N, C), if given, is added to all streams but the first.
    """
    N, C = matrix("correct", a=a)
    A = matrix("correct", w=w)[1]
    fits = p.shape == (N, A * C) and w.shape[0] == N and (f is None or f.shape == a.shape)
    require(fits, "correct", f"p ({N}, {A * C}), w ({N}, {A}), f as a", p=p, a=a, w=w, f=f)
    return s.tape.record(CORRECT, {"p": p, "a": a, "w": w, "f": f}, A=A).output


def rescale(s: Recorder, z: Tensor, x: Tensor, floor: float = 1e-5) -> Tensor:
    """Record z (N, C) with the length of x by row: z sqrt(mean x^2 / max(mean z^2, floor))."""
    require(z.shape == x.shape and floor > 0, "rescale", "z and x alike, floor > 0", z=z, x=x)
    return s.tape.record(RESCALE, {"z": z, "x": x}, floor=floor).output


def gaussian_topk(s: Recorder, x: Tensor, z: float) -> Tensor:
    """Record y = max(x - (mean + z std), 0) of each row of x (N, C); std divides by C."""
    matrix("gaussian_topk", x=x)
    return s.tape.record(TOPK, {"x": x}, z=z).output


PREDICT_BACKWARD = Op("altup.predict_backward", flops(4, "N", "A", "A", "C"), rows="N dy")
PREDICT = Op(
    "altup.predict",
    flops(2, "N", "A", "A", "C"),
    by_names(PREDICT_BACKWARD),
    rows="N x",
    name="predicted",
)
CORRECT_BACKWARD = Op("altup.correct_backward", flops(6, "N", "A", "C"), rows="N dy")
CORRECT = Op(
    "altup.correct",
    flops(4, "N", "A", "C"),
    by_names(CORRECT_BACKWARD),
    rows="N p",
    name="corrected",
)
RESCALE_BACKWARD = Op("altup.rescale_backward", flops(10, "N", "C"), rows="N dy")
RESCALE = Op(
    "altup.rescale", flops(5, "N", "C"), by_names(RESCALE_BACKWARD), rows="N z", name="rescaled"
)
TOPK_BACKWARD = Op("gaussian_topk.backward", flops(6, "N", "C"), rows="N dy")
TOPK = Op(
    "gaussian_topk.forward",
    flops(6, "N", "C"),
    by_names(TOPK_BACKWARD),
    recompute=itself,
    rows="N x",
)
