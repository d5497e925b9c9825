"""A worker's first minute: told what to be, it forks its zygotes and begins to serve."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import struct
import sys
from typing import Any, NoReturn

from toolwright.sandbox import kernel, view, wire
from toolwright.sandbox.cgroup import ControlGroup
from toolwright.sandbox.launch import host_user
from toolwright.sandbox.limits import RunLimits
from toolwright.sandbox.nursery import Nursery
from toolwright.sandbox.zygote import Recipe

LIGHT, LOADED, TOOLS = "light", "loaded", "tools"
_COMMON = (
    "bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math",
    "operator", "random", "re", "string", "time", "typing",
)  # fmt: skip


def main(descriptor: int) -> NoReturn:
    """Reads its instructions from the server, and never returns."""
    server = socket.socket(fileno=descriptor)
    kernel.name_process("sandbox-worker")
    told = _instructions(server)
    folder = "" if "mount" in told["layers"] else _folder(told)
    group = ControlGroup(told["group"]) if "cgroup" in told["layers"] else None
    try:
        if group is not None:
            made = group.make(memory_bytes=told["group_bytes"], processes=told["group_processes"])
            if not made:
                raise RuntimeError(f"the control group {group.name} could not be made")
        preload = tuple(name for name in told["preload"] if _is_installed(name))
        nurseries = _nurseries(told, preload, folder, group)
    except Exception as error:
        server.sendall(wire.frame(wire.READY, 0, json.dumps({"error": str(error)}).encode()))
        if folder:
            os.rmdir(folder)
        if group is not None:
            group.remove()
        os._exit(1)
    # Imported after the zygotes were forked: every library they hold is paid for at each fork.
    from toolwright.sandbox.worker import SandboxWorker

    SandboxWorker(server, nurseries, fallback=nurseries[LIGHT], folder=folder, group=group).serve(preload)


def _folder(told: dict[str, Any]) -> str:
    """Where runs write when they have no file system of their own."""
    import tempfile

    folder = tempfile.mkdtemp(prefix="toolwright-sandbox-")
    os.chmod(folder, 0o711)
    if "user" in told["layers"] and os.geteuid() == 0:
        os.chown(folder, host_user(told["index"]), -1)
    return folder


def _instructions(server: socket.socket) -> dict[str, Any]:
    header = server.recv(4, socket.MSG_WAITALL)
    if len(header) < 4:
        os._exit(0)
    return json.loads(server.recv(struct.unpack("<I", header)[0], socket.MSG_WAITALL))


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a part of a package that is not there
        return False


def _nurseries(
    told: dict[str, Any], preload: tuple[str, ...], folder: str, group: ControlGroup | None
) -> dict[str, Nursery]:
    layers, limits = frozenset(told["layers"]), RunLimits(**told["limits"])
    # One worker, one core: a process that moves makes both cores drop what they know of its memory.
    available = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {available[(told["first_core"] + told["index"]) % len(available)]})
    python = view.of_python()

    def nursery(shown: view.View, modules: tuple[str, ...], spare: int) -> Nursery:
        recipe = Recipe(layers=layers, limits=limits, shown=shown, preload=modules, folder=folder)
        return Nursery(recipe, index=told["index"], spare=spare, group=group)

    nurseries = {LIGHT: nursery(python, _COMMON, told["runs_per_worker"])}
    if preload:
        nurseries[LOADED] = nursery(python, (*_COMMON, *preload), 1)
    if told["tools"]:
        nurseries[TOOLS] = nursery(view.of_tools(told["tools"]), (), 0)
    return nurseries


if __name__ == "__main__":
    main(int(sys.argv[1]))
