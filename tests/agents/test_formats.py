"""Call formats: what is a call and what is not, and that nothing a policy writes can break them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.agents import formats
from toolwright.agents.formats import FORMATS, CallFormat
from toolwright.agents.formats.tags import Tags
from toolwright.agents.formats.thinking import spoken
from toolwright.failures import UserError
from toolwright.tools.call import Malformed, ToolRequest

from .templates import tokenizer

NAMES = ["tags", "hermes", "qwen3_coder", "llama3", "fenced"]


def schema(name: str, **kinds: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": list(kinds)}
    return {"type": "function", "function": {"name": name, "description": "Does.", "parameters": parameters}}


SCHEMAS = [schema("python", code="string"), schema("add", a="integer", b="integer"), schema("now")]
OFFERED = formats.offered_by(SCHEMAS)


def build(name: str, **params: Any) -> CallFormat:
    return formats.build(name, params, tokenizer("chatml"))


def read(name: str, text: str) -> list[ToolRequest | Malformed]:
    return build(name).parse(text, OFFERED)


CODE = ToolRequest("python", {"code": "print(1)"})
SUM = ToolRequest("add", {"a": 1, "b": 2})


class TestWellFormed:
    @pytest.mark.parametrize(
        ("name", "text", "expected"),
        [
            ("tags", "so: <tool>print(1)</tool>", [CODE]),
            ("tags", "<python>print(1)</python> then <add>{'a'", [CODE, Malformed]),
            ("tags", '<add>{"a": 1, "b": 2}</add><now></now>', [SUM, ToolRequest("now")]),
            ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', [SUM]),
            (
                "hermes",
                '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>',
                [SUM],
            ),
            ("hermes", '<tool_call>{"name": "now"}</tool_call>', [ToolRequest("now")]),
            (
                "qwen3_coder",
                "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n"
                "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
                [SUM, ToolRequest("now")],
            ),
            ("qwen3_coder", "<function=python><parameter=code>\nprint(1)\n</parameter></function>", [CODE]),
            ("llama3", '{"name": "add", "parameters": {"a": 1, "b": 2}}', [SUM]),
            (
                "llama3",
                '<|python_tag|>{"name": "now"}; {"name": "add", "parameters": {"a": 1, "b": 2}}',
                [ToolRequest("now"), SUM],
            ),
            ("llama3", "<|python_tag|>print(1)", [CODE]),
            ("fenced", "Let us see.\n```python\nprint(1)\n```\n", [CODE]),
            ("fenced", "```py\nprint(1)\n```", [CODE]),
            ("fenced", '```add\n{"a": 1, "b": 2}\n```\n', [SUM]),
        ],
    )
    def test_calls_are_found(self, name: str, text: str, expected: list[Any]) -> None:
        found = read(name, text)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert isinstance(one, Malformed) if other is Malformed else one == other

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("call", [CODE, SUM, ToolRequest("now")])
    def test_a_format_reads_the_calls_that_it_writes(self, name: str, call: ToolRequest) -> None:
        assert read(name, build(name).write(call, OFFERED)) == [call]

    @pytest.mark.parametrize("name", NAMES)
    @given(code=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<`\r"), max_size=60))
    @settings(max_examples=50, deadline=None)
    def test_any_code_is_read_as_it_was_written(self, name: str, code: str) -> None:
        if name in ("fenced", "qwen3_coder"):
            code = code.strip("\n")  # the line ends belong to the format
        assert read(name, build(name).write(ToolRequest("python", {"code": code}), OFFERED)) == [
            ToolRequest("python", {"code": code})
        ]

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(
        "text",
        ["", "The answer is 42.", "2 < 3 and 3 > 2", '{"answer": 42}', "```json\n{}\n```\n", "[1] see"],
    )
    def test_plain_text_is_not_read_as_a_call(self, name: str, text: str) -> None:
        assert read(name, text) == []

    def test_an_argument_may_hold_the_closing_tag(self) -> None:
        text = '<tool_call>{"name": "python", "arguments": {"code": "</tool_call>"}}</tool_call>'
        assert read("hermes", text) == [ToolRequest("python", {"code": "</tool_call>"})]

    def test_search_r1_is_tags_by_other_names(self) -> None:
        tags = Tags(call="search", result="information")
        offered = formats.offered_by([schema("wiki", query="string")])
        assert tags.parse("<search>who?</search>", offered) == [ToolRequest("wiki", {"query": "who?"})]
        assert tags.result("Ada") == "<information>Ada</information>"
        assert tags.stop(offered) == ("</search>", "</wiki>")


class TestMalformed:
    @pytest.mark.parametrize(
        ("name", "text", "reason"),
        [
            ("tags", "<tool>print(1)", "<tool> is not closed"),
            ("tags", "print(1)</tool>", "</tool> has no <tool> before it"),
            ("tags", "<add>1</add>", "takes a JSON object with a, b"),
            ("tags", "<now>please</now>", "now takes no arguments"),
            ("hermes", "<tool_call>{'name': 1}</tool_call>", "not valid JSON"),
            ("hermes", '<tool_call>{"name": "now"}', "is not closed"),
            ("hermes", '<tool_call>{"name": 3}</tool_call>', 'a call needs a "name"'),
            ("hermes", "<tool_call>[]</tool_call>", "a call is a JSON object"),
            ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>', '"arguments" must be'),
            ("hermes", '<tool_call>{"name": "now"} and more</tool_call>', "there is text between"),
            ("hermes", '<tool_call>{"name": NaN}</tool_call>', "NaN is not a number"),
            ("qwen3_coder", "<tool_call><function=now>", "is not closed by </function>"),
            ("qwen3_coder", '<tool_call>{"name": "now"}</tool_call>', "must hold <function=name>"),
            ("qwen3_coder", "<function=python>print(1)</function>", "arguments are written <parameter=name>"),
            ("llama3", '{"name": "add", "parameters": {', "the call cannot be read"),
            ("llama3", '{"name": "add", "parameters": 5}', '"arguments" must be'),
            ("fenced", "```python\nprint(1)", "is not closed by ```"),
        ],
    )
    def test_the_policy_is_told_why(self, name: str, text: str, reason: str) -> None:
        (found,) = read(name, text)
        assert isinstance(found, Malformed)
        assert reason in found.reason

    def test_nesting_has_an_end(self) -> None:
        for depth in (40, 5_000, 500_000):
            nested = '{"a":' * depth + "1" + "}" * depth
            (found,) = read("hermes", f'<tool_call>{{"name": "now", "arguments": {nested}}}</tool_call>')
            assert isinstance(found, Malformed)
            assert "nested too deeply" in found.reason

    def test_a_megabyte_of_argument_is_an_argument(self) -> None:
        code = "x" * 1_000_000
        for name in NAMES:
            assert read(name, build(name).write(ToolRequest("python", {"code": code}), OFFERED)) == [
                ToolRequest("python", {"code": code})
            ]

    def test_half_a_surrogate_pair_is_replaced(self) -> None:
        (found,) = read(
            "hermes", '<tool_call>{"name": "python", "arguments": {"code": "\\ud800"}}</tool_call>'
        )
        assert isinstance(found, ToolRequest)
        assert found.arguments["code"].encode()

    @pytest.mark.parametrize("name", NAMES)
    def test_a_flood_of_half_calls_takes_no_time(self, name: str) -> None:
        for piece in (
            "<tool>",
            "<tool_call>",
            "</tool>",
            "<function=a>",
            "<parameter=",
            "{",
            '{"name":',
            "```python\n",
        ):
            build(name).parse(piece * 20_000, OFFERED)


class TestThinking:
    @pytest.mark.parametrize("name", NAMES)
    def test_a_call_in_a_thought_does_not_count(self, name: str) -> None:
        call = build(name).write(CODE, OFFERED)
        assert read(name, f"<think>\n{call}\n</think>\nno") == []
        assert read(name, f"<think>\n{call}\n") == [], "nor in one that does not end"
        assert read(name, f"{call}\n</think>\nno") == [], "nor in one that the template opened"
        assert read(name, f"<think>\n<think></think>{call}</think>no") == []
        assert read(name, f"<think>well</think>\n{call}") == [CODE]

    def test_a_thought_may_go_on_from_turn_to_turn(self) -> None:
        assert spoken("so <think> a", thinking=False) == ("so ", True)
        assert spoken("b </think> c", thinking=True) == (" c", False)
        assert spoken("b", thinking=True) == ("", True)


class TestChoice:
    def test_auto_is_what_the_template_teaches(self) -> None:
        styles = ("qwen3", "llama3", "own", "mistral")
        chosen = {style: type(formats.build("auto", {}, tokenizer(style))).__name__ for style in styles}
        assert chosen == {"qwen3": "Hermes", "llama3": "Llama3", "own": "Tags", "mistral": "Tags"}

    def test_settings_are_held_to_the_format(self) -> None:
        assert build("tags", call="code", result="out").stop({}) == ("</code>",)
        with pytest.raises(UserError, match=r"no setting rollout.call_params.cal; did you mean 'call'"):
            build("tags", cal="x")
        with pytest.raises(UserError, match="is not a valid tag name"):
            build("tags", call="a b")
        with pytest.raises(UserError, match="it takes none"):
            build("hermes", call="x")

    @pytest.mark.parametrize("name", NAMES)
    def test_instructions_name_every_tool(self, name: str) -> None:
        told = build(name).instructions(SCHEMAS)
        assert all(tool in told for tool in OFFERED)

    def test_every_registered_format_is_tested_here(self) -> None:
        assert set(FORMATS.names()) == {*NAMES, "auto"}


WORDS = (
    "<tool> </tool> <python> </python> <add> <result> </result> <think> </think> <tool_call> </tool_call> "
    "<function=add> <function= </function> <parameter=a> </parameter> <|python_tag|> ``` <|im_end|> "
    "[TOOL_CALLS] { } [ ] \\ \\ud800 null 1e999 NaN ; , \0 \ud800"
)
SHARDS = st.one_of(
    st.sampled_from(WORDS.split(" ")),
    st.sampled_from(['{"name": "add", ', '"arguments": {"a": 1, "b": "x"}}', '{"name": "nope"}', '"']),
    st.sampled_from(["```python\n", "\n```\n", "9" * 5_000, "[" * 300, '{"a":' * 300]),
    st.text(max_size=5),
    st.recursive(st.integers() | st.text(max_size=3), lambda c: st.lists(c, max_size=3)).map(json.dumps),
)


@given(st.sampled_from(NAMES), st.lists(SHARDS, max_size=12))
@settings(max_examples=1_000, deadline=None)
def test_nothing_a_policy_writes_breaks_a_parser(name: str, shards: list[str]) -> None:
    for found in read(name, "".join(shards)):
        assert isinstance(found, ToolRequest | Malformed)
        if isinstance(found, ToolRequest):
            json.dumps(found.arguments, allow_nan=False).encode()
            assert isinstance(found.name, str)
            assert found.name
