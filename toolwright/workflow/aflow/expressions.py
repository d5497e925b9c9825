"""Expressions of AFlow's Python, followed to what they stand for; calls of operators become nodes."""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from operator import eq, floordiv, ge, gt, is_, le, lt, mod, mul, sub
from string import Formatter
from typing import Any

from toolwright.failures import UserError, nearest
from toolwright.workflow.aflow.values import (
    Constant,
    Cost,
    Either,
    Flag,
    Many,
    NoText,
    Parts,
    Pending,
    PromptName,
    StepResult,
    Text,
    Value,
    merged,
    opposite,
    pieces_of,
    plus,
    text,
)
from toolwright.workflow.canonical import snake
from toolwright.workflow.graph import Node, Pieces, Ref, joined
from toolwright.workflow.operators import CHOOSE, CONTAINS, JOIN, PART, TASK, TASK_FIELDS, Operator, operator
from toolwright.workflow.program import Workflow

MOST_NODES = 64
IGNORED_ARGUMENTS = ("mode", "benchmark", "dataset", "question_id")
RENAMED = {"test_loop": "rounds", "vote_count": "votes"}

_SAME = ast.Name("")  # stands for a value that was found before
# What the variables of `__call__` stand for at some place in it, and which conditions hold there.
Environment = dict[str, Value]
Known = Mapping[Ref, bool]


