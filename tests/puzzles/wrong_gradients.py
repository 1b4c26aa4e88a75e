"""Wrong answers on the road of gradients: a part of the solution, another one, what is said."""

WRONG = {
    "linear": [
        ("dy.sum(axis=0)", "dy", r"db has shape \(4, 3\).*a sum over axis 0 is missing"),
        ("dw = dy.T @ x", "dw = x.T @ dy", r"dw has shape \(5, 3\).*transpose"),
        ("dy.sum(axis=0)", "dy.mean(axis=0)", r"db\[0\] is wrong.*the mean over rows"),
        ("dx = dy @ w", "dx = -dy @ w", r"dx\[0, 0\] is wrong.*finite difference.*the sign"),
        ("dx = dy @ w", "dx = dy @ w.T", r"line \d+: dx = dy @ w\.T\n.*Shapes there: .*w \(3, 5\)"),
    ],
    "softmax": [
        ("(dy - (y * dy).sum(axis=1, keepdims=True))", "dy", r"dx\[0, 0\] .*the sum over the row"),
        ("axis=1, keepdims=True", "", r"the sum runs over all rows"),
        (
            "y * (dy - (y * dy).sum(axis=1, keepdims=True))",
            "y * dy - (y * dy).sum(axis=1, keepdims=True)",
            r"y is not applied to the whole",
        ),
        ("(dy - (y * dy).sum(axis=1, keepdims=True))", "dy * (1 - y)", r"only the way from x\[c\]"),
        ("(y * dy).sum", "dy.sum", r"y is missing inside of the sum"),
        ("return y *", "return -y *", r"the sign is wrong everywhere"),
        (", keepdims=True", "", r"line \d+: return .*\n.*broadcast.*Shapes there: dy \(4, 5\)"),
    ],
    "cross_entropy": [
        ("logits.max(axis=1, keepdims=True)", "0", r"loss is inf, with logits near 1000.*largest"),
        ("rows = counting.sum()", "rows = labels.size", r"loss is wrong.*mean is over all rows"),
        ("dlogits[~counting] = 0", "pass", r"dlogits\[4, 0\].*-100 have a gradient"),
        (
            "dlogits[~counting] = 0",
            "dlogits[~counting, 0] -= 1",
            r"dlogits\[4, 0\].*-100 have a gradient",
        ),
        ("dlogits[n, label] -= 1", "pass", r"dlogits\[0, .*1 is not subtracted"),
        ("dlogits /= rows", "pass", r"every element is 5 times .*: rows, where rows = 5"),
    ],
    "rmsnorm": [
        (" - x * r**3 * k", "", r"dx\[0, 0\] .*term with the mean over the row is missing"),
        (".mean(axis=1", ".sum(axis=1", r"a sum over the row, where the mean"),
        ("r**3", "r**2", r"the power of r"),
        ("dy - x * r", "dy + x * r", r"the second term is added"),
        ("(w * dy * x)", "(dy * x)", r"w is missing inside"),
        ("(dy * x * r).sum(axis=0)", "(dy * x).sum(axis=0)", r"dw\[0\] .*r is missing"),
    ],
    "layernorm": [
        (" - mean_g - h", " - h", r"the mean of w dy is missing"),
        (" - h * mean_gh", "", r"the mean of w dy h is missing"),
        ("(x - mean) * r, w * dy", "(x - mean) * r, dy", r"w is missing: it stands between"),
        ("dw = (dy * h)", "dw = (dy * x)", r"dw\[0\] .*dy times x, where"),
        ("dx = r * (", "dx = (", r"dx\[0, 0\] .*along axis 1 all elements .* same wrong factor"),
    ],
    "swiglu": [
        ("(1 + gate * (1 - s))", "(1 - s)", r"dgate\[0\] .*gradient of the sigmoid alone"),
        ("(1 + gate * (1 - s))", "1", r"the slope of the sigmoid is missing"),
        ("dy * up * s", "dy * s", r"up is missing"),
        ("dup = dy * gate * s", "dup = dy * s", r"dup\[0\] .*sigmoid of gate, where silu"),
        (
            "1 / (1 + np.exp(-gate))",
            "np.exp(gate) / (1 + np.exp(gate))",
            r"dgate is \[.*nan.*\] for gate = \[-1000, 1000\].*infinity / infinity",
        ),
    ],
    "rope": [
        (
            "first * cos + second * sin, second * cos - first * sin",
            "first * cos - second * sin, second * cos + first * sin",
            r"dx\[0, 0, 0\] .*rotated forward",
        ),
        ("np.outer(positions,", "np.outer(np.arange(len(dy)),", r"the row number is used"),
        ("half = frequencies.size", "half = 1", r"line \d+:.*broadcast.*Shapes"),
        (
            "dy[:, :, :half], dy[:, :, half:]\n"
            "    return np.concatenate([first * cos + second * sin, second * cos - first * sin], "
            "axis=2)",
            "dy[:, :, ::2], dy[:, :, 1::2]\n"
            "    turned = first * cos + second * sin, second * cos - first * sin\n"
            "    return np.stack(turned, axis=3).reshape(dy.shape)",
            r"dx\[0, 0, 0\] is wrong.*yours.*right.*finite difference.*adjacent channels are",
        ),
        ("axis=2)", "axis=2).astype('c8')", r"dx has dtype complex64"),
    ],
    "attention": [
        (
            "y, p = forward(q, k, v)\n",
            "p = np.exp(q @ k.T / 2)\n    p /= p.sum(axis=1, keepdims=True)\n",
            r"dv\[0, 0\] .*the mask is missing",
        ),
        ("(p * dp).sum(axis=1", "(p * dp).sum(axis=0", r"dq\[0, 0\] (?!.*same wrong factor)"),
        ("dv = p.T @ dy", "dv = p @ dy", r"p must be transposed"),
        (" - (p * dp).sum(axis=1, keepdims=True)", "", r"dq\[.*missing its sum over the row"),
        ("keepdims=True)) * scale", "keepdims=True))", r"1 / sqrt\(D\) is missing"),
        ("dk = ds.T @ q", "dk = ds @ q", r"dk\[.*must be transposed"),
    ],
    "tied_head": [
        ("np.add.at(dw, ids, dx)", "pass", r"dw\[0, 0\] .*only the head's part"),
        ("dw = dlogits.T @ x", "dw = np.zeros_like(w)", r"only the embedding's part"),
        ("np.add.at(dw, ids, dx)", "dw[ids] += dx", r"id 2 occurs twice.*np\.add\.at"),
        ("np.add.at(dw, ids, dx)", "dw[ids] = dx", r"takes the place of the head's|id 2"),
        ("dw = dlogits.T @ x", "dw = x.T @ dlogits", r"line \d+: np\.add\.at.*Shapes there"),
    ],
    "lora": [
        ("dy @ w + du @ a", "dy @ w", r"dx\[0, 0\] .*only the frozen w's part"),
        ("dy @ w + du @ a", "du @ a", r"dx\[0, 0\] .*only the adapter's part"),
        ("du = scale * dy @ b", "du = dy @ b", r"dx\[0, 0\] .*scale is missing in the adapter"),
        ("db = scale *", "db =", r"db\[0, 0\] .*scale is missing"),
        ("da = du.T @ x", "da = scale * du.T @ x", r"da\[0, 0\] .*scale is applied twice"),
    ],
}
