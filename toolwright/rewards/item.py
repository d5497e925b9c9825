"""An attempt as a scorer sees it: plain JSON, so that it can be sent to another process."""

from __future__ import annotations

from typing import Any

from toolwright.trajectory import Task, Trajectory

Item = dict[str, Any]

# Arguments of the first form. A function with **kwargs gets exactly these.
FIRST_FORM = ("data_source", "solution_str", "ground_truth", "extra_info")
# Arguments that it gets if it names them: the prompt's messages; the policy's text, turn by turn; counts such
# as tool_calls; what ended the attempt; the number of sampled tokens; the reward of each turn; what tools
# answered, each with the number of the turn that it follows and whether all calls of that turn succeeded;
# what the program left that made the attempt, or None; and the whole conversation as messages, without what
# any chat template wrote around them.
ON_REQUEST = (
    *("prompt", "turns", "counts", "stop", "tokens", "step_rewards", "tool_results"),
    *("result", "conversation"),
)
# A function that takes none of these does not score an attempt.
OF_THE_ATTEMPT = (
    *("solution_str", "turns", "counts", "tokens", "step_rewards", "tool_results"),
    *("result", "conversation"),
)


def of_attempt(trajectory: Trajectory) -> Item:
    task, steps, answer = trajectory.task, trajectory.steps, (trajectory.result or {}).get("answer")
    return {
        "id": task.id,
        "data_source": task.data_source,
        "solution_str": trajectory.response if answer is None else answer,
        "ground_truth": task.ground_truth,
        "extra_info": task.extra_info,
        "prompt": task.prompt,
        "turns": [step.text for step in steps],
        "counts": dict(trajectory.counts),
        "stop": trajectory.stop,
        "tokens": trajectory.sampled_tokens,
        "step_rewards": [step.reward for step in steps],
        "tool_results": _tool_results(trajectory),
        "result": trajectory.result,
        "conversation": conversation(trajectory),
    }


def of_task(task: Task) -> Item:
    """An empty attempt, to check a ground truth with."""
    return of_attempt(Trajectory(task, group=""))


def conversation(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The attempt as messages: the prompt, what the policy said, and what it was answered."""
    messages = [dict(message) for message in trajectory.task.prompt]
    for place, segment in enumerate(trajectory.segments):
        if segment.source == "policy":
            messages.append({"role": "assistant", "content": segment.text})
        elif segment.source == "tool":
            spans = [call["at"] for call in segment.calls if call.get("at")]
            texts = [segment.text[start:end] for start, end in spans] or [segment.text]
            messages += [{"role": "tool", "content": text} for text in texts]
        elif segment.source == "environment":
            following = trajectory.segments[place + 1 :]
            seen = following[0].anchor if following else None  # the state, without the template's writing
            said = seen if seen and seen in segment.text else segment.text
            messages.append({"role": "user", "content": said})
    return messages


def _tool_results(trajectory: Trajectory) -> list[dict[str, Any]]:
    found, turn = [], 0
    for segment in trajectory.segments:
        turn += segment.source == "policy"
        if segment.source == "tool":
            succeeded = bool(segment.calls) and not any(call.get("trouble") for call in segment.calls)
            found.append({"turn": turn, "text": segment.text, "succeeded": succeeded})
    return found


def final_turn(item: Item) -> Item:
    """The item with the policy's last turn as the solution: what a tool printed is not its answer. What a
    program gave as its answer is."""
    if (item.get("result") or {}).get("answer") is not None:
        return item
    return {**item, "solution_str": item["turns"][-1]} if item.get("turns") else item


def with_facts(item: Item) -> dict[str, Any]:
    """`extra_info` with the facts of the attempt added; verl's functions read num_turns."""
    return {**facts(item), **item["extra_info"]}


def facts(item: Item) -> dict[str, Any]:
    return {
        "num_turns": len(item.get("turns", ())),
        "counts": item.get("counts", {}),
        "stop": item.get("stop", ""),
    }
