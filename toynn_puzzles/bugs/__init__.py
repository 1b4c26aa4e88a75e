"""Training steps with one bug each."""
