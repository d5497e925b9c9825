"""What serving a model adds to Toolwright."""

ADDS = {"toolwright.cli": {"serve": "toolwright.serve.command:main"}}
