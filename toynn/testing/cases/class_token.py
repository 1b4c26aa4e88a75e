"""class_token against NumPy's concatenate and a sum with broadcasting."""

from toynn.testing.cases._case import differentiable, shapes_of

CASE = differentiable(
    "class_token",
    shapes=shapes_of("B T C", "1 1 1, 3 5 130, 1 17 65, 0 5 8, 4 1 3, 2 3 0"),
    bench={"vit_tiny": {"B": 16, "T": 197, "C": 192}},
    tolerance=2e-6,
    reason="forward is one sum; backward adds up to 4 rows in float32, in their order",
)
