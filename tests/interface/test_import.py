"""`import toolwright` is free, and what it offers is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import toolwright


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import toolwright; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"toolwright"}


def test_asking_for_a_configuration_imports_no_torch() -> None:
    code = "import sys, toolwright as tw; tw.config('task=sums'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", toolwright.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(toolwright, name) is not None
    assert name in dir(toolwright)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        _ = toolwright.Trainr  # type: ignore[attr-defined]
