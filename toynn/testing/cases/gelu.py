"""gelu against x P(x) with the error function of the math module, and its tanh form."""

from toynn.testing.cases._case import shapes_of
from toynn.testing.cases._unary import unary

CASE = unary(
    "gelu",
    shapes=shapes_of("n exact", "1 0, 37 0, 0 0, 4097 0, 37 1, 4097 1"),
    spread=8,
    bench={"gpt2_124m": {"n": 256 * 3072, "exact": 0}, "vit": {"n": 197 * 768, "exact": 1}},
    tolerance=4e-7,
    reason="a few roundings; exp within 2, erf within 5 units in the last place",
)
