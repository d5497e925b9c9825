"""Runs one command in isolation: `python -m toolwright.sandbox.enclosure DESCRIPTOR`.

Three processes. This one stays outside and waits. It forks the first process of new namespaces, which builds
their root and listens on their loopback. That one forks the command, sealed as a run of the sandbox is, and
ends with it; the kernel then ends whatever the command started.

The listening socket is handed to the caller, who answers what the command connects to. So the command reaches
one address of the machine, and no process inside holds a way out.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from toolwright.sandbox import kernel, seccomp, view, wire
from toolwright.sandbox.child_pool import host_user, map_users
from toolwright.sandbox.layers import NAMESPACES
from toolwright.sandbox.limits import RunLimits, set_inherited
from toolwright.sandbox.seal import Seal
from toolwright.sandbox.zygote import become

UNPREPARED = 120  # the exit code where the isolation could not be made
READY = b"r"
USER = 1000  # of the command, inside
_HOST_USERS = 512  # commands share these ranges of host users with each other, and with no worker
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_BACKLOG = 128


@dataclass(frozen=True)
class Enclosure:
    """A command and what it is given."""

    words: list[str]
    env: dict[str, str]
    layers: list[str]
    readable: list[str]  # paths, seen at the same place as outside
    folder: str  # an empty folder, used where there is no mount namespace
    port: int  # of the loopback, the one port that may be connected to
    limits: dict[str, Any]

    def packed(self) -> bytes:
        """Pack the request as the caller sends it."""
        return wire.with_length(json.dumps(vars(self)).encode())


def main(descriptor: int) -> NoReturn:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    caller = socket.socket(fileno=descriptor)
    message = wire.read_message(descriptor)
    if message is None:
        os._exit(UNPREPARED)
    enclosure = Enclosure(**json.loads(message))
    go_reading, go_writing = os.pipe()
    flags = sum(NAMESPACES[name] for name in set(enclosure.layers) & NAMESPACES.keys())
    pid = kernel.fork_into(flags)
    if pid == 0:
        os.close(go_writing)
        _be_first(enclosure, caller, go_reading)
    caller.close()
    try:
        if "user" in enclosure.layers:
            number = _HOST_USERS + os.getpid() % _HOST_USERS
            map_users(pid, USER, number)
            if "mount" not in enclosure.layers and os.geteuid() == 0:
                os.chown(enclosure.folder, host_user(number), -1)
        os.write(go_writing, b"g")
    except OSError as error:
        _give_up(error)  # the first process ends with this one
    os._exit(_exit_code(os.waitpid(pid, 0)[1]))


def _be_first(enclosure: Enclosure, caller: socket.socket, go: int) -> NoReturn:
    """Run as the first process of the namespace, for as long as the command lives."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if not os.read(go, 1):
            os._exit(UNPREPARED)
        os.close(go)
        seal = _enter(enclosure, caller)
        caller.close()
        command = os.fork()
        if command == 0:
            _be_command(enclosure, seal)
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        while True:
            pid, status = os.wait()
            if pid == command:
                os._exit(_exit_code(status))
    except BaseException as error:
        _give_up(error)


def _enter(enclosure: Enclosure, caller: socket.socket) -> Seal:
    layers = frozenset(enclosure.layers)
    root = view.Root(view.View(tuple(enclosure.readable)))
    listener = _listener(enclosure.port) if "network" in layers else None
    if "user" in layers:
        become(USER)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user has reset it
    if "mount" in layers:
        root.enter()
    kernel.no_new_privileges()
    if "seccomp" in layers:
        seccomp.Filter(seccomp.for_zygote).install()
    limits = RunLimits(**enclosure.limits)
    seal = Seal(layers, limits, root.trees, enclosure.folder, connect=enclosure.port)
    root.close()
    if "limits" in layers:
        set_inherited(limits)
    if listener is None:
        caller.sendall(READY)
    else:
        socket.send_fds(caller, [READY], [listener.fileno()])
        listener.close()
    return seal


def _listener(port: int) -> socket.socket:
    """A socket on the loopback of the new network namespace, which is down at first."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    name = b"lo".ljust(16, b"\0")
    answer = fcntl.ioctl(listener, _SIOCGIFFLAGS, name + bytes(24))
    up = struct.unpack("=H", answer[16:18])[0] | _IFF_UP
    fcntl.ioctl(listener, _SIOCSIFFLAGS, name + struct.pack("=H", up) + bytes(22))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(_BACKLOG)
    return listener


def _be_command(enclosure: Enclosure, seal: Seal) -> NoReturn:
    try:
        # The seal puts /dev/null in the place of standard input.
        stdin, stdout, stderr = (fcntl.fcntl(standard, fcntl.F_DUPFD, 4) for standard in (0, 1, 2))
        # Without a mount namespace the seal makes a folder of its own inside the one that is given.
        folder = "" if "mount" in enclosure.layers else f"{enclosure.folder}/work"
        seal.prepare(stdin, stdout, stderr)
        seal.apply(folder)
        os.dup2(stdin, 0)
        os.close(stdin)
        os.execve(enclosure.words[0], enclosure.words, enclosure.env)
    except BaseException as error:
        _give_up(error)


def _give_up(error: BaseException) -> NoReturn:
    os.write(2, f"the sandbox could not run this command: {error}\n".encode())
    os._exit(UNPREPARED)


def _exit_code(status: int) -> int:
    """The exit code as a shell gives it: 128 plus the signal's number if a signal ended the process."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main(int(sys.argv[1]))
