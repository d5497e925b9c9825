"""AFlow's `graph.py` and `prompt.py` as a typed workflow."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolwright.failures import UserError, nearest
from toolwright.workflow.aflow.expressions import (
    IGNORED_ARGUMENTS,
    MOST_NODES,
    RENAMED,
    Environment,
    GraphExpressions,
    NotExpressible,
    root,
    shown,
)
from toolwright.workflow.aflow.values import Constant, Flag, Many, Value, merged, text
from toolwright.workflow.graph import Pieces, Ref
from toolwright.workflow.operators import CHOOSE, TASK_FIELDS, operator
from toolwright.workflow.program import Workflow

MOST_STEPS = 2000  # statements that are followed; a workflow that needs more is no workflow
# What AFlow's own files import. Anything else has no business in a workflow.
_NAMED = ("operator", "prompt_custom")  # wherever the search's folder lies
_IMPORTS = ("typing", "asyncio", "scripts", "metagpt", "workspace", "examples", "evoagentx")
_SILENT = ("print", "logger", "logging")  # said to the screen: left out


@dataclass(frozen=True)
class _Frame:
    """What is still to be done: statements, then `next`. A loop's frame marks where `break` goes."""

    statements: tuple[ast.stmt, ...]
    next: _Frame | None
    loop: ast.For | ast.While | None = None
    items: tuple[Value, ...] = ()


def read(graph: str, prompts: str = "", *, where: str = "graph.py") -> Workflow:
    """Parse the file without running it. A NotExpressible names the line and the reason."""
    try:
        texts = prompts_of(prompts, where=str(Path(where).with_name("prompt.py")))
        return _Reader(graph, texts, where).workflow()
    except RecursionError:
        raise NotExpressible(f"{where}: it is nested too deeply") from None


def read_file(path: Path) -> Workflow:
    """Read a `graph.py` with the `prompt.py` beside it."""
    beside = path.with_name("prompt.py")
    prompts = beside.read_text(encoding="utf-8") if beside.is_file() else ""
    return read(path.read_text(encoding="utf-8"), prompts, where=str(path))


def prompts_of(source: str, *, where: str = "prompt.py") -> dict[str, str]:
    """The texts that a `prompt.py` assigns to names."""
    found: dict[str, str] = {}
    for statement in _parsed(source, where).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                try:
                    said = ast.literal_eval(value)
                except ValueError:
                    said = None
                if not isinstance(said, str):
                    raise NotExpressible(f"{where}, line {statement.lineno}: {name} is not plain text")
                found[name] = said
            case ast.Expr(value=ast.Constant()) | ast.FunctionDef() | ast.AsyncFunctionDef():
                continue  # nothing calls a function that stands here
            case ast.Import() | ast.ImportFrom():
                _check_import(statement, where)
            case _:
                line = f"{where}, line {statement.lineno}"
                raise NotExpressible(f'{line}: only NAME = "text" is expected here')
    return found


