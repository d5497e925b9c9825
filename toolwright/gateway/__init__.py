"""The policy of a run behind HTTP, for agents that exist already; what they sample is trained as it was."""
