"""A tool as the policy sees it: name, description, schema and call, all from a typed callable."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError, nearest
from toolwright.tasks.worker_thread import in_thread
from toolwright.tools.call import Caller
from toolwright.trajectory import Task

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class ToolError(Exception):
    """Raised by a tool that cannot answer a call. The policy sees the text; the log gets no traceback."""


class ToolTimeout(ToolError):
    """The call took too long. For tools that keep their time themselves."""


@dataclass(frozen=True)
class Offer:
    """A tool with its settings applied."""

    name: str
    description: str
    parameters: dict[str, Any]  # a JSON schema
    check: Callable[[Mapping[str, Any]], dict[str, Any]]  # raises BadArguments
    run: Callable[[dict[str, Any], Caller], Awaitable[Any]]  # of checked arguments

    @property
    def schema(self) -> dict[str, Any]:
        """The schema in OpenAI's form."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def offer_of(
    name: str,
    target: Callable[..., Any],
    *,
    instance: Callable[[], Callable[..., Any]] | None = None,
    doc: str | None = None,
    description: str | None = None,
) -> Offer:
    """The tool of a typed callable. `instance` gives the object to call, if it is built later."""
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise UserError(f"tool {name!r} is a generator; return the answer instead of yielding it")
    signature = Signature(name, target, doc=doc)
    described = description or signature.description
    if not described:
        raise UserError(f"tool {name!r} has no docstring; write one: the policy reads it")

    async def run(arguments: dict[str, Any], caller: Caller) -> Any:
        called = instance() if instance else target
        keywords = {**arguments, ATTEMPT: caller.attempt} if signature.takes_attempt else arguments
        if signature.takes_task:
            if caller.task is None:
                raise ToolError(f"{name} needs the task of an attempt, but this call has none")
            keywords = {**keywords, signature.takes_task: caller.task}
        if _is_async(called):
            return await called(**keywords)
        result = await in_thread(name, functools.partial(called, **keywords))
        return await result if inspect.isawaitable(result) else result

    return Offer(name, described, signature.schema, signature.check, run)


def _is_async(target: Callable[..., Any]) -> bool:
    while isinstance(target, functools.partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        getattr(target, "__call__", None)  # noqa: B004 - an object whose call is a coroutine
    )


# A keyword-only parameter of this name gets the id of the attempt. The policy does not see it.
ATTEMPT = "attempt"
_MOST_ERRORS = 5  # of one call that the policy sees


class BadArguments(Exception):
    """The arguments do not fit. The message is for the policy."""


