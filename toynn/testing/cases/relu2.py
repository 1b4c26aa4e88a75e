"""relu2 against max(x, 0)^2."""

from toynn.testing.cases._unary import unary

CASE = unary(
    "relu2",
    bench={"nemotron_h_8b": {"n": 256 * 21504}},
    tolerance=2e-7,
    reason="one or two roundings",
)
