"""The list of runs."""

from __future__ import annotations

from toolwright import __version__
from toolwright.ui.query import Query
from toolwright.ui.run_card import card
from toolwright.ui.run_library import RunLibrary
from toolwright.ui.view import VIEWS, ViewAnswer, of_rows

COLUMNS = (
    *("name", "kind", "state", "step", "steps", "algorithm", "task", "model"),
    *("started", "updated", "seconds"),
)


@VIEWS.register("runs")
def runs(library: RunLibrary, query: Query) -> ViewAnswer:
    """Every run, the one that was written to last first."""
    cards = sorted((card(run) for run in library.all()), key=lambda one: -one["updated"])
    data = {"folder": str(library.folder), "version": __version__, "runs": cards}
    return of_rows(data, COLUMNS, cards)
