"""silu against x / (1 + exp(-x))."""

from toynn.testing.cases._unary import unary

CASE = unary(
    "silu",
    bench={"llama_135m": {"n": 256 * 1536}},
    tolerance=2e-7,
    reason="a few roundings; exp within 2 units in the last place",
)
