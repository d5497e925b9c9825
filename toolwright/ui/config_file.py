"""A run's configuration as flat keys, with where each value came from as far as the folder tells."""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import Any

import yaml

from toolwright.config.keys import flatten, value_at
from toolwright.config.schema import Config, RewardModelConfig, SupervisedConfig
from toolwright.observe.rollouts import Version, version_of
from toolwright.observe.run_folders import kind_of
from toolwright.ui.run_files import RunFiles

MOST = 1 << 20
DEFAULTS = {"train": Config, "eval": Config, "sft": SupervisedConfig, "rm": RewardModelConfig}


class _PlainLoader(yaml.SafeLoader):
    """YAML without references: a few lines of them can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("references are not read")
        return super().compose_node(parent, index)


_FAST_LOADER: type[Any] = getattr(yaml, "CSafeLoader", _PlainLoader)


class ConfigFile:
    """config.yaml and command.txt, read again when one of them has changed."""

    def __init__(self) -> None:
        self._version: tuple[Version | None, ...] = ()
        self.tree: dict[str, Any] = {}
        self.command = ""
        self.words: list[str] = []  # of the command that started the run, or that last went on with it
        self.kind = "unknown"  # or train, sft, rm, eval, search

    def read(self, files: RunFiles) -> None:
        paths = map(files.file, ("config.yaml", "command.txt"))
        version = tuple(None if path is None else version_of(path) for path in paths)
        if version == self._version:
            return
        self._version = version
        self.command = files.text("command.txt", most=MOST)
        tree = _read(files.text("config.yaml", most=MOST))
        self.tree = tree if isinstance(tree, dict) else {}
        self.words = _words(self.command)
        kind = kind_of(self.command, self.tree)
        self.kind = {"workflow": "search", "": "unknown"}.get(kind, kind)

    def at(self, path: str) -> Any:
        return value_at(self.tree, path)

    def flat(self) -> dict[str, Any]:
        return {str(key): _plain(value) for key, value in flatten(self.tree)}

    def origins(self) -> dict[str, str]:
        """`command line` where the last command sets the key, `default` where the value is the schema's own;
        what differs from that was stated by a preset, or decided when the run began."""
        said = dict(word.lstrip("+~").split("=", 1) for word in self.words[2:] if "=" in word)
        # task=sums names a preset, and sets no key of the block itself.
        blocks = tuple(f"{key}." for key, value in said.items() if "." in key or value[:1] in ("{", "["))
        schema = DEFAULTS.get(self.kind)
        defaults = dict(flatten(schema().model_dump(mode="json"))) if schema is not None else {}
        found = {}
        for key, value in self.flat().items():
            found[key] = "preset" if schema is not None else ""
            if key in said or key.startswith(blocks):
                found[key] = "command line"
            elif key in defaults and defaults[key] == value:
                found[key] = "default"
        return found


def _read(text: str) -> Any:
    """The parser in C is ten times as fast. It reads what has no anchors, and so nothing to refer to; the
    other also reads half a surrogate pair."""
    loaders = [_PlainLoader] if "&" in text else [_FAST_LOADER, _PlainLoader]
    for loader in loaders:
        try:
            return yaml.load(text, loader)
        except (yaml.YAMLError, ValueError, RecursionError):
            continue
    return None


def _words(text: str) -> list[str]:
    """Each start is noted by a line with its time, and one with the command."""
    commands = [after for line, after in pairwise(text.splitlines()) if line.startswith("# ")]
    try:
        return shlex.split(commands[-1]) if commands else []
    except ValueError:
        return []


def _plain(value: Any) -> Any:
    """A value as JSON has it: YAML also knows dates and bytes."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return str(value) if not isinstance(value, dict) else {str(k): _plain(v) for k, v in value.items()}
