"""Attempts made beside a warm start: at held-out tasks before and after it, and at training tasks to learn
from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toolwright.agents.prompt_cut import PromptCut
from toolwright.agents.rollout import Rollout
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer
from toolwright.rewards import Scorer
from toolwright.tools.settings import Settings, sandbox_in
from toolwright.trainer import building, solved_attempts
from toolwright.trainer.evaluation import held_out, requests_for
from toolwright.trainer.run_folder import RunFolder
from toolwright.trajectory import Task, Trajectory

AT_ONCE = 4096  # attempts under way, and in memory twice


class HeldOutJudge:
    """Tries the held-out tasks before and after, or says why it cannot: sft works without a scorer for its
    tasks."""

    def __init__(
        self,
        config: schema.Config,
        decoder: Decoder,
        tokenizer: Tokenizer,
        tasks: list[Task],
        scorer: str,
        tools: Settings,
    ) -> None:
        self.config, self.tasks, self.tokenizer, self.tools = config, tasks, tokenizer, tools
        self.engine = building.build_engine(config, decoder, tokenizer)
        self.cut = PromptCut.of(config.task)
        self.rollout = Rollout(config.rollout, self.engine, tokenizer, tools=tools, cut=self.cut)
        self.loop = asyncio.Runner()
        self.scorer: Scorer | None = None
        self.missing = ""
        try:
            url = sandbox_in(tools)
            self.scorer = Scorer(self.config.reward, default=scorer, sandbox_url=url)
            self.scorer.check(self.tasks)
        except UserError as error:
            self.missing = str(error)

    def held_out(self, folder: RunFolder, step: int) -> dict[str, float]:
        """Try the held-out tasks, and keep how each went in the folder."""
        if not self.tasks or self.missing or self.scorer is None:
            return {}
        self.engine.publish(self.engine.weights_version + 1)  # what was learned since the last time
        attempt, score = self.rollout.run, self.scorer.score
        result, _ = self.loop.run(held_out(self.config, self.tasks, attempt=attempt, score=score))
        folder.save_evaluation(step, result)
        return result.metrics()

    def sample(
        self, tasks: list[Task], words: schema.SolvedAttempts, *, check: Callable[[], None]
    ) -> list[Trajectory]:
        """Make `rollout.samples` scored attempts at each task. `check` is called now and then, and may
        raise."""
        if self.scorer is None or self.missing:
            raise UserError(f"it is unknown which attempts are right: {self.missing}")
        self.scorer.check(tasks)
        asking = solved_attempts.sampling(self.config.rollout, words)
        rollout = Rollout(asking, self.engine, self.tokenizer, tools=self.tools, cut=self.cut)
        requests = requests_for(tasks, asking.samples, of="sampled", seed=self.config.run.seed)
        attempts: list[Trajectory] = []
        try:
            while some := requests[len(attempts) : len(attempts) + AT_ONCE]:
                check()
                attempts += self.loop.run(rollout.run(some))
                self.loop.run(self.scorer.score([t for t in attempts[-len(some) :] if t.failure is None]))
            return attempts
        finally:
            self.loop.run(rollout.close())

    def solved(
        self, attempts: list[Trajectory], config: schema.SolvedAttempts
    ) -> tuple[list[Trajectory], str]:
        """Select the sampled attempts to learn from, with prompts as this run writes them. Also returns a
        line about the selection."""
        selection = solved_attempts.select(
            attempts, config, seed=self.config.run.seed, tools=bool(self.tools)
        )
        if config.tool_prompt is None:
            return selection.kept, selection.line
        asked = solved_attempts.with_own_prompts(
            selection.kept, self.config.rollout, self.tokenizer, self.tools
        )
        return self.loop.run(asked), selection.line

    def close(self) -> None:
        if self.scorer is not None:
            self.scorer.close()
        self.loop.run(self.rollout.close())
        self.loop.close()
