"""Templates of requests and answers of other people's servers."""

from __future__ import annotations

from toolwright.tools.templates import at, filled


def test_a_field_that_stands_alone_keeps_its_type() -> None:
    asked = filled({"q": "{query}", "top": "{topk}", "tags": ["{topk}"]}, {"query": "x", "topk": 3})
    assert asked == {"q": "x", "top": 3, "tags": [3]}


def test_a_filled_value_is_not_filled_again() -> None:
    values = {"code": "print('{stdin}')", "stdin": "7"}
    assert filled("run {code}", values, keep_unknown=True) == "run print('{stdin}')"


def test_an_unknown_field_is_empty_or_kept() -> None:
    assert filled("{title}: {text}", {"text": "t"}) == ": t"
    assert filled("{title}: {text}", {"text": "t"}, keep_unknown=True) == "{title}: t"


def test_a_path_leads_through_objects_and_lists() -> None:
    tree = {"run": {"lines": ["a", {"out": "b"}]}}
    assert at(tree, "run.lines.1.out") == "b"
    assert at(tree, "run.lines.7") is None
    assert at(tree, "") == tree
