"""From a triple loop to packed panels."""
