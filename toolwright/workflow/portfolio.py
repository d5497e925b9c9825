"""The portfolio: a file of well-known workflows, which every search measures first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from toolwright.failures import UserError
from toolwright.workflow.aflow.expressions import NotExpressible
from toolwright.workflow.aflow.read import read_file
from toolwright.workflow.apply import applied
from toolwright.workflow.edits import parse
from toolwright.workflow.operators import FREE
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.proposers import Editor
from toolwright.workflow.tree import Proposal

DEFAULT = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Portfolio:
    """Workflows by name, and the prompts that they and later edits may use."""

    workflows: Mapping[str, Workflow]
    prompts: Mapping[str, str]

    @classmethod
    def load(cls, path: Path = DEFAULT) -> Portfolio:
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
            if not isinstance(content, Mapping) or not content.get("workflows"):
                raise TypeError("it lists no workflows (search.portfolio=none searches without a portfolio)")
            prompts = {str(name): str(text) for name, text in (content.get("prompts") or {}).items()}
            listed: Mapping[str, Any] = content["workflows"]
            made = {str(name): _workflow(way, prompts, path.parent) for name, way in listed.items()}
        except (OSError, UserError) as error:
            raise UserError(f"the portfolio {path} cannot be read: {reason_of(error)}") from None
        except (yaml.YAMLError, TypeError, AttributeError, ValueError) as error:
            raise UserError(
                f"the portfolio {path} cannot be read: {reason_of(error)}; it maps `workflows` to names, "
                f"and each name to a list of edits or to `file: PATH`, as {DEFAULT} does"
            ) from None
        return cls(made, prompts)

    def usable(self, editor: Editor) -> list[Proposal]:
        """The workflows that a data set has the operators and everything else for, as candidates."""
        kept = []
        for name, workflow in self.workflows.items():
            known = all(node.operator in (*editor.operators, *_WITH_EDITS) for node in workflow.live)
            if known and not workflow.problems(editor.limits, editor.offers) and editor.can_run(workflow):
                kept.append(Proposal(f"portfolio: {name}", workflow))
        return kept


_WITH_EDITS = ("Review", *FREE)  # that other operators bring along


def _workflow(way: Any, prompts: Mapping[str, str], folder: Path) -> Workflow:
    if isinstance(way, Mapping) and "file" in way:
        return read_workflow(folder / str(way["file"]))
    if not isinstance(way, Sequence) or isinstance(way, str):
        raise TypeError(f"{way!r} is neither a list of edits nor `file: PATH`")
    workflow = single_call()
    for line in way:
        workflow = applied(workflow, parse(str(line)), prompts)
    return workflow


def reason_of(error: Exception) -> str:
    """Why a file cannot be read, in one line."""
    return str(error.strerror) if isinstance(error, OSError) else " ".join(str(error).split())


def read_workflow(path: Path) -> Workflow:
    """A workflow from AFlow's folder or graph.py, its prompt.py beside it, or from JSON."""
    path = path / "graph.py" if path.is_dir() else path
    try:
        if path.suffix == ".py":
            return read_file(path).checked()
        return Workflow.from_json(path.read_text(encoding="utf-8")).checked()
    except (OSError, UnicodeDecodeError) as error:
        expected = "expected AFlow's graph.py or a workflow as JSON"
        raise UserError(f"{path} cannot be read: {reason_of(error)}; {expected}") from None
    except NotExpressible:  # it names the file
        raise
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
