"""An attempt as text, for the terminal and the report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from toolwright.images import PART, label, text_of
from toolwright.observe.numbers import compact, duration
from toolwright.trajectory import ROOT, Group, Segment, Task, Trajectory

# An agent may write escape sequences; a terminal would obey them, a page may not hold them.
_PICTURES: dict[int, int | str] = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], 0xFFFD)
# What turns the direction of text, and what nobody sees: Unicode's Default_Ignorable_Code_Point, line and
# paragraph separators, annotations. U+FE0F stays: it only asks for an emoji in colour.
_UNSEEN = (
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5),
    (0x180B, 0x180F), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164),
    (0xFE00, 0xFE0E), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB), (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
_PICTURES |= {code: f"⟨U+{code:04X}⟩" for first, last in _UNSEEN for code in range(first, last + 1)}


def visible(text: str) -> str:
    """Replace control characters by pictures, such as ␛, and name invisible ones, such as ⟨U+202E⟩."""
    return text.replace("\r\n", "\n").translate(_PICTURES)


def cut(text: str, most: int) -> str:
    """Cut out the middle of a long text: a question stands at the start, an answer at the end."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3
    return f"{text[:head]}\n… {len(text) - head - tail:,} characters …\n{text[-tail:]}"


def messages(trajectory: Trajectory) -> list[tuple[str, str]]:
    """The prompt as (role, text); the text of its tokens if the task has no messages."""
    found = [(str(m.get("role", "?")), _content(m.get("content"))) for m in trajectory.task.prompt]
    if found:
        return found
    text = "".join(segment.text for segment in trajectory.segments if segment.source == "prompt")
    return [("prompt", text)] if text else []


def question(task: Task, most: int) -> str:
    """The last message of the user, on one line."""
    texts = [_content(m.get("content")) for m in task.prompt if m.get("role") == "user"]
    line = " ".join(visible(texts[-1] if texts else task.id).split())
    return line if len(line) <= most else line[: most - 1] + "…"


@dataclass(frozen=True)
class ShownSegment:
    """A segment as it is shown: its text, the reward of its step, and where it branched off."""

    segment: Segment
    reward: float | None
    branch: str  # empty where it goes on from the segment before it

    @property
    def note(self) -> str:
        """`branch from turn 1, reward 0.5`, or less."""
        reward = "" if self.reward is None else f"reward {compact(self.reward)}"
        return ", ".join(word for word in (self.branch, reward) if word)


def segments(trajectory: Trajectory) -> list[ShownSegment]:
    """List what came after the prompt, with the reward of each step: a scorer's word counts before the
    segment's. Of an attempt that branched, also what its other sequences open with."""
    said = iter(trajectory.step_rewards)
    found = [
        ShownSegment(one, next(said, one.reward) if one.source == "policy" else one.reward, branch)
        for one, branch in zip(trajectory.segments, _branches(trajectory.segments), strict=True)
    ]
    return [one for one in found if one.segment.source != "prompt" or one.branch]


def _branches(segments: Sequence[Segment]) -> Iterator[str]:
    """Describe where each segment branched off: empty, or the last turn on the way to it."""
    turn, last = 0, list[int]()  # of each segment: the last turn on the way to it, itself included
    for number, segment in enumerate(segments):
        parent = number - 1 if segment.parent is None else segment.parent
        before = last[parent] if parent != ROOT else 0
        turn += segment.source == "policy"
        last.append(turn if segment.source == "policy" else before)
        if segment.parent is None:
            yield ""
        elif parent == ROOT:
            yield "branch with a prompt of its own"
        else:
            yield f"branch from turn {before}" if before else "branch from the prompt"


def segment_text(segment: Segment) -> str:
    text = visible(segment.text) if segment.text else f"({len(segment.tokens)} tokens without text)"
    return text + pictures(segment)


def pictures(segment: Segment) -> str:
    """A line for each image that came with a tool's or an environment's answer."""
    return "".join(f"\n{label(url)}" for url in segment.images)


@dataclass(frozen=True)
class ShownCall:
    """A tool call as text: the call, how long it took, and what went wrong."""

    name: str
    arguments: str
    took: str
    trouble: str

    @property
    def call(self) -> str:
        return f"{self.name}({self.arguments})" if self.name else "a call that could not be read"

    @property
    def line(self) -> str:
        return " · ".join(part for part in (self.call, self.took, self.trouble) if part)

    @property
    def outcome(self) -> str:
        return ", ".join(part for part in (self.name, self.took, self.trouble) if part)


def calls(segment: Segment) -> list[ShownCall]:
    """The calls that this segment answers. A call that could not be read has no name."""
    found = []
    for call in segment.calls:
        seconds, trouble = call.get("seconds"), visible(str(call.get("trouble") or ""))
        took = duration(seconds) if isinstance(seconds, int | float) else ""
        name = visible(str(call.get("name") or ""))
        found.append(
            ShownCall(name, visible(str(call.get("arguments") or "")), took, trouble.replace("_", " "))
        )
    return found


def ground_truth(task: Task) -> str:
    truth = task.ground_truth
    return visible(truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False))


def facts(trajectory: Trajectory) -> list[str]:
    """A few words each on length, stop reason and counts."""
    found = [f"{trajectory.sampled_tokens} tokens"]
    if (turns := len(trajectory.steps)) > 1:
        found.append(f"{turns} turns")
    if trajectory.stop:
        found.append(f"stop: {trajectory.stop}")
    for name, value in trajectory.counts.items():
        words = name.replace("_", " ")
        if value:
            found.append(f"{compact(value)} {words.removesuffix('s') if value == 1 else words}")
    return [visible(fact) for fact in found]


def reward_parts(trajectory: Trajectory) -> str:
    return ", ".join(f"{visible(name)} {compact(value)}" for name, value in trajectory.reward_parts.items())


def scored(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Attempts with a reward, best first. A failed attempt has none, so it is not the worst one."""
    ranked = [t for t in trajectories if t.failure is None and t.reward is not None]
    return sorted(ranked, key=lambda t: -(t.reward or 0.0))


def tone(reward: float | None, rewards: Sequence[float]) -> str:
    """`good` in the upper half of the rewards of the step, `bad` in the lower; empty if all are the same."""
    if reward is None:
        return "bad"
    low, high = min(rewards, default=0.0), max(rewards, default=0.0)
    return "" if low == high else "good" if reward >= (low + high) / 2 else "bad"


def examples(groups: Sequence[Group], *, most: int) -> list[Trajectory]:
    """Choose a few attempts to show.

    The best and the worst of groups whose rewards differ come first, then one of each other group. If any
    attempt failed, the last one shown is a failed one.
    """
    ranked = [found for group in groups if (found := scored(group.trajectories))]
    ranked.sort(key=lambda found: found[0].reward == found[-1].reward)  # stable: those that differ first
    chosen: list[Trajectory] = []
    for found in ranked:
        chosen += [found[0]] if found[0].reward == found[-1].reward else [found[0], found[-1]]
    failures = [t for group in groups for t in group.failures]
    if failures:
        return [*chosen[: most - 1], failures[0]]
    return chosen[:most]


def _content(content: object) -> str:
    """A message's text, an image as what it is; parts that are neither are written as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    known = isinstance(content, list) and all(
        isinstance(part, dict) and (isinstance(part.get("text"), str) or part.get("type") == PART)
        for part in content
    )
    return text_of(content) if known else json.dumps(content, ensure_ascii=False)
