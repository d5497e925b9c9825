"""The page in a real browser, on runs that were really made."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="Playwright is not installed; the extra `browser` has it")

from playwright.sync_api import Browser, Locator, Page, expect

from tests.ports import free_port
from tests.ui import chromium, example_runs
from tests.ui.chromium import PHONE, PageUnderTest
from tests.waiting import wait_until
from toolwright.observe.attempt import visible

pytestmark = pytest.mark.browser

VIEWS = {
    "runs": "runs",
    "curves": "curves?run=one&run=two",
    "attempts": "attempts?run=one",
    "attempt": "attempt?run=one&step=1&row=0",
    "mask": "attempt?run=one&step=1&row=0&colour=mask",
    "branches": "attempt?run=branched&step=1&row=0",
    "group": "group?run=one&step=1&group=1.0.0",
    "tasks": "tasks?run=one",
    "distributions": "distributions?run=one",
    "timeline": "timeline?run=one",
    "evaluations": "evaluations?run=one",
    "searches": "searches?run=search",
    "failures": "failures?run=one",
    "configuration": "configuration?run=one",
    "difference": "configuration?run=one&with=two",
    "system": "system?run=one",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    example_runs.train(made, "one", "train.steps=4")
    example_runs.train(made, "two", "algorithm=rloo", "rollout.samples=2")
    example_runs.search(made, "search")
    example_runs.hostile(made)
    example_runs.branched(made)
    return made


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as found:
        yield found


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[str]:
    """The address of a server that shows this folder."""
    command = [sys.executable, "-m", "toolwright", "ui", str(folder), "--port", str(port), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield next(word for word in server.stdout.readline().split() if word.startswith("http"))
        server.terminate()


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    """After the runs were made: the browser's driver leaves its event loop running in this thread."""
    with chromium.browser() as found:
        yield found


@pytest.fixture
def shown(browser: Browser, address: str) -> Iterator[PageUnderTest]:
    """A page that must not complain."""
    found = PageUnderTest(browser, address)
    yield found
    found.context.close()
    assert found.complaints == []


def row(page: Page, name: str) -> Locator:
    return page.locator("tr").filter(has=page.get_by_role("link", name=name, exact=True))


def test_runs_are_listed_searched_and_compared(shown: PageUnderTest) -> None:
    page = shown.open()
    expect(row(page, "one")).to_contain_text("finished")
    expect(row(page, "one")).to_contain_text("4 / 4")
    page.get_by_role("searchbox").fill("rloo")
    expect(row(page, "one")).to_have_count(0)
    page.get_by_role("searchbox").fill("")
    page.get_by_role("checkbox", name="choose one").check()
    page.get_by_role("checkbox", name="choose two").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    reward = page.locator("figure[data-title^=Reward]")
    expect(reward.locator(".legend")).to_contain_text("one")
    expect(reward.locator(".legend")).to_contain_text("two")
    assert reward.locator("canvas").evaluate("canvas => canvas.width") > 100


