"""Every block of code in the docs says what it is, and every command exists, with settings that exist."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import LANGUAGES, CodeBlock, ShellCommand, blocks, pages_with_code
from tests.docs.pages import DOCS, chinese_page, english_pages
from toolwright.cli import main
from toolwright.tools.toolbox import Toolbox

LAUNCHED = ("train", "eval", "sft")
GROUPS = ("data", "model", "sandbox", "workflow")
EVERY = [block for page in pages_with_code() for block in blocks(page)]
OURS = list(
    {  # each once, whatever number of pages show it
        tuple(command.words): command
        for block in EVERY
        if block.language == "sh"
        for command in block.commands
        if command.words[:1] == ["toolwright"]
    }.values()
)


def test_every_block_says_what_it_is() -> None:
    unnamed = [block.place for block in EVERY if block.language not in LANGUAGES]
    assert not unnamed, f"write ```sh, ```python, ```text …: {unnamed}"


@pytest.mark.parametrize(
    "block", [b for b in EVERY if b.language in ("python", "yaml", "json")], ids=lambda block: block.place
)
def test_code_can_be_read(block: CodeBlock) -> None:
    if block.language == "python":
        compile(block.code, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    elif block.language == "yaml":
        list(yaml.safe_load_all(block.code))
    else:
        json.loads(block.code)


@pytest.mark.parametrize("command", OURS, ids=lambda command: f"{command.block.place} {command.line:.40}")
def test_a_command_and_its_settings_exist(
    command: ShellCommand, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else a command needs: its name, options, keys and presets are ours."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(command.block.page):
        block.write_file(tmp_path)
    name, *rest = command.words[1:]
    resumes = "run.resume=true" in rest  # the configuration is that run's
    if "--multirun" in rest:  # one of its runs
        rest = [word.partition(",")[0] for word in rest if word != "--multirun"]
    if (name in LAUNCHED and not resumes) or (name == "workflow" and rest[0] == "search" and not resumes):
        assert main([name, *rest, "--dry-run"]) == 0, capsys.readouterr().err
        return
    if name.startswith("-") or name == "config":
        assert main([name, *rest]) == 0, capsys.readouterr().err
        return
    group = [rest[0]] if rest and name in GROUPS else []
    with contextlib.suppress(SystemExit):
        assert main([name, *group, "--help"]) == 0
    told = capsys.readouterr().out
    assert told, f"there is no `toolwright {' '.join([name, *group])}`"
    for option in [word.partition("=")[0] for word in rest if word.startswith("--")]:
        assert option in told, f"toolwright {name} has no option {option}"


@pytest.mark.parametrize("page", english_pages(), ids=lambda page: str(page.relative_to(DOCS)))
def test_a_chinese_page_has_the_code_of_its_english_one(page: Path) -> None:
    def code(of: Path) -> list[str]:
        return [block.code for block in blocks(of) if block.language in ("sh", "python", "yaml", "json")]

    assert code(chinese_page(page)) == code(page)


def test_the_tool_with_state_shows_the_policy_its_note_alone(tmp_path: Path) -> None:
    """What the run fills in is no argument of the policy's, who would have to make it up."""
    for block in blocks(DOCS / "write-your-own-tool.md"):
        block.write_file(tmp_path)
    (offered,) = asyncio.run(Toolbox({"notes": {"path": f"{tmp_path}/notes.py:Notes"}}).schemas())
    assert list(offered["function"]["parameters"]["properties"]) == ["note"]
