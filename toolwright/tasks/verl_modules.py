"""Stand-ins for verl's modules, so that a file written for verl can be loaded where verl is not installed.

The base classes that a user's class builds on work here: `RLHFDataset` and `BaseInteraction`. Any other name
imports, and says on its first use that it is verl's.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distributions
from types import ModuleType
from typing import Any

from toolwright.failures import UserError
from toolwright.registry import load_object
from toolwright.tasks.mapped import data_files
from toolwright.tasks.rows import Row, read

NAME = "verl"


class RLHFDataset:
    """The rows of task files, as verl's class of this name holds them for its subclasses."""

    prompt_key = "prompt"
    truncation = "error"

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any = None,
        config: Any = None,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        self.data_files = [data_files] if isinstance(data_files, str) else list(data_files)
        self.original_data_files = list(self.data_files)
        self.tokenizer, self.config, self.processor = tokenizer, config or {}, processor
        self.max_samples = max_samples
        self._download()
        self._read_files_and_tokenize()

    def _download(self, use_origin_parquet: bool = False) -> None:
        """Files are read where they lie."""

    def _read_files_and_tokenize(self) -> None:
        files = [file for place in self.data_files for file in data_files(place, "train")]
        self.dataframe: Any = [row for file in files for row in read(file)]

    def maybe_filter_out_long_prompts(self, dataframe: Any = None) -> Any:
        """Prompts are measured later, by `task.max_prompt_tokens`."""
        return self.dataframe if dataframe is None else dataframe

    def __len__(self) -> int:
        return len(self.dataframe)

    def __getitem__(self, index: int) -> Row:
        row = dict(self.dataframe[index])
        return {**row, "raw_prompt": row.get(self.prompt_key)}


class BaseInteraction:
    """A simulated user that is always content, as verl's class of this name."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.name = config, str(config.get("name", "interaction_agent"))

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        return str(instance_id)

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        raise NotImplementedError(f"{type(self).__name__} has no generate_response")

    async def calculate_score(self, *args: Any, **kwargs: Any) -> float:
        return 0.0

    async def finalize_interaction(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is held."""


WORKING = {"RLHFDataset": RLHFDataset, "BaseInteraction": BaseInteraction}


def load_for_verl(reference: str) -> Any:
    """Load `path.py:name` or `package.module:name`, whose imports of verl are answered by stand-ins."""
    with _stand_ins():
        return load_object(reference)


@contextmanager
def _stand_ins() -> Iterator[None]:
    """verl's own modules where it is installed, else stand-ins for as long as this is open."""
    if any(found.name == NAME for found in distributions(name=NAME)):
        yield
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    _forget()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[name]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] != NAME:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is no code to run."""


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        whole = f"{self.__name__}.{name}"
        return WORKING.get(name) or type(name, (_OfVerl,), {"whole": whole})


class _OfVerl:
    """A name of verl's: a class to build on, or a decorator that leaves a function as it is."""

    whole = NAME

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        raise UserError(f"{cls.whole} belongs to verl, which is not installed here")
