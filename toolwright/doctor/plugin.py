"""What the doctor adds to Toolwright."""

ADDS = {"toolwright.cli": {"doctor": "toolwright.doctor.command:main"}}
