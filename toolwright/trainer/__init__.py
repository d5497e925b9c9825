"""Training: the loop, what surrounds it, evaluation, warm start, and the run folder."""
