"""Any Gymnasium environment: an action by name or number, an observation in words or as an image."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolwright.failures import UserError, extra
from toolwright.images import encoded, is_picture
from toolwright.tasks.environment import ENVIRONMENTS, InvalidAction, Observation, Outcome
from toolwright.tasks.worlds import register_worlds
from toolwright.trajectory import Task

# Toy text marks where one is by a colour; without colours, by brackets.
MARKED = re.compile(r"\x1b\[[0-9;]*m(.)\x1b\[0m")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@ENVIRONMENTS.register("gymnasium")
@dataclass
class Gymnasium:
    """`id` is Gymnasium's (`package:id` imports the package first), `kwargs` go to `gymnasium.make`. An
    observation is drawn where `render` says so, shown where it is an image, else written by `template`;
    `actions` names a discrete space's actions in order.

    An episode is a success where the environment says so (`is_success`, `won`), or its last reward is above
    0.
    """

    id: str = "FrozenLake-v1"
    kwargs: dict[str, Any] | None = None
    actions: Sequence[str] = ()
    template: str = "{observation}"
    render: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        with extra("gymnasium", needed_by="environment 'gymnasium'"):
            import gymnasium
        mode: dict[str, Any] = {"render_mode": "ansi"} if self.render else {}
        self.env: Any = gymnasium.make(self.id, **mode, **(self.kwargs or {}))
        self.names = [name.lower() for name in self.actions]
        if self.names and (size := getattr(self.env.action_space, "n", None)) != len(self.names):
            raise UserError(f"{self.id}: {len(self.names)} names for {size or 'no'} numbered actions")

    def reset(self, task: Task) -> Observation:
        return Observation(**self._seen(self.env.reset(seed=self.seed)[0]))

    def step(self, action: str) -> Outcome:
        observation, reward, terminated, truncated, info = self.env.step(self._action(action.strip()))
        success = bool(terminated and info.get("is_success", info.get("won", reward > 0)))
        done, told = bool(terminated or truncated), {"success": success}
        return Outcome(reward=float(reward), done=done, info=told, **self._seen(observation))

    def close(self) -> None:
        self.env.close()

    def _action(self, text: str) -> Any:
        """A name, a number, or JSON for spaces that are neither."""
        space = self.env.action_space
        if text.lower() in self.names:
            return self.names.index(text.lower()) + int(getattr(space, "start", 0))
        with contextlib.suppress(ValueError, TypeError, OverflowError, RecursionError):
            value = json.loads(text)
            (action,) = space.from_jsonable([value])
            if not isinstance(value, bool | float) and space.contains(action):
                return action
        ways = ", ".join(self.names) or f"one of {space}"
        raise InvalidAction(f"{text[:40]!r} is not an action here: say {ways}")

    def _seen(self, observation: Any) -> dict[str, Any]:
        """The text, and what names the state: its numbers as JSON has them, or the image itself."""
        picture = is_picture(observation)
        plain = "" if picture else json.loads(json.dumps(observation, default=lambda own: own.tolist()))
        drawn = ESCAPE.sub("", MARKED.sub(r"[\1]", str(self.env.render()))) if self.render else None
        text = self.template.format(observation=plain) if drawn is None else drawn.strip("\n")
        if picture:
            return {"text": text.strip(), "images": [encoded(observation)]}
        return {"text": text, "anchor": json.dumps(plain, sort_keys=True)}


register_worlds("gymnasium", Gymnasium)
