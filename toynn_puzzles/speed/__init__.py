"""Puzzles: from a triple loop to packed panels."""
