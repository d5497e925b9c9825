"""The configuration: a typed schema, YAML presets, and the origin of each value."""

import sys
from types import ModuleType
from typing import Any

from toolwright.config.batch import batch_line
from toolwright.config.schema import Config, SupervisedConfig
from toolwright.config.yaml_file import from_yaml, to_yaml


class _CallablePackage(ModuleType):
    """Lets `toolwright.config("task=sums")` be the function that it looks like, beside being this package."""

    def __call__(self, *words: str) -> Any:
        from toolwright.config.from_words import config

        return config(*words)


sys.modules[__name__].__class__ = _CallablePackage
