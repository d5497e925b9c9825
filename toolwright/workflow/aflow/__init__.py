"""AFlow's form of workflows and searches: `class Workflow` with a `prompt.py`, and the folder of rounds.

Python is read, never run: what it says is followed with values that are not known yet, and what comes out is
the typed workflow. What cannot be said in that is refused with its line and the reason.
"""
