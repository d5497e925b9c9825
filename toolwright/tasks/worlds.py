"""Tasks in an environment: levels drawn by seed, split into train and held-out, demonstrated by solutions."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import string
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from toolwright.failures import UserError, reraised
from toolwright.registry import signature_of
from toolwright.tasks import TASKS, Demonstrate, SplitSizes, TaskSet
from toolwright.tasks.environment import ENVIRONMENTS
from toolwright.tasks.own_loop import succeeds
from toolwright.trajectory import Task

S = TypeVar("S", bound=Hashable)
Settings = dict[str, Any]
InvalidPenalty = Annotated[float, Field(ge=0)]  # what a turn costs whose action is none
Noise = Annotated[float, Field(ge=0, le=1)]  # the share of random actions in a demonstration

# Unlike counted spaces, levels are made one by one.
TRAINING_LEVELS = 512
TRIES_A_LEVEL = 50


def task_set(
    name: str,
    level: Callable[[random.Random], Settings | None],
    *,
    sizes: SplitSizes,
    instructions: str,
    action_tag: str | None,
    noise: float,
    alphabet: str,
    invalid_penalty: float = 0.0,
    max_demonstration: int = 40,
) -> TaskSet:
    """Make a task set. `level` draws the settings of one environment, or None if the draw failed."""
    held = _distinct(level, f"held out {name} {sizes.seed}", sizes.held_out, apart=set())
    taken = {_key(settings) for settings in held}
    train = _distinct(level, f"train {name} {sizes.seed}", sizes.train or TRAINING_LEVELS, apart=taken)

    prompt = instructions + asks_for(action_tag)
    rules = {"action_tag": action_tag or None, "invalid_penalty": invalid_penalty or None}

    def task(settings: Settings) -> Task:
        id = f"{name}:{digest(_key(settings), size=6)}"
        return world_task(name, id, {**settings, **rules}, prompt=prompt)

    return TaskSet(
        train=[task(settings) for settings in train],
        held_out=[task(settings) for settings in held],
        scorer="environment",
        alphabet="".join(sorted({*alphabet, *prompt})),
        demonstrate=played(noise=noise, most=max_demonstration),
    )


def world_task(
    name: str,
    id: str,
    settings: Settings,
    *,
    prompt: str | Sequence[Mapping[str, Any]],
    source: str | None = None,
    ground_truth: Any = None,
) -> Task:
    """A task in the environment of that name. `settings` that are None are left to the environment. A text as
    the prompt is the system message."""
    environment = {"name": name, **{key: value for key, value in settings.items() if value is not None}}
    given = [{"role": "system", "content": prompt}] if isinstance(prompt, str) else prompt
    messages = [dict(message) for message in given]
    return Task(id, messages, ground_truth, source or name, {"environment": environment})


def from_rows(
    name: str,
    settings: Settings,
    train: Sequence[Settings],
    held_out: Sequence[Settings],
    *,
    sizes: SplitSizes,
    source: str,
    forms: Callable[[str], Iterable[str]],
) -> TaskSet:
    """Make a task set of rows, each of which the environment gets as `row`. A row has a conversation,
    `prompt`. It may have `answer` and `task`, the name of its kind. If none are held out, some rows of
    `train` are. `forms` are the texts that may state an answer: the first that succeeds is demonstrated."""
    source = Path(source).stem  # a name, or the file of one
    if not held_out:
        shuffled = list(train)
        random.Random(sizes.seed).shuffle(shuffled)
        held_out, train = shuffled[: sizes.held_out], shuffled[sizes.held_out :]

    def task(split: str, number: int, row: Settings) -> Task:
        try:
            json.dumps(row)
            prompt = [{"role": one["role"], "content": one["content"] or ""} for one in row["prompt"]]
        except (TypeError, KeyError):
            raise UserError(f"{name} {source}: {split} row {number} is not a conversation") from None
        kind = source if row.get("task") in (None, "default") else str(row["task"])
        own, answer = {**settings, "row": row}, row.get("answer")
        return world_task(
            name, f"{source}:{split}:{number}", own, prompt=prompt, source=kind, ground_truth=answer
        )

    return TaskSet(
        train=[task("train", *one) for one in enumerate(train[: sizes.train])],
        held_out=[task("held out", *one) for one in enumerate(held_out[: sizes.held_out])],
        scorer="environment",
        alphabet=string.printable,
        demonstrate=partial(_answered, forms),
    )


def register_worlds(name: str, world: Callable[..., Any], *, instructions: str = "") -> None:
    """Register the task of an environment whose worlds differ by their seed alone. Its settings are those of
    the environment, and how the policy is told to act. A world that knows its `solution` is demonstrated."""
    solved = hasattr(world, "solution")

    def tasks(
        *,
        sizes: SplitSizes,
        instructions: str = instructions,
        action_tag: str | None = None,
        invalid_penalty: InvalidPenalty = 0.0,
        success_reward: float | None = None,
        noise: Noise = 0.0,
        **settings: Any,
    ) -> TaskSet:
        return by_seed(
            name,
            settings if success_reward is None else {**settings, "success_reward": success_reward},
            sizes=sizes,
            instructions=instructions,
            action_tag=action_tag,
            invalid_penalty=invalid_penalty,
            noise=noise if solved else None,
        )

    absent = {"settings"} if solved else {"settings", "noise"}
    shared = [p for p in signature_of(tasks).parameters.values() if p.name not in absent]
    own = [p for p in signature_of(world).parameters.values() if p.name != "seed"]
    parameters = [*shared, *(p.replace(kind=p.KEYWORD_ONLY) for p in own)]
    tasks.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    TASKS.register(name)(tasks)


def benchmark(
    name: str,
    tasks: Iterable[Task],
    *,
    sizes: SplitSizes,
    text: str,
    family: Callable[[Task], str] = lambda task: task.id,
) -> TaskSet:
    """Make a task set of a benchmark: all tasks are held out, except `train_size` of them. No `family` is
    both learned from and held out. `text` has all characters that are read beside printable ones."""
    shuffled = list(tasks)
    random.Random(f"{name} {sizes.seed}").shuffle(shuffled)
    order = {key: place for place, key in enumerate(dict.fromkeys(map(family, shuffled)))}
    train = sorted(shuffled, key=lambda task: order[family(task)])[: sizes.train or 0]
    learned = set(map(family, train))
    held_out = [task for task in shuffled if family(task) not in learned][: sizes.held_out]
    alphabet = "".join(sorted({*string.printable, *text}))
    return TaskSet(train, held_out, scorer="environment", alphabet=alphabet)


def by_seed(
    name: str,
    settings: Settings,
    *,
    sizes: SplitSizes,
    instructions: str,
    action_tag: str | None = None,
    invalid_penalty: float = 0.0,
    noise: float | None = None,
    level: Callable[[random.Random], Settings] = lambda _: {},
) -> TaskSet:
    """Make a task set of worlds that differ by their seed, and by what `level` draws. Without `noise` nobody
    knows the way through them, so nothing is demonstrated."""

    def drawn(rng: random.Random) -> Settings:
        return {**settings, "seed": rng.randrange(2**31), **level(rng)}

    tasks = task_set(
        name,
        drawn,
        sizes=sizes,
        instructions=instructions,
        action_tag=action_tag,
        invalid_penalty=invalid_penalty,
        noise=noise or 0.0,
        alphabet=string.printable,
    )
    return tasks if noise is not None else replace(tasks, demonstrate=None)


def digest(state: str, *, size: int = 16) -> str:
    """Name a state by its description, which may be long."""
    return hashlib.blake2b(state.encode(), digest_size=size).hexdigest()


def asks_for(action_tag: str | None) -> str:
    return f" Write your action as <{action_tag}>…</{action_tag}>." if action_tag else ""


def _answered(forms: Callable[[str], Iterable[str]], task: Task, rng: random.Random) -> list[dict[str, Any]]:
    """Demonstrate the answer of the task's row, in the first form that succeeds in its environment."""
    answer, settings = task.ground_truth, dict(task.extra_info["environment"])
    if not isinstance(answer, str) or not answer:
        raise UserError(f"task {task.id} has no answer to show: its row of the data set has none")
    world: Any = ENVIRONMENTS.get(settings.pop("name")).target
    with reraised(UserError, f"task {task.id}: its environment raised on the answer of its own row:"):
        for said in forms(answer):
            if succeeds(world(**settings), task, said):
                return [{"role": "assistant", "content": said}]
    raise UserError(
        f"task {task.id}: its environment does not count the answer of its own row, {answer!r}, as a "
        "success. Write the examples of a warm start into a file of your own (`toolwright sft task=file`)"
    )


