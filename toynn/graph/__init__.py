"""What a step is: its tape, its gradients, what is computed again, and where everything lies."""
