"""What the kernels do: scatter, hashes, borders, and blocks."""