def played(*, noise: float, most: int) -> Demonstrate:
    """Demonstrate the environment's solution, with a share `noise` of random actions.

    The environment has, beside reset and step, `actions`, which can be taken now, and `solution()`, the
    shortest way from here or None.
    """

    def demonstrate(task: Task, rng: random.Random) -> list[dict[str, Any]]:
        settings = dict(task.extra_info["environment"])
        tag = settings.pop("action_tag", None)
        for rule in ("invalid_penalty", "success_reward"):
            settings.pop(rule, None)
        world: Any = ENVIRONMENTS.get(settings.pop("name")).target(**settings)
        seen, messages = world.reset(task).text, []
        for _ in range(most):
            way = world.solution()
            if way is None:  # a random action has led to a dead end
                break
            action = rng.choice(world.actions) if rng.random() < noise else way[0]
            text = f"<{tag}>{action}</{tag}>" if tag else action
            messages += [{"role": "user", "content": seen}, {"role": "assistant", "content": text}]
            outcome = world.step(action)
            if outcome.done:
                break
            seen = outcome.text
        return messages

    return demonstrate


def shortest(
    start: S, moves: Callable[[S], Iterable[tuple[str, S]]], won: Callable[[S], bool], *, most: int = 200_000
) -> list[str] | None:
    """Search breadth first for the actions that lead to a state that is won.

    None where no state within `most` is won.
    """
    came: dict[S, tuple[S, str] | None] = {start: None}
    queue = deque([start])
    while queue and len(came) < most:
        state = queue.popleft()
        if won(state):
            actions: list[str] = []
            while (step := came[state]) is not None:
                state = step[0]
                actions.append(step[1])
            return actions[::-1]
        for action, after in moves(state):
            if after not in came:
                came[after] = state, action
                queue.append(after)
    return None


def _distinct(
    level: Callable[[random.Random], Settings | None], name: str, count: int, *, apart: set[str]
) -> list[Settings]:
    """`count` different levels. A larger count begins with the same levels."""
    known = set(apart)
    made: list[Settings] = []
    for number in range(count * TRIES_A_LEVEL):
        if len(made) == count:
            break
        settings = level(random.Random(f"{name} {number}"))
        if settings is not None and (key := _key(settings)) not in known:
            known.add(key)
            made.append(settings)
    if len(made) < count:
        raise UserError(
            f"only {len(made)} of {count} different levels were found with these settings; ask for fewer by "
            "task.train_size and task.held_out_size, or make levels larger by task.params"
        )
    return made


def _key(settings: Settings) -> str:
    return json.dumps(settings, sort_keys=True)
