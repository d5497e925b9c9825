"""Weights & Biases; `mode: offline` keeps the run in its folder until `wandb sync` sends it."""

from __future__ import annotations

from typing import Any, Literal

from toolwright.observe.trackers import TRACKERS, TrackedEnd, TrackedRun, TrackedStep, Tracker


@TRACKERS.register("wandb", needs=("wandb",))
class WeightsAndBiases(Tracker):
    def __init__(
        self,
        *,
        project: str = "toolwright",
        entity: str | None = None,
        group: str | None = None,
        tags: list[str] | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        self.settings: dict[str, Any] = {"project": project, "entity": entity, "group": group}
        self.settings |= {"tags": tags, "mode": mode}

    def begin(self, run: TrackedRun) -> None:
        import wandb

        self.wandb, self.number = wandb, run.step
        self.run = wandb.init(
            **self.settings,
            id=run.id,
            name=run.name,
            notes=run.notes,
            config=run.config,
            job_type=run.command,
            dir=str(run.files),
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
        # By our own number and not by wandb's, which cannot go back to the step of a checkpoint.
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")

    def step(self, step: TrackedStep) -> None:
        logged: dict[str, Any] = {**step.metrics, "step": step.number}
        if step.attempts:
            table = self.wandb.Table(columns=self.columns, data=step.rows, allow_mixed_types=True)
            logged["attempts"] = table
        self.run.log(logged)
        self.number = step.number

    def finish(self, end: TrackedEnd) -> None:
        if end.report is not None:
            self.run.log({"report": self.wandb.Html(str(end.report)), "step": self.number})
        self.run.summary.update(end.summary)
        self.run.finish(exit_code=1 if end.status == "failed" else 0)
