"""A text shop, WebShop in miniature: search, click, buy what an instruction asks for. arXiv 2207.01206.

Actions are WebShop's, `search[red cotton shirt]` and `click[buy now]`, and so is the reward of a purchase:

    r = r_kind · (attributes matched + options matched + 1[price ≤ limit]) / (attributes + options + 1)
"""

from __future__ import annotations

import functools
import json
import random
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.environment import ENVIRONMENTS, InvalidAction, Observation, Outcome
from toolwright.tasks.worlds import InvalidPenalty, Noise, task_set
from toolwright.trajectory import Task

DEPARTMENTS = {
    "clothes": ("shirt", "jacket", "scarf", "hat"),
    "home": ("lamp", "mug", "pillow", "vase"),
    "travel": ("bag", "bottle", "tent", "wallet"),
}
ATTRIBUTES = ("light", "soft", "warm", "waterproof", "washable", "handmade", "recycled", "classic")
COLOURS = ("red", "blue", "green", "black", "white", "yellow")
SIZES = ("small", "medium", "large")
BRANDS = ("acorn", "birch", "cedar", "dune", "ember", "fjord", "grove", "heron")


@dataclass(frozen=True)
class Product:
    id: str
    kind: str
    brand: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: int

    @property
    def title(self) -> str:
        return f"{self.brand} {' '.join(self.attributes[:2])} {self.kind}"

    @property
    def words(self) -> frozenset[str]:
        options = (value for values in self.options.values() for value in values)
        return frozenset((self.kind, self.brand, *self.attributes, *options))


@dataclass(frozen=True)
class ShoppingGoal:
    """A kind of thing with attributes and options, for no more than a price."""

    kind: str
    attributes: Sequence[str]
    options: Mapping[str, str]
    most: int

    @property
    def instruction(self) -> str:
        options = "".join(f", {name} {value}" for name, value in self.options.items())
        return f"Buy a {self.words}{options}, for at most ${self.most}."

    @property
    def words(self) -> str:
        """Words to search for it."""
        return " ".join([*self.attributes, self.kind])

    def worth(self, product: Product, chosen: Mapping[str, str]) -> float:
        """WebShop's reward, in [0, 1]: half for another kind of the same department, 0 for any other."""
        share = (
            1.0 if product.kind == self.kind else 0.5 * (department(product.kind) == department(self.kind))
        )
        attributes = sum(attribute in product.attributes for attribute in self.attributes)
        options = sum(chosen.get(name) == value for name, value in self.options.items())
        total = len(self.attributes) + len(self.options) + 1
        return share * (attributes + options + (product.price <= self.most)) / total


def department(kind: str) -> str:
    return next((name for name, kinds in DEPARTMENTS.items() if kind in kinds), "")


@functools.lru_cache(maxsize=64)
def catalogue(seed: int, size: int) -> tuple[Product, ...]:
    rng = random.Random(f"catalogue {seed}")
    kinds = [kind for kinds in DEPARTMENTS.values() for kind in kinds]

    def product(number: int) -> Product:
        options = {"colour": tuple(rng.sample(COLOURS, 3))}
        kind = kinds[number % len(kinds)]
        if department(kind) == "clothes":
            options["size"] = SIZES
        attributes = tuple(rng.sample(ATTRIBUTES, 3))
        return Product(f"b{number:03d}", kind, rng.choice(BRANDS), attributes, options, rng.randrange(5, 100))

    return tuple(product(number) for number in range(size))


def wish_of(product: Product, rng: random.Random, *, attributes: int) -> ShoppingGoal:
    """Draw a wish that this product fulfils, perhaps among others."""
    return ShoppingGoal(
        kind=product.kind,
        attributes=sorted(rng.sample(product.attributes, attributes)),
        options={name: rng.choice(values) for name, values in product.options.items()},
        most=product.price + rng.randrange(0, 10),
    )


def found(shelf: Sequence[Product], query: str) -> list[Product]:
    """Products that share a word with the query, those that share most first; a kind counts for two."""
    words = set(query.split())
    hits = [(len(words & p.words) + (p.kind in words), p) for p in shelf]
    return [p for score, p in sorted(hits, key=lambda hit: (-hit[0], hit[1].id)) if score]


ACTION = re.compile(r"(search|click)\[(.*)\]", re.DOTALL | re.IGNORECASE)
BUY, BACK, NEXT, PREVIOUS = "buy now", "back to search", "next", "previous"


