"""All strings of some lengths over an alphabet, counted and numbered: the space of `reverse` and `sort`."""

from __future__ import annotations

from dataclasses import dataclass

from toolwright.failures import UserError

LONGEST = 256


@dataclass(frozen=True)
class Strings:
    alphabet: str
    min_length: int
    max_length: int
    mark: str  # the character that ends a prompt, and so cannot be in a string

    def __post_init__(self) -> None:
        if len(set(self.alphabet)) < max(2, len(self.alphabet)):
            raise UserError(
                f"task.params.alphabet={self.alphabet!r} must be at least two different characters"
            )
        if self.mark in self.alphabet or any(c.isspace() for c in self.alphabet):
            raise UserError(
                f"task.params.alphabet={self.alphabet!r} may hold neither spaces nor {self.mark!r}, "
                "which ends the prompt"
            )
        if not self.min_length <= self.max_length <= LONGEST:
            raise UserError(
                f"task.params: the lengths must be min_length={self.min_length} <= "
                f"max_length={self.max_length} <= {LONGEST}"
            )

    @property
    def strata(self) -> list[int]:
        """How many there are of each length."""
        return [len(self.alphabet) ** n for n in range(self.min_length, self.max_length + 1)]

    def string(self, stratum: int, index: int) -> str:
        characters = []
        for _ in range(self.min_length + stratum):
            index, place = divmod(index, len(self.alphabet))
            characters.append(self.alphabet[place])
        return "".join(characters)
