"""Wrong answers in Cython and C: a part of the solution, another one, what is said."""

BOTH = "sum[i][0] += a[i * K + k] * b0;\n            sum[i][1] += a[i * K + k] * b1;"
CYTHON = {
    "loop_order": [
        ("c[m * N + n] = 0", "pass", r"c\[0, 0\] is nan.*c begins as nan"),
        ("for k in range(K):", "for k in range(K - 1):", r"the last of the K terms is missing"),
        ("b[k * N + n]", "b[n * K + k]", r"b is read as if it were \(N, K\)"),
        ("+= total", "= total", r"only the last of the K terms is there"),
        ("a[m * K + k]", "a[k * M + m]", r"a is read as if it were \(K, M\)"),
    ],
    "sixteen_sums": [
        ("range(whole, n)", "range(0)", r"total of 1000 numbers.*the last 40 numbers are missing"),
        ("= n // 64 * 64", "= (n + 63) // 64 * 64", r"is nan; .*past the end are read"),
        ("range(whole, n)", "range(whole + 1, n)", r"number 960 alone is missing"),
        ("range(64):\n        result", "range(16):\n        result", r"a part of the partial sums"),
        ("sums[k] += x", "sums[k] = x", r"only the last 64 and what follows: sums are overwritten"),
    ],
}
C = {
    "register_tile": [
        ("K + k] * b1;", "K + k] * b0;", r"c\[0, \d+\] is wrong.*at index \d+, .* of axis 1"),
        ("k < K; k++) {", "k < K - 1; k++) {", r"the last of the K terms is missing"),
        ("*(vec*)(c + i * N + V) = sum[i][1];", "", r"c\[0, (16|8)\] is nan"),
        (BOTH, BOTH.replace("+=", "="), r"only the last of the K terms is there"),
        (
            "c + i * N + V)",
            "c + i * N + 2 * V)",
            r"writes outside of c: .* past its end.*edge",
        ),
    ],
    "packed_panels": [
        (
            "i++) to[k * MR + i] = a",
            "i++) to[i * K + k] = a",
            r"pack_a: to.*\[0, 1\] is wrong.*copied one after the other",
        ),
        ("j < NR; j++) to", "j < NR - 1; j++) to", r"pack_b: to\[0, (31|15)\] is nan"),
        ("] = b[k * N + j];", "] = b[j * K + k];", r"pack_b: to.*\[0, 1\] is wrong"),
        ("panels + m * K, panel", "panels, panel", r"every tile reads the first panel of a"),
        ("b + n, N, K)", "b, N, K)", r"every panel of b is packed from its first columns"),
    ],
    "simd_dot": [
        (
            "i < n; i += 16)",
            "i + 16 <= n; i += 16)",
            r"dot of 1000 numbers.*last 8 numbers are miss",
        ),
        (
            "n - i < 16 ? (1 << (n - i)) - 1 : 0xffff",
            "0xffff",
            r"is nan; .*past the end are read",
        ),
        ("__m512 sums[4];", "__m512 sums[4];\n    y = x;", r"x is multiplied by itself"),
        ("_mm512_add_ps(low, high)", "low", r"a part of the partial sums is not added up"),
        ("return _mm512_reduce", "return -_mm512_reduce", r"the sign is wrong"),
    ],
    "cache_blocks": [
        ("(k ? *to : 0) + ", "", r"N = 32, K = 192.*overwritten by each block of terms: .* add"),
        ("(k ? *to : 0)", "*to", r"c\[0, 0\] is nan"),
        ("k < K; k += KC", "k + KC <= K; k += KC", r"K = 100.*last block has less than KC terms"),
        ("least(KC, K - k)", "KC", r"past the end of a or b are packed, with .* K = 100"),
        ("m + i < M ? a[(m + i) * K + k + t] : 0", "a[(m + i) * K + k + t]", r"past .* M = 11"),
        ("i < least(MR, M - m)", "i < MR", r"writes outside of c: .* past its end.*an edge"),
        ("j < least(NR, N - n)", "j < NR", r"writes outside of c"),
        (
            "k += KC) {\n        size terms = least(KC, K - k);",
            "k += K) {\n        size terms = K;",
            r"writes outside of room: .*all K terms are packed at once: pack at most KC",
        ),
        ("room + m * KC, panel, terms", "room, panel, terms", r"c\[6, 0\] is wrong"),
    ],
}
