"""Writes the generated parts of the pages, in both languages; `make docs` runs it.

A page holds such a part between `<!-- begin NAME -->` and `<!-- end NAME -->`; the prose around it is written
by hand, in each language. The Chinese of what the code says is in chinese/PAGE.yaml: a text that is missing
there, or that the code no longer has, is an error.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import yaml

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS)]

import rooms  # noqa: E402
import verl_tables as verl  # noqa: E402

from toolwright.config.keys import Key, every_key  # noqa: E402
from toolwright.config.schema import Config, RewardModelConfig, SupervisedConfig  # noqa: E402

Say = Callable[[str], str]  # a heading, a column title or a sentence in the language of the page

PART = re.compile(r"(<!-- begin (\w+)[^\n]*-->\n).*?(<!-- end \2 -->)", re.DOTALL)
PRESETS = ROOT / "toolwright/config/presets/algorithm"
ALGORITHMS = ROOT / "toolwright/algorithms"
METRICS: dict[str, list[str]] = yaml.safe_load((DOCS / "metrics_reference.yaml").read_text(encoding="utf-8"))
CODE = re.compile(r"`[^`]*`")
# The words of what a key takes; the names between them stay as they are.
PHRASE = re.compile(
    r"^(?:one of |text|anything)|,? or | and "
    r"|an? (?:positive )?(?:integer|number|block of keys|list of (?:\d+ )?\w+)"
)


class Chinese:
    """Translates what the code says, by a YAML file of English texts, and notes what it was asked for."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.known: dict[str, str] = yaml.safe_load(file.read_text(encoding="utf-8"))
        self.asked: dict[str, None] = {}

    def __call__(self, text: str) -> str:
        if not re.search(r"[A-Za-z]", CODE.sub("", text)):
            return text
        self.asked[text] = None
        return self.known.get(text, text)

    def problems(self) -> list[str]:
        """Texts without Chinese, each with the outdated one it seems to replace, and other outdated ones."""
        outdated = [text for text in self.known if text not in self.asked]
        found = []
        for text in self.asked:
            if text not in self.known:
                found.append(f"  add {_quoted(text)} with its Chinese")
                for former in difflib.get_close_matches(text, outdated, n=1):
                    outdated.remove(former)
                    found.append(f"  in place of {_quoted(former)}: {_quoted(self.known[former])}")
        found += [f"  remove {_quoted(text)}: the code no longer says it" for text in outdated]
        return [f"docs/chinese/{self.file.name}:", *found] if found else []