def _parsed(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise NotExpressible(f"{where}{line}: it is not Python: {reason}") from None


def _check_import(statement: ast.Import | ast.ImportFrom, where: str) -> None:
    for alias in statement.names:
        name = alias.name if isinstance(statement, ast.Import) else statement.module or "."
        if name.split(".")[0] not in _IMPORTS and (alias.asname or alias.name) not in _NAMED:
            raise NotExpressible(
                f"{where}, line {statement.lineno}: it imports {name!r}; a workflow has its operators and "
                f"prompts, and nothing else"
            )


class _Reader(GraphExpressions):
    def __init__(self, graph: str, prompts: Mapping[str, str], where: str) -> None:
        super().__init__(prompts, where)
        self.constants: Environment = {}  # of the file
        self.steps = 0  # statements followed
        self.call, self.init = self._methods(_parsed(graph, where))

    def workflow(self) -> Workflow:
        for statement in self.init.body if self.init else []:
            self._attribute(statement)
        arguments, defaults = self.call.args.args[1:], self.call.args.defaults
        environment = dict(self.constants)
        for place, argument in enumerate(arguments, len(defaults) - len(arguments)):
            if argument.arg in TASK_FIELDS:
                environment[argument.arg] = text(Ref("task", argument.arg))
            elif place >= 0:
                environment[argument.arg] = self.value_of(defaults[place], {})
            elif argument.arg not in IGNORED_ARGUMENTS:
                hint = nearest(argument.arg, TASK_FIELDS)
                raise self.refused(self.call, f"a task has no {argument.arg!r}; {hint}")
        output = self._follow(_Frame(tuple(self.call.body), None), environment, {})
        if output is None:
            raise self.refused(self.call, "it may end without a return")
        return Workflow(tuple(self.nodes), output, self.prompts).simplified

    # What the file declares.

    def _methods(self, module: ast.Module) -> tuple[ast.AsyncFunctionDef, ast.FunctionDef | None]:
        found = None
        for statement in module.body:
            match statement:
                case ast.ClassDef(name="Workflow"):
                    found = statement
                case ast.Import() | ast.ImportFrom():
                    _check_import(statement, self.where)
                case ast.Expr(value=ast.Constant()) | ast.Assign(targets=[ast.Name(id="DatasetType")]):
                    continue
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                    self.constants[name] = Constant(value)
                case _:
                    raise self.refused(
                        statement, "beside imports and constants, only `class Workflow` is expected here"
                    )
        if found is None:
            raise NotExpressible(f"{self.where}: there is no `class Workflow`")
        call = init = None
        for statement in found.body:
            match statement:
                case ast.AsyncFunctionDef(name="__call__"):
                    call = statement
                case ast.FunctionDef(name="__init__"):
                    init = statement
                case ast.Expr(value=ast.Constant()) | ast.Pass():
                    continue
                case _:
                    raise self.refused(
                        statement, "Workflow has __init__ and async __call__, and nothing else"
                    )
        if call is None:
            raise self.refused(found, "Workflow has no `async def __call__`")
        return call, init

    def _attribute(self, statement: ast.stmt) -> None:
        """`self.custom = operator.Custom(self.llm)`; what else __init__ keeps is AFlow's own."""
        match statement:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id="operator" | "operators"), attr=kind), keywords=given
                ),
            ):
                kind = f"tool.{kind.removeprefix('tool_')}" if kind.startswith("tool_") else kind
                try:
                    settings = operator(kind).settings
                except UserError as error:
                    raise self.refused(statement, str(error)) from None
                self.attributes[name] = kind
                for keyword in given:
                    setting = RENAMED.get(keyword.arg or "", keyword.arg or "")
                    match keyword.value:
                        case ast.Constant(int() as number) if setting in settings:
                            self.settings.setdefault(name, {})[setting] = number
            case ast.Import() | ast.ImportFrom():
                _check_import(statement, self.where)
            case ast.Assign(targets=[ast.Attribute() | ast.Name() as target], value=value) if (
                isinstance(target, ast.Name) or root(target) == "self"
            ):
                if not isinstance(value, ast.Name | ast.Constant) and not _is_own_call(value):
                    raise self.refused(statement, f"`{shown(statement)}` is not AFlow's")
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return
            case _:
                raise self.refused(statement, f"`{shown(statement)}` does not belong in __init__")

    # Statements, followed with values that are not known yet.

    def _follow(
        self, frame: _Frame | None, environment: Environment, known: dict[Ref, bool]
    ) -> Pieces | None:
        """Until something is returned. Where a condition is not known, both ways are followed: to where
        they meet again, or to the end where one of them leaves before that. None where nothing is returned.
        """
        while frame is not None:
            self.steps += 1
            if not frame.statements:
                if frame.loop is None:
                    frame = frame.next
                    continue
                frame = self._next_round(frame, environment, known)
                if isinstance(frame, tuple):
                    return self._both(frame[0], frame[1], frame[2], environment, known)
                continue
            statement, rest = frame.statements[0], replace(frame, statements=frame.statements[1:])
            if self.steps > MOST_STEPS:
                raise self.refused(statement, f"it does not end within {MOST_STEPS} statements")
            match statement:
                case ast.Return(value=value):
                    return self._returned(statement, value, environment)
                case ast.If(test=test, body=body, orelse=orelse):
                    condition = self.condition(test, environment, known)
                    then = _Frame(tuple(body), rest)
                    otherwise = _Frame(tuple(orelse), rest)
                    if isinstance(condition, bool):
                        frame = then if condition else otherwise
                    elif _leaves(statement):
                        return self._both(condition, then, otherwise, environment, known)
                    else:
                        self._meet(condition, statement, environment, known)
                        frame = rest
                case ast.For() | ast.While():
                    if statement.orelse:
                        raise self.refused(statement, "a loop has no `else` here")
                    items = self.items(statement.iter, environment) if isinstance(statement, ast.For) else ()
                    frame = _Frame((), rest, statement, items)
                case ast.Try(body=body, orelse=orelse, finalbody=[]):
                    frame = _Frame((*body, *orelse), rest)  # a failure ends the attempt, and is on record
                case ast.Break() | ast.Continue():
                    frame = self._left(statement, rest)
                case _:
                    self._statement(statement, environment)
                    frame = rest
        return None

    def _meet(
        self, condition: Flag, statement: ast.If, environment: Environment, known: dict[Ref, bool]
    ) -> None:
        """Both branches of an `if`, and after it the variables by the condition."""
        ways = []
        for body, held in ((statement.body, True), (statement.orelse, False)):
            own = dict(environment)
            learned = {**known, condition.ref: held is not condition.negated}
            self._follow(_Frame(tuple(body), None), own, learned)
            ways.append(own)
        then, otherwise = reversed(ways) if condition.negated else ways
        environment.clear()
        for name in [name for name in then if name in otherwise]:
            environment[name] = merged(condition.ref, then[name], otherwise[name])

    def _both(
        self,
        condition: Flag,
        then: _Frame | None,
        otherwise: _Frame | None,
        environment: Environment,
        known: dict[Ref, bool],
    ) -> Pieces | None:
        if condition.negated:
            then, otherwise = otherwise, then
        first = self._follow(then, dict(environment), {**known, condition.ref: True})
        second = self._follow(otherwise, dict(environment), {**known, condition.ref: False})
        if first is None or second is None:
            return None
        if first == second:
            return first
        inputs = {"on": (condition.ref,), "then": first, "otherwise": second}
        return (self.new_node(self.call, CHOOSE, inputs).main,)

    def _next_round(self, frame: _Frame, environment: Environment, known: dict[Ref, bool]) -> Any:
        """The body once more, or what comes after the loop; both where nobody knows yet."""
        loop = frame.loop
        if isinstance(loop, ast.For):
            if not frame.items:
                return frame.next
            self.assign(loop.target, frame.items[0], environment)
            return _Frame(tuple(loop.body), replace(frame, items=frame.items[1:]))
        assert isinstance(loop, ast.While)
        if self.steps > MOST_STEPS or len(self.nodes) > MOST_NODES:
            raise self.refused(loop, "the loop has no end that is known before it runs")
        condition = self.condition(loop.test, environment, known)
        body = _Frame(tuple(loop.body), frame)
        if isinstance(condition, bool):
            return body if condition else frame.next
        return condition, body, frame.next

    def _left(self, statement: ast.stmt, frame: _Frame | None) -> _Frame | None:
        while frame is not None and frame.loop is None:
            frame = frame.next
        if frame is None:
            raise self.refused(statement, "there is no loop around it")
        return frame.next if isinstance(statement, ast.Break) else frame

    def _statement(self, statement: ast.stmt, environment: Environment) -> None:
        match statement:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, self.value_of(value, environment), environment)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, self.value_of(value, environment), environment)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                left = self.value_of(ast.Name(name, ast.Load(), lineno=statement.lineno), environment)
                environment[name] = self.plus(statement, left, self.value_of(value, environment))
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" as method),
                    args=[item],
                )
            ) if isinstance(have := environment.get(name), Many):
                added = self.value_of(item, environment)
                more = added.items if method == "extend" and isinstance(added, Many) else (added,)
                environment[name] = Many((*have.items, *more))
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return
            case ast.Expr(value=ast.Call(func=func)) if root(func) in _SILENT:
                return
            case ast.Expr(value=ast.Await() as value):
                self.value_of(value, environment)
            case ast.Import() | ast.ImportFrom():
                _check_import(statement, self.where)
            case _:
                raise self.refused(statement, f"`{shown(statement)}` has no equivalent in a workflow")

    def _returned(self, statement: ast.Return, value: ast.expr | None, environment: Environment) -> Pieces:
        """The answer; what it cost, which AFlow returns beside it, is counted anyway."""
        if isinstance(value, ast.Tuple) and len(value.elts) == 2:
            value = value.elts[0]
        if value is None:
            raise self.refused(statement, "nothing is returned")
        return self.text_of(statement, self.value_of(value, environment))


def _leaves(statement: ast.If) -> bool:
    """True if its branches do not meet again: one of them leaves, or makes a list longer."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Return | ast.Break | ast.Continue | ast.While):
            return True
        if isinstance(node, ast.If) and _appends(node.body) != _appends(node.orelse):
            return True
    return False


def _appends(body: list[ast.stmt]) -> int:
    inside = (node for statement in body for node in ast.walk(statement))
    return sum(isinstance(node, ast.Attribute) and node.attr in ("append", "extend") for node in inside)


def _is_own_call(value: ast.expr) -> bool:
    names = ("create_llm_instance", "create", "CostManager", "CostManage", "LLM")
    return isinstance(value, ast.Call) and root(value) in names
