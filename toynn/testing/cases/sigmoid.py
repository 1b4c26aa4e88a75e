"""sigmoid against 1 / (1 + exp(-x))."""

from toynn.testing.cases._unary import unary

CASE = unary(
    "sigmoid",
    bench={"router": {"n": 4096 * 256}},
    tolerance=2e-7,
    reason="a few roundings; exp within 2 units in the last place",
)
