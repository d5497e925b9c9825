"""vLLM's process: what it is told at the start, what happens when it dies, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
import torch

from tests.waiting import wait_until
from toolwright.config import schema
from toolwright.engines import Sampling
from toolwright.engines.delivery import WeightDelivery
from toolwright.engines.http import HttpEngine
from toolwright.engines.vllm import VllmEngine
from toolwright.failures import InfrastructureFailure, UserError
from toolwright.models import huggingface
from toolwright.models.decoder import Decoder

from .conftest import ask, ask_one
from .served import Server
from .test_contract import ENDLESS, PROMPT, expected, move

needs_vllm = [pytest.mark.vllm, pytest.mark.xdist_group("vllm process")]
LONG = Sampling(max_tokens=100_000, seed=1)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_missing_package_says_where_to_find_it() -> None:
    with pytest.raises(UserError, match=r"vllm is not installed; docs/engines\.md"):
        VllmEngine(
            schema.EngineConfig(name="vllm"), decoder=tiny.decoder(), tokenizer=ENDLESS, dtype=torch.float32
        )


@pytest.mark.vllm
def test_an_argument_that_vllm_does_not_have_is_refused_at_the_start() -> None:
    config = schema.EngineConfig(name="vllm", params={"max_num_seq": 3})
    with pytest.raises(UserError, match=r"engine\.params\.max_num_seq: vLLM has no such .* 'max_num_seqs'"):
        VllmEngine(config, decoder=tiny.decoder(), tokenizer=ENDLESS, dtype=torch.float32)


@pytest.fixture(scope="module")
def model() -> Decoder:
    """Output layer and embedding are one tensor, which vLLM's kernels for a CPU have two copies of."""
    return tiny.decoder(head_dim=32, kv_heads=2, tied=True, context=2048)


@pytest.fixture(scope="module")
def engine(model: Decoder) -> Iterator[VllmEngine]:
    config = schema.EngineConfig(
        name="vllm", slots=8, timeout_s=1200, params={"max_num_batched_tokens": 2048}
    )
    made = VllmEngine(config, decoder=model, tokenizer=ENDLESS, dtype=torch.float32)
    yield made
    asyncio.run(made.close())


def group(pid: int) -> list[int]:
    """The processes that this one leads."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == pid and fields[0] != "Z":
                members.append(int(entry.name))
    return members


class TestItsProcess:
    """In this order: the last of them end it."""

    pytestmark = needs_vllm

    def test_tied_weights_are_new_in_both_places(self, engine: VllmEngine, model: Decoder) -> None:
        for version in (1, 2):
            move(model)
            engine.publish(version)
            answer = ask_one(engine, PROMPT, Sampling(max_tokens=30, seed=version))
            wanted = expected(model, [*PROMPT, *answer.tokens], len(PROMPT))
            assert answer.log_probs == pytest.approx(wanted, abs=1e-4)
            assert answer.weights_version == version

    def test_weights_that_were_damaged_on_the_way_are_not_taken_for_new(
        self, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written = WeightDelivery._written

        def damaged(parcel: WeightDelivery) -> Path:
            path = written(parcel)
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
            return path

        monkeypatch.setattr(WeightDelivery, "_written", damaged)
        with pytest.raises(InfrastructureFailure, match="version 7 arrived damaged in worker 0 of the vllm"):
            engine.publish(7)
        assert engine.weights_version != 7
        monkeypatch.undo()
        engine.publish(8)
        assert ask_one(engine, PROMPT, Sampling()).weights_version == 8

    def test_a_publication_leaves_no_file(self, engine: VllmEngine) -> None:
        with WeightDelivery({"a": torch.ones(3)}) as parcel:
            assert parcel.folder is not None
            assert parcel.folder.is_dir()
        assert not parcel.folder.exists()

    def test_what_is_given_up_is_not_computed_on(self, engine: VllmEngine) -> None:
        async def give_up() -> None:
            tasks = [asyncio.create_task(engine.generate(PROMPT, LONG, attempt=str(i))) for i in range(9)]
            while len(engine.process.result("under_way")) < 9:
                await asyncio.sleep(0.05)
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks[1:], return_exceptions=True)
            assert len(engine.process.result("under_way")) == 1
            tasks[0].cancel()

        asyncio.run(give_up())
        assert engine.process.result("under_way") == []

    def test_its_death_is_told_to_all_who_wait_and_to_those_who_come(self, engine: VllmEngine) -> None:
        async def killed() -> list[BaseException]:
            turns = [asyncio.create_task(engine.generate(PROMPT, LONG, attempt=str(i))) for i in range(4)]
            await asyncio.sleep(0.5)
            os.kill(engine.process.process.pid, signal.SIGKILL)
            return await asyncio.wait_for(asyncio.gather(*turns, return_exceptions=True), 240)

        for error in asyncio.run(killed()):
            assert isinstance(error, InfrastructureFailure)
            assert "the vllm engine died (signal SIGKILL)" in str(error)
        with pytest.raises(InfrastructureFailure, match="died"):
            ask(engine, [(PROMPT, Sampling(), "late")])
        with pytest.raises(InfrastructureFailure, match="died"):
            engine.publish(9)

    def test_nothing_of_it_is_left(self, engine: VllmEngine) -> None:
        asyncio.run(engine.close())
        wait_until(lambda: group(engine.process.process.pid) == [], "all its processes have ended")
        assert not engine.process.folder.exists()


@pytest.mark.vllm
@pytest.mark.xdist_group("vllm of another architecture")
class TestAnotherArchitecture:
    """One that is not of the fast path: its matrices lie the other way round, its output layer is tied."""

    @pytest.fixture
    def decoder(self, tmp_path: Path) -> Decoder:
        import transformers

        sizes = {"vocab_size": 40, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 64}
        transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path / "made")
        made = huggingface.load(tmp_path / "made")
        assert not made.fast
        return made

    def test_in_a_process(self, decoder: Decoder) -> None:
        config = schema.EngineConfig(name="vllm", slots=4, timeout_s=1200)
        self.agrees(VllmEngine(config, decoder=decoder, tokenizer=ENDLESS, dtype=torch.float32), decoder)

    def test_behind_a_server(self, decoder: Decoder, tmp_path: Path) -> None:
        with Server(tmp_path / "served", decoder, tiny.characters()) as server:
            move(decoder)  # what is served is not what is learned, until it is published
            config = schema.EngineConfig(name="http", url=server.url, timeout_s=300)
            self.agrees(HttpEngine(config, decoder=decoder, tokenizer=ENDLESS, dtype=torch.float32), decoder)

    @staticmethod
    def agrees(engine: VllmEngine | HttpEngine, decoder: Decoder) -> None:
        """After every publication."""
        try:
            for version in (0, 1):
                if version:
                    move(decoder)
                    engine.publish(version)
                said = ask_one(engine, PROMPT, Sampling(max_tokens=12, seed=version))
                whole = [*PROMPT, *said.tokens]
                assert said.log_probs == pytest.approx(expected(decoder, whole, len(PROMPT)), abs=1e-4)
        finally:
            asyncio.run(engine.close())
