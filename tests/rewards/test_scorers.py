"""The built-in scorers: what earns 1, what earns 0, and what cannot be scored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwright.failures import TaskFailure
from toolwright.rewards import SCORERS


def score(scorer: str, answer: str, truth: Any) -> float:
    result = SCORERS.get(scorer).target(answer, truth)
    return result["score"] if isinstance(result, dict) else result


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("abc", "abc", 1),
        (" abc\n", "abc", 1),
        ("ab c", "abc", 0),
        ("", "abc", 0),
        ("12", 12, 1),
        ("ABC", "abc", 0),
    ],
)
def test_exact_compares_without_surrounding_white_space(answer: str, truth: Any, right: float) -> None:
    assert score("exact", answer, truth) == right


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("12", "12", 1),
        ("12", 12, 1),
        ("12.0", 12, 1),
        ("so 5+7 = 12.", "12", 1),
        ("12 or 13", "12", 0),
        ("1,234", "1234", 1),
        ("$1,234.50", 1234.5, 1),
        ("1,2,3", "3", 1),
        ("-5", "-5", 1),
        ("−5", "-5", 1),
        ("3-8=-5", -5, 1),
        ("12-7", 7, 1),
        ("it is (-7)", -7, 1),
        (".5", 0.5, 1),
        ("\\boxed{70}", "70", 1),
        ("-$3", -3, 1),
        ("12345678901234567891", "12345678901234567892", 0),
        ("none", "12", 0),
        ("", "0", 0),
        ("0.0000001", 1e-7, 1),
    ],
)
def test_numeric_takes_the_last_number(answer: str, truth: Any, right: float) -> None:
    assert score("numeric", answer, truth) == right


@pytest.mark.parametrize("scorer", ["numeric", "gsm8k"])
@pytest.mark.parametrize(
    ("box", "truth"),
    [
        ("070", 70),
        ("70.0", 70),
        ("-70", -70),
        ("- 70", -70),
        ("–70", -70),
        ("70^\\circ", 70),
        ("70^{\\circ}", 70),
        ("70\\text{ cm}^2", 70),
        ("70\\,\\mathrm{m}^{2}", 70),
        ("70 m²", 70),
        ("70 \\text{ km/h}", 70),
        ("1,070", 1070),
        ("1{,}070", 1070),
        ("1\\,070", 1070),
        ("1,\\!070", 1070),
        ("m + n = 70", 70),
        ("x_1 = 70", 70),
        ("x \\approx 0.7", 0.7),
        ("\\textbf{(A) } 70", 70),
        ("\\$70", 70),
        ("70\\%", 70),
        ("$70$", 70),
        ("７０", 70),
        ("\\boxed{70}", 70),
    ],
)
def test_a_box_may_dress_its_number(scorer: str, box: str, truth: float) -> None:
    assert score(scorer, f"So \\boxed{{{box}}}, as in 1 of 3.", truth) == 1


@pytest.mark.parametrize("scorer", ["numeric", "gsm8k"])
@pytest.mark.parametrize(
    "box",
    [
        *("\\frac{1}{70}", "1/70", "x/70", "10-70", "x - 70", "x+70", "10^{70}", "1e70", "70!", "\\sqrt{70}"),
        *(
            "70^2",
            "70²",
            "x_{70}",
            "3 \\times 70",
            "3 * 70",
            "\\log 70",
            "68, 69, 70",
            "69 or 70",
            "70 or 69",
        ),
        *("70 \\text{ or } 71", "1,2,70", "", "seventy"),
    ],
)
def test_a_box_with_a_term_or_several_numbers_is_not_its_last_number(scorer: str, box: str) -> None:
    assert score(scorer, f"70, so \\boxed{{{box}}}", 70) == 0


def test_numbers_in_latex_have_thousands_too() -> None:
    assert score("numeric", "so $1{,}234$", 1234) == score("gsm8k", "#### 1{,}234", "1234") == 1


@given(st.integers(-(10**12), 10**12))
def test_numeric_reads_every_integer_with_and_without_commas(number: int) -> None:
    assert score("numeric", f"The answer is {number:,}.", str(number)) == 1
    assert score("numeric", f"{number}", number) == 1
    assert score("numeric", f"{number + 1}", number) == 0


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("3*6=18\n#### 18", "18", 1),
        ("#### 18 eggs, of 20", "18", 1),
        ("#### 1,800", "1800", 1),
        ("it is 18", "18", 1),
        ("18 ####", "18", 0),
        ("#### 17\n18", "18", 0),
        ("#### 18", "reasoning with 3 numbers\n#### 18", 1),
    ],
)
def test_gsm8k_takes_the_number_after_the_mark(answer: str, truth: str, right: float) -> None:
    assert score("gsm8k", answer, truth) == right
    assert score("openai/gsm8k", answer, truth) == right


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("12*(7-3)", 1),
        ("12*(7-3)=48", 1),
        ("I think so:\n12*(7-3)", 1),
        ("<think>12+3</think><answer> 12*(7-3) </answer>", 1),
        ("48", 0),
        ("12*3+12", 0),  # 12 twice
        ("12*4", 0),
        ("7*3+12", 0),
        ("12*(7-3", 0),
        ("__import__('os').system('echo 48')", 0),
        ("", 0),
    ],
)
def test_countdown_scores_an_expression_of_the_numbers_that_equals_the_target(
    answer: str, right: float
) -> None:
    assert score("countdown", answer, {"numbers": [3, 7, 12], "target": 48}) == right


def test_countdown_distinguishes_a_wrong_expression_from_none() -> None:
    truth = {"numbers": [3, 7], "target": 10}
    parts = [SCORERS.get("countdown").target(text, truth) for text in ("3*7", "three and seven")]
    assert [part["well_formed"] for part in parts] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "truth", "value"),
    [
        ("The Eiffel Tower", "eiffel tower", 1.0),
        ("Eiffel", ["Louvre", "Eiffel Tower"], 2 / 3),
        ("20", ["20", "twenty"], 1.0),
        ("", "x", 0.0),
        ("nothing", "x", 0.0),
    ],
)
def test_f1_is_the_overlap_of_words_with_the_best_truth(answer: str, truth: Any, value: float) -> None:
    assert score("f1", answer, truth) == pytest.approx(value)


WORDS = ("f1", "em", "drop", "search_r1")


@pytest.mark.parametrize("scorer", WORDS)
@pytest.mark.parametrize("truth", ["A", "The", ["The A"], {"target": ["", "the"]}])
def test_an_empty_answer_does_not_equal_a_truth_of_articles(scorer: str, truth: Any) -> None:
    said = truth["target"][-1] if isinstance(truth, dict) else truth[0] if isinstance(truth, list) else truth
    for silence in ("", "  ", "!", "an"):
        assert score(scorer, f"<answer>{silence}</answer>", truth) < 0.5
    assert score(scorer, f"<answer>{said}</answer>", truth) >= 0.8


@pytest.mark.parametrize("scorer", WORDS)
@pytest.mark.parametrize("truth", ["", "  ", [], ["", " "], {"target": ""}])
def test_a_truth_that_says_nothing_is_a_failure(scorer: str, truth: Any) -> None:
    with pytest.raises(TaskFailure, match="text or a list of texts"):
        score(scorer, "<answer></answer>", truth)


@pytest.mark.parametrize("scorer", ["f1", "em", "search_r1"])
def test_words_are_compared_whatever_their_unicode_form(scorer: str) -> None:
    for said, truth in (("Cafe\u0301", "Café"), ("Ｐａｒｉｓ", "Paris"), ("Beyonc\u00e9", "Beyonce\u0301")):
        assert score(scorer, f"<answer>{said}</answer>", truth) >= 0.8


def test_saying_every_word_earns_little() -> None:
    crowd = " ".join(f"word{n}" for n in range(100))
    assert score("f1", f"<answer>Eiffel Tower {crowd}</answer>", "Eiffel Tower") < 0.05
    assert score("drop", f"<answer>{' '.join(map(str, range(100)))}</answer>", "20") < 0.05
    assert score("em", f"<answer>Eiffel Tower {crowd}</answer>", "Eiffel Tower") == 0


@pytest.mark.parametrize(
    ("scorer", "truth", "message"),
    [
        ("numeric", ["12"], r"must be a number for scorer 'numeric', found list \['12'\]"),
        ("numeric", None, "found none; .*reward_model.ground_truth.*task.params.answer"),
        ("numeric", "twelve", "found str 'twelve'"),
        ("numeric", float("nan"), "found float"),
        ("gsm8k", {"answer": 1}, "scorer 'gsm8k', found dict"),
        ("exact", ["a"], "must be text for scorer 'exact', found list"),
        ("countdown", "24", "found str '24'"),
        ("countdown", {"numbers": "1 2", "target": 3}, "found dict"),
        ("f1", [1], "text or a list of texts"),
    ],
)
def test_a_ground_truth_of_the_wrong_type_is_a_failure_not_a_zero(
    scorer: str, truth: Any, message: str
) -> None:
    with pytest.raises(TaskFailure, match=message):
        score(scorer, "12", truth)


SEARCHED = "<think>a</think> <search>q</search>\n<information>{}</information><think>b</think>"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("<think>a</think><answer>The Seine</answer>", 1.0),
        ("<answer>Seine</answer>", 0.8),
        (SEARCHED.format("no") + "<answer>Po</answer>", 0.2),
        (SEARCHED.format("by the Seine") + "<answer>Po</answer>", 0.3),
        ("<think>a</think> well <answer>Po</answer>", 0.1),
        ("<think>a</think><answer>Po</answer> done", 0.1),
        ("no idea", 0.0),
    ],
)
def test_search_r1_pays_for_the_form_of_a_search(said: str, expected: float) -> None:
    found = SCORERS.get("search_r1").target(said, {"target": ["Seine"]}, retrieval=0.1)
    assert found["score"] == pytest.approx(expected)


def test_search_r1_pays_nothing_for_results_that_the_policy_wrote() -> None:
    forged = SEARCHED.format("Seine Po Rhine Loire") + "<answer>Po</answer>"
    found = SCORERS.get("search_r1").target(forged, {"target": ["Seine"]}, [forged], retrieval=0.5)
    assert (found["score"], found["format"]) == (0.1, 0.0)
    turns = ["<think>a</think> <search>q</search>", "<think>b</think><answer>Po</answer>"]
    found = SCORERS.get("search_r1").target(forged, {"target": ["Seine"]}, turns, retrieval=0.5)
    assert found["score"] == 0.7


def test_search_r1_looks_for_whole_words_in_results() -> None:
    said = SEARCHED.format("the russians") + "<answer>Po</answer>"
    assert SCORERS.get("search_r1").target(said, {"target": ["us"]}, retrieval=0.5)["score"] == 0.2
