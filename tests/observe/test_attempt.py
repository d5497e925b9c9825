"""The text of attempts, made harmless."""

from __future__ import annotations

import unicodedata

import pytest

from toolwright.observe.attempt import visible

VISIBLE_SIGNS = "؀؁؂؃؄؅۝܏࢐࢑࣢𑂽𑃍"  # number signs and the like: format characters that have a shape


def test_control_characters_become_their_pictures() -> None:
    assert visible("a\x1b[2J\x07\x7f\x9b\r\n\tb\rc") == "a␛[2J␇␡�\n\tb␍c"


@pytest.mark.parametrize("mark", "\u202a\u202e\u2066\u2069\u200e\u200f\u061c")
def test_marks_that_turn_the_direction_of_text_are_named(mark: str) -> None:
    assert visible(f"a{mark}b") == f"a⟨U+{ord(mark):04X}⟩b"


@pytest.mark.parametrize(
    "unseen", ["\u200b", "\u2060", "\ufeff", "\u00ad", "\u3164", "\U000e0041", "\U000e0100"]
)
def test_characters_that_nobody_sees_are_named(unseen: str) -> None:
    assert visible(unseen) == f"⟨U+{ord(unseen):04X}⟩"


def test_every_format_character_without_a_shape_is_named() -> None:
    hidden = [
        character
        for character in map(chr, range(0x110000))
        if unicodedata.category(character) in ("Cf", "Cs", "Zl", "Zp")
        and character not in VISIBLE_SIGNS
        and not 0x13430 <= ord(character) <= 0x1343F  # joins hieroglyphs
    ]
    assert [hex(ord(character)) for character in hidden if visible(character) == character] == []


def test_half_of_a_surrogate_pair_can_be_printed() -> None:
    assert visible("a\ud83db").encode() == b"a\xef\xbf\xbdb"


def test_ordinary_text_stays_as_it_is() -> None:
    text = "Ünïcödé 漢字 עברית العربية ❤\ufe0f \t\n[bold]"
    assert visible(text) == text
