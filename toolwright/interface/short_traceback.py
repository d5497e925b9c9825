"""A mistake in what the user gave is shown at the user's line, without the calls within this package."""

from __future__ import annotations

from types import TracebackType

from toolwright.failures import UserError


class ShortTraceback:
    """Around the body of a public function: a `UserError` leaves it as if it were raised there."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, UserError):
            raise error.with_traceback(None)
