"""The charts of the report: a table of metrics, and the figures drawn from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolwright.observe import svg
from toolwright.observe.metrics import Row, series

MARKED = {"held_out/accuracy", "held_out/reward"}
STAGES = ("sample", "score", "old_log_prob", "update", "evaluate", "checkpoint")
REST_TONE = 8  # the grey one
TONES = 7


@dataclass(frozen=True)
class Chart:
    title: str
    keys: tuple[tuple[str, str], ...]  # (metric, its name in the legend)
    note: str = ""
    zero: bool = True
    share: bool = False
    log: bool = False


CHARTS = (
    Chart(
        "Reward and held-out accuracy",
        (
            ("reward/mean", "reward"),
            ("held_out/accuracy", "held-out accuracy"),
            ("held_out/reward", "held-out reward"),
            ("policy/preference_accuracy", "preferred as in the data"),
        ),
    ),
    Chart(
        "Preference margin",
        (("policy/preference_margin", "training"), ("held_out/margin", "held-out")),
        zero=False,
    ),
    Chart(
        "Response length",
        (("response/tokens_mean", "mean"), ("response/tokens_max", "longest")),
        note="tokens",
    ),
    Chart("Turns", (("turns/mean", "turns"),), note="an attempt"),
    Chart(
        "KL",
        (
            ("policy/ppo_kl", "to the old policy"),
            ("reference/kl", "to the reference"),
            ("teacher/kl", "to the teacher"),
        ),
        log=True,
    ),
    Chart("Entropy", (("policy/entropy", "entropy"),), note="nats a token"),
    Chart("Gradient norm", (("policy/grad_norm", "gradient norm"),), log=True),
    Chart("Clip fraction", (("policy/clip_fraction", "clipped"),), note="of tokens", share=True),
    Chart(
        "Engine–learner gap",
        (("gap/abs_mean", "mean"), ("gap/abs_max", "largest"), ("gap/kl", "KL")),
        note="of log-probabilities",
        log=True,
    ),
    Chart("Policy loss", (("policy/loss", "policy loss"),), zero=False),
    Chart("Critic loss", (("critic/loss", "critic loss"),), log=True),
    Chart(
        "Groups",
        (
            ("groups/kept", "groups kept"),
            ("groups/dropped", "groups dropped"),
            ("attempts/failed", "attempts failed"),
        ),
        note="a step",
    ),
    Chart("Throughput", (("throughput/tokens_per_s", "tokens/s"),), note="tokens a second"),
)


Figure = tuple[Chart, Sequence[svg.ChartLine], str]  # the lines of its legend, and the picture


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Every chart that the metrics have values for. Time by stage stands before throughput."""
    drawn = [figure for chart in CHARTS if (figure := _figure(chart, rows))]
    if stages := _stages(rows):
        has_throughput = bool(series(rows, "throughput/tokens_per_s"))
        drawn.insert(len(drawn) - 1 if has_throughput else len(drawn), stages)
    return drawn


def drawn_keys(rows: Sequence[Row]) -> set[str]:
    return {key for chart in CHARTS for key, _ in chart.keys} | {f"time/{name}_s" for name in _names(rows)}


def _figure(chart: Chart, rows: Sequence[Row]) -> Figure | None:
    distinct: list[svg.ChartLine] = []
    for key, label in chart.keys:
        points = series(rows, key)
        # For most tasks the held-out reward equals accuracy: do not draw the same curve twice.
        if points and not any(line.points == points for line in distinct if key in MARKED):
            distinct.append(svg.ChartLine(label, points, tone=len(distinct) + 1, marks=key in MARKED))
    if not distinct:
        return None
    every = [int(row.get("step", 0)) for row in rows]
    span = (min(every), max(every))
    picture = svg.line_chart(distinct, span=span, zero=chart.zero, share=chart.share, log=chart.log)
    return chart, distinct if len(chart.keys) > 1 else [], picture


def _stages(rows: Sequence[Row]) -> Figure | None:
    layers = []
    for number, name in enumerate(_names(rows)):
        points = series(rows, f"time/{name}_s")
        layers.append(svg.ChartLine(name.replace("_", " "), points, tone=number % TONES + 1))
    if not any(value > 0 for layer in layers for _, value in layer.points):
        return None
    named: dict[int, float] = {}
    for layer in layers:
        for step, value in layer.points:
            named[step] = named.get(step, 0.0) + value
    total = dict(series(rows, "time/total_s"))
    others = {step: seconds - named.get(step, 0.0) for step, seconds in total.items()}
    rest = [(step, seconds) for step, seconds in others.items() if seconds > 0]
    if sum(value for _, value in rest) > 0.02 * sum(total.values()):
        layers.append(svg.ChartLine("rest", rest, tone=REST_TONE))
    return Chart("Time by stage", (), "seconds a step"), layers, svg.stacked_bars(layers, unit=" s")


def _names(rows: Iterable[Row]) -> list[str]:
    """The timed stages: known ones in the order they run, then the others."""
    timed = {key[5:-2]: None for row in rows for key in row if key.startswith("time/") and key.endswith("_s")}
    timed.pop("total", None)
    return [name for name in STAGES if name in timed] + [name for name in timed if name not in STAGES]
