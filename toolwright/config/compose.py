"""Compose one configuration from the schema, presets, the user's files and the command line, with Hydra."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose, initialize, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from toolwright.config.hydra_errors import as_user_errors, short_path
from toolwright.config.keys import Schema, mapped
from toolwright.config.origin import (
    ConfigLayer,
    Origins,
    ReadLayers,
    ResolvedConfig,
    layers_of,
    open_source,
    origins_of,
)
from toolwright.config.overrides import ParsedOverrides, Vocabulary, parse
from toolwright.config.schema import (
    SAMPLED,
    CommandConfig,
    Config,
    RewardModelConfig,
    RunConfig,
    SupervisedConfig,
)
from toolwright.config.validate import format_problems, validate
from toolwright.config.yaml_file import read_yaml
from toolwright.failures import UserError, nearest
from toolwright.registry import added_to, load_object

PRESETS = Path(__file__).resolve().parent / "presets"
PROVIDER = "toolwright"  # of presets, in Hydra's search path
RESUMED = "resumed"
_lock = threading.RLock()  # Hydra's state is global


@functools.cache
def schemas() -> dict[str, type[CommandConfig]]:
    """The schema of every primary config, those of plugins included."""
    added = {name: load_object(reference) for name, reference in added_to("toolwright.config").items()}
    return {"train": Config, "sft": SupervisedConfig, "rm": RewardModelConfig, **added}


def commands() -> list[str]:
    """The commands that take a configuration."""
    return ["eval", *schemas()]


@functools.cache
def preset_folders() -> list[Path]:
    """The folders of presets: ours, and the packages that plugins add to `toolwright.config.presets`."""
    folders = [PRESETS]
    for package in added_to("toolwright.config.presets").values():
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"a plugin keeps its presets in {package!r}, but there is no such package")
        folders += [Path(place) for place in spec.submodule_search_locations]
    return folders


class PresetFolders(SearchPathPlugin):
    """Adds the folders of presets to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in preset_folders():
            search_path.append(PROVIDER, f"file://{folder}")


@functools.cache
def register_with_hydra() -> None:
    """Make presets and schemas known to Hydra, once in a process.

    The schema's defaults are the first config of every defaults list; presets state what differs.
    """
    Plugins.instance().register(PresetFolders)
    for name, schema in schemas().items():
        ConfigStore.instance().store(
            group="schema", name=name, node=schema().model_dump(mode="json"), package="_global_"
        )


def _loaded(file: Path) -> DictConfig:
    """The user's own config."""
    try:
        tree = OmegaConf.load(file)
    except UnicodeDecodeError as error:
        raise UserError(f"{short_path(file)} cannot be read: {error}") from None
    if not isinstance(tree, DictConfig):
        raise UserError(
            f"{short_path(file)} should hold keys and values, such as `rollout:` over `samples: 8`"
        )
    return tree


@dataclass(frozen=True)
class Source:
    """The start of a command's configuration: its primary config, or the user's own file over it."""

    command: str = "train"
    config_dir: str | None = None
    config_name: str | None = None

    @property
    def primary(self) -> str:
        return "train" if self.command == "eval" else self.command

    @property
    def schema(self) -> type[CommandConfig]:
        return schemas()[self.primary]

    @property
    def name(self) -> str:
        """The config that Hydra composes."""
        return self.config_name or self.primary

    @property
    def folder(self) -> Path | None:
        """The user's own presets and configs."""
        if self.config_dir is None:
            return None
        folder = Path(self.config_dir).resolve()
        if not folder.is_dir():
            raise UserError(f"--config-dir {self.config_dir}: no such folder")
        return folder

    @property
    def flags(self) -> list[str]:
        """The same as options of the command line."""
        options = {"--config-dir": self.config_dir, "--config-name": self.config_name}
        return [word for flag, value in options.items() if value for word in (flag, value)]


def resolve(source: Source, words: Sequence[str] = ()) -> ResolvedConfig:
    """Resolve the configuration of a command line, or raise one error that lists everything wrong with it."""
    with composer(source) as composing:
        return composing.resolve(composing.parse(words))


def resolve_from_run(folder: Path, words: Sequence[str] = ()) -> ResolvedConfig:
    """Resolve the configuration of a run with these words over it. A preset takes the place of the whole
    block that it is named for: the run's own values there belong to another algorithm."""
    with composer(Source("train")) as composing:
        parsed = composing.parse(words)
        if parsed.problems:
            raise UserError(format_problems(parsed.problems))
        groups = composing.vocabulary(words).groups
        named = [override.key_or_group for override in parsed.overrides if override.key_or_group in groups]
        tree, layers = composing.resume(folder, parsed, replacing=named)
        return composing.validate(tree, layers, parsed)


@contextmanager
def composer(source: Source) -> Iterator[Composer]:
    """A `Composer` while Hydra is initialised for it; an application's own Hydra is set aside meanwhile."""
    register_with_hydra()
    with _lock, as_user_errors(source.name, [*filter(None, [source.folder]), *preset_folders()]):
        before = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with (
                initialize_config_dir(str(source.folder), job_name="toolwright", version_base="1.3")
                if source.folder
                else initialize(None, job_name="toolwright", version_base="1.3")
            ):
                yield Composer(source, GlobalHydra.instance().config_loader())
        finally:
            GlobalHydra.instance().hydra = before


