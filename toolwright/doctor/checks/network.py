"""Ports of this machine, and proxies."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from toolwright.doctor import probe
from toolwright.doctor.checks import CHECKS
from toolwright.doctor.result import CheckResult, ok, problem, warning

# What our servers, and Ray's, take unless they are told otherwise.
USUAL = {
    8000: "toolwright serve",
    8010: "toolwright sandbox serve",
    6379: "a Ray head",
    8265: "Ray's dashboard",
}
FEW_PORTS = 1000
LOOPBACK = ("localhost", "127.0.0.1")


@CHECKS.register("ports", needs=["network"])
def ports() -> CheckResult:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            number = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", number), timeout=probe.CONNECT_S):
                pass
    except OSError as error:
        why = error.strerror or str(error)
        return problem(
            f"no server can be reached on loopback: {why}",
            "check that 127.0.0.1 is up and that no firewall blocks it",
        )
    low, high = _handed_out()
    if high - low < FEW_PORTS:
        return warning(
            f"the system hands out only {high - low:,} ports",
            "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        )
    taken = [f"{port} ({USUAL[port]})" for port in USUAL if not probe.refusal("127.0.0.1", port)]
    in_use = f"; in use: {', '.join(taken)}, --port takes another" if taken else ""
    return ok(f"loopback works, {high - low:,} ports for connections{in_use}")


def _handed_out() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 49_152, 65_535


@CHECKS.register("proxies", needs=["network"])
def proxies() -> CheckResult:
    """Names proxies by host and port alone: the rest of such a URL may be a password."""
    named = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.lower() in ("http_proxy", "https_proxy", "all_proxy") and value
    }
    if not named:
        return ok("none")
    places = {}
    for name, value in named.items():
        parts = urlsplit(value if "//" in value else f"//{value}")
        places[name] = (parts.hostname or "?", parts.port or (443 if parts.scheme == "https" else 80))
    text = ", ".join(f"{name} is {host}:{port}" for name, (host, port) in places.items())
    for host, port in sorted(set(places.values())):
        if why := probe.refusal(host, port):
            return warning(
                f"{text}; {host}:{port} does not answer: {why}", "start the proxy, or unset these variables"
            )
    around = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").replace(" ", "").split(",")
    if "*" not in around and not set(LOOPBACK) <= set(around):
        return warning(
            f"{text}, and NO_PROXY leaves out {' and '.join(h for h in LOOPBACK if h not in around)}: Ray "
            "and clients of local servers would ask the proxy for this machine",
            "export NO_PROXY=localhost,127.0.0.1 no_proxy=localhost,127.0.0.1",
        )
    return ok(f"{text}; not for {', '.join(around)}")
