"""Task, Segment, Trajectory, Group: the nouns everyone shares. Their columnar form is in `record.py`."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toolwright import images

Source = Literal["prompt", "policy", "tool", "environment"]
FailureKind = Literal["infrastructure", "task"]
LARGEST = 3.4e38  # number of float32, in which advantages are computed
ROOT = -1  # the parent of a segment that opens a sequence of its own
OUTCOME = "outcome/"  # counts of this prefix are what an environment says of an attempt beside success


@dataclass(frozen=True)
class Task:
    """A thing to attempt. Everything in it is JSON, so that it travels and is kept as it is."""

    id: str
    prompt: list[dict[str, Any]]
    ground_truth: Any = None
    data_source: str = ""
    extra_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Segment:
    """A run of tokens from one source. A `policy` segment is one step: what the policy did in one state."""

    source: Source
    tokens: list[int]
    log_probs: list[float] = field(default_factory=list)  # one a token where the policy sampled, else none
    text: str = ""
    reward: float | None = None  # what this step earned, by the word of environment, tool or agent
    anchor: str | None = None  # the state this step was taken in; GiGPO compares steps of equal anchor
    # The tool calls that this answers: name, arguments, seconds, …
    calls: list[dict[str, Any]] = field(default_factory=list)
    # Which segment of its attempt it goes on from; None: the one before it. `ROOT`: from none.
    parent: int | None = None
    # The images that stand in its tokens: by name where the task's prompt has them, else as data URLs.
    images: list[str] = field(default_factory=list)
    # Places of tokens that a JSON schema forced on the policy; nothing is learned there.
    forced: list[int] = field(default_factory=list)


# Where the segment that an image stands in begins and ends, in tokens of the whole, and its data URL.
SeenImage = tuple[int, int, str]


@dataclass(frozen=True)
class Failure:
    """Why an attempt cannot be learned from."""

    kind: FailureKind
    message: str


@dataclass
class Trajectory:
    """One attempt: the exact tokens, who produced each, and all that is known about how it went."""

    task: Task
    group: str
    index: int = 0  # which attempt of its group
    seed: int = 0
    segments: list[Segment] = field(default_factory=list)
    reward: float | None = None
    reward_parts: dict[str, float] = field(default_factory=dict)
    # What each step earned by the word of a scorer, which counts before that of the segment. Empty: none.
    step_rewards: list[float] = field(default_factory=list)
    stop: str = ""  # what ended it: eos, stop, length, turns, done, …
    counts: dict[str, float] = field(default_factory=dict)  # tool_calls, tool_errors, format_faults, …
    timings: dict[str, float] = field(default_factory=dict)  # seconds by stage
    weights_version: int = 0
    failure: Failure | None = None
    # What the program that attempted it left: its `answer`, its exit code, … None: an agent of ours did.
    result: dict[str, Any] | None = None

    def append(self, segment: Segment) -> None:
        """Add a segment. A trajectory changes in no other way: tokens already there are never touched."""
        sampled = segment.source == "policy"
        if sampled and len(segment.log_probs) != len(segment.tokens):
            raise ValueError(
                f"a policy segment needs one log-probability a token: "
                f"{len(segment.tokens)} tokens, {len(segment.log_probs)} log-probabilities"
            )
        if not sampled and segment.log_probs:
            raise ValueError(
                f"a {segment.source} segment was not sampled, so it cannot have log-probabilities"
            )
        if segment.parent is not None and not ROOT <= segment.parent < len(self.segments):
            raise ValueError(f"a segment continues segment {segment.parent}, which does not exist yet")
        self.segments.append(segment)

    @property
    def tokens(self) -> list[int]:
        return [token for segment in self.segments for token in segment.tokens]

    @property
    def mask(self) -> list[bool]:
        """True where the policy sampled the token."""
        return [segment.source == "policy" for segment in self.segments for _ in segment.tokens]

    @property
    def sequences(self) -> list[list[int]]:
        """The segments of each sequence of tokens, by number: one, or more where the attempt branched. Each
        ends with a segment that nothing goes on from; beginnings are shared."""
        segments = self.segments
        if all(segment.parent is None for segment in segments):
            return [list(range(len(segments)))]
        parents = [n - 1 if one.parent is None else one.parent for n, one in enumerate(segments)]
        found = []
        for last in sorted(set(range(len(segments))) - set(parents)):
            path = [last]
            while parents[path[-1]] != ROOT:
                path.append(parents[path[-1]])
            found.append(path[::-1])
        return found

    @property
    def images(self) -> list[SeenImage]:
        """The images that stand in its tokens, in order."""
        if not any(segment.images for segment in self.segments):
            return []
        known = {images.name_of(url): url for url in images.images_in(self.task.prompt)}
        found, start = [], 0
        for segment in self.segments:
            stop = start + len(segment.tokens)
            found += [(start, stop, known.get(image, image)) for image in segment.images]
            start = stop
        return found

    @property
    def steps(self) -> list[Segment]:
        return [segment for segment in self.segments if segment.source == "policy"]

    @property
    def cut(self) -> bool:
        """True if a limit of tokens ended it: of the turn, or of the whole attempt."""
        return self.stop in ("length", "tokens")

    @property
    def score(self) -> float | None:
        """The reward as it was scored, before what the attempt's length costs."""
        return None if self.reward is None else self.reward - self.reward_parts.get("overlong", 0.0)

    @property
    def accuracy(self) -> float | None:
        """How right the answer is: the scorer's own `acc`, or its score where it gives none."""
        given = self.reward_parts.get("acc")
        return self.score if given is None else given

    @property
    def turns(self) -> int:
        return len(self.steps)

    @property
    def response(self) -> str:
        """Everything after the prompt, as text, for scorers and readers."""
        return "".join(segment.text for segment in self.segments if segment.source != "prompt")

    @property
    def sampled_tokens(self) -> int:
        return sum(len(step.tokens) for step in self.steps)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments if segment.source == "prompt")

    @property
    def given_tokens(self) -> int:
        """Tokens that the policy did not sample: the prompt, and answers of tools and environments."""
        return sum(len(segment.tokens) for segment in self.segments if segment.source != "policy")


@dataclass
class Group:
    """The attempts at one task that are compared with each other; whole, or not used."""

    task: Task
    trajectories: list[Trajectory]

    @property
    def failures(self) -> list[Trajectory]:
        return [t for t in self.trajectories if t.failure is not None]

    @property
    def complete(self) -> bool:
        return bool(self.trajectories) and not self.failures

    @property
    def rewards(self) -> list[float]:
        return [t.reward for t in self.trajectories if t.reward is not None]

    @property
    def scores(self) -> list[float]:
        return [score for t in self.trajectories if (score := t.score) is not None]

    @property
    def accuracies(self) -> list[float]:
        return [accuracy for t in self.trajectories if (accuracy := t.accuracy) is not None]


AttemptsCallback = Callable[[Sequence[Trajectory]], None]  # called with attempts as they end


def ignore_attempts(trajectories: Sequence[Trajectory]) -> None:
    """The callback of those who wait for all attempts."""


def as_groups(trajectories: Iterable[Trajectory]) -> list[Group]:
    """Trajectories gathered by their group, both in order of first appearance."""
    groups: dict[str, Group] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group, Group(trajectory.task, [])).trajectories.append(trajectory)
    return list(groups.values())


def finite_number(value: Any) -> float | None:
    """What somebody gave as a reward, as a float; None if it is no number or float32 cannot hold it. Scalars
    of numpy and torch are numbers."""
    if not isinstance(value, numbers.Real) and getattr(value, "shape", None) == ():
        value = value.item()
    if not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= LARGEST else None
