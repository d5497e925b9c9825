"""A zygote as its worker uses it: children made ready before they are needed, orders sent, ends reported."""

from __future__ import annotations

import array
import itertools
import os
import signal
import socket
from collections import deque
from dataclasses import dataclass

from toolwright.sandbox import wire
from toolwright.sandbox.cgroup import ControlGroup, RunGroup
from toolwright.sandbox.launch import Started, start
from toolwright.sandbox.zygote import Recipe

_numbers = itertools.count(1)


@dataclass
class Child:
    """A sealed process that waits for a job, or has one."""

    number: int
    channel: socket.socket
    stdout: int
    stderr: int
    nursery: Nursery
    group: RunGroup | None

    def signal(self, number: int) -> None:
        self.nursery.order(wire.SIGNAL, self.number, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        self.channel.close()
        os.close(self.stdout)
        os.close(self.stderr)


class Nursery:
    """One zygote and its waiting children."""

    def __init__(self, recipe: Recipe, *, index: int, spare: int, group: ControlGroup | None) -> None:
        self.recipe = recipe
        self._zygote: Started = start(recipe, index, group)
        self._spare = spare
        self._group = group
        self._waiting: deque[Child] = deque()

    @property
    def pid(self) -> int:
        return self._zygote.pid

    @property
    def orders(self) -> socket.socket:
        return self._zygote.orders

    def fill(self) -> None:
        while len(self._waiting) < self._spare:
            self._waiting.append(self._conceive())

    def take(self) -> Child:
        """A child for a job: the one that waits longest, or one made now."""
        return self._waiting.popleft() if self._waiting else self._conceive()

    def forget(self, number: int) -> Child | None:
        """A child that ended while it waited, if it is one of ours."""
        for child in self._waiting:
            if child.number == number:
                self._waiting.remove(child)
                return child
        return None

    def ended(self, child: Child) -> None:
        """Its group is another's from now on."""
        if self._group is not None and child.group is not None:
            self._group.take_back(child.group)

    def order(self, verb: int, number: int, argument: int = 0) -> None:
        self.orders.send(wire.ORDER.pack(verb, number, argument))

    def _conceive(self) -> Child:
        ours, theirs = socket.socketpair()
        stdout, stdout_there = os.pipe2(os.O_CLOEXEC)
        stderr, stderr_there = os.pipe2(os.O_CLOEXEC)
        for descriptor in (stdout, stderr):
            os.set_blocking(descriptor, False)
        number = next(_numbers) & 0xFFFFFFFF
        group = self._group.for_a_run() if self._group is not None else None
        joining = (group.joining,) if group is not None else ()
        passed = array.array("i", (theirs.fileno(), stdout_there, stderr_there, *joining))
        try:
            self.orders.sendmsg(
                [wire.ORDER.pack(wire.FORK, number, 0)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
            )
        finally:
            theirs.close()
            os.close(stdout_there)
            os.close(stderr_there)
        return Child(number, ours, stdout, stderr, self, group)
