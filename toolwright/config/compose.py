"""Schema, presets, the user's files and the command line made one configuration, by Hydra's own loader."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import version as hydra_version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from toolwright.config.complaints import explained, shown
from toolwright.config.keys import Schema
from toolwright.config.origin import ConfigLayer, Resolved, origin_of, origins_of
from toolwright.config.overrides import Given, Vocabulary, read
from toolwright.config.schema import CommandConfig, Config, RunConfig, SupervisedConfig
from toolwright.config.stored import read_tree
from toolwright.config.validate import validated
from toolwright.failures import UserError, nearest
from toolwright.registry import added_to, load_object

PRESETS = Path(__file__).resolve().parent / "presets"
RESUMED = "resumed"


@functools.cache
def schemas() -> dict[str, type[CommandConfig]]:
    """The schema of every primary config, those that plugins add among them."""
    added = {name: load_object(reference) for name, reference in added_to("toolwright.config").items()}
    return {"train": Config, "sft": SupervisedConfig, **added}


def commands() -> list[str]:
    """The commands that take a configuration."""
    return ["eval", *schemas()]


@dataclass(frozen=True)
class Source:
    """Where a command's configuration begins: its primary config, or the user's own file over it."""

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
    def flags(self) -> list[str]:
        """The command line's way to say the same."""
        given = {"--config-dir": self.config_dir, "--config-name": self.config_name}
        return [word for flag, value in given.items() if value for word in (flag, value)]


def resolve(source: Source, words: Sequence[str] = ()) -> Resolved:
    """The configuration that these words ask for; one error that lists everything wrong with them."""
    loader = Loader(source)
    return loader.resolve(loader.read(words))


class Loader(ConfigLoaderImpl):
    """Hydra's loader over our presets and the user's folder, which also knows where values come from."""

    def __init__(self, source: Source) -> None:
        hydra_version.setbase("1.3")
        setup_globals()
        _store_schemas()
        self.source = source
        self._layers: list[ConfigLayer] = []
        self._composed: dict[tuple[str, ...], DictConfig] = {}
        self._judged: set[tuple[str, ...]] = set()
        super().__init__(config_search_path=_search_path(source))

    @property
    def config_name(self) -> str:
        return self.source.config_name or self.source.primary

    def explained(self) -> AbstractContextManager[None]:
        mine = [Path(self.source.config_dir)] if self.source.config_dir else []
        return explained(self.config_name, [*mine, PRESETS])

    def vocabulary(self, words: Sequence[str] = ()) -> Vocabulary:
        """What a command line may speak of; words that add folders of presets count."""
        repository: IConfigRepository = self.repository
        added = [word for word in words if word.startswith("hydra.searchpath=")]
        if added or self.source.config_name:
            _, repository = self._parse_overrides_and_create_caching_repo(self.config_name, added)
        listing = yaml.safe_load((PRESETS / f"{self.source.primary}.yaml").read_text(encoding="utf-8"))
        named = [group for item in listing["defaults"] if isinstance(item, dict) for group in item]
        groups = {
            group: repository.get_group_options(group) for group in named if not group.startswith("override")
        }
        return Vocabulary(self.source.command, self.source.schema, groups, repository.get_group_options)

    def read(self, words: Sequence[str], *, sweep: bool = False) -> Given:
        with self.explained():
            return read(words, self.vocabulary(words), sweep=sweep)

    def resolve(self, given: Given) -> Resolved:
        tree, layers = self.compose(given)
        folder = _resumed_folder(tree) if not given.problems else None
        if folder is not None:
            tree, layers = self.resume(folder, given)
        origins, schema = origins_of(layers, given.overrides), self.source.schema
        config = validated(
            schema,
            _without_strangers(tree, layers, schema),
            origin=lambda key: origin_of(origins, key),
            also=given.problems,
        )
        return Resolved(config, origins)

    def compose(self, given: Given, config_name: str = "") -> tuple[dict[str, Any], list[ConfigLayer]]:
        """The merged tree, not yet held to the schema, and the layers it was merged from."""
        name = config_name or self.config_name
        self._layers = []
        with self.explained():
            composed = super().load_configuration(name, given.lines, RunMode.RUN)
            self._check_base(name)
            self._composed[name, *given.lines] = composed
            return _resolved(composed), self._layers

    def load_configuration(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode, *rest: Any, **how: Any
    ) -> DictConfig:
        """What Hydra asks for to begin a run was composed already, to be held to the schema: a tenth of a
        second for each."""
        made = self._composed.pop((config_name or "", *overrides), None) if run_mode is RunMode.RUN else None
        if made is not None:
            return made
        return super().load_configuration(config_name, overrides, run_mode, *rest, **how)

    def resume(self, folder: Path, given: Given) -> tuple[dict[str, Any], list[ConfigLayer]]:
        """The run's own configuration in place of the presets; a preset named again goes on top of it."""
        file = folder / "config.yaml"
        kept = read_tree(file)
        self._check_kind(folder, set(kept))
        base = {"defaults": [f"schema/{self.source.primary}", "_self_"], **_literal(kept)}
        ConfigStore.instance().store(name=RESUMED, node=base)
        tree, layers = self.compose(given.appended(self.vocabulary().groups), RESUMED)
        # The file was written by the run when it was new, perhaps in another folder.
        tree["run"] = {
            **tree.get("run", {}),
            "resume": True,
            "name": folder.name,
            "dir": str(folder.parent),
        }
        named = {RESUMED: f"file {shown(file)}"}
        layers = [replace(layer, label=named.get(layer.config, layer.label)) for layer in layers]
        if self.source.command == "eval" and not given.states("model.path"):
            # What is judged is what the run has learned, not what it began with.
            learned = {
                "path": str(_model_of(folder)),
                "lora": {**tree["model"].get("lora", {}), "path": None},
            }
            tree["model"] = {**tree["model"], **learned}
            layers.append(ConfigLayer(RESUMED, f"run {shown(folder)}", {"model": {"path": learned["path"]}}))
        return tree, layers

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Sweepers compose each job before they launch any: the moment to hold all of them to the schema."""
        job = super().load_sweep_config(master_config, sweep_overrides)
        words = tuple(sweep_overrides)
        if words not in self._judged and not OmegaConf.select(job, "run.resume"):
            self._judged.add(words)
            try:
                resolve(self.source, words)
            except UserError as error:
                raise UserError(f"in the job {' '.join(words)}:\n  {error}") from None
        return job

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        """Hydra loads the configs of the defaults list one after the other: the moment to note each."""
        loaded = super()._load_single_config(default, repo)
        path = (default.config_path or "").removesuffix(".yaml")
        if not path.startswith("hydra/"):
            label = self._label(path, loaded.provider, loaded.path)
            self._layers.append(ConfigLayer(path, label, _stated(loaded.config)))
        return loaded

    def _check_base(self, config_name: str) -> None:
        primary = self.source.primary
        if not any(layer.config == f"schema/{primary}" for layer in self._layers):
            raise UserError(
                f"{config_name}: does not build on `{primary}`; begin the file with\n"
                f"  defaults:\n    - {primary}\n    - _self_"
            )

    def _check_kind(self, folder: Path, blocks: set[str]) -> None:
        strangers = blocks - set(self.source.schema.model_fields)
        for command, schema in schemas().items():
            if strangers and blocks <= set(schema.model_fields):
                raise UserError(
                    f"{folder} is a run of `{command}`; `{self.source.command}` cannot go on with it"
                )

    def _label(self, path: str, provider: str, source: str) -> str:
        if path == RESUMED or path.startswith("schema/"):
            return "default"
        file = f"{path}.yaml"
        if provider != "main":
            return f"file {shown(Path(source.partition('://')[2] or source) / file)}"
        mine = Path(self.source.config_dir or PRESETS) / file
        if self.source.config_dir and mine.is_file():
            raise UserError(f"{shown(mine)}: hidden by the preset of that name; give the file another name")
        return f"preset {path}"


def _resolved(composed: DictConfig) -> dict[str, Any]:
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
        OmegaConf.set_readonly(composed.hydra, None)  # which `set_config` took; Hydra has yet to write there


def _stated(layer: Any) -> dict[str, Any]:
    """What one config states, as written."""
    tree = cast("dict[str, Any]", OmegaConf.to_container(layer, resolve=False))
    return {key: value for key, value in tree.items() if key != "hydra"}


@functools.cache
def _store_schemas() -> None:
    """The schema's defaults are the first config of every defaults list; presets state what differs."""
    for name, schema in schemas().items():
        ConfigStore.instance().store(
            group="schema", name=name, node=schema().model_dump(mode="json"), package="_global_"
        )


