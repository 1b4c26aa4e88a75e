"""Wrong answers on the road of bugs: a part of the solution, another one, what is said."""

WRONG = {
    "by_tape": [
        (
            "x = ops.add(s, x, ops.linear(s, h, down))\n    logits = ops.linear(s, x, out)",
            "y = ops.add(s, x, ops.linear(s, h, down))\n    logits = ops.linear(s, y, out)",
            r"up\.0 and down\.0 get no gradient: the tape has no node d_up\.0",
        ),
        ("logits = ops.linear(s, x, out)", "logits = ops.linear(s, h, out)", r"line \d+: logits ="),
        (
            "x = ops.add(s, x, ops.linear(s, h, down))",
            "x = ops.linear(s, h, down)",
            r"residual",
        ),
        ("h = ops.rmsnorm(s, x, gain)", "h = x", r"the loss is wrong.*the norm is left out"),
        ("ops.silu(s, ops.linear(s, h, up))", "ops.linear(s, h, up)", r"silu is left out"),
    ],
    "by_gradcheck": [
        (
            "(1 + u * (1 - s))",
            "(1 + h * (1 - s))",
            r"dw1\[0, 0\].*Right: dw2. Wrong: dw1, db1",
        ),
        ("dlogits /= len(x)", "pass", r"dw2\[0, 0\].*is 5 times.*rows = 5.*Wrong: dw2, dw1, db1"),
        ("db1 = du.sum(axis=0)", "db1 = du.mean(axis=0)", r"db1\[0\].*0.2 times.*Wrong: db1\.$"),
        ("dw1 = du.T @ x", "dw1 = dh.T @ x", r"dw1\[0, 0\].*Right: db1, dw2\. Wrong: dw1\.$"),
        ("dw2 = dlogits.T @ h", "dw2 = -dlogits.T @ h", r"dw2\[0, 0\].*the sign.*Wrong: dw2\.$"),
    ],
    "by_curve": [
        (
            "(step + 1) / warmup",
            "(step + 1) // warmup",
            r"stays at 1.609 for 20 steps.*the update is 0",
        ),
        ("(step + 1) / warmup * top", "top", r"rate\[0\] .*there is no warm-up"),
        ("(step + 1) / warmup", "step / warmup", r"rate\[0\] .*the first step has a rate of 0"),
        (
            "top * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2",
            "top",
            r"rate\[21\] .*after the warm-up the rate does not fall",
        ),
        ("w = w - rate", "w = w + rate", r"the loss rises: from 1.609 to .*uphill"),
    ],
}
