"""Removes secrets from texts that leave the machine."""

from __future__ import annotations

import getpass
import math
import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

REMOVED = "<removed>"
_SECRET = (
    r"(?:(?:api|access|private|session|encryption|secret)[_-]?key|token(?!s|iz)|secret|passw(?:or)?d|passphrase"
    r"|pwd(?![a-z])|credentials?|auth(?:orization)?(?![a-z])|cookie|signature)"
)
# A key such as api_key_env names a variable, and holds no secret itself.
SECRET_NAME = re.compile(rf"(?i)(?:{_SECRET}|(?:^|[_.-])key$)(?!.*_env$)")
SECRET_BLOCKS = ("env", "environment", "headers", "header", "cookies")
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"',;&})\]]+)"""
PATTERNS = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, flags, replacement in (
        (
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[^-]*-----.*?(?:-----END [A-Z0-9 ]*KEY[^-]*-----|\Z)",
            re.DOTALL,
            REMOVED,
        ),
        (r"\b([a-z][a-z0-9+.-]*://)[^\s/'\"]*@", re.IGNORECASE, rf"\1{REMOVED}@"),
        (r"(authorization[\"']?[ \t]*[:=][ \t]*)[^\n\"',}]+", re.IGNORECASE, rf"\1{REMOVED}"),
        (r"\b((?:bearer|basic)[ \t]+)[\w.~+/=-]{6,}", re.IGNORECASE, rf"\1{REMOVED}"),
        (
            r"((?<![\w])(?:env|environment|headers?|cookies)[\"']?[ \t]*[:=][ \t]*)\{[^}]*\}",
            re.IGNORECASE,
            rf"\1{REMOVED}",
        ),
        (rf"(\.(?:env|environment|headers?|cookies)\.[\w.-]+=){_VALUE}", re.IGNORECASE, rf"\1{REMOVED}"),
        # What programs give out, by how it begins.
        (
            r"\b(?:hf_|sk-|sk_|pk_|rk_|gh[opusr]_|github_pat_|glpat-|xox[a-z]-|npm_|pypi-|r8_|nvapi-|gsk_|whsec_"
            r"|dop_v1_|SG\.|ya29\.|AIza|AGE-SECRET-KEY-|fw_|pplx-|xai-)[\w.-]{8,}",
            0,
            REMOVED,
        ),
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}\b", 0, REMOVED),
        (r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?", 0, REMOVED),
        (r"(?<![\w/+.-])[0-9a-fA-F]{32,}(?![\w/+.-])", 0, REMOVED),
        (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", 0, "<email>"),
        (r"((?:/home|/Users|\\Users)[/\\])[^/\\\s\"':,;]+", 0, r"\1<user>"),
    )
)
_NAMED = re.compile(
    rf"((?<![\w/])[\w.-]*{_SECRET}[\w.-]*[\"']?[ \t]*(?:=[ \t]*|:[ \t]*(?=[\"'])|:(?=\S)))({_VALUE})",
    re.IGNORECASE,
)
# After `key: ` a value without quotes goes on to the end of the line, as in YAML.
_LINE = re.compile(rf"((?<![\w/])[\w.-]*{_SECRET}[\w.-]*:[ \t]+)([^\s\"'][^\n,;}}\]]*)", re.IGNORECASE)
_OPTION = re.compile(
    r"(--?[\w-]*(?:token(?!s|iz)|key|secret|passw(?:or)?d|auth)[\w-]*[\"']?(?:[ \t]*,[ \t]*|[ \t]+|=))"
    rf"({_VALUE})",
    re.IGNORECASE,
)
_LONG = re.compile(r"(?<![\w/+.-])[\w+/-]{20,}={0,2}(?![\w/+.-])")
NOTHING = re.compile(r"[\"']?(?:null|none|true|false|auto|yes|no|~|<.*>)?[\"']?", re.IGNORECASE)
NUMBER = re.compile(r"-?[\d.,]+(?:e[+-]?\d+)?", re.IGNORECASE)
WINDOW = 16  # characters of an attempt that are recognised anywhere


