"""AFlow's `graph.py` and `prompt.py` as a typed workflow."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolwright.failures import UserError, nearest
from toolwright.workflow.aflow.values import (
    Constant,
    Cost,
    Either,
    Flag,
    Many,
    NoText,
    PromptName,
    Result,
    Text,
    Value,
    pieces_of,
    plus,
    text,
)
from toolwright.workflow.meaning import simplified, snake
from toolwright.workflow.operators import CHOOSE, JOIN, TASK_FIELDS, is_known, operator
from toolwright.workflow.program import Node, Pieces, Ref, Workflow, joined

MOST_STEPS = 2000  # statements that are followed; a workflow that needs more is no workflow
MOST_NODES = 64
# What AFlow's own files import. Anything else has no business in a workflow.
_IMPORTS = ("typing", "asyncio", "scripts", "metagpt", "workspace", "examples", "evoagentx")
_SILENT = ("print", "logger", "logging")  # said to the screen: left out
_IGNORED_ARGUMENTS = ("mode", "benchmark", "dataset", "question_id")
_RENAMED = {"test_loop": "rounds"}


class NotExpressible(UserError):
    """Something in a `graph.py` that the typed form has no word for."""


@dataclass(frozen=True)
class _Frame:
    """What is still to be done: statements, then `next`. A loop's frame marks where `break` goes."""

    statements: tuple[ast.stmt, ...]
    next: _Frame | None
    loop: ast.For | ast.While | None = None
    items: tuple[Value, ...] = ()


def read(graph: str, prompts: str = "", *, where: str = "graph.py") -> Workflow:
    """Parses; never runs. A NotExpressible names the line and the reason."""
    try:
        return _Reader(graph, prompts_of(prompts), where).workflow()
    except RecursionError:
        raise NotExpressible(f"{where}: it is nested too deeply") from None


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
                    raise NotExpressible(f"{where}, line {statement.lineno}: {name} is no plain text")
                found[name] = said
            case ast.Expr(value=ast.Constant()):
                continue
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
        raise NotExpressible(f"{where}{line}: it is no Python: {reason}") from None


def _check_import(statement: ast.Import | ast.ImportFrom, where: str) -> None:
    imported = isinstance(statement, ast.Import)
    names = [alias.name for alias in statement.names] if imported else [statement.module or ""]
    for name in names:
        if name.split(".")[0] not in _IMPORTS and not name.startswith("workspace"):
            raise NotExpressible(
                f"{where}, line {statement.lineno}: it imports {name!r}; a workflow has its operators and "
                f"prompts, and nothing else"
            )


