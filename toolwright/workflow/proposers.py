"""Proposers of edits: every legal edit alike, or a chat model that is shown what was tried."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from toolwright.failures import UserError
from toolwright.providers import ChatModel
from toolwright.trajectory import Task
from toolwright.workflow.aflow.read import read
from toolwright.workflow.apply import applied, legal
from toolwright.workflow.diagram import as_text
from toolwright.workflow.edits import FORMS, NamedPrompt, Set, parse
from toolwright.workflow.graph import Node, WorkflowLimits
from toolwright.workflow.interpreter import problem_of
from toolwright.workflow.operators import operator
from toolwright.workflow.pool import Contrast, ExperiencePool
from toolwright.workflow.program import Workflow
from toolwright.workflow.tree import Proposal

SHOWN_TRIED = 8  # tried edits in the report, those with the largest effect


@dataclass(frozen=True)
class TriedEdit:
    """An edit tried from this state, and its gain."""

    edit: str
    gain: float
    failure: str = ""


@dataclass(frozen=True)
class WorkflowState:
    """A workflow in a search, with what is known of it. Its identity is the fingerprint alone."""

    setting: str  # data set and executor
    kind: str  # of problems: math, code, question, …
    workflow: Workflow
    score: float | None = None
    start: float | None = None  # the score that the search began with
    tried: Sequence[TriedEdit] = ()
    left: float = 1.0  # part of the budget
    wrong: Sequence[tuple[str, str]] = ()  # tasks that it got wrong by id, each with why it failed or ""

    @property
    def anchor(self) -> str:
        """The state's identity: steps with the same anchor are compared with each other."""
        return f"{self.setting}/{self.workflow.fingerprint}"

    @property
    def report(self) -> str:
        """The state for a chat model: also prompts, scores, the edits tried and the budget."""
        lines = [f"problems: {self.kind}", as_text(self.workflow)]
        lines += [f"{name} = {text!r}" for name, text in sorted(self.workflow.prompts.items())]
        if self.score is not None:
            above = "" if self.start is None else f" ({100 * (self.score - self.start):+.1f} on the start)"
            lines.append(f"score: {100 * self.score:.1f}{above}")
        ranked = sorted(self.tried, key=lambda one: (bool(one.failure), -abs(one.gain)))[:SHOWN_TRIED]
        lines += [f"tried: {one.edit} -> {one.failure or f'{100 * one.gain:+.1f}'}" for one in ranked]
        lines.append(f"budget left: {100 * self.left:.0f} %")
        return "\n".join(lines)


@dataclass(frozen=True)
class Editor:
    """The edits that are allowed for workflows of one data set."""

    operators: Sequence[str]
    prompts: Mapping[str, str] = field(default_factory=dict)  # that may be given to operators, by name
    limits: WorkflowLimits = field(default_factory=WorkflowLimits)
    offers: AbstractSet[str] | None = None  # what the data set offers to operators that need it; None: all
    known: AbstractSet[str] | None = None  # fingerprints of the workflows that can be run; None: all

    def edits(self, workflow: Workflow) -> dict[str, Workflow]:
        """Every legal edit, as text, with the workflow it leads to."""
        found = legal(workflow, self.operators, prompts=self.prompts, limits=self.limits, offers=self.offers)
        return {str(edit): made for edit, made in found.items() if self.can_run(made)}

    def can_run(self, workflow: Workflow) -> bool:
        return self.known is None or workflow.fingerprint in self.known


class UniformProposer:
    def __init__(self, editor: Editor) -> None:
        self.editor = editor

    async def propose(self, state: WorkflowState, again: int) -> Sequence[Proposal]:
        if again:
            return []
        return [Proposal(edit, made) for edit, made in self.editor.edits(state.workflow).items()]


ASK = """\
A workflow answers problems by asking a language model in several steps. Improve it by one change.

{state}

Operators:
{operators}
Prompts that are known:
{prompts}
{failures}{experience}
A change is one line of this language:
{forms}
PROMPT is the name of a known one, or NAME="text" for a new one of yours. An ensemble compares N samples of
the node before it (x N). Do not repeat what was tried.

Think about what goes wrong now, then put the change between <edit> and </edit>. If no line can say it, write
the whole workflow as AFlow's Python between <graph> and </graph>, its prompts between <prompt> and </prompt>.
"""
REFLECT = """\
One step of a workflow is told these words before each problem:

{words}

{failures}
What do these failures have in common? Think about what the words leave out or get wrong, then write better
ones: general advice that would have prevented such failures, nothing about these problems alone. Put the new
words, all of them, between <words> and </words>.
"""
CONTRASTS, SHOWN_WRONG = 3, 3
LONGEST = 1200  # characters of a problem or an answer that is shown
TEMPERATURE, MOST_TOKENS = 1.0, 2048


