"""An agent that blocks its whole process the first time it is used."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests.runtime.echoes import Caller
from toolwright.agents.attempt import Attempt

_NOTE = Path(tempfile.gettempdir()) / f"stuck-{os.getppid()}"


def hangs_here() -> None:
    time.sleep(600)


class Stuck(Caller):
    async def attempt(self, attempt: Attempt) -> None:
        try:
            _NOTE.touch(exist_ok=False)
        except FileExistsError:
            await super().attempt(attempt)
        else:
            hangs_here()
