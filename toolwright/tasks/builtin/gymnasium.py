"""Any Gymnasium environment: an action by name or number, an observation in words or as an image."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from toolwright.failures import UserError, extra
from toolwright.images import encoded
from toolwright.tasks.environment import ENVIRONMENTS, InvalidAction, Observation, Outcome
from toolwright.tasks.worlds import register_worlds
from toolwright.trajectory import Task

# Toy text marks where one is by a colour; without colours, by brackets.
MARKED = re.compile(r"\x1b\[[0-9;]*m(.)\x1b\[0m")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@ENVIRONMENTS.register("gymnasium")
class Gymnasium:
    """`id` is Gymnasium's (`package:id` imports the package first), `kwargs` go to `gymnasium.make`. An
    observation is drawn where `render` says so, shown where it is an image, else written by `template`;
    `actions` names a discrete space's actions in order.

    An episode is a success from a sum of rewards of `success_reward`; None: where the environment says so
    (`is_success`, `won`), or its last reward is above 0.
    """

    def __init__(
        self,
        id: str = "FrozenLake-v1",
        kwargs: dict[str, Any] | None = None,
        actions: Sequence[str] = (),
        template: str = "{observation}",
        render: bool = False,
        seed: int = 0,
        success_reward: float | None = None,
    ) -> None:
        with extra("gymnasium", needed_by="environment 'gymnasium'"):
            import gymnasium
        mode: dict[str, Any] = {"render_mode": "ansi"} if render else {}
        self.env: Any = gymnasium.make(id, **mode, **(kwargs or {}))
        self.names = [name.lower() for name in actions]
        self.template, self.render, self.seed, self.success_reward = template, render, seed, success_reward
        self.total = 0.0
        size = getattr(self.env.action_space, "n", None)
        if self.names and size != len(self.names):
            raise UserError(f"gymnasium {id}: {len(self.names)} names for {size or 'no'} numbered actions")

    def reset(self, task: Task) -> Observation:
        observation, _ = self.env.reset(seed=self.seed)
        self.total = 0.0
        return Observation(self._shown(observation), anchor_of(observation), images=pictures_of(observation))

    def step(self, action: str) -> Outcome:
        observation, reward, terminated, truncated, info = self.env.step(self._action(action.strip()))
        self.total += float(reward)
        success = self.total >= self.success_reward if self.success_reward is not None else reward > 0
        success = bool(info.get("is_success", info.get("won", success))) and bool(terminated)
        return Outcome(
            self._shown(observation),
            float(reward),
            bool(terminated or truncated),
            anchor_of(observation),
            {"success": success},
            images=pictures_of(observation),
        )

    def close(self) -> None:
        self.env.close()

    def _action(self, text: str) -> Any:
        """A name, a number, or JSON for spaces that are neither."""
        import numpy as np

        space = self.env.action_space
        if text.lower() in self.names:
            return self.names.index(text.lower()) + int(getattr(space, "start", 0))
        try:
            value = json.loads(text)
            if isinstance(value, list):
                value = np.asarray(value, dtype=space.dtype)
            known = not isinstance(value, bool | float) and space.contains(value)
        except (ValueError, TypeError, OverflowError, RecursionError):
            known = False
        if not known:
            ways = ", ".join(self.names) if self.names else f"one of {space}"
            raise InvalidAction(f"{text[:40]!r} is no action here: say {ways}")
        return value

    def _shown(self, observation: Any) -> str:
        if self.render:
            drawn = MARKED.sub(r"[\1]", str(self.env.render()))
            return ESCAPE.sub("", drawn).strip("\n")
        if is_picture(observation):
            return self.template.format(observation="").strip()
        return self.template.format(observation=_plain(observation))


def is_picture(observation: Any) -> bool:
    """Bytes of [rows, columns, 3]; games keep boards in other shapes."""
    shape: tuple[int, ...] = getattr(observation, "shape", ())
    return len(shape) == 3 and shape[2] == 3 and str(observation.dtype) == "uint8"


def pictures_of(observation: Any) -> list[bytes]:
    return [encoded(observation)] if is_picture(observation) else []


def anchor_of(observation: Any) -> str | None:
    """The state by its numbers. None for an image, which names itself."""
    return None if is_picture(observation) else json.dumps(_plain(observation), sort_keys=True)


def _plain(observation: Any) -> Any:
    """Numpy's arrays and numbers as JSON has them."""
    if isinstance(observation, dict):
        return {str(key): _plain(value) for key, value in observation.items()}
    if isinstance(observation, tuple | list):
        return [_plain(value) for value in observation]
    return observation.tolist() if hasattr(observation, "tolist") else observation


register_worlds("gymnasium", Gymnasium)
