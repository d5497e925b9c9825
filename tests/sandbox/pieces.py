"""The pieces of the sandbox that are code and not a layer, and how each is taken out for a counter-proof."""

from __future__ import annotations

from toolwright.sandbox import cgroup

from .attack import AS_ROOT, Piece


def _without_steps(*steps: str) -> str:
    """Children walk the list of calls that seals them without these."""
    return f"""
from toolwright.sandbox import kernel, seal
def add(self, name, *rest, add=seal.Seal._add):
    if not any((name, *rest)[:len(step)] == step for step in ({", ".join(steps)},)):
        add(self, name, *rest)
seal.Seal._add = add
"""


EMPTY_START = Piece(
    "workers start with an empty environment",
    server="""
import os
from toolwright.sandbox import pool
pool._ENVIRONMENT = {**os.environ, **pool._ENVIRONMENT}
""",
)
CLEARED = Piece("zygotes clear their environment", worker="import os; os._Environ.clear = lambda self: None")
FILE_NAMES = Piece(
    "file names are checked",
    server="""
from toolwright.sandbox import requests
requests._relative_name.__code__ = (lambda name: name).__code__
""",
)
FETCHED_AT_ONCE = Piece(
    "fetched files are opened without waiting",
    worker="import os\nfrom toolwright.sandbox import child\nchild._open_without_waiting = os.open",
)
OWN_GROUP = Piece("a session for each run", worker=_without_steps("('setsid',)"))
OWN_USERS = Piece("a user namespace for each run", worker=_without_steps("('unshare', kernel.CLONE_NEWUSER)"))
NO_RIGHTS = Piece("capabilities are given up", worker=_without_steps("('capset',)"))
NO_RIGHTS_ANYWHERE = Piece(
    "a user namespace and no capabilities for each run",
    worker=_without_steps("('unshare', kernel.CLONE_NEWUSER)", "('capset',)"),
)
NO_NEW_PRIVILEGES = Piece(
    "no new privileges",
    worker="from toolwright.sandbox import kernel\nkernel.no_new_privileges = lambda: None",
)
HARD_LIMITS = Piece(
    "hard limits are lowered with the soft ones",
    worker="""
import resource
from toolwright.sandbox import limits
limits.soft_and_hard = lambda kind, amount: (amount, resource.getrlimit(kind)[1])
""",
)
CLOCK = Piece(
    "the clock is outside the run",
    worker="from toolwright.sandbox.processes import Clock\nClock.passed = lambda self: ''",
)
FRESH_STDIN = Piece(
    "descriptor 0 is opened for each run", worker=_without_steps("('close', 0)", "('openat',)")
)
OWN_HOST_USER = Piece(
    "a user of the host for each run",
    worker="from toolwright.sandbox.zygote import Zygote\nZygote._user_of = lambda *_: 1000",
)
# An ordinary user has no other user to give to runs.
WHERE_ROOT_OWN_HOST_USER = (OWN_HOST_USER,) if AS_ROOT else ()
DESCRIPTORS_TOGETHER = Piece(
    "the descriptors of all processes are added up",
    worker=(
        "from toolwright.sandbox.execution import ChildAtWork\nChildAtWork.holds_too_many = lambda *_: False"
    ),
)
MEMORY_TOGETHER = Piece(
    "the memory of all processes is added up",
    worker="from toolwright.sandbox.execution import ChildAtWork\nChildAtWork.too_heavy = lambda *_: False",
)
KERNEL_MEMORY = Piece(
    "files and the kernel's memory are added up where there is no group",
    worker="from toolwright.sandbox import processes\nprocesses.kernel_bytes = lambda *_: (0, 0)",
)
GROUPS = ("cgroup",) if cgroup.available() else ()
FLOOD = Piece(
    "output is counted",
    worker="from toolwright.sandbox.execution import Execution\nExecution.flooded = lambda self: False",
)
CLOSED_DESCRIPTORS = Piece(
    "descriptors are closed",
    worker=_without_steps("('close_range',)"),
)
CLOSED_CHANNEL = Piece(
    "the channel is closed before the code begins",
    worker="from toolwright.sandbox import child\nchild._close_channel = lambda channel: None",
)
EXPECTED_ANSWERS = Piece(
    "a session's answers are checked",
    worker="from toolwright.sandbox.interpreter import Interpreter\nInterpreter._expects = lambda *_: True",
)
SECRET_NAMES = Piece(
    "sessions have names that cannot be guessed",
    server="""
import itertools, secrets
secrets.token_urlsafe = lambda size, numbers=itertools.count(1): str(next(numbers))
""",
)
BLIND_ZYGOTE = Piece(
    "a zygote sees no job",
    worker="""
import os, socket
from toolwright.sandbox import child_pool, zygote
child_pool.ChildPool.fill = lambda self: None
def fork(self, number, channel, *others, fork=zygote.Zygote._fork):
    with socket.socket(fileno=os.dup(channel)) as coming:
        self.jobs = [*getattr(self, 'jobs', []), coming.recv(1 << 16, socket.MSG_PEEK)]
    fork(self, number, channel, *others)
zygote.Zygote._fork = fork
""",
)
