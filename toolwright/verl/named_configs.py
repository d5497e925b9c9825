"""verl's configurations and modules by name, for those that have no file here."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from toolwright.failures import UserError, nearest

FILE = Path(__file__).with_name("configs.yaml")
BASE = "ppo_trainer"
PACKAGES = ("verl.", "recipe.", "experimental.", "verl_recipe.")


@functools.cache
def _recorded() -> dict[str, dict[str, Any]]:
    recorded: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return recorded


def names() -> list[str]:
    return list(_recorded()["configs"])


def values_of(name: str) -> dict[str, Any] | None:
    """What a configuration of verl's sets over `ppo_trainer`; None if verl has none of that name."""
    if name in _recorded()["refused"]:
        raise UserError(f"--config-name {name}: {_recorded()['refused'][name]}")
    return _recorded()["configs"].get(name)


def config_of_module(module: str) -> str:
    """The configuration that a module of verl's reads: `recipe.dapo.main_dapo` has `dapo_trainer`."""
    short = module.removesuffix(".py").replace("/", ".")
    known, refused = _recorded()["modules"], _recorded()["refused"]
    found = short
    while found not in known and found not in refused and found.startswith(PACKAGES):
        found = found.partition(".")[2]
    if found in refused:
        raise UserError(f"{module}: {refused[found]}")
    if found not in known:
        raise UserError(f"{module}: not a module of verl's that is known here; {nearest(found, known)}")
    return str(known[found])
