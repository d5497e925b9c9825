"""The engines that keep the contract, and how a test asks one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import tiny
import torch

from toolwright import engines
from toolwright.config import schema
from toolwright.engines import Completion, Engine, Sampling
from toolwright.engines.http import HttpEngine
from toolwright.engines.process import EngineProcess
from toolwright.engines.vllm import VllmEngine, start
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer

from .served import Server

# (decoder, tokenizer, *, slots, timeout_s, dtype) -> engine
Build = Callable[..., Engine]
# A prompt, how to sample after it, whose it is.
Request = tuple[Sequence[int], Sampling, str]

# vLLM's kernels for a CPU want heads of at least 32 numbers.
MODELS = {name: tiny.decoder(**{"head_dim": 32, **changes}) for name, changes in tiny.SHAPES.items()}
SERVED = "grouped"  # a process of vLLM's takes half a minute to start, and serves one shape
OTHERS = [
    pytest.param(name, marks=[pytest.mark.vllm, pytest.mark.xdist_group(name)]) for name in ("vllm", "http")
]


@dataclass(frozen=True)
class Promised:
    near: float  # how far log-probabilities may be from the learner's
    steady: float  # and from those of the same tokens in other company
    draws: int  # that a test of a distribution can afford


PROMISES = {
    "native": Promised(1e-5, 1e-6, 3000),
    "vllm": Promised(1e-4, 1e-4, 1000),
    "http": Promised(1e-4, 1e-4, 300),
}


@pytest.fixture(params=["native", *OTHERS])
def engine_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def promised(engine_name: str) -> Promised:
    return PROMISES[engine_name]


@pytest.fixture(scope="session")
def vllm_process() -> Iterator[EngineProcess]:
    """One for all tests: what is started over it has the weights of the test's own model."""
    config = schema.EngineConfig(name="vllm", slots=64, timeout_s=1200)
    process = start(config, MODELS[SERVED], tiny.characters(), torch.float32)
    yield process
    process.close()


@pytest.fixture(scope="session")
def http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    with Server(folder, MODELS[SERVED], tiny.characters()) as server:
        yield server


@pytest.fixture
def build(engine_name: str, request: pytest.FixtureRequest) -> Iterator[Build]:
    """Engines over a process that is there already, except for the native one; shapes that it does not have
    are left to that."""
    if engine_name == "native":
        yield partial(make, engine_name)
        return
    made: list[Engine] = []

    def over(decoder: Decoder, tokenizer: Tokenizer, **settings: Any) -> Engine:
        settings = {"slots": 64, "timeout_s": 300.0, "dtype": torch.float32, **settings}
        dtype = settings.pop("dtype")
        if engine_name == "vllm":
            process = request.getfixturevalue("vllm_process")
            config = schema.EngineConfig(name="vllm", **settings)
            return VllmEngine(config, decoder=decoder, tokenizer=tokenizer, dtype=dtype, process=process)
        # A limit for a turn is not one for a server to be met within.
        limit, settings["timeout_s"] = settings["timeout_s"], 300.0
        config = schema.EngineConfig(name="http", url=request.getfixturevalue("http_server").url, **settings)
        engine = HttpEngine(config, decoder=decoder, tokenizer=tokenizer, dtype=dtype)
        engine.timeout_s = limit
        made.append(engine)
        return engine

    yield over
    for engine in made:
        asyncio.run(engine.close())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A process has one shape and one number of slots: those are varied for the native engine alone."""
    only = {"kind": SERVED, "slots": 3}
    left_out = []
    for item in items:
        given = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        elsewhere = given.get("engine_name", "native") != "native"
        if elsewhere and any(given.get(name, value) != value for name, value in only.items()):
            left_out.append(item)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def make(
    name: str,
    decoder: Decoder,
    tokenizer: Tokenizer,
    *,
    slots: int = 8,
    timeout_s: float = 300.0,
    dtype: torch.dtype = torch.float32,
) -> Any:
    config = schema.EngineConfig(name=name, slots=slots, timeout_s=timeout_s)
    return engines.registry.get(name).target(config, decoder=decoder, tokenizer=tokenizer, dtype=dtype)


def ask(engine: Engine, requests: Iterable[Request]) -> list[Completion]:
    """All at once; answers in the order of the requests. Nothing is kept for a next turn."""

    async def all_of_them() -> list[Completion]:
        wanted = list(requests)
        try:
            return await asyncio.gather(*(engine.generate(p, s, attempt=name) for p, s, name in wanted))
        finally:
            for _, _, name in wanted:
                engine.release(name)

    return asyncio.run(all_of_them())


def ask_one(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> Completion:
    return ask(engine, [(prompt, sampling, "one")])[0]
