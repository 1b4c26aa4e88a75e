"""What a step is: its tape, its gradients, what is recomputed, and where everything is stored."""
