"""Adds the command `ui`."""

ADDS = {"toolwright.cli": {"ui": "toolwright.ui.command:main"}}