def _search_path(source: Source) -> ConfigSearchPathImpl:
    path = cast(ConfigSearchPathImpl, create_config_search_path(f"file://{PRESETS}"))
    if source.config_dir is not None:
        folder = Path(source.config_dir).resolve()
        if not folder.is_dir():
            raise UserError(f"--config-dir {source.config_dir}: no such folder")
        path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    return path


def _without_strangers(tree: dict[str, Any], layers: Sequence[ConfigLayer], schema: Schema) -> dict[str, Any]:
    """A preset may speak to `train` and `sft` at once; what it says to the other one is left out here."""
    foreign = {name for other in schemas().values() for name in other.model_fields} - set(schema.model_fields)
    stated = {name for layer in layers if not layer.preset for name in layer.tree}
    return {name: value for name, value in tree.items() if name not in foreign - stated}


def _resumed_folder(tree: Mapping[str, Any]) -> Path | None:
    """The run to go on with, if the configuration asks for that."""
    try:
        run = RunConfig.model_validate(tree.get("run", {}))
    except ValidationError:
        return None  # said properly when the whole tree is held to the schema
    if not run.resume:
        return None
    runs = Path(run.dir)
    there = sorted(path.parent.name for path in runs.glob("*/config.yaml"))
    known = f"in {run.dir} there are: {', '.join(there)}" if there else f"there are no runs in {run.dir}"
    if run.name is None:
        raise UserError(f"run.resume=true needs run.name, the run to go on with; {known}")
    folder = runs / run.name
    if not (folder / "config.yaml").is_file():
        found = "has no config.yaml" if folder.is_dir() else "does not exist"
        hint = nearest(run.name, there) if there else known
        raise UserError(f"run.resume=true, but the run folder {folder} {found}; {hint}")
    return folder


def _model_of(folder: Path) -> Path:
    if not (folder / "model").is_dir():
        raise UserError(f"{folder} has no model/ yet; evaluate another run, or name a model by model.path")
    return folder / "model"


def _literal(value: Any) -> Any:
    """Text from a finished configuration stays as it is: `${` in it is no reference."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value
