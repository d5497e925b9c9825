"""The built-in scorers, one file each; a new file here is a new scorer."""
