"""Training of a reward model on preference pairs, with held-out pairs to judge it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolwright import tasks as task_sets
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.learner.pair_learner import ComparedPair, PairLearner, of_pairs
from toolwright.models import score_model
from toolwright.models.score_model import ScoreModel
from toolwright.models.tokenizer import Tokenizer
from toolwright.observe.estimates import estimate
from toolwright.observe.tracker_config import read_trackers
from toolwright.rewards.judgement import cut, retold
from toolwright.runtime.reaper import reap_children
from toolwright.tasks.order import TaskOrder
from toolwright.tasks.preferences import ANSWERS, TOOLS, pairs
from toolwright.trainer import building, defaults, memory
from toolwright.trainer.checkpointing import is_due, restore_newest, resume_command
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.step_log import StepLog
from toolwright.trajectory import Task


def train(config: schema.RewardModelConfig, *, command: Sequence[str]) -> Path:
    """Run a whole training. Returns the run folder; the scorer `reward_model` takes its `model/`."""
    read_trackers(config.trackers)
    folder = RunFolder.claim(config.run, made_of=("rm", config.task.name))
    with reap_children():
        _Training(config, folder).run(command=command)
    return folder.path


@dataclass(frozen=True)
class PreparedPairs:
    """Training and held-out pairs as tokens, and lines about them for the log."""

    train: list[ComparedPair]
    held_out: list[ComparedPair]
    lines: list[str]


class _Training:
    def __init__(self, config: schema.RewardModelConfig, folder: RunFolder) -> None:
        self.folder = folder
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
        self.decoder, self.tokenizer = building.build_model(
            fitted.model, tasks.alphabet, seed=config.run.seed
        )
        building.use_processor(config.run, self.decoder)
        self.pairs = _cut(written, self.decoder.shape.context, list(decided.lines))
        own = {"model": fitted.model, "optimizer": fitted.update.policy, "micro_tokens": config.micro_tokens}
        self.config = config = config.changed(own)
        dtype = building.dtype_of(config.model)
        self.model = ScoreModel.fresh(self.decoder, dtype=dtype, padding=self.tokenizer.pad)
        self.learner = PairLearner(
            self.model,
            config.optimizer,
            total_updates=config.steps,
            micro_tokens=fitted.update.micro_tokens,
            packs=fitted.update.optimizer_state == "int8",
        )
        self.order = TaskOrder(len(self.pairs.train), config.run.seed)
        self.step, self.saved_at = 0, time.monotonic()

    def run(self, *, command: Sequence[str]) -> None:
        config, folder = self.config, self.folder
        folder.begin(config, command=command, tokenizer=self.tokenizer)
        resumed = None
        if config.run.resume:
            resumed = restore_newest(folder.checkpoints, self._restore, say=folder.log)
            folder.rewind(self.step or -1)
        remedy = resume_command(config.run, folder, "rm")
        log = StepLog(config, folder, command="rm", title=f"rm on {config.task.name}", steps=config.steps)
        with log.surround(self.pairs.lines, step=self.step, remedy=remedy) as interrupt:
            if resumed is None:
                log.write(self.step, self._held_out())
            while self.step < config.steps:
                if interrupt.signal:
                    self._save()
                    log.say(f"stopped at step {self.step}; continue with: {remedy}")
                    break
                with log.stage("update"):
                    metrics = self._update()
                if self.step == config.steps or (config.eval_every and self.step % config.eval_every == 0):
                    metrics.update(self._held_out())
                log.write(self.step, metrics)
                if self.step == config.steps or is_due(config.checkpoint, self.step, self.saved_at):
                    self._save()

    def _update(self) -> dict[str, float]:
        started = time.perf_counter()
        found = self.learner.update([self.pairs.train[i] for i in self.order.take(self.config.batch)])
        self.step += 1
        named = {f"policy/{name}": value for name, value in found.items()}
        return {**named, "time/total_s": time.perf_counter() - started}

    def _held_out(self) -> dict[str, float]:
        """Measure how many held-out pairs the model ranks correctly, with the interval of that share."""
        if not self.pairs.held_out:
            return {}
        ahead = self.learner.ahead(self.pairs.held_out)
        right = [1.0 if one > 0 else 0.5 if one == 0 else 0.0 for one in ahead.tolist()]
        margins = [pair.margin for pair in self.pairs.held_out]
        found, sure = of_pairs(ahead, ahead.new_tensor(margins)), estimate(right)
        metrics = {f"held_out/{name}": value for name, value in found.items()}
        return {**metrics, "held_out/accuracy_low": sure.low, "held_out/accuracy_high": sure.high}

    def _save(self) -> None:
        state, tensors = {"step": self.step, "order": self.order.state()}, {"rm": self.learner.state_dict()}
        keep = self.config.checkpoint.keep
        checkpoints.save(self.folder.checkpoints, self.step, state, tensors, keep=keep)
        self.folder.save_model(self._export)
        self.saved_at = time.monotonic()

    def _export(self, folder: Path) -> None:
        score_model.save(self.model, folder)
        self.tokenizer.save(folder)

    def _restore(self, path: Path) -> None:
        state, tensors = checkpoints.load(path)
        try:
            self.learner.load_state_dict(tensors["rm"])
            self.order.restore(state["order"])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"the checkpoint is of another model or command ({reason}): resume with those that the run "
                "began with, or start a new run"
            ) from None
        self.step = int(state["step"])


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
