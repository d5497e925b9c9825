"""The supervised warm start: the model learns the assistant's tokens in demonstrations."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolwright import tasks as task_sets
from toolwright.agents.demonstration import demonstrator_like
from toolwright.agents.rollout import most_turns
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.failures import UserError
from toolwright.images import parts_of, texts_of
from toolwright.learner.objective import Likelihood
from toolwright.learner.policy import Policy
from toolwright.models.tokenizer import Tokenizer
from toolwright.observe import rollouts
from toolwright.observe.tracker_config import read_trackers
from toolwright.runtime.reaper import reap_children
from toolwright.tasks import TaskSet, rows
from toolwright.tasks.conversations import Conversation, conversation_of
from toolwright.tasks.mapped import data_files
from toolwright.tools.settings import Settings, served, settings_of
from toolwright.trainer import building, defaults, memory, preparation, solved_attempts
from toolwright.trainer.data_training import DataTraining
from toolwright.trainer.defaults import DecidedConfig
from toolwright.trainer.held_out_judge import HeldOutJudge
from toolwright.trainer.interrupt import Interrupt
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.step_log import StepLog
from toolwright.trajectory import Task, Trajectory


def train(config: schema.SupervisedConfig, *, command: Sequence[str]) -> Path:
    """Run a whole warm start. Returns the run folder; reinforcement learning starts from its `model/`."""
    if config.engine.name != "native":
        raise UserError(f"engine.name={config.engine.name}: sft attempts tasks with the native engine only")
    read_trackers(config.trackers)
    folder = RunFolder.claim(config.run, made_of=("sft", _source(config)))
    with reap_children(), served(settings_of(config.model_dump())) as tools:
        _train(config, folder, tools, command=command)
    return folder.path


NO_TASK = "none"


@dataclass(frozen=True)
class PreparedSft:
    tasks: TaskSet
    alphabet: str
    examples: list[Trajectory]  # demonstrations, those that are too long among them; none if to be sampled
    openings: list[str]  # of the held-out tasks
    train_openings: list[str]  # of the training tasks, if those are to be sampled
    decided: DecidedConfig
    lines: tuple[str, ...] = ()  # about where the demonstrations come from


def prepare(config: schema.SupervisedConfig, tools: Settings) -> PreparedSft:
    """Render demonstrations as the model will read them, and decide settings that are `auto` by their
    lengths."""
    tasks = task_sets.load(config.task, seed=config.run.seed, learns=config.demonstrations is None)
    conversations = [] if _from_attempts(config) else _conversations(config, tasks)
    alphabet = preparation.alphabet(tasks, tools) + "".join(sorted(_characters(conversations)))
    within = building.context_of(config.model)  # first of all it must be a model's folder
    tokenizer = building.build_tokenizer(config.model, alphabet)
    examples, openings = asyncio.run(_written(config, tokenizer, tools, conversations, tasks.held_out))
    train_openings: list[str] = []
    lines: tuple[str, ...] = ()
    if config.demonstrations == schema.SAMPLED:
        asking = config.changed({"rollout": solved_attempts.sampling(config.rollout, config.attempts)})
        _, train_openings = asyncio.run(_written(asking, tokenizer, tools, [], tasks.train))
    elif _from_attempts(config):
        selection = _of_run(config, tokenizer, tools, tasks.held_out)
        examples, lines = selection.kept, (selection.line,)
    rollout = config.rollout
    if rollout.max_tokens != "auto" and within is not None:  # what is shown may be shorter than attempts
        rollout = rollout.changed({"max_tokens": min(rollout.max_tokens, max(1, within - 1))})
    attempted = tasks.held_out or tasks.train
    # If nothing is attempted, a pretrained model needs room for the conversations alone. A new one gets its
    # context here, and has to answer later.
    turns = most_turns(config.rollout, tools, attempted) if attempted else int(config.model.path is None)
    decided = defaults.decide(
        schema.Config(
            run=config.run,
            task=config.task,
            model=config.model,
            rollout=rollout,
            engine=config.engine,
            reward=config.reward,
            update=schema.Update(micro_tokens=config.micro_tokens, policy=config.optimizer),
        ),
        prompt=preparation.longest([*openings, *train_openings], tokenizer),
        turns=turns,
        demonstration=max((len(example.tokens) for example in examples), default=0),
    )
    return PreparedSft(tasks, alphabet, examples, openings, train_openings, decided, lines)


def _train(
    config: schema.SupervisedConfig, folder: RunFolder, tools: Settings, *, command: Sequence[str]
) -> None:
    prepared = prepare(config, tools)
    fitted = memory.fitted(prepared.decided.config)
    decoder, tokenizer = building.build_model(fitted.model, prepared.alphabet, seed=config.run.seed)
    building.use_processor(config.run, decoder)
    examples, context = prepared.examples, decoder.shape.context
    fitting = [e for e in examples if len(e.tokens) <= context]
    if not fitting and config.demonstrations != schema.SAMPLED:
        raise UserError(f"no demonstration fits into model.context={context} tokens")
    tried, sampled = (
        preparation.fitting(
            found,
            openings,
            fitted.task,
            tokenizer,
            limit=require_number(fitted.task.max_prompt_tokens, "task.max_prompt_tokens"),
            remedy=prepared.decided.remedy,
        )
        for found, openings in (
            (prepared.tasks.held_out, prepared.openings),
            (prepared.tasks.train if prepared.train_openings else (), prepared.train_openings),
        )
    )
    with closing(HeldOutJudge(fitted, decoder, tokenizer, tried, prepared.tasks.scorer, tools)) as judge:
        own: dict[str, Any] = {name: getattr(fitted, name) for name in ("model", "rollout", "task")}
        own |= {"micro_tokens": fitted.update.micro_tokens, "optimizer": fitted.update.policy}
        config = config.changed(own)
        lines = [*prepared.lines, *prepared.decided.lines]
        if config.demonstrations != schema.SAMPLED:
            lines.insert(0, f"{len(fitting):,} demonstrations, {len(examples) - len(fitting):,} too long")
        student = Policy(
            decoder, config.optimizer, total_updates=0, temperature=1.0, **building.pass_settings(fitted)
        )
        training = _WarmStart(config, folder, tokenizer, student, judge, sampled, lines=lines)
        if config.demonstrations != schema.SAMPLED:
            training.learn(fitting)
        elif config.run.resume and training.begun and (file := rollouts.files(folder.path).get(0)):
            training.learn_solved(rollouts.read(file))
        training.run(command=command, title=f"sft on {_source(config)}")


async def _written(
    config: schema.SupervisedConfig,
    tokenizer: Tokenizer,
    tools: Settings,
    conversations: Sequence[Conversation],
    held_out: Sequence[Task],
) -> tuple[list[Trajectory], list[str]]:
    """Return demonstrations in the form that attempts would leave, and the openings of the held-out tasks."""
    async with building.agents_before_run(config.rollout, tokenizer, tools) as agents:
        opening = await agents.openings()
        agent = agents.agent_for(Task("", []))
        teacher = await demonstrator_like(agent, config.rollout, tokenizer, agents.tools)
        examples = [
            (teacher if c.tools is None else teacher.offering(c.tools)).trajectory(number, c.messages)
            for number, c in enumerate(conversations)
        ]
        return examples, [opening(task) for task in held_out]


class _WarmStart(DataTraining[schema.SupervisedConfig]):
    command, examples = "sft", "demonstrations"

    def __init__(
        self,
        config: schema.SupervisedConfig,
        folder: RunFolder,
        tokenizer: Tokenizer,
        student: Policy,
        judge: HeldOutJudge,
        sampled: list[Task],
        *,
        lines: Sequence[str],
    ) -> None:
        """`sampled`: the tasks to attempt if the model's own attempts are the demonstrations."""
        super().__init__(config, folder, tokenizer, lines=lines)
        self.learner: Policy = student
        self.judge, self.sampled = judge, sampled
        self.shown: list[Trajectory] = []
        if judge.missing:
            self.lines.append(f"held-out tasks are not attempted: {judge.missing}")

    def learn(self, demonstrations: list[Trajectory]) -> None:
        self.shown = demonstrations
        self.learn_from([one.task for one in demonstrations])

    def learn_solved(self, attempts: list[Trajectory]) -> None:
        """Learn from those of the model's own attempts that were right."""
        solved, line = self.judge.solved(attempts, self.config.attempts)
        self.lines.append(line)
        self.learn(solved)

    def gather(self, log: StepLog, interrupt: Interrupt) -> None:
        """Sample attempts. They are kept in the folder: a resumed run learns from the same ones."""
        with log.stage("sample"):
            attempts = self.judge.sample(self.sampled, self.config.attempts, check=interrupt.check)
        self.folder.save_rollouts(0, attempts)
        self.learn_solved(attempts)

    def update(self, rows: Sequence[int]) -> dict[str, float]:
        batch = Batch.pack([self.shown[i] for i in rows])
        return self.learner.update(replace(batch, columns={}), Likelihood())

    def held_out(self) -> dict[str, float]:
        return self.judge.held_out(self.folder, self.step)

    def export(self, folder: Path) -> None:
        building.export(self.learner.decoder, self.tokenizer, folder)


