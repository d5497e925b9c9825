"""Near misses: calls of tools that do not exist, and calls in another format than the one in use."""

from __future__ import annotations

from typing import Any

import pytest

from toolwright.agents.formats import FORMATS
from toolwright.agents.formats.hermes import Hermes
from toolwright.agents.near_misses import NearMisses
from toolwright.failures import UserError
from toolwright.tools.call import Malformed, ToolRequest
from toolwright.trajectory import Trajectory

from .attempts import rollout_of, run, texts
from .scripted import saying
from .templates import tokenizer

CODE = {"properties": {"code": {"type": "string"}, "stdin": {"type": "string"}}, "required": ["code"]}
SEARCH = {"properties": {"query": {"type": "string"}}, "required": ["query"]}
ADD = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
PYTHON = {"python": CODE}
CALL = '{"name": "run", "arguments": {"code": "print(1)"}}'


def hermes(mode: Any = "map") -> NearMisses:
    return NearMisses(Hermes(), mode)


def attempt(*turns: str, tools: tuple[str, ...] = ("echo",), **config: Any) -> Trajectory:
    made = tokenizer("qwen25")
    (trajectory,) = run(rollout_of(made, saying(made, *turns), tools=tools, tool_prompt=None, **config))
    assert trajectory.failure is None, trajectory.failure
    return trajectory


class TestNames:
    def test_an_unknown_tool_is_answered_with_the_one_there_is_and_how_to_call_it(self) -> None:
        said = hermes().unknown("calculate", PYTHON)
        assert said == (
            "there is no tool 'calculate'; the only tool is 'python'. Write it like this:\n"
            '<tool_call>\n{"name": "python", "arguments": {"code": "…"}}\n</tool_call>'
        )

    def test_among_several_the_nearest_is_named(self) -> None:
        said = hermes().unknown("serch", {**PYTHON, "search": SEARCH})
        assert "there is no tool 'serch'; did you mean 'search'? Write it like this" in said
        assert '{"name": "search", "arguments": {"query": "…"}}' in said
        assert "known: python, search" in hermes().unknown("weather", {**PYTHON, "search": SEARCH})

    def test_a_name_without_end_is_cut(self) -> None:
        assert len(hermes().unknown("x" * 10_000, PYTHON)) < 300

    def test_the_policy_reads_it(self) -> None:
        call = '<tool_call>\n{"name": "say", "arguments": {"text": "hi"}}\n</tool_call><|im_end|>'
        trajectory = attempt(call, "so<|im_end|>")
        (told,) = texts(trajectory, "tool")
        assert "there is no tool 'say'; the only tool is 'echo'" in told
        assert trajectory.counts["tool_calls/unknown"] == 1


class TestMapping:
    def test_any_name_is_mapped_if_only_one_tool_is_offered(self) -> None:
        assert hermes().meant(ToolRequest("run", {"code": "1"}), PYTHON) == ToolRequest(
            "python", {"code": "1"}
        )

    def test_any_argument_name_is_mapped_if_only_one_is_missing(self) -> None:
        meant = hermes().meant(ToolRequest("calc", {"expression": "1+1"}), PYTHON)
        assert meant == ToolRequest("python", {"code": "1+1"})
        known = hermes().meant(ToolRequest("python", {"source": "1", "stdin": "2"}), PYTHON)
        assert known == ToolRequest("python", {"code": "1", "stdin": "2"})

    @pytest.mark.parametrize(
        ("arguments", "offered"),
        [
            ({"a": 1, "b": 2}, PYTHON),  # two numbers are no program
            ({"value": 5}, PYTHON),  # nor is one
            ({"x": 1, "y": 2}, {"add": ADD}),
            ({"code": "1"}, {**PYTHON, "search": SEARCH}),
        ],
    )
    def test_an_ambiguous_near_miss_stays_as_it_is(self, arguments: dict[str, Any], offered: Any) -> None:
        call = ToolRequest("other", arguments)
        assert hermes().meant(call, offered) is call

    def test_nothing_is_mapped_unless_it_is_asked_for(self) -> None:
        call = ToolRequest("run", {"code": "1"})
        assert hermes("explain").meant(call, PYTHON) is call

    def test_a_mapped_call_runs_and_counts_as_the_tools(self) -> None:
        call = '<tool_call>\n{"name": "say", "arguments": {"words": "hi"}}\n</tool_call><|im_end|>'
        trajectory = attempt(call, "so<|im_end|>", call_params={"near_misses": "map"})
        assert "<tool_response>\nhi\n</tool_response>" in texts(trajectory, "tool")[0]
        assert trajectory.counts["tool_calls/echo"] == 1
        assert trajectory.counts["tool_errors"] == 0


