"""The names that configuration knows without importing anything are the names there are."""

from __future__ import annotations

import importlib

import pytest

from toolwright.config.keys import leaves
from toolwright.config.names import Registered
from toolwright.config.schema import Config
from toolwright.registry import Registry

MARKED = {key.path: mark for key in leaves(Config) for mark in key.metadata if isinstance(mark, Registered)}


def holder(package: str) -> object:
    """The module with the registry: the package itself, or the one above a package of built-ins."""
    return importlib.import_module(package.removesuffix(".builtin"))


@pytest.mark.parametrize("key", [path for path, mark in MARKED.items() if mark.names()])
def test_names_read_from_the_source_are_those_of_the_registry(key: str) -> None:
    mark = MARKED[key]
    names: set[str] = set()
    for package in (mark.package, *mark.also):
        module = holder(package)
        registries = [thing for thing in vars(module).values() if isinstance(thing, Registry)]
        mine = [registry for registry in registries if registry.package == package]
        mine.sort(key=lambda registry: registry.kind != mark.kind)
        names |= set(mine[0].names() if mine else module.names())  # type: ignore[attr-defined]
    assert mark.names() == names


def test_the_default_of_every_marked_key_is_a_known_name() -> None:
    defaults = Config().model_dump()
    for path, mark in MARKED.items():
        value = defaults
        for part in path.split("."):
            value = value[part]
        assert value is None or mark.problem(str(value)) is None


def test_a_package_without_names_judges_nothing() -> None:
    assert Registered("thing", "toolwright.nowhere").problem("anything") is None


def test_a_file_without_a_name_in_it_asks_for_the_name() -> None:
    said = MARKED["reward.function"].problem("my_reward.py")
    assert said == "my_reward.py is a file; name the scorer in it, as my_reward.py:NAME"


@pytest.mark.parametrize("key", ["algorithm.aggregate", "algorithm.kl.estimator"])
def test_a_path_is_refused_early_if_only_names_are_known(key: str) -> None:
    problem = MARKED[key].problem("mine.py:own")
    assert problem is not None
    assert "unknown" in problem
    (expected,) = (found.expected for found in leaves(Config) if found.path == key)
    assert "path.py" not in expected
