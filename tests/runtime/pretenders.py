"""Ranks that learn nothing: quick to start, since they need no torch, and they fail as real ones do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.runtime.host import Rank


class Pretender:
    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def who(self) -> list[Any]:
        return [self.rank.index, self.rank.count, self.rank.master, os.getpid()]

    def double(self, number: int) -> tuple[int, int]:
        return 2 * number, 3 * number

    def update(self) -> None:
        """The second dies in the middle; the first hears of it from its connection."""
        if self.rank.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)
        raise RuntimeError("Connection closed by peer")

    def hang(self) -> None:
        time.sleep(600)

    def refuse(self) -> None:
        raise UserError("there is no room on the disk")

    def ask_critic(self) -> None:
        raise InfrastructureFailure("critic was lost while it was asked for values")

    def stumble(self) -> None:
        raise ValueError("a bug")


def build(
    roles: dict[str, Any],
    names: Sequence[str],
    role_config: Any,
    remote_role: Callable[[str], Any],
    rank: Rank,
) -> None:
    roles.update({name: Pretender(rank) for name in names})
