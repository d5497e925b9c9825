"""The providers there are: a file each."""