def _source(config: schema.SupervisedConfig) -> str:
    """Name what a run learns from: its task, or the file if it has none."""
    return config.task.name if config.task.name != NO_TASK else Path(str(config.demonstrations)).stem


def _from_attempts(config: schema.SupervisedConfig) -> bool:
    """Return True if the demonstrations are attempts: the model's own, or those of a run."""
    said = config.demonstrations
    return said is not None and (said == schema.SAMPLED or Path(said).is_dir())


def _of_run(
    config: schema.SupervisedConfig, tokenizer: Tokenizer, tools: Settings, held_out: Sequence[Task]
) -> solved_attempts.SolvedSelection:
    found = solved_attempts.read_run(Path(str(config.demonstrations)), tokenizer, held_out)
    selection = solved_attempts.select(found, config.attempts, seed=config.run.seed, tools=bool(tools))
    if config.attempts.prompt == "recorded":
        return selection
    asked = solved_attempts.with_own_prompts(selection.kept, config.rollout, tokenizer, tools)
    return replace(selection, kept=asyncio.run(asked))


def _conversations(config: schema.SupervisedConfig, tasks: TaskSet) -> list[Conversation]:
    if config.demonstrations is not None:
        return _read(Path(config.demonstrations))
    if tasks.demonstrate is None:
        raise UserError(
            f"task {config.task.name!r} has no demonstrations of its own; set demonstrations=FILE"
        )
    rng = random.Random(f"{config.run.seed}/demonstrations")
    return [Conversation([*task.prompt, *tasks.demonstrate(task, rng)]) for task in tasks.train]


