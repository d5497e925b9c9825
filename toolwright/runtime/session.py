"""The Ray cluster that a run uses: one of its own on this machine, one it joins, or one that is there."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
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


class RaySession:
    """Opened before any actor and closed after the last; closes only what it opened."""

    def __init__(self, config: schema.Runtime, role_config: Any) -> None:
        self.config = config
        tree = user_code.absolute(role_config.config.model_dump())
        self.role_config = replace(
            role_config,
            config=type(role_config.config).model_validate(_from_the_root(tree)),
            tools=user_code.absolute(role_config.tools),
        )
        self.folders = user_code.folders([self.role_config.config.model_dump(), self.role_config.tools])
        self.moved: dict[str, str] = {str(folder): "" for folder in self.folders}
        self.mine = False
        self.dashboard: str | None = None
        self._staged: Path | None = None
        self._reaper: Reaper | None = None

    def open(self) -> None:
        if ray.is_initialized():
            return
        self.mine = True
        address = self.config.address or os.environ.get("RAY_ADDRESS")
        common: dict[str, Any] = {
            "namespace": NAMESPACE,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        }
        if address is None:
            mark = uuid.uuid4().hex
            self._reaper = Reaper(mark)
            with _environment({**self._local_environment(), MARK: mark}):
                try:
                    context = ray.init(address="local", include_dashboard=False, **common)
                except OSError as error:  # its folder is full, say, or cannot be written to
                    raise UserError(f"Ray cannot be started on this machine: {error}") from error
        else:
            try:
                context = ray.init(address=address, runtime_env=self._sent_along(), **common)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"runtime.address={address}: no Ray cluster can be joined there: {error}"
                ) from None
        url = context.dashboard_url
        self.dashboard = f"http://{url}" if url else None

    def _local_environment(self) -> dict[str, str]:
        """Workers see the driver's modules; nothing has to be copied on one machine."""
        paths = [*user_code.python_path(), *map(str, self.folders)]
        there = os.environ.get("PYTHONPATH", "")
        return {
            "PYTHONPATH": os.pathsep.join([*paths, *([there] if there else [])]),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def _sent_along(self) -> dict[str, Any]:
        """Ray's runtime environment: the user's folders, and this package unless it is installed there."""
        self._staged = Path(tempfile.mkdtemp(prefix="toolwright-"))
        self.moved = user_code.stage(self.folders, self._staged)
        modules = [str(self._staged / user_code.PACKAGE)] if self.moved else []
        package = Path(__file__).resolve().parents[1]
        if "site-packages" not in package.parts:
            modules.append(str(package))
        return {"py_modules": modules, "excludes": ["__pycache__", "*.pyc"]} if modules else {}

    def close(self) -> None:
        if self.mine and ray.is_initialized():
            ray.shutdown()
        if self._reaper is not None:
            self._reaper.close()
        if self._staged is not None:
            shutil.rmtree(self._staged, ignore_errors=True)


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """Ray for work without roles: the cluster at this address, or one of its own on this machine."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    common: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
    reaper = None
    try:
        if address is None:
            mark = uuid.uuid4().hex
            reaper = Reaper(mark)
            paths = os.pathsep.join([*user_code.python_path(), os.environ.get("PYTHONPATH", "")])
            with _environment({"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", MARK: mark}):
                ray.init(address="local", include_dashboard=False, **common)
        else:
            package = Path(__file__).resolve().parents[1]
            installed = "site-packages" in package.parts
            sent = {} if installed else {"py_modules": [str(package)], "excludes": ["__pycache__", "*.pyc"]}
            try:
                ray.init(address=address, runtime_env=sent, **common)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"runtime.address={address}: no Ray cluster can be joined there: {error}"
                ) from None
        yield
    finally:
        if ray.is_initialized():
            ray.shutdown()
        if reaper is not None:
            reaper.close()


def alive_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def free_by_node(labels: Mapping[str, str]) -> dict[str, Mapping[str, float]]:
    """What each living node with these labels has left."""
    free = available_resources_per_node()
    fit = {}
    for node in ray.nodes():
        own = node.get("Labels") or {}
        if node["Alive"] and all(own.get(key) == value for key, value in labels.items()):
            fit[node["NodeID"]] = free.get(node["NodeID"], {})
    return fit


def _from_the_root(tree: dict[str, Any]) -> dict[str, Any]:
    """Paths that workers read, as seen from the root."""
    model = tree["model"]
    lora = {**model["lora"], "path": _resolved(model["lora"]["path"])}
    return {**tree, "model": {**model, "path": _resolved(model["path"]), "lora": lora}}


def _resolved(path: str | None) -> str | None:
    return str(Path(path).expanduser().resolve()) if path else path


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """What the processes that are started within inherit."""
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
