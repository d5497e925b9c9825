"""Decides where each role of a run lives: all in this process, or each in an actor of a Ray cluster."""