class Composer:
    """Composes the configurations of one source and knows where each value comes from."""

    def __init__(self, source: Source, loader: ConfigLoader) -> None:
        self.source = source
        self._loader = loader

    def vocabulary(self, words: Sequence[str] = ()) -> Vocabulary:
        """List what a command line may set, with presets from folders that these words add."""
        sources = [*self._loader.get_sources(), *self._added_sources(words)]

        @functools.cache
        def choices(group: str) -> list[str]:
            holders = [source for source in sources if source.is_group(group)]
            return sorted({name for source in holders for name in source.list(group, ObjectType.CONFIG)})

        files = [folder / f"{self.source.primary}.yaml" for folder in preset_folders()]
        primary = next(file for file in files if file.is_file())
        defaults = yaml.safe_load(primary.read_text(encoding="utf-8"))["defaults"]
        groups = [group for item in defaults if isinstance(item, dict) for group in item]
        return Vocabulary(
            self.source.command,
            self.source.schema,
            {group: choices(group) for group in groups if not group.startswith("override")},
            choices,
        )

    def _added_sources(self, words: Sequence[str]) -> list[ConfigSource]:
        """Open the folders that `hydra.searchpath` adds, on the command line or in the user's config."""
        added: Any = None
        mine = self.source.folder / f"{self.source.config_name}.yaml" if self.source.folder else None
        if mine is not None and mine.is_file():
            added = OmegaConf.select(_loaded(mine), "hydra.searchpath")
        for word in words:
            if word.startswith("hydra.searchpath="):
                added = OverridesParser.create().parse_override(word).value()
        return [open_source("hydra.searchpath", str(url)) for url in added or ()]

    def parse(self, words: Sequence[str], *, sweep: bool = False) -> ParsedOverrides:
        return parse([*words, *self._without_task(words)], self.vocabulary(words), sweep=sweep)

    def _without_task(self, words: Sequence[str]) -> list[str]:
        """Conversations of a file have nothing to do with the task that `sft` learns by default."""
        given = dict(word.split("=", 1) for word in words if "=" in word)
        shown = given.get("demonstrations", SAMPLED).strip("'\"")
        named = any(key.lstrip("+~").partition(".")[0] == "task" for key in given)
        mine = self.source.primary != "sft" or self.source.config_name is not None or named
        return [] if mine or shown in (SAMPLED, "null") or Path(shown).is_dir() else ["task=none"]

    def resolve(self, parsed: ParsedOverrides) -> ResolvedConfig:
        """Compose, and validate the result."""
        tree, layers = self.compose(parsed)
        folder = None if parsed.problems else _resumed_folder(tree)
        if folder is not None:
            tree, layers = self.resume(folder, parsed)
        return self.validate(tree, layers, parsed)

    def check_job(self, words: Sequence[str]) -> None:
        """Validate one job of a sweep. A run that is resumed is validated when it starts."""
        try:
            parsed = self.parse(words)
            tree, layers = self.compose(parsed)
            if not tree.get("run", {}).get("resume"):
                self.validate(tree, layers, parsed)
        except UserError as error:
            raise UserError(f"in the job {' '.join(words)}:\n  {error}") from None

    def validate(self, tree: dict[str, Any], layers: ReadLayers, parsed: ParsedOverrides) -> ResolvedConfig:
        origin = Origins(lambda: origins_of(layers(), parsed.overrides))
        schema = self.source.schema
        own = _without_foreign_blocks(tree, layers, schema)
        return ResolvedConfig(validate(schema, own, origin=origin, also=parsed.problems), origin)

    def compose(self, parsed: ParsedOverrides, config_name: str = "") -> tuple[dict[str, Any], ReadLayers]:
        """Merge the tree, without validating it; the function reads the layers that it was merged from."""
        name = config_name or self.source.name
        composed = compose(name, parsed.lines, return_hydra_config=True)
        sources = list(composed.hydra.runtime.config_sources)

        @functools.cache
        def layers() -> list[ConfigLayer]:
            # This takes as long as composing, and few configurations are ever asked where a value comes from.
            defaults = self._loader.compute_defaults_list(name, parsed.lines, RunMode.RUN).defaults
            return layers_of(defaults, sources, presets=PROVIDER)

        tree, primary = _to_container(composed), self.source.primary
        if not self.source.schema.model_fields.keys() <= tree.keys():
            raise UserError(
                f"{name}: it does not build on `{primary}`; begin the file with\n"
                f"  defaults:\n    - {primary}\n    - _self_"
            )
        if any(source.schema == "file" and source.provider != PROVIDER for source in sources):
            layers()  # a file of the user's that has the name of a preset is found there
        return tree, layers

    def resume(
        self, folder: Path, parsed: ParsedOverrides, *, replacing: Container[str] = ()
    ) -> tuple[dict[str, Any], ReadLayers]:
        """Compose from the run's own configuration instead of presets. A preset named again goes on top, or
        in the place of the run's block if that is among `replacing`."""
        file = folder / "config.yaml"
        stated = read_yaml(file)
        self._check_kind(folder, set(stated))
        stated = {name: block for name, block in stated.items() if name not in replacing}
        base = {"defaults": [f"schema/{self.source.primary}", "_self_"], **mapped(stated, _literal)}
        ConfigStore.instance().store(name=RESUMED, node=base)
        tree, composed = self.compose(parsed.as_additions(self.vocabulary().groups), RESUMED)
        # The file was written by the run when it was new, perhaps in another folder.
        own = {"resume": True, "name": folder.name, "dir": str(folder.parent)}
        tree["run"] = {**tree.get("run", {}), **own}
        layers = [
            replace(layer, label=f"file {short_path(file)}") if layer.config == RESUMED else layer
            for layer in composed()
        ]
        if self.source.command == "eval" and not parsed.sets("model.path"):
            # Evaluate what the run has learned, not what it began with.
            if not (folder / "model").is_dir():
                raise UserError(f"{folder} has no model/ yet; choose another run, or set model.path")
            path = str(folder / "model")
            lora = {**tree["model"].get("lora", {}), "path": None}
            tree["model"] = {**tree["model"], "path": path, "lora": lora}
            layers.append(ConfigLayer(RESUMED, f"run {short_path(folder)}", {"model": {"path": path}}))
        return tree, lambda: layers

    def _check_kind(self, folder: Path, blocks: set[str]) -> None:
        foreign = blocks - set(self.source.schema.model_fields)
        for command, schema in schemas().items():
            if foreign and blocks <= set(schema.model_fields):
                raise UserError(f"{folder} is a run of `{command}`; `{self.source.command}` cannot resume it")

    def jobs(self, parsed: ParsedOverrides) -> Iterator[list[str]]:
        """The overrides of every job of a sweep, as Hydra's basic sweeper enumerates them.

        Another sweeper chooses values from an interval; its two ends are checked in their place.
        """
        fixed = [override for override in parsed.overrides if not override.is_sweep_override()]
        composed = compose(
            self.source.name, [override.input_line or "" for override in fixed], return_hydra_config=True
        )
        params = OmegaConf.select(composed, "hydra.sweeper.params") or {}
        lines = {key: f"{key}={value}" for key, value in params.items()}
        lines.update({override.get_key_element(): override.input_line or "" for override in parsed.overrides})
        parser = OverridesParser.create(config_loader=self._loader)
        values = []
        for override in parser.parse_overrides(list(lines.values())):
            key = override.get_key_element()
            if not override.is_sweep_override():
                values.append([override.input_line or ""])
            elif override.is_discrete_sweep():
                values.append([f"{key}={value}" for value in override.sweep_string_iterator()])
            else:
                interval = cast(IntervalSweep, override.value())
                values.append([f"{key}={interval.start}", f"{key}={interval.end}"])
        return map(list, itertools.product(*values))