class _Reader:
    def __init__(self, graph: str, prompts: Mapping[str, str], where: str) -> None:
        self.where, self.prompts = where, dict(prompts)
        self.nodes: list[Node] = []
        self.attributes: dict[str, str] = {}  # of self: the operators
        self.steps = 0
        self.call, self.init = self._methods(_parsed(graph, where))

    def workflow(self) -> Workflow:
        for statement in self.init.body if self.init else []:
            self._attribute(statement)
        self._taken(self.call)
        environment: dict[str, Value] = {
            argument.arg: text(Ref("task", argument.arg))
            for argument in self.call.args.args[1:]
            if argument.arg in TASK_FIELDS
        }
        output = self._follow(_Frame(tuple(self.call.body), None), environment, {})
        if output is None:
            raise self.refused(self.call, "it may end without a return")
        return simplified(Workflow(tuple(self.nodes), output, self.prompts))

    def refused(self, node: ast.AST, reason: str) -> NotExpressible:
        return NotExpressible(f"{self.where}, line {getattr(node, 'lineno', '?')}: {reason}")

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
                case _:
                    raise self.refused(statement, "beside imports, only `class Workflow` is expected here")
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
                value=ast.Call(func=ast.Attribute(value=ast.Name(id="operator"), attr=kind)),
            ):
                kind = f"tool.{kind.removeprefix('tool_')}" if kind.startswith("tool_") else kind
                if not is_known(kind):
                    try:
                        operator(kind)
                    except UserError as error:
                        raise self.refused(statement, str(error)) from None
                self.attributes[name] = kind
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self")) | ast.Name()], value=value):
                if not isinstance(value, ast.Name | ast.Constant) and not _is_own_call(value):
                    raise self.refused(statement, f"`{_shown(statement)}` is not AFlow's")
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return
            case _:
                raise self.refused(statement, f"`{_shown(statement)}` does not belong into __init__")

    def _taken(self, call: ast.AsyncFunctionDef) -> None:
        for argument in call.args.args[1:]:
            if argument.arg not in (*TASK_FIELDS, *_IGNORED_ARGUMENTS):
                hint = nearest(argument.arg, TASK_FIELDS)
                raise self.refused(call, f"a task has no {argument.arg!r}; {hint}")

    # Statements, followed with values that are not known yet.

    def _follow(
        self, frame: _Frame | None, environment: dict[str, Value], known: dict[Ref, bool]
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
                raise self.refused(statement, f"it does not come to an end within {MOST_STEPS} statements")
            match statement:
                case ast.Return(value=value):
                    return self._returned(statement, value, environment)
                case ast.If(test=test, body=body, orelse=orelse):
                    condition = self._condition(test, environment, known)
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
                    items = self._items(statement.iter, environment) if isinstance(statement, ast.For) else ()
                    frame = _Frame((), rest, statement, items)
                case ast.Break() | ast.Continue():
                    frame = self._left(statement, rest)
                case _:
                    self._statement(statement, environment)
                    frame = rest
        return None

    def _meet(
        self, condition: Flag, statement: ast.If, environment: dict[str, Value], known: dict[Ref, bool]
    ) -> None:
        """Both branches of an `if`, and after it the variables by the condition."""
        ways = []
        for body, held in ((statement.body, True), (statement.orelse, False)):
            own = dict(environment)
            self._follow(
                _Frame(tuple(body), None), own, {**known, condition.ref: held is not condition.negated}
            )
            ways.append(own)
        then, otherwise = reversed(ways) if condition.negated else ways
        environment.clear()
        for name in [name for name in then if name in otherwise]:
            environment[name] = self._merged(statement, condition.ref, then[name], otherwise[name])

    def _merged(self, at: ast.AST, on: Ref, then: Value, otherwise: Value) -> Value:
        if then == otherwise:
            return then
        match then, otherwise:
            case Many(first), Many(second) if len(first) == len(second):
                pairs = zip(first, second, strict=True)
                return Many(tuple(self._merged(at, on, one, other) for one, other in pairs))
            case ((Result() | Either() | Many() | Cost()), _):
                return Either(on, then, otherwise)
            case _, (Result() | Either() | Many() | Cost()):
                return Either(on, then, otherwise)
        inputs = {"on": (on,), "then": self._text(at, then), "otherwise": self._text(at, otherwise)}
        return text(self._node(at, CHOOSE, inputs).main)

    def _both(
        self,
        condition: Flag,
        then: _Frame | None,
        otherwise: _Frame | None,
        environment: dict[str, Value],
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
        return (self._node(self.call, CHOOSE, inputs).main,)

    def _next_round(self, frame: _Frame, environment: dict[str, Value], known: dict[Ref, bool]) -> Any:
        """The body once more, or what comes after the loop; both where nobody knows yet."""
        loop = frame.loop
        if isinstance(loop, ast.For):
            if not frame.items:
                return frame.next
            self._assign(loop.target, frame.items[0], environment)
            return _Frame(tuple(loop.body), replace(frame, items=frame.items[1:]))
        assert isinstance(loop, ast.While)
        if self.steps > MOST_STEPS or len(self.nodes) > MOST_NODES:
            raise self.refused(loop, "the loop has no end that is known before it runs")
        condition = self._condition(loop.test, environment, known)
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

    def _statement(self, statement: ast.stmt, environment: dict[str, Value]) -> None:
        match statement:
            case ast.Assign(targets=[target], value=value):
                self._assign(target, self._value(value, environment), environment)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._value(value, environment), environment)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                left = self._value(ast.Name(name, ast.Load(), lineno=statement.lineno), environment)
                environment[name] = self._joined(statement, left, self._value(value, environment))
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" as method),
                    args=[item],
                )
            ) if isinstance(have := environment.get(name), Many):
                added = self._value(item, environment)
                more = added.items if method == "extend" and isinstance(added, Many) else (added,)
                environment[name] = Many((*have.items, *more))
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return
            case ast.Expr(value=ast.Call(func=func)) if _root(func) in _SILENT:
                return
            case ast.Expr(value=ast.Await() as value):
                self._value(value, environment)
            case ast.Import() | ast.ImportFrom():
                _check_import(statement, self.where)
            case _:
                raise self.refused(statement, f"`{_shown(statement)}` cannot be said in a workflow")

    def _assign(self, target: ast.expr, value: Value, environment: dict[str, Value]) -> None:
        match target, value:
            case ast.Name(id=name), _:
                environment[name] = value
            case ((ast.Tuple(elts=names) | ast.List(elts=names)), Many(items)) if len(names) == len(items):
                for name_, item in zip(names, items, strict=True):
                    self._assign(name_, item, environment)
            case _:
                raise self.refused(target, f"`{_shown(target)}` cannot be assigned to here")

    def _returned(
        self, statement: ast.Return, value: ast.expr | None, environment: dict[str, Value]
    ) -> Pieces:
        """The answer; what it cost, which AFlow returns beside it, is counted anyway."""
        if isinstance(value, ast.Tuple) and len(value.elts) == 2:
            value = value.elts[0]
        if value is None:
            raise self.refused(statement, "nothing is returned")
        return self._text(statement, self._value(value, environment))

    # Expressions.

    def _value(self, node: ast.expr, environment: dict[str, Value]) -> Value:
        match node:
            case ast.Constant(value=value):
                return Constant(value)
            case ast.Name(id=name):
                if name not in environment:
                    raise self.refused(node, f"{name!r} has no value on the way here")
                return environment[name]
            case ast.Await(value=ast.Call() as call):
                return self._awaited(call, environment)
            case ast.JoinedStr(values=values):
                found: Value = Constant("")
                for part in values:
                    found = self._joined(node, found, self._value(part, environment))
                return found
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return text(*self._text(node, self._value(value, environment)))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined(node, self._value(left, environment), self._value(right, environment))
            case ast.BinOp() | ast.UnaryOp(op=ast.USub()):
                return self._number(node, environment)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return Many(tuple(self._spread(items, environment)))
            case ast.ListComp(elt=element, generators=[ast.comprehension(ifs=[]) as over]):
                return Many(tuple(self._mapped(element, over.target, over.iter, environment)))
            case ast.Subscript(value=value, slice=ast.Constant(value=key)):
                return self._item(node, self._value(value, environment), key)
            case ast.Call(func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=key), *_]):
                return self._item(node, self._value(value, environment), key)
            case ast.Call(func=ast.Name(id="str"), args=[value], keywords=[]):
                return text(*self._text(node, self._value(value, environment)))
            case ast.Call(func=ast.Name(id="len"), args=[value], keywords=[]):
                many = self._value(value, environment)
                if isinstance(many, Many):
                    return Constant(len(many.items))
            case ast.Call(func=ast.Attribute(value=value, attr="strip"), args=[], keywords=[]):
                return self._value(value, environment)  # blanks around an answer mean nothing to a scorer
            case ast.Attribute(value=ast.Name(id="prompt_custom"), attr=name):
                if name not in self.prompts:
                    raise self.refused(node, f"prompt.py defines no {name!r}; {nearest(name, self.prompts)}")
                return PromptName(name)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._either(node, test, body, orelse, environment)
            case _ if _root(node) == "self" and "cost" in _shown(node):
                return Cost()
        raise self.refused(node, f"`{_shown(node)}` cannot be said in a workflow")

    def _either(
        self, node: ast.expr, test: ast.expr, body: ast.expr, orelse: ast.expr, environment: dict[str, Value]
    ) -> Value:
        condition = self._condition(test, environment, {})
        if isinstance(condition, bool):
            return self._value(body if condition else orelse, environment)
        then = self._text(node, self._value(body, environment))
        otherwise = self._text(node, self._value(orelse, environment))
        if condition.negated:
            then, otherwise = otherwise, then
        inputs = {"on": (condition.ref,), "then": then, "otherwise": otherwise}
        return text(self._node(node, CHOOSE, inputs).main)

    def _awaited(self, call: ast.Call, environment: dict[str, Value]) -> Value:
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in self.attributes:
                return self._step(call, self.attributes[name], environment)
            case ast.Attribute(value=ast.Name(id="asyncio"), attr="gather"):
                return Many(tuple(self._gathered(call, environment)))
            case ast.Name(id="self") | ast.Attribute(value=ast.Name(id="self"), attr="__call__"):
                raise self.refused(call, "a workflow that calls itself has no end known before it runs")
        raise self.refused(call, f"`{_shown(call.func)}` is none of the operators that __init__ names")

    def _gathered(self, call: ast.Call, environment: dict[str, Value]) -> Iterator[Value]:
        """Calls that are awaited together: one after the other means the same."""
        for argument in call.args:
            match argument:
                case ast.Starred(
                    value=ast.ListComp(
                        elt=ast.Call() as element, generators=[ast.comprehension(ifs=[]) as over]
                    )
                ):
                    for item in self._items(over.iter, environment):
                        inner = dict(environment)
                        self._assign(over.target, item, inner)
                        yield self._awaited(element, inner)
                case ast.Call():
                    yield self._awaited(argument, environment)
                case _:
                    raise self.refused(call, "gather takes calls of operators, or a list made in place")

    def _step(self, call: ast.Call, kind_name: str, environment: dict[str, Value]) -> Value:
        kind = operator(kind_name)
        ports = list(kind.ports)
        order = [*ports, *(["instruction"] if kind.prompted else [])]
        given = dict(zip(order, call.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        inputs: dict[str, Pieces] = {}
        settings: dict[str, int] = {}
        prompt = ""
        before: Pieces = ()
        for name, argument in given.items():
            name = _RENAMED.get(name, name)
            if name in _IGNORED_ARGUMENTS:
                continue
            value = self._value(argument, environment)
            if name == "instruction" and kind.prompted:
                prompt, before = self._instruction(call, value)
            elif name in kind.settings:
                if not isinstance(value, Constant) or not isinstance(value.value, int):
                    raise self.refused(call, f"{name} must be a number that is known before it runs")
                settings[name] = value.value
            elif name not in kind.ports:
                raise self.refused(call, f"{kind_name} has no input {name!r}; {nearest(name, order)}")
            elif kind.ports[name].kind == "texts":
                inputs[name] = self._texts(call, value)
            else:
                inputs[name] = self._text(call, value)
        if before:  # instruction + input is what the model reads, so what follows the prompt opens the input
            inputs[ports[0]] = joined((*before, *inputs.get(ports[0], ())))
        return Result(self._node(call, kind_name, inputs, prompt, settings).name)

    def _instruction(self, call: ast.Call, value: Value) -> tuple[str, Pieces]:
        match value:
            case PromptName(name, rest):
                return name, rest
            case Constant(str() as words):
                if not words.strip():
                    return "", ()
                known = next((name for name, said in self.prompts.items() if said == words), None)
                name = known or next(n for i in range(1, 999) if (n := f"PROMPT_{i}") not in self.prompts)
                self.prompts[name] = words
                return name, ()
        return "", self._text(call, value)

    def _texts(self, call: ast.AST, value: Value) -> Pieces:
        if not isinstance(value, Many):
            raise self.refused(call, "a list of solutions is expected here")
        found: list[str | Ref] = []
        for item in value.items:
            pieces = self._text(call, item)
            if len(pieces) == 1:
                found.append(pieces[0])
            else:
                found.append(self._node(call, JOIN, {"pieces": pieces}).main)
        return tuple(found)

    def _node(
        self,
        at: ast.AST,
        kind: str,
        inputs: Mapping[str, Pieces],
        prompt: str = "",
        settings: Mapping[str, int] | None = None,
    ) -> Node:
        if len(self.nodes) >= MOST_NODES:
            raise self.refused(at, f"it takes more than {MOST_NODES} steps")
        name = Workflow(tuple(self.nodes), ()).free_name(snake(kind))
        node = Node(name, kind, inputs, prompt, 1, settings or {})
        self.nodes.append(node)
        return node

    def _item(self, node: ast.expr, value: Value, key: Any) -> Value:
        match value, key:
            case Result(name), str():
                kind = next(one for one in self.nodes if one.name == name).kind
                if key not in kind.fields:
                    raise self.refused(node, f"{kind.name} returns no {key!r}; {nearest(key, kind.fields)}")
                ref = Ref(name, key)
                return Flag(ref) if kind.fields[key] == "flag" else text(ref)
            case Many(items), int() if -len(items) <= key < len(items):
                return items[key]
            case Either(on, then, otherwise), _:
                found = self._item(node, then, key), self._item(node, otherwise, key)
                return self._merged(node, on, *found)
        raise self.refused(node, f"`{_shown(node)}` cannot be looked up before it runs")

    def _items(self, source: ast.expr, environment: dict[str, Value]) -> tuple[Value, ...]:
        """What a loop goes through, all of it known before."""
        match source:
            case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]):
                numbers = [self._value(argument, environment) for argument in arguments]
                if all(isinstance(n, Constant) and isinstance(n.value, int) for n in numbers):
                    span = range(*(n.value for n in numbers))  # type: ignore[union-attr]
                    if len(span) > MOST_NODES:
                        raise self.refused(source, f"{len(span)} rounds, and {MOST_NODES} are allowed")
                    return tuple(Constant(number) for number in span)
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner], keywords=[]):
                items = self._items(inner, environment)
                return tuple(Many((Constant(number), item)) for number, item in enumerate(items))
            case _:
                many = self._value(source, environment)
                if isinstance(many, Many):
                    return many.items
        raise self.refused(source, f"how often `{_shown(source)}` goes round is not known before it runs")

    def _mapped(
        self, element: ast.expr, target: ast.expr, source: ast.expr, environment: dict[str, Value]
    ) -> Iterator[Value]:
        for item in self._items(source, environment):
            inner = dict(environment)
            self._assign(target, item, inner)
            yield self._value(element, inner)

    def _spread(self, items: list[ast.expr], environment: dict[str, Value]) -> Iterator[Value]:
        for item in items:
            if isinstance(item, ast.Starred):
                yield from self._items(item.value, environment)
            else:
                yield self._value(item, environment)

    def _condition(
        self, test: ast.expr, environment: dict[str, Value], known: Mapping[Ref, bool]
    ) -> bool | Flag:
        """Known already, or a step's answer."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                found = self._condition(operand, environment, known)
                return not found if isinstance(found, bool) else replace(found, negated=not found.negated)
            case ast.BoolOp(op=op, values=values):
                wanted = isinstance(op, ast.And)
                unknown = [
                    found
                    for value in values
                    if (found := self._condition(value, environment, known)) is not wanted
                ]
                if any(isinstance(found, bool) for found in unknown):
                    return not wanted
                if len(unknown) <= 1:
                    return unknown[0] if unknown else wanted
                raise self.refused(test, "one condition at a time: write two ifs")
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                sides = self._value(left, environment), self._value(right, environment)
                return self._compared(test, op, *sides, known)
        match self._value(test, environment):
            case Constant(value):
                return bool(value)
            case Many(items):
                return bool(items)
            case Flag(ref) as flag:
                return known[ref] is not flag.negated if ref in known else flag
            case Text((Ref() as ref,)):
                return known[ref] if ref in known else Flag(ref)
        raise self.refused(test, f"`{_shown(test)}` is no condition that is known here")

    def _compared(
        self, test: ast.expr, op: ast.cmpop, left: Value, right: Value, known: Mapping[Ref, bool]
    ) -> bool | Flag:
        match left, op, right:
            case Constant(a), _, Constant(b) if type(op) in _COMPARE:
                return bool(_COMPARE[type(op)](a, b))
            case Flag(ref, negated), (ast.Eq() | ast.Is()), Constant(bool() as wanted):
                flag = Flag(ref, negated is wanted)
                return known[ref] is not flag.negated if ref in known else flag
        raise self.refused(test, f"`{_shown(test)}` is no condition that is known here")

    def _number(self, node: ast.expr, environment: dict[str, Value]) -> Value:
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self._value(left, environment), self._value(right, environment)
                if isinstance(a, Constant) and isinstance(b, Constant) and type(op) in _ARITHMETIC:
                    numbers = (a.value, b.value)
                    if all(isinstance(n, int) and abs(n) < 10**6 for n in numbers):
                        return Constant(_ARITHMETIC[type(op)](*numbers))
            case ast.UnaryOp(operand=operand):
                value = self._value(operand, environment)
                if isinstance(value, Constant) and isinstance(value.value, int):
                    return Constant(-value.value)
        raise self.refused(node, f"`{_shown(node)}` cannot be computed before it runs")

    def _joined(self, node: ast.AST, left: Value, right: Value) -> Value:
        try:
            return plus(left, right)
        except (NoText, TypeError) as error:
            raise self.refused(node, f"text is expected, and this is {error}") from None

    def _text(self, node: ast.AST, value: Value) -> Pieces:
        if isinstance(value, PromptName):
            return joined((self.prompts[value.name], *value.rest))
        try:
            return pieces_of(value)
        except NoText as error:
            raise self.refused(node, f"text is expected, and this is {error}") from None


_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}
_ARITHMETIC: dict[type[ast.operator], Any] = {
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b if b else 0,
    ast.Mod: lambda a, b: a % b if b else 0,
}


def _leaves(statement: ast.If) -> bool:
    """Whether one of its branches may go elsewhere than on."""
    away = (ast.Return, ast.Break, ast.Continue, ast.While)
    return any(isinstance(node, away) for node in ast.walk(statement))


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_own_call(value: ast.expr) -> bool:
    names = ("create_llm_instance", "create", "CostManager", "LLM")
    return isinstance(value, ast.Call) and _root(value) in names


def _shown(node: ast.AST) -> str:
    said = ast.unparse(node).splitlines()[0]
    return said if len(said) <= 60 else said[:59] + "…"
