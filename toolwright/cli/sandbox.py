"""Run code in isolation: serve it over HTTP, or run one file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolwright.cli import CommandParser
from toolwright.failures import UserError
from toolwright.sandbox.limits import RunLimits
from toolwright.sandbox.settings import SandboxSettings
from toolwright.web import callers

# The settings of a server and the limits of a run that are options, with what they say of themselves.
_SETTINGS = {
    "workers": "worker processes; 0: one for each core",
    "runs_per_worker": "runs side by side on one worker",
    "queue_limit": "runs that may wait",
    "queue_timeout_s": "seconds that a run may wait if its request does not say",
    "sessions_max": "sessions open at once",
    "session_idle_s": "seconds after which an unused session ends",
    "drain_s": "seconds to finish after SIGTERM",
}
_LIMITS = {
    "timeout_s": "seconds a run may take if its request does not say",
    "timeout_max_s": "the most seconds a request may ask for",
    "memory_mb": "MiB a run may use if its request does not say",
    "memory_max_mb": "the most MiB a request may ask for",
    "processes": "processes and threads of one run",
    "open_files": "files a process may hold open",
    "file_mb": "MiB of one file",
    "disk_mb": "MiB of all files of a run",
    "output_kb": "KiB kept of stdout and of stderr",
}


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    return arguments.command(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="toolwright sandbox", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="serve | run")
    serve = commands.add_parser("serve", help="answer runs over HTTP")
    serve.add_argument("--host", default="127.0.0.1", help="an address other than loopback needs a token")
    serve.add_argument("--port", type=int, default=8010, help="the port to listen on; 0 takes a free one")
    serve.add_argument(
        "--token", help="the token that callers must send; or set the variable TOOLWRIGHT_SANDBOX_TOKEN"
    )
    serve.add_argument(
        "--preload",
        default=",".join(SandboxSettings.preload),
        help="packages to import in advance, if installed",
    )
    _add_options(serve, SandboxSettings, _SETTINGS)
    callers.add_options(serve)
    _add_isolation(serve)
    serve.set_defaults(command=_serve)
    run = commands.add_parser("run", help="run one file and exit with its exit code")
    run.add_argument("file", help="- reads the code from standard input")
    run.add_argument("--language", help="by default from the file's ending")
    run.add_argument("--stdin", default="", help="a file whose content the code reads")
    _add_isolation(run)
    run.set_defaults(command=_run)
    return parser


def _add_isolation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isolation", default="full",
        help="full, available, none, or layers: `-network` is all but one, `pid,mount` only those",
    )  # fmt: skip
    _add_options(parser, RunLimits, _LIMITS)


def _add_options(parser: argparse.ArgumentParser, settings: type, told: Mapping[str, str]) -> None:
    for name, text in told.items():
        default = getattr(settings, name)
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default, help=text)


def _given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in names}


def _serve(arguments: argparse.Namespace) -> int:
    import asyncio

    from toolwright.sandbox import app
    from toolwright.web import address

    token = arguments.token or os.environ.get(app.TOKEN_VARIABLE) or None
    address.require_token(arguments.host, token, app.TOKEN_VARIABLE)
    settings = SandboxSettings(
        isolation=arguments.isolation,
        preload=tuple(name for name in arguments.preload.split(",") if name),
        limits=RunLimits(**_given(arguments, _LIMITS)),
        **_given(arguments, _SETTINGS),
    )
    listening = address.bind(arguments.host, arguments.port)
    with asyncio.Runner(loop_factory=address.new_event_loop) as runner:
        who = callers.from_options(arguments, token)
        runner.run(app.serve(settings, listening, who, lambda text: print(text, flush=True)))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    import asyncio

    from toolwright.sandbox.app import run_once

    if arguments.file == "-":
        code = sys.stdin.read()
    else:
        try:
            code = Path(arguments.file).read_text()
        except FileNotFoundError:
            raise UserError(f"no such file: {arguments.file}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{arguments.file} cannot be read: {error}") from None
    stdin = Path(arguments.stdin).read_text() if arguments.stdin else ""
    endings = {".cpp": "cpp", ".cc": "cpp", ".sh": "bash", ".js": "javascript"}
    language = arguments.language or endings.get(Path(arguments.file).suffix, "python")
    limits = RunLimits(**_given(arguments, _LIMITS))
    settings = SandboxSettings(isolation=arguments.isolation, workers=1, runs_per_worker=1, limits=limits)
    result = asyncio.run(run_once(settings, code, language, stdin))
    sys.stdout.write(result["stdout"])
    sys.stderr.write(result["stderr"])
    if result.get("reason"):
        sys.stderr.write(f"[{result['status']}: {result['reason']}]\n")
    exit_code = result["exit_code"]
    return 1 if exit_code is None else exit_code if exit_code >= 0 else 128 - exit_code
