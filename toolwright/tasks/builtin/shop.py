"""Errands in the text shop: an instruction with attributes, options and a price, graded as WebShop grades."""

from __future__ import annotations

import random
import string
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from toolwright.environments.catalogue import catalogue, wish_of
from toolwright.tasks import TASKS, TaskSet
from toolwright.tasks.worlds import Noise, task_set

INSTRUCTIONS = (
    "You shop for a customer. Every turn you say search[words], where there is a search, or click[something] "
    "that is shown in brackets. Choose what the customer asks for and click[buy now]."
)


@TASKS.register("shop")
def shop(
    *,
    seed: int,
    train_size: int | None,
    held_out_size: int,
    products: Annotated[int, Field(ge=12, le=5000)] = 60,
    results: Annotated[int, Field(ge=1, le=50)] = 5,
    attributes: Annotated[int, Field(ge=0, le=3)] = 2,
    instructions: str = INSTRUCTIONS,
    action_tag: str | None = None,
    noise: Noise = 0.0,
) -> TaskSet:
    """Harder with more `products`, fewer `results` a page and more `attributes` to match."""

    def level(rng: random.Random) -> dict[str, Any]:
        wish = wish_of(rng.choice(catalogue(seed, products)), rng, attributes=attributes)
        return {"wish": asdict(wish), "seed": seed, "products": products, "results": results}

    return task_set(
        "shop",
        level,
        seed=seed,
        train_size=train_size,
        held_out_size=held_out_size,
        instructions=instructions,
        action_tag=action_tag,
        noise=noise,
        alphabet=string.ascii_letters + string.digits + " [](),.:;'$\n",
    )
