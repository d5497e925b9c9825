"""Adds the command `doctor`."""

ADDS = {"toolwright.cli": {"doctor": "toolwright.doctor.command:main"}}
