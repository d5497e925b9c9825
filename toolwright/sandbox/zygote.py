"""The warm process that runs are forked from.

It never sees a job: a child reads its job from the worker after it was forked and sealed. So the memory that
a child inherits holds nothing of another run.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from toolwright.sandbox.limits import RunLimits, set_inherited
from toolwright.sandbox.seal import Seal

_DESCRIPTORS_SPACE = socket.CMSG_SPACE(16)
_SINGLE_THREADED = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


# Some packages load most of their code when they are first used, and each run would do that again. After
# several uses the interpreter has specialised its code, and runs copy less memory.
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
class ZygoteConfig:
    """The settings of a zygote."""

    layers: frozenset[str]
    limits: RunLimits
    visible: view.View
    preload: tuple[str, ...] = ()
    user: int = 1000
    folder: str = ""  # where runs write if there is no mount namespace


def preload(modules: tuple[str, ...]) -> None:
    """Imports packages that runs are likely to use. None may start threads: a fork would not be safe."""
    os.environ.update(dict.fromkeys(_SINGLE_THREADED, "1"))
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
            for _ in range(_USES if name in _FIRST_USE else 0):
                exec(_FIRST_USE[name], {})
    for name in _SINGLE_THREADED:
        os.environ.pop(name, None)


class Zygote:
    """Forks sealed children when ordered to, passes signals on, and reports how each child ended."""

    def __init__(self, orders: socket.socket, config: ZygoteConfig) -> None:
        self._orders = orders
        self._config = config
        self._children: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._open_namespace: kernel.PreparedCall | None = None
        self._leave_namespace: kernel.PreparedCall | None = None
        self._seal: Seal | None = None
        self._base_bytes = 0
        self._users = 1
        # The channel, the outputs and the control group, if any.
        self._unpack_descriptors = struct.Struct("4i" if "cgroup" in config.layers else "3i").unpack

    def prepare(self) -> None:
        """Does everything that can be done once for all children."""
        config = self._config
        preload(config.preload)
        os.environ.clear()
        self._base_bytes = _address_space()
        _raise_oom_score()
        if "pid" in config.layers:
            own = os.open("/proc/self/ns/pid", os.O_RDONLY)
            self._open_namespace = kernel.PreparedCall("unshare", kernel.CLONE_NEWPID)
            self._leave_namespace = kernel.PreparedCall("setns", own, kernel.CLONE_NEWPID)
        if "user" in config.layers:
            self._users = _mapped_users()
        root = view.Root(config.visible)
        if "user" in config.layers:
            become(config.user)
        if "mount" in config.layers:
            root.enter()
        kernel.no_new_privileges()
        if "seccomp" in config.layers:
            seccomp.Filter(seccomp.for_zygote).install()
        kernel.name_process("sandbox-zygote")
        program.prepare_interpreter()
        self._seal = Seal(
            config.layers,
            config.limits,
            root.trees,
            config.folder,
            joins_group="cgroup" in config.layers,
            changes_user=self._users > 1,
        )
        root.close()
        if "limits" in config.layers:
            set_inherited(config.limits)
        child.warm_up()
        self._seal.warm_up()
        gc.collect()
        gc.freeze()

    def serve(self) -> NoReturn:
        """Serves until the worker hangs up. As the first process of its namespace it ends every run."""
        fcntl.fcntl(0, fcntl.F_DUPFD, 3)  # takes 3 if it is free: descriptors that come in are above it
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
                elif not self._handle_order():
                    os._exit(0)

    def _handle_order(self) -> bool:
        try:
            message, ancillary, _, _ = self._orders.recvmsg(wire.ORDER.size, _DESCRIPTORS_SPACE)
        except ConnectionError:
            return False
        if not message:
            return False
        verb, number, argument = wire.ORDER.unpack(message)
        if verb == wire.FORK:
            self._fork(number, *self._unpack_descriptors(ancillary[0][2]))
        elif verb == wire.SIGNAL and number in self._children:
            os.kill(self._children[number], argument)
        elif verb == wire.GET_PID:
            self._report(wire.PID, number, self._children.get(number, 0))
        return True

    def _fork(self, number: int, channel: int, stdout: int, stderr: int, group: int = -1) -> None:
        """Forks a child. `group` is the open `cgroup.procs` file that it joins, if any."""
        assert self._seal is not None
        self._seal.prepare(channel, stdout, stderr, group, self._user_of(number))
        if self._open_namespace is not None:
            self._open_namespace()
        pid = kernel.plain_fork()
        if pid == 0:
            self._become_child(self._seal, number, channel)
        if self._leave_namespace is not None:
            # The zygote itself stays outside the new namespace; the next child gets another.
            self._leave_namespace()
        os.close(channel)
        os.close(stdout)
        os.close(stderr)
        if group >= 0:
            os.close(group)
        self._children[number] = pid
        self._numbers[pid] = number

    def _user_of(self, number: int) -> int:
        """A user for each run, if there are several: what the kernel counts by user, it counts by run."""
        return self._config.user + 1 + number % (self._users - 1) if self._users > 1 else -1

    def _reap(self) -> None:
        while self._numbers:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._numbers.pop(pid, None)
            if number is not None:
                del self._children[number]
                self._report(wire.ENDED, number, status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)

    def _report(self, verb: int, number: int, value: int, seconds: float = 0.0, peak: int = 0) -> None:
        try:
            self._orders.send(wire.EVENT.pack(verb, number, value, seconds, peak))
        except ConnectionError:
            os._exit(0)

    def _become_child(self, seal: Seal, number: int, channel: int) -> NoReturn:
        try:
            seal.apply(f"{self._config.folder}/{number}" if self._config.folder else "")
            child.run(channel, base_bytes=self._base_bytes)
        except BaseException as error:
            os.write(2, f"the sandbox could not prepare this run: {error!r}\n".encode())
        os._exit(child.UNPREPARED)


def _mapped_users() -> int:
    """Count the users that are mapped in this namespace: many if the server is root, otherwise one."""
    with open("/proc/self/uid_map") as mapping:
        return int(mapping.read().split()[2])


def _raise_oom_score() -> None:
    """Makes the kernel kill runs, which inherit this, before the server when memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("800")


def become(user: int) -> None:
    """Becomes another user for good. The process stays readable to itself under /proc."""
    with contextlib.suppress(PermissionError):
        os.setgroups([])  # an ordinary user may not; its groups open nothing that a run can see
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def _address_space() -> int:
    """Bytes that this process has mapped already. A run's limit is added to them."""
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
