"""A typed workflow as AFlow's `graph.py` and `prompt.py`: readable, and read back it means the same."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from toolwright.workflow.canonical import snake
from toolwright.workflow.graph import ENTRY_POINT, Node, Pieces, Ref
from toolwright.workflow.operators import CHOOSE, CONTAINS, FREE, JOIN, PART, TASK
from toolwright.workflow.program import Scope, Workflow

_COST = 'self.llm.get_usage_summary()["total_cost"]'
_RESERVED = {"self", "problem", "entry_point", "operator", "prompt_custom", "sample", "str", "range", TASK}
# What the template of each of AFlow's data sets defines, called as here. The other operators are in AFlow's
# scripts/operators.py: DROP's and HotpotQA's own ScEnsemble, for one, takes no problem.
_MATH, _CODE = {"Custom", "Programmer", "ScEnsemble"}, {"Custom", "CustomCodeGenerate", "ScEnsemble", "Test"}
TEMPLATES: Mapping[str, Set[str]] = {
    "GSM8K": _MATH,
    "MATH": _MATH,
    "HumanEval": _CODE,
    "MBPP": _CODE,
    "HotpotQA": {"Custom", "AnswerGenerate"},
    "DROP": {"Custom", "AnswerGenerate"},
}
_SHARED = _MATH | _CODE | {"AnswerGenerate", "Review", "Revise", "Format", "MdEnsemble"}
_HEAD = """\
from typing import Literal
import {package}.template.operator as operator
import {package}.round_{round}.prompt as prompt_custom
from scripts.async_llm import create_llm_instance

from scripts.evaluator import DatasetType


class Workflow:
    def __init__(
        self,
        name: str,
        llm_config,
        dataset: DatasetType,
    ) -> None:
        self.name = name
        self.dataset = dataset
        self.llm = create_llm_instance(llm_config)
"""


def write(workflow: Workflow, *, data_set: str = "GSM8K", round: int = 1) -> tuple[str, str]:
    """The texts of `graph.py` and `prompt.py`."""
    workflow = workflow.trimmed()
    lines = [_HEAD.format(package=f"workspace.{data_set}.workflows", round=round).rstrip("\n")]
    kinds = dict.fromkeys(node.operator for node in workflow.live if node.operator not in FREE)
    if lacking := [_class(kind) for kind in kinds if kind not in _SHARED]:
        lines.insert(0, f"# AFlow has no {', '.join(lacking)}: add what is missing to template/operator.py.")
    others = [kind for kind in kinds if kind in _SHARED - TEMPLATES.get(data_set, _SHARED)]
    if others:  # within the class, which is all of the file that AFlow carries into later rounds
        lines += ["        from scripts import operators", ""]
    called = {_attribute(node): node for node in workflow.live if node.operator not in FREE}
    for attribute, node in called.items():
        source = "operators" if node.operator in others else "operator"
        votes = f", vote_count={node.settings['votes']}" if "votes" in node.settings else ""
        lines.append(f"        self.{attribute} = {source}.{_class(node.operator)}(self.llm{votes})")
    named = any(ref == ENTRY_POINT for node in workflow.live for ref in node.refs)
    lines += ["", f"    async def __call__(self, problem: str{', entry_point: str' if named else ''}):"]
    lines += [f"        {line}" for line in _Writer(workflow).body()]
    return "\n".join(lines) + "\n", prompt_file(workflow)


def write_files(folder: Path, workflow: Workflow, *, data_set: str) -> Path:
    """Write `graph.py` and `prompt.py` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in zip(("graph.py", "prompt.py"), write(workflow, data_set=data_set), strict=True):
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def prompt_file(workflow: Workflow) -> str:
    return "\n\n".join(f"{name} = {_quoted(text)}" for name, text in workflow.prompts.items()) + "\n"