def _read(path: Path) -> list[Conversation]:
    """Read conversations from files."""
    if path.parts[:1] == ("runs",) and not path.exists():  # a run, and no data set of the hub
        raise UserError(f"demonstrations={path}: no such file or folder")
    try:
        found = [row for file in data_files(str(path), "train") for row in rows.read(file)]
    except UserError as error:
        raise UserError(f"demonstrations: {error}") from None
    conversations: list[Conversation] = []
    for number, row in enumerate(found, 1):
        where = f"{path}, row {number}"
        conversation = conversation_of(row, where)
        for message in conversation.messages:
            if isinstance(message.get("content"), list):
                message["content"] = parts_of(message["content"], where, folder=path.expanduser().parent)
        conversations.append(conversation)
    return conversations


def _characters(conversations: Sequence[Conversation]) -> set[str]:
    """Return the characters that a fresh character-level tokenizer must know."""
    every = [message for conversation in conversations for message in conversation.messages]
    contents = [text for message in every for text in texts_of(message.get("content"))]
    calls = [
        json.dumps(message["tool_calls"], ensure_ascii=False)
        for message in every
        if message.get("tool_calls")
    ]
    tools = [json.dumps(one.tools, ensure_ascii=False) for one in conversations if one.tools]
    return {character for text in (*contents, *calls, *tools) if isinstance(text, str) for character in text}
