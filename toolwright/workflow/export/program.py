"""A workflow as Python that only needs the `openai` package: as a function, or as a graph of LangGraph's."""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterator
from textwrap import indent

from toolwright.workflow.canonical import snake
from toolwright.workflow.export.bundle import SourceBundle
from toolwright.workflow.graph import Node, Pieces, Ref, refs_of
from toolwright.workflow.operators import CHOOSE, TASK
from toolwright.workflow.program import Scope, Workflow

RUNTIME = '''\
MODEL = os.environ.get("MODEL", {model!r})
TEMPERATURE, MAX_TOKENS = {temperature!r}, {max_tokens!r}
_clients = {{}}


async def ask(prompt):
    """One call of the model. OPENAI_API_KEY and OPENAI_BASE_URL say of which."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = openai.AsyncOpenAI()
    reply = await _clients[loop].chat.completions.create(
        model=MODEL,
        messages=[{{"role": "user", "content": prompt}}],
        temperature=TEMPERATURE,
        max_tokens=MAX_TOKENS,
    )
    return reply.choices[0].message.content or ""


class Step:
    """What an operator sees of the task and the model."""

    def __init__(self, task, prompt, sample):
        self.task, self.prompt, self.sample = task, prompt, sample

    def instructed(self, text):
        gap = "" if not self.prompt or self.prompt[-1].isspace() else "\\n"
        return self.prompt + gap + text

    async def ask(self, prompt):
        return await ask(prompt)

    def note(self, text):
        print(text, file=sys.stderr)
{code}

async def run(operator, task, inputs, *, prompt="", repeat=1, settings=None):
    """The operator's result; with `repeat`, a list of that many."""
    steps = [Step(task, prompt, sample) for sample in range(repeat)]
    made = await asyncio.gather(*(operator(step, inputs, settings or {{}}) for step in steps))
    return made if repeat > 1 else made[0]
'''
RUN_CODE = '''
    async def run_code(self, code):
        """A process of its own with a time limit. It is no sandbox: the code can do what you can."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            said, trouble = await asyncio.wait_for(process.communicate(), 10)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
            return types.SimpleNamespace(ok=False, stdout="", trouble="it took longer than 10 s")
        lines = trouble.decode(errors="replace").strip().splitlines()[-12:]
        return types.SimpleNamespace(
            ok=process.returncode == 0, stdout=said.decode(errors="replace"), trouble="\\n".join(lines)
        )
'''
TASK_LINE = (
    'task = types.SimpleNamespace(id=problem, extra_info={"entry_point": entry_point, "public_tests": tests})'
)
FUNCTION = '''\
async def solve(problem, entry_point="", tests=()):
    """The answer. Problems about code name their function, and may show tests (assert candidate(1) == 2)."""
    {task}
{body}
    return {output}


if __name__ == "__main__":
    print(asyncio.run(solve(" ".join(sys.argv[1:]) or sys.stdin.read())))
'''
LANGGRAPH = '''\
class State(TypedDict, total=False):
    problem: str
    entry_point: str
    tests: list
    answer: str
{keys}


{steps}


def build():
    """The compiled graph: `await build().ainvoke({{"problem": …}})` returns the state with its `answer`."""
    graph = StateGraph(State)
{edges}
    return graph.compile()


if __name__ == "__main__":
    problem = " ".join(sys.argv[1:]) or sys.stdin.read()
    print(asyncio.run(build().ainvoke({{"problem": problem}}))["answer"])
'''


def as_python(workflow: Workflow, *, model: str, temperature: float = 0.7, max_tokens: int = 2048) -> str:
    """The text of a file: `python best.py PROBLEM`, or `await solve(problem)`."""
    own = _Writer(workflow.trimmed())
    body = indent("\n".join(own.lines(())), "    ")
    head = own.head(model, temperature, max_tokens, more=())
    return head + FUNCTION.format(task=TASK_LINE, body=body, output=own.text(own.workflow.output))


