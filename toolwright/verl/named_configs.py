"""verl's configurations and modules by name, for those that have no file here."""

from __future__ import annotations

import difflib
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
    """The keys that a configuration of verl's sets over `ppo_trainer`; None if verl has no such one."""
    if name in _recorded()["refused"]:
        raise UserError(f"--config-name {name}: {_recorded()['refused'][name]}")
    return _recorded()["configs"].get(name)


def config_of_module(module: str) -> str:
    """The configuration that a module of verl's reads: `recipe.dapo.main_dapo` has `dapo_trainer`. A module
    that is known to nobody has that of PPO, unless it seems to be misspelt."""
    known, refused, found = _recorded()["modules"], _recorded()["refused"], short_name(module)
    if found in refused:
        raise UserError(f"{module}: {refused[found]}")
    written = module.removesuffix(".py").replace("/", ".")
    if found not in known and difflib.get_close_matches(written, known, n=1, cutoff=0.9):
        raise UserError(f"{module}: unknown module of verl; {nearest(found, known)}")
    return str(known.get(found, BASE))


def near_of_module(module: str) -> str | None:
    """The difference between a module of verl's and what runs here; None if there is none."""
    found = short_name(module)
    if found in _recorded()["near"]:
        return f"{module}: {_recorded()['near'][found]}"
    if found not in _recorded()["modules"]:
        return f"{module}: unknown module; its keys are read as those of verl.trainer.main_ppo"
    return None


def short_name(module: str) -> str:
    """`recipe/dapo/main_dapo.py` → `dapo.main_dapo`."""
    known = {**_recorded()["modules"], **_recorded()["refused"]}
    found = module.removesuffix(".py").replace("/", ".").lstrip(".")
    while found not in known and found.startswith(PACKAGES):
        found = found.partition(".")[2]
    return found
