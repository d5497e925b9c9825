"""Code that wants what the kernel gives to the powerful."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .attack import ONLY_ROOT, Attack, proofs
from .conftest import needs_isolation
from .pieces import NO_NEW_PRIVILEGES, NO_RIGHTS, NO_RIGHTS_ANYWHERE
from .served import Server

pytestmark = needs_isolation

LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
ERROR = "os.strerror(ctypes.get_errno())"
# A kernel without modules refuses the call to everybody; then only the filter can be seen to refuse it first.
MODULES = Path("/proc/modules").exists()
INIT_MODULE = 175 if os.uname().machine == "x86_64" else 105
LOAD_MODULE = f"{LIBC}libc.syscall({INIT_MODULE}, b'x' * 100, 100, b'')\n"
# Rubbish is no module: that this is noticed means that the right to load one was there.
NOTICED = f"ctypes.get_errno() in {(8, 22) if MODULES else (38,)}"
RIGHTS = """
import struct
header, held = ctypes.create_string_buffer(struct.pack('=Ii', 0x20080522, 0)), ctypes.create_string_buffer(24)
libc.capget(header, held)
print('BREACH' if any(struct.unpack('=6I', held.raw[:24])) else 'none')
"""
HOST_DOMAIN = Path("/proc/sys/kernel/domainname")


def no_right_to_modules() -> str:
    """Why root cannot load modules here, if so: a container may have taken the right away."""
    tried = subprocess.run([sys.executable, "-c", f"{LOAD_MODULE}raise SystemExit(not {NOTICED})"])
    return "root may not load modules in this container" if tried.returncode else ""


def tried(call: str, success: str = "0") -> str:
    return f"{LIBC}print('BREACH' if libc.{call} == {success} else {ERROR})"


def rename_the_host(server: Server, _: Path) -> dict[str, Any]:
    """The name of its NIS domain, which nobody uses; it is put back, and others may try it meanwhile."""
    before, name = HOST_DOMAIN.read_text(), f"tw-{os.urandom(4).hex()}"
    answer = server.run(tried(f"setdomainname(b'{name}', {len(name)})"))
    renamed = HOST_DOMAIN.read_text().strip() == name
    if renamed:
        HOST_DOMAIN.write_text(before)
    return {**answer, "stdout": answer["stdout"].replace("BREACH", "0"), "value": "BREACH" if renamed else ""}


@contextlib.contextmanager
def shared_memory(text: bytes) -> Iterator[int]:
    """A System V segment of the host that everybody may read; its key."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    key = int.from_bytes(os.urandom(3)) + 1
    segment = libc.shmget(key, 4096, 0o1666)
    address = libc.shmat(segment, None, 0)
    ctypes.memmove(address, text, len(text))
    try:
        yield key
    finally:
        libc.shmctl(segment, 0, None)


def read_the_hosts_shared_memory(server: Server, _: Path) -> dict[str, Any]:
    with shared_memory(b"BREACH") as key:
        read = f"""
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget({key}, 6, 0o444)
print({ERROR} if segment < 0 else ctypes.string_at(libc.shmat(segment, None, 0o10000), 6))
"""
        return server.run(LIBC + read)


test_it_fails, test_each_stop_is_enough, test_without_them_it_succeeds = proofs(
    [
        Attack("trace itself", tried("ptrace(0, 0, 0, 0)"), ("seccomp",), "Operation not permitted"),
        Attack(
            "mount", tried("mount(b'none', b'.', b'tmpfs', 0, b'')"),
            (NO_RIGHTS_ANYWHERE, "seccomp", "landlock"), "Operation not permitted",
        ),
        Attack(
            "make namespaces of its own", tried("unshare(0x10000000)"), (NO_RIGHTS_ANYWHERE, "seccomp"),
            "Operation not permitted",
        ),
        Attack(
            "load a kernel module",
            f"{LOAD_MODULE}print('BREACH' if {NOTICED} else {ERROR})",
            ("user", "seccomp") if MODULES else ("seccomp",), "Operation not permitted",
            skip=(ONLY_ROOT or no_right_to_modules()) if MODULES else "",
        ),
        Attack(
            "rename the host", rename_the_host, ("user", "uts", "seccomp"), "Operation not permitted",
            skip=ONLY_ROOT,
        ),
        Attack(
            "read the host's shared memory", read_the_hosts_shared_memory, ("ipc", "seccomp"),
            "Operation not permitted",
        ),
        Attack("keep capabilities", LIBC + RIGHTS, (NO_RIGHTS,), "none"),
        # Landlock and seccomp refuse whoever has not given this up: they have to be gone to show it.
        Attack(
            "gain privileges by exec",
            LIBC + "print('BREACH' if libc.prctl(39, 0, 0, 0, 0) == 0 else 'given up')",
            (NO_NEW_PRIVILEGES,), "given up", also=("landlock", "seccomp"),
        ),
    ]
)  # fmt: skip
