"""The norm of all gradients, AdamW, and Muon."""

import numpy as np

from toynn.backends.reference.kernel import kernel


@kernel("grad_norm.forward")
def grad_norm(g, control):
    """Compute norm = c sqrt(sum g^2), scale = c min(1, most / (norm + 1e-6)), control = (most, c).

    most <= 0 means no clipping. scale is NaN if norm is not finite in float32.
    """
    most, inverse = control
    norm = inverse * np.sqrt((g * g).sum())
    clip = 1.0 if most <= 0 else np.minimum(1.0, most / (norm + 1e-6))
    scale = inverse * clip if np.isfinite(np.float32(norm)) else np.nan
    return {"norm": np.array([norm]), "scale": np.array([scale])}


@kernel("adamw.step")
def adamw(w, m, v, g, hp, scale):
    """Compute m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g^2.

    w decays by lr (weight decay) w, then moves by lr m' / (sqrt(v') + eps).
    g is first multiplied by scale. If scale is not finite, nothing changes.
    hp = (lr, b1, b2, eps, weight decay, c1, c2), m' = c1 m, v' = c2 v.
    """
    if not np.isfinite(scale[0]):
        return {}
    lr, beta1, beta2, eps, weight_decay, c1, c2 = hp
    g = g * scale
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    w = w * (1 - lr * weight_decay) - lr * (c1 * m) / (np.sqrt(c2 * v) + eps)
    return {"w": w, "m": m, "v": v}


@kernel("muon.momentum")
def muon_momentum(m, g, hp, scale):
    """Compute m = b1 m + g scale, and u = g scale + b1 m; if scale is not finite, only u = 0."""
    if not np.isfinite(scale[0]):
        return {"u": np.zeros_like(g)}
    g = g * scale
    m = hp[1] * m + g
    return {"m": m, "u": g + hp[1] * m}


@kernel("muon.start")
def muon_start(u, squares):
    """Compute x = u / (its norm + 1e-7), from the sum of its squares."""
    return {"x": u / (np.sqrt(squares) + 1e-7)}


@kernel("muon.mix")
def muon_mix(x, z, alpha, beta):
    """Compute y = alpha x + beta z."""
    return {"y": alpha * x + beta * z}


@kernel("muon.step")
def muon_step(w, x, hp, scale, factor):
    """Compute w = w (1 - lr decay) - lr factor x; if scale is not finite, nothing changes."""
    if not np.isfinite(scale[0]):
        return {}
    return {"w": w * (1 - hp[0] * hp[4]) - hp[0] * factor * x}
