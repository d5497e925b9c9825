"""What can go wrong with a call, sorted once for all providers: the kind decides who reacts."""

from __future__ import annotations

from typing import Any

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.providers import ChatReply

PASSING = (408, 409, 425, 429)  # and every 5xx
OF_THIS_CALL = (400, 413, 422)


class Passing(InfrastructureFailure):
    """Another try may go better, after this many seconds where the server says so. `took` has the tokens
    that it tells of all the same: of an answer that was written, and is none."""

    def __init__(
        self, message: str, retry_after_s: float | None = None, *, took: ChatReply | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.took = took or ChatReply("")


def sorted_out(error: Exception, sdk: Any, who: str) -> Exception:
    """An exception of either SDK as one of ours; their classes have the same names."""
    if isinstance(error, sdk.APITimeoutError):
        return Passing(f"{who}: no answer in time")
    if isinstance(error, sdk.APIConnectionError):
        return Passing(f"{who}: {error.__cause__ or error}")
    if isinstance(error, sdk.APIStatusError):
        status, said = error.status_code, f"{who} answered {error.status_code}: {_short(error)}"
        if status in PASSING or status >= 500:
            return Passing(said, _seconds(error.response.headers.get("retry-after")))
        if status in OF_THIS_CALL:
            return TaskFailure(said)
        return UserError(f"{said}; see model, base_url and api_key_env")
    if isinstance(error, sdk.APIError):
        return Passing(f"{who} sent what cannot be read: {_short(error)}")
    return error


def _short(error: Exception) -> str:
    return str(error)[:300]


def _seconds(header: str | None) -> float | None:
    try:
        return float(header) if header else None
    except ValueError:  # a date; our own backoff will do
        return None
