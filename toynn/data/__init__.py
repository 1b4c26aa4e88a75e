"""Training data: from files to batches. Knows nothing of models."""
