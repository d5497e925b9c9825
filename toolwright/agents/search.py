"""Search in the form of Search-R1: `<search>query</search>`, answered by `<information>…</information>`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolwright.agents import registry
from toolwright.agents.auto import searches
from toolwright.agents.formats import CallFormat, Schemas
from toolwright.agents.formats.tags import Tags
from toolwright.agents.tool_use import ToolUse
from toolwright.config import schema
from toolwright.models.tokenizer import Tokenizer
from toolwright.tools.toolbox import Toolbox


@registry.register("search")
class SearchAgent(ToolUse):
    """Uses tools with these tags, unless another format is configured."""

    def __init__(
        self,
        config: schema.RolloutConfig,
        tools: Toolbox,
        tokenizer: Tokenizer,
        tool_settings: Mapping[str, Mapping[str, Any]],
    ) -> None:
        super().__init__(config, tools, tokenizer)
        self.engines = {
            own.get("name") or label for label, own in tool_settings.items() if searches(label, own)
        }

    def ordered(self, schemas: Schemas) -> Schemas:
        return sorted(schemas, key=lambda schema: schema["function"]["name"] not in self.engines)

    def _format(self, params: Mapping[str, Any]) -> CallFormat:
        if self.config.call_format != "auto":
            return super()._format(params)
        return Tags(**{"call": "search", "result": "information", "around": "\n\n", **params})
