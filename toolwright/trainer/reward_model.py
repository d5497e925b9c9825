"""Training of a reward model on preference pairs, with held-out pairs to judge it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolwright import tasks as task_sets
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner.pair_learner import ComparedPair, PairLearner, of_pairs
from toolwright.models import score_model
from toolwright.models.score_model import ScoreModel
from toolwright.models.tokenizer import Tokenizer
from toolwright.observe.estimates import estimate
from toolwright.observe.tracker_config import read_trackers
from toolwright.rewards.judgement import cut, retold
from toolwright.runtime.reaper import reap_children
from toolwright.tasks.preferences import ANSWERS, TOOLS, pairs
from toolwright.trainer import building, defaults, memory
from toolwright.trainer.data_training import DataTraining
from toolwright.trainer.run_folder import RunFolder
from toolwright.trajectory import Task


def train(config: schema.RewardModelConfig, *, command: Sequence[str]) -> Path:
    """Run a whole training. Returns the run folder; the scorer `reward_model` takes its `model/`."""
    read_trackers(config.trackers)
    folder = RunFolder.claim(config.run, made_of=("rm", config.task.name))
    with reap_children():
        _Training(config, folder).run(command=command, title=f"rm on {config.task.name}")
    return folder.path


@dataclass(frozen=True)
class PreparedPairs:
    """Training and held-out pairs as tokens, and lines about them for the log."""

    train: list[ComparedPair]
    held_out: list[ComparedPair]
    lines: list[str]


class _Training(DataTraining[schema.RewardModelConfig]):
    command, examples = "rm", "pairs"

    def __init__(self, config: schema.RewardModelConfig, folder: RunFolder) -> None:
        tasks = task_sets.load(config.task, seed=config.run.seed)
        _require_no_tools([*tasks.train, *tasks.held_out])
        learned, judged = pairs(tasks.train), pairs(tasks.held_out)
        tokenizer = building.build_tokenizer(config.model, tasks.alphabet)
        written = [[_written(task, tokenizer) for task in some] for some in (learned, judged)]
        longest = max(len(tokens) for some in written for p in some for tokens in (p.chosen, p.rejected))
        decided = defaults.decide(
            schema.Config(
                run=config.run,
                task=config.task,
                model=config.model,
                rollout=schema.RolloutConfig(max_tokens=1),
                engine=schema.EngineConfig(slots=1),
                update=schema.Update(micro_tokens=config.micro_tokens, policy=config.optimizer),
            ),
            prompt=1,
            turns=1,
            demonstration=longest,
        )
        fitted = memory.fitted(decided.config)
        decoder, tokenizer = building.build_model(fitted.model, tasks.alphabet, seed=config.run.seed)
        building.use_processor(config.run, decoder)
        self.pairs = _cut(written, decoder.shape.context, list(decided.lines))
        own = {"model": fitted.model, "optimizer": fitted.update.policy}
        config = config.changed({**own, "micro_tokens": fitted.update.micro_tokens})
        super().__init__(config, folder, tokenizer, lines=self.pairs.lines)
        self.eval_every = config.eval_every
        self.model = ScoreModel.fresh(decoder, dtype=building.dtype_of(config.model), padding=tokenizer.pad)
        self.learner: PairLearner = PairLearner(
            self.model,
            config.optimizer,
            total_updates=0,
            micro_tokens=config.micro_tokens,
            packs=fitted.update.optimizer_state == "int8",
        )
        self.learn_from(learned)

    def update(self, rows: Sequence[int]) -> dict[str, float]:
        return self.learner.update([self.pairs.train[i] for i in rows])

    def held_out(self) -> dict[str, float]:
        """Measure how many held-out pairs the model ranks correctly, with the interval of that share."""
        if not self.pairs.held_out:
            return {}
        ahead = self.learner.ahead(self.pairs.held_out)
        right = [1.0 if one > 0 else 0.5 if one == 0 else 0.0 for one in ahead.tolist()]
        margins = [pair.margin for pair in self.pairs.held_out]
        found, sure = of_pairs(ahead, ahead.new_tensor(margins)), estimate(right)
        metrics = {f"held_out/{name}": value for name, value in found.items()}
        return {**metrics, "held_out/accuracy_low": sure.low, "held_out/accuracy_high": sure.high}

    def export(self, folder: Path) -> None:
        score_model.save(self.model, folder)
        self.tokenizer.save(folder)


def _require_no_tools(tasks: Sequence[Task]) -> None:
    for task in tasks:
        if task.extra_info.get(TOOLS):
            raise UserError(
                f"task {task.id} has `tools`, which a reward model never sees: the scorer reads what was "
                "said, not the tools that were offered; remove the column"
            )


def _written(task: Task, tokenizer: Tokenizer) -> ComparedPair:
    """Tokenize both conversations the way scorer `reward_model` tokenizes attempts."""
    chosen, rejected = (
        tokenizer.conversation(retold([*task.prompt, *answer["messages"]], tokenizer.chat))
        for answer in task.extra_info[ANSWERS]
    )
    return ComparedPair(chosen, rejected, float(task.extra_info.get("margin") or 0.0))


def _cut(written: list[list[ComparedPair]], most: int, lines: list[str]) -> PreparedPairs:
    """Keep the end of a conversation that is too long for the model, as the scorer does with attempts."""
    kept = [
        [ComparedPair(cut(p.chosen, most, "left"), cut(p.rejected, most, "left"), p.margin) for p in some]
        for some in written
    ]
    every = [pair for some in written for pair in some]
    long = sum(max(len(pair.chosen), len(pair.rejected)) > most for pair in every)
    counted = f"{len(kept[0]):,} pairs to learn from, {len(kept[1]):,} held out"
    counted += f"; {long:,} are longer than model.context={most} and lose their beginning" if long else ""
    return PreparedPairs(kept[0], kept[1], [counted, *lines])
