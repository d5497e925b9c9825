"""What holds for every test: it says the same everywhere, nothing that another left, and what it lacks."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import signal
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, however long one of them takes; `--hypothesis-profile explore` draws others.
for name, same in (("same", True), ("explore", False)):
    settings.register_profile(
        name, derandomize=same, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("same")

# Ray's workers give way to every other process: beside a second suite, waits for them would run out.
os.environ.setdefault("RAY_worker_niceness", "0")

# A shell ignores Ctrl-C for what it starts in the background, and so would this process and its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is imported and collected lasts as long as the process. A garbage collector that walks over it time and
# again takes a fifth of the processor time: it rests meanwhile, and leaves it alone after.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """What is drawn without a seed of its own is the same in every run, whatever ran before."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def no_imports_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module written by a test and imported by its name would be found by another that writes its own."""
    path, last = list(sys.path), next(reversed(sys.modules))
    yield
    sys.path[:] = path
    written = str(tmp_path_factory.getbasetemp())
    # Those imported last are last; to compare all of eight thousand takes longer than most tests.
    for name in list(takewhile(lambda name: name != last, reversed(sys.modules))):
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(written):
            del sys.modules[name]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pictures", type=Path, help="draw docs/images anew, of these runs: the folder that `make demo` left"
    )


@pytest.fixture(scope="module", autouse=True)
def no_scorers_left() -> Iterator[None]:
    """A file that a test names as its task may register a scorer; other tests count what is registered."""
    yield
    for name in [name for name in sys.modules if name.startswith("toolwright_user_")]:
        del sys.modules[name]
    if rewards := sys.modules.get("toolwright.rewards"):
        known = rewards.SCORERS._entries
        for name in [name for name, entry in known.items() if _is_users(entry.target)]:
            del known[name]


def _is_users(target: object) -> bool:
    return getattr(target, "__module__", "").startswith("toolwright_user_")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on vLLM are collected everywhere, and skipped before their fixtures where it is missing. Those
    that share what their module makes once are left to one process, or each would make it again; they are
    marked before xdist reads the marks."""
    without_vllm = importlib.util.find_spec("vllm") is None
    missing = pytest.mark.skip(reason="vLLM is not installed here; `make test-vllm` installs it")
    for item in items:
        if without_vllm and item.get_closest_marker("vllm"):
            item.add_marker(missing)
        if item.get_closest_marker("xdist_group") is None and shares(item):
            item.add_marker(pytest.mark.xdist_group(module_of(item)))


def shares(item: pytest.Item) -> bool:
    """Whether a fixture of its own module that outlives a test is among those it uses."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(
        made.scope in ("class", "module") and made.baseid.startswith(module_of(item))
        for every in known.values()
        for made in every
    )


def module_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
