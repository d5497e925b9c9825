"""Training: the loop, evaluation, warm start, checkpoints, and the run folder."""
