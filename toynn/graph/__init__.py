"""A training step: its tape, gradients, recomputation, and memory plan."""