@ENVIRONMENTS.register("shop")
class Shop:
    """A shop of `products`, drawn by `seed`. `wish` holds the fields of the customer's `ShoppingGoal`."""

    inline = True

    def __init__(self, wish: dict[str, Any], seed: int = 0, products: int = 60, results: int = 5) -> None:
        self.wish, self.results = ShoppingGoal(**wish), results
        self.shelf = catalogue(seed, products)
        self.query: str | None = None
        self.page = 0
        self.item: Product | None = None
        self.options: dict[str, str] = {}

    def reset(self, task: Task) -> Observation:
        return Observation(f"{self.wish.instruction}\n{self._shown()}", self.anchor)

    def step(self, action: str) -> Outcome:
        match = ACTION.fullmatch(action.strip())
        if match is None:
            raise InvalidAction("say search[words] or click[something that is shown in brackets]")
        verb, what = match[1].lower(), " ".join(match[2].lower().split())
        if verb == "search":
            if self.query is not None:
                raise InvalidAction(f"there is no search on this page; click[{BACK}] leads to one")
            if not what:
                raise InvalidAction("search for something: search[words]")
            self.query, self.page = what, 0
        elif what not in self.buttons:
            raise InvalidAction(f"there is no [{what[:40]}] on this page")
        elif what == BUY and self.item is not None:
            reward = self.wish.worth(self.item, self.options)
            return Outcome(
                f"You bought {self.item.title}.", reward, True, self.anchor, {"success": reward == 1.0}
            )
        else:
            self._click(what)
        return Outcome(self._shown(), anchor=self.anchor)

    @property
    def anchor(self) -> str:
        item = self.item.id if self.item else None
        return json.dumps([self.query, self.page, item, sorted(self.options.items())])

    @property
    def actions(self) -> list[str]:
        """The actions that this page allows; a search is shown by one that finds the kind of thing wanted."""
        if self.query is None:
            return [f"search[{self.wish.kind}]"]
        return [f"click[{button}]" for button in self.buttons]

    @property
    def buttons(self) -> list[str]:
        if self.query is None:
            return []
        if self.item is not None:
            return [BACK, *(value for values in self.item.options.values() for value in values), BUY]
        last = len(self._matches()) <= (self.page + 1) * self.results
        turns = [*([PREVIOUS] if self.page else []), *([] if last else [NEXT])]
        return [BACK, *(product.id for product in self._listed()), *turns]

    def solution(self) -> list[str] | None:
        """To a purchase worth 1 from here, knowing the shelf but searching as one who only knows the wish."""
        if self.item is not None and self._fits(self.item):
            return self._purchase()
        anew = self._to_result(self.wish.words, page=0)
        if anew is None or self.query is None:
            return anew and [f"search[{self.wish.words}]", *anew]
        back = [f"click[{BACK}]", f"search[{self.wish.words}]", *anew]
        here = self._to_result(self.query, page=self.page) if self.item is None else None
        return min(back, here or back, key=len)

    def _to_result(self, query: str, *, page: int) -> list[str] | None:
        """From a page of a search's results to the nearest product that fits, and its purchase."""
        places = [n for n, product in enumerate(found(self.shelf, query)) if self._fits(product)]
        if not places:
            return None
        place = min(places, key=lambda n: abs(n // self.results - page))
        turns = place // self.results - page
        turn = f"click[{NEXT if turns > 0 else PREVIOUS}]"
        return [turn] * abs(turns) + [f"click[{found(self.shelf, query)[place].id}]", *self._purchase()]

    def _purchase(self) -> list[str]:
        open_ = [value for name, value in self.wish.options.items() if self.options.get(name) != value]
        return [*(f"click[{value}]" for value in open_), f"click[{BUY}]"]

    def _fits(self, product: Product) -> bool:
        return self.wish.worth(product, self.wish.options) == 1.0 and all(
            value in product.options.get(name, ()) for name, value in self.wish.options.items()
        )

    def _click(self, what: str) -> None:
        if what == BACK:
            self.query, self.page, self.item, self.options = None, 0, None, {}
        elif self.item is not None:
            name = next(name for name, values in self.item.options.items() if what in values)
            self.options[name] = what
        elif what in (NEXT, PREVIOUS):
            self.page += 1 if what == NEXT else -1
        else:
            self.item = next(product for product in self.shelf if product.id == what)

    def _matches(self) -> list[Product]:
        return found(self.shelf, self.query or "")

    def _listed(self) -> list[Product]:
        return self._matches()[self.page * self.results : (self.page + 1) * self.results]

    def _shown(self) -> str:
        if self.query is None:
            return "[search]"
        buttons = " ".join(f"[{button}]" for button in self.buttons)
        if self.item is not None:
            chosen = "".join(f"\n{name}: {value}" for name, value in sorted(self.options.items()))
            return (
                f"{self.item.title}, ${self.item.price}: {', '.join(self.item.attributes)}{chosen}\n{buttons}"
            )
        lines = [f"[{product.id}] {product.title}, ${product.price}" for product in self._listed()]
        rest = " ".join(f"[{b}]" for b in self.buttons if b in (BACK, NEXT, PREVIOUS))
        return "\n".join([*(lines or ["Nothing was found."]), rest])


INSTRUCTIONS = (
    "You shop for a customer. Every turn you say search[words], where there is a search, or click[something] "
    "that is shown in brackets. Choose what the customer asks for and click[buy now]."
)


@TASKS.register("shop")
def shop(
    *,
    sizes: SplitSizes,
    products: Annotated[int, Field(ge=12, le=5000)] = 60,
    results: Annotated[int, Field(ge=1, le=50)] = 5,
    attributes: Annotated[int, Field(ge=0, le=3)] = 2,
    instructions: str = INSTRUCTIONS,
    action_tag: str | None = None,
    invalid_penalty: InvalidPenalty = 0.0,
    noise: Noise = 0.0,
) -> TaskSet:
    """Harder with more `products`, fewer `results` a page and more `attributes` to match."""

    def level(rng: random.Random) -> dict[str, Any]:
        wish = wish_of(rng.choice(catalogue(sizes.seed, products)), rng, attributes=attributes)
        return {"wish": asdict(wish), "seed": sizes.seed, "products": products, "results": results}

    return task_set(
        "shop",
        level,
        sizes=sizes,
        instructions=instructions,
        action_tag=action_tag,
        invalid_penalty=invalid_penalty,
        noise=noise,
        alphabet=string.ascii_letters + string.digits + " [](),.:;'$\n",
    )
