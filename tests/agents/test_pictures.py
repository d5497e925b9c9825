"""Images that tools and environments show: checked, written by the chat template, seen in the next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import asks, picture, qwen_folder, url

from toolwright import engines
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.engines import Completion, Sampling
from toolwright.failures import UserError
from toolwright.images import data_url
from toolwright.learner.forward import statistics
from toolwright.models import huggingface
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer
from toolwright.observe.attempt import segment_text
from toolwright.tasks import ENVIRONMENTS, Observation, Outcome
from toolwright.tools.call import ToolRequest, ToolResult
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Task, Trajectory

PNG = picture("green", (50, 40))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Tokenizer]:
    folder = qwen_folder(tmp_path_factory.mktemp("qwen"))
    return huggingface.load(folder), Tokenizer.load(folder)


class Corridor:
    """Shows a picture of where one stands, two steps long."""

    inline = True

    def reset(self, task: Task) -> Observation:
        self.steps = 0
        return Observation("you are here", images=[picture("red", (40, 40))])

    def step(self, action: str) -> Outcome:
        self.steps += 1
        return Outcome("and now here", 1.0, done=self.steps == 2, images=[PNG])

    def close(self) -> None:
        pass


def attempted(model: tuple[Decoder, Tokenizer], task: Task, **rollout: Any) -> Trajectory:
    decoder, tokenizer = model

    async def one() -> Trajectory:
        build = engines.registry.get("native").target
        engine: Any = build(
            schema.EngineConfig(slots=2), decoder=decoder, tokenizer=tokenizer, dtype=torch.float32
        )
        config = schema.RolloutConfig(max_tokens=5, **rollout)
        rollouts = Rollout(config, engine, tokenizer)
        (made,) = await rollouts.run([AttemptRequest(task, "g", 0, seed=3)])
        await rollouts.close()
        await engine.close()
        return made

    return asyncio.run(one())


def test_an_environment_shows_pictures_turn_by_turn(model: tuple[Decoder, Tokenizer]) -> None:
    ENVIRONMENTS.register("corridor_of_pictures")(Corridor)
    task = Task("t", asks("walk", url("blue")), extra_info={"environment": {"name": "corridor_of_pictures"}})
    made = attempted(model, task, agent="environment")
    assert made.failure is None, made.failure
    shown = [image for _, _, image in made.images]
    assert shown == [url("blue"), data_url(picture("red", (40, 40))), data_url(PNG)]
    first, second = made.steps
    assert first.anchor != second.anchor
    assert "[png image, " in segment_text(made.segments[2])
    batch = Batch.pack([made])
    with torch.no_grad():
        found = statistics(model[0], batch, temperature=1.0).log_prob
    assert (found - batch.columns["sampled_log_prob"]).abs().max() <= 1e-5


def test_an_engine_that_takes_no_images_says_so(model: tuple[Decoder, Tokenizer]) -> None:
    class Deaf:
        context, exact = 512, True

        async def generate(self, prompt: Any, sampling: Sampling, *, attempt: str) -> Completion:
            raise AssertionError("it is not asked")

        def release(self, attempt: str) -> None:
            pass

    async def one() -> None:
        rollouts = Rollout(schema.RolloutConfig(max_tokens=5, agent="single_turn"), Deaf(), model[1])  # type: ignore[arg-type]
        await rollouts.run([AttemptRequest(Task("t", asks("what?", url())), "g", 0, seed=3)])

    with pytest.raises(UserError, match="the engine Deaf does not take images"):
        asyncio.run(one())


class TestTools:
    def answer(self, tmp_path: Path, body: str) -> ToolResult:
        (tmp_path / "looking.py").write_text(
            f"PNG = {PNG!r}\n\ndef look() -> object:\n    'Look.'\n    {body}\n"
        )
        settings: Mapping[str, Any] = {"look": {"path": f"{tmp_path / 'looking.py'}:look"}}

        async def call() -> ToolResult:
            box = Toolbox(settings)
            try:
                return await box.call(ToolRequest("look"), attempt="a")
            finally:
                await box.close()

        return asyncio.run(call())

    def test_a_tool_returns_an_image(self, tmp_path: Path) -> None:
        found = self.answer(tmp_path, "return {'type': 'image', 'image': PNG}")
        assert found == ToolResult("", images=(data_url(PNG),))

    def test_a_tool_may_return_text_and_an_image(self, tmp_path: Path) -> None:
        found = self.answer(tmp_path, "return ['here:', {'type': 'image', 'image': {'bytes': PNG}}]")
        assert found == ToolResult("here:", images=(data_url(PNG),))

    def test_a_file_is_not_read_for_it(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(PNG)
        found = self.answer(tmp_path, f"return {{'type': 'image', 'image': {str(tmp_path / 'a.png')!r}}}")
        assert found.trouble == "raised"
        assert "there is no image file" in found.text

    def test_text_that_only_looks_like_an_image_stays_text(self, tmp_path: Path) -> None:
        assert self.answer(tmp_path, "return [{'kind': 'image'}]").text == '[{"kind": "image"}]'

    def test_the_next_turn_begins_with_it(self, model: tuple[Decoder, Tokenizer]) -> None:
        _, tokenizer = model
        said = [{"role": "tool", "name": "look", "content": asks("here", url("green"))[0]["content"]}]
        written = tokenizer.continuation(said, ended=False)
        assert written.images == [url("green")]
        assert tokenizer.image_reader is not None
        count = written.tokens.count(tokenizer.image_reader.token)
        assert count == tokenizer.image_reader.tokens(url("green"))
