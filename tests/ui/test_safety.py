"""Who may ask, what can be reached, and that hostile names and texts do nothing."""

from __future__ import annotations

import http.client
import os
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from toolwright.failures import UserError
from toolwright.record import save
from toolwright.ui.command import main

from .conftest import HOSTILE, RUN, hostile_attempt, hostile_run
from .served import ServedPage, serving

TOKEN = "s3cret-ünïcode"


@pytest.fixture
def static(tmp_path: Path) -> Path:
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>page</h1>")
    (folder / "assets" / "app.js").write_text("1")
    (folder / "assets" / "app-3f9a1c2b.js").write_text("2")
    (folder / "assets" / "notes.py").write_text("secret")
    (tmp_path / "secret.js").write_text("secret")
    return folder


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "..", ".", "", "/", "/etc", "sweep", "sweep/../" + RUN, RUN + "/", RUN + "/rollouts"),
        *("sweep/words/..", "\x00", "a" * 5000, "os:system", "//", "~", "C:\\windows"),
    ],
)
def test_names_that_are_no_runs_lead_nowhere(page: ServedPage, name: str) -> None:
    for rest in ("", "/metrics", "/attempts/1/0"):
        assert page.ask(f"/api/runs/{quote(name, safe='')}{rest}").status == 404
        assert page.ask(f"/api/diff?a={quote(name, safe='')}&b={quote(RUN)}").status == 404


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/../etc/passwd",
            "/assets/../../secret.js",
            "/assets/..%2f..%2fsecret.js",
            "/assets/%2e%2e/index.html",
        ),
        *(
            "/assets/notes.py",
            "/assets/",
            "/assets",
            "/static/index.html",
            "/index.html/",
            "/api",
            "/api/",
            "//",
        ),
        *("/api/runs/x/os:system", "/api/os:system", "/api/toolwright.cli:main", "/%ff", "/api/runs/%ff"),
        *(
            "/api/toolwright%2Fcli.py:main",
            "/api/views",
            "/api/attempts",
            f"/api/runs/{quote(RUN, safe='')}/",
        ),
    ],
)
def test_other_addresses_answer_404(runs: Path, static: Path, path: str) -> None:
    with serving(runs, static=static) as served:
        reply = served.ask(path)
    assert reply.status == 404
    assert b"secret" not in reply.body


def test_only_hashed_front_end_files_are_cached_forever(runs: Path, static: Path) -> None:
    with serving(runs, static=static) as served:
        home = served.ask("/")
        assert (home.body, home.headers["content-type"]) == (b"<h1>page</h1>", "text/html; charset=utf-8")
        assert served.ask("/assets/app.js").headers["cache-control"] == "no-cache"
        assert "immutable" in served.ask("/assets/app-3f9a1c2b.js").headers["cache-control"]
        assert served.ask("/", method="HEAD").body == b""


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside, runs = tmp_path / "outside", tmp_path / "runs"
    hostile_run(outside / "run")
    (outside / "secret.txt").write_text("secret")
    mine = hostile_run(runs / "mine")
    (runs / "linked").symlink_to(outside / "run")
    (runs / "circle").symlink_to(runs)
    (mine / "log.txt").unlink()
    (mine / "log.txt").symlink_to(outside / "secret.txt")
    (mine / "model").symlink_to(outside)
    step = mine / "rollouts" / "step_000003.parquet"
    step.unlink()
    step.symlink_to(outside / "run" / "rollouts" / "step_000003.parquet")
    with serving(runs) as served:
        assert [run["name"] for run in served.get("/api/runs")["runs"]] == ["mine"]
        assert served.of_run("mine")["log"] == ""
        assert served.of_run("mine", "/attempts")["facets"]["steps"] == [1, 2]
        assert served.ask("/api/runs/mine/attempts/3/0").status == 404
        assert served.ask("/api/runs/linked").status == 404
        (mine / "rollouts").rename(outside / "moved")
        (mine / "rollouts").symlink_to(outside / "moved")
        assert served.of_run("mine", "/attempts")["total"] == 0


def test_numbers_without_end_and_files_without_bottom_break_no_view(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "mine")
    attempts = [hostile_attempt(4, number) for number in range(2)]
    attempts[0].reward, attempts[1].reward = float("inf"), float("nan")
    for attempt in attempts:
        attempt.timings["attempt_s"] = float("inf")
        attempt.reward_parts["acc"] = attempt.segments[2].calls[0]["seconds"] = float("nan")
    save(run / "rollouts/step_000004.parquet", attempts)
    (run / "searches").mkdir()
    (run / "searches/deep.json").write_text("[" * 100_000)
    with serving(tmp_path) as served:
        group = served.of_run("mine", f"/groups/4/{quote(attempts[0].group, safe='')}")
        assert (group["reward_mean"], group["reward_std"]) == (None, None)
        assert "deep.json cannot be read as a search" in served.of_run("mine", "/workflow")["unreadable"][0]
        shown = served.of_run("mine", "/attempts/4/0")
        assert (shown["reward"], shown["reward_parts"], shown["timings"]["attempt_s"]) == (
            None,
            {"acc": None},
            None,
        )
        (call,) = shown["segments"][2]["calls"]
        assert (call["name"], call["seconds"]) == ("calculator", None)


