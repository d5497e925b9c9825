"""The request bodies. A field that would change the answer and is not supported is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
)
from pydantic import model_validator as validator

from toolwright.agents.formats.arguments import Unreadable, read_json
from toolwright.tasks.record_folder import FeedbackScope

MOST_CHOICES = 128  # of one request
MOST_STOPS = 16
MOST_TOP = 20

Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Temperature = Annotated[float, Field(ge=0, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Stops = Annotated[list[Stop], Field(max_length=MOST_STOPS)]


class Body(BaseModel):
    """A strict body: numbers are no strings. Unknown fields are ignored, except those in `refused`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    # Unsupported fields that would change the answer, with the values that change nothing.
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @validator(mode="after")
    def _refuse_unsupported_fields(self) -> Body:
        for name, harmless in self.refused.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in harmless:
                raise ValueError(f"{name} is not supported here; leave it out")
        return self


class TextBlock(Body):
    """A part of a message, in both protocols."""

    type: Literal["text"]
    text: str


class Schema(Body):
    """The JSON schema of a tool's arguments: checked as far as call formats read it, and kept as it was sent,
    since templates show its keys in their order."""

    properties: dict[str, dict[str, Any]] = {}
    required: list[str] = []
    _sent: Any = None

    @validator(mode="wrap")
    @classmethod
    def _keep(cls, sent: Any, check: ValidatorFunctionWrapHandler) -> Schema:
        schema: Schema = check(sent)
        schema._sent = sent
        return schema

    @model_serializer
    def _as_sent(self) -> Any:
        return self._sent


class Function(Body):
    name: Name
    description: str | None = None
    parameters: Schema | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """The tool with only the fields that the client sent: templates show it as in training."""
        return self.model_dump(exclude_none=True, exclude_unset=True)


def _object(text: str) -> str:
    try:
        value, end = read_json(text or "{}")
    except Unreadable as reason:
        raise ValueError(
            f"the arguments of a call are a JSON object, but this cannot be read: {reason}"
        ) from None
    if not isinstance(value, dict) or (text or "{}")[end:].strip():
        raise ValueError("the arguments of a call are a JSON object")
    return text or "{}"


class CalledFunction(Body):
    name: Name
    arguments: Annotated[str, AfterValidator(_object)]


class ToolCall(Body):
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextBlock] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @validator(mode="after")
    def _check_content(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"a message of the {self.role}'s needs content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only the assistant calls tools")
        return self

    def plain(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True, include={"role", "content", "tool_calls", "tool_call_id"})


class StreamOptions(Body):
    include_usage: bool = False


def schema_of(form: Any) -> str:
    """The JSON schema that an answer must follow, as text; none for plain text. OpenAI's two endpoints and
    Anthropic's wrap it differently."""
    kind = "text" if form is None else form.get("type") if isinstance(form, dict) else form
    if kind == "text":
        return ""
    if kind == "json_object":
        return '{"type":"object"}'
    schema = form.get("json_schema", form).get("schema") if kind == "json_schema" else None
    if not isinstance(schema, dict):
        raise ValueError("expected text, json_object, or json_schema with its schema")
    return orjson.dumps(schema).decode()


AnswerForm = Annotated[str, BeforeValidator(schema_of)]


def _unforced(choice: Any) -> Any:
    """Refuse a choice of tools that forces a call: one function, or any by `required` or `any`."""
    if choice not in (None, "auto", "none"):
        raise ValueError("a call cannot be forced here; write auto or none")
    return choice


ToolChoice = Annotated[Literal["auto", "none"], BeforeValidator(_unforced)]


class FormField(Body):
    """The form of an answer, where Responses and newer Anthropic clients say it."""

    format: AnswerForm = ""


class SampledBody(Body):
    """Fields of every endpoint that generates."""

    model: str
    temperature: Temperature | None = 1.0
    top_p: Share | None = 1.0
    top_k: Annotated[int, Field(ge=0)] | None = 0
    stream: bool | None = False


class SamplingFields(SampledBody):
    """Fields of both of OpenAI's older endpoints."""

    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = 1
    stop: Stop | Stops | None = None
    seed: int | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False  # vLLM's extension: the sampled token ids
    response_format: AnswerForm = ""

    refused: ClassVar = {
        "frequency_penalty": (0, 0.0),
        "presence_penalty": (0, 0.0),
        "logit_bias": ({},),
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
        "modalities": (["text"],),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "parallel_tool_calls": (True,),
        "reasoning_effort": ("none",),
        # vLLM's extensions to the protocol.
        "repetition_penalty": (1, 1.0),
        "min_p": (0, 0.0),
        "min_tokens": (0,),
        "structured_outputs": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "chat_template_kwargs": ({},),
    }

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def counts_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(SamplingFields):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None

    @validator(mode="after")
    def _top_needs_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def offered(self) -> list[dict[str, Any]]:
        return [] if self.tool_choice == "none" else [tool.plain() for tool in self.tools or ()]


