"""The products of the shop and the wishes of its customers, drawn from a seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