class Scrubber:
    """Knows the secrets of this machine's environment, and how secrets look elsewhere.

    `private`: texts that are to be recognised, in whole or in part.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        home: str | None = None,
        private: Iterable[str] = (),
    ) -> None:
        known = dict(os.environ if environment is None else environment)
        self.home = (str(Path.home()) if home is None else home).rstrip("/")
        secret = {value for name, value in known.items() if _is_secret(name, value)}
        self.literals = sorted((value for value in secret if len(value) >= 4), key=len, reverse=True)
        self.names = {_user(): "<user>", socket.gethostname(): "<host>"}
        self.windows = {
            text[at : at + WINDOW] for text in private for at in range(max(0, len(text) - WINDOW + 1))
        }

    def text(self, text: str) -> str:
        """Scrub secrets from a text; the rest stays readable."""
        for value in self.literals:
            text = text.replace(value, REMOVED)
        if self.windows:
            text = self._without_private(text)
        for pattern, replacement in PATTERNS:
            text = pattern.sub(replacement, text)
        for named in (_NAMED, _LINE, _OPTION):
            text = named.sub(lambda found: found[1] + _unless_plain(found[1], found[2]), text)
        text = _LONG.sub(lambda found: REMOVED if looks_random(found[0]) else found[0], text)
        if self.home not in ("", "/"):
            text = re.sub(rf"{re.escape(self.home)}(?![\w.-])", "~", text)
        for name, shown in self.names.items():
            if len(name) >= 3 and name not in ("root", "user", "localhost"):
                text = re.sub(rf"(?<![\w]){re.escape(name)}(?![\w])", shown, text)
        return text

    def tree(self, value: Any, *, hidden: bool = False) -> Any:
        """Scrub a configuration: secrets in its values, and every value whose key sounds secret."""
        if isinstance(value, dict):
            return {
                key: self.tree(
                    inner,
                    hidden=hidden or bool(SECRET_NAME.search(str(key))) or str(key).lower() in SECRET_BLOCKS,
                )
                for key, inner in value.items()
            }
        if isinstance(value, list):
            options = [False, *(isinstance(item, str) and bool(_OPTION.match(f"{item} x")) for item in value)]
            return [
                self.tree(item, hidden=hidden or after) for item, after in zip(value, options, strict=False)
            ]
        if value is None or isinstance(value, bool | int | float):
            return value
        return REMOVED if hidden else self.text(str(value))

    def _without_private(self, text: str) -> str:
        """Cuts out every stretch that a private text has too."""
        covered = bytearray(len(text))
        for at in range(len(text) - WINDOW + 1):
            if text[at : at + WINDOW] in self.windows:
                covered[at : at + WINDOW] = b"\1" * WINDOW
        parts, was = [], False
        for character, cut in zip(text, covered, strict=True):
            if not cut:
                parts.append(character)
            elif not was:
                parts.append("<text of an attempt>")
            was = bool(cut)
        return "".join(parts)


def looks_random(word: str) -> bool:
    """Letters of both cases and digits, evenly mixed: a key rather than a word or a path."""
    kinds = (any(map(str.islower, word)), any(map(str.isupper, word)), any(map(str.isdigit, word)))
    counts = Counter(word)
    bits = -sum(n / len(word) * math.log2(n / len(word)) for n in counts.values())
    return all(kinds) and bits > 3.5


def _unless_plain(name: str, value: str) -> str:
    """A figure such as seconds a token is none; a password may well be a number."""
    figure = "token" in name.lower() and NUMBER.fullmatch(value)
    return value if figure or NOTHING.fullmatch(value) else REMOVED


def _is_secret(name: str, value: str) -> bool:
    if NOTHING.fullmatch(value) or os.path.exists(value):
        return False
    return bool(SECRET_NAME.search(name)) or (len(value) >= 20 and looks_random(value))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, in a container
        return ""
