"""rmsnorm against y = x / sqrt(mean(x^2) + eps) * w."""

from toynn.testing.cases._case import differentiable, shapes_of

CASE = differentiable(
    "rmsnorm",
    shapes=shapes_of("N C", "1 1, 37 130, 3 65, 0 8, 129 768"),
    bench={"llama_135m": {"N": 256, "C": 576}, "gpt2_124m": {"N": 256, "C": 768}},
    tolerance=2e-6,
    reason="float32 sums of up to 768 terms in 16 partial sums",
)
