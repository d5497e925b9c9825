"""examples/notebook.ipynb: its cells run in order, as in a notebook, and it learns what it says it learns."""

from __future__ import annotations

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples/notebook.ipynb"


def executed(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; its value is that of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names) if last else None


@pytest.mark.slow
def test_the_notebook_trains_looks_at_attempts_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    names: dict[str, Any] = {"__name__": "__main__"}

    async def kernel() -> list[Any]:
        """A notebook runs its cells inside an event loop."""
        return [executed("".join(cell["source"]), names) for cell in cells]

    values = asyncio.run(kernel())
    assert names["last"] > names["first"] + 0.1
    assert len(names["step"].attempts) == 128
    assert "<svg" in values[6]._repr_html_()
    assert 0 <= values[7] <= 1
    assert "\x1b" not in capsys.readouterr().out
