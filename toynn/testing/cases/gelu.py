"""gelu against x P(x) with the error function of the math module, and its tanh form."""

from toynn.testing.cases._unary import unary

CASE = unary(
    "gelu",
    shapes=(
        {"n": 1, "exact": 0},
        {"n": 37, "exact": 0},
        {"n": 0, "exact": 0},
        {"n": 4097, "exact": 0},
        {"n": 37, "exact": 1},
        {"n": 4097, "exact": 1},
    ),
    spread=8,
    bench={"gpt2_124m": {"n": 256 * 3072, "exact": 0}, "vit": {"n": 197 * 768, "exact": 1}},
    tolerance=4e-7,
    reason="a few roundings; exp within 2, erf within 5 units in the last place",
)
