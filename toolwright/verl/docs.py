"""`python -m toolwright.verl.docs > docs/coming-from-verl.md`: the page for people who come from verl."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from toolwright.config.keys import find, format_value
from toolwright.config.names import Registered
from toolwright.config.schema import Config
from toolwright.verl import keys
from toolwright.verl.row import KeyRow
from toolwright.verl.table import SECTIONS, row_of
from toolwright.verl.table.tools import AGENT, SEARCHER

HEAD = """\
# Coming from verl

<!-- Made by `python -m toolwright.verl.docs`; edit toolwright/verl/table/ or untranslated.yaml and run `make docs`. -->

A verl command line runs as it is, once its module is ours:

```
python -m toolwright.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=train.parquet \\
    actor_rollout_ref.model.path=model actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=1
python -m toolwright.trainer.main_ppo … --show      # what it becomes, and the same run in our own words
python -m toolwright.trainer.main_ppo … --fit       # scaled down to this machine, saying what was changed
```

- **Defaults are verl's** where a key is not set and it matters to what is learned; `--show` marks them.
- **Nothing is ignored in silence.** A key that changes nothing here is named with the reason, and the run
  goes on. A key without which something else would be learned is an error, unless it has verl's default. A
  key that verl does not have is an error that names the nearest one.
- **Devices.** More than there are is an error. `--fit` takes what there is, lowers the batch in proportion
  and to the number of tasks, falls back to the native engine and to float32 on a CPU, and prints each
  change.
- **Files** are read as they are: Parquet with `prompt`, `data_source`, `reward_model.ground_truth`,
  `extra_info`.
- **Overrides** are Hydra's: `+key=`, `++key=`, quoted text, lists, blocks, `${references}`; if a key is set twice, the
  last one counts. `--config-path` and `--config-name` read a file of yours over `ppo_trainer`. A key of
  ours goes as `toolwright.KEY=VALUE`.
- **Which loop**: `enable_search` → search; else `tool_config.enabled` → `<tool>code</tool>` by a tool
  server; else `multi_turn.enable` → tools from a file; else a single turn. `examples/train_with_tools.sh`
  sets them from `ENABLE_SEARCH`, `SEARCH_URL`, `ENABLE_TOOLS`, `TOOL_SERVER_URL` and `MAX_TOOL_TURNS`.

One definition of batch size: `train_batch_size` prompts × `rollout.n` attempts a step, in `train_batch_size
÷ ppo_mini_batch_size` minibatches, `ppo_epochs` times. Micro-batch sizes are a token budget that never
changes a gradient.
"""

SUPPORT = {"always": "nothing to set", "unused": "not used", "refused": "**no equivalent**"}


def page() -> str:
    main = len(keys.parts()["now"])
    counted = (
        f"The {main} keys of verl 0.9's main configuration and {_more()} of older releases and of forks."
    )
    lines = [HEAD, *_not_yet(), "## Every key", "", counted, *_legend()]
    for section, rows in SECTIONS.items():
        lines += ["", f"### {section}", "", "| verl | default | Toolwright | |", "| --- | --- | --- | --- |"]
        lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def _more() -> int:
    return len(keys.leaves()) - len(keys.parts()["now"])


def _legend() -> list[str]:
    return [
        "*Not used*: it changes nothing that is learned, and is named when it is set. *No equivalent*: an",
        "error unless it has verl's default. `.*` stands for every key beneath that has no line of its own.",
    ]


def _not_yet() -> Iterator[str]:
    """Targets of the table that the configuration does not have."""
    targets = {ours for rows in SECTIONS.values() for row in rows for ours in row.ours}
    missing = sorted(ours for ours in targets if find(Config, ours) is None)
    missing += [f"rollout.agent={name}" for name in (AGENT, SEARCHER) if name not in _agents()]
    if missing:
        listed = ", ".join(f"`{ours}`" for ours in missing)
        yield f"Not there yet, and an error that says so where a command line needs it: {listed}."
        yield ""


def _agents() -> frozenset[str]:
    return Registered("agent", "toolwright.agents").names()


def _line(row: KeyRow) -> str:
    becomes = ", ".join(f"`{ours}`" for ours in row.ours) or SUPPORT.get(row.support, "–")
    default = "" if row.block else f"`{format_value(keys.leaves()[row.key])}`"
    return f"| `{row.key}`{_count(row)} | {default} | {becomes} | {row.how} |".replace("|  |", "| |")


def _count(row: KeyRow) -> str:
    """How many keys a row for many covers."""
    if not row.block:
        return ""
    own = _covered()[row.key]
    return f" ({own})" if own > 1 else ""


@cache
def _covered() -> Counter[str]:
    return Counter(row.key for key in keys.leaves() if (row := row_of(key)) is not None)


if __name__ == "__main__":
    print(page(), end="")
