"""Puzzles: backward passes by hand."""