def _quoted(text: str) -> str:
    """A text as YAML has it in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def written(page: Path) -> str:
    """A page with its generated parts as they are now."""
    name, _, language = page.stem.partition(".")
    chinese = Chinese(DOCS / "chinese" / f"{name}.yaml") if language else None
    text = PART.sub(
        lambda part: f"{part[1]}\n{PARTS[part[2]](chinese or str)}\n{part[3]}",
        page.read_text(encoding="utf-8"),
    )
    if chinese and (problems := chinese.problems()):
        raise LookupError("\n".join(problems))
    return text


def pages() -> list[Path]:
    return [page for page in sorted(DOCS.rglob("*.md")) if PART.search(page.read_text(encoding="utf-8"))]


def configuration(say: Say) -> str:
    """A table for each block of the configuration of `train` and `eval`."""
    return _tables(Config, say)


def sft_configuration(say: Say) -> str:
    """What `sft` has besides: its own keys, those of the shared blocks left out."""
    own = [
        key
        for key in every_key(SupervisedConfig)
        if not key.block and ("." not in key.path or key.path.startswith("attempts."))
    ]
    return _table(own, SupervisedConfig(), say)


def rm_configuration(say: Say) -> str:
    """What `rm` has besides."""
    own = [key for key in every_key(RewardModelConfig) if not key.block and "." not in key.path]
    return _table(own, RewardModelConfig(), say)


def _tables(schema: type[Config], say: Say) -> str:
    sections: dict[str, list[Key]] = {}
    for key in every_key(schema):
        if not key.block:
            sections.setdefault(key.path.partition(".")[0] if "." in key.path else "", []).append(key)
    top = sections.pop("", [])
    parts = [f"## `{name}`\n\n{_table(keys, schema(), say)}" for name, keys in sections.items()]
    return "\n".join([*parts, "## `tools`\n", _table(top, schema(), say)])


def _table(keys: list[Key], defaults: object, say: Say) -> str:
    rows = [say("| key | default | what it is for | values |"), "| --- | --- | --- | --- |"]
    for key in keys:
        value = defaults
        for name in key.path.split("."):
            value = getattr(value, name)
        plain = list(value) if isinstance(value, tuple) else value
        shown = yaml.safe_dump(plain, default_flow_style=True).removesuffix("\n...\n").strip()
        expected = PHRASE.sub(lambda phrase: say(phrase[0]), key.expected)
        rows.append(f"| `{key.path}` | `{shown}` | {_cell(say(key.description))} | {_cell(expected)} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def described(key: str) -> str | None:
    """The entry of a metric: its own, or the one whose capitals stand for it."""
    patterns = {name: re.sub(r"[A-Z]+", r"[\\w./-]+", name) for name in METRICS}
    known = [name for name, pattern in patterns.items() if re.fullmatch(pattern, key)]
    return min(known, key=lambda name: name != key, default=None)


def metrics(say: Say) -> str:
    """Every number of metrics.jsonl."""
    rows = [say("| metric | what it means | what to make of it |"), "| --- | --- | --- |"]
    for name, (meaning, *look) in METRICS.items():
        rows.append(f"| `{name}` | {_cell(say(meaning))} | {say(''.join(look))} |")
    return "\n".join(rows) + "\n"


def presets(say: Say) -> str:
    """A section for each preset: what it is, the formulas of its estimator and loss, and its settings."""
    return "\n".join(_preset(path, say) for path in sorted(PRESETS.glob("*.yaml")))


def _preset(path: Path, say: Say) -> str:
    text = path.read_text(encoding="utf-8")
    comment = re.findall(r"^# (?!@)(.*)$", text.partition("\nalgorithm:")[0], re.MULTILINE)
    about = re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", say(" ".join(comment)))
    settings = yaml.safe_load(text)["algorithm"]
    loss = settings.get("loss", "ppo")
    files = [ALGORITHMS / "preferences" / f"{loss}.py"]
    if not files[0].exists():
        estimator = settings.get("adv_estimator", "grpo")
        files = [ALGORITHMS / "advantages" / f"{estimator}.py", ALGORITHMS / "losses" / f"{_home(loss)}.py"]
    formulas = "\n".join(_formula(file) for file in files)
    body = text.partition("\n")[2].partition("\nalgorithm:")[2]
    return (
        f"## `{path.stem}`\n\n{about}\n\n```text\n{formulas}\n```\n\n"
        f"```yaml\nalgorithm:{body.rstrip()}\n```\n"
    )


def _home(loss: str) -> str:
    """The file that registers a loss, under this name or another."""
    for file in sorted((ALGORITHMS / "losses").glob("*.py")):
        if re.search(rf'register\([^)]*"{loss}"', file.read_text(encoding="utf-8")):
            return file.stem
    raise LookupError(f"no file in losses/ registers {loss!r}")


def _formula(file: Path) -> str:
    """The formulas of a module's docstring: its indented lines, under the name of its file."""
    said = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").splitlines()
    lines = [line.strip() for line in said[1:] if line.startswith("    ")]
    return "\n".join([f"{file.parent.name}/{file.name}", *(f"    {line}" for line in lines)])


PARTS: dict[str, Callable[[Say], str]] = {
    "configuration": configuration,
    "sft": sft_configuration,
    "rm": rm_configuration,
    "metrics": metrics,
    "presets": presets,
    "rooms": rooms.drawn,
    "verl": verl.tables,
    "trl": verl.trl_tables,
}


if __name__ == "__main__":
    try:
        texts = {page: written(page) for page in pages()}
    except LookupError as problem:
        sys.exit(str(problem))
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")
