"""The start of a worker process: it reads its instructions, forks its zygotes and serves."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from typing import Any, NoReturn

from toolwright.sandbox import kernel, view, wire
from toolwright.sandbox.cgroup import ControlGroup
from toolwright.sandbox.child_pool import ChildPool, host_user
from toolwright.sandbox.limits import RunLimits
from toolwright.sandbox.zygote import ZygoteConfig

LIGHT, LOADED, TOOLS = "light", "loaded", "tools"
_COMMON = (
    "bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math",
    "operator", "random", "re", "string", "time", "typing",
)  # fmt: skip


def main(descriptor: int) -> NoReturn:
    """Reads the instructions of the server and serves. Never returns."""
    server = socket.socket(fileno=descriptor)
    kernel.name_process("sandbox-worker")
    message = wire.read_message(descriptor)
    if message is None:
        os._exit(0)
    instructions = json.loads(message)
    sys.path += [path for path in instructions["packages"] if path not in sys.path]
    folder = "" if "mount" in instructions["layers"] else _folder(instructions)
    group = ControlGroup(instructions["group"]) if "cgroup" in instructions["layers"] else None
    try:
        if group is not None:
            made = group.make(
                memory_bytes=instructions["group_bytes"], processes=instructions["group_processes"]
            )
            if not made:
                raise RuntimeError(f"the control group {group.name} could not be made")
        preload = tuple(name for name in instructions["preload"] if _is_installed(name))
        child_pools = _child_pools(instructions, preload, folder, group)
    except Exception as error:
        server.sendall(wire.frame(wire.READY, 0, json.dumps({"error": str(error)}).encode()))
        if folder:
            os.rmdir(folder)
        if group is not None:
            group.remove()
        os._exit(1)
    # Imported after the zygotes were forked: each library in a zygote makes every fork slower.
    from toolwright.sandbox.worker import SandboxWorker

    SandboxWorker(server, child_pools, fallback=child_pools[LIGHT], folder=folder, group=group).serve(preload)


def _folder(instructions: dict[str, Any]) -> str:
    """Creates the folder where runs write if they have no file system of their own."""
    import tempfile

    folder = tempfile.mkdtemp(prefix="toolwright-sandbox-")
    os.chmod(folder, 0o711)
    if "user" in instructions["layers"] and os.geteuid() == 0:
        os.chown(folder, host_user(instructions["index"]), -1)
    return folder


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a submodule of a package that is not there
        return False


def _child_pools(
    instructions: dict[str, Any], preload: tuple[str, ...], folder: str, group: ControlGroup | None
) -> dict[str, ChildPool]:
    layers, limits = frozenset(instructions["layers"]), RunLimits(**instructions["limits"])
    # One core a worker: a process that moves to another core loses its caches.
    available = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(
        0, {available[(instructions["first_core"] + instructions["index"]) % len(available)]}
    )
    python = view.of_python()

    def child_pool(visible: view.View, modules: tuple[str, ...], spare: int) -> ChildPool:
        config = ZygoteConfig(layers=layers, limits=limits, visible=visible, preload=modules, folder=folder)
        return ChildPool(config, index=instructions["index"], spare=spare, group=group)

    child_pools = {LIGHT: child_pool(python, _COMMON, instructions["runs_per_worker"])}
    if preload:
        child_pools[LOADED] = child_pool(python, (*_COMMON, *preload), 1)
    if instructions["tools"]:
        child_pools[TOOLS] = child_pool(view.of_tools(instructions["tools"]), (), 0)
    return child_pools


if __name__ == "__main__":
    main(int(sys.argv[1]))
