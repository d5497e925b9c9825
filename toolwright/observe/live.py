"""The live display: a few lines at the bottom of the terminal, redrawn while the run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from toolwright.observe.numbers import duration, rough

if TYPE_CHECKING:
    from toolwright.observe.outlet import Outlet
    from toolwright.observe.progress import State

BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 24


class LiveDisplay:
    """Draws the state four times a second in its own thread, at no cost to the step."""

    def __init__(self, state: State, stream: Outlet) -> None:
        self.console = Console(file=cast(TextIO, stream), highlight=False)
        self.live = Live(Frame(state), console=self.console, refresh_per_second=4)

    def start(self) -> None:
        self.live.start(refresh=True)

    def step(self, *, evaluated: bool) -> None:
        pass

    def line(self, text: str) -> None:
        # Not markup: a message may well hold "[tool]".
        self.console.print(Text(text))

    def stop(self) -> None:
        try:
            self.live.stop()
        finally:  # a second Ctrl-C may come while the thread is joined
            self.console.show_cursor(True)


class Frame:
    """A frame of the display: the current stage, the progress bar, and the figures."""

    def __init__(self, state: State) -> None:
        self.state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text in self.rows(options.max_width):
            text.no_wrap, text.overflow = True, "ellipsis"
            yield text

    def rows(self, width: int) -> Iterator[Text]:
        state, now = self.state, monotonic()
        stages = list(state.stages)  # the run's own thread changes it meanwhile
        head = Text(state.title, style="bold")
        if state.ended:
            head.append(f"  {state.ended} in {duration(now - state.started)}", style="not bold green")
            if state.ended == "stopped":
                head.stylize("yellow", len(state.title))
        elif stages:
            head.append(f"  {stages[-1]}", style="not bold cyan")
            head.append(f" {rough(now - state.stage_started)}", style="not bold dim")
        yield head
        yield self.bar(width, now)
        yield self.figures()

    def bar(self, width: int, now: float) -> Text:
        state = self.state
        share = min(1.0, state.step / state.total) if state.total else 0.0
        tail = f" {state.step}/{state.total}  {share:.0%}" if state.total else ""
        if state.left_s and not state.ended:
            tail += f"  {rough(max(0.0, state.left_s - (now - state.stepped)))} left"
        room = max(8, min(48, width - len(tail) - 1))
        full = round(room * share)
        return Text.assemble(("━" * full, "cyan"), ("━" * (room - full), "bright_black"), tail)

    def figures(self) -> Text:
        facts = self.state.facts()
        text = Text()
        for number, fact in enumerate(facts):
            if number:
                text.append("  ·  ", style="dim")
            text.append(fact)
            if fact.startswith("reward ") and len(self.state.rewards) > 1:
                text.append(" " + sparkline(self.state.rewards), style="cyan")
        return text


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """The whole history in a few characters, each the mean of its part."""
    values = list(values)
    count = min(width, len(values))
    cuts = [len(values) * number // count for number in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    if high == low:
        return BLOCKS[0] * count
    return "".join(BLOCKS[int((mean - low) / (high - low) * (len(BLOCKS) - 1))] for mean in means)
