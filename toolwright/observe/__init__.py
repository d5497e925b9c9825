"""Shows people what happened: metrics, the live display, the closing table, the report, the rollouts."""
