"""trackio: a database of this machine, shown by `trackio show`, or a Space of the Hugging Face hub."""

from __future__ import annotations

from typing import Any

from toolwright.observe.trackers import TRACKERS, TrackedEnd, TrackedRun, TrackedStep, Tracker


@TRACKERS.register("trackio", needs=("trackio",))
class Trackio(Tracker):
    def __init__(
        self, *, project: str = "toolwright", group: str | None = None, space_id: str | None = None
    ) -> None:
        self.project, self.group, self.space_id = project, group, space_id

    def begin(self, run: TrackedRun) -> None:
        import trackio

        self.trackio, self.number = trackio, run.step
        self.run = trackio.init(
            self.project,
            name=run.name,
            group=self.group,
            space_id=self.space_id,
            config={**run.config, "notes": run.notes},
            resume="allow" if run.resumed else "never",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def step(self, step: TrackedStep) -> None:
        logged: dict[str, Any] = dict(step.metrics)
        if step.attempts:
            logged["attempts"] = self.trackio.Table(columns=self.columns, data=step.rows)
        self.run.log(logged, step=step.number)
        self.number = step.number

    def finish(self, end: TrackedEnd) -> None:
        text = "\n".join(f"    {line}" for line in end.text.splitlines())
        self.run.log({"summary": self.trackio.Markdown(text)}, step=self.number)
        if end.report is not None:
            self.run.log_artifact(end.report, name=f"report-{self.run.name}", type="report")
        self.trackio.finish()
