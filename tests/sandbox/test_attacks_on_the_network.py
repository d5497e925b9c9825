"""Code that wants to talk to somebody."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolwright.sandbox import landlock

from .attack import OTHER_USER, Attack, proofs
from .conftest import needs_isolation
from .served import Server

pytestmark = needs_isolation

TCP_RULES = ("landlock",) if landlock.abi() >= 4 else ()
SCOPES = ("landlock",) if landlock.abi() >= 6 else ()
UNCOVERED = """
import socket
for family in (socket.AF_VSOCK, socket.AF_ALG, socket.AF_NETLINK):
    try: socket.socket(family, socket.SOCK_SEQPACKET if family == socket.AF_ALG else socket.SOCK_RAW).close()
    except OSError as error:
        if error.errno == 97: continue
    print('BREACH', family)
print('tried')
"""


@contextlib.contextmanager
def listening(family: int, kind: int, address: Any) -> Iterator[Any]:
    """A socket of the host, and where it is."""
    with socket.socket(family, kind) as listener:
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        yield listener.getsockname()


def connect_by_tcp(server: Server, _: Path) -> dict[str, Any]:
    with listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)) as place:
        return server.run(f"import socket; socket.create_connection({place!r}, 2); print('BREACH')")


def send_by_udp(server: Server, _: Path) -> dict[str, Any]:
    with listening(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)) as place:
        sending = f"s.connect({place!r}); s.send(b'x'); print('BREACH')"
        return server.run(f"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); {sending}")


def connect_to_an_abstract_name(server: Server, _: Path) -> dict[str, Any]:
    name = f"\0tw-{os.urandom(4).hex()}"
    with listening(socket.AF_UNIX, socket.SOCK_STREAM, name):
        return server.run(f"import socket; socket.socket(socket.AF_UNIX).connect({name!r}); print('BREACH')")


def connect_to_a_socket_among_files(server: Server, place: Path) -> dict[str, Any]:
    path = str(place / "s")
    with listening(socket.AF_UNIX, socket.SOCK_STREAM, path):
        return server.run(f"import socket; socket.socket(socket.AF_UNIX).connect({path!r}); print('BREACH')")


def call_the_server_that_runs_it(server: Server, _: Path) -> dict[str, Any]:
    call = f"urllib.request.urlopen('{server.url}/status', timeout=8).read(); print('BREACH')"
    return server.run(f"import urllib.request; {call}")


test_it_fails, test_each_stop_is_enough, test_without_them_it_succeeds = proofs(
    [
        Attack("connect by TCP", connect_by_tcp, ("network", *TCP_RULES), "PermissionError"),
        Attack("send by UDP", send_by_udp, ("network",), "Network is unreachable"),
        Attack(
            "connect to an abstract name", connect_to_an_abstract_name, ("network", *SCOPES),
            "ConnectionRefusedError" if not SCOPES else "Error: [Errno",
        ),
        Attack(
            "connect to a socket among files", connect_to_a_socket_among_files, (*OTHER_USER, "mount"),
            "FileNotFoundError",
        ),
        Attack(
            "call the server that runs it", call_the_server_that_runs_it, ("network", *TCP_RULES), "URLError"
        ),
        Attack("sockets that no namespace covers", UNCOVERED, ("seccomp",), "tried"),
    ]
)  # fmt: skip
