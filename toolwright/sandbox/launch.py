"""Starting a zygote in namespaces of its own."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass
from typing import NoReturn

from toolwright.sandbox import kernel
from toolwright.sandbox.cgroup import ControlGroup
from toolwright.sandbox.layers import NAMESPACES
from toolwright.sandbox.zygote import Recipe, Zygote

# The users that runs are on the host when the server is root: far above any account.
_FIRST_HOST_USER = 2_000_000_000
_USERS_PER_WORKER = 1 << 16


def host_user(index: int) -> int:
    """The first user of a worker, which its zygotes are; each run is one of those that follow."""
    return _FIRST_HOST_USER + index * _USERS_PER_WORKER


@dataclass(frozen=True)
class Started:
    """A running zygote, as its worker sees it."""

    pid: int
    orders: socket.socket


def start(recipe: Recipe, index: int, group: ControlGroup | None = None) -> Started:
    """Forks a zygote and waits until it can fork runs; its refusal becomes this worker's error."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    go_reading, go_writing = os.pipe()
    done_reading, done_writing = os.pipe()
    flags = 0
    for name in recipe.layers & NAMESPACES.keys():
        flags |= NAMESPACES[name]
    worker = os.getpid()
    pid = kernel.fork_into(flags)
    if pid == 0:
        for descriptor in (ours.fileno(), go_writing, done_reading):
            os.close(descriptor)
        _become_zygote(recipe, theirs, go_reading, done_writing, worker)
    theirs.close()
    os.close(go_reading)
    os.close(done_writing)
    if "user" in recipe.layers:
        _map_users(pid, recipe.user, index)
    if group is not None:
        group.add(pid)
    os.write(go_writing, b"g")
    os.close(go_writing)
    with os.fdopen(done_reading, "rb") as answer:
        said = answer.read()
    if said != b"ready":
        os.waitpid(pid, 0)
        raise RuntimeError(said.decode(errors="replace") or "the zygote died before it was ready")
    return Started(pid, ours)


def _become_zygote(recipe: Recipe, orders: socket.socket, go: int, done: int, worker: int) -> NoReturn:
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.read(go, 1)
        os.close(go)
        zygote = Zygote(orders, recipe)
        zygote.prepare()
        # A change of user forgets the wish above.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.write(done, b"ready")
        os.close(done)
        zygote.serve()
    except BaseException as error:
        os.write(done, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(1)


def _map_users(pid: int, inside: int, index: int) -> None:
    """Users who outside are nobody in particular if we may say so; if not, one, who outside is ourselves."""
    if os.geteuid() == 0:
        try:
            _write_maps(pid, inside, host_user(index), host_user(index), _USERS_PER_WORKER)
            return
        except OSError:
            pass  # root of a container without those users: what root has there is little enough
    with open(f"/proc/{pid}/setgroups", "w") as groups:
        groups.write("deny")
    _write_maps(pid, inside, os.geteuid(), os.getegid(), 1)


def _write_maps(pid: int, inside: int, user: int, group: int, count: int) -> None:
    for name, outside in (("uid_map", user), ("gid_map", group)):
        with open(f"/proc/{pid}/{name}", "wb", buffering=0) as mapping:
            mapping.write(f"{inside} {outside} {count}".encode())
