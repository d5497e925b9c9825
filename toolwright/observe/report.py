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


def write_report(run: Path) -> Path:
    """Write `report.html` into the run folder, atomically."""
    run = Path(run)
    if not run.is_dir():
        raise UserError(f"no run folder at {run}")
    page = visible(_page(run))  # also what comes from plugins, metrics and names
    path = run / "report.html"
    partial = run / "report.html.partial"
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, path)
    return path


def _page(run: Path) -> str:
    rows = Metrics.read(run / "metrics.jsonl")
    config = _config(run)
    name = visible(run.resolve().name)
    style = resources.files("toolwright.observe").joinpath("report.css").read_text(encoding="utf-8")
    # No script may run and nothing may be fetched, whatever an agent has written.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    body = [
        f"<h1>{escape(name)}</h1>",
        _subtitle(config),
        _tiles(outcome(rows)),
        _warnings(rows),
        _incidents(run),
        _added(run),
        _curves(rows),
        _attempts(run),
        _settings(run, config),
        _other(rows),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)} – Toolwright</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _subtitle(config: Mapping[str, Any]) -> str:
    words = [setting(config, "algorithm.name"), setting(config, "task.name"), model_name(config)]
    line = " · ".join(visible(str(word)) for word in words if word)
    return f'<p class="soft">{escape(line)}</p>' if line else ""


def _tiles(end: RunSummary) -> str:
    tiles = []
    if end.before is not None:
        step, value = end.before
        tiles.append((f"held-out {end.measure} before", end.value(value), f"step {step}"))
    if end.after is not None:
        tiles.append(("after", end.value(end.after[1]), end.gain))
    if end.best is not None:
        tiles.append(("best", end.value(end.best[1]), f"step {end.best[0]}"))
    tiles.append(("steps", str(end.steps), ""))
    if end.seconds:
        tiles.append(("time", duration(end.seconds), end.seconds_a_step))
    cells = "".join(
        f"<div><dt>{escape(label)}</dt><dd><b>{escape(value)}</b><small>{escape(note)}</small></dd></div>"
        for label, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _warnings(rows: Sequence[Row]) -> str:
    steps: dict[str, list[int]] = {}
    for row in rows:
        for key in row.get("nonfinite", ()):
            steps.setdefault(str(key), []).append(row["step"])
    lines = metric_warnings(steps, partial(series, rows))
    return "".join(f'<p class="warn">{escape(visible(line))}</p>' for line in lines)


def _incidents(run: Path) -> str:
    """Processes that died, and the work that was repeated."""
    path = run / "incidents.jsonl"
    if not path.exists():
        return ""
    found = whole_rows(path.read_text(encoding="utf-8", errors="replace"))
    deaths = sum(bool(row.get("died")) for row in found)
    again = sum(int(row.get("resampled", 0)) for row in found)
    lines = "".join(
        f"<tr><td>{escape(str(row.get('step', '')))}</td>"
        + "".join(f"<td>{escape(visible(str(row.get(key, ''))))}</td>" for key in ("who", "what", "done"))
        + "</tr>"
        for row in found
    )
    head = "".join(f"<th>{name}</th>" for name in ("step", "who", "what", "what was done"))
    title = f"Survived <small>{deaths} deaths, {again} attempts sampled again</small>"
    return f'<h2>{title}</h2><div class="box scroll"><table><tr>{head}</tr>{lines}</table></div>'


def _added(run: Path) -> str:
    """Sections of plugins, each named after the folder in the run folder that it is about."""
    sections = added_to("toolwright.observe.report").items()
    return "".join(load_object(reference)(run) for folder, reference in sections if (run / folder).is_dir())


def _curves(rows: Sequence[Row]) -> str:
    figures = curves.figures(rows)
    if not figures and any("/candidates" in key for row in rows for key in row):
        return ""  # a search draws its own
    if not figures:
        return '<h2>Curves</h2><p class="soft">There are no metrics yet.</p>'
    long = sum(row.get("step", 0) > 0 for row in rows) >= svg.SMOOTH_FROM
    note = (
        " <small>by step; faint each step, strong a moving mean</small>"
        if long
        else " <small>by step</small>"
    )
    return f'<h2>Curves{note}</h2><div class="curves">{"".join(figures)}</div>'


def _attempts(run: Path) -> str:
    """A few attempts of the first step beside a few of the last."""
    files = rollouts.files(run)
    if not files:
        return ""
    steps = list(dict.fromkeys([min(files), max(files)]))
    columns = "".join(_step(step, files[step]) for step in steps)
    sources = "".join(
        f'<li><i class="key {source}"></i>{source}</li>'
        for source in ("prompt", "policy", "tool", "environment")
    )
    return f'<h2>Attempts</h2><ul class="sources">{sources}</ul><div class="columns">{columns}</div>'


def _step(step: int, path: Path) -> str:
    try:
        found = rollouts.read(path)
    except UserError as error:  # the rest of the page stands
        return f'<section><h3>Step {step}</h3><p class="warn">{escape(visible(str(error)))}</p></section>'
    rewards = [t.reward for t in attempt.scored(found) if t.reward is not None]
    chosen = attempt.examples(as_groups(found), most=ATTEMPTS)
    cards = "".join(_attempt(t, rewards) for t in chosen)
    return f"<section><h3>Step {step} · {len(chosen)} of {len(found)} attempts</h3>{cards}</section>"


def _attempt(t: Trajectory, rewards: Sequence[float]) -> str:
    head = [f"attempt {t.index} of {visible(t.group)}", *attempt.facts(t)]
    if t.reward_parts:
        head.append(attempt.reward_parts(t))
    facts = "".join(f"<span>{escape(fact)}</span>" for fact in head)
    prompt = "".join(_message(role, text) for role, text in attempt.messages(t))
    segments = "".join(_segment(one) for one in attempt.segments(t))
    failure = ""
    if t.failure is not None:
        message = escape(visible(f"{t.failure.kind} failure: {t.failure.message}"))
        failure = f'<div class="failure"><pre>{message}</pre></div>'
    truth = ""
    if t.task.ground_truth is not None:
        shown = escape(attempt.cut(attempt.ground_truth(t.task), MOST_TEXT))
        truth = f"<footer>ground truth <code>{shown}</code></footer>"
    return (
        f'<article class="attempt"><header>{_reward(t, rewards)}{facts}</header>'
        f"{prompt}{segments}{failure}{truth}</article>"
    )


def _reward(t: Trajectory, rewards: Sequence[float]) -> str:
    shown = "no reward" if t.reward is None else f"reward {compact(t.reward)}"
    return f'<span class="reward {attempt.tone(t.reward, rewards)}">{shown}</span>'


def _message(role: str, text: str) -> str:
    """Fold a long message. It is mostly the schemas of tools, the same for every attempt."""
    if len(text) <= LONG_MESSAGE:
        return _block("prompt", role, text)
    start = " ".join(visible(text[:120]).split())
    return (
        f'<div class="segment prompt"><span class="who">{escape(visible(role))}</span><details>'
        f"<summary>{escape(start)}… <small>{len(text):,} characters</small></summary>"
        f"<pre>\n{escape(attempt.cut(visible(text), MOST_TEXT))}</pre></details></div>"
    )


def _segment(one: attempt.ShownSegment) -> str:
    note = f", {one.note}" if one.note else ""
    called = "".join(_call(call) for call in attempt.calls(one.segment))
    head = f'<ul class="calls">{called}</ul>' if called else ""
    return _block(one.segment.source, one.segment.source, attempt.segment_text(one.segment), note, head)


def _call(call: attempt.ShownCall) -> str:
    trouble = f' <b class="trouble">{escape(call.trouble)}</b>' if call.trouble else ""
    return f"<li><code>{escape(call.call)}</code> <small>{escape(call.took)}</small>{trouble}</li>"


def _block(source: str, who: str, text: str, note: str = "", head: str = "") -> str:
    shown = escape(attempt.cut(visible(text), MOST_TEXT))
    aside = f"<small>{escape(note)}</small>" if note else ""
    # Browsers drop a newline right after <pre>, so one is added.
    return (
        f'<div class="segment {escape(source)}"><span class="who">{escape(visible(who))}{aside}</span>'
        f"{head}<pre>\n{shown}</pre></div>"
    )


def _settings(run: Path, config: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(visible(value))}</dd></div>"
        for label, value in main_settings(config)
    )
    parts = [f'<div class="box"><dl class="settings">{rows}</dl></div>'] if rows else []
    for name, title in (("command.txt", "Command and machine"), ("config.yaml", "Whole configuration")):
        path = run / name
        if path.exists():
            text = escape(visible(path.read_text(encoding="utf-8", errors="replace")))
            opened = " open" if name == "command.txt" else ""
            parts.append(
                f'<details class="box"{opened}><summary>{title} <small>{name}</small></summary>'
                f"<pre>\n{text}</pre></details>"
            )
    return f"<h2>Configuration</h2>{''.join(parts)}" if parts else ""