class NotExpressible(UserError):
    """Something in a `graph.py` that a typed workflow cannot express."""


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
                    raise self.refused(node, f"{name!r} may have no value here")
                return environment[name]
            case ast.Await(value=value):
                return self._awaited(value, self.value_of(value, environment))
            case ast.Call(func=ast.Attribute(ast.Name("self"), name)) if name in self.attributes:
                return Pending(self._step(node, self.attributes[name], environment))
            case ast.Call(func=ast.Attribute(ast.Name("asyncio"), "gather"), args=args):
                started = self._spread(args, environment)
                return Pending(Many(tuple(self._awaited(node, one) for one in started)))
            case _ if root(node) == "self" and "cost" in shown(node):
                return Cost()
            case ast.JoinedStr(values=values):
                found: Value = Constant("")
                for part in values:
                    found = self.plus(node, found, self.value_of(part, environment))
                return found
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return text(*self.text_of(node, self.value_of(value, environment)))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.plus(node, self.value_of(left, environment), self.value_of(right, environment))
            case ast.BinOp(left=left, op=op, right=right):
                return self._computed(
                    node, op, self.value_of(left, environment), self.value_of(right, environment)
                )
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._computed(node, ast.Sub(), Constant(0), self.value_of(operand, environment))
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return Many(tuple(self._spread(items, environment)))
            case ast.ListComp() | ast.GeneratorExp():
                return Many(tuple(self._mapped(node, environment)))
            case ast.Call(func=ast.Attribute(value, "split"), args=[] | [_] as between, keywords=[]):
                texts = [self.text_of(node, self.value_of(one, environment)) for one in (value, *between)]
                return Parts(dict(zip(("text", "separator"), texts, strict=False)))
            case ast.Subscript(value=value, slice=place):
                return self._item(node, self.value_of(value, environment), self.value_of(place, environment))
            case ast.Call(func=ast.Attribute(value, "get"), args=[ast.Constant(key), *other]):
                found = self.value_of(value, environment)
                if isinstance(found, StepResult) and key not in self._kind(found).fields:
                    return self.value_of(other[0], environment) if other else Constant(None)
                return self._item(node, found, Constant(key))
            case ast.Compare(ops=[_]) | ast.UnaryOp(op=ast.Not()):
                held = self.condition(node, environment, {})
                return Constant(held) if isinstance(held, bool) else held
            case ast.BoolOp():
                return self._joined(node, environment)
            case ast.Call(func=ast.Attribute(value=value, attr="format")):
                return self._formatted(node, self.value_of(value, environment), environment)
            case ast.Call(func=ast.Name(id="str"), args=[value], keywords=[]):
                return text(*self.text_of(node, self.value_of(value, environment)))
            case ast.Call(func=ast.Name(id="len"), args=[value], keywords=[]):
                many = self.value_of(value, environment)
                if isinstance(many, Many):
                    return Constant(len(many.items))
            case ast.Call(func=ast.Attribute(value=ast.Constant() as between, attr="join"), args=[value]):
                found = Constant("")
                for number, item in enumerate(self.items(value, environment)):
                    apart = self.value_of(between, environment) if number else Constant("")
                    found = self.plus(node, self.plus(node, found, apart), item)
                return found
            case ast.Call(func=ast.Attribute(value=value, attr="strip"), args=[], keywords=[]):
                return self.value_of(value, environment)  # blanks around an answer mean nothing to a scorer
            case ast.Attribute(value=ast.Name(id="prompt_custom"), attr=name):
                if name not in self.prompts:
                    raise self.refused(node, f"prompt.py defines no {name!r}; {nearest(name, self.prompts)}")
                return PromptName(name)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._either(test, (body, orelse), environment)
            case ast.Call(func=ast.Name("self") | ast.Attribute(ast.Name("self"), "__call__")):
                raise self.refused(
                    node, "a workflow must not call itself, because its end must be known before it runs"
                )
            case ast.Call(func=ast.Attribute(ast.Name("self")) as called):
                raise self.refused(node, f"`{shown(called)}` is not one of the operators that __init__ names")
        raise self.refused(node, f"`{shown(node)}` has no equivalent in a workflow")

    def _either(self, test: ast.expr, ways: tuple[ast.expr, ast.expr], environment: Environment) -> Value:
        held = self.condition(test, environment, {})
        if isinstance(held, bool):
            return self.value_of(ways[0] if held else ways[1], environment)
        then, otherwise = (self.value_of(way, environment) for way in ways)
        return merged(held.ref, otherwise, then) if held.negated else merged(held.ref, then, otherwise)

    def _joined(self, node: ast.BoolOp, environment: Environment) -> Value:
        """`a or b` is `a if a else b`, and `a and b` is `b if a else a`."""
        found = self.value_of(node.values[0], environment)
        for other in node.values[1:]:
            ways = (_SAME, other) if isinstance(node.op, ast.Or) else (other, _SAME)
            found = self._either(_SAME, ways, {**environment, _SAME.id: found})
        return found

    def _formatted(self, node: ast.Call, template: Value, environment: Environment) -> Value:
        """`template.format(name=value)`, with the plain names of fields that `str.format` knows."""
        given = {str(place): argument for place, argument in enumerate(node.args)}
        given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        numbers = map(str, itertools.count())
        words = self.text_of(node, template)
        found: list[str | Ref] = []
        try:
            if not all(isinstance(piece, str) for piece in words):
                raise ValueError("a part of it is not known")
            for literal, name, spec, conversion in Formatter().parse("".join(map(str, words))):
                found.append(literal)
                if name is not None:
                    if spec or conversion or (name := name or next(numbers)) not in given:
                        raise ValueError(f"nothing is given for {name!r}")
                    found += self.text_of(node, self.value_of(given[name], environment))
        except ValueError as error:
            raise self.refused(node, f"`{shown(node)}` cannot be filled in before it runs: {error}") from None
        return text(*found)

    def _awaited(self, node: ast.expr, started: Value) -> Value:
        """What a step returns. Steps that are awaited together mean the same one after the other."""
        if not isinstance(started, Pending):
            raise self.refused(node, f"`{shown(node)}` is not a call of an operator, so it cannot be awaited")
        return started.result

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
                settings[name] = self._number(argument, environment)
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
            raise self.refused(call, "expected a list of solutions")
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
        if kind in (CHOOSE, CONTAINS):  # asked twice, it is answered once
            for known in self.nodes:
                if (known.operator, known.inputs, known.settings) == (kind, inputs, settings or {}):
                    return known
        if len(self.nodes) >= MOST_NODES:
            raise self.refused(at, f"it takes more than {MOST_NODES} steps")
        name = Workflow(tuple(self.nodes), ()).free_name(snake(kind))
        node = Node(name, kind, inputs, prompt, 1, settings or {})
        self.nodes.append(node)
        return node

    def _item(self, node: ast.expr, value: Value, key: Value) -> Value:
        match value, key:
            case StepResult(name), Constant(str() as field):
                kind = self._kind(value)
                if field not in kind.fields:
                    raise self.refused(
                        node, f"{kind.name} returns no {field!r}; {nearest(field, kind.fields)}"
                    )
                ref = Ref(name, field)
                return Flag(ref) if kind.fields[field] == "flag" else text(ref)
            case Many(items), Constant(int() as place) if -len(items) <= place < len(items):
                return items[place]
            case Parts(inputs), Constant(int() as place):
                return text(self.new_node(node, PART, inputs, "", {"place": place}).main)
            case Either(on, then, otherwise), _:
                return merged(on, self._item(node, then, key), self._item(node, otherwise, key))
        raise self.refused(node, f"`{shown(node)}` cannot be looked up before it runs")

    def _kind(self, result: StepResult) -> Operator:
        return next(node for node in self.nodes if node.name == result.node).kind

    def items(self, source: ast.expr, environment: Environment) -> tuple[Value, ...]:
        """The items of a loop, which must be known before the workflow runs."""
        match source:
            case ast.Call(func=ast.Name("range"), args=args, keywords=[]):
                span = range(*(self._number(argument, environment) for argument in args))
                if len(span) > MOST_NODES:
                    raise self.refused(source, f"{len(span)} rounds, and {MOST_NODES} are allowed")
                return tuple(Constant(number) for number in span)
            case ast.Call(func=ast.Name("enumerate"), args=[inner, *first], keywords=named):
                start = (self._number(n, environment) for n in [*first, *(word.value for word in named)])
                numbered = enumerate(self.items(inner, environment), *start)
                return tuple(Many((Constant(number), item)) for number, item in numbered)
        many = self.value_of(source, environment)
        if not isinstance(many, Many):
            raise self.refused(source, f"how often `{shown(source)}` repeats is not known before it runs")
        return many.items

    def _number(self, node: ast.expr, environment: Environment) -> int:
        value = self.value_of(node, environment)
        if not isinstance(value, Constant) or not isinstance(value.value, int):
            raise self.refused(node, f"`{shown(node)}` must be a number that is known before it runs")
        return value.value

    def _mapped(self, node: ast.ListComp | ast.GeneratorExp, environment: Environment) -> Iterator[Value]:
        over, *more = node.generators
        if more:
            raise self.refused(node, "a list is made over one list at a time")
        for item in self.items(over.iter, environment):
            inner = dict(environment)
            self.assign(over.target, item, inner)
            held = [self.condition(test, inner, {}) for test in over.ifs]
            if False in held:
                continue
            if any(isinstance(one, Flag) for one in held):
                raise self.refused(node, f"how many items `{shown(node)}` has is not known before it runs")
            yield self.value_of(node.elt, inner)

    def _spread(self, items: list[ast.expr], environment: Environment) -> Iterator[Value]:
        for item in items:
            if isinstance(item, ast.Starred):
                yield from self.items(item.value, environment)
            else:
                yield self.value_of(item, environment)

    def condition(self, test: ast.expr, environment: Environment, known: Known) -> bool | Flag:
        """A condition: known while the file is read, or the answer of a step."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return opposite(self.condition(operand, environment, known))
            case ast.BoolOp(op=op, values=values):
                every = isinstance(op, ast.And)
                asked: list[Flag] = []
                for value in values:
                    held = self.condition(value, environment, known)
                    if isinstance(held, Flag):
                        asked.append(held)
                    elif held is not every:
                        return held
                held = asked.pop() if asked else every
                for flag in reversed(asked):
                    ways = (held, False) if every else (True, held)
                    held = self._by(test, flag.ref, ways[::-1] if flag.negated else ways, known)
                return held
            case ast.Compare(ops=[op]):
                held = self._compared(test, environment, known)
                return opposite(held) if isinstance(op, ast.NotEq | ast.NotIn | ast.IsNot) else held
        return self.truth(test, self.value_of(test, environment), known)

    def truth(self, at: ast.expr, value: Value, known: Known) -> bool | Flag:
        """The condition that `if value:` tests."""
        match value:
            case Constant(said) | Many(said):
                return bool(said)
            case Flag(ref, negated):
                return self._by(at, ref, (not negated, negated), known)
            case Text((Ref() as ref, *more)) if not any(isinstance(piece, str) for piece in more):
                return self._by(at, ref, (True, self.truth(at, text(*more), known)), known)
            case Text() | PromptName() | StepResult():
                return True
            case Either(on, then, otherwise):
                ways = [self.truth(at, way, {**known, on: way is then}) for way in (then, otherwise)]
                return self._by(at, on, ways, known)
        raise self.refused(at, f"`{shown(at)}` is not a supported condition")

    def _by(self, at: ast.expr, on: Ref, ways: Sequence[bool | Flag], known: Known) -> bool | Flag:
        """One of two conditions, by a third: a text that is empty where it does not hold."""
        then, otherwise = ways
        if on in known or then == otherwise:
            return then if known.get(on, True) else otherwise
        if isinstance(then, bool) and isinstance(otherwise, bool):
            return Flag(on, negated=otherwise)
        inputs = {"on": (on,), "then": self._yes(at, then), "otherwise": self._yes(at, otherwise)}
        return self.truth(at, text(self.new_node(at, CHOOSE, inputs).main), known)

    def _yes(self, at: ast.expr, held: bool | Flag) -> Pieces:
        if isinstance(held, bool):
            return ("yes",) if held else ()
        ways = {"then": self._yes(at, not held.negated), "otherwise": self._yes(at, held.negated)}
        return (self.new_node(at, CHOOSE, {"on": (held.ref,), **ways}).main,)

    def _compared(self, test: ast.Compare, environment: Environment, known: Known) -> bool | Flag:
        """What `==`, `is`, `in` and the like say; the caller negates `!=`, `is not` and `not in`."""
        left, op, right = test.left, test.ops[0], test.comparators[0]
        within = isinstance(op, ast.In | ast.NotIn)
        if within and isinstance(right, ast.List | ast.Tuple | ast.Set):
            same = [ast.copy_location(ast.Compare(left, [ast.Eq()], [word]), test) for word in right.elts]
            return self.condition(ast.BoolOp(ast.Or(), [*same]), environment, known)
        (left, changed), (right, more) = _unchanged(left), _unchanged(right)
        words, said = self.value_of(left, environment), self.value_of(right, environment)
        if isinstance(words, Constant) and isinstance(said, Constant) and not changed | more:
            try:
                return bool(_COMPARE[type(op)](words.value, said.value))
            except TypeError as error:
                raise self.refused(test, f"`{shown(test)}` fails: {error}") from None
        if not within and (changed or isinstance(said, Constant)):
            words, said, changed, more = said, words, more, changed
        if changed or isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            raise self.refused(test, f"`{shown(test)}` is not a supported condition")
        return self._said(test, said, words, more, known, whole=not within)

    def _said(
        self, test: ast.expr, said: Value, words: Value, changed: Set[str], known: Known, *, whole: bool
    ) -> bool | Flag:
        """The condition that a text contains these words, or equals them without blanks around it."""
        match said, words:
            case Either(on, then, otherwise), _:
                ways = [
                    self._said(test, way, words, changed, {**known, on: way is then}, whole=whole)
                    for way in (then, otherwise)
                ]
                return self._by(test, on, ways, known)
            case _, Constant(None):
                return said == words
            case Flag(), Constant(wanted) if whole and (changed or isinstance(wanted, bool)):
                held = self.truth(test, said, known)
                return {"true": held, "false": opposite(held)}.get(str(wanted).lower(), False)
            case (other, Constant("")) | (Constant(""), other) if whole:
                return opposite(self.truth(test, other, known))
        inputs = {"text": self.text_of(test, said), "words": self.text_of(test, words)}
        if not inputs["text"] or not inputs["words"]:
            raise self.refused(test, f"`{shown(test)}` is not a supported condition")
        settings = {name: 1 for name, on in (("lower", "lower" in changed), ("whole", whole)) if on}
        return self.truth(test, Flag(self.new_node(test, CONTAINS, inputs, "", settings).main), known)

    def _computed(self, node: ast.expr, op: ast.operator, left: Value, right: Value) -> Value:
        match left, right:
            case Constant(int() as a), Constant(int() as b) if max(abs(a), abs(b)) < 10**6:
                with contextlib.suppress(KeyError, ZeroDivisionError):
                    return Constant(_ARITHMETIC[type(op)](a, b))
        raise self.refused(node, f"`{shown(node)}` cannot be computed before it runs")

    def plus(self, node: ast.AST, left: Value, right: Value) -> Value:
        left = text(*self.text_of(node, left)) if isinstance(left, Either) else left
        right = text(*self.text_of(node, right)) if isinstance(right, Either | PromptName) else right
        try:
            return plus(left, right)
        except (NoText, TypeError) as error:
            raise self.refused(node, f"expected text, found {error}") from None

    def text_of(self, node: ast.AST, value: Value) -> Pieces:
        match value:
            case PromptName(name, rest):
                return joined((self.prompts[name], *rest))
            case Either(on, then, otherwise):
                # None as an f-string writes it; elsewhere Python fails if it comes this way.
                ways = [
                    ("None",) if way == Constant(None) else self.text_of(node, way)
                    for way in (then, otherwise)
                ]
                inputs = {"on": (on,), "then": ways[0], "otherwise": ways[1]}
                return (self.new_node(node, CHOOSE, inputs).main,)
        try:
            return pieces_of(value)
        except NoText as error:
            raise self.refused(node, f"expected text, found {error}") from None

    def assign(self, target: ast.expr, value: Value, environment: Environment) -> None:
        match target, value:
            case ast.Name(id=name), _:
                environment[name] = value
            case ((ast.Tuple(elts=names) | ast.List(elts=names)), Many(items)) if len(names) == len(items):
                for name_, item in zip(names, items, strict=True):
                    self.assign(name_, item, environment)
            case _:
                raise self.refused(target, f"`{shown(target)}` cannot be assigned to here")


_COMPARE: dict[type[ast.cmpop], Any] = {
    **dict.fromkeys((ast.Eq, ast.NotEq), eq),
    **dict.fromkeys((ast.Is, ast.IsNot), is_),
    **dict.fromkeys((ast.In, ast.NotIn), lambda a, b: a in b),
    ast.Lt: lt,
    ast.LtE: le,
    ast.Gt: gt,
    ast.GtE: ge,
}
_ARITHMETIC: dict[type[ast.operator], Any] = {
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}


def _unchanged(node: ast.expr) -> tuple[ast.expr, Set[str]]:
    """`x` of `str(x).strip().lower()`, and the names of what is done to it: a review's yes or no, for one,
    which AFlow's own parser leaves as text."""
    changed: set[str] = set()
    while True:
        match node:
            case ast.Call(func=ast.Attribute(inner, "strip" | "lower" as name), args=[], keywords=[]):
                node = inner
            case ast.Call(func=ast.Name("str" as name), args=[inner], keywords=[]):
                node = inner
            case _:
                return node, changed
        changed |= {name} - {"strip"}  # blanks do not count anyway


def root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def shown(node: ast.AST) -> str:
    said = ast.unparse(node).splitlines()[0]
    return said if len(said) <= 60 else said[:59] + "…"
