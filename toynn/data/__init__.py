"""Training data: where text comes from and how it becomes batches. Knows nothing of models."""
