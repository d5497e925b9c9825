"""The built-in tools, one a file; a new file is found by itself."""
