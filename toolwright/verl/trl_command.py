"""Train from a TRL command line: grpo, sft, dpo or kto with its options, or show what they become here."""

from __future__ import annotations

import sys

from toolwright.failures import UserError, nearest
from toolwright.verl.command import flags, run
from toolwright.verl.flat import trl


def main(argv: list[str] | None = None) -> int:
    """`toolwright trl grpo --num_generations 8 …`: TRL's scripts by their names."""
    words = sys.argv[2:] if argv is None else argv
    script = words[0].removesuffix(".py").rpartition("/")[2] if words else ""
    if script in ("", "-h", "--help"):
        print(trl.usage())
        return 0 if script else 2
    if script not in trl.TABLES:
        print(f"toolwright trl: unknown script {words[0]!r}; {nearest(script, trl.TABLES)}", file=sys.stderr)
        return 2
    line, show, fit = flags(words[1:])
    command, table = trl.TABLES[script]
    try:
        return run(table.translate(trl.read_options(line), command=command, fit=fit), show=show)
    except UserError as error:
        print(f"toolwright trl {script}: {error}", file=sys.stderr)
        return 2
