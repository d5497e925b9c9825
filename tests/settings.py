"""Configurations of runs for tests, as `resolve` makes them and five times as fast."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from toolwright.config.compose import Source, composer, resolve
from toolwright.config.schema import Config
from toolwright.config.validate import validate
from toolwright.failures import UserError


def configure(words: Sequence[str]) -> Config:
    """Hydra joins presets once for all tests that name the same ones; the values are set here after that."""
    if any(word.startswith(("+", "~", "run.resume")) for word in words):
        return _composed(tuple(words))
    presets = tuple(word for word in words if word.partition("=")[0] in _groups())
    values = [word for word in words if word not in presets]
    try:
        tree = _composed(presets).model_dump()
    except UserError:  # presets that are not whole without a value, as `task=file` without a file
        return _composed(tuple(words))
    for override in OverridesParser.create().parse_overrides(list(values)):
        _put(tree, override.key_or_group.split("."), override.value())
    return validate(Config, tree, origin=lambda _: "command line")


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *blocks, name = path
    for block in blocks:
        tree = tree.setdefault(block, {})
    if isinstance(value, dict) and isinstance(tree.get(name), dict):
        for key, item in value.items():
            _put(tree[name], [key], item)
    else:
        tree[name] = value


@functools.cache
def _composed(presets: tuple[str, ...]) -> Config:
    config = resolve(Source(), presets).config
    assert isinstance(config, Config)
    return config


@functools.cache
def _groups() -> frozenset[str]:
    with composer(Source()) as composing:
        return frozenset(composing.vocabulary().groups)
