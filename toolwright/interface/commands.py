"""`evaluate` and `sft`: whole commands as functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolwright.interface.event_loop import outside_event_loop
from toolwright.interface.request import UserRequest
from toolwright.interface.short_traceback import ShortTraceback


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

    own: dict[str, Any] = {
        "model": model,
        "reward": reward,
        "tools": tools,
        "task": task,
        "environment": environment,
    }
    with ShortTraceback(), outside_event_loop(), UserRequest("eval", words, **own) as request:
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

    own: dict[str, Any] = {"model": model, "tools": tools, "task": task, "environment": environment}
    with ShortTraceback(), outside_event_loop(), UserRequest("sft", words, **own) as request:
        return train(request.config(), command=["toolwright.sft", *request.words]) / "model"
