"""Searches to look at: the tree, the best workflow and the way to it, as inline SVG and HTML for a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from toolwright.observe import svg
from toolwright.observe.attempt import visible
from toolwright.workflow.graph import Node, refs_of
from toolwright.workflow.operators import CHOOSE, TASK
from toolwright.workflow.program import Workflow
from toolwright.workflow.record import CandidateRow, Record, code, records

BOX, TALL, GAP, ACROSS = 150, 40, 34, 24  # pixels of a node, and between nodes
STEP, LINE = 58, 11  # pixels between generations of the tree, and between its leaves
MOST_EDIT = 60  # characters


def searches(run: Path) -> str:
    """The sections of a report that show what the searches of a run have found."""
    return "".join(section(name, record) for name, record in records(run).items())


def section(name: str, record: Record) -> str:
    """All that a report says of one search."""
    start, best = record.start, record.winner
    tiles = [
        ("single call" if len(start.workflow.live) == 1 else "start", _score(start), f"{start.runs} runs"),
        ("best", _score(best), f"{100 * (best.score - start.score):+.1f} points, {best.runs} runs"),
        ("candidates", str(len(record.rows)), f"{sum(bool(r.failure) for r in record.rows)} refused"),
        ("runs", str(record.runs), f"of {record.budget}, ended: {record.why or 'not yet'}"),
        ("cost", f"${sum(r.cost * r.runs for r in record.rows):.2f}", f"best: ${best.cost:.4f} a task"),
    ]
    if record.held_out:
        of = {key: f"{100 * value:.1f} %" for key, value in record.held_out.items()}
        tiles.insert(2, ("on unseen tasks", of.get("best", "-"), f"start {of.get('start', '-')}"))
    cells = "".join(
        f"<div><dt>{escape(label)}</dt><dd><b>{escape(value)}</b><small>{escape(note)}</small></dd></div>"
        for label, value, note in tiles
    )
    return (
        f"<h2>{escape(visible(name))} <small>{escape(record.select)} search</small></h2>"
        f'<dl class="tiles">{cells}</dl>'
        '<div class="columns"><section><h3>Best workflow</h3>'
        f'<div class="box scroll">{diagram(best.workflow)}</div></section>'
        f"<section><h3>The way to it</h3>{_path(record)}{_curves(record)}</section></div>"
        "<h3>Every candidate <small>larger with more runs, darker with a higher score, ringed on the way to "
        f'the best; a cross was refused</small></h3><div class="box scroll">{tree(record)}</div>'
        f'<details class="box"><summary>The best as code <small>AFlow\'s form</small></summary>'
        f"<pre>\n{escape(visible(code(record)))}</pre></details>"
    )


def _score(row: CandidateRow) -> str:
    return f"{100 * row.score:.1f} %"


def _path(record: Record) -> str:
    head = "".join(f"<th>{word}</th>" for word in ("", "edit", "score", "±", "runs", "$ a task"))
    lines = "".join(
        f"<tr><td>{row.number}</td><td>{escape(visible(_short(row.edit)) or 'start')}</td>"
        f"<td>{_score(row)}</td><td>{100 * row.sd:.1f}</td><td>{row.runs}</td><td>{row.cost:.4f}</td></tr>"
        for row in record.path
    )
    return f'<div class="box scroll"><table><tr>{head}</tr>{lines}</table></div>'


def _curves(record: Record) -> str:
    points = [(m.runs, m.score) for m in record.curve]
    spent = [(max(1, round(1e6 * m.cost)), m.score) for m in record.curve]
    figures = []
    for title, line in (
        ("best score by runs", points),
        ("best score by cost, millionths of a dollar", spent),
    ):
        if len(line) > 1:
            chart = svg.line_chart([svg.ChartLine("best", line, 1, marks=True)], zero=False, share=True)
            figures.append(f"<figure><figcaption>{title}</figcaption>{chart}</figure>")
    return f'<div class="curves">{"".join(figures)}</div>'


def _short(text: str) -> str:
    return text if len(text) <= MOST_EDIT else text[: MOST_EDIT - 1] + "…"


def diagram(workflow: Workflow) -> str:
    """Boxes in rows by how deep they lie, the task above, the output below."""
    level = {TASK: 0}
    for node in workflow.live:
        level[node.name] = 1 + max((level.get(ref.node, 0) for ref in node.refs), default=0)
    deepest = max(level.values()) + 1
    rows: list[list[str]] = [[TASK], *[[] for _ in range(deepest - 1)], ["output"]]
    for node in workflow.live:
        rows[level[node.name]].append(node.name)
    wide = max(len(row) for row in rows) * (BOX + ACROSS) + ACROSS
    place = {
        name: ((wide - len(row) * (BOX + ACROSS) + ACROSS) / 2 + i * (BOX + ACROSS), 12 + y * (TALL + GAP))
        for y, row in enumerate(rows)
        for i, name in enumerate(row)
    }
    arrows = [(ref.node, node.name, _dotted(node, port)) for node in workflow.live
              for port, pieces in node.inputs.items() for ref in refs_of(pieces)]  # fmt: skip
    # Nearly every node reads the task; it is drawn for those alone that read nothing else.
    fed = {end for start, end, _ in arrows if start != TASK}
    arrows = [arrow for arrow in arrows if arrow[0] != TASK or arrow[1] not in fed]
    arrows += [(ref.node, "output", False) for ref in refs_of(workflow.output)]
    body = [_arrow(place[a], place[b], dotted) for a, b, dotted in dict.fromkeys(arrows)]
    body += [_box(place[TASK], "task", "", "io"), _box(place["output"], "output", "", "io")]
    for node in workflow.live:
        times = f" ×{node.repeat}" if node.repeat > 1 else ""
        body.append(_box(place[node.name], f"{node.operator}{times}", node.prompt or node.name, "node"))
    tall = 12 + len(rows) * (TALL + GAP) - GAP + 12
    return _svg(wide, tall, body, "the best workflow")


def _dotted(node: Node, port: str) -> bool:
    return node.operator == CHOOSE and port != "on"


def _box(at: tuple[float, float], title: str, note: str, kind: str) -> str:
    x, y = at
    middle = x + BOX / 2
    line = y + (17 if note else 25)
    words = f'<text class="title" x="{middle:.0f}" y="{line:.0f}">{escape(visible(title))}</text>'
    if note:
        words += f'<text class="note" x="{middle:.0f}" y="{y + 32:.0f}">{escape(visible(note[:22]))}</text>'
    return f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{BOX}" height="{TALL}" rx="8"/>{words}'


def _arrow(start: tuple[float, float], end: tuple[float, float], dotted: bool) -> str:
    x1, y1, x2, y2 = start[0] + BOX / 2, start[1] + TALL, end[0] + BOX / 2, end[1]
    half = (y1 + y2) / 2
    # Past a row in between, an edge bends outwards, so that no box hides it.
    bend = 0.0 if y2 - y1 <= GAP + 1 else (BOX / 2 + ACROSS / 2) * (1 if x1 >= x2 else -1)
    path = f"M{x1:.0f} {y1:.0f}C{x1 + bend:.0f} {half:.0f} {x2 + bend:.0f} {half:.0f} {x2:.0f} {y2:.0f}"
    style = ' stroke-dasharray="4 3"' if dotted else ""
    head = f'<path class="head" d="M{x2 - 4:.0f} {y2 - 7:.0f}L{x2:.0f} {y2:.0f}L{x2 + 4:.0f} {y2 - 7:.0f}"/>'
    return f'<path class="edge" d="{path}"{style}/>{head}'


def tree(record: Record) -> str:
    """Generations from left to right."""
    place: dict[int, tuple[float, float]] = {}
    leaves = _layout(record, 0, 0, place, iter(range(len(record.rows) + 1)))
    deepest = max(x for x, _ in place.values())
    ran = [row.score for row in record.rows if row.runs]
    low, high = min(ran, default=0.0), max(ran, default=1.0)
    on_path = {row.number for row in record.path}
    edges, dots = [], []
    for row in record.rows:
        x, y = place[row.number]
        if row.parent is not None:
            px, py = place[row.parent]
            kind = "edge way" if row.number in on_path else "edge"
            middle = (px + x) / 2
            bend = f"{middle:.0f} {py:.1f} {middle:.0f} {y:.1f}"
            edges.append(f'<path class="{kind}" d="M{px:.0f} {py:.1f}C{bend} {x:.0f} {y:.1f}"/>')
        dots.append(_dot(row, x, y, (row.score - low) / (high - low or 1), row.number in on_path))
    tall = 24 + LINE * max(leaves, 1)
    return _svg(deepest + 40, tall, [*edges, *dots], "every candidate of the search")


def _layout(
    record: Record, number: int, depth: int, place: dict[int, tuple[float, float]], lines: Iterator[int]
) -> int:
    """A leaf takes the next line, a parent the middle of its children. Returns the lines taken."""
    children = record.children(number)
    if not children:
        place[number] = (20 + depth * STEP, 16 + LINE * next(lines))
        return 1
    taken = sum(_layout(record, child.number, depth + 1, place, lines) for child in children)
    ys = [place[child.number][1] for child in children]
    place[number] = (20 + depth * STEP, (ys[0] + ys[-1]) / 2)
    return taken


def _dot(row: CandidateRow, x: float, y: float, share: float, on_path: bool) -> str:
    told = f"{row.number}: {visible(row.edit) or 'start'}"
    if row.failure:
        return (
            f"<g><title>{escape(f'{told} refused: {visible(row.failure)}')}</title>"
            f'<path class="cross" d="M{x - 3:.0f} {y - 3:.1f}l6 6m0 -6l-6 6"/></g>'
        )
    radius = 2.5 + min(4.0, row.runs**0.5 / 3)
    said = f"{told} {_score(row)} ± {100 * row.sd:.1f}, {row.runs} runs, ${row.cost:.4f} a task"
    if row.failures:
        said += "; failed: " + ", ".join(f"{visible(why)} ×{count}" for why, count in row.failures.items())
    kind = "dot way" if on_path else "dot"
    return (
        f'<g><title>{escape(said)}</title><circle class="{kind}" cx="{x:.0f}" cy="{y:.1f}" r="{radius:.1f}" '
        f'fill-opacity="{0.08 + 0.92 * max(0.0, share) ** 2:.2f}"/></g>'
    )


def _svg(wide: float, tall: float, body: Sequence[str], label: str) -> str:
    return (
        f'<svg class="graph" role="img" aria-label="{escape(label)}" viewBox="0 0 {wide:.0f} {tall:.0f}" '
        f'width="{wide:.0f}" height="{tall:.0f}">{"".join(body)}</svg>'
    )
