"""The zip for an issue: what it holds, and that no secret is in it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.doctor.result import ok
from toolwright.doctor.secrets import REMOVED, Scrubber
from toolwright.record import save
from toolwright.registry import Entry
from toolwright.trajectory import Failure, Segment, Task, Trajectory

from . import sick

# Each with a place that it may turn up in, and what of it must not be seen.
PLANTED = {
    "a token of the hub": ("downloading with hf_AbCdEfGhIjKlMnOpQrStUvWx now", "AbCdEfGhIjKl"),
    "a key of OpenAI": ("401 for sk-proj-abcDEF123456ghiJKL789", "abcDEF123456"),
    "a key of Anthropic": ("key sk-ant-api03-zzzYYY111222333444", "zzzYYY111"),
    "a token of GitHub": ("https://git:ghp_0123456789abcdefABCDEF0123456789@github.com/a", "0123456789a"),
    "a password in a URL": ("no answer from postgres://alice:hunter2@db.example:5432/runs", "hunter2"),
    "a password with an @": ("http://bob:p@ss@word@proxy.example:3128/", "p@ss"),
    "a bearer": ("Authorization: Bearer abc.def-ghi_jkl", "abc.def-ghi"),
    "a header in JSON": ('{"authorization": "Basic dXNlcjpwYXNzd29yZA=="}', "dXNlcjpwYXNz"),
    "a key of AWS": ("AKIAIOSFODNN7EXAMPLE was refused", "AKIAIOSFODNN7"),
    "a secret of AWS": ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    "a bare secret of AWS": ("signed with wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY today", "wJalrXUtnFEMI"),
    "a token of a web page": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3", "dozjgNry"),
    "a private key": ("-----BEGIN PRIVATE KEY-----\nMIIEpAIB\nabcd\n-----END PRIVATE KEY-----", "MIIEpAIB"),
    "a password in YAML": ("  password: correct horse\n", "horse"),
    "a password that is a number": ("PASSWORD=12345678", "12345678"),
    "an override": ("toolwright train tools.mcp.env.SERVICE=s3cr3tv4lue train.steps=3", "s3cr3tv4lue"),
    "a block of the environment": ("tools={mcp: {env: {PLAIN: topsecretword}}}", "topsecretword"),
    "an option": ("started: server --api-key topsecretword --port 80", "topsecretword"),
    "a query": ("GET https://api.example/v1?api_key=topsecretword&n=3", "topsecretword"),
    "a webhook": ("posting to https://hooks.example/?token=topsecretword", "topsecretword"),
    "a key of Weights & Biases": ("login 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123"),
    "an address": ("mail to jane.doe@corp.example when done", "jane.doe"),
    "another user's home": ("directory /home/janedoe/secret-project", "janedoe"),
    "a home of a Mac": ("/Users/janedoe/runs/x", "janedoe"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_secret_is_removed_wherever_it_stands(name: str) -> None:
    text, secret = PLANTED[name]
    scrubber = Scrubber(environment={}, home="/home/me")
    assert secret not in scrubber.text(text), scrubber.text(text)
    assert secret not in scrubber.text(json.dumps({"log": text})), scrubber.text(json.dumps({"log": text}))
    assert secret not in json.dumps(scrubber.tree({"tool": {"args": [text], "text": text}}))


@pytest.mark.parametrize(
    "text",
    [
        "step 3: 12 attempts failed, first: no answer from http://sums:80",
        "rollout.max_tokens=24 update.micro_tokens=4096 algorithm.aggregate=token-mean",
        '{"step": 3, "reward/mean": 0.5, "response/tokens_mean": 12.5, "throughput/tokens_per_s": 1000.0}',
        "  max_total_tokens: null\n  tool_tokens: 1024\n  discount_per: token\n",
        "File toolwright/doctor/bundle.py, line 30, in write_bundle",
        "git 60250da14d44-dirty",
        "run folder runs/grpo-sums-20261116-064006",
        "model of 11,040 parameters, 32 training tasks, 8 held out",
    ],
)
def test_text_without_a_secret_stays(text: str) -> None:
    assert Scrubber(environment={}, home="/home/me").text(text) == text


def test_values_of_secret_variables_are_removed_wherever_they_turn_up() -> None:
    environment = {"MY_SERVICE_TOKEN": "plainword", "EDITOR": "vim", "NOTE": "Zx9Qw8Er7Ty6Ui5Op4As3Df2"}
    scrubber = Scrubber(environment=environment, home="/home/me")
    assert scrubber.text("said plainword to vim") == f"said {REMOVED} to vim"
    assert "Zx9Qw8" not in scrubber.text("xxZx9Qw8Er7Ty6Ui5Op4As3Df2xx")


def test_a_home_is_shortened() -> None:
    scrubber = Scrubber(environment={}, home="/srv/people/me")
    assert scrubber.text("in /srv/people/me/runs and /srv/people/mean") == "in ~/runs and /srv/people/mean"


def test_keys_of_a_configuration_tell_what_is_secret() -> None:
    tree = {
        "engine": {"params": {"api_key_env": "MY_KEY", "api_key": "plain"}},
        "tools": {
            "mcp": {"env": {"ANY": "plain"}, "args": ["--token", "plain", "--port", "80"], "key": "plain"}
        },
        "rollout": {"max_tokens": 24, "stop": ["</tool>"]},
    }
    shown = Scrubber(environment={}, home="/home/me").tree(tree)
    assert "plain" not in json.dumps(shown)
    assert shown["engine"]["params"]["api_key_env"] == "MY_KEY"
    assert shown["tools"]["mcp"]["args"] == ["--token", REMOVED, "--port", "80"]
    assert shown["rollout"] == tree["rollout"]


QUESTION = "How many pelicans does aunt Philomena keep in her observatory?"
ANSWER = "She keeps seventeen pelicans, and one of them is called Gregory."


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with secrets everywhere, on a machine that is quickly looked at."""
    everything = "".join(f"2026-01-01 00:00:00 {text}\n" for text, _ in PLANTED.values())
    quoted = f"2026-01-01 00:00:00 step 1: ValueError: could not convert {ANSWER[:40]!r}\n"
    incidents = [
        {"step": 1, "who": "x", "what": text, "done": "", "died": True} for text, _ in PLANTED.values()
    ]
    settings = {"mcp": {"env": {f"V{n}": text for n, (text, _) in enumerate(PLANTED.values())}}}
    made = sick.written(
        tmp_path / "runs/sick",
        sick.steps(10, reward__mean=0.5, policy__skipped=1),
        log=everything + quoted,
        incidents=incidents,
        tools=settings,
        rollout={"tool_prompt": PLANTED["a key of OpenAI"][0]},
    )
    (made / "command.txt").write_text("\n".join(text for text, _ in PLANTED.values()))
    (made / "rollouts").mkdir()
    task = Task("t", [{"role": "user", "content": QUESTION}])
    answer = Segment("policy", [1], [0.0], text=f"{ANSWER} hf_AbCdEfGhIjKlMnOpQrStUvWx")
    trajectory = Trajectory(task, "g", segments=[answer], failure=Failure("task", "ValueError"))
    save(made / "rollouts/step_000010.parquet", [trajectory])
    monkeypatch.setattr(
        "toolwright.doctor.examination.in_order", lambda: [Entry("one", lambda: ok("well"), frozenset())]
    )
    monkeypatch.setenv("PLANTED_PASSWORD", "correcthorsebattery")
    monkeypatch.chdir(tmp_path)
    return made


def contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_nothing_planted_is_in_the_zip(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (run / "log.txt").open("a") as file:
        file.write("2026-01-01 00:00:00 login correcthorsebattery\n")
    assert main(["doctor", "--report", str(run), "--out", "report.zip"]) == 0
    held = contents(Path("report.zip"))
    whole = "\n".join(held.values())
    assert [secret for _, secret in PLANTED.values() if secret in whole] == []
    for private in (QUESTION, ANSWER, ANSWER[:30], "pelicans", "correcthorsebattery", str(Path.home())):
        assert private not in whole
    assert set(held) == {
        "README.txt", "doctor.txt", "doctor.json", "versions.txt", "environment.txt", "run/diagnosis.json",
        "run/config.yaml", "run/command.txt", "run/log.txt", "run/metrics.jsonl", "run/incidents.jsonl",
    }  # fmt: skip
    assert "updates not finite" in held["run/diagnosis.json"]
    assert held["run/metrics.jsonl"].count("\n") == 10
    assert "torch==" in held["versions.txt"]
    printed = capsys.readouterr().out
    for name in ("run/log.txt", "versions.txt"):
        assert name in printed
    assert "Look through it before" in printed


def test_attempts_are_in_it_when_asked_for_and_even_then_without_secrets(run: Path) -> None:
    assert main(["doctor", "--report", str(run), "--out", "report.zip", "--with-attempts"]) == 0
    held = contents(Path("report.zip"))
    (attempt,) = map(json.loads, held["run/attempts.jsonl"].splitlines())
    assert attempt["prompt"][0]["content"] == QUESTION
    assert attempt["segments"][0]["text"] == f"{ANSWER} {REMOVED}"


def test_without_a_run_it_is_about_the_machine(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_AbCdEfGhIjKlMnOpQrStUvWx")
    assert main(["doctor", "--report", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    held = contents(Path(told["file"]))
    assert {*told["holds"], "README.txt"} == set(held)
    assert "HF_TOKEN" in held["environment.txt"]
    assert "AbCdEfGh" not in "".join(held.values())


def test_an_unwritable_place_is_an_error_of_one_sentence(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").touch()
    assert main(["doctor", "--report", "--out", "taken/report.zip"]) == 2
    assert "taken/report.zip cannot be written" in capsys.readouterr().err
