"""The summary at the end of a run: held-out results before, after and best, and a few attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolwright.failures import ENDED, UserError
from toolwright.observe import rollouts
from toolwright.observe.attempt import calls, examples, ground_truth, question, segment_text
from toolwright.observe.metrics import Metrics, Row, series
from toolwright.observe.numbers import compact, duration, percent
from toolwright.trajectory import Trajectory, as_groups

SHOWN = 2  # attempts of a step
LINE = 96  # characters
STARTED = " run folder "  # what the first line of a start says


@dataclass(frozen=True)
class RunSummary:
    """The figures of the closing table; None if a run has no evaluation."""

    measure: str  # what the held-out figures are: accuracy or reward
    before: tuple[int, float] | None  # (step, value)
    after: tuple[int, float] | None
    best: tuple[int, float] | None
    steps: int
    seconds: float

    def value(self, value: float) -> str:
        return percent(value) if self.measure == "accuracy" else compact(value)

    @property
    def gain(self) -> str:
        """The change from before to after; in percentage points for an accuracy."""
        if self.before is None or self.after is None:
            return ""
        change = self.after[1] - self.before[1]
        if self.measure == "accuracy":
            return f"{100 * change:+.1f} points"
        return f"{'+' if change >= 0 else ''}{compact(change)}"

    @property
    def held_out(self) -> list[tuple[str, str, str]]:
        """Name, value and note of each held-out result that there is: before, after and best."""
        points = {"before": self.before, "after": self.after, "best": self.best}
        return [
            (name, self.value(point[1]), (self.gain if name == "after" else "") or f"step {point[0]}")
            for name, point in points.items()
            if point is not None
        ]

    @property
    def seconds_a_step(self) -> str:
        return f"{duration(self.seconds / self.steps)} a step" if self.steps else ""


def outcome(rows: Sequence[Row]) -> RunSummary:
    measure = "accuracy" if series(rows, "held_out/accuracy") else "reward"
    points = series(rows, f"held_out/{measure}")
    trained = {row["step"] for row in rows if row.get("step", 0) > 0}
    return RunSummary(
        measure=measure,
        before=points[0] if points and points[0][0] == 0 else None,
        after=points[-1] if points and points[-1][0] > 0 else None,
        best=max(points, key=lambda point: point[1]) if len(points) > 1 else None,
        steps=len(trained),
        seconds=sum(seconds for _, seconds in series(rows, "time/total_s")),
    )


def metric_warnings(
    nonfinite: Mapping[str, Sequence[int]], points: Callable[[str], Sequence[tuple[int, float]]]
) -> list[str]:
    """List what metrics say went wrong. `nonfinite`: the steps in which a metric was not finite. `points`:
    (step, value) of a metric."""
    lines = [f"{key} was not finite in {_steps(found)}" for key, found in nonfinite.items()]
    apart = [step for step, alarm in points("gap/alarm") if alarm]
    if apart:
        lines.append(f"engine and learner were far apart in {_steps(apart)}: see the engine–learner gap")
    earned = {value for name in ("reward/min", "reward/max") for _, value in points(name)}
    if len(earned) == 1 and not points("teacher/kl"):  # a teacher grades tokens, whatever they earn
        lines.append(f"all attempts earned {earned.pop():g}: there was nothing to learn from")
    return lines


def ending_error(log: Sequence[str]) -> str:
    """The error that ended the run, by the lines of its log; empty if none did, or if the run went on."""
    ends = [n for n, line in enumerate(log) if f" {ENDED}: " in line]
    if not ends:
        return ""
    text = log[ends[-1]].partition(f"{ENDED}: ")[2].strip()
    more = [line.strip() for line in log[ends[-1] + 1 :] if line.strip()]
    if any(STARTED in line for line in more):
        return ""
    return f"{text} … {more[-1]}" if more else text


def _steps(found: Sequence[int]) -> str:
    named = ", ".join(map(str, found[:8])) + (", …" if len(found) > 8 else "")
    return f"step {named}" if len(found) == 1 else f"{len(found)} steps: {named}"


def closing_table(run: Path) -> str:
    """The table at a run's end. Plain ASCII: it reads the same in a terminal, a log and a mail."""
    end = outcome(Metrics.read(run / "metrics.jsonl"))
    lines = [f"held-out {end.measure}"] if end.held_out else []
    lines += [_row(name, f"{value:>7}", note) for name, value, note in end.held_out]
    lines.append("training")
    lines.append(_row("steps", f"{end.steps:>7}"))
    if end.seconds:
        lines.append(_row("time", f"{duration(end.seconds):>7}", end.seconds_a_step))
    lines.append(_row("run", str(run)))
    if (run / "report.html").exists():
        lines.append(_row("report", str(run / "report.html")))
    return "\n".join(lines)


def _row(name: str, value: str, note: str = "") -> str:
    return f"  {name:<8}{value}  {note}".rstrip()


def sample_attempts(run: Path) -> str:
    """Plain text; empty if no rollouts were kept."""
    found = rollouts.files(run)
    steps = dict.fromkeys([next(iter(found)), next(reversed(found))]) if found else {}
    lines: list[str] = []
    for step in steps:
        lines.append(f"attempts of step {step}")
        try:
            attempts = rollouts.read(found[step])
        except UserError as error:  # the run has ended well, and the rest of its end is shown
            lines.append(f"  {error}")
            continue
        for attempt in examples(as_groups(attempts), most=SHOWN):
            lines += _lines(attempt)
    return "\n".join(lines)


def _lines(attempt: Trajectory) -> Iterator[str]:
    score = "failed" if attempt.reward is None else f"reward {compact(attempt.reward)}"
    if attempt.task.ground_truth is not None:
        score += f"; right is {ground_truth(attempt.task)[:LINE]}"
    yield f"  {question(attempt.task, LINE)}  ({score})"
    for segment in attempt.segments:
        if segment.source != "prompt":
            outcomes = "".join(f"  ({call.outcome})" for call in calls(segment))
            yield f"    {segment.source:<12}{_one_line(segment_text(segment))}{outcomes}"


def _one_line(text: str) -> str:
    line = text.replace("\n", "⏎")
    half = LINE // 2
    return line if len(line) <= LINE else f"{line[:half]} … {line[-half:]}"
