"""Training: the one loop, what it reports, and the run folder it fills."""
