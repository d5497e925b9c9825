"""The Ray cluster of a run: its own on this machine, one that it joins, or one that is already open."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray._private.state import available_resources_per_node

from toolwright.failures import UserError
from toolwright.runtime import user_code
from toolwright.runtime.actors import NAMESPACE
from toolwright.runtime.reaper import MARK, Reaper

if TYPE_CHECKING:
    from toolwright.config import schema


class RayCluster:
    """The cluster at an address, else one of its own on this machine. Closes only what it opened."""

    def __init__(self, address: str | None) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS")
        self.dashboard: str | None = None
        self._opened = False
        self._reaper: Reaper | None = None

    def open(self, folders: Sequence[Path] = (), modules: Callable[[], list[str]] = list) -> None:
        """`folders` hold the user's code: workers on this machine import from them. `modules` lists what
        workers of another cluster are sent instead."""
        if ray.is_initialized():
            return
        self._opened = True
        common: dict[str, Any] = {
            "namespace": NAMESPACE,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        }
        if self.address is None:
            mark = uuid.uuid4().hex
            self._reaper = Reaper(mark)
            inherited = os.environ.get("PYTHONPATH")
            paths = [*user_code.python_path(), *map(str, folders), *([inherited] if inherited else [])]
            own = {"PYTHONPATH": os.pathsep.join(paths), "RAY_USAGE_STATS_ENABLED": "0", MARK: mark}
            with _environment(own):
                try:
                    context = ray.init(address="local", include_dashboard=False, **common)
                except OSError as error:  # its folder is full, say, or cannot be written to
                    raise UserError(f"Ray cannot be started on this machine: {error}") from error
        else:
            package = Path(__file__).resolve().parents[1]  # sent unless it is installed there
            sent = [*modules(), *([] if "site-packages" in package.parts else [str(package)])]
            runtime_env = {"py_modules": sent, "excludes": ["__pycache__", "*.pyc"]} if sent else {}
            try:
                context = ray.init(address=self.address, runtime_env=runtime_env, **common)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"runtime.address={self.address}: no Ray cluster can be joined there: {error}"
                ) from None
        self.dashboard = f"http://{context.dashboard_url}" if context.dashboard_url else None

    def close(self) -> None:
        if self._opened and ray.is_initialized():
            ray.shutdown()
        if self._reaper is not None:
            self._reaper.close()


class RaySession:
    """The cluster of a run with roles, and the user's code that its workers need."""

    def __init__(self, config: schema.Runtime, role_config: Any) -> None:
        self.cluster = RayCluster(config.address)
        tree = user_code.absolute(role_config.config.model_dump())
        self.role_config = replace(
            role_config,
            config=type(role_config.config).model_validate(_from_the_root(tree)),
            tools=user_code.absolute(role_config.tools),
        )
        self.folders = user_code.folders([self.role_config.config.model_dump(), self.role_config.tools])
        self.moved: dict[str, str] = {str(folder): "" for folder in self.folders}
        self._staged: Path | None = None

    def open(self) -> None:
        self.cluster.open(self.folders, self._stage)

    def _stage(self) -> list[str]:
        """Copy the user's folders to where Ray sends them from."""
        self._staged = Path(tempfile.mkdtemp(prefix="toolwright-"))
        self.moved = user_code.stage(self.folders, self._staged)
        return [str(self._staged / user_code.PACKAGE)] if self.moved else []

    def close(self) -> None:
        self.cluster.close()
        if self._staged is not None:
            shutil.rmtree(self._staged, ignore_errors=True)


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Join the cluster at this address, or start one on this machine, for work without roles."""
    cluster = RayCluster(address)
    try:
        cluster.open()
        yield
    finally:
        cluster.close()


def alive_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def free_by_node(labels: Mapping[str, str]) -> dict[str, Mapping[str, float]]:
    """Return the free resources of each living node with these labels."""
    free = available_resources_per_node()
    fit = {}
    for node in ray.nodes():
        own = node.get("Labels") or {}
        if node["Alive"] and all(own.get(key) == value for key, value in labels.items()):
            fit[node["NodeID"]] = free.get(node["NodeID"], {})
    return fit


def _from_the_root(tree: dict[str, Any]) -> dict[str, Any]:
    """Make the paths that workers read absolute."""
    model = tree["model"]
    lora = {**model["lora"], "path": _resolved(model["lora"]["path"])}
    return {**tree, "model": {**model, "path": _resolved(model["path"]), "lora": lora}}


def _resolved(path: str | None) -> str | None:
    return str(Path(path).expanduser().resolve()) if path else path


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started inside this block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
