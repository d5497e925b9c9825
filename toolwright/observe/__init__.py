"""What happened, for people: metrics, the live display, the closing table, the report, the rollouts."""
