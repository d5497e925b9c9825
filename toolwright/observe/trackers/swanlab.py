"""SwanLab; `mode: offline` keeps the run in its folder until `swanlab sync` sends it."""

from __future__ import annotations

from typing import Any, Literal

from toolwright.observe.trackers import TRACKERS, TrackedEnd, TrackedRun, TrackedStep, Tracker


@TRACKERS.register("swanlab", needs=("swanlab",))
class SwanLab(Tracker):
    def __init__(
        self,
        *,
        project: str = "toolwright",
        workspace: str | None = None,
        group: str | None = None,
        tags: list[str] | None = None,
        mode: Literal["online", "local", "offline"] | None = None,
    ) -> None:
        self.settings: dict[str, Any] = {"project": project, "workspace": workspace, "group": group}
        self.settings |= {"tags": tags, "mode": mode}

    def begin(self, run: TrackedRun) -> None:
        import swanlab

        self.swanlab, self.number = swanlab, run.step
        self.run = swanlab.init(
            **self.settings,
            id=run.id,
            resume="allow",
            name=run.name,
            description=run.notes,
            job_type=run.command,
            config=run.config,
            log_dir=str(run.files),
        )

    def step(self, step: TrackedStep) -> None:
        logged: dict[str, Any] = dict(step.metrics)
        if step.attempts:
            logged["attempts"] = [self._text(*row) for row in step.rows]
        self.swanlab.log(logged, step=step.number)
        self.number = step.number

    def finish(self, end: TrackedEnd) -> None:
        last: dict[str, Any] = {"summary": self.swanlab.Text(end.text)}
        if end.report is not None:
            last["report"] = self.swanlab.Html(end.report.read_text(encoding="utf-8"))
        self.swanlab.log(last, step=self.number)
        self.swanlab.finish(state="crashed" if end.status == "failed" else "success")

    def _text(
        self, step: int, task: str, question: str, answer: str, reward: float | None, calls: str, *_: object
    ) -> Any:
        text = "\n\n".join(filter(None, (question, answer, calls)))
        return self.swanlab.Text(text, caption=f"{task}, reward {reward}")
