"""The base of every block of the configuration: `Block`, and `auto` values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from toolwright.failures import UserError

Auto = Literal["auto"]  # a value that a run decides when it starts, by its model, its tasks and its memory


Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Number = TypeVar("Number", int, float)


class Block(BaseModel):
    """A frozen block of keys, strict about their names and types."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # YAML reads `name: 2024` as a number
    )

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Without this, `rollout.samples=true` would be read as 1.
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise PydanticCustomError("truth_value", "not true or false")
        return value

    def changed(self, values: Mapping[str, Any]) -> Self:
        """A copy with other values, by dotted key: `config.changed({"model.context": 512})`. They are not
        validated."""
        copied = self
        for key, value in values.items():
            name, _, inner = key.partition(".")
            value = getattr(copied, name).changed({inner: value}) if inner else value
            copied = copied.model_copy(update={name: value})
        return copied


def require_number(value: Number | Auto, key: str) -> Number:
    """The value of a key whose `auto` must have been decided by now."""
    if value == "auto":
        raise UserError(f"{key}=auto is decided when a run starts; here it must be a number")
    return value
