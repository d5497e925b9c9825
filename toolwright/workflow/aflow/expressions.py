"""Expressions of AFlow's Python, followed to what they stand for; calls of operators become nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
    StepResult,
    Text,
    Value,
    pieces_of,
    plus,
    text,
)
from toolwright.workflow.canonical import snake
from toolwright.workflow.graph import Node, Pieces, Ref, joined
from toolwright.workflow.operators import CHOOSE, CONTAINS, JOIN, TASK, TASK_FIELDS, Operator, operator
from toolwright.workflow.program import Workflow

MOST_NODES = 64
IGNORED_ARGUMENTS = ("mode", "benchmark", "dataset", "question_id")
RENAMED = {"test_loop": "rounds", "vote_count": "votes"}

# What the variables of `__call__` stand for at some place in it.
Environment = dict[str, Value]


class NotExpressible(UserError):
    """Something in a `graph.py` that the typed form has no word for."""


class GraphExpressions:
    """What is known while a `graph.py` is read, and what its expressions make of it."""

    def __init__(self, prompts: Mapping[str, str], where: str) -> None:
        self.where, self.prompts = where, dict(prompts)
        self.nodes: list[Node] = []
        self.attributes: dict[str, str] = {}  # of self: the operators
        self.settings: dict[str, dict[str, int]] = {}  # that __init__ gives them

    def refused(self, node: ast.AST, reason: str) -> NotExpressible:
        return NotExpressible(f"{self.where}, line {getattr(node, 'lineno', '?')}: {reason}")

    def value_of(self, node: ast.expr, environment: Environment) -> Value:
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
                    found = self.plus(node, found, self.value_of(part, environment))
                return found
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return text(*self.text_of(node, self.value_of(value, environment)))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.plus(node, self.value_of(left, environment), self.value_of(right, environment))
            case ast.BinOp() | ast.UnaryOp(op=ast.USub()):
                return self._number(node, environment)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return Many(tuple(self._spread(items, environment)))
            case ast.ListComp(elt=element, generators=[ast.comprehension(ifs=[]) as over]):
                return Many(tuple(self._mapped(element, over.target, over.iter, environment)))
            case ast.Subscript(value=value, slice=ast.Constant(value=key)):
                return self._item(node, self.value_of(value, environment), key)
            case ast.Call(
                func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=key), *other]
            ):
                found = self.value_of(value, environment)
                if other and isinstance(found, StepResult) and key not in self._kind(found).fields:
                    return self.value_of(other[0], environment)
                return self._item(node, found, key)
            case ast.Compare():
                held = self.condition(node, environment, {})
                return Constant(held) if isinstance(held, bool) else held
            case ast.Call(func=ast.Name(id="str"), args=[value], keywords=[]):
                return text(*self.text_of(node, self.value_of(value, environment)))
            case ast.Call(func=ast.Name(id="len"), args=[value], keywords=[]):
                many = self.value_of(value, environment)
                if isinstance(many, Many):
                    return Constant(len(many.items))
            case ast.Call(func=ast.Attribute(value=ast.Constant() as between, attr="join"), args=[value]):
                found = Constant("")
                for place, item in enumerate(self.items(value, environment)):
                    apart = self.value_of(between, environment) if place else Constant("")
                    found = self.plus(node, self.plus(node, found, apart), item)
                return found
            case ast.Call(func=ast.Attribute(value=value, attr="strip"), args=[], keywords=[]):
                return self.value_of(value, environment)  # blanks around an answer mean nothing to a scorer
            case ast.Attribute(value=ast.Name(id="prompt_custom"), attr=name):
                if name not in self.prompts:
                    raise self.refused(node, f"prompt.py defines no {name!r}; {nearest(name, self.prompts)}")
                return PromptName(name)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._either(node, test, body, orelse, environment)
            case _ if root(node) == "self" and "cost" in shown(node):
                return Cost()
        raise self.refused(node, f"`{shown(node)}` cannot be said in a workflow")

    def _either(
        self, node: ast.expr, test: ast.expr, body: ast.expr, orelse: ast.expr, environment: Environment
    ) -> Value:
        condition = self.condition(test, environment, {})
        if isinstance(condition, bool):
            return self.value_of(body if condition else orelse, environment)
        then = self.text_of(node, self.value_of(body, environment))
        otherwise = self.text_of(node, self.value_of(orelse, environment))
        if condition.negated:
            then, otherwise = otherwise, then
        inputs = {"on": (condition.ref,), "then": then, "otherwise": otherwise}
        return text(self.new_node(node, CHOOSE, inputs).main)

    def _awaited(self, call: ast.Call, environment: Environment) -> Value:
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in self.attributes:
                return self._step(call, self.attributes[name], environment)
            case ast.Attribute(value=ast.Name(id="asyncio"), attr="gather"):
                return Many(tuple(self._gathered(call, environment)))
            case ast.Name(id="self") | ast.Attribute(value=ast.Name(id="self"), attr="__call__"):
                raise self.refused(call, "a workflow that calls itself has no end known before it runs")
        raise self.refused(call, f"`{shown(call.func)}` is none of the operators that __init__ names")

    def _gathered(self, call: ast.Call, environment: Environment) -> Iterator[Value]:
        """Calls that are awaited together: one after the other means the same."""
        for argument in call.args:
            match argument:
                case ast.Starred(
                    value=ast.ListComp(
                        elt=ast.Call() as element, generators=[ast.comprehension(ifs=[]) as over]
                    )
                ):
                    for item in self.items(over.iter, environment):
                        inner = dict(environment)
                        self.assign(over.target, item, inner)
                        yield self._awaited(element, inner)
                case ast.Call():
                    yield self._awaited(argument, environment)
                case _:
                    raise self.refused(call, "gather takes calls of operators, or a list made in place")

    def _step(self, call: ast.Call, kind_name: str, environment: Environment) -> Value:
        kind = operator(kind_name)
        ports = list(kind.ports)
        order = [*ports, *(["instruction"] if kind.prompted else [])]
        given = dict(zip(order, call.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        inputs: dict[str, Pieces] = {}
        settings = dict(self.settings.get(call.func.attr, {})) if isinstance(call.func, ast.Attribute) else {}
        prompt = ""
        before: Pieces = ()
        for name, argument in given.items():
            name = RENAMED.get(name, name)
            if name in IGNORED_ARGUMENTS:
                continue
            value = self.value_of(argument, environment)
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
                inputs[name] = self.text_of(call, value)
        for port, declared in kind.ports.items():  # DROP's and HotpotQA's ScEnsemble takes no problem
            if declared.required and declared.source in TASK_FIELDS:
                inputs.setdefault(port, (Ref(TASK, declared.source),))
        if before:  # instruction + input is what the model reads, so what follows the prompt opens the input
            inputs[ports[0]] = joined((*before, *inputs.get(ports[0], ())))
        return StepResult(self.new_node(call, kind_name, inputs, prompt, settings).name)

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
        return "", self.text_of(call, value)

    def _texts(self, call: ast.AST, value: Value) -> Pieces:
        if not isinstance(value, Many):
            raise self.refused(call, "a list of solutions is expected here")
        found: list[str | Ref] = []
        for item in value.items:
            pieces = self.text_of(call, item)
            if len(pieces) == 1:
                found.append(pieces[0])
            else:
                found.append(self.new_node(call, JOIN, {"pieces": pieces}).main)
        return tuple(found)

    def new_node(
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
            case StepResult(name), str():
                kind = self._kind(value)
                if key not in kind.fields:
                    raise self.refused(node, f"{kind.name} returns no {key!r}; {nearest(key, kind.fields)}")
                ref = Ref(name, key)
                return Flag(ref) if kind.fields[key] == "flag" else text(ref)
            case Many(items), int() if -len(items) <= key < len(items):
                return items[key]
            case Either(on, then, otherwise), _:
                found = self._item(node, then, key), self._item(node, otherwise, key)
                return self.merged(node, on, *found)
        raise self.refused(node, f"`{shown(node)}` cannot be looked up before it runs")

    def _kind(self, result: StepResult) -> Operator:
        return next(node for node in self.nodes if node.name == result.node).kind

    def items(self, source: ast.expr, environment: Environment) -> tuple[Value, ...]:
        """What a loop goes through, all of it known before."""
        match source:
            case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]):
                numbers = [self.value_of(argument, environment) for argument in arguments]
                if all(isinstance(n, Constant) and isinstance(n.value, int) for n in numbers):
                    span = range(*(n.value for n in numbers))  # type: ignore[union-attr]
                    if len(span) > MOST_NODES:
                        raise self.refused(source, f"{len(span)} rounds, and {MOST_NODES} are allowed")
                    return tuple(Constant(number) for number in span)
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner], keywords=[]):
                items = self.items(inner, environment)
                return tuple(Many((Constant(number), item)) for number, item in enumerate(items))
            case _:
                many = self.value_of(source, environment)
                if isinstance(many, Many):
                    return many.items
        raise self.refused(source, f"how often `{shown(source)}` goes round is not known before it runs")

    def _mapped(
        self, element: ast.expr, target: ast.expr, source: ast.expr, environment: Environment
    ) -> Iterator[Value]:
        for item in self.items(source, environment):
            inner = dict(environment)
            self.assign(target, item, inner)
            yield self.value_of(element, inner)

    def _spread(self, items: list[ast.expr], environment: Environment) -> Iterator[Value]:
        for item in items:
            if isinstance(item, ast.Starred):
                yield from self.items(item.value, environment)
            else:
                yield self.value_of(item, environment)

    def condition(self, test: ast.expr, environment: Environment, known: Mapping[Ref, bool]) -> bool | Flag:
        """Known already, or a step's answer."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                found = self.condition(operand, environment, known)
                return not found if isinstance(found, bool) else replace(found, negated=not found.negated)
            case ast.BoolOp(op=op, values=values):
                wanted = isinstance(op, ast.And)
                unknown = [
                    found
                    for value in values
                    if (found := self.condition(value, environment, known)) is not wanted
                ]
                if any(isinstance(found, bool) for found in unknown):
                    return not wanted
                if len(unknown) <= 1:
                    return unknown[0] if unknown else wanted
                raise self.refused(test, "one condition at a time: write two ifs")
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as op], comparators=[right]):
                return self._contained(test, left, op, right, environment, known)
            case ast.Compare(
                left=left, ops=[ast.Eq()], comparators=[ast.Constant(value="true" | "false" as word)]
            ) if (inner := _without_methods(left)) is not left:
                found = self.condition(inner, environment, known)
                wanted = word == "true"
                if isinstance(found, bool):
                    return found is wanted
                return found if wanted else replace(found, negated=not found.negated)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                sides = self.value_of(left, environment), self.value_of(right, environment)
                return self._compared(test, op, *sides, known)
        match self.value_of(test, environment):
            case Constant(value):
                return bool(value)
            case Many(items):
                return bool(items)
            case Flag(ref) as flag:
                return known[ref] is not flag.negated if ref in known else flag
            case Text((Ref() as ref,)):
                return known[ref] if ref in known else Flag(ref)
        raise self.refused(test, f"`{shown(test)}` is no condition that is known here")

    def _contained(
        self,
        test: ast.expr,
        left: ast.expr,
        op: ast.cmpop,
        right: ast.expr,
        environment: Environment,
        known: Mapping[Ref, bool],
    ) -> bool | Flag:
        """`"words" in text`, or in `text.lower()`."""
        match right:
            case ast.Call(func=ast.Attribute(value=inner, attr="lower"), args=[], keywords=[]):
                right, lower = inner, 1
            case _:
                lower = 0
        inputs = {
            "text": self.text_of(test, self.value_of(right, environment)),
            "words": self.text_of(test, self.value_of(left, environment)),
        }
        if not inputs["text"] or not inputs["words"]:
            raise self.refused(test, f"`{shown(test)}` is no condition that is known here")
        settings = {"lower": 1} if lower else {}
        asked = (CONTAINS, inputs, settings)
        alike = (node for node in self.nodes if (node.operator, node.inputs, node.settings) == asked)
        node = next(alike, None) or self.new_node(test, CONTAINS, inputs, "", settings)
        flag = Flag(node.main, negated=isinstance(op, ast.NotIn))
        return known[flag.ref] is not flag.negated if flag.ref in known else flag

    def _compared(
        self, test: ast.expr, op: ast.cmpop, left: Value, right: Value, known: Mapping[Ref, bool]
    ) -> bool | Flag:
        match left, op, right:
            case Constant(a), _, Constant(b) if type(op) in _COMPARE:
                return bool(_COMPARE[type(op)](a, b))
            case Flag(ref, negated), (ast.Eq() | ast.Is()), Constant(bool() as wanted):
                flag = Flag(ref, negated is wanted)
                return known[ref] is not flag.negated if ref in known else flag
        raise self.refused(test, f"`{shown(test)}` is no condition that is known here")

    def _number(self, node: ast.expr, environment: Environment) -> Value:
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self.value_of(left, environment), self.value_of(right, environment)
                if isinstance(a, Constant) and isinstance(b, Constant) and type(op) in _ARITHMETIC:
                    numbers = (a.value, b.value)
                    if all(isinstance(n, int) and abs(n) < 10**6 for n in numbers):
                        return Constant(_ARITHMETIC[type(op)](*numbers))
            case ast.UnaryOp(operand=operand):
                value = self.value_of(operand, environment)
                if isinstance(value, Constant) and isinstance(value.value, int):
                    return Constant(-value.value)
        raise self.refused(node, f"`{shown(node)}` cannot be computed before it runs")

    def plus(self, node: ast.AST, left: Value, right: Value) -> Value:
        try:
            return plus(left, right)
        except (NoText, TypeError) as error:
            raise self.refused(node, f"text is expected, and this is {error}") from None

    def text_of(self, node: ast.AST, value: Value) -> Pieces:
        if isinstance(value, PromptName):
            return joined((self.prompts[value.name], *value.rest))
        try:
            return pieces_of(value)
        except NoText as error:
            raise self.refused(node, f"text is expected, and this is {error}") from None

    def assign(self, target: ast.expr, value: Value, environment: Environment) -> None:
        match target, value:
            case ast.Name(id=name), _:
                environment[name] = value
            case ((ast.Tuple(elts=names) | ast.List(elts=names)), Many(items)) if len(names) == len(items):
                for name_, item in zip(names, items, strict=True):
                    self.assign(name_, item, environment)
            case _:
                raise self.refused(target, f"`{shown(target)}` cannot be assigned to here")

    def merged(self, at: ast.AST, on: Ref, then: Value, otherwise: Value) -> Value:
        if then == otherwise:
            return then
        match then, otherwise:
            case Many(first), Many(second) if len(first) == len(second):
                pairs = zip(first, second, strict=True)
                return Many(tuple(self.merged(at, on, one, other) for one, other in pairs))
            case ((StepResult() | Either() | Many() | Cost()), _):
                return Either(on, then, otherwise)
            case _, (StepResult() | Either() | Many() | Cost()):
                return Either(on, then, otherwise)
        inputs = {"on": (on,), "then": self.text_of(at, then), "otherwise": self.text_of(at, otherwise)}
        return text(self.new_node(at, CHOOSE, inputs).main)


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


def _is_text(value: Value) -> bool:
    """Whether text is all it is: a yes or no would be lost in one."""
    literal = isinstance(value, Constant) and isinstance(value.value, str)
    return literal or isinstance(value, Text | PromptName)


def _without_methods(node: ast.expr) -> ast.expr:
    """`x` of `str(x).strip().lower()`: a review's yes or no, which AFlow's own parser leaves as text."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr="strip" | "lower"), args=[], keywords=[]):
                node = inner
            case ast.Call(func=ast.Name(id="str"), args=[inner], keywords=[]):
                node = inner
            case _:
                return node


def root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def shown(node: ast.AST) -> str:
    said = ast.unparse(node).splitlines()[0]
    return said if len(said) <= 60 else said[:59] + "…"
