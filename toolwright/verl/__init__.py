"""Runs verl's command lines: a table of its keys and what each becomes here. Imports without torch."""
