"""Images on the way through a vision model: its own tokens and numbers, for engine and learner alike."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import asks, picture, qwen3_folder, qwen_folder, smol_folder, url

from toolwright import engines, record
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.engines import Completion, Sampling
from toolwright.failures import UserError
from toolwright.images import data_url, name_of, opened
from toolwright.learner.forward import statistics
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy
from toolwright.models import huggingface
from toolwright.models.own_forward import OwnForward
from toolwright.models.tokenizer import Tokenizer
from toolwright.models.vision import vectors_of
from toolwright.trajectory import Segment, Task, Trajectory

SIZES = [(60, 90), (200, 40), (33, 31), (300, 300), (17, 64)]
# Two that differ in their picture alone, one with two images, one with none.
PROMPTS = [
    asks("what?", url("red")),
    asks("what?", url("blue")),
    asks("and these", url("red", (40, 40)), url((0, 200, 9), (90, 50))),
    [{"role": "user", "content": "no image <|image_pad|> <image> here"}],
]
FOLDERS = {"qwen": qwen_folder, "qwen3": qwen3_folder, "smol": smol_folder}


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FOLDERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def decoder(folder: Path) -> OwnForward:
    loaded = huggingface.load(folder)
    assert isinstance(loaded, OwnForward)
    return loaded


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def opened_with(tokenizer: Tokenizer, prompt: list[dict[str, Any]], group: str) -> Trajectory:
    written = tokenizer.opening(prompt)
    made = Trajectory(Task(group, prompt), group=group)
    made.append(
        Segment("prompt", written.tokens, text=written.text, images=[name_of(one) for one in written.images])
    )
    return made


def sampled(
    decoder: OwnForward,
    tokenizer: Tokenizer,
    attempts: Sequence[Trajectory],
    *,
    slots: int = 8,
    tokens: int = 12,
) -> None:
    """Every attempt goes on by one greedy turn, all of them side by side."""

    async def all_of_them() -> list[Completion]:
        build = engines.registry.get("native").target
        config = schema.EngineConfig(slots=slots)
        engine: Any = build(config, decoder=decoder, tokenizer=tokenizer, dtype=torch.float32)
        greedy = Sampling(temperature=0, max_tokens=tokens)
        try:
            return await asyncio.gather(
                *(engine.generate(t.tokens, greedy, attempt=t.group, images=t.images) for t in attempts)
            )
        finally:
            await engine.close()

    for attempt, answer in zip(attempts, asyncio.run(all_of_them()), strict=True):
        attempt.append(Segment("policy", answer.tokens, answer.log_probs, answer.text))


def by_generate(decoder: OwnForward, folder: Path, attempt: Trajectory, tokens: int) -> list[int]:
    """What the model's own `generate` goes on with after the attempt's prompt."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    assert decoder.reader is not None
    ids = torch.tensor(attempt.segments[0].tokens)[None]
    numbers = [decoder.reader.numbers(one) for _, _, one in attempt.images]
    axis = 0 if decoder.three_axes else 1
    given = {key: torch.cat([one[key] for one in numbers], axis) for key in (numbers[0] if numbers else ())}
    if decoder.three_axes:
        given["mm_token_type_ids"] = (ids == decoder.reader.token).int()
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, **given
    )
    found: list[int] = out[0, ids.shape[1] :].tolist()
    return found


class TestTokens:
    @pytest.mark.parametrize("size", SIZES)
    def test_an_image_takes_as_many_tokens_as_the_model_makes_vectors(
        self, decoder: OwnForward, tokenizer: Tokenizer, size: tuple[int, int]
    ) -> None:
        image = url("red", size)
        assert tokenizer.image_reader is not None
        tokens = tokenizer.opening(asks("?", image)).tokens
        with torch.no_grad():
            assert tokens.count(tokenizer.image_reader.token) == vectors_of(decoder, image).shape[1]

    def test_tiles_are_written_as_the_library_writes_them(self, tmp_path: Path) -> None:
        from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

        reader = Tokenizer.load(smol_folder(tmp_path)).image_reader
        assert reader is not None
        theirs = Idefics3Processor.__new__(Idefics3Processor)
        theirs.fake_image_token, theirs.global_image_tag = "<fake_token_around_image>", "<global-img>"
        theirs.image_token, theirs.image_seq_len = "<image>", 4
        for size in SIZES:
            image = url("red", size)
            inputs = reader.processor(images=[opened(image)], return_row_col_info=True)
            assert reader.written(image) == theirs.replace_image_token(inputs, 0)

    def test_words_that_spell_a_placeholder_are_text(self, tokenizer: Tokenizer) -> None:
        reader = tokenizer.image_reader
        assert reader is not None
        said = asks(f"{reader.placeholder} is what I see", url())
        tokens = tokenizer.opening(said).tokens
        assert tokens.count(reader.token) == reader.tokens(url())
        assert reader.placeholder in tokenizer.opening(said).text

    def test_plain_text_is_written_by_templates_that_know_parts_alone(self, tokenizer: Tokenizer) -> None:
        assert "hello" in tokenizer.opening([{"role": "user", "content": "hello"}]).text

    def test_lengths_are_known_before_anything_is_sampled(self, tokenizer: Tokenizer) -> None:
        written = tokenizer.opening(PROMPTS[2])
        assert tokenizer.lengths([tokenizer.render(PROMPTS[2])]) == [len(written.tokens)]

    def test_a_language_model_sees_nothing(self) -> None:
        with pytest.raises(UserError, match="the prompt has images, but the model takes none"):
            Tokenizer.bytes().opening(PROMPTS[0])


