"""Tasks that are made and not read: splits of counted spaces, arithmetic as text, demonstrated answers."""

from __future__ import annotations

import ast
import operator
import random
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from toolwright.failures import UserError
from toolwright.tasks import Demonstrate, SplitSizes
from toolwright.trajectory import Task

Place = tuple[int, int]  # which stratum of the space, and which of its members

# Without a train_size a small space is used whole; of a larger one this many are drawn.
MOST_TRAINING_TASKS = 20_000


def generate(
    strata: Sequence[int],
    make: Callable[[int, int], Task],
    sizes: SplitSizes,
) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks; `make` must give each place of the space a prompt of its own."""
    train, held_out = draw(strata, sizes)
    return [make(*place) for place in train], [make(*place) for place in held_out]


def draw(strata: Sequence[int], sizes: SplitSizes) -> tuple[list[Place], list[Place]]:
    """Draw places for training and held-out places, disjoint, spread evenly over strata of these sizes.

    The held-out places follow from the seed and their number alone, so that two runs that differ only in
    train_size are evaluated on the same tasks.
    """
    total, held_out_size = sum(strata), sizes.held_out
    if held_out_size >= total:
        raise UserError(
            f"task.held_out_size={held_out_size} leaves nothing to train on: with these settings there are "
            f"{total:,} tasks in all; hold out fewer, or make the task larger by task.params"
        )
    if sizes.train is not None and sizes.train > total - held_out_size:
        raise UserError(
            f"task.train_size={sizes.train} is more than there are: {total:,} tasks with these settings, "
            f"of which {held_out_size} are held out"
        )
    # A short stratum keeps half of itself for training, wherever the others can make up for it.
    halves = [size // 2 for size in strata]
    held_shares = _shares(halves if sum(halves) >= held_out_size else strata, held_out_size)
    left = [size - share for size, share in zip(strata, held_shares, strict=True)]
    train_shares = _shares(left, min(sum(left), sizes.train or MOST_TRAINING_TASKS))

    train: list[Place] = []
    held_out: list[Place] = []
    for stratum, size in enumerate(strata):
        held = _distinct(random.Random(f"held out {sizes.seed} {stratum}"), size, held_shares[stratum])
        held_out += [(stratum, index) for index in held]
        count = train_shares[stratum]
        drawn = _distinct(random.Random(f"train {sizes.seed} {stratum}"), size, min(size, count + len(held)))
        taken = set(held)
        train += [(stratum, index) for index in drawn if index not in taken][:count]
    random.Random(f"train {sizes.seed}").shuffle(train)
    random.Random(f"held out {sizes.seed}").shuffle(held_out)
    return train, held_out


def _shares(sizes: Sequence[int], total: int) -> list[int]:
    """Divide `total` as evenly as the sizes allow: larger strata make up for smaller ones."""
    shares = [0] * len(sizes)
    for done, stratum in enumerate(sorted(range(len(sizes)), key=lambda i: sizes[i])):
        shares[stratum] = min(sizes[stratum], total // (len(sizes) - done))
        total -= shares[stratum]
    return shares


def _distinct(rng: random.Random, size: int, count: int) -> list[int]:
    """`count` different numbers below `size`, in random order."""
    if size <= sys.maxsize:
        return rng.sample(range(size), count)
    drawn: dict[int, None] = {}  # random.sample cannot take a range this long; a repeat is next to impossible
    while len(drawn) < count:
        drawn[rng.randrange(size)] = None
    return list(drawn)


OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
# Long enough for any answer, short enough that neither the parser nor a product can be made to labour.
LONGEST = 200
_CHARACTERS = re.compile(r"[0-9+\-*() ]+")


def parse(text: str) -> tuple[int, list[int]] | None:
    """The value and the numbers of an expression in + - * and parentheses; None if it is not one."""
    text = text.strip()
    if len(text) > LONGEST or not _CHARACTERS.fullmatch(text):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
    numbers: list[int] = []
    value = _value(tree, numbers)
    return None if value is None else (value, numbers)


def _value(node: ast.expr, numbers: list[int]) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        if left is not None and right is not None:
            return OPERATORS[type(node.op)](left, right)
    return None


ErrorRate = Annotated[float, Field(ge=0, le=1)]


def answering(
    answer: Callable[[Task], str],
    *,
    alphabet: str,
    error_rate: float,
    right: Callable[[Task, str], bool] | None = None,
) -> Demonstrate:
    """Demonstrate `answer`; at `error_rate`, with one character replaced by another of the alphabet.

    `right` says whether a changed answer happens to be right all the same; without it, every change is wrong.
    """

    def demonstrate(task: Task, rng: random.Random) -> list[dict[str, Any]]:
        text = answer(task)
        if rng.random() < error_rate:
            wrong = _slip(text, alphabet, rng)
            while right is not None and right(task, wrong):
                wrong = _slip(text, alphabet, rng)
            text = wrong
        return [{"role": "assistant", "content": text}]

    return demonstrate


def _slip(text: str, alphabet: str, rng: random.Random) -> str:
    place = rng.randrange(len(text))
    other = rng.choice([character for character in alphabet if character != text[place]])
    return text[:place] + other + text[place + 1 :]
