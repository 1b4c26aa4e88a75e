"""Wrong answers on the road of the engine: a part of the solution, another one, what is said."""

WRONG = {
    "tape": [
        (
            "grad.get(name, 0.0) + slope",
            "slope",
            r"grad\['u'\] is wrong, in the example.*a gradient is overwritten",
        ),
        ("reversed(tape)", "tape", r"grad\['a'\] .*in a chain.*walked from its beginning"),
        ("grad = {loss: 1.0}", "grad = {}", r"gradient of the loss itself, 'd', is missing"),
        (
            "grad.get(result, 0.0)",
            "grad[result]",
            r"line \d+: grad\[name\] = .*\nKeyError: 'unused'",
        ),
        ("grad = {loss: 1.0}", "grad = {loss: 0.0}", r"grad\['d'\] .*the loss itself is 1: begin"),
        ("return grad", "return grad[tape[0][0]]", r"return a dictionary. It returned float"),
    ],
    "accumulation": [
        ("dw * count", "dw", r"the gradient\[0, 0\] .*dw is not multiplied"),
        (
            "total = total + dw * count\n            tokens += count",
            "total = total + dw\n            tokens += 1",
            r"the mean of the micro-batches' means",
        ),
        ("if count:", "if True:", r"a micro-batch without tokens has a gradient of 0 / 0"),
        ("total / tokens", "total / len(batches)", r"divided by the number of micro-batches"),
        (
            "    return total / tokens",
            "    kept = [gradient(b) for b in batches if b != 2]\n"
            "    return sum(dw * n for dw, n in kept) / tokens",
            r"gradient\(\) was called 7 times for 4 micro-batches",
        ),
    ],
    "clipping": [
        ("g.astype(np.float64)", "g", r"norm is inf, with gradients near 1e25.*Square in float64"),
        (
            "np.sqrt(sum(",
            "(sum(",
            r"norm is wrong, .*usual.*the square root is missing",
        ),
        (
            "min(1.0, most / (norm + 1e-6))",
            "most / (norm + 1e-6)",
            r"scale .*small gradients are made",
        ),
        (" if np.isfinite(norm) else np.nan", "", r"scale is 0.0, with a gradient of inf.*nan"),
        (
            "np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients))",
            "sum(np.sqrt((g.astype(np.float64) ** 2).sum()) for g in gradients)",
            r"each array has a norm of its own",
        ),
    ],
    "adamw": [
        (
            "m / (1 - beta1**t), v / (1 - beta2**t)",
            "m, v",
            r"w\[0\] .*step 1.*the corrections",
        ),
        ("m / (1 - beta1**t), v", "m, v", r"w\[0\] .*m is not corrected"),
        ("v / (1 - beta2**t)", "v", r"w\[0\] .*v is not corrected"),
        ("w - lr * decay * w", "w - decay * w", r"the decay is not multiplied by lr"),
        ("(1 - beta2) * g * g", "(1 - beta2) * g", r"v\[0\] .*g is not squared"),
        ("(np.sqrt(square) + eps)", "np.sqrt(square + eps)", r"eps stands under the root"),
        (
            "    m = beta1 * m",
            "    g = g + decay * w\n    m = beta1 * m",
            r"m\[0\] .*Adam with L2, not AdamW",
        ),
    ],
    "arena": [
        (
            "first <= end and begin <= last",
            "first < end and begin < last",
            r"overlap.*`last` belongs to",
        ),
        ("-(-other // 64) * 64", "other", r"tensor \d+ is at byte \d+.*multiples of 64"),
        ("first <= end and begin <= last", "True", r"the arena takes \d+ bytes.*no memory is used"),
        ("key=lambda i: -tensors[i][0]", "key=lambda i: tensors[i][0]", r"holes: place large"),
        ("first <= end and begin <= last", "False", r"tensors 0 and 1 overlap.*live in step 1"),
    ],
    "checkpoint": [
        ("if i % every == 0:", "if True:", r"\d+ activations were kept at once.*keeps all"),
        (
            "            dy = backward(i, inputs.pop(), dy)",
            "            x = kept[start]\n"
            "            for k in range(start, i):\n"
            "                x = forward(k, x)\n"
            "            dy = backward(i, x, dy)",
            r"line \d+: x = kept\[start\]\nKeyError",
        ),
        (
            "dy = backward(i, inputs.pop(), dy)",
            "dy = backward(i, forward(i, inputs.pop()), dy)",
            r"given layer i's output. It needs its input",
        ),
        (
            "for i in reversed(range(start, stop)):\n"
            "            dy = backward(i, inputs.pop(), dy)",
            "for i, x in zip(range(start, stop), inputs):\n            dy = backward(i, x, dy)",
            r"dx\[0\] .*within a segment the first layer comes first",
        ),
        (
            "inputs = [kept.pop(start)]",
            "inputs = [x0 := kept[0]]\n        for i in range(start):\n"
            "            inputs = [forward(i, inputs[-1])]",
            r"layer 0 was computed 4 times. Twice",
        ),
    ],
    "packing": [
        ("row * length + at\n", "row * length\n", r"first\[0, 3\] .*one start for the whole row"),
        (
            "range(len(example))",
            "[i * (example is not rest) for i in range(len(example))]",
            r"positions\[1, 7\] .*padding has positions",
        ),
        (
            "row * length + at\n",
            "(row * length + at) * (example is not rest)\n",
            r"first\[1, 6\] .*padding has a first",
        ),
        (
            "row * length + at\n",
            "at * (example is not rest)\n",
            r"first\[1, 0\] .*the column of the start.*padding has none",
        ),
        ("range(len(example))", "range(at, end)", r"positions\[0, 3\] .*count along the row"),
        (
            "labels[row, at : end - 1] = example[1:]",
            "labels[row, at:end] = example",
            r"labels\[0, 0\] .*not shifted",
        ),
        ("> length", ">= length", r"ids has shape \(3, 8\); it should have \(2, 8\)"),
        ("np.full(shape, -100)", "np.zeros(shape, int)", r"labels\[0, 2\] .*is -100, not 0"),
    ],
    "kv_cache": [
        ("values[:, past] = v", "pass", r"values\[:, past\]\[0, 0\] .*not written into the cache"),
        (" / np.sqrt(D)", "", r"o\[0, 0\] .*1 / sqrt\(D\) is missing"),
        ("g = h // (H // KV)", "g = h % KV", r"o\[1, 0\] .*heads are served in turn"),
        ("g = h // (H // KV)", "g = h // KV", r"o\[2, 0\] .*not h // KV"),
        ("keys[g, : past + 1]", "keys[g, :past]", r"line \d+: o\[h\] = .*\nValueError"),
        (
            "keys[g, : past + 1] @ q[h] / np.sqrt(D)\n        p = np.exp(scores - scores.max())\n"
            "        o[h] = p @ values[g, : past + 1] / p.sum()",
            "keys[g] @ q[h] / np.sqrt(D)\n        p = np.exp(scores - scores.max())\n"
            "        o[h] = p @ values[g] / p.sum()",
            r"rows after the new token are read",
        ),
    ],
    "q4_k": [
        (" - dmin * least", "", r"x\[0\] .*the minimum is missing"),
        ("s[j - 4] >> 6 << 4", "s[j - 4] >> 6", r"x\[128\] .*belong above the 4 low ones"),
        ("s[j + 4] & 15 | s[j - 4] >> 6 << 4", "s[j + 4] & 15", r"x\[128\] .*high bits of scale"),
        (
            "part >> 4 if j % 2 else part & 15",
            "part & 15 if j % 2 else part >> 4",
            r"low and high halves of the bytes are swapped",
        ),
        ("d * scale * n", "d * scale * (n - 8.0)", r"8 is subtracted"),
        ("d * scale * n - dmin * least", "d * scale * n + dmin * least", r"the minimum is added"),
    ],
}
