"""Warnings about runs that go wrong: all attempts earn the same reward, run out of tokens, stop calling a
tool, or become alike; or the engine drifts away from the learner."""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.trainer.sampling import SampledStep
from toolwright.trajectory import Trajectory

FIRST = 3  # steps before it is given; then after twice as many, and so on
QUIET = 5  # steps in a row that something has gone missing
SURE_OF_ALL = 0.02  # nats a token
REMEMBERED, ENOUGH = 50, 5  # gaps of earlier steps: compared with, and needed to compare
SUDDEN, NOTICED = 5.0, 0.2  # a gap stands out: times their median, and part of the limit at least
LOOK = "; docs/engines.md, The gap, says what to look at"
COLD_START = (
    "a cold start teaches it, from attempts that the model itself solves with the tool: toolwright sft "
    "demonstrations=sampled with this run's model, task, tools and rollout settings, then "
    "model.path=runs/NAME/model; check that rollout.call_format is how the model writes calls"
)
LUCK = (
    "; from random weights a right answer is luck, and more of it with a warm start: toolwright sft, then "
    "model.path=runs/NAME/model"
)


class SameRewards:
    """Watches the attempts of every step until two of them earn different rewards."""

    def __init__(self, config: schema.Config) -> None:
        self.config = config
        self.rewards: set[float] = set()
        self.of_steps: set[float] = set()  # where there is one for each
        self.attempts = self.steps_seen = 0
        self.due = min(FIRST, config.train.steps)

    def check(self, sampled: SampledStep) -> str | None:
        """Return the warning if it is due."""
        if self._differ():
            return None
        scored = [t for t in sampled.attempts if t.reward is not None]
        found = [*scored, *sampled.greedy]
        self.rewards |= {t.score for t in found if t.score is not None}
        self.of_steps |= {step.reward for t in found for step in t.steps if step.reward is not None}
        self.of_steps |= {reward for t in found for reward in t.step_rewards}
        self.attempts += len(scored)
        self.steps_seen += 1
        if self._differ() or self.steps_seen < self.due or not scored:
            return None
        self.due *= 2
        return (
            f"all {self.attempts:,} attempts so far earned {min(self.rewards):g}: there is nothing to learn "
            f"from{self._why(scored)}"
        )

    def _differ(self) -> bool:
        return len(self.rewards) > 1 or len(self.of_steps) > 1

    def _why(self, attempts: Sequence[Trajectory]) -> str:
        """Return the most common fault of the attempts, if there is an obvious one."""
        if self.config.model.path is None:
            return LUCK
        of = f"of the last {len(attempts):,}"
        cut = Counter(t.stop for t in attempts if t.cut)
        if cut.total() >= len(attempts) / 2:
            [(stop, _)] = cut.most_common(1)
            limit = limit_of(self.config, stop)
            return f"; {cut.total():,} {of} were cut off by {limit}, which can be raised"
        calls = sum(t.counts.get("tool_calls", 0) for t in attempts)
        if not calls and (self.config.tools or self.config.tool_config_path):
            return f"; none {of} called a tool: rollout.tool_prompt, or an example in the prompt, tells how"
        errors = sum(t.counts.get("tool_errors", 0) for t in attempts)
        if calls and errors >= calls / 2:
            return f"; {errors:,g} of their last {calls:,g} tool calls failed"
        return ""


class OutOfTokens:
    """Watches the attempts of every step until most attempts of a step run out of tokens. Only the limit of a
    whole attempt counts: a short limit for each turn may be intended."""

    def __init__(self, config: schema.Config) -> None:
        self.config, self.warned = config, False

    def check(self, sampled: SampledStep) -> str | None:
        """Return the warning if it is due."""
        ended = [t.stop for t in sampled.attempts if t.failure is None]
        out = ended.count("tokens")
        if self.warned or not out or out < len(ended) / 2:
            return None
        self.warned = True
        limit = limit_of(self.config, "tokens")
        return f"{out:,} of {len(ended):,} attempts had no tokens left: prompt and answers fill {limit}"


