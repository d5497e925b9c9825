"""The origin of each value: the last layer that states it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from hydra.conf import ConfigSourceInfo
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigSource
from omegaconf import OmegaConf

from toolwright.config.block import Block
from toolwright.config.hydra_errors import short_path
from toolwright.config.keys import flatten
from toolwright.failures import UserError


@dataclass(frozen=True)
class ConfigLayer:
    """A config of the defaults list: the values it states, and the name of that origin."""

    config: str
    label: str
    tree: Mapping[str, Any]

    @property
    def preset(self) -> bool:
        """True for a choice of a group, False for a config that a command starts from."""
        return "/" in self.config


ReadLayers = Callable[[], Sequence[ConfigLayer]]


@dataclass(frozen=True)
class Origins:
    """The origin of each stated key, read when the first one is asked for."""

    read: Callable[[], Mapping[str, str]]

    @cached_property
    def stated(self) -> Mapping[str, str]:
        return self.read()

    def __call__(self, key: str) -> str:
        """The origin of a value, or of the first stated key of a block."""
        if key in self.stated:
            return self.stated[key]
        return next((label for path, label in self.stated.items() if path.startswith(key + ".")), "default")


@dataclass(frozen=True)
class ResolvedConfig:
    """A valid configuration and the origin of each value."""

    config: Block
    origin: Origins


def open_source(provider: str, url: str) -> ConfigSource:
    """A folder or package of Hydra's search path, such as `file:///home/me/conf`."""
    plugins = cast("list[type[ConfigSource]]", Plugins.instance().discover(ConfigSource))
    scheme = url.partition("://")[0] if "://" in url else "file"
    for plugin in plugins:
        if plugin.scheme() == scheme:
            return plugin(provider, url)
    raise UserError(f"hydra.searchpath: {url} begins with {scheme}://, which Hydra cannot read")


def layers_of(
    defaults: Sequence[ResultDefault], sources: Iterable[ConfigSourceInfo], *, presets: str
) -> list[ConfigLayer]:
    """Read the configs of a defaults list from Hydra's sources; `presets` provides the built-in ones."""
    opened = [open_source(info.provider, f"{info.schema}://{info.path}") for info in sources]
    layers = []
    for default in defaults:
        config = (default.config_path or "").removesuffix(".yaml")
        if config.startswith("hydra/"):
            continue
        holders = [source for source in opened if source.is_config(config)]
        loaded = holders[0].load_config(config)
        tree: dict[str, Any] = OmegaConf.to_container(loaded.config, resolve=False)  # type: ignore[assignment]
        tree = {key: value for key, value in tree.items() if key not in ("defaults", "hydra")}
        package = default.package if default.package is not None else loaded.header["package"] or ""
        for name in reversed(package.split(".") if package else []):
            tree = {name: tree}
        layers.append(ConfigLayer(config, _label(config, holders, presets), tree))
    return layers


def _label(config: str, holders: Sequence[ConfigSource], presets: str) -> str:
    first = holders[0]
    if first.scheme() == "structured":
        return "default"
    if first.provider == presets:
        return f"preset {config}"
    file = short_path(Path(first.path) / f"{config}.yaml")
    if any(source.provider == presets for source in holders):
        raise UserError(f"{file}: a built-in preset has this name; give the file another name")
    return f"file {file}"


def origins_of(layers: Sequence[ConfigLayer], overrides: Sequence[Override]) -> dict[str, str]:
    """Each stated key with the layer that states it last."""
    origins: dict[str, str] = {}
    for layer in layers:
        origins.update({key: layer.label for key, _ in flatten(layer.tree)})
    for override in overrides:
        key, value = override.key_or_group, override.value()
        if override.is_delete():
            kept = (path for path in origins if path != key and not path.startswith(key + "."))
            origins = {path: origins[path] for path in kept}
        elif isinstance(value, dict):
            origins.update({path: "command line" for path, _ in flatten({key: value})})
        else:
            origins[key] = "command line"
    return origins