def _to_container(composed: DictConfig) -> dict[str, Any]:
    """The composed tree as ordinary values, every `${reference}` replaced by what it stands for."""
    hydra = HydraConfig.instance()
    before = hydra.cfg
    hydra.set_config(composed)  # for ${hydra:…}
    try:
        return {
            str(key): OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
            if OmegaConf.is_config(node)
            else node
            for key, node in composed.items()
            if key != "hydra"
        }
    finally:
        hydra.cfg = before


def _without_foreign_blocks(tree: dict[str, Any], layers: ReadLayers, schema: Schema) -> dict[str, Any]:
    """Leave out blocks of a preset that only other commands have: one preset may serve `train` and `sft`."""
    known = {name for other in schemas().values() for name in other.model_fields}
    foreign = (known - schema.model_fields.keys()) & tree.keys()
    if not foreign:
        return tree
    stated = {name for layer in layers() if not layer.preset for name in layer.tree}
    return {name: value for name, value in tree.items() if name not in foreign - stated}


def _resumed_folder(tree: Mapping[str, Any]) -> Path | None:
    """The run to resume, or None."""
    try:
        run = RunConfig.model_validate(tree.get("run", {}))
    except ValidationError:
        return None  # reported when the whole tree is validated
    if not run.resume:
        return None
    runs = Path(run.dir)
    names = sorted(path.parent.name for path in runs.glob("*/config.yaml"))
    known = f"in {run.dir} there are: {', '.join(names)}" if names else f"the folder {run.dir} has no runs"
    if run.name is None:
        raise UserError(f"run.resume=true needs run.name, the run to resume; {known}")
    folder = runs / run.name
    if not (folder / "config.yaml").is_file():
        found = "has no config.yaml" if folder.is_dir() else "does not exist"
        hint = nearest(run.name, names) if names else known
        raise UserError(f"run.resume=true, but the run folder {folder} {found}; {hint}")
    return folder


def _literal(value: Any) -> Any:
    """Escape `${` in the text of a finished configuration: it is no reference there."""
    return value.replace("${", "\\${") if isinstance(value, str) else value
