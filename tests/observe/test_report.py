"""report.html: one file, well formed, everything of the run on it, nothing of it executed or fetched."""

from __future__ import annotations

import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from toolwright.failures import UserError
from toolwright.observe.metrics import Metrics
from toolwright.observe.report import write_report
from toolwright.record import save

from .conftest import make_attempt

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Checks that every tag is closed in its turn, and keeps what there is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)

    def all(self, tag: str, style: str = "") -> list[dict[str, str | None]]:
        found = [attrs for name, attrs in self.tags if name == tag]
        return [a for a in found if not style or style in (a.get("class") or "").split()]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def page(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_the_report_is_one_well_formed_file_in_the_run_folder(run: Path) -> None:
    path = write_report(run)
    assert path == run / "report.html"
    Page(path.read_text(encoding="utf-8"))
    assert not list(run.glob("*.partial"))


def test_nothing_is_fetched_and_nothing_runs(run: Path) -> None:
    found = page(run)
    assert not found.all("script")
    assert not found.all("link")
    assert not found.all("img")
    for tag, attrs in found.tags:
        for name, value in attrs.items():
            assert name not in ("src", "href", "xlink:href", "style"), (tag, name)
            assert not name.startswith("on"), (tag, name)
            assert "://" not in (value or ""), (tag, value)
    style = (run / "report.html").read_text().split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [a["content"] for a in found.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_html_that_agents_write_is_escaped(run: Path) -> None:
    text = (write_report(run)).read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; ␛[2J&lt;/pre&gt;" in text
    assert "\x1b" not in text
    assert "<b>arithmetic" not in text
    assert "<thing>" not in text


def test_the_report_opens_with_the_result(run: Path) -> None:
    words = page(run).words
    assert "grpo <b>arithmetic" in words
    assert "grpo · arithmetic · new decoder, 3 layers of 96" in words
    assert "held-out accuracy before 10.0 % step 0" in words
    assert "after 62.5 % +52.5 points" in words
    assert "best 75.0 % step 4" in words
    assert "steps 6 time 13.0 s 2.17 s a step" in words


def test_only_measured_metrics_have_a_chart(run: Path) -> None:
    found = page(run)
    words = found.words
    assert len(found.all("svg", "chart")) == 6
    for title in (
        "Reward and held-out accuracy",
        "Response length",
        "KL",
        "Gradient norm",
        "Time by stage",
        "Throughput",
    ):
        assert title in words
    for title in ("Entropy", "Clip fraction", "Engine–learner gap", "Critic loss"):
        assert title not in words


def test_time_by_stage_names_the_stages_and_the_rest(run: Path) -> None:
    text = write_report(run).read_text(encoding="utf-8")
    assert "step 2: 2 s (sample 1 s, update 0.5 s, evaluate 0.5 s)" in text
    assert "step 1: 2 s (sample 1 s, update 0.5 s, rest 0.5 s)" in text


def test_values_that_were_not_finite_are_warned_of(run: Path) -> None:
    assert "policy/grad_norm was not finite in step 3" in page(run).words


def test_equal_rewards_are_warned_of_unless_a_teacher_grades(tmp_path: Path) -> None:
    for name, more in (("alone", {}), ("taught", {"teacher/kl": 0.5})):
        Metrics(tmp_path / name / "metrics.jsonl").append(1, {"reward/min": 0.0, "reward/max": 0.0, **more})
    assert "there was nothing to learn from" in page(tmp_path / "alone").words
    taught = page(tmp_path / "taught").words
    assert "nothing to learn from" not in taught
    assert "to the teacher" in taught, "one curve alone says which it is"


def test_metrics_without_a_chart_are_in_a_table(run: Path) -> None:
    words = page(run).words
    other = words[words.index("Other metrics") :]
    assert "novel/<thing> 7 42 7 42" in other
    assert "novel/word calm calm" in other
    assert "reward/mean" not in other


def test_attempts_of_the_first_and_the_last_step_stand_side_by_side(run: Path) -> None:
    found = page(run)
    words = found.words
    assert "Step 1 · 4 of 4 attempts" in words
    assert "Step 6 · 4 of 4 attempts" in words
    assert "Step 3" not in words
    assert len(found.all("article", "attempt")) == 8
    for source in ("prompt", "policy", "tool", "environment"):
        assert found.all("div", source)
    assert "What is 12 times 7?" in words
    assert "ground truth 84" in words
    assert "environment , reward 0.25 the room is quiet" in words
    assert "stop: eos" in words
    assert "1 tool call" in words
    assert "no reward attempt 1 of s1-berry" in words
    assert "task failure: the sandbox took more than 30 s" in words


def test_tool_calls_show_their_time_and_their_errors(run: Path) -> None:
    text = write_report(run).read_text()
    assert "<code>calculator({&quot;x&quot;: &quot;12*7&quot;})</code> <small>12 ms</small>" in text
    assert '<b class="trouble">malformed</b>' in text


def test_a_long_prompt_is_folded_and_a_long_answer_loses_its_middle(run: Path) -> None:
    attempt = make_attempt(group="g", index=0, reward=1.0, answer="start" + "x" * 50_000 + "end")
    attempt.task.prompt[0]["content"] = "schema " * 500
    save(run / "rollouts" / "step_000001.parquet", [attempt])
    text = write_report(run).read_text(encoding="utf-8")
    assert "3,500 characters</small></summary>" in text
    assert "44,008 characters …" in text
    assert "xend</pre>" in text


def test_command_and_configuration_are_there(run: Path) -> None:
    words = page(run).words
    assert "toolwright train task=arithmetic 'name=<i>'" in words
    assert "algorithm grpo (grpo, ppo)" in words
    assert "attempts a step 16 × 8 (prompts × samples)" in words
    assert "adv_estimator: grpo" in words


def test_an_empty_run_folder_has_a_report_too(tmp_path: Path) -> None:
    assert "There are no metrics yet." in page(tmp_path).words


def test_broken_rollouts_or_configuration_leave_the_rest_of_the_report(run: Path) -> None:
    (run / "rollouts" / "step_000006.parquet").write_bytes(b"PAR1 not really")
    (run / "config.yaml").write_text("a: [unclosed")
    words = page(run).words
    assert "step_000006.parquet cannot be read" in words
    assert "Step 1 · 4 of 4 attempts" in words
    assert "a: [unclosed" in words


def test_a_run_with_a_single_evaluation_has_no_after(tmp_path: Path) -> None:
    Metrics(tmp_path / "metrics.jsonl").append(0, {"held_out/reward": -0.5})
    words = page(tmp_path).words
    assert "held-out reward before -0.5" in words
    assert "after" not in words


def test_no_such_folder_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder"):
        write_report(tmp_path / "nowhere")


def test_a_report_is_rewritten_in_place(run: Path) -> None:
    first = write_report(run).read_text()
    shutil.rmtree(run / "rollouts")
    assert write_report(run).read_text() != first


def test_the_room_imports_without_torch() -> None:
    script = (
        "import sys, toolwright.observe.report, toolwright.observe.progress, toolwright.cli.view\n"
        "assert not {'torch', 'rich', 'pyarrow', 'yaml'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
