"""verl's configuration as a command line sets it, and the machine that it is to run on."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from toolwright.config.keys import format_value
from toolwright.config.names import Registered
from toolwright.failures import UserError
from toolwright.tasks import rows
from toolwright.tasks.mapped import data_files
from toolwright.verl import keys

# Packages that an engine stands on; those not listed need nothing further.
PACKAGES = {"vllm": "vllm", "sglang": "sglang"}
# Keys that Search-R1 alone has.
SEARCH_R1 = ("retriever.url", "retriever.topk", "max_turns", "do_search", "actor_rollout_ref.rollout.n_agent")
REFERENCE = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Machine:
    """The devices and engines of this machine that a verl command line may ask for."""

    devices: int  # GPUs; without any, the CPU does the work of one
    engines: frozenset[str]
    cluster: bool = False  # a Ray cluster is named, so that other machines have devices too

    @classmethod
    def here(cls) -> Machine:
        engines = frozenset(name for name in engine_names() if missing_for(name) is None)
        return cls(_devices(), engines, cluster=bool(os.environ.get("RAY_ADDRESS")))

    def used(self, requested: int) -> int:
        """Count the devices that a run takes of those it asked for; the CPU counts as one."""
        return max(1, requested if self.cluster else min(requested, self.devices))


def engine_names() -> frozenset[str]:
    return Registered("engine", "toolwright.engines").names()


def missing_for(engine: str) -> str | None:
    """Say why this engine cannot be used here; None if it can."""
    if engine not in engine_names():
        known = ", ".join(sorted(engine_names()))
        return f"Toolwright has no engine of that name yet (it has {known})"
    package = PACKAGES.get(engine)
    if package and importlib.util.find_spec(package) is None:
        return f"the package {package} is not installed"
    return None


def _defaults_of_fork(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that a fork has in place of verl's, where a key of its own tells which one it is."""
    if "env.env_name" in overrides:  # verl-agent
        return {
            "actor_rollout_ref.actor.entropy_coeff": 0.001,
            "algorithm.filter_groups.max_num_gen_batches": 10,
            "env.search.search_url": "http://127.0.0.1:8000/retrieve",
        }
    if set(SEARCH_R1) & set(overrides):  # on a verl of early 2025, whose PPO has no dual clip
        in_loss = bool(overrides.get("actor_rollout_ref.actor.use_kl_loss"))
        return {
            "actor_rollout_ref.actor.entropy_coeff": 0.001,
            "actor_rollout_ref.actor.clip_ratio_c": None,
            "actor_rollout_ref.actor.state_masking": False,
            "actor_rollout_ref.rollout.top_p": 0.95,
            "algorithm.use_kl_in_reward": not in_loss,
            "retriever.url": "http://127.0.0.1:8000/retrieve",
            "max_turns": 10,
            "data.max_start_length": 256,
            "data.max_obs_length": 512,
        }
    return {}


def _devices() -> int:
    """Count GPUs; without a device file there are none, and torch need not be loaded to know it."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return 0
    import torch

    return torch.cuda.device_count()


@dataclass
class VerlConfig:
    """Every key's value, set by the user or verl's default, as verl would compose it."""

    overrides: Mapping[str, Any]
    machine: Machine
    fit: bool = False
    files_may_miss: bool = False  # only a translation is asked for, and no run
    family: str = "verl"  # whose keys were typed
    typed: Mapping[str, str] = field(default_factory=dict)  # a key that stands for others: those, as typed
    files: dict[str, bool] = field(default_factory=dict)  # that the command line names: whether it is here
    _tree: dict[str, Any] = field(default_factory=keys.default_tree, repr=False)

    def __post_init__(self) -> None:
        for key, value in (*_defaults_of_fork(self.overrides).items(), *self.overrides.items()):
            keys.put(self._tree, key, value)

    def __getitem__(self, key: str) -> Any:
        value: Any = self._tree
        for name in key.split("."):
            value = value[name]
        return self._resolved(value)

    def _resolved(self, value: Any) -> Any:
        """The value with its `${references}` read. OmegaConf takes 0.1 s for a tree of this size, so it is
        asked only for what is more than the name of a key."""
        if isinstance(value, dict):
            return {name: self._resolved(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._resolved(item) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        try:
            if alone := REFERENCE.fullmatch(value):
                return self[alone[1]]
            text = REFERENCE.sub(lambda found: str(self[found[1]]), value)
            if "${" not in text:
                return text
            return OmegaConf.create({**self._tree, "asked for": text})["asked for"]
        except (KeyError, TypeError, RecursionError, OmegaConfBaseException) as error:
            raise UserError(f"{value}: cannot be resolved: {' '.join(str(error).split())[:200]}") from None

    def is_set(self, *names: str) -> bool:
        """Return True if the user set any of these keys."""
        return any(key in self.overrides for key in names)

    def first(self, *names: str) -> str:
        """The first of these keys that the user set, or else the first of all."""
        return next((key for key in names if self.is_set(key)), names[0])

    def number(self, key: str) -> int:
        """The value, which must be a positive integer."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{self.as_typed(key)}: expected a positive integer")
        return value

    def as_typed(self, key: str) -> str:
        """`key=value`, or the words of another family that became this key."""
        return self.typed.get(key) or f"{key}={format_value(self[key])}"

    def name_of(self, key: str) -> str:
        """The key as it was typed, without its value."""
        return self.typed[key].partition("=")[0] if key in self.typed else key

    def paths(self, key: str) -> list[str]:
        value = self[key]
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]

    def lacks(self, path: str) -> bool:
        """Note that this file is needed. True if it is not here and may be missing."""
        self.files[path or "(an empty path)"] = here = bool(path) and Path(path).expanduser().exists()
        return self.files_may_miss and not here

    def rows_of(self, key: str) -> int | None:
        """Count the tasks in the files; None if a file is missing and only a translation is asked for."""
        missing = [path for path in self.paths(key) if self.lacks(path)]
        if missing:
            return None
        files = [file for path in self.paths(key) for file in data_files(path, "train")]
        return sum(rows.count(file) for file in files)
