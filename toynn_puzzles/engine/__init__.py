"""Puzzles about what a training program does between its kernels."""
