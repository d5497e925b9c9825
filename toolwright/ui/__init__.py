"""The local web page for a folder of runs: a read-only server, and one module for each view."""
