"""The `transformers` library: imported where it is needed, which takes a second, and kept quiet."""

from __future__ import annotations

from typing import Any


def quiet_transformers() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def first_line(error: Exception) -> str:
    """The start of a message that may be a page long."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
