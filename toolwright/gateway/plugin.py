"""Adds agents that exist already: commands, functions and services."""

ADDS = {
    "toolwright.agents": {
        "command": "toolwright.gateway.command:CommandAgent",
        "function": "toolwright.gateway.function:FunctionAgent",
        "service": "toolwright.gateway.service:ServiceAgent",
    }
}
