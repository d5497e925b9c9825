"""Starts a zygote in namespaces of its own, and has children forked before they are needed."""

from __future__ import annotations

import array
import itertools
import os
import signal
import socket
from collections import deque
from dataclasses import dataclass
from typing import NoReturn

from toolwright.sandbox import kernel, wire
from toolwright.sandbox.cgroup import ControlGroup, RunGroup
from toolwright.sandbox.layers import NAMESPACES
from toolwright.sandbox.zygote import Zygote, ZygoteConfig

# The users that runs are on the host when the server is root: far above any account.
_FIRST_HOST_USER = 2_000_000_000
_USERS_PER_WORKER = 1 << 16

_numbers = itertools.count(1)


@dataclass
class Child:
    """A sealed process that waits for a job, or has one."""

    number: int
    channel: socket.socket
    stdout: int
    stderr: int
    pool: ChildPool
    group: RunGroup | None

    def signal(self, number: int) -> None:
        self.pool.order(wire.SIGNAL, self.number, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        self.channel.close()
        os.close(self.stdout)
        os.close(self.stderr)


class ChildPool:
    """A zygote, and the children that it has forked in advance."""

    def __init__(self, config: ZygoteConfig, *, index: int, spare: int, group: ControlGroup | None) -> None:
        self.pid, self.orders = _start_zygote(config, index, group)
        self._spare = spare
        self._group = group
        self._waiting: deque[Child] = deque()

    def fill(self) -> None:
        while len(self._waiting) < self._spare:
            self._waiting.append(self._fork())

    def take(self) -> Child:
        """A child for a job: the one that has waited longest, or a new one."""
        return self._waiting.popleft() if self._waiting else self._fork()

    def forget(self, number: int) -> Child | None:
        """Removes a child that ended while it waited, if it is one of ours."""
        for child in self._waiting:
            if child.number == number:
                self._waiting.remove(child)
                return child
        return None

    def release(self, child: Child) -> None:
        """Lets the next run have the control group of a child that has ended."""
        if self._group is not None and child.group is not None:
            self._group.release(child.group)

    def order(self, verb: int, number: int, argument: int = 0) -> None:
        self.orders.send(wire.ORDER.pack(verb, number, argument))

    def _fork(self) -> Child:
        ours, theirs = socket.socketpair()
        stdout, stdout_there = os.pipe2(os.O_CLOEXEC)
        stderr, stderr_there = os.pipe2(os.O_CLOEXEC)
        for descriptor in (stdout, stderr):
            os.set_blocking(descriptor, False)
        number = next(_numbers) & 0xFFFFFFFF
        group = self._group.acquire() if self._group is not None else None
        procs = (group.procs,) if group is not None else ()
        passed = array.array("i", (theirs.fileno(), stdout_there, stderr_there, *procs))
        try:
            self.orders.sendmsg(
                [wire.ORDER.pack(wire.FORK, number, 0)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
            )
        finally:
            theirs.close()
            os.close(stdout_there)
            os.close(stderr_there)
        return Child(number, ours, stdout, stderr, self, group)


def host_user(index: int) -> int:
    """The first host user of a worker: its zygotes are this user, each run is one of the next."""
    return _FIRST_HOST_USER + index * _USERS_PER_WORKER


def _start_zygote(
    config: ZygoteConfig, index: int, group: ControlGroup | None = None
) -> tuple[int, socket.socket]:
    """Forks a zygote and waits until it can fork runs. Raises the error that it reports, if any."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    go_reading, go_writing = os.pipe()
    done_reading, done_writing = os.pipe()
    flags = 0
    for name in config.layers & NAMESPACES.keys():
        flags |= NAMESPACES[name]
    pid = kernel.fork_into(flags)
    if pid == 0:
        for descriptor in (ours.fileno(), go_writing, done_reading):
            os.close(descriptor)
        _become_zygote(config, theirs, go_reading, done_writing)
    theirs.close()
    os.close(go_reading)
    os.close(done_writing)
    if "user" in config.layers:
        map_users(pid, config.user, index)
    if group is not None:
        group.add(pid)
    os.write(go_writing, b"g")
    os.close(go_writing)
    with os.fdopen(done_reading, "rb") as answer:
        outcome = answer.read()
    if outcome != b"ready":
        os.waitpid(pid, 0)
        raise RuntimeError(outcome.decode(errors="replace") or "the zygote died before it was ready")
    return pid, ours


def _become_zygote(config: ZygoteConfig, orders: socket.socket, go: int, done: int) -> NoReturn:
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.read(go, 1)
        os.close(go)
        zygote = Zygote(orders, config)
        zygote.prepare()
        # A change of user resets the death signal.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.write(done, b"ready")
        os.close(done)
        zygote.serve()
    except BaseException as error:
        os.write(done, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(1)


def map_users(pid: int, inside: int, index: int) -> None:
    """Maps many users without rights on the host if we may; otherwise one, who is ourselves on the host."""
    if os.geteuid() == 0:
        try:
            _write_maps(pid, inside, host_user(index), host_user(index), _USERS_PER_WORKER)
            return
        except OSError:
            pass  # root of a container without those users: root has few rights there
    with open(f"/proc/{pid}/setgroups", "w") as groups:
        groups.write("deny")
    _write_maps(pid, inside, os.geteuid(), os.getegid(), 1)


def _write_maps(pid: int, inside: int, user: int, group: int, count: int) -> None:
    for name, outside in (("uid_map", user), ("gid_map", group)):
        with open(f"/proc/{pid}/{name}", "wb", buffering=0) as mapping:
            mapping.write(f"{inside} {outside} {count}".encode())
