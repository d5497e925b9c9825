"""Isolated code execution: a server that keeps up with a rollout, and the client that talks to it."""
