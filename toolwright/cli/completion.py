"""Print a completion script for your shell.

Examples:
  source <(toolwright completion bash)                          for this shell
  toolwright completion bash > ~/.local/share/bash-completion/completions/toolwright
  toolwright completion zsh > "${fpath[1]}/_toolwright"
  toolwright completion fish > ~/.config/fish/completions/toolwright.fish

The script knows all commands, options, keys, presets and registered names, so that a completion starts no
Python. Print it again after an update, or when you install a plugin.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolwright.cli import commands
from toolwright.failures import UserError
from toolwright.registry import load_object

SCRIPTS = Path(__file__).parent / "completion_scripts"
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# As argparse writes them, or as usage lines of our own: {list,compare} or search | show
_ACTIONS = re.compile(r"\{([a-z][a-z0-9-]*(?:,[a-z][a-z0-9-]*)*)\}|([a-z]+(?: \| [a-z]+)+)")


@dataclass(frozen=True)
class Completions:
    """Words that may follow `toolwright COMMAND` or `toolwright COMMAND ACTION`."""

    words: list[str]  # actions, options, and keys that end in =
    values: list[str]  # key=value, for a word that has its =
    runs: bool  # names of runs are among its arguments


def main(argv: list[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: toolwright completion {' | '.join(SHELLS)}\n\n{(__doc__ or '').strip()}")
        return 0
    if len(argv) != 1 or argv[0] not in SHELLS:
        said = f"unknown shell {argv[0]!r}; " if argv and argv[0] not in SHELLS else ""
        raise UserError(f"{said}expected one shell: toolwright completion {' | '.join(SHELLS)}")
    script = (SCRIPTS / f"toolwright.{argv[0]}").read_text(encoding="utf-8")
    print(script.replace("@CASES@", SHELLS[argv[0]](dict(known()))), end="")
    return 0


def known() -> Iterator[tuple[str, Completions]]:
    """The completions of every command and of every action."""
    yield "", Completions(["--help", "--version", *commands()], [], False)
    for command in commands():
        if command == "completion":
            yield command, Completions(list(SHELLS), [], False)
            continue
        text = _help(command)
        listed = _ACTIONS.search(text)
        actions = re.split(r",| \| ", listed[0].strip("{}")) if listed else []
        yield command, _completions(command, text, actions)
        for action in actions:
            of_action = action if command == "config" else command
            yield f"{command} {action}", _completions(of_action, _help(command, action), [])


def _completions(command: str, text: str, actions: list[str]) -> Completions:
    """`text`: the help of the command, or of its action."""
    keys, values = _settings(command) if "key=value" in text else ([], [])
    names_a_run = bool(re.search(r"\bRUN\b", text)) and not actions
    options = sorted({*_OPTION.findall(text), "--help"})
    return Completions([*actions, *options, *keys], values, names_a_run)


def _help(*words: str) -> str:
    """Return the help text of a command; its options are not listed anywhere else."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit, UserError):
        load_object(commands()[words[0]])([*words[1:], "--help"])
    return said.getvalue()


def _settings(command: str) -> tuple[list[str], list[str]]:
    """Keys and presets of a command's configuration, and the values that can be listed."""
    from toolwright.config.compose import Source, composer
    from toolwright.config.compose import commands as configured
    from toolwright.config.keys import leaves
    from toolwright.config.names import Registered

    source = Source(command if command in configured() else "train")
    with composer(source) as composing:
        groups = composing.vocabulary().groups
    values = {group: list(presets) for group, presets in groups.items()}
    for key in leaves(source.schema):
        registered = {n for mark in key.metadata if isinstance(mark, Registered) for n in mark.names()}
        truth = ["true", "false"] if key.annotation is bool else []
        values[key.path] = [*sorted(registered), *key.choices, *truth]
    return [f"{key}=" for key in values], [f"{key}={one}" for key, found in values.items() for one in found]


def _cases(found: dict[str, Completions]) -> str:
    lines = ['    case "$said" in']
    for name, one in found.items():
        lines += [f"        {shlex.quote(name)})", f"            listed={shlex.quote(' '.join(one.words))}"]
        lines.append(f"            values={shlex.quote(' '.join(one.values))}")
        if one.runs:
            lines.append('            listed="$listed $(_toolwright_runs)"')
        lines.append("            ;;")
    return "\n".join([*lines, "    esac"])


def _fish_cases(found: dict[str, Completions]) -> str:
    cases = []
    for name, one in found.items():
        cases.append(f"        case {shlex.quote(name)}")
        cases.append(f"            set words {' '.join(map(shlex.quote, one.words))}")
        cases.append(f"            set values {' '.join(map(shlex.quote, one.values))}")
        if one.runs:
            cases.append("            set words $words (__toolwright_runs)")
    return "\n".join(cases)


SHELLS = {"bash": _cases, "zsh": _cases, "fish": _fish_cases}
