"""The system calls that isolation needs.

It imports the standard library only: every process that runs untrusted code loads this module.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_BIND = 4096
MS_REC = 16384
MS_REMOUNT = 32
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
AT_RECURSIVE = 0x8000
AT_FDCWD = -100

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

MACHINE = platform.machine()

# Calls that glibc does not wrap everywhere. From 424 on all architectures share the numbers.
NUMBERS_BY_MACHINE = {
    "x86_64": {
        "rt_sigprocmask": 14, "setsid": 112, "chdir": 80, "clone": 56, "pivot_root": 155,
        "capset": 126, "prctl": 157, "mount": 165, "unshare": 272, "mkdirat": 258, "prlimit64": 302,
        "signalfd4": 289, "setns": 308, "close": 3, "openat": 257, "write": 1, "dup3": 292, "setresuid": 117,
    },
    "aarch64": {
        "rt_sigprocmask": 135, "setsid": 157, "chdir": 49, "clone": 220, "pivot_root": 41, "capset": 91,
        "prctl": 167, "mount": 40, "unshare": 97, "mkdirat": 34, "prlimit64": 261, "signalfd4": 74,
        "setns": 268, "close": 57, "openat": 56, "write": 64, "dup3": 24, "setresuid": 147,
    },
}  # fmt: skip
_NUMBERS = {
    "close_range": 436,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    **NUMBERS_BY_MACHINE.get(MACHINE, {}),
}

_libc = ctypes.CDLL(None, use_errno=True)
_interpreter = ctypes.PyDLL(None, use_errno=True)
_interpreter.syscall.restype = ctypes.c_long
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]


# Every argument must be a ctypes integer: nothing is converted or allocated.
raw_syscall = _libc.syscall


def number(name: str) -> int:
    if name not in _NUMBERS:
        raise OSError(38, f"{name} has no known number on {MACHINE}")
    return _NUMBERS[name]


def _checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def syscall(name: str, *arguments: int | ctypes.c_void_p | ctypes.c_size_t | bytes | None) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number(name)), *arguments), name)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), f"unshare({flags:#x})")


def fork_into(namespaces: int) -> int:
    """`os.fork` with the child in new namespaces; it is the first process of a new pid namespace.

    `os.fork` after `unshare` would need a process in between, whose death nobody would notice.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    # Through PyDLL, which keeps the interpreter's lock during the call.
    pid = _interpreter.syscall(
        ctypes.c_long(number("clone")), namespaces | signal.SIGCHLD, None, None, None, None
    )
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return _checked(pid, f"clone({namespaces:#x})")


def plain_fork() -> int:
    """The C library's fork, without the interpreter's hooks, which write to more memory than the fork itself.

    For processes with one thread only: the hooks repair other threads' locks, and seed random generators,
    which the child does itself.
    """
    return _checked(_interpreter.fork(), "fork")


def signals_as_file(numbers: list[int]) -> int:
    """A descriptor that becomes readable when one of these (blocked) signals is pending."""
    mask = sum(1 << (number - 1) for number in numbers)
    return syscall("signalfd4", -1, struct.pack("=Q", mask), 8, os.O_NONBLOCK | os.O_CLOEXEC)


class PreparedCall:
    """A system call with prepared arguments, for calls that are made often."""

    def __init__(self, name: str, *arguments: int) -> None:
        self._name = name
        self._arguments = tuple(ctypes.c_long(value) for value in (number(name), *arguments))

    def __call__(self) -> None:
        if raw_syscall(*self._arguments) < 0:
            _checked(-1, self._name)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3])
    _checked(result, f"mount {source or kind} on {target}")


def unmount(target: str) -> None:
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    syscall("pivot_root", new_root.encode(), put_old.encode())


def make_read_only(tree: str) -> None:
    """Makes every mount of the tree read-only, without devices and set-user-id programs."""
    attributes = struct.pack("=QQQQ", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0, 0, 0)
    size = ctypes.c_size_t(len(attributes))
    syscall("mount_setattr", AT_FDCWD, tree.encode(), AT_RECURSIVE, attributes, size)


def prctl(option: int, argument: int = 0, address: int = 0) -> None:
    _checked(_libc.prctl(option, argument, address, 0, 0), f"prctl({option})")


def name_process(name: str) -> None:
    """Sets the name that `ps` shows."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    prctl(PR_SET_NAME, ctypes.addressof(buffer))


def no_new_privileges() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)