class ChatProposer:
    """A chat model as proposer, as in AFlow. The pool keeps replies: a resumed search does not pay again.

    The last of the proposals that are asked for at a time is a reflection on failures, as GEPA's
    (https://arxiv.org/abs/2507.19457): new words for the prompt of one step."""

    def __init__(
        self,
        chat: ChatModel,
        editor: Editor,
        pool: ExperiencePool | None,
        *,
        search: str,
        proposals: int = 3,
        tasks: Iterable[Task] = (),
    ) -> None:
        """`tasks`: of the search; the model is shown some that went wrong."""
        self.chat, self.editor, self.pool = chat, editor, pool
        self.tasks = {task.id: task for task in tasks}
        self.search, self.proposals = search, proposals

    async def propose(self, state: WorkflowState, again: int) -> Sequence[Proposal]:
        prompt, node = self.prompt(state), self._reflected(state, again)
        prompts = [prompt] * self.proposals
        if node is not None:
            prompts[-1] = self.reflection(state, node)
        first = again * self.proposals
        replies = await asyncio.gather(
            *(self._asked(state, text, first + n) for n, text in enumerate(prompts))
        )
        made = [self.understood(state.workflow, reply) for reply in replies]
        if node is not None:
            made[-1] = self.reworded(state.workflow, node, replies[-1])
        return made

    def _reflected(self, state: WorkflowState, again: int) -> Node | None:
        """The step whose words are thought over: each in turn, as long as there are failures to show."""
        prompted = [node for node in state.workflow.live if node.kind.prompted]
        shown = [id for id, _ in state.wrong if id in self.tasks]
        return prompted[again % len(prompted)] if prompted and shown and self.proposals > 1 else None

    def reflection(self, state: WorkflowState, node: Node) -> str:
        said = state.workflow.prompts.get(node.prompt, "") or "(none)"
        failures = "".join(map(self._failed, state.wrong[:SHOWN_WRONG]))
        return REFLECT.format(words=said, failures=failures)

    def reworded(self, workflow: Workflow, node: Node, reply: str) -> Proposal:
        """The workflow with a step's new words; a reply without any is a refused proposal."""
        text = _between(reply, "words")
        if not text:
            return _refused(reply, "the answer holds no <words>")
        edit = Set(node.name, "prompt", NamedPrompt("REFLECTED_PROMPT", f"{text}\n"))
        return Proposal(str(edit), applied(workflow, edit, self.editor.prompts))

    def prompt(self, state: WorkflowState) -> str:
        pairs = self.pool.contrasts(CONTRASTS, setting=state.setting) if self.pool is not None else []
        return ASK.format(
            state=state.report,
            operators="\n".join(f"  {name}: {_described(name)}" for name in self.editor.operators),
            prompts="\n".join(f"  {name} = {text!r}" for name, text in self.editor.prompts.items())
            or "  none",
            forms="\n".join(f"  {form}" for form in FORMS.values()),
            failures="".join(map(self._failed, state.wrong[:SHOWN_WRONG])),
            experience="".join(map(_told, pairs)),
        )

    def _failed(self, wrong: tuple[str, str]) -> str:
        """A task that went wrong, cut to what a prompt can hold."""
        id, why = wrong
        if id not in self.tasks:
            return ""
        problem, truth = problem_of(self.tasks[id])[:LONGEST], str(self.tasks[id].ground_truth)[:LONGEST]
        reason = f"\nIt failed: {why[:LONGEST]}" if why else ""
        return f"It went wrong on this problem:\n{problem}\nThe right answer: {truth}{reason}\n\n"

    async def _asked(self, state: WorkflowState, prompt: str, number: int) -> str:
        key = f"{state.workflow.fingerprint}/{number}"
        known = self.pool.proposed(self.search, key) if self.pool is not None else None
        if known is not None:
            return known
        said = await self.chat.complete(
            [{"role": "user", "content": prompt}],
            temperature=TEMPERATURE,
            max_tokens=MOST_TOKENS,
            seed=number,
        )
        if self.pool is not None:
            self.pool.propose(self.search, key, said.text, cost=said.cost or 0.0)
        return said.text

    def understood(self, workflow: Workflow, reply: str) -> Proposal:
        """Parse a reply. What cannot be parsed is a refused proposal: recorded, and never run."""
        edit = _between(reply, "edit")
        try:
            if edit is not None:
                return Proposal(edit, applied(workflow, parse(edit), self.editor.prompts))
            graph = _between(reply, "graph")
            if graph is None:
                raise UserError("the answer holds neither <edit> nor <graph>")
            made = read(graph, _between(reply, "prompt") or "")
            return Proposal((_between(reply, "modification") or "rewritten")[:200], made)
        except UserError as error:
            return _refused(edit or reply, str(error))


def _refused(reply: str, failure: str) -> Proposal:
    """A stand-in with a fingerprint of its own, which never runs: the failure says why."""
    named = reply.strip()[:200]
    return Proposal(named, Workflow((), (named,)), failure=failure)


def _described(name: str) -> str:
    """What an operator does: the first paragraph of its docstring, its inputs and its fields."""
    kind = operator(name)
    said = " ".join((type(kind).__doc__ or "").split("\n\n")[0].split())
    return f"{said} Reads {', '.join(kind.ports)}; returns {', '.join(kind.fields)}."


def _told(pair: Contrast) -> str:
    better, worse = pair.better, pair.worse
    return (
        f"From one workflow, `{better.edit}` brought {100 * better.gain:+.1f} points and `{worse.edit}` "
        f"{100 * worse.gain:+.1f}.\n"
    )


def _between(text: str, tag: str) -> str | None:
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return str(found[-1]).strip() if found else None
