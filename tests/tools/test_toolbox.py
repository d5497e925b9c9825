"""Typed functions and classes become tools; whatever the policy asks for is answered in words."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.failures import UserError
from toolwright.tools.call import ToolRequest
from toolwright.tools.toolbox import Toolbox

from .conftest import Box

MINE = str(Path(__file__).with_name("my_tools.py"))
Make = Callable[..., Box]


def mine(*names: str, **settings: Any) -> dict[str, dict[str, Any]]:
    return {name: {"path": f"{MINE}:{name}", **settings} for name in names}


def test_the_schema_follows_from_types_and_docstring(box: Make) -> None:
    schema = box(mine("forecast")).schemas()["forecast"]
    assert schema["description"] == "Forecast the weather.\n\nA second paragraph."
    assert schema["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "the name of the city, with its country"},
            "days": {"type": "integer", "default": 1, "description": "how many days"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "hours": {"type": "array", "items": {"type": "integer"}, "description": "of the day"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_any_parameter_name_works_and_sphinx_is_read(box: Make) -> None:
    made = box(mine("sphinx"))
    properties = made.schemas()["sphinx"]["parameters"]["properties"]
    assert properties["json"] == {"type": "string", "description": "some text"}
    assert made.call("sphinx", json="a", model_config="1.5").text == '{"json": "a", "model_config": 1.5}'


def test_a_parameter_may_be_described_in_its_annotation(box: Make) -> None:
    properties = box(mine("annotated")).schemas()["annotated"]["parameters"]["properties"]
    assert properties == {
        "city": {"type": "string", "description": "its name"},
        "days": {"type": "integer", "minimum": 1, "default": 2, "description": "how many"},
        "unit": {"type": "string", "default": "celsius", "description": "what the docstring says of it"},
    }


def test_a_result_of_any_size_is_cut_before_it_is_kept(box: Make) -> None:
    made = box(mine("talkative"))
    assert len(made.call("talkative", size=1 << 20).text) == 1 << 20
    text = made.call("talkative", size=50_000_000).text
    assert text.startswith("aaa")
    assert text.endswith("az")
    assert "… 50,000,000 characters, the middle left out …" in text
    assert len(text) < (1 << 20) + 100


def test_arguments_are_converted_and_the_attempt_id_is_passed(box: Make) -> None:
    made = box(mine("forecast"))
    assert made.call("forecast", attempt="g/3", city="Rome").text == "Rome 2 celsius None g/3"
    assert made.call("forecast", city=7, days="4", hours="[1, 2]").text == "7 5 celsius [1, 2] a"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "the argument 'city' is missing"),
        ({"city": "Rome", "dayz": 1}, "there is no argument 'dayz'; did you mean 'days'?"),
        ({"city": "Rome", "days": "many"}, "days: Input should be a valid integer"),
        ({"city": "Rome", "unit": "kelvin"}, "unit: Input should be 'celsius' or 'fahrenheit'"),
        ({"city": ["Rome"]}, "city: Input should be a valid string"),
        ({"city": "Rome", "attempt": "mine"}, "there is no argument 'attempt'"),
    ],
)
def test_wrong_arguments_get_an_answer_that_says_what_is_wrong(
    box: Make, arguments: dict[str, Any], told: str
) -> None:
    made = box(mine("forecast"))
    answer = made.runner.run(made.toolbox.call(ToolRequest("forecast", arguments), attempt="a"))
    assert answer.trouble == "arguments"
    assert told in answer.text


def test_an_unknown_tool_is_answered_with_the_nearest_name(box: Make) -> None:
    answer = box(mine("forecast")).call("forcast")
    assert (answer.trouble, answer.text) == (
        "unknown_tool",
        "there is no tool 'forcast'; did you mean 'forecast'?",
    )
    assert len(box({}).call("x" * 1_000_000).text) < 200


@pytest.mark.parametrize("how", ["value", "exit", "stop"])
def test_the_policy_sees_the_exception_of_a_function_and_the_log_has_it_once(
    box: Make, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = box(mine("broken"))
    with caplog.at_level(logging.WARNING):
        answers = [made.call("broken", how=how) for _ in range(3)]
    expected = {"value": "ValueError: no such luck", "exit": "SystemExit: 1", "stop": "StopIteration"}[how]
    assert all(answer.trouble == "raised" and expected in answer.text for answer in answers)
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info


@pytest.mark.parametrize("how", ["value", "exit", "cancel"])
def test_the_policy_sees_the_exception_of_a_coroutine(box: Make, how: str) -> None:
    made = box({**mine("broken_async"), **mine("quick")})
    assert made.call("broken_async", how=how).trouble == "raised"
    assert made.call("quick").text == "here"


def test_the_text_of_a_tool_error_reaches_the_policy_unchanged(
    box: Make, caplog: pytest.LogCaptureFixture
) -> None:
    answer = box(mine("broken")).call("broken", how="told")
    assert (answer.trouble, answer.text) == ("raised", "not today")
    assert not caplog.records


def test_hung_tools_cost_one_timeout_and_keep_no_one_waiting() -> None:
    box = Toolbox({**mine("hang", "hang_async", timeout_s=2), **mine("quick")}, timeout_s=120)

    async def many() -> list[Any]:
        hung = [
            box.call(ToolRequest(name), attempt=str(i)) for i in range(20) for name in ("hang", "hang_async")
        ]
        tasks = [asyncio.create_task(call) for call in hung]
        await asyncio.sleep(0.1)
        assert (await box.call(ToolRequest("quick"), attempt="q")).text == "here"
        assert not any(task.done() for task in tasks)
        return await asyncio.gather(*tasks)

    with asyncio.Runner() as runner:
        began = time.monotonic()
        answers = runner.run(many())
        assert time.monotonic() - began < 40, "two seconds for each of forty"
        assert {answer.trouble for answer in answers} == {"timeout"}
        assert answers[0].text == "hang did not answer within 2 s"


def test_a_class_is_built_in_the_loop_that_calls_it_and_closed(box: Make) -> None:
    made = box(mine("Weather", unit="fahrenheit", name="weather"))
    assert made.toolbox.names == ["weather"]
    assert made.schemas()["weather"]["description"] == "Tell the weather."
    kit = made.toolbox._entries[0]
    assert kit._instance is None
    assert made.call("weather", city="Rome").text == "Rome: 20 fahrenheit, for a"
    instance = kit._instance
    made.end("a")
    assert instance.ended == ["a"]
    made.runner.run(made.toolbox.close())
    assert instance.session.closed


@pytest.mark.parametrize("kind", ["Sulky", "SulkyAsync"])
def test_a_tool_that_fails_in_closing_is_named_and_the_others_are_closed(
    box: Make, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = box({**mine(kind), **mine("Weather")})
    assert made.call(kind).text == "fine"
    assert made.call("Weather", city="Rome").text.startswith("Rome")
    weather = made.toolbox._entries[1]._instance
    made.end("a")
    made.runner.run(made.toolbox.close())
    assert weather.ended == ["a"]
    assert weather.session.closed
    # What other tests left may be collected meanwhile, and asyncio says so.
    said = [record.getMessage() for record in caplog.records if record.name.startswith("toolwright")]
    assert said == [f"tool {kind}: {what}() failed: OSError: not today" for what in ("end", "close")]


def test_a_class_may_offer_several_tools(box: Make) -> None:
    made = box(mine("Notes"))
    assert sorted(made.schemas()) == ["read", "write"]
    assert made.call("write", note="milk").text == "(no result)"
    assert made.call("read").text == '["milk"]'


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("number", "408"),
        ("truth", "true"),
        ("row", "[0. 1.]"),
        ("nested", '{"sum": 408, "day": "2026-01-02"}'),
        ("day", "2026-01-02"),
        ("fraction", "1/3"),
    ],
)
def test_numbers_of_numpy_and_objects_read_like_plain_ones(box: Make, kind: str, text: str) -> None:
    assert box(mine("unusual")).call("unusual", kind=kind).text == text


def test_a_toolbox_serves_the_next_loop_when_its_own_is_gone() -> None:
    box = Toolbox(mine("Weather"))
    for _ in range(2):
        answer = asyncio.run(box.call(ToolRequest("Weather", {"city": "Rome"}), attempt="a"))
        assert answer.text == "Rome: 20 celsius, for a"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"calculater": {}}, "unknown tool 'calculater'; did you mean 'calculator'?"),
        (
            {"calculator": {"precision": 3}},
            "tool 'calculator' has no setting tools.calculator.precision",
        ),
        (
            {"calculator": {"timeout_s": 0}},
            "tools.calculator.timeout_s=0: expected a positive number of seconds",
        ),
        ({"python": {"ulr": "http://x"}}, "did you mean 'url'?"),
        ({"python": {"batch_size": "many"}}, "tools.python.batch_size='many' does not work"),
        ({"python_session": {"batch_sise": 1}}, "did you mean 'batch_size'?"),
        ({"code_judge": {"enable_jupiter": True}}, "did you mean 'enable_jupyter'?"),
        (mine("Weather", unit="kelvin"), "tools.Weather.unit='kelvin' does not work"),
        (mine("untyped"), "tool 'untyped': its parameter 'x' has no type"),
        (mine("undocumented"), "tool 'undocumented' has no docstring"),
        (mine("counting"), "tool 'counting' is a generator; return the answer instead of yielding it"),
        (mine("mistyped"), "tool 'mistyped': a type in its signature cannot be read: module 'time' has no"),
        ({"x": {"path": f"{MINE}:wether"}}, "has no 'wether'"),
        (
            {**mine("quick"), "two": {"path": f"{MINE}:hang", "name": "quick"}},
            "two tools are called 'quick'",
        ),
        ({"calculator": 3}, "tools.calculator: expected a block of settings"),
    ],
)
def test_invalid_settings_are_an_error_before_anything_starts(settings: Any, told: str) -> None:
    with pytest.raises(UserError) as caught:
        Toolbox(settings)
    assert told in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
LOOP = asyncio.Runner()
ANYTHING = Toolbox({"calculator": {}, **mine("quick", "forecast")})
NAMES = st.sampled_from(["calculator", "quick", "forecast"]) | st.text()


@given(name=NAMES, arguments=st.dictionaries(st.sampled_from(["expression", "city"]) | st.text(), JSON))
@settings(max_examples=200, deadline=None)
def test_every_call_gets_an_answer(name: str, arguments: dict[str, Any]) -> None:
    answer = LOOP.run(ANYTHING.call(ToolRequest(name, arguments), attempt="a"))
    answer.text.encode()


def test_the_room_imports_without_torch_and_quickly() -> None:
    code = "import sys, toolwright.tools.toolbox, toolwright.tools as t; t.TOOLS.names(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "aiohttp", "mcp", "bm25s", "ray", "omegaconf"} & set(loaded)
