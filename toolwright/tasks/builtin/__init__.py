"""The built-in tasks, one file each; a new file here is a new task."""
