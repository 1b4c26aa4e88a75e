"""Wrong answers on the road of the kernels: a part of the solution, another one, what is said."""

LOOP = "for n, v in enumerate(ids):\n        dw[v, begin:end] += dy[n, begin:end]"
WRONG = {
    "scatter": [
        (LOOP, "dw[ids, begin:end] += dy[:, begin:end]", r"many times, and only its last row"),
        (
            "dw[v, begin:end] += dy[n, begin:end]",
            "dw[v] += dy[n]",
            r"with 2 threads.*once for each",
        ),
        ("+= dy[n, begin:end]", "= dy[n, begin:end]", r"dw\[0, 0\] is wrong"),
        (LOOP, f"dw[:, begin:end] = 0\n    {LOOP}", r"what was in dw is lost"),
        (
            "for n, v in enumerate(ids):",
            "for n, v in reversed(list(enumerate(ids))):",
            r"but for the last bits.*in another order",
        ),
        ("dw[v, begin:end]", "dy[v, begin:end]", r"add changed its argument dy"),
    ],
    "dropout": [
        ("+ i // ", "+ (i - np.uint64(first)) // ", r"kept\[\d+\] is wrong, for"),
        (
            "dtype=np.uint64)\n",
            "dtype=np.uint64) - np.uint64(first)\n",
            r"elements from 32 on .*add first",
        ),
        ("return half >=", "return half <", r"that are dropped"),
        ("h >> np.uint64(32)", "h & np.uint64(0xFFFFFFFF)", r"take the low half of the hash, too"),
        ("mix(key(seed, step, site)", "mix(key(seed, 0, site)", r"kept\[\d+\] is wrong"),
        ("return half", "half", r"kept is None"),
    ],
    "prefix": [
        ("slice(first[t], t + 1)", "slice(0, t + 1)", r"examples see each other"),
        (" / np.sqrt(q.shape[1])", "", r"the factor 1 / sqrt\(D\) is missing"),
        ("slice(first[t], t + 1)", "slice(first[t], len(q))", r"y\[0, 0\] is wrong"),
        ("p @ v[seen] / p.sum()", "p @ v[seen]", r"y\[1, 0\] is wrong"),
        (
            "        y[t] = p @ v[seen] / p.sum()",
            "        w = np.zeros(len(q))\n        w[seen] = p / p.sum()\n        y[t] = w @ v",
            r"when one example is nan.*0 times nan is nan",
        ),
    ],
    "online_softmax": [
        ("l * shrink", "l", r"o shrinks when the maximum grows, and l does not"),
        ("o * shrink", "o", r"l shrinks when the maximum grows, and o does not"),
        (
            "np.exp(s - new), np.exp(m - new)",
            "np.exp(s - new), 1.0",
            r"must shrink by exp\(old - new\)",
        ),
        (
            "        if new == -np.inf:\n            continue\n",
            "",
            r"masked scores.*only -infinity",
        ),
        ("return o / l", "return o", r"not divided by the sum l"),
        ("m + np.log(l)", "np.log(l)", r"lse.*add m to log"),
        ("max(m, s.max())", "0.0", r"with scores near 900.*(nan|infinite)"),
    ],
    "attention_blocks": [
        ("dv[columns] +=", "dv[columns] =", r"dv is overwritten by each block of queries"),
        ("dq[rows] +=", "dq[rows] =", r"dq is overwritten by each block of keys"),
        (" - delta[rows][:, None]) / np.sqrt(D)", ") / np.sqrt(D)", r"delta is missing"),
        ("[:, None]) / np.sqrt(D)", "[:, None])", r"1 / sqrt\(D\) is missing from ds"),
        (
            "np.where(seen, np.exp(s - lse[rows][:, None]), 0)",
            "np.exp(s - lse[rows][:, None])",
            ".",
        ),
        (
            "np.where(seen, np.exp(s - lse[rows][:, None]), 0)",
            "np.exp(s - lse[rows][:, None]) * seen",
            r"with large scores.*inf times 0 is nan: use np\.where",
        ),
        (
            "    for i in range(0, T, block):",
            "    block = T\n    for i in range(0, T, block):",
            r"KB were in use at once, for 192 rows.*scores of all rows are stored",
        ),
    ],
}
