"""What is wrong with a machine or with a run: checks and symptoms by name, and a report for an issue."""