def test_curves_have_axes_smoothing_search_and_a_link_that_keeps_them(shown: PageUnderTest) -> None:
    page = shown.open("curves?run=one")
    page.get_by_role("button", name="time", exact=True).click()
    page.get_by_label("smoothing").fill("0.9")
    page.get_by_role("searchbox").fill("entropy")
    expect(page.locator("figure[data-title='policy/entropy']")).to_be_visible()
    expect(page.locator("figure[data-title^=Reward]")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("button", name="time", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("smoothing")).to_have_value("0.9")
    expect(page.locator("figure[data-title='policy/entropy']")).to_be_visible()


def test_a_chart_of_zeros_on_a_logarithmic_scale_is_a_line_of_zeros(shown: PageUnderTest) -> None:
    shown.page.set_viewport_size({"width": 1280, "height": 2400})  # charts out of sight are not drawn
    page = shown.open("curves?run=one")
    gap = page.locator("figure[data-title^=Engine]")
    expect(gap.locator(".legend b").first).to_have_text("0")
    expect(gap.get_by_role("button", name="log")).to_have_attribute("aria-pressed", "false")


def test_any_number_of_steps_of_the_timeline_is_named(shown: PageUnderTest) -> None:
    page = shown.open("timeline?run=one&step=1&to=3")
    expect(page.get_by_label("steps at once")).to_have_value("3")


def test_a_charts_numbers_and_picture_can_be_downloaded(shown: PageUnderTest) -> None:
    page = shown.open("curves?run=one")
    chart = page.locator("figure[data-title^=Reward]")
    with page.expect_download() as download:
        chart.get_by_role("button", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith("step,reward")
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "2", "3", "4"]
    with page.expect_download() as download:
        chart.get_by_role("button", name="PNG").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_attempts_are_filtered_sorted_and_opened_by_the_keyboard(shown: PageUnderTest) -> None:
    page = shown.open("attempts?run=one")
    rows = page.locator(".rows-space .row")
    expect(page.locator("h1")).to_contain_text("32")
    page.get_by_label("step").fill("2-3")
    expect(page.locator("h1")).to_contain_text("16 of 32")
    page.get_by_role("button", name="reward", exact=True).click()
    expect(page.get_by_role("columnheader", name="reward")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("searchbox").fill("no attempt says this")
    expect(page.get_by_text("No attempt matches.")).to_be_visible()
    page.get_by_role("searchbox").fill("")
    expect(rows.first).to_be_visible()
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(rows.nth(1)).to_have_class("row active odd")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("step")
    expect(page.locator(".conversation")).to_be_visible()


def test_an_attempts_tokens_are_coloured_and_tell_their_numbers(shown: PageUnderTest) -> None:
    page = shown.open("attempt?run=one&step=1&row=0")
    tokens = page.locator(".segment.policy .tokens")
    expect(tokens.locator(".t").first).to_be_attached()
    classes = tokens.locator(".t").evaluate_all("spans => spans.map(span => span.className.trim())")
    assert any(name.startswith("t h") for name in classes)  # a model that was never trained is unsure
    expect(page.get_by_label("colours of probability")).to_be_visible()
    tokens.focus()
    page.keyboard.press("ArrowRight")
    line = page.locator(".token-line")
    expect(line).to_contain_text("token 1 of")
    expect(line).to_contain_text("probability")
    expect(line).to_contain_text("advantage")
    expect(line).to_contain_text("gap 0")  # the native engine is exact on a CPU
    page.get_by_role("button", name="entropy").click()
    expect(tokens.locator(".v5").first).to_be_attached()
    page.get_by_role("button", name="advantage").click()
    expect(page.get_by_label("colours of advantage")).to_be_visible()
    page.get_by_role("button", name="mask").click()
    expect(page.locator(".segment.prompt .t.off").first).to_be_attached()
    expect(page.locator(".segment.policy .t.on").first).to_be_attached()
    assert "colour=mask" in page.url


def test_an_attempt_without_a_coloured_token_says_why(shown: PageUnderTest) -> None:
    page = shown.open("attempt?run=one&step=1&row=0&colour=gap")
    page.wait_for_selector(".tokens .t")
    expect(page.get_by_text("here no token differs")).to_be_visible()
    page.get_by_role("button", name="probability").click()
    expect(page.get_by_text("here every token")).to_have_count(0)


def test_a_group_stands_side_by_side_and_a_task_through_the_steps(shown: PageUnderTest) -> None:
    page = shown.open("attempt?run=one&step=1&row=0")
    expect(page.get_by_label("attempts of the group").get_by_role("link")).to_have_count(4)
    page.get_by_role("link", name="Group side by side").click()
    expect(page.locator(".columns article")).to_have_count(4)
    page.get_by_role("link", name="Task through the steps").click()
    expect(page.get_by_role("heading", name="Step 1")).to_be_visible()
    expect(page.locator(".answer")).not_to_have_count(0)


def test_a_searchs_tree_shows_its_candidates(shown: PageUnderTest) -> None:
    shown.page.set_viewport_size(PHONE)
    page = shown.open("searches?run=search")
    nodes = page.locator(".tree .node")
    expect(nodes.first).to_be_visible()
    box, best = page.locator(".tree-scroll").bounding_box(), page.locator(".tree .chosen").bounding_box()
    assert box is not None
    assert best is not None
    assert box["x"] <= best["x"] <= box["x"] + box["width"] - best["width"], "the best is in sight"
    page.locator(".tree .node[data-node='0']").click()
    expect(page.get_by_role("heading", name="Candidate 0")).to_be_visible()
    assert "candidate=0" in page.url
    nodes.nth(1).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Candidate 0")).to_have_count(0)


def test_an_attempts_branches_are_a_tree_to_choose_a_way_through(shown: PageUnderTest) -> None:
    page = shown.open("attempt?run=branched&step=1&row=0")
    turns = page.locator(".conversation .segment.policy")
    expect(page.locator(".branches .node")).to_have_count(4)
    expect(turns).to_have_text([re.compile("turn 1.*Let me see"), re.compile("turn 2.*Left it is")])
    page.locator(".branches .node[data-node='3']").click()
    expect(turns).to_have_text([re.compile("turn 1.*Let me see"), re.compile("turn 3.*Right it is")])
    expect(page.locator(".conversation")).to_contain_text("branch from turn 1")
    page.locator(".branches .node[data-node='4']").press("Enter")
    expect(page.locator(".conversation")).not_to_contain_text("Which way?")
    expect(page.locator(".conversation")).to_contain_text("branch with a prompt of its own")
    page.reload()
    expect(turns).to_have_text([re.compile("turn 4.*Two ways")])


def test_two_configurations_are_compared(shown: PageUnderTest) -> None:
    page = shown.open("configuration?run=one")
    expect(page.get_by_role("cell", name="rollout.samples")).to_be_visible()
    page.get_by_label("compare with").select_option("two")
    line = page.locator("tr").filter(has_text="rollout.samples")
    expect(line).to_contain_text("4")
    expect(line).to_contain_text("2")
    expect(page.get_by_role("cell", name="rollout.prompts")).to_have_count(0)


def test_the_keys_are_listed_and_change_view_and_colours(shown: PageUnderTest) -> None:
    page = shown.open()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next run")
    assert shown.faults() == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    expect(page.get_by_role("heading", name="Attempts")).to_be_visible()


def test_a_running_run_is_followed_without_a_reload(shown: PageUnderTest, folder: Path) -> None:
    page = shown.open()
    run = example_runs.start_endless(folder, "endless")
    try:
        expect(row(page, "endless")).to_contain_text("running")
        row(page, "endless").get_by_role("link").click()
        page.evaluate("window.kept = true")
        # Charts below the window are not drawn; the search brings this one to the top.
        page.get_by_role("searchbox").fill("tokens_per_s")
        chart = page.locator("figure[data-title='throughput/tokens_per_s'] .legend b")
        expect(chart).not_to_be_empty()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for wanted in ("a new value", "another one"):
            seen = chart.inner_text()
            asked.clear()
            wait_until(lambda before=seen: chart.inner_text() != before, f"the chart has {wanted}")
        assert not [url for url in asked if "/metrics?" in url]  # the event brought it
        run.send_signal(signal.SIGINT)
        run.wait(timeout=240)
        page.get_by_role("link", name="Runs", exact=True).click()
        expect(row(page, "endless")).to_contain_text("stopped")
        assert page.evaluate("window.kept")
    finally:
        run.kill()
        run.wait()


def test_hostile_texts_are_shown_and_do_nothing(shown: PageUnderTest) -> None:
    name = example_runs.HARMFUL_RUN
    page = shown.open()
    expect(row(page, name)).to_be_visible()
    row(page, name).get_by_role("link").click()
    page.get_by_role("searchbox").fill("script")
    expect(page.get_by_role("heading", name=example_runs.HARM)).to_be_visible()
    for view in ("attempts", "failures", "configuration", "system", "distributions", "tasks"):
        page.evaluate(
            "([view, run]) => { location.hash = `#/${view}?` + new URLSearchParams({run}) }", [view, name]
        )
        expect(page.get_by_role("heading", name=view.title()).first).to_be_visible()
    for attempt in (0, 1):
        query = "run=" + name.replace("=", "%3D").replace(" ", "+")
        page.evaluate("hash => { location.hash = hash }", f"#/attempt?{query}&step=1&row={attempt}")
        expect(page.locator("h1")).to_contain_text(f"attempt {attempt}")
        expect(page.locator(".segment.policy")).to_be_visible()
    expect(page.locator(".segment.policy .text")).to_contain_text("␛[31mred␛]0;title␇ ⟨U+202E⟩gnp.exe")
    assert page.evaluate("window.harm") is None
    assert page.locator("main img, main script").count() == 0


def test_a_line_of_ten_megabytes_is_cut_and_shown_whole_on_demand(shown: PageUnderTest) -> None:
    query = "run=" + example_runs.HARMFUL_RUN.replace("=", "%3D").replace(" ", "+")
    page = shown.open(f"attempt?{query}&step=1&row=2")
    text = page.locator(".segment.policy")
    assert len(text.inner_text()) < 50_000
    text.get_by_role("button", name="show all").click()
    expect(text.get_by_label("whole text")).to_be_visible()
    length = "element => element.textContent.length"
    wait_until(lambda: text.evaluate(length) > example_runs.HUGE_LINE, "all is there")
    blocked = page.evaluate(
        "() => new Promise(done => { const at = performance.now();"
        "requestAnimationFrame(() => setTimeout(() => done(performance.now() - at))) })"
    )
    assert blocked < 2000  # milliseconds until the page reacts


def test_text_is_made_visible_as_in_the_terminal(shown: PageUnderTest) -> None:
    page = shown.open()
    codes = [
        *range(0x3000),
        *range(0xD7F0, 0xFFFF),
        *range(0x1BC90, 0x1BCB0),
        *range(0x1D160, 0x1D180),
        *range(0xE0000, 0xE1010),
    ]
    known = page.evaluate(
        "async codes => { const {visible} = await import('/assets/text.js');"
        "return codes.map(code => visible(String.fromCodePoint(code))) }",
        codes,
    )
    assert [chr(code) for code, found in zip(codes, known, strict=True) if found != visible(chr(code))] == []


def test_the_page_connects_again_when_its_server_comes_back(browser: Browser, folder: Path) -> None:
    port = free_port()
    with served(folder, port) as address:
        shown = PageUnderTest(browser, address)
        page = shown.open()
        expect(page.locator(".live")).to_have_text("live")
    expect(page.locator(".live")).to_have_text("connecting again…")
    (folder / "late").mkdir()
    (folder / "late/metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    with served(folder, port):
        expect(page.locator(".live")).to_have_text("live")
        expect(row(page, "late")).to_be_visible()
        shown.context.close()


@pytest.mark.parametrize(
    "view",
    [
        view if view in ("runs", "curves", "attempt") else pytest.param(view, marks=pytest.mark.slow)
        for view in VIEWS
    ],
)
def test_every_view_is_accessible_and_fits_a_phone(browser: Browser, address: str, view: str) -> None:
    for colours in ("light", "dark"):
        shown = PageUnderTest(browser, address, color_scheme=colours)
        page = shown.open(VIEWS[view])
        expect(page.get_by_text("Loading…")).to_have_count(0)
        assert shown.faults() == [], colours
        page.set_viewport_size(PHONE)
        assert not shown.overflows
        shown.context.close()
        assert shown.complaints == []


PICTURES = {
    "curves": ("curves?run=grpo", {"width": 1280, "height": 760}),
    "attempt": ("attempts?run=grpo&step=1&sort=reward&order=desc", {"width": 1280, "height": 620}),
    "timeline": ("timeline?run=grpo&step=10&to=14", {"width": 1280, "height": 560}),
}
LARGEST_PICTURE = 200_000  # bytes


def test_pictures_for_the_docs(browser: Browser, request: pytest.FixtureRequest) -> None:
    """With `--pictures FOLDER`, the folder that `make demo` left, docs/images is drawn anew."""
    folder = request.config.getoption("--pictures")
    if folder is None:
        pytest.skip("draws docs/images where asked: --pictures FOLDER_OF_RUNS")
    images = Path(__file__).parents[2] / "docs/images"
    with served(folder) as address:
        for name, (route, size) in PICTURES.items():
            shown = PageUnderTest(browser, address, viewport=size)
            page = shown.open(route)
            if name == "attempt":
                page.locator(".rows-space .row a").first.click()
                page.wait_for_selector(".tokens .t")
            page.wait_for_selector("canvas, .rows-space .row, .lane, .tokens")
            page.mouse.move(0, 0)
            page.wait_for_timeout(1500)  # until the live dot and fonts are as they stay
            page.screenshot(path=images / f"page-{name}.png")
            shown.context.close()
            assert (images / f"page-{name}.png").stat().st_size < LARGEST_PICTURE