class Signature:
    """The parameters of a function, or of an object's `__call__`."""

    def __init__(self, name: str, target: Callable[..., Any], *, doc: str | None = None) -> None:
        self.takes_attempt = False
        self.takes_task = ""  # the name of its parameter for the task
        self.description, parameters = _documented(doc if doc is not None else inspect.getdoc(target))
        self._model = self._modelled(name, target, {**_documented(inspect.getdoc(target))[1], **parameters})

    @property
    def schema(self) -> dict[str, Any]:
        """The schema in the form of OpenAI's `parameters`."""
        schema = _plain(self._model.model_json_schema(by_alias=True))
        return {"type": "object", "properties": {}, "required": [], **schema}

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with the types of the function. Converts "5" to 5, and JSON text to its value."""
        from pydantic import ValidationError

        try:
            return self._arguments(self._model.model_validate(dict(arguments)))
        except ValidationError as error:
            wrong = {str(one["loc"][0]) for one in error.errors(include_url=False) if one["loc"]}
            parsed = {key: _parsed(value) if key in wrong else value for key, value in arguments.items()}
            if parsed != dict(arguments):
                try:
                    return self._arguments(self._model.model_validate(parsed))
                except ValidationError:
                    pass
            raise BadArguments(self._explanation(error)) from None

    def _arguments(self, model: BaseModel) -> dict[str, Any]:
        names = {field: info.alias or field for field, info in type(model).model_fields.items()}
        passed = {
            name: getattr(model, field) for field, name in names.items() if field in model.model_fields_set
        }
        return {**passed, **(model.model_extra or {})}

    def _explanation(self, error: ValidationError) -> str:
        known = [info.alias or field for field, info in self._model.model_fields.items()]
        lines = []
        for one in error.errors(include_url=False)[:_MOST_ERRORS]:
            where = ".".join(str(part) for part in one["loc"])[:200]
            if one["type"] == "extra_forbidden":
                hint = nearest(where, known) if known else "it takes none"
                lines.append(f"there is no argument {where!r}; {hint}")
            elif one["type"] == "missing":
                lines.append(f"the argument {where!r} is missing")
            else:
                lines.append(f"{where}: {one['msg'][:200]}")
        return "; ".join(lines)

    def _modelled(self, name: str, target: Callable[..., Any], documented: dict[str, str]) -> type[BaseModel]:
        from pydantic import ConfigDict, Field, create_model

        fields: dict[str, Any] = {}
        open_ended = False
        for parameter in _signature(name, target).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name == ATTEMPT:
                self.takes_attempt = True
            elif parameter.kind is parameter.KEYWORD_ONLY and parameter.annotation is Task:
                self.takes_task = parameter.name  # the policy does not see it
            elif parameter.kind is parameter.VAR_KEYWORD:
                open_ended = True
            elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise UserError(
                    f"tool {name!r}: its parameter {parameter.name!r} cannot be passed by name; "
                    f"tools are called with named arguments only"
                )
            elif parameter.annotation is parameter.empty:
                raise UserError(
                    f"tool {name!r}: its parameter {parameter.name!r} has no type; "
                    f"annotate it, as in {parameter.name}: str; the policy sees the type"
                )
            else:
                default = ... if parameter.default is parameter.empty else parameter.default
                about = documented.get(parameter.name) or _noted(parameter.annotation)
                # Without one, a `Field` in the annotation may describe it.
                described: dict[str, Any] = {"description": about} if about else {}
                # By alias, because a parameter may be called `json` or `model_config`, a field may not.
                place = Field(default, alias=parameter.name, **described)
                fields[f"p{len(fields)}"] = (parameter.annotation, place)
        config = ConfigDict(
            extra="allow" if open_ended else "forbid",
            arbitrary_types_allowed=False,
            coerce_numbers_to_str=True,
            protected_namespaces=(),
        )
        try:
            model: type[BaseModel] = create_model("Arguments", __config__=config, **fields)
            model.model_json_schema(by_alias=True)
        except Exception as error:  # pydantic raises many kinds of errors for types without a JSON form
            reason = str(error).splitlines()[0]
            raise UserError(
                f"tool {name!r}: a parameter has a type that JSON cannot carry: {reason}"
            ) from None
        return model


def _documented(text: str | None) -> tuple[str, dict[str, str]]:
    """The description in a docstring, and that of each parameter."""
    from docstring_parser import ParseError, parse

    text = inspect.cleandoc(text or "")
    try:
        parsed = parse(text)
    except ParseError:
        return text, {}
    parameters = {
        one.arg_name.lstrip("*"): " ".join((one.description or "").split()) for one in parsed.params
    }
    return (parsed.description or "").strip(), parameters


def _noted(annotation: Any) -> str:
    """The text in an `Annotated[str, "the name of the city"]`."""
    return next((note for note in getattr(annotation, "__metadata__", ()) if isinstance(note, str)), "")


def _signature(name: str, target: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(target, eval_str=True)
    except NameError as error:
        raise UserError(
            f"tool {name!r}: the type {error.name!r} in its signature is not known where it is defined; "
            f"import it outside of TYPE_CHECKING"
        ) from None
    except (AttributeError, SyntaxError, TypeError) as error:
        raise UserError(f"tool {name!r}: a type in its signature cannot be read: {error}") from None
    except ValueError:
        raise UserError(f"tool {name!r} has no signature to read; wrap it in a typed function") from None


def _parsed(value: Any) -> Any:
    """The JSON value of a text, if it is JSON: formats without types pass everything as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _plain(schema: Any) -> Any:
    """The schema without what only a validator needs: titles, and `null` beside a single type."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _plain(value) for key, value in schema.items() if not _is_title(key, value)}
    kinds = [kind for kind in kept.get("anyOf", []) if kind != {"type": "null"}]
    if "anyOf" in kept and len(kinds) == 1:
        del kept["anyOf"]
        kept = {**kinds[0], **kept}
        if kept.get("default", "") is None:
            del kept["default"]
    return kept


def _is_title(key: str, value: Any) -> bool:
    return key == "title" and isinstance(value, str)  # a parameter called `title` has a dictionary here
