"""Workflows: small typed programs over operators, how they run, and the search for the best of them."""
