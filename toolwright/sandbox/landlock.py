"""Landlock: gives up file and network rights for good, for a process and its descendants."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from toolwright.sandbox import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHARACTER, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP, _CONNECT = 0b11, 0b10  # bind and connect
_SCOPES = 0b11  # abstract unix sockets and signals stay inside the run
_VERSION_FLAG = 1
_PATH_BENEATH, _PORT = 1, 2


def abi() -> int:
    """The version that the kernel supports; 0 if none."""
    try:
        return kernel.syscall("landlock_create_ruleset", None, ctypes.c_void_p(0), _VERSION_FLAG)
    except OSError:
        return 0


class Ruleset:
    """Rules about what a run may use: `readable` trees (descriptors), a `writable` tree, `devices`, and the
    port that it may `connect` to, if any."""

    def __init__(
        self,
        *,
        readable: Iterable[int],
        writable: str,
        devices: Iterable[str],
        connect: int | None = None,
    ) -> None:
        version = abi()
        self._handled = _RIGHTS_BY_ABI[max(known for known in _RIGHTS_BY_ABI if known <= version)]
        network = _TCP if version >= 4 else 0
        scopes = _SCOPES if version >= 6 else 0
        attributes = struct.pack("=QQQ", self._handled, network, scopes)
        # An older kernel takes a shorter structure and refuses unknown bytes.
        size = 8 if version < 4 else 16 if version < 6 else 24
        self.descriptor = kernel.syscall(
            "landlock_create_ruleset",
            attributes[:size],
            ctypes.c_size_t(size),
            0,
        )
        for tree in readable:
            self._allow(tree, _EXECUTE | _READ_FILE | _READ_DIR)
        self._allow_path(writable, self._handled & ~(_MAKE_CHARACTER | _MAKE_BLOCK))
        for path in devices:
            self._allow_path(path, _READ_FILE | _WRITE_FILE)
        if connect is not None and network:
            rule = struct.pack("=QQ", _CONNECT, connect)
            kernel.syscall("landlock_add_rule", self.descriptor, _PORT, rule, 0)

    def _allow_path(self, path: str, rights: int) -> None:
        tree = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            self._allow(tree, rights)
        finally:
            os.close(tree)

    def _allow(self, tree: int, rights: int) -> None:
        if not stat.S_ISDIR(os.fstat(tree).st_mode):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights & self._handled, tree)
        kernel.syscall("landlock_add_rule", self.descriptor, _PATH_BENEATH, rule, 0)
