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

<!-- Made by `make docs` from toolwright/verl/table/ and untranslated.yaml there. -->

To run a verl command line, replace its module by ours:

```
python -m toolwright.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=train.parquet \\
    actor_rollout_ref.model.path=model actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=1
python -m toolwright.trainer.main_ppo … --show      # print the translation
python -m toolwright.trainer.main_ppo … --fit       # scale the run down to this machine
```

- **Defaults are verl's** if you do not set a key that affects the result. `--show` marks them.
- **Nothing is ignored in silence.** If a key has no effect here, the run says why and goes on. If the result
  would differ without it, the key is an error, unless it has verl's default. A key that verl does not have
  is an error that names the nearest key.
- **Devices.** Asking for more devices than there are is an error. `--fit` takes what there is. It lowers the
  batch in proportion and to the number of tasks, uses the native engine, and float32 on a CPU. It prints
  each change.
- **Files** are read as they are: Parquet with `prompt`, `data_source`, `reward_model.ground_truth`,
  `extra_info`.
- **Overrides** are Hydra's: `+key=`, `++key=`, quoted text, lists, blocks, `${references}`. If a key is set
  twice, the last value counts. `--config-path` and `--config-name` read a file of yours over `ppo_trainer`.
  Write a key of ours as `toolwright.KEY=VALUE`.
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
        "*Not used*: no result depends on it; the run notes it if it is set. *No equivalent*: an error",
        "unless it has verl's default. `.*` stands for every key beneath that has no line of its own.",
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
