"""MLflow: a server, or a folder or database of this machine, as `uri` or MLFLOW_TRACKING_URI say."""

from __future__ import annotations

import json
from typing import Any

from toolwright.config.keys import flatten
from toolwright.observe.trackers import TRACKERS, TrackedEnd, TrackedRun, TrackedStep, Tracker

OURS = "toolwright.run"  # the tag that finds a run again
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
LONGEST = 6000  # characters of a parameter
TOGETHER = 100  # parameters in one request


@TRACKERS.register("mlflow", needs=("mlflow",))
class MLflow(Tracker):
    def __init__(
        self, *, uri: str | None = None, experiment: str = "toolwright", tags: dict[str, str] | None = None
    ) -> None:
        self.uri, self.experiment, self.tags = uri, experiment, tags or {}

    def begin(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(self.uri)
        found = self.client.get_experiment_by_name(self.experiment)
        home = found.experiment_id if found else self.client.create_experiment(self.experiment)
        known = self.client.search_runs([home], f"tags.`{OURS}` = '{run.id}'") if run.resumed else []
        if known:
            self.id = known[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return
        tags = {**self.tags, OURS: run.id, "command": run.command, "mlflow.note.content": run.notes}
        self.id = self.client.create_run(home, run_name=run.name, tags=tags).info.run_id
        self._parameters(run.config)
        self.client.log_dict(self.id, run.config, "config.json")

    def step(self, step: TrackedStep) -> None:
        from mlflow.entities import Metric

        time_ms = int(step.time * 1000)
        metrics = [Metric(name, value, time_ms, step.number) for name, value in step.metrics.items()]
        self.client.log_batch(self.id, metrics=metrics)
        if step.attempts:
            file = f"attempts/step_{step.number:06d}.json"
            self.client.log_dict(self.id, {"columns": self.columns, "data": step.rows}, file)
            table = json.dumps([{"path": file, "type": "table"}])  # the page shows it as one
            self.client.set_tag(self.id, "mlflow.loggedArtifacts", table)

    def finish(self, end: TrackedEnd) -> None:
        if end.report is not None:
            self.client.log_artifact(self.id, str(end.report))
        for name, value in end.summary.items():
            self.client.set_tag(self.id, f"summary.{name}", value)
        self.client.set_terminated(self.id, STATUS[end.status])

    def _parameters(self, config: dict[str, Any]) -> None:
        from mlflow.entities import Param

        every = [Param(key, str(value)[:LONGEST]) for key, value in flatten(config)]
        for start in range(0, len(every), TOGETHER):
            self.client.log_batch(self.id, params=every[start : start + TOGETHER])