class TestEngineAndLearner:
    @pytest.fixture(scope="class")
    def attempts(self, decoder: OwnForward, tokenizer: Tokenizer) -> list[Trajectory]:
        made = [opened_with(tokenizer, prompt, str(number)) for number, prompt in enumerate(PROMPTS)]
        sampled(decoder, tokenizer, made)
        return made

    def test_the_engine_says_what_the_models_own_generate_says(
        self, decoder: OwnForward, folder: Path, attempts: list[Trajectory]
    ) -> None:
        for attempt in attempts:
            assert attempt.segments[1].tokens == by_generate(decoder, folder, attempt, 12)

    def test_two_pictures_of_one_size_are_two_prompts(self, attempts: list[Trajectory]) -> None:
        first, second = attempts[:2]
        assert first.segments[0].tokens == second.segments[0].tokens
        assert first.segments[1].log_probs != second.segments[1].log_probs

    def test_the_learner_computes_the_engines_numbers(
        self, decoder: OwnForward, attempts: list[Trajectory]
    ) -> None:
        batch = Batch.pack(attempts)
        with torch.no_grad():
            found = statistics(decoder, batch, temperature=1.0).log_prob
        assert (found - batch.columns["sampled_log_prob"]).abs().max() <= 1e-5

    def test_it_measures_that_with_a_picture_when_it_is_built(
        self, decoder: OwnForward, tokenizer: Tokenizer
    ) -> None:
        build = engines.registry.get("native").target
        engine: Any = build(
            schema.EngineConfig(slots=1), decoder=decoder, tokenizer=tokenizer, dtype=torch.float32
        )
        assert engine.difference <= 1e-5
        assert engine.exact == (engine.difference == 0)

    def test_a_later_turn_may_bring_another_image(
        self, decoder: OwnForward, tokenizer: Tokenizer, folder: Path
    ) -> None:
        """With a cache for every attempt, and with one slot for all, so that it is computed anew."""
        said = []
        for slots in (8, 1):
            attempts = [opened_with(tokenizer, PROMPTS[number], str(number)) for number in (0, 2)]
            sampled(decoder, tokenizer, attempts, slots=slots, tokens=4)
            for attempt in attempts:
                more = tokenizer.continuation(
                    asks("and now?", url("green", (50, 70))), ended=attempt.stop == "eos"
                )
                attempt.append(Segment("environment", more.tokens, text=more.text, images=more.images))
            sampled(decoder, tokenizer, attempts, slots=slots, tokens=6)
            batch = Batch.pack(attempts)
            with torch.no_grad():
                found = statistics(decoder, batch, temperature=1.0).log_prob
            assert (found - batch.columns["sampled_log_prob"]).abs().max() <= 1e-5
            said.append([attempt.tokens for attempt in attempts])
        assert said[0] == said[1]

    def test_a_sampled_placeholder_is_no_image(self, decoder: OwnForward, tokenizer: Tokenizer) -> None:
        assert decoder.reader is not None
        attempt = opened_with(tokenizer, PROMPTS[0], "0")
        attempt.append(Segment("policy", [decoder.reader.token, 40, 41], [-1.0] * 3))
        found = statistics(decoder, Batch.pack([attempt]), temperature=1.0).log_prob
        assert found.isfinite().all()

    def test_parts_of_a_batch_say_what_the_whole_says(
        self, decoder: OwnForward, attempts: list[Trajectory]
    ) -> None:
        """Attempts that share a prompt are packed so that its image is looked at once."""
        again = copy.deepcopy(attempts[0])
        again.segments[1] = Segment("policy", [40, 41, 42], [-1.0] * 3)
        batch = Batch.pack([attempts[0], again, *attempts[1:]])
        with torch.no_grad():
            whole = statistics(decoder, batch, temperature=1.0).log_prob
            alone = [statistics(decoder, batch.select([row]), temperature=1.0).log_prob for row in range(5)]
        torch.testing.assert_close(whole, torch.cat(alone), rtol=0, atol=1e-6)


