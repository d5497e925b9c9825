"""The origin of each value: the last layer that states it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository, IConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigSource
from omegaconf import DictConfig, OmegaConf

from toolwright.config.block import Block
from toolwright.config.hydra_errors import short_path
from toolwright.config.keys import flatten
from toolwright.failures import UserError


@dataclass(frozen=True)
class ConfigLayer:
    """One config of the defaults list: the values it states, and the name of that origin."""

    config: str
    label: str
    tree: Mapping[str, Any]

    @property
    def preset(self) -> bool:
        """Whether this is a choice of a group, not a config that a command starts from."""
        return "/" in self.config


@dataclass(frozen=True)
class Resolved:
    """A valid configuration and the origin of each value."""

    config: Block
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        return origin_of(self.origins, key)


def open_source(provider: str, url: str) -> ConfigSource:
    """A folder or package of Hydra's search path, such as `file:///home/me/conf`."""
    plugins = cast("list[type[ConfigSource]]", Plugins.instance().discover(ConfigSource))
    scheme = url.partition("://")[0] if "://" in url else "file"
    for plugin in plugins:
        if plugin.scheme() == scheme:
            return plugin(provider, url)
    raise UserError(f"hydra.searchpath: {url} begins with {scheme}://, which Hydra cannot read")


class _Repository(ConfigRepository):
    def __deepcopy__(self, memo: dict[int, Any]) -> _Repository:
        """Hydra replaces the sources of the copy. A deep one would copy every schema with them."""
        return copy.copy(self)


class LayerLoader(ConfigLoaderImpl):
    """Hydra's loader. It keeps the layers of what it composed last: to compute the defaults list and read the
    configs again would take as long as composing them."""

    def __init__(self, search_path: ConfigSearchPath, *, presets: str) -> None:
        super().__init__(search_path)
        self.repository = _Repository(search_path)
        self.presets = presets  # the provider of the built-in ones
        self.layers: list[ConfigLayer] = []

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        # Merging takes the nodes of the configs that were read: look at them before.
        self.layers = layers_of(defaults, repo, presets=self.presets)
        return super()._compose_config_from_defaults_list(defaults, repo)


def layers_of(
    defaults: Sequence[ResultDefault], repository: IConfigRepository, *, presets: str
) -> list[ConfigLayer]:
    """Read the configs of a defaults list; `presets` provides the built-in ones."""
    layers = []
    for default in defaults:
        path = default.config_path or ""
        config = path.removesuffix(".yaml")
        loaded = None if config.startswith("hydra/") else repository.load_config(path)
        if loaded is None:
            continue
        tree: dict[str, Any] = OmegaConf.to_container(loaded.config, resolve=False)  # type: ignore[assignment]
        tree = {key: value for key, value in tree.items() if key not in ("defaults", "hydra")}
        package = default.package if default.package is not None else loaded.header["package"] or ""
        for name in reversed(package.split(".") if package else []):
            tree = {name: tree}
        holders = [source for source in repository.get_sources() if source.is_config(config)]
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
            origins = {
                path: label
                for path, label in origins.items()
                if path != key and not path.startswith(key + ".")
            }
        elif isinstance(value, dict):
            origins.update({path: "command line" for path, _ in flatten({key: value})})
        else:
            origins[key] = "command line"
    return origins


def origin_of(origins: Mapping[str, str], key: str) -> str:
    """The origin of a value, or of the first stated key of a block."""
    if key in origins:
        return origins[key]
    return next((label for path, label in origins.items() if path.startswith(key + ".")), "default")
