"""Code that wants all of what the kernel counts for a user or for the whole machine."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from toolwright.sandbox import seccomp

from .attack import ONLY_ROOT, Attack, proofs
from .conftest import needs_isolation
from .pieces import DESCRIPTORS_TOGETHER, FRESH_STDIN, OWN_HOST_USER, WHERE_ROOT_OWN_HOST_USER
from .served import Server

pytestmark = needs_isolation

TABLE = seccomp.ARCHITECTURES[os.uname().machine]
NUMBERS = {**TABLE.refused, **TABLE.absent}
LIBC = "import ctypes, fcntl, os, signal, socket, time\nlibc = ctypes.CDLL(None, use_errno=True)\n"
ERROR = "os.strerror(ctypes.get_errno())"


def unknown_here(call: str) -> str:
    """Why a call cannot be tried, where the kernel was built without it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(NUMBERS[call]), *[ctypes.c_long(-1)] * 4)
    return f"this kernel has no {call}" if ctypes.get_errno() == 38 else ""


def larger_buffers_here() -> bool:
    default, most = (int(Path(f"/proc/sys/net/core/wmem_{name}").read_text()) for name in ("default", "max"))
    return 2 * most > default


def called(name: str, arguments: str, before: str = "") -> str:
    call = f"libc.syscall({NUMBERS[name]}, {arguments})"
    return f"{LIBC}{before}\nprint('BREACH' if {call} >= 0 else {ERROR})"


def as_many_as(count: int, take: str, before: str = "") -> str:
    """Takes one after another until it is refused one, or has enough to be a danger."""
    return f"""{LIBC}{before}
held = []
for number in range({count}):
    try: held.append({take})
    except OSError as error: print(error, flush=True); break
else: print('BREACH', flush=True)
os._exit(0)
"""


TIMER = """
timer = ctypes.c_void_p()
def create():
    if libc.timer_create(1, None, ctypes.byref(timer)) != 0:
        raise OSError(ctypes.get_errno(), 'timer_create')
"""
QUEUE_SIGNAL = """
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
def send():
    if libc.sigqueue(os.getpid(), 40, None) != 0: raise OSError(ctypes.get_errno(), 'sigqueue')
"""
LOCK = "import fcntl, os\nfile = open(os.__file__)\nfcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"


def lock_what_others_read(server: Server, _: Path) -> dict[str, Any]:
    with server.session() as hog:
        held = hog.cell(LOCK)
        found = server.run(LOCK)
    blocked = "BlockingIOError" in found["stderr"]
    return {**held, "value": "BREACH" if blocked else ""}


def set_flags_for_later_runs(server: Server, _: Path) -> dict[str, Any]:
    flags = "import fcntl, os\nflags = fcntl.fcntl(0, fcntl.F_GETFL)\n"
    for _ in range(4):
        server.run(flags + "fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_NONBLOCK)")
    return server.run(flags + "print('BREACH' if flags & os.O_NONBLOCK else 'fresh')")


def take_the_users_pipes(server: Server, _: Path) -> dict[str, Any]:
    """Beyond the user's share of pages, new pipes hold a page or two instead of sixteen."""
    hog = """
import os, signal
for _ in range(12):
    if os.fork() == 0:
        for _ in range(120): os.pipe()
        signal.pause()
"""
    look = "import fcntl, os\nprint('BREACH' if fcntl.fcntl(os.pipe()[0], 1032) < 65536 else 'whole')"
    with server.session() as one, server.session() as other:  # one on each of two workers
        for session in (one, other):
            session.cell(hog + "import time; time.sleep(1)")
        return server.run(look)


def take_descriptors_in_flight(server: Server, _: Path) -> dict[str, Any]:
    """Descriptors sent and not yet received are counted by user, against the limit of each process."""
    hog = """
import os, socket
pairs = [socket.socketpair() for _ in range(3)]
try:
    for number in range(600): socket.send_fds(pairs[number % 3][0], [b'x'], [0], 64)
except OSError: pass
"""
    one = """
import socket
here, there = socket.socketpair()
try: socket.send_fds(here, [b'x'], [0]); print('sent')
except OSError as error: print('BREACH', error)
"""
    with server.session() as first, server.session() as second:  # one on each of two workers
        first.cell(hog)
        second.cell(hog)
        return server.run(one)


test_it_fails, test_each_stop_is_enough, test_without_them_it_succeeds = proofs(
    [
        Attack(
            "contexts of asynchronous input and output",
            called("io_setup", "1000, ctypes.byref(context)", "context = ctypes.c_ulong()"),
            ("seccomp",), "Function not implemented", skip=unknown_here("io_setup"),
        ),
        Attack(
            "inotify instances", called("inotify_init1", "0"), ("seccomp",), "Function not implemented",
            skip=unknown_here("inotify_init1"),
        ),
        Attack(
            "fanotify groups", called("fanotify_init", "0x200, 0"), ("seccomp",), "Operation not permitted",
            skip=unknown_here("fanotify_init"),
        ),
        Attack(
            "keys", called("add_key", "b'user', b'name', b'payload', 7, -2"), ("seccomp",),
            "Operation not permitted", skip=unknown_here("add_key"),
        ),
        Attack(
            "message queues", called("mq_open", "b'name', 0o102, 0o600, None"),
            ("seccomp", "limits", "landlock"), "Operation not permitted", skip=unknown_here("mq_open"),
        ),
        Attack("timers", as_many_as(1000, "create()", TIMER), ("limits",), "timer_create"),
        Attack("pending signals", as_many_as(1000, "send()", QUEUE_SIGNAL), ("limits",), "sigqueue"),
        Attack("pidfds", as_many_as(500, "os.pidfd_open(os.getpid())"), ("limits",), "Too many open files"),
        Attack(
            "larger pipes", as_many_as(1, "fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)"), ("seccomp",),
            "Operation not permitted",
        ),
        Attack(
            "leases on files",
            as_many_as(1, "fcntl.fcntl(os.open('f', os.O_CREAT), fcntl.F_SETLEASE, fcntl.F_RDLCK)"),
            ("seccomp",), "Operation not permitted",
        ),
        Attack(
            "larger buffers of sockets",
            "import socket\nend = socket.socketpair()[0]\nbefore = end.getsockopt(1, 7)\n"
            "end.setsockopt(1, 7, 2 * before)\n"
            "print('BREACH' if end.getsockopt(1, 7) > before else 'the same')",
            ("seccomp",), "the same",
            skip="" if larger_buffers_here() else "this machine allows no larger buffers than the usual",
        ),
        Attack(
            "lock files that others read", lock_what_others_read, ("seccomp",), "Function not implemented"
        ),
        Attack("set flags that later runs find", set_flags_for_later_runs, (FRESH_STDIN,), "fresh"),
        Attack(
            "the user's pages of pipes", take_the_users_pipes,
            (DESCRIPTORS_TOGETHER, *WHERE_ROOT_OWN_HOST_USER), "whole",
        ),
        Attack(
            "the user's descriptors in flight", take_descriptors_in_flight, (OWN_HOST_USER,), "sent",
            skip=ONLY_ROOT and "an ordinary user has no other user to give to runs",
        ),
    ]
)  # fmt: skip