def as_langgraph(workflow: Workflow, *, model: str, temperature: float = 0.7, max_tokens: int = 2048) -> str:
    """The text of a file whose `build()` returns a graph of LangGraph's, a step for every node."""
    own = _Graph(workflow.trimmed())
    imports = ("from typing import TypedDict", "from langgraph.graph import END, START, StateGraph")
    keys = "\n".join(
        f"    {_variable(node.name)}: {'list' if node.repeat > 1 else 'dict'}" for node in own.nodes
    )
    steps, edges = own.steps()
    head = own.head(model, temperature, max_tokens, more=imports)
    return head + LANGGRAPH.format(
        keys=keys, steps="\n\n\n".join(steps), edges=indent("\n".join(edges), "    ")
    )


class _Writer:
    """Writes calls of operators. A result is a dict by field, or a list of them for a repeated node."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow, self.scopes = workflow, workflow.scopes
        self.nodes = workflow.live

    def head(self, model: str, temperature: float, max_tokens: int, *, more: tuple[str, ...]) -> str:
        kinds = {node.operator: node.kind for node in self.nodes if node.operator != CHOOSE}
        bundle = SourceBundle(kinds.values())
        runs_code = any("sandbox" in kind.needs for kind in kinds.values())
        imports = {"import asyncio", "import os", "import sys", "import types", *bundle.imports}
        own = sorted(imports, key=lambda line: (line.startswith("from"), line))
        runtime = RUNTIME.format(
            model=model, temperature=temperature, max_tokens=max_tokens, code=RUN_CODE if runs_code else ""
        )
        prompts = "".join(
            f"    {json.dumps(name)}: {json.dumps(text)},\n"
            for name, text in sorted(self.workflow.prompts.items())
        )
        made = "\n".join(f"{_operator(kind.name)} = {type(kind).__name__}()" for kind in kinds.values())
        parts = [
            '"""A workflow found by `toolwright workflow search`."""',
            "from __future__ import annotations",
            "\n".join(own),
            "\n".join(["import openai", *more]),
            *([f"PROMPTS = {{\n{prompts}}}"] if prompts else []),
            runtime.rstrip(),
            bundle.text,
            made,
        ]
        return "\n\n".join(parts) + "\n\n\n"

    def lines(self, scope: Scope) -> Iterator[str]:
        """The statements of a scope, each choice with those of its branches."""
        for node in self.nodes:
            if self.scopes[node.name] != scope:
                continue
            name = _variable(node.name)
            if node.operator != CHOOSE:
                yield f"{name} = {self.call(node)}"
                continue
            for word, port in ((f"if {self.condition(node)}:", "then"), ("else:", "otherwise")):
                yield word
                yield from (f"    {line}" for line in self.lines((*scope, (node.name, port))))
                yield f"    {name} = {self.chosen(node, port)}"

    def call(self, node: Node) -> str:
        inputs = [
            f"{json.dumps(port)}: "
            + (self.texts if declared.kind == "texts" else self.text)(node.inputs.get(port, ()))
            for port, declared in node.kind.ports.items()
        ]
        more = f", prompt=PROMPTS[{json.dumps(node.prompt)}]" if node.prompt else ""
        more += f", repeat={node.repeat}" if node.repeat > 1 else ""
        more += f", settings={dict(node.settings)!r}" if node.settings else ""
        return f"await run({_operator(node.operator)}, task, {{{', '.join(inputs)}}}{more})"

    def condition(self, node: Node) -> str:
        (on,) = node.inputs["on"]
        assert isinstance(on, Ref)
        return self._ref(on)

    def chosen(self, node: Node, port: str) -> str:
        return f'{{"value": {self.text(node.inputs.get(port, ()))}}}'

    def text(self, pieces: Pieces) -> str:
        said = [f"str({self._ref(p)})" if isinstance(p, Ref) else json.dumps(p) for p in pieces]
        return " + ".join(said) or '""'

    def texts(self, pieces: Pieces) -> str:
        said = []
        rank = {name: place for place, name in enumerate(self.workflow.identities)}  # as the interpreter does
        for piece in sorted(pieces, key=lambda p: rank.get(p.node, -1) if isinstance(p, Ref) else -1):
            if isinstance(piece, Ref) and piece.node != TASK and self.workflow.by_name[piece.node].repeat > 1:
                said.append(f"*(str(one[{json.dumps(piece.field)}]) for one in {_variable(piece.node)})")
            else:
                said.append(self.text((piece,)))
        return f"[{', '.join(said)}]"

    def _ref(self, ref: Ref) -> str:
        return ref.field if ref.node == TASK else f"{_variable(ref.node)}[{json.dumps(ref.field)}]"


class _Graph(_Writer):
    """Writes a step and its edges for every node. A choice is a conditional edge to its branches, each of
    which ends with a step that sets the choice's value."""

    def steps(self) -> tuple[list[str], list[str]]:
        self._steps: list[str] = []
        self._edges: list[str] = []
        last = self._scope((), ["START"])
        said = f'{{"answer": {self.text(self.workflow.output)}}}'
        self._step("answer", list(refs_of(self.workflow.output)), said, after=last)
        self._edges.append('graph.add_edge("answer_step", END)')
        return self._steps, self._edges

    def _scope(self, scope: Scope, after: list[str]) -> list[str]:
        """Write the steps of a scope in a row. `after` and the result are names of steps, as written."""
        for node in self.nodes:
            if self.scopes[node.name] != scope:
                continue
            if node.operator == CHOOSE:
                after = self._choice(node, scope, after)
            else:
                name = _variable(node.name)
                made = f"{{{json.dumps(name)}: {self.call(node)}}}"
                after = [self._step(name, list(node.refs), made, after=after)]
        return after

    def _choice(self, node: Node, scope: Scope, after: list[str]) -> list[str]:
        name = _variable(node.name)
        ends, entries = [], []
        for port in ("then", "otherwise"):
            entry = self._plain(f"{name}_{port}", [], "{}")
            last = self._scope((*scope, (node.name, port)), [entry])
            value = f"{{{json.dumps(name)}: {self.chosen(node, port)}}}"
            refs = list(refs_of(node.inputs.get(port, ())))
            ends.append(self._step(f"{name}_{port}_value", refs, value, after=last))
            entries.append(entry)
        bound = self._bound(list(refs_of(node.inputs["on"])))
        way = f"{entries[0]} if {self.condition(node)} else {entries[1]}"
        self._steps.append(f"def {name}_route(state):\n{bound}    return {way}")
        for one in after:
            self._edges.append(f"graph.add_conditional_edges({one}, {name}_route, [{', '.join(entries)}])")
        return ends

    def _step(self, name: str, refs: list[Ref], made: str, *, after: list[str]) -> str:
        here = self._plain(name, refs, made)
        self._edges += [f"graph.add_edge({one}, {here})" for one in after]
        return here

    def _plain(self, name: str, refs: list[Ref], made: str) -> str:
        task = f"    {TASK_LINE}\n" if "run(" in made else ""
        self._steps.append(
            f"async def {name}_step(state):\n{self._bound(refs, all=bool(task))}{task}    return {made}"
        )
        self._edges.append(f'graph.add_node("{name}_step", {name}_step)')
        return f'"{name}_step"'

    def _bound(self, refs: list[Ref], *, all: bool = False) -> str:
        """The parts of the state that a step reads, as the variables that calls are written with."""
        lines = [
            f"    {field} = state.get({json.dumps(field)}, {empty})\n"
            for field, empty in (("problem", '""'), ("entry_point", '""'), ("tests", "()"))
            if all or Ref(TASK, field) in refs
        ]
        names = dict.fromkeys(_variable(ref.node) for ref in refs if ref.node != TASK)
        return "".join([*lines, *(f"    {name} = state[{json.dumps(name)}]\n" for name in names)])


def _operator(name: str) -> str:
    return f"run_{snake(name)}"


_TAKEN = frozenset(
    ["problem", "entry_point", "tests", "task", "run", "answer", "solve", "ask", "state", "build", "graph"]
)


def _variable(name: str) -> str:
    return f"{name}_result" if name in _TAKEN or keyword.iskeyword(name) or name.startswith("run_") else name
