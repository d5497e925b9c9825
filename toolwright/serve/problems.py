"""HTTP errors, in the form of either protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

# status -> the type of an error, as Anthropic names it
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class HttpProblem(Exception):
    """A response of 4xx or 5xx. `param` names the field at fault, `code` is for programs."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def openai(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code},
        }

    def anthropic(self) -> dict[str, Any]:
        kind = KINDS.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def of_validation(error: ValidationError) -> HttpProblem:
    """Report the error in a body that was found furthest inside, and its place: of a list that may also be
    text, the item that is wrong."""
    errors = error.errors(include_url=False, include_context=False)
    found = max(errors, key=lambda one: len(one["loc"]))  # the first of those
    where = _path(found["loc"])
    message = found["msg"].removeprefix("Value error, ")
    if found["type"] == "literal_error":
        message += f", found {found['input']!r:.60}"
    return HttpProblem(400, f"{where}: {message}" if where else message, param=where or None)


def _path(places: Sequence[int | str]) -> str:
    """Write a place as `messages[0].content`. Pydantic's names for union members are left out."""
    text = ""
    for place in places:
        if isinstance(place, int):
            text += f"[{place}]"
        elif place.isidentifier():
            text += f".{place}" if text else place
    return text
