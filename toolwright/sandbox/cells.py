"""The interpreter of a session: it keeps its variables from one cell to the next."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any, NoReturn

from toolwright.sandbox import program, wire


class _Interrupts:
    """SIGINT ends a cell, and is ignored between cells."""

    def __init__(self) -> None:
        self.in_cell = False
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, where: FrameType | None) -> None:
        if self.in_cell:
            raise KeyboardInterrupt


def serve(channel: int) -> NoReturn:
    namespace = program.new_main()
    interrupts = _Interrupts()
    while True:
        job = wire.read_job(channel)
        if job is None:
            os._exit(0)
        outcome, value = wire.CELL_OK, b""
        try:
            interrupts.in_cell = True
            try:
                value = _run_cell(job.get("code", ""), f"cell {job['number']}", namespace)
            finally:
                interrupts.in_cell = False
        except SystemExit as leaving:
            os._exit(program.finish(program.exit_code_of(leaving)))
        except BaseException as error:
            interrupts.in_cell = False
            outcome = wire.CELL_ERROR
            _print_error(error)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        value = value[: job["value_bytes"]]
        wire.write_all(channel, wire.REPLY.pack(job["number"], outcome, len(value)) + value)


def _print_error(error: BaseException) -> None:
    trace = error.__traceback__
    ours = __file__
    while trace is not None and trace.tb_frame.f_code.co_filename == ours:
        trace = trace.tb_next
    with contextlib.suppress(BaseException):
        traceback.print_exception(type(error), error, trace)


def _run_cell(code: str, name: str, namespace: dict[str, Any]) -> bytes:
    """Runs a cell and returns the value of its last expression, as a notebook shows it."""
    program.cache_source(name, code)
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if tree.body:
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
    if last is None:
        return b""
    assert isinstance(last, ast.Expr)
    value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)
    if value is None:
        return b""
    namespace["_"] = value
    return repr(value).encode("utf-8", "backslashreplace")
