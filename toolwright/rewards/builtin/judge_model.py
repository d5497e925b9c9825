"""A language model as judge, from its folder: it runs in a process of its own, by our own engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from toolwright.failures import TaskFailure, UserError
from toolwright.rewards import SCORERS
from toolwright.rewards.builtin.reward_model import device_of, dtype_of, folder_of, tokenizer_of, use_threads
from toolwright.rewards.judgement import TEMPLATE, CutRule, Judgement, Rule, cut


@SCORERS.register("judge_model", needs=["process"])
class JudgeModel:
    """The number that the model in `path` says of an attempt, from 0 to 1, found in its reply by `rule`;
    `cut` is 1 where the prompt was longer than the model reads."""

    def __init__(
        self,
        *,
        path: str,
        chat_template: str | None = None,
        template: str = TEMPLATE,
        rule: Rule = "score",
        pattern: str | None = None,
        most: Annotated[float, Field(gt=0)] = 10.0,
        temperature: Annotated[float, Field(ge=0)] = 0.0,
        max_tokens: Annotated[int, Field(gt=0)] = 512,
        context: Annotated[int, Field(gt=0)] | None = None,
        cut: CutRule = "middle",
        slots: Annotated[int, Field(gt=0)] = 16,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        device: str = "auto",
    ) -> None:
        """`max_tokens`: of its reply. `context`: the longest sequence, prompt and reply together."""
        from toolwright.config import schema
        from toolwright.engines import registry
        from toolwright.models import huggingface

        folder = folder_of("path", path, model="the judge")
        self._judgement = Judgement(
            template=template, rule=rule, pattern=pattern, most=most, where="reward.params.judge_model"
        )
        self._tokenizer = tokenizer_of(folder, chat_template)
        place = device_of(device)
        decoder = huggingface.load(folder, context=context, device=place).requires_grad_(False)
        use_threads(decoder)
        build = registry.get("native").target
        engine = schema.EngineConfig(slots=slots)
        self._engine = build(engine, decoder=decoder, tokenizer=self._tokenizer, dtype=dtype_of(dtype, place))
        self._loop = asyncio.Runner()  # an engine lives on one
        self._sampling: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
        self._rule: CutRule = cut
        if self._engine.context <= max_tokens:
            raise UserError(
                f"{folder} reads {self._engine.context} tokens, and a reply may have "
                f"max_tokens={max_tokens}: set a smaller max_tokens"
            )

    def __call__(
        self,
        completions: list[str],
        conversations: list[list[dict[str, Any]]],
        prompts: list[list[dict[str, Any]]],
        ground_truth: list[Any],
    ) -> list[Any]:
        """A score for each; in place of it the failure of one whose reply cannot be read."""
        attempts = zip(completions, conversations, prompts, ground_truth, strict=True)
        questions = [self._question(*attempt) for attempt in attempts]
        return self._loop.run(self._judged(questions))

    def _question(
        self, completion: str, conversation: list[dict[str, Any]], prompt: list[dict[str, Any]], truth: Any
    ) -> tuple[list[int], bool] | Exception:
        said = [
            message["content"] for message in conversation[len(prompt) :] if message["role"] == "assistant"
        ]
        item = {"prompt": prompt, "ground_truth": truth, "conversation": conversation, "turns": said}
        question = self._judgement.question({**item, "solution_str": completion})
        try:
            tokens = self._tokenizer.opening([{"role": "user", "content": question}]).tokens
            kept = cut(tokens, self._engine.context - self._sampling["max_tokens"], self._rule)
        except (TaskFailure, UserError) as error:
            return TaskFailure(f"the judge cannot read this attempt: {error}")
        return kept, len(kept) < len(tokens)

    async def _judged(self, questions: Sequence[tuple[list[int], bool] | Exception]) -> list[Any]:
        return await asyncio.gather(*(self._verdict(n, one) for n, one in enumerate(questions)))

    async def _verdict(self, number: int, asked: tuple[list[int], bool] | Exception) -> Any:
        from toolwright.engines import Sampling

        if isinstance(asked, Exception):
            return asked
        tokens, was_cut = asked
        name = f"judge {number}"
        # The seed follows from the question alone: a verdict does not depend on what is judged beside it.
        sampling = Sampling(**self._sampling, seed=sum(tokens) % (1 << 31))
        try:
            reply = await self._engine.generate(tokens, sampling, attempt=name)
            return {"score": self._judgement.score(reply.text, "the judge"), "cut": float(was_cut)}
        except TaskFailure as error:
            return error
        finally:
            self._engine.release(name)
