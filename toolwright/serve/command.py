"""Serve a model over HTTP with OpenAI's and Anthropic's protocols.

Examples:
  toolwright serve runs/NAME/model
  toolwright serve path/to/hf/folder --port 0 --slots 64 --context 4096
  TOOLWRIGHT_SERVE_TOKEN=… toolwright serve runs/NAME/model --host 0.0.0.0
  toolwright serve runs/NAME/model --record answers
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from toolwright.cli import CommandParser
from toolwright.failures import UserError
from toolwright.web import callers

if TYPE_CHECKING:
    from toolwright.providers.local import LocalModel

# Option, type, default, help.
_OPTIONS = (
    ("host", str, "127.0.0.1", "an address other than loopback needs a token"),
    ("port", int, 8000, "the port to listen on; 0 takes a free one"),
    ("token", str, None, "the API key that callers must send; the variable TOOLWRIGHT_SERVE_TOKEN is safer"),
    ("name", str, None, "the model's name in requests; by default its folder's"),
    ("engine", str, "native", "a registered engine"),
    ("slots", int, 32, "answers generated side by side"),
    ("context", int, None, "the longest sequence in tokens; by default the model's limit, if memory allows"),
    ("dtype", str, "auto", "auto, float32 or bfloat16"),
    ("device", str, "auto", "auto, cpu, cuda, cuda:1, …"),
    ("threads", int, None, "CPU threads; by default one for a tiny model, else every core"),
    ("call-format", str, "auto", "how the model writes tool calls; auto: by its chat template"),
    ("timeout-s", float, 600.0, "the time limit of one answer"),
    ("queue-limit", int, 1024, "answers under way before further requests get 429"),
    ("drain-s", float, 30.0, "seconds to finish requests after Ctrl-C or SIGTERM"),
    ("record", str, None, "a folder that keeps all answers, for /v1/feedback and task=recorded"),
    ("record-mb", float, 1024.0, "megabytes of the record; beyond that its oldest answers are removed"),
)


def main(argv: list[str]) -> int:
    import asyncio

    arguments = _parser().parse_args(argv)
    from toolwright.serve import app
    from toolwright.serve.recorder import Recorder
    from toolwright.web import address

    for option, least in (("queue_limit", 1), ("drain_s", 0), ("record_mb", 1)):
        value = getattr(arguments, option)
        if not least <= value < float("inf"):
            raise UserError(f"--{option.replace('_', '-')} {value}: expected a number from {least} on")
    token = arguments.token or os.environ.get(app.TOKEN_VARIABLE) or None
    address.require_token(arguments.host, token, app.TOKEN_VARIABLE)
    with address.bind(arguments.host, arguments.port) as listening:
        model = _model(arguments)
        recorder = None
        if arguments.record is not None:
            recorder = Recorder(Path(arguments.record), model, limit_mb=arguments.record_mb)
        with asyncio.Runner(loop_factory=address.new_event_loop) as runner:
            runner.run(
                app.serve(
                    model,
                    listening,
                    callers=callers.from_options(arguments, token),
                    queue_limit=arguments.queue_limit,
                    drain_s=arguments.drain_s,
                    recorder=recorder,
                    log=lambda text: print(text, flush=True),
                )
            )
    return 0


def _parser() -> argparse.ArgumentParser:
    about, _, examples = (__doc__ or "").partition("\n\n")
    parser = CommandParser(prog="toolwright serve", description=about, epilog=examples)
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face folder, such as a run's model/")
    for name, kind, default, text in _OPTIONS:
        shown = "" if default is None else f" ({default})"
        parser.add_argument(f"--{name}", type=kind, default=default, help=text + shown)
    callers.add_options(parser)
    return parser


def _model(arguments: argparse.Namespace) -> LocalModel:
    from pydantic import ValidationError

    from toolwright.config import schema
    from toolwright.config.keys import find
    from toolwright.providers.local import load

    try:
        schema.RunConfig(threads=arguments.threads)
        engine = schema.EngineConfig(
            name=arguments.engine, slots=arguments.slots, timeout_s=arguments.timeout_s
        )
        model = schema.Model(
            path=arguments.model,
            context="auto" if arguments.context is None else arguments.context,
            dtype=arguments.dtype,
            device=arguments.device,
        )
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        blocks = (schema.RunConfig, schema.EngineConfig, schema.Model)
        key = next(found for block in blocks if (found := find(block, name)))
        option = name.replace("_", "-")
        raise UserError(
            f"--{option} {first['input']}: expected {key.expected.removesuffix(' or null')}"
        ) from None
    return load(
        model,
        engine,
        name=arguments.name,
        call_format=arguments.call_format,
        threads=arguments.threads,
        log=lambda line: print(line, file=sys.stderr, flush=True),
    )
