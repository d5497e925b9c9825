"""The best workflow of a run, written in the form that is asked for."""

from __future__ import annotations

from pathlib import Path

import yaml

from toolwright.failures import UserError
from toolwright.workflow.aflow.folder import named
from toolwright.workflow.aflow.write import write_files
from toolwright.workflow.config import ExecutorConfig
from toolwright.workflow.export.program import as_langgraph, as_python
from toolwright.workflow.record import found_in

WRITERS = {"python": as_python, "langgraph": as_langgraph}


def export_best(run: Path, form: str, *, data: str | None = None, out: Path | None = None) -> Path:
    """Write the best workflow as `python`, `langgraph` or `aflow`. Returns the file, or AFlow's folder."""
    found = found_in(run, data)
    if len(found) > 1:
        raise UserError(f"{run} has searched {', '.join(found)}: name one with --data")
    ((name, record),) = found.items()
    place = out or run / "export" / (name if form == "aflow" else f"{name}_{form}.py")
    try:
        if form == "aflow":
            return write_files(place, record.winner.workflow, data_set=named(name))
        executor = _executor(run)
        text = WRITERS[form](
            record.winner.workflow,
            model=str(executor.chat.get("model", "gpt-4o-mini")),
            temperature=executor.temperature,
            max_tokens=executor.max_tokens,
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return place
    except OSError as error:
        raise UserError(f"{place} cannot be written: {error.strerror}; name another with --out") from None


def _executor(run: Path) -> ExecutorConfig:
    """The model and the sampling that the search has used."""
    file = run / "config.yaml"
    told = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return ExecutorConfig.model_validate(told.get("executor") or {})