def test_a_pipe_in_place_of_a_file_blocks_nobody(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "mine")
    for name in ("metrics.jsonl", "log.txt", "config.yaml"):
        (run / name).unlink()
        os.mkfifo(run / name)
    (run / "command.txt").write_text("")
    with serving(tmp_path) as served:
        assert served.of_run("mine", "/metrics")["rows"] == 0
        assert served.of_run("mine")["log"] == ""


@pytest.mark.parametrize("path", ["/", "/assets/app.js", "/api/runs", "/api/nothing", "/health"])
def test_every_answer_carries_the_content_policy(runs: Path, static: Path, path: str) -> None:
    with serving(runs, static=static) as served:
        headers = served.ask(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_a_token_is_asked_for_and_kept_in_a_cookie(runs: Path, static: Path) -> None:
    with serving(runs, static=static, token=TOKEN) as served:
        assert served.ask("/api/runs").status == 401
        assert served.ask("/assets/app.js").status == 401
        assert served.ask("/api/events").status == 401
        asked = served.ask("/")
        assert (asked.status, b"<form" in asked.body, b"page" in asked.body[:20]) == (401, True, False)
        assert served.ask("/?token=wrong").status == 401
        entered = served.ask(f"/?token={quote(TOKEN)}")
        assert (entered.status, entered.headers["location"]) == (303, "/")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert TOKEN not in cookie
        assert served.ask("/api/runs", cookie=cookie.partition(";")[0]).status == 200
        assert served.ask("/", cookie=cookie.partition(";")[0]).body == b"<h1>page</h1>"
        assert served.ask("/api/runs", cookie=cookie.partition("=")[0] + "=wrong").status == 401
        assert served.ask("/api/runs", cookie="\xff=; ;;").status == 401


def test_scripts_may_send_the_token_as_a_header(runs: Path) -> None:
    with serving(runs, token="plain") as served:
        assert served.ask("/api/runs", authorization="Bearer plain").status == 200
        assert served.ask("/api/runs?token=plain").status == 401  # an address ends up in logs


def test_other_web_pages_cannot_ask(page: ServedPage) -> None:
    assert page.ask("/api/runs", host="evil.example").status == 421
    assert page.ask("/api/runs", origin="https://evil.example").status == 403
    assert page.ask("/api/runs", sec_fetch_site="cross-site", sec_fetch_mode="no-cors").status == 403
    assert page.ask("/api/events", origin="https://evil.example").status == 403
    assert page.ask("/api/runs", sec_fetch_site="same-origin").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(page: ServedPage, method: str) -> None:
    assert page.ask("/api/runs", method=method).status == 405


@pytest.mark.parametrize(
    "query",
    [
        *(
            "attempts?limit=-1",
            "attempts?offset=x",
            "attempts?sort=os",
            "attempts?order=up",
            "attempts?step=a-b",
        ),
        *("attempts?reward_min=nan", "attempts?failed=maybe", "attempts/x/y", "attempts?format=exe"),
        *("distributions?what=__class__", "distributions?bins=no", "tasks?sort=path", "metrics?since=1e9"),
        *(
            "timeline?step=%EF%BC%91",
            "attempts?" + "&".join(f"a{i}=1" for i in range(200)),
            "overview?format=csv",
        ),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(page: ServedPage, query: str) -> None:
    reply = page.ask(f"/api/runs/{quote(RUN, safe='')}/{query}")
    assert reply.status == 400, reply.body
    assert "\n" not in reply.data["error"]


def test_absurd_numbers_are_harmless(page: ServedPage) -> None:
    for query in (
        "attempts?offset=99999999999",
        "attempts?limit=999999999",
        "attempts?step=0-999999999999999999",
    ):
        assert page.ask(f"/api/runs/{quote(RUN, safe='')}/{query}").status == 200
    assert page.ask(f"/api/runs/{quote(RUN, safe='')}/attempts/999999999999/0").status == 404
    assert page.ask(f"/api/runs/{quote(RUN, safe='')}/attempts/1/999999999999").status == 404


def test_odd_text_in_files_comes_back_as_data(page: ServedPage) -> None:
    """Half a surrogate pair in the configuration, which UTF-8 cannot express."""
    reply = page.ask(f"/api/runs/{quote(HOSTILE, safe='')}")
    assert reply.headers["content-type"] == "application/json"
    assert reply.data["summary"]["algorithm"] == "\ud800<i>"
    assert {run["name"] for run in page.get("/api/runs")["runs"]} == {RUN, HOSTILE}


def test_references_in_a_configuration_are_not_read(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 12)]
    run = hostile_run(tmp_path / "bomb")
    (run / "config.yaml").write_text("\n".join(lines))
    with serving(tmp_path) as served:
        assert served.of_run("bomb")["config"] == []


def test_a_request_that_is_no_http_is_refused(page: ServedPage) -> None:
    connection = http.client.HTTPConnection(urlsplit(page.url).netloc, timeout=60)
    connection.putrequest("GET", "/api/runs", skip_host=True)
    connection.endheaders()
    assert connection.getresponse().status in (400, 421)
    connection.close()


def test_other_machines_need_a_token(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLWRIGHT_UI_TOKEN", raising=False)
    with pytest.raises(UserError, match="set a token"):
        main([str(runs), "--host", "0.0.0.0", "--port", "0"])
    with pytest.raises(UserError, match="there is no folder"):
        main([str(runs / "none")])
