"""Isolates a fork of the zygote, so that it may run untrusted code: a list of system calls.

The list is written once, in the zygote, with every argument in the form that the kernel takes. A child only
walks it. Each page that a child or the zygote writes to after the fork is copied. That copying, not the
isolation, is most of what a run costs, and walking a list writes to few pages.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Sequence

from toolwright.sandbox import kernel, landlock, seccomp, view
from toolwright.sandbox.limits import RunLimits, fixed

_SIG_SETMASK = 2
_CAPABILITY_VERSION_3 = 0x20080522
_FIRST_FREE, _LAST = 3, 0xFFFFFFFF  # descriptors


class Seal:
    """The steps from fork to readiness, for one zygote.

    The order matters: rights are used before they are given up. First mounts, then the user namespace without
    any mapping (the process is nobody there and owns nothing), then capabilities, then system calls.
    """

    def __init__(
        self,
        layers: frozenset[str],
        limits: RunLimits,
        trees: list[int],
        folder: str,
        *,
        connect: int | None = None,
        joins_group: bool = False,
        changes_user: bool = False,
    ) -> None:
        """`connect`: the one port that may be connected to."""
        self._steps: list[tuple[str, tuple[ctypes.c_long, ...]]] = []
        self._kept: list[object] = []  # buffers that the kernel reads by address
        self._filter = seccomp.Filter(seccomp.for_run) if "seccomp" in layers else None
        self._ruleset = None
        if "landlock" in layers:
            devices = [device for device in view.DEVICES if os.path.exists(device)]
            writable = view.PRIVATE if "mount" in layers else folder
            self._ruleset = landlock.Ruleset(
                readable=trees, writable=writable, devices=devices, connect=connect
            )
        # What differs from child to child, side by side: the zygote writes to one page for all of them.
        self._varying = (ctypes.c_long * 6)()
        stdout, stderr, group, self._user, below_channel, above_channel = (
            ctypes.c_long.from_buffer(self._varying, place * ctypes.sizeof(ctypes.c_long))
            for place in range(6)
        )
        self._set_varying = struct.Struct("6l").pack_into
        if joins_group:
            self._add("write", group, b"0", 1)  # 0: the process that writes it
        self._add("dup3", stdout, 1, 0)
        self._add("dup3", stderr, 2, 0)
        if changes_user:
            self._add("setresuid", self._user, self._user, self._user)
            self._add("prctl", kernel.PR_SET_DUMPABLE, 1, 0, 0, 0)
        self._write(layers, limits)
        self._add("close_range", _FIRST_FREE, below_channel, 0)
        self._add("close_range", above_channel, _LAST, 0)
        if self._filter is not None:
            filter_at = self._filter.address
            self._add("prctl", kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, filter_at, 0, 0)
        self._calls = [arguments for _, arguments in self._steps]
        self._call = kernel.raw_syscall

    def _write(self, layers: frozenset[str], limits: RunLimits) -> None:
        self._add("rt_sigprocmask", _SIG_SETMASK, bytes(8), 0, 8)
        # A session of its own: signals to a group stay inside, and a kernel that shares processors between
        # sessions gives sixty busy processes of one run no more than one process of another.
        self._add("setsid")
        # Flags belong to the open file, not to its number: later runs would find the flags that one run set.
        self._add("close", 0)
        self._add("openat", kernel.AT_FDCWD, b"/dev/null\0", os.O_RDWR, 0)
        if "mount" in layers:
            self._add("unshare", kernel.CLONE_NEWNS)
            options = f"mode=0755,size={limits.disk_mb}m,nr_inodes={limits.files_in_disk}"
            flags = kernel.MS_NOSUID | kernel.MS_NODEV
            self._add(
                "mount", b"tmpfs\0", view.RUN.encode() + b"\0", b"tmpfs\0", flags, options.encode() + b"\0"
            )
            for name in view.FOLDERS_OF_A_RUN:
                self._add("mkdirat", kernel.AT_FDCWD, f"{view.RUN}/{name}".encode() + b"\0", 0o755)
            self._add("chdir", view.WORK.encode() + b"\0")
        if "user" in layers:
            self._add("unshare", kernel.CLONE_NEWUSER)
            # The kernel lowers the ambient capabilities with these.
            self._add("capset", struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))
        if "pid" not in layers:
            self._add("prctl", kernel.PR_SET_PDEATHSIG, 9, 0, 0, 0)
        if self._ruleset is not None:
            self._add("landlock_restrict_self", self._ruleset.descriptor, 0)
        if "limits" in layers:
            for kind, soft, hard in fixed(limits):
                self._add("prlimit64", 0, kind, struct.pack("=qq", soft, hard), 0)

    def _add(self, name: str, *arguments: int | bytes | ctypes.c_long) -> None:
        values = [ctypes.c_long(kernel.number(name))]
        for argument in arguments:
            if isinstance(argument, bytes):
                buffer = ctypes.create_string_buffer(argument, len(argument))
                self._kept.append(buffer)
                argument = ctypes.addressof(buffer)
            values.append(argument if isinstance(argument, ctypes.c_long) else ctypes.c_long(argument))
        self._steps.append((name, tuple(values)))

    def warm_up(self) -> None:
        """Walks calls that do nothing, in the zygote."""
        nothing = [
            (ctypes.c_long(kernel.number("close_range")), ctypes.c_long(1 << 30), ctypes.c_long(1 << 30))
        ]
        for _ in range(60):
            _walk(self._call, nothing * 4)

    def prepare(self, channel: int, stdout: int, stderr: int, group: int = -1, user: int = -1) -> None:
        """Completes the list for the next child, before the fork. All descriptors are above 3.

        The child keeps one of them, the channel. `group` is the open `cgroup.procs` file that it joins.
        """
        self._set_varying(self._varying, 0, stdout, stderr, group, user, channel - 1, channel + 1)

    def apply(self, folder: str) -> None:
        """Seals the calling process, a child."""
        if folder:
            os.mkdir(folder, 0o700)
            os.chdir(folder)
            os.chown(folder, self._user.value, -1)
        failed = _walk(self._call, self._calls)
        if failed is not None:
            error = ctypes.get_errno()
            raise OSError(error, f"{self._steps[failed][0]}: {os.strerror(error)}")


def _walk(call: Callable[..., int], steps: Sequence[tuple[ctypes.c_long, ...]]) -> int | None:
    """Makes the calls in order; the index of the first that fails."""
    for index, arguments in enumerate(steps):
        if call(*arguments) < 0:
            return index
    return None
