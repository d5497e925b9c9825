"""Compiled code, kept between processes in the user's cache folder: every start compiles the same again."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

DIGEST_BYTES = hashlib.sha256().digest_size


def compiled_once(made_from: str, compile: Callable[[], bytes]) -> bytes:
    """Return what `compile` returns, from an earlier process of this user if one compiled the same source."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "toolwright"
        file = folder / f"{hashlib.sha256(made_from.encode()).hexdigest()}.o"
    except RuntimeError:  # the user has no home
        return compile()
    if (kept := _read(file)) is not None:
        return kept
    code = compile()
    with contextlib.suppress(OSError):  # a folder that cannot be written to costs time, nothing else
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_bytes(hashlib.sha256(code).digest() + code)
        os.replace(partial, file)
    return code


def _read(file: Path) -> bytes | None:
    """The code, if the file is whole and this user's own."""
    try:
        if file.stat().st_uid != os.getuid():
            return None
        content = file.read_bytes()
    except OSError:
        return None
    digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None
