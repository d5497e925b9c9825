"""Finds what is wrong with a machine or a run: checks and symptoms by name, and a report for an issue."""