class TestOtherFormats:
    @pytest.mark.parametrize(
        "said",
        [
            CALL,
            f"Let us see.\n```json\n{CALL}\n```",
            f"<tools>\n{CALL}\n</tools>",
            CALL.replace("arguments", "parameters"),
            "<function=run>\n<parameter=code>\nprint(1)\n</parameter>\n</function>",
            f"<tool_call>\n{CALL}",
        ],
    )
    def test_are_understood_or_explained(self, said: str) -> None:
        assert hermes("map").read(said, PYTHON) == [ToolRequest("run", {"code": "print(1)"})]
        (reason,) = hermes("explain").read(said, PYTHON)
        assert isinstance(reason, Malformed)
        if not said.startswith("<tool_call>"):  # the format has a reason of its own for that
            assert "Write it like this:\n<tool_call>" in reason.reason
            assert hermes("ignore").read(said, PYTHON) == []

    def test_a_block_of_python_at_the_end_is_code_for_the_one_tool_that_runs_it(self) -> None:
        said = "So:\n```python\nprint(1)\n```"
        assert hermes().read(said, PYTHON) == [ToolRequest("python", {"code": "print(1)"})]
        assert hermes().read(said, {"search": SEARCH}) == []
        assert hermes().read(f"{said}\nIt prints 1.", PYTHON) == [], "it is an answer"
        assert hermes("explain").read(said, PYTHON) == [], "a program may be what was asked for"

    @pytest.mark.parametrize(
        "said", ['{"name": "Anna", "age": 3}', "The answer is {5}.", '{"name": ' * 50, "```json\n{}\n```"]
    )
    def test_other_json_is_an_answer(self, said: str) -> None:
        assert hermes().read(said, PYTHON) == []

    def test_a_call_in_the_right_format_hides_what_looks_like_another(self) -> None:
        said = f"{CALL}\n<tool_call>{CALL}</tool_call>"
        assert len(hermes().read(said, PYTHON)) == 1

    @pytest.mark.parametrize("name", [name for name in FORMATS.names() if name != "auto"])
    def test_every_format_explains_itself(self, name: str) -> None:
        near = NearMisses(FORMATS.get(name).target(), "explain")
        (reason,) = near.read(f"Well: {CALL}.", PYTHON)
        assert isinstance(reason, Malformed)
        example = reason.reason.partition("Write it like this:\n")[2]
        assert near.format.read(example, PYTHON) == [ToolRequest("python", {"code": "…"})]

    def test_the_policy_may_try_again(self) -> None:
        bare = '{"name": "echo", "arguments": {"text": "hi"}}'
        trajectory = attempt(f"{bare}<|im_end|>", f"<tool_call>{bare}</tool_call><|im_end|>", "hi<|im_end|>")
        assert trajectory.counts["format_faults"] == 1
        assert trajectory.counts["tool_calls/echo"] == 1

    def test_another_word_than_the_three_is_refused(self) -> None:
        with pytest.raises(UserError, match="near_misses='guess': expected one of explain, map, ignore"):
            attempt("so<|im_end|>", call_params={"near_misses": "guess"})


class TestWordsAboutTools:
    def test_stand_beside_what_the_template_says_of_the_tools(self) -> None:
        made = tokenizer("qwen25")
        script = saying(made, "so<|im_end|>")
        (trajectory,) = run(rollout_of(made, script, tools=["echo"], tool_prompt="{tools} Use them."))
        prompt = trajectory.segments[0].text
        assert prompt.startswith("<|im_start|>system\nUse them.")
        assert '"name": "echo"' in prompt

    def test_stand_around_the_words_of_a_format(self) -> None:
        made = tokenizer("chatml")
        script = saying(made, "so<|im_end|>")
        (trajectory,) = run(rollout_of(made, script, tools=["echo"], tool_prompt="Now: {tools} Go."))
        assert "system\nNow: You can use these tools:\n- echo(text: string)" in trajectory.segments[0].text
        assert "</result>. Go.<|im_end|>" in trajectory.segments[0].text
