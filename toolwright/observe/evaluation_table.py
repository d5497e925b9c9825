"""Evaluations as tables for a terminal: measures with intervals, by source, and two side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolwright.observe.attempt import visible
from toolwright.observe.console import plain_table
from toolwright.observe.estimates import Estimate, PairedDifference
from toolwright.observe.evaluation import ACCURACY, REWARD, EvaluationResult
from toolwright.observe.numbers import compact, percent

if TYPE_CHECKING:
    from rich.console import Console

ALL = "all"  # the row of all sources together


def show_evaluation(console: Console, found: EvaluationResult) -> None:
    """Each measure with its interval, the main ones by source, and what was counted."""
    table = plain_table("measure", "value>", "95 %>")
    for name in found.names:
        own = found.estimate(name)
        table.add_row(_title(name, found.samples), _value(name, own.value), _bounds(name, own))
    console.print(table)
    if found.sources:
        titles = (f"{_title(name, found.samples)}>" for name in found.main_names)
        table = plain_table("source", "tasks>", *titles)
        for source, of_one in {**found.sources, ALL: found}.items():
            cells = [_with_bounds(name, of_one) for name in found.main_names]
            table.add_row(visible(source or "(none)"), str(len(of_one.tasks)), *cells)
        console.print()
        console.print(table)
    console.print()
    table = plain_table("counted", "value>")
    for name, number in {"tasks": len(found.tasks), **found.counts}.items():
        share = name in ("truncated", "calling")
        table.add_row(name, percent(number) if share else compact(number))
    console.print(table)


def show_differences(
    console: Console,
    found: Mapping[str, Mapping[str, PairedDifference]],
    *,
    first: str,
    second: str,
    samples: int,
) -> None:
    """The second less the first, task by task. `found` as `evaluation.differences` gives it."""
    if not found:
        console.print(visible(f"{first} and {second} have no held-out task in common"))
        return
    numbers = ("tasks", visible(first), visible(second), "difference", "95 %", "p", "worse", "better")
    table = plain_table("held out, task by task", *(f"{name}>" for name in numbers))
    for source, measures in found.items():
        for name, one in measures.items():
            title = f"{visible(source)} {_title(name, samples)}" if source else _title(name, samples)
            table.add_row(
                title,
                str(one.tasks),
                _value(name, one.first),
                _value(name, one.second),
                _points(name, one.difference),
                f"{_points(name, one.low)} to {_points(name, one.high)}",
                "<0.001" if one.p < 0.001 else f"{one.p:.3f}",
                str(one.worse),
                str(one.better),
            )
    console.print(table)
    tests = sorted({one.test for measures in found.values() for one in measures.values()})
    console.print(f"intervals by bootstrap over tasks, p by {' and '.join(tests)} test", style="dim")


def _title(name: str, samples: int) -> str:
    kind, at, k = name.partition("_at_")
    if at:
        return f"{kind}@{k}"
    return f"{name}, mean of {samples}" if name == ACCURACY and samples > 1 else name


def _value(name: str, value: float) -> str:
    return compact(value) if name == REWARD else percent(value)


def _points(name: str, change: float) -> str:
    return f"{change:+.3f}" if name == REWARD else f"{100 * change:+.1f}"


def _bounds(name: str, found: Estimate) -> str:
    return f"{_value(name, found.low)} – {_value(name, found.high)}"


def _with_bounds(name: str, of_one: EvaluationResult) -> str:
    if name not in of_one.names:
        return "-"
    found = of_one.estimate(name)
    return f"{_value(name, found.value)} ({_bounds(name, found)})"
