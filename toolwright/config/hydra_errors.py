"""Hydra's errors about the user's files, as errors that name the file and the mistake."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from toolwright.config.yaml_file import not_yaml
from toolwright.failures import UserError, nearest


@contextmanager
def as_user_errors(config_name: str, folders: Sequence[Path]) -> Iterator[None]:
    """Turn errors of composition into `UserError`s. `folders`: where Hydra looks for configs."""
    try:
        with warnings.catch_warnings():
            # Without `_self_` the file's own keys come last, which is what its author expects.
            warnings.filterwarnings("ignore", message=".*missing `_self_`")
            yield
    except MissingConfigException as error:
        raise UserError(_missing(error, config_name, folders)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(not_yaml(short_path(Path(mark.name)) if mark else config_name, error)) from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_in_one_line(error)) from None


def short_path(path: Path) -> str:
    """A path relative to the current folder, if it lies in it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _missing(error: MissingConfigException, config_name: str, folders: Sequence[Path]) -> str:
    name = (error.missing_cfg_file or "").removesuffix(".yaml")
    if name == config_name:
        places = " or ".join(short_path(folder) for folder in folders)
        found = [path.stem for folder in folders for path in folder.glob("*.yaml")]
        return f"--config-name {name}: no such file in {places}; {nearest(name, found)}"
    group, _, choice = name.rpartition("/")
    if not group:
        return f"{name} (config {config_name}): the defaults list names it, but there is no such file"
    known = ", ".join(error.options or ()) or "none, there is no such group"
    return f"{group}={choice} (config {config_name}): unknown preset {choice!r}; known: {known}"


def _in_one_line(error: Exception) -> str:
    text = "\n".join([str(error), str(error.__cause__ or "")])
    key = re.search(r"full_key: (\S+)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not re.match(r"full_key:|object_type=|[Ss]ee http", line)]
    return (f"{key[1]}: " if key else "") + " ".join(kept)
