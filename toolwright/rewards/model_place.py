"""Where a scorer that holds a model lives: a process of its own, which on a cluster has a part of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field


@dataclass(frozen=True)
class ModelPlace:
    """Settings of every scorer that holds a model, beside its own."""

    KEYS: ClassVar[tuple[str, ...]] = ("start_timeout_s", "gpus")

    start_timeout_s: Annotated[float, Field(gt=0)] = 600.0  # the longest it may take to load
    gpus: Annotated[float, Field(ge=0)] | None = None  # `ray`: what its actor reserves; null: the policy's
