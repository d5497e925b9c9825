"""The local web page over a folder of runs: a read-only server, and one module for each view."""
