"""Serves a run's policy over HTTP to existing agents, and trains on exactly what they sampled."""
