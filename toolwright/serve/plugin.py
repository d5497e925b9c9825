"""Adds the command `serve` to Toolwright."""

ADDS = {"toolwright.cli": {"serve": "toolwright.serve.command:main"}}
