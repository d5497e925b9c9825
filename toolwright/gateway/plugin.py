"""What the gateway adds to Toolwright."""

ADDS = {
    "toolwright.agents": {
        "command": "toolwright.gateway.command:CommandAgent",
        "function": "toolwright.gateway.function:FunctionAgent",
        "service": "toolwright.gateway.service:ServiceAgent",
    }
}