class TestLearning:
    def test_gradients_reach_the_models_eyes(self, folder: Path, tokenizer: Tokenizer) -> None:
        decoder = huggingface.load(folder)
        assert isinstance(decoder, OwnForward)
        attempt = opened_with(tokenizer, PROMPTS[0], "0")
        attempt.append(Segment("policy", [40, 41], [-1.0, -1.0]))
        statistics(decoder, Batch.pack([attempt]), temperature=1.0).log_prob.sum().backward()
        seen = [p for name, p in decoder.named_parameters() if "vis" in name and "post_layernorm" not in name]
        assert seen
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in seen if p.dim() >= 2)

    def test_an_update_makes_rewarded_answers_likelier(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Of two prompts that differ in their picture alone."""
        decoder = huggingface.load(folder)
        attempts = [opened_with(tokenizer, PROMPTS[number], str(number)) for number in (0, 1)]
        for attempt, answer in zip(attempts, (40, 41), strict=True):
            attempt.append(Segment("policy", [answer], [-3.0]))
        batch = Batch.pack(attempts)
        with torch.no_grad():
            before = statistics(decoder, batch, temperature=1.0).log_prob
        batch.columns["advantages"] = torch.ones(2)
        policy = Policy(
            decoder,
            schema.OptimizerConfig(lr=1e-3),
            total_updates=1,
            temperature=1.0,
            micro_tokens=30,
            dtype=torch.float32,
        )
        policy.update(batch, Objective(schema.Algorithm(), norm_tokens=16))
        with torch.no_grad():
            assert (statistics(decoder, batch, temperature=1.0).log_prob > before).all()

    def test_vision_is_left_as_it_is_where_that_is_asked_for(self, tmp_path: Path) -> None:
        from toolwright.models.folder import overridden

        folder = overridden(qwen_folder(tmp_path), {"freeze_vision_tower": True})
        learned = {name for name, p in huggingface.load(folder).named_parameters() if p.requires_grad}
        assert any("language_model" in name for name in learned)
        assert not any("visual" in name for name in learned)

    def test_a_saved_folder_sees_as_before(
        self, decoder: OwnForward, tokenizer: Tokenizer, tmp_path: Path
    ) -> None:
        huggingface.save(decoder, tmp_path)
        tokenizer.save(tmp_path)
        again = huggingface.load(tmp_path)
        assert isinstance(again, OwnForward)
        assert again.reader is not None
        with torch.no_grad():
            assert torch.equal(vectors_of(again, url()), vectors_of(decoder, url()))
        assert Tokenizer.load(tmp_path).opening(PROMPTS[0]) == tokenizer.opening(PROMPTS[0])

    def test_a_model_whose_images_cannot_be_read_still_reads_text(self, tmp_path: Path) -> None:
        folder = qwen_folder(tmp_path)
        (folder / "preprocessor_config.json").write_text('{"image_processor_type": "NoSuchProcessor"}')
        decoder = huggingface.load(folder)
        assert isinstance(decoder, OwnForward)
        assert decoder.reader is None
        attempt = Trajectory(Task("0", PROMPTS[0]), group="0")
        attempt.append(Segment("prompt", [10, 11], images=[name_of(url("red"))]))
        attempt.append(Segment("policy", [12], [-1.0]))
        with pytest.raises(UserError, match="the model takes none: transformers cannot build"):
            statistics(decoder, Batch.pack([attempt]), temperature=1.0)


class TestRecords:
    def test_images_are_kept_once_for_all_attempts_at_a_task(
        self, tokenizer: Tokenizer, tmp_path: Path
    ) -> None:
        """A picture of noise, which no compression makes smaller."""
        from PIL import Image

        noise = Image.effect_noise((400, 400), 90).convert("RGB")
        noise.save(tmp_path / "noise.png")
        content = (tmp_path / "noise.png").read_bytes()
        first = opened_with(tokenizer, asks("what?", data_url(content)), "0")
        attempts = [copy.copy(first) for _ in range(8)]
        record.save(tmp_path / "step.parquet", attempts)
        assert (tmp_path / "step.parquet").stat().st_size < 1.5 * len(data_url(content))
        again = record.load(tmp_path / "step.parquet")
        assert [one.images for one in again] == [one.images for one in attempts]
        assert record.from_table(record.to_table(attempts))[3].images == first.images

    def test_what_a_tool_showed_is_kept_with_its_segment(self, tokenizer: Tokenizer) -> None:
        attempt = opened_with(tokenizer, PROMPTS[0], "0")
        attempt.append(Segment("tool", [1, 2, 3], images=[data_url(picture("green"))]))
        (again,) = record.from_table(record.to_table([attempt]))
        assert again.images == attempt.images
        assert [start for start, _, _ in again.images] == [0, len(attempt.segments[0].tokens)]