Token = Annotated[int, Field(ge=0)]


class CompletionRequest(SamplingFields):
    max_tokens: Count | None = 16
    prompt: str | list[str] | list[Token] | list[list[Token]]
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each as text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [list(self.prompt)]
        return list(self.prompt)  # type: ignore[arg-type]


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: str
    name: Name
    input: dict[str, Any]


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None


ContentBlock = Annotated[TextBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class ChatMessage(Body):
    role: Literal["user", "assistant"]
    content: str | list[ContentBlock]

    @validator(mode="after")
    def _check_roles(self) -> ChatMessage:
        kinds = {"text"} if isinstance(self.content, str) else {block.type for block in self.content}
        if self.role == "user" and "tool_use" in kinds:
            raise ValueError("only the assistant uses tools")
        if self.role == "assistant" and "tool_result" in kinds:
            raise ValueError("the answer of a tool belongs to the user's turn")
        return self


class AnthropicTool(Body):
    name: Name
    description: str | None = None
    input_schema: Schema
    type: Literal["custom"] | None = None


class AnthropicToolChoice(Body):
    type: ToolChoice

    refused: ClassVar = {"disable_parallel_tool_use": (False,)}


class CountRequest(Body):
    """The body of `/v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None

    refused: ClassVar = {
        "thinking": ({"type": "disabled"},),
        "mcp_servers": ([],),
        "container": (),
    }

    @property
    def offered(self) -> list[AnthropicTool]:
        no_tools = self.tool_choice is not None and self.tool_choice.type == "none"
        return [] if no_tools else list(self.tools or ())


class MessagesRequest(CountRequest, SampledBody):
    max_tokens: Count
    stop_sequences: Stops | None = None
    output_format: AnswerForm = ""
    output_config: FormField | None = None


class FeedbackRequest(Body):
    """The body of `/v1/feedback`: a score for an answer that this server gave."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    score: Annotated[float, Field(ge=-1000, le=1000)]
    choice: Annotated[int, Field(ge=0, lt=MOST_CHOICES)] = 0
    text: Annotated[str, StringConstraints(max_length=10_000)] | None = None
    scope: FeedbackScope = "conversation"


class ResponsesTool(Function):
    type: Literal["function"]
    strict: bool | None = None


class ResponsesRequest(SampledBody):
    """The body of `/v1/responses`. `input` is a text, or messages, calls and what they returned."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    max_output_tokens: Count | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    seed: int | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: ToolChoice | None = None
    metadata: dict[str, Any] | None = None
    text: FormField | None = None

    refused: ClassVar = {
        "background": (False,),
        "conversation": (),
        "prompt": (),
        "truncation": ("disabled",),
        "reasoning": ({}, {"effort": None}, {"effort": "none"}),
        "parallel_tool_calls": (True,),
    }

    @field_validator("input")
    @classmethod
    def _check_items(cls, value: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
        for place, item in enumerate(value if isinstance(value, list) else ()):
            kind = item.get("type") or "message"
            if kind not in ("message", "function_call", "function_call_output", "reasoning"):
                raise ValueError(f"item {place} is of type {kind!r}, which is not supported here")
            parts = item.get("content") if kind == "message" else item.get("output")
            for part in parts if isinstance(parts, list) else ():
                if part.get("type") not in ("input_text", "output_text", "text"):
                    raise ValueError(f"item {place} has a part that is not text: {part.get('type')!r}")
            if kind == "message" and item.get("role") not in ("system", "developer", "user", "assistant"):
                raise ValueError(f"item {place} has an unknown role: {item.get('role')!r}")
            if kind == "function_call":
                if not isinstance(item.get("name"), str):
                    raise ValueError(f"item {place} calls a function without a name")
                _object(str(item.get("arguments") or "{}"))
        return value

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The offered tools as chat completions have them."""
        if self.tool_choice == "none":
            return []
        given = [tool.model_dump(exclude_none=True, exclude_unset=True) for tool in self.tools or ()]
        fields = ("name", "description", "parameters")
        return [
            {"type": "function", "function": {name: tool[name] for name in fields if name in tool}}
            for tool in given
        ]
