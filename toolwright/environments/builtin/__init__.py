"""The built-in environments, one file each; a new file here is a new environment."""
