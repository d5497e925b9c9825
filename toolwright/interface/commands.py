"""`evaluate` and `sft`: whole commands as functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolwright.interface.event_loop import outside_event_loop
from toolwright.interface.request import UserRequest


def evaluate(
    *words: str,
    model: str | Path | None = None,
    reward: Any = None,
    tools: Sequence[Any] = (),
    task: Any = None,
    environment: Any = None,
) -> dict[str, float]:
    """Score a model on held-out tasks, as `toolwright eval` does.

    evaluate("task=sums", model="out")["held_out/accuracy"]
    """
    from toolwright.trainer.evaluation import evaluate as run

    request = UserRequest(
        "eval", words, model=model, reward=reward, tools=tools, task=task, environment=environment
    )
    with outside_event_loop(), request:
        found = run(request.config(), command=["toolwright.evaluate", *request.words])
    return found.metrics(whole=True)


def sft(
    *words: str,
    model: str | Path | None = None,
    tools: Sequence[Any] = (),
    task: Any = None,
    environment: Any = None,
) -> Path:
    """Warm-start a model on demonstrations, as `toolwright sft` does. Returns the folder of the model.

    warm = sft("task=sums", "steps=200")
    trainer = Trainer("task=sums", model=warm)
    """
    from toolwright.trainer.supervised import train

    request = UserRequest("sft", words, model=model, tools=tools, task=task, environment=environment)
    with outside_event_loop(), request:
        return train(request.config(), command=["toolwright.sft", *request.words]) / "model"
