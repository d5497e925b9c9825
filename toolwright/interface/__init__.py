"""The Python interface: what `import toolwright` offers to scripts and notebooks."""