class _Writer:
    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.scopes = workflow.scopes

    def body(self) -> Iterator[str]:
        last = self._last_choice()
        yield from self._scope((), returning=last)
        if last is None:
            yield f"return {self._text(self.workflow.output)}, {_COST}"

    def _last_choice(self) -> str | None:
        """A choice that is the output and nothing else: each of its branches returns."""
        match self.workflow.output:
            case (Ref(node=name),) if name in self.workflow.by_name:
                if self.workflow.by_name[name].operator == CHOOSE and self.workflow.readers(name) == {""}:
                    return name
        return None

    def _scope(self, scope: Scope, *, returning: str | None = None) -> Iterator[str]:
        for node in self.workflow.live:
            if self.scopes[node.name] != scope:
                continue
            if node.operator == CHOOSE:
                yield from self._choice(node, scope, returns=node.name == returning)
            elif node.operator in FREE:
                yield f"{_variable(node.name)} = {self._free(node)}"
            elif node.repeat > 1:
                yield from self._samples(node)
            else:
                yield f"{_variable(node.name)} = {self._call(node)}"

    def _choice(self, node: Node, scope: Scope, *, returns: bool) -> Iterator[str]:
        (on,) = node.inputs["on"]
        assert isinstance(on, Ref)
        for word, port in ((f"if {_condition(self.workflow, on)}:", "then"), ("else:", "otherwise")):
            yield word
            yield from (f"    {line}" for line in self._scope((*scope, (node.name, port))))
            said = self._text(node.inputs.get(port, ()))
            yield f"    return {said}, {_COST}" if returns else f"    {_variable(node.name)} = {said}"

    def _samples(self, node: Node) -> Iterator[str]:
        fields = sorted(
            {ref.field for other in self.workflow.live for ref in other.refs if ref.node == node.name}
        )
        yield from (f"{_list(node.name, field)} = []" for field in fields)
        yield f"for _ in range({node.repeat}):"
        yield f"    sample = {self._call(node)}"
        yield from (f'    {_list(node.name, field)}.append(sample["{field}"])' for field in fields)

    def _call(self, node: Node) -> str:
        arguments = []
        for port, declared in node.kind.ports.items():
            pieces = node.inputs.get(port, ())
            if pieces:
                said = self._texts(pieces) if declared.kind == "texts" else self._text(pieces)
                arguments.append(f"{port}={said}")
        if node.kind.prompted:
            arguments.append("instruction=" + (f"prompt_custom.{node.prompt}" if node.prompt else '""'))
        if node.operator == "Format":
            arguments.append('mode="xml_fill"')  # or AFlow's returns the whole text, without its key
        settings = {name: value for name, value in node.settings.items() if name != "votes"}
        arguments += [f"{_SETTINGS.get(name, name)}={value}" for name, value in settings.items()]
        return f"await self.{_attribute(node)}({', '.join(arguments)})"

    def _free(self, node: Node) -> str:
        """An operator that costs nothing, as the expression it stands for."""
        said = {port: self._text(pieces) for port, pieces in node.inputs.items()}
        settings = {name: node.kind.setting(node.settings, name) for name in node.kind.settings}
        if node.operator == JOIN:
            return said["pieces"]
        if node.operator == PART:
            return f"({said['text']}).split({said.get('separator', '')})[{settings['place']}]"
        text = f"({said['text']})" + (".lower()" if settings["lower"] else "")
        return (
            f"({said['words']}).strip() == {text}.strip()"
            if settings["whole"]
            else f"{said['words']} in {text}"
        )

    def _text(self, pieces: Pieces) -> str:
        words = (
            _ref(self.workflow, piece, as_text=True) if isinstance(piece, Ref) else _quoted_line(piece)
            for piece in pieces
        )
        return " + ".join(words) or '""'

    def _texts(self, pieces: Pieces) -> str:
        words = []
        for piece in pieces:
            if isinstance(piece, Ref) and self._is_repeated(piece):
                words.append(f"*{_list(piece.node, piece.field)}")
            else:
                words.append(self._text((piece,)))
        if len(words) == 1 and words[0].startswith("*"):
            return words[0].removeprefix("*")
        return f"[{', '.join(words)}]"

    def _is_repeated(self, ref: Ref) -> bool:
        return ref.node in self.workflow.by_name and self.workflow.by_name[ref.node].repeat > 1


_SETTINGS = {"rounds": "test_loop"}


def _ref(workflow: Workflow, ref: Ref, *, as_text: bool = False) -> str:
    if ref.node == TASK:
        return ref.field
    node = workflow.by_name[ref.node]
    if node.operator in (CHOOSE, JOIN, PART):
        return _variable(ref.node)
    if node.operator == CONTAINS:
        return f"str({_variable(ref.node)})" if as_text else _variable(ref.node)
    said = f'{_variable(ref.node)}["{ref.field}"]'
    return f"str({said})" if as_text and node.kind.fields[ref.field] == "flag" else said


def _condition(workflow: Workflow, ref: Ref) -> str:
    """A yes or no as Python tests it. AFlow leaves a review's as text, and "false" would hold."""
    said = _ref(workflow, ref)
    return f'str({said}).lower() == "true"' if ref.field == "review_result" else said


def _variable(name: str) -> str:
    return f"{name}_result" if name in _RESERVED or keyword.iskeyword(name) else name


def _list(node: str, field: str) -> str:
    return f"{node}_{field}s"


def _attribute(node: Node) -> str:
    """The name of the operator in `self`. AFlow counts the votes of an ensemble where it is made."""
    return snake(_class(node.operator)) + (f"_{node.settings['votes']}" if "votes" in node.settings else "")


def _class(kind: str) -> str:
    """As AFlow's template has to call it: a file's own operator by its class."""
    kind = kind.rpartition(":")[2]
    return f"tool_{kind.removeprefix('tool.')}" if kind.startswith("tool.") else kind


def _quoted(text: str) -> str:
    """As AFlow writes prompts, over several lines, where that says the very same text."""
    plain = not set(text) & {"\\", "\r", "\0"} and '"""' not in text and text[-1:] != '"'
    return f'"""{text}"""' if plain and "\n" in text else _quoted_line(text)


def _quoted_line(text: str) -> str:
    """In double quotes: JSON's are Python's. Halves of surrogate pairs cannot be written as they are."""
    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", quoted)
