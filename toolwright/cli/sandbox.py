"""Run code in isolation: serve it over HTTP, or run one file."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path

from toolwright.failures import UserError
from toolwright.sandbox.limits import RunLimits
from toolwright.sandbox.settings import SandboxSettings
from toolwright.web import callers

# The limits that are options, with what they say of themselves.
_LIMITS = {
    "timeout_s": "seconds a run may take when its request does not say",
    "timeout_max_s": "the most seconds a request may ask for",
    "memory_mb": "MiB a run may use when its request does not say",
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
    parser = argparse.ArgumentParser(prog="toolwright sandbox", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="serve | run")
    serve = commands.add_parser("serve", help="answer runs over HTTP")
    serve.add_argument("--host", default="127.0.0.1", help="other than loopback needs a token")
    serve.add_argument("--port", type=int, default=8010, help="0 takes a free one")
    serve.add_argument("--token", help="what callers must show; or the variable TOOLWRIGHT_SANDBOX_TOKEN")
    serve.add_argument("--workers", type=int, default=0, help="0: one a core")
    serve.add_argument("--runs-per-worker", type=int, default=SandboxSettings.runs_per_worker)
    serve.add_argument(
        "--preload", default=",".join(SandboxSettings.preload), help="packages kept warm, if installed"
    )
    serve.add_argument(
        "--queue-limit", type=int, default=SandboxSettings.queue_limit, help="runs that may wait"
    )
    serve.add_argument("--queue-timeout-s", type=float, default=SandboxSettings.queue_timeout_s)
    serve.add_argument("--sessions-max", type=int, default=SandboxSettings.sessions_max)
    serve.add_argument("--session-idle-s", type=float, default=SandboxSettings.session_idle_s)
    serve.add_argument(
        "--drain-s", type=float, default=SandboxSettings.drain_s, help="seconds to finish after SIGTERM"
    )
    callers.add_options(serve)
    _add_isolation(serve)
    serve.set_defaults(command=_serve)
    run = commands.add_parser("run", help="run one file and leave with its exit code")
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
    for field in fields(RunLimits):
        if field.name in _LIMITS:
            kind = float if isinstance(field.default, float) else int
            option = "--" + field.name.replace("_", "-")
            parser.add_argument(option, type=kind, default=field.default, help=_LIMITS[field.name])


def _limits(arguments: argparse.Namespace) -> RunLimits:
    return RunLimits(**{name: getattr(arguments, name) for name in _LIMITS})


def _serve(arguments: argparse.Namespace) -> int:
    import asyncio

    from toolwright.sandbox import server
    from toolwright.web import address

    token = arguments.token or os.environ.get(server.TOKEN_VARIABLE) or None
    address.require_token(arguments.host, token, server.TOKEN_VARIABLE)
    settings = SandboxSettings(
        isolation=arguments.isolation,
        workers=arguments.workers,
        runs_per_worker=arguments.runs_per_worker,
        preload=tuple(name for name in arguments.preload.split(",") if name),
        limits=_limits(arguments),
        queue_limit=arguments.queue_limit,
        queue_timeout_s=arguments.queue_timeout_s,
        sessions_max=arguments.sessions_max,
        session_idle_s=arguments.session_idle_s,
        drain_s=arguments.drain_s,
    )
    listening = address.bind(arguments.host, arguments.port)
    with asyncio.Runner(loop_factory=address.new_event_loop) as runner:
        who = callers.from_options(arguments, token)
        runner.run(server.serve(settings, listening, who, lambda text: print(text, flush=True)))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    import asyncio

    from toolwright.sandbox.server import run_once

    if arguments.file == "-":
        code = sys.stdin.read()
    else:
        try:
            code = Path(arguments.file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{arguments.file} cannot be read: {error}") from None
    stdin = Path(arguments.stdin).read_text() if arguments.stdin else ""
    endings = {".cpp": "cpp", ".cc": "cpp", ".sh": "bash", ".js": "javascript"}
    language = arguments.language or endings.get(Path(arguments.file).suffix, "python")
    settings = SandboxSettings(
        isolation=arguments.isolation, workers=1, runs_per_worker=1, limits=_limits(arguments)
    )
    result = asyncio.run(run_once(settings, code, language, stdin))
    sys.stdout.write(result["stdout"])
    sys.stderr.write(result["stderr"])
    if result.get("reason"):
        sys.stderr.write(f"[{result['status']}: {result['reason']}]\n")
    exit_code = result["exit_code"]
    return 1 if exit_code is None else exit_code if exit_code >= 0 else 128 - exit_code
