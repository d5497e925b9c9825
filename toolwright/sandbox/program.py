"""Runs Python code as a script, as a fresh interpreter would, without starting one."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import linecache
import os
import signal
import sys
import threading
import traceback
import types
from typing import Any, NoReturn

from toolwright.sandbox.view import holds_packages

_NAME = "main.py"
_OURS = "toolwright"


def prepare_interpreter() -> None:
    """Makes the interpreter of the zygote look like one that was just started on a script."""
    for name in [name for name in sys.modules if name.split(".")[0] == _OURS]:
        del sys.modules[name]
    sys.argv = [_NAME]
    prefixes = (sys.prefix, sys.base_prefix)
    sys.path[:] = ["", *(path for path in sys.path if path.startswith(prefixes) or holds_packages(path))]
    sys.dont_write_bytecode = True
    atexit._clear()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout = _writer(1, "strict")
    sys.stderr = _writer(2, "backslashreplace", line_buffering=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _writer(descriptor: int, errors: str, line_buffering: bool = False) -> io.TextIOWrapper:
    raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=line_buffering)


def new_main() -> dict[str, Any]:
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module.__dict__


def cache_source(name: str, code: str) -> None:
    # Without a time stamp linecache keeps the lines although no such file exists.
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)


def run(code: str) -> NoReturn:
    os._exit(finish(execute(code)))


def execute(code: str) -> int:
    """Runs a script and returns its exit code."""
    namespace = new_main()
    cache_source(_NAME, code)
    exit_code = 0
    try:
        exec(compile(code, _NAME, "exec", dont_inherit=True), namespace)
    except SystemExit as leaving:
        exit_code = exit_code_of(leaving)
    except BaseException as error:
        _show(error)
        exit_code = 1
    return exit_code


def exit_code_of(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    with contextlib.suppress(Exception):
        print(leaving.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Prints the traceback as the interpreter does, without our own frames."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    try:
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, frames)
        else:
            traceback.print_exception(type(error), error, frames)
    except BaseException:
        # The code may have broken printing: a closed stderr, a hook that raises, no memory left.
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}\n".encode())


def finish(exit_code: int) -> int:
    """Ends a script: waits for threads, runs exit functions, flushes streams."""
    try:
        if len(threading._active) > 1:  # type: ignore[attr-defined]
            threading._shutdown()  # type: ignore[attr-defined]
        if atexit._ncallbacks():
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    except BrokenPipeError:
        pass
    except BaseException:
        exit_code = exit_code or 120
    return exit_code
