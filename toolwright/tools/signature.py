"""The parameters of a callable as the policy sees them: a JSON schema, and a check of arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError, nearest
from toolwright.trajectory import Task

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

ATTEMPT = (
    "attempt"  # a keyword-only parameter of this name gets the id of the attempt; the policy does not see it
)
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
        extra = "forbid"
        for parameter in _signature(name, target).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name == ATTEMPT:
                self.takes_attempt = True
            elif parameter.kind is parameter.KEYWORD_ONLY and parameter.annotation is Task:
                self.takes_task = parameter.name  # the policy does not see it
            elif parameter.kind is parameter.VAR_KEYWORD:
                extra = "allow"
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
            extra="allow" if extra == "allow" else "forbid",
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
