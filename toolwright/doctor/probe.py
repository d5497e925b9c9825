"""Asks an address whether anybody listens there, within a second or two."""

from __future__ import annotations

import socket

CONNECT_S = 1.5
# HTTP/2's opening words and an empty SETTINGS frame. A server of gRPC answers with one of its own.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS = 4


def refusal(host: str, port: int) -> str:
    """Say why no connection can be made; empty if one can."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def grpc_refusal(host: str, port: int) -> str:
    """Like `refusal`, but also detects a server that accepts connections and then stays silent or speaks
    another protocol."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S) as connection:
            connection.settimeout(CONNECT_S)
            connection.sendall(PREFACE)
            head = connection.recv(9)
    except TimeoutError:
        return "it does not answer"
    except OSError as error:
        return error.strerror or str(error)
    return "" if len(head) == 9 and head[3] == SETTINGS else "what answers is not Ray"
