"""The shortest way through a small world, breadth first: how levels are known to be solvable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

S = TypeVar("S", bound=Hashable)


def shortest(
    start: S, moves: Callable[[S], Iterable[tuple[str, S]]], won: Callable[[S], bool], *, most: int = 200_000
) -> list[str] | None:
    """The actions that lead to a state that is won; None where none does within `most` states."""
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
