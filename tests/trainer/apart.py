"""An engine whose log-probabilities are not the learner's, as after a publication that went wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toolwright.engines import Completion
from toolwright.engines.native.engine import NativeEngine

OFF = 0.25


class Apart(NativeEngine):
    def __init__(self, config: Any, **given: Any) -> None:
        super().__init__(config, **given)
        self.exact = False

    async def generate(self, *asked: Any, **given: Any) -> Completion:
        said = await super().generate(*asked, **given)
        return replace(said, log_probs=[p - OFF for p in said.log_probs])