class NoToolCalls:
    """Watches the attempts of every step for calls of the offered tools."""

    def __init__(self, config: schema.Config) -> None:
        self.offered = bool(config.tools or config.tool_config_path)
        self.calls = self.unknown = self.attempts = 0.0  # of all steps
        self.without = 0  # steps in a row
        self.due = QUIET

    def check(self, sampled: SampledStep) -> str | None:
        """Return the warning if it is due: after five steps, then after ten, twenty and so on."""
        found = [t.counts for t in sampled.attempts if t.failure is None]
        calls = sum(counts.get("tool_calls", 0) for counts in found)
        if not self.offered or not found:
            return None
        self.calls += calls
        self.unknown += sum(counts.get("tool_calls/unknown", 0) for counts in found)
        self.attempts += len(found)
        if calls:
            self.without, self.due = 0, QUIET
            return None
        self.without += 1
        if self.without < self.due:
            return None
        self.due *= 2
        return f"no attempt has called a tool for {self.without} steps{self._before()}; {COLD_START}"

    def _before(self) -> str:
        if not self.calls:
            return ", nor any before"
        unknown = self.unknown / self.calls
        of_none = f", {unknown:.0%} of those of tools that do not exist" if unknown >= 0.05 else ""
        return f" ({self.calls / self.attempts:.2g} calls an attempt in all{of_none})"


class EntropyCollapse:
    """Watches the metrics of every step until the policy is sure of every token but still wrong at times."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.low = 0  # steps in a row
        self.best = 0.0
        self.warned = False

    def check(self, metrics: Mapping[str, float]) -> str | None:
        """Return the warning if it is due."""
        entropy, reward = metrics.get("policy/entropy"), metrics.get("reward/mean")
        if entropy is None or reward is None:
            return None
        self.best = max(self.best, metrics.get("reward/max", reward))
        if len(self.first) < FIRST:
            self.first.append(entropy)
            return None
        start = statistics.fmean(self.first)
        sure = entropy < SURE_OF_ALL and entropy < 0.1 * start and reward < 0.9 * self.best
        self.low = self.low + 1 if sure else 0
        if self.warned or self.low < QUIET:
            return None
        self.warned = True
        return (
            f"entropy has fallen from {start:.2g} to {entropy:.2g} nats a token, with a reward of "
            f"{reward:.2g}: attempts no longer differ, and nothing more is learned; a lower "
            "update.policy.lr, algorithm.clip_high=0.28, algorithm.entropy_target or rollout.temperature=1 "
            "keep them apart"
        )


def limit_of(config: schema.Config, stop: str) -> str:
    """Return the setting that cuts off attempts with this stop reason."""
    if stop == "length":
        return f"rollout.max_tokens={config.rollout.max_tokens}"
    total, context = config.rollout.max_total_tokens, require_number(config.model.context, "model.context")
    if response := config.rollout.call_params.get("response_tokens"):
        return f"rollout.call_params.response_tokens={response}"
    within = total is not None and total <= context
    return f"rollout.max_total_tokens={total}" if within else f"model.context={context}"


class GapAlarm:
    """Watches the mean |Δ log-probability| of every step. A fixed limit finds a gap that is wrong from the
    start; comparison with earlier steps finds one that grows."""

    def __init__(self, limit: float, *, engine: str) -> None:
        self.limit, self.engine = limit, engine
        self.past: deque[float] = deque(maxlen=REMEMBERED)

    def warning(self, gap: float) -> str | None:
        """Return a warning about this step's gap if it is due."""
        usual = statistics.median(self.past) if len(self.past) >= ENOUGH else None
        found = f"the {self.engine} engine's log-probabilities are {gap:.3g} from the learner's on average"
        if not math.isfinite(gap):
            return f"{found}: one of the two computes with numbers that are not finite{LOOK}"
        self.past.append(gap)
        if gap > self.limit:
            return f"{found}, beyond algorithm.correction.alarm={self.limit:g}{LOOK}"
        if usual is not None and gap > max(SUDDEN * usual, NOTICED * self.limit):
            return f"{found}, and were {usual:.3g} before{LOOK}"
        return None
