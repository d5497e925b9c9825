"""What the web page adds to Toolwright."""

ADDS = {"toolwright.cli": {"ui": "toolwright.ui.command:main"}}
