"""The tables of docs/coming-from-verl.md and coming-from-trl.md; `make docs` writes them there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

from toolwright.config.keys import format_value
from toolwright.verl import keys
from toolwright.verl.flat import FlatTable
from toolwright.verl.table import SECTIONS, KeyRow, row_of

SUPPORT = {"always": "nothing to set", "unused": "not used", "near": "near", "refused": "**no equivalent**"}
TRL = {"`trl grpo`": "trl_grpo", "`trl sft`": "trl_sft", "`trl dpo` and `trl kto`": "trl_dpo"}
ENTRY_POINTS = {
    "`verl.trainer.sft_trainer`, `fsdp_sft_trainer`": "verl_sft",
    "`verl.trainer.main_generation`, `main_generation_server`": "verl_generation",
}
FAMILIES = {"RLinf": "rlinf", "RAGEN": "ragen"}
LEGEND = """\
The {main} keys of verl 0.9's main configuration and {more} of older releases and of forks.
*Not used*: no result depends on it; the run notes it if it is set. *Near*: an error; `--fit` accepts it and
does nearly the same. *No equivalent*: an error unless it has verl's default. `.*` stands for every key
beneath it without its own line."""


def tables(say: Callable[[str], str]) -> str:
    """Every key of verl's with what it is here, a table for each section, in the language of `say`."""
    counts = {"main": len(keys.parts()["now"]), "more": len(keys.leaves()) - len(keys.parts()["now"])}
    lines = [f"## {say('Every key')}", "", say(LEGEND).format(**counts)]
    for section, rows in SECTIONS.items():
        lines += ["", f"### {say(section)}", "", say("| verl | default | Toolwright | |")]
        lines += ["| --- | --- | --- | --- |", *(_line(row, say) for row in rows)]
    for heading, name in ENTRY_POINTS.items():
        lines += ["", *_flat_table(name, say(heading), "| verl | here | |", say)]
    for family, name in FAMILIES.items():
        lines += ["", *_flat_table(name, family, "| key | verl | |", say)]
    return "\n".join(lines) + "\n"


def trl_tables(say: Callable[[str], str]) -> str:
    """Every option of TRL's scripts with what it is here."""
    parts = [_flat_table(name, say(heading), "| TRL | here | |", say) for heading, name in TRL.items()]
    return "\n".join("\n".join([*lines, ""]) for lines in parts)


def _flat_table(name: str, heading: str, columns: str, say: Callable[[str], str]) -> Iterator[str]:
    """A row for each key that becomes one of ours, and one for each reason of the others."""
    yield from (f"### {heading}", "", say(columns), "| --- | --- | --- |")
    rows = FlatTable(name).rows()
    for key, ours in rows["translated"].items():
        yield f"| `{key}` | `{ours}` | |"
    for kind in ("near", "unused", "refused"):
        for reason, names in rows[kind].items():
            listed = ", ".join(f"`{one}`" for one in names)
            yield f"| {listed} | {say(SUPPORT[kind])} | {say(reason)} |"


def _line(row: KeyRow, say: Callable[[str], str]) -> str:
    unset = say(SUPPORT[row.support]) if row.support in SUPPORT else "–"
    becomes = ", ".join(f"`{ours}`" for ours in row.ours) or unset
    default = f"`{format_value(keys.leaves()[row.key])}`" if row.key in keys.leaves() else ""
    return f"| `{row.key}`{_count(row)} | {default} | {becomes} | {say(row.how)} |".replace("|  |", "| |")


def _count(row: KeyRow) -> str:
    """How many keys a row for many covers."""
    if not row.key.endswith(".*"):
        return ""
    own = _covered()[row.key]
    return f" ({own})" if own > 1 else ""


@cache
def _covered() -> Counter[str]:
    return Counter(row.key for key in keys.leaves() if (row := row_of(key)) is not None)
