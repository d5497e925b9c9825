"""The warm process that runs are forked from.

It never sees a job: a child asks the worker for one after it was forked and sealed, so that nothing of
another run lies in the memory that a child inherits.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
from dataclasses import dataclass
from typing import NoReturn

from toolwright.sandbox import child, kernel, program, seccomp, view, wire
from toolwright.sandbox.limits import RunLimits
from toolwright.sandbox.seal import Seal

_SINGLE_THREADED = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


# Some packages do most of their loading when they are first used; each run would do it again. Used more than
# once, the interpreter has settled on how to run them, and runs copy less memory.
_USES = 12
_FIRST_USE = {
    "numpy": "import numpy as n; n.linalg.solve(n.eye(2), n.ones(2)); str(n.arange(3) / 2)",
    "sympy": """
from sympy import Rational, diff, expand, factor, latex, simplify, solve, sqrt, symbols, sympify
x, y = symbols('x y')
str(diff(x**3 + sqrt(x), x)), str(expand((x + 1) ** 2)), str(factor(x**2 - 1))
str(simplify((x**2 - 1) / (x - 1))), str(solve(x**2 - 2, x)), str(solve([x + y - 1, x - y], [x, y]))
latex(Rational(1, 2) * x), str(sympify('2*x + 1'))
""",
}


@dataclass(frozen=True)
class Recipe:
    """What a zygote is made of."""

    layers: frozenset[str]
    limits: RunLimits
    shown: view.View
    preload: tuple[str, ...] = ()
    user: int = 1000
    folder: str = ""  # where runs write when there is no mount namespace


def preload(modules: tuple[str, ...]) -> None:
    """Imports what runs are likely to want. A library that starts threads now could not be forked safely."""
    os.environ.update(dict.fromkeys(_SINGLE_THREADED, "1"))
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
            for _ in range(_USES if name in _FIRST_USE else 0):
                exec(_FIRST_USE[name], {})
    for name in _SINGLE_THREADED:
        os.environ.pop(name, None)


class Zygote:
    """Forks a sealed child on order, passes signals on, and tells how each child ended."""

    def __init__(self, orders: socket.socket, recipe: Recipe) -> None:
        self._orders = orders
        self._recipe = recipe
        self._children: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._open_namespace: kernel.PreparedCall | None = None
        self._leave_namespace: kernel.PreparedCall | None = None
        self._seal: Seal | None = None
        self._base_bytes = 0
        self._users = 1

    def prepare(self) -> None:
        """Everything that can be done once for all children."""
        recipe = self._recipe
        preload(recipe.preload)
        os.environ.clear()
        self._base_bytes = _address_space()
        _volunteer_for_the_oom_killer()
        if "pid" in recipe.layers:
            own = os.open("/proc/self/ns/pid", os.O_RDONLY)
            self._open_namespace = kernel.PreparedCall("unshare", kernel.CLONE_NEWPID)
            self._leave_namespace = kernel.PreparedCall("setns", own, kernel.CLONE_NEWPID)
        self._users = _users_given()
        root = view.Root(recipe.shown)
        if "user" in recipe.layers:
            become(recipe.user)
        if "mount" in recipe.layers:
            root.enter()
        kernel.no_new_privileges()
        if "seccomp" in recipe.layers:
            seccomp.Filter(seccomp.for_zygote).install()
        kernel.name_process("sandbox-zygote")
        program.dress()
        self._seal = Seal(recipe.layers, recipe.limits, root.trees, recipe.folder)
        root.close()
        child.rehearse()
        self._seal.rehearse()
        gc.collect()
        gc.freeze()

    def serve(self) -> NoReturn:
        """Until the worker hangs up. As the first process of its namespace it takes every run with it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        ends = kernel.signals_as_file([signal.SIGCHLD])
        waiting = select.poll()
        waiting.register(self._orders, select.POLLIN)
        waiting.register(ends, select.POLLIN)
        while True:
            for descriptor, _ in waiting.poll():
                if descriptor == ends:
                    os.read(ends, 4096)
                    self._reap()
                elif not self._obey():
                    os._exit(0)

    def _obey(self) -> bool:
        try:
            message, ancillary, _, _ = self._orders.recvmsg(wire.ORDER.size, socket.CMSG_SPACE(16))
        except ConnectionError:
            return False
        if not message:
            return False
        verb, number, argument = wire.ORDER.unpack(message)
        if verb == wire.FORK:
            descriptors = ancillary[0][2]
            self._fork(number, *struct.unpack(f"{len(descriptors) // 4}i", descriptors))
        elif verb == wire.SIGNAL and number in self._children:
            os.kill(self._children[number], argument)
        elif verb == wire.WHICH:
            self._tell(wire.IS, number, self._children.get(number, 0))
        return True

    def _fork(self, number: int, channel: int, stdout: int, stderr: int, group: int = -1) -> None:
        """`group` is the open list of a control group's processes, if the run is to join one."""
        if self._open_namespace is not None:
            self._open_namespace()
        pid = kernel.plain_fork()
        if pid == 0:
            self._be_a_child(number, channel, stdout, stderr, group)
        if self._leave_namespace is not None:
            # Only children go into the namespace just made; the next one gets another.
            self._leave_namespace()
        os.close(channel)
        os.close(stdout)
        os.close(stderr)
        if group >= 0:
            os.close(group)
        self._children[number] = pid
        self._numbers[pid] = number

    def _user_of(self, number: int) -> int | None:
        """A user for each run, where there are many: what the kernel counts by user, it counts by run."""
        if "user" not in self._recipe.layers or self._users == 1:
            return None
        return self._recipe.user + 1 + number % (self._users - 1)

    def _reap(self) -> None:
        while self._numbers:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._numbers.pop(pid, None)
            if number is not None:
                del self._children[number]
                self._tell(wire.ENDED, number, status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)

    def _tell(self, verb: int, number: int, value: int, seconds: float = 0.0, peak: int = 0) -> None:
        try:
            self._orders.send(wire.NEWS.pack(verb, number, value, seconds, peak))
        except ConnectionError:
            os._exit(0)

    def _be_a_child(self, number: int, channel: int, stdout: int, stderr: int, group: int) -> NoReturn:
        try:
            if group >= 0:
                os.write(group, b"0")  # whoever writes it
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            assert self._seal is not None
            folder = f"{self._recipe.folder}/{number}" if self._recipe.folder else ""
            self._seal.close(channel, folder, self._user_of(number))
            child.live(channel, base_bytes=self._base_bytes)
        except BaseException as error:
            os.write(2, f"the sandbox could not prepare this run: {error!r}\n".encode())
        os._exit(child.UNPREPARED)


def _users_given() -> int:
    """How many users this process may be in its namespace: many where the server is root, else one."""
    with open("/proc/self/uid_map") as mapping:
        return int(mapping.read().split()[2])


def _volunteer_for_the_oom_killer() -> None:
    """Inherited by every run: when memory runs out it is they that go, not the server."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("800")


def become(user: int) -> None:
    """Another user for good; the process stays readable to itself under /proc."""
    with contextlib.suppress(PermissionError):
        os.setgroups([])  # not granted to an ordinary user, whose groups then open nothing that is in view
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def _address_space() -> int:
    """Bytes mapped by this process: a run's limit is counted from here, not from zero."""
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
