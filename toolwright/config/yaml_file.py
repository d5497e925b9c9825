"""Write a configuration to YAML and read it back: a run folder's config.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml

from toolwright.config.block import Block
from toolwright.config.former_keys import translated
from toolwright.config.schema import Config
from toolwright.config.validate import validate
from toolwright.failures import UserError

C = TypeVar("C", bound=Block)


def to_yaml(config: Block) -> str:
    """Every key with its value; `from_yaml` gives back an equal configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=1000)


def from_yaml(path: str | Path, schema: type[C] = Config) -> C:  # type: ignore[assignment]
    """Read and validate the configuration in this file."""
    return validate(schema, read_yaml(Path(path)), origin=lambda key: f"file {path}")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the keys of a YAML file, without validating them. Those of earlier versions become today's."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no such configuration file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(not_yaml(path, error)) from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} should hold keys and values, such as `rollout:` over `samples: 8`")
    return translated(tree, path)


def not_yaml(path: str | Path, error: yaml.YAMLError) -> str:
    """Describe what is wrong with the file, and on which line."""
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}" if mark else str(path)
    return f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}"