def _config(run: Path) -> Mapping[str, Any]:
    """The configuration, empty if it cannot be read; its text is shown all the same."""
    from toolwright.config.yaml_file import read_yaml  # here: it loads the whole schema

    try:
        return read_yaml(run / "config.yaml")
    except UserError:
        return {}


def _other(rows: Sequence[Row]) -> str:
    """A table of the metrics that have no chart."""
    drawn = curves.drawn_keys(rows) | NOT_METRICS
    keys = sorted({key for row in rows for key in row} - drawn)
    lines = "".join(_other_row(key, rows) for key in keys)
    if not lines:
        return ""
    head = "".join(f"<th>{name}</th>" for name in ("", "first", "last", "least", "most", ""))
    return f'<h2>Other metrics</h2><div class="box scroll"><table><tr>{head}</tr>{lines}</table></div>'


def _other_row(key: str, rows: Sequence[Row]) -> str:
    points = series(rows, key)
    if points:
        values = [value for _, value in points]
        cells = [compact(value) for value in (values[0], values[-1], min(values), max(values))]
    else:
        texts = [visible(str(row[key])) for row in rows if row.get(key) is not None]
        cells = [texts[0], texts[-1], "", ""] if texts else ["-", "-", "", ""]
    spark = svg.sparkline(points) if points else ""
    columns = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f"<tr><td>{escape(visible(key))}</td>{columns}<td>{spark}</td></tr>"
