"""Write report.html: a run on one self-contained page, made from the run folder alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.observe import attempt, curves, rollouts, svg
from toolwright.observe.attempt import visible
from toolwright.observe.metrics import Metrics, Row, series, whole_rows
from toolwright.observe.numbers import compact, duration
from toolwright.observe.run_settings import main_settings, model_name, setting
from toolwright.observe.summary import RunSummary, metric_warnings, outcome
from toolwright.registry import added_to, load_object
from toolwright.trajectory import Trajectory, as_groups

ATTEMPTS = 4  # shown of each step
LONG_MESSAGE = 600  # characters of a prompt's message before it is folded
MOST_TEXT = 6000  # characters of one segment
NOT_METRICS = {"step", "nonfinite"}
FILES = {"command.txt": ("Command and machine", " open"), "config.yaml": ("Whole configuration", "")}


def write_report(run: Path) -> Path:
    """Write `report.html` into the run folder, atomically."""
    run = Path(run)
    if not run.is_dir():
        raise UserError(f"no run folder at {run}")
    page = visible(_page(run))  # also what comes from plugins, metrics and names
    path = run / "report.html"
    unfinished = run / "report.html.partial"
    unfinished.write_text(page, encoding="utf-8")
    os.replace(unfinished, path)
    return path


def _page(run: Path) -> str:
    from jinja2 import Environment
    from markupsafe import Markup

    def finalize(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(str(value)))

    room = resources.files("toolwright.observe")
    environment = Environment(autoescape=True, finalize=finalize, keep_trailing_newline=True)
    environment.filters["cut"] = lambda text: attempt.cut(visible(text), MOST_TEXT)
    rows, config = Metrics.read(run / "metrics.jsonl"), _config(run)
    words = (setting(config, "algorithm.name"), setting(config, "task.name"), model_name(config))
    incidents = whole_rows(_text(run / "incidents.jsonl"))
    sections = added_to("toolwright.observe.report").items()  # each is named after a folder of the run
    return environment.from_string(room.joinpath("report.html").read_text(encoding="utf-8")).render(
        name=run.resolve().name,
        style=Markup(room.joinpath("report.css").read_text(encoding="utf-8")),
        subtitle=" · ".join(str(word) for word in words if word),
        tiles=_tiles(outcome(rows)),
        warnings=_warnings(rows),
        deaths=sum(bool(row.get("died")) for row in incidents),
        again=sum(int(row.get("resampled", 0)) for row in incidents),
        incidents=[[row.get(key, "") for key in ("step", "who", "what", "done")] for row in incidents],
        added=[Markup(load_object(place)(run)) for folder, place in sections if (run / folder).is_dir()],
        curves=[(chart, legend, Markup(picture)) for chart, legend, picture in curves.figures(rows)],
        smoothed=sum(row.get("step", 0) > 0 for row in rows) >= svg.SMOOTH_FROM,
        searched=any("/candidates" in key for row in rows for key in row),  # a search draws its own
        steps=_steps(run),
        long_message=LONG_MESSAGE,
        settings=main_settings(config),
        files={name: (*about, _text(run / name)) for name, about in FILES.items() if (run / name).exists()},
        other=[[*cells, Markup(spark)] for *cells, spark in _other(rows)],
    )


def _tiles(end: RunSummary) -> list[tuple[str, str, str]]:
    held_out = end.held_out
    if held_out:  # the first says what all of them are
        held_out[0] = (f"held-out {end.measure} {held_out[0][0]}", *held_out[0][1:])
    time = [("time", duration(end.seconds), end.seconds_a_step)] if end.seconds else []
    return [*held_out, ("steps", str(end.steps), ""), *time]


def _warnings(rows: Sequence[Row]) -> list[str]:
    steps: dict[str, list[int]] = {}
    for row in rows:
        for key in row.get("nonfinite", ()):
            steps.setdefault(str(key), []).append(row["step"])
    return metric_warnings(steps, partial(series, rows))


def _steps(run: Path) -> list[tuple[int, int, list[dict[str, Any]], str]]:
    """A few attempts of the first step and of the last; or why a step's cannot be read."""
    files = rollouts.files(run)
    found: list[tuple[int, int, list[dict[str, Any]], str]] = []
    for step in dict.fromkeys([min(files), max(files)] if files else []):
        try:
            every = rollouts.read(files[step])
        except UserError as error:  # the rest of the page stands
            found.append((step, 0, [], str(error)))
            continue
        rewards = [t.reward for t in attempt.scored(every) if t.reward is not None]
        chosen = attempt.examples(as_groups(every), most=ATTEMPTS)
        found.append((step, len(every), [_attempt(t, rewards) for t in chosen], ""))
    return found


def _attempt(t: Trajectory, rewards: Sequence[float]) -> dict[str, Any]:
    parts = [attempt.reward_parts(t)] if t.reward_parts else []
    return {
        "reward": "no reward" if t.reward is None else f"reward {compact(t.reward)}",
        "tone": attempt.tone(t.reward, rewards),
        "facts": [f"attempt {t.index} of {t.group}", *attempt.facts(t), *parts],
        "messages": attempt.messages(t),
        "segments": [
            (s.segment.source, attempt.segment_text(s.segment), s.note, attempt.calls(s.segment))
            for s in attempt.segments(t)
        ],
        "failure": f"{t.failure.kind} failure: {t.failure.message}" if t.failure else "",
        "truth": None if t.task.ground_truth is None else attempt.ground_truth(t.task),
    }


def _config(run: Path) -> Mapping[str, Any]:
    """The configuration, empty if it cannot be read; its text is shown all the same."""
    from toolwright.config.yaml_file import read_yaml  # here: it loads the whole schema

    try:
        return read_yaml(run / "config.yaml")
    except UserError:
        return {}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _other(rows: Sequence[Row]) -> list[list[str]]:
    """The metrics that have no chart: first, last, least, most, and a curve the size of a word."""
    found = []
    for key in sorted({key for row in rows for key in row} - curves.drawn_keys(rows) - NOT_METRICS):
        if points := series(rows, key):
            values = [value for _, value in points]
            cells = [compact(value) for value in (values[0], values[-1], min(values), max(values))]
        else:
            texts = [str(row[key]) for row in rows if row.get(key) is not None] or ["-"]
            cells = [texts[0], texts[-1], "", ""]
        found.append([key, *cells, svg.sparkline(points) if points else ""])
    return found
