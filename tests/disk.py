"""Disks that are full and folders that are read-only, for root as for anybody else."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager

VERSION_3 = 0x20080522  # of the capability calls: two words of 32 bits for each set
OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextmanager
def permissions_count() -> Iterator[None]:
    """This thread, and those it starts, may write only where the mode of a file or folder lets its owner."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.create_string_buffer(struct.pack("Ii", VERSION_3, 0))
    before = ctypes.create_string_buffer(24)
    assert libc.capget(head, before) == 0, os.strerror(ctypes.get_errno())
    effective, *others = struct.unpack("6I", before.raw)
    without = ctypes.create_string_buffer(struct.pack("6I", effective & ~OVERRIDES, *others))
    assert libc.capset(head, without) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(head, before) == 0, os.strerror(ctypes.get_errno())


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond this: to a program, what a full disk is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
