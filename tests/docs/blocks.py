"""The code blocks of the pages: what each is, and why one is not run here."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT, english_pages

LANGUAGES = {"sh", "python", "text", "yaml", "json", "toml", "html"}
BLOCK = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml|jsonl|json))\n")
NEEDS = re.compile(r"#.*\b[Nn]eeds\b(.*)")  # a comment that says what a machine without it cannot run


@dataclass(frozen=True)
class CodeBlock:
    page: Path
    line: int
    language: str
    code: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that the block is, if its first line names one."""
        named = FILE.match(self.code)
        return named[1] if named else None

    def write_file(self, folder: Path) -> None:
        if self.file:
            path = folder / self.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.code, encoding="utf-8")

    @property
    def needs(self) -> str | None:
        """What the whole block needs, if its first line says so."""
        said = NEEDS.match(self.code.splitlines()[0]) if self.code.strip() else None
        return said[1].strip() if said else None

    @property
    def commands(self) -> list[ShellCommand]:
        """The lines of a block of shell, those that go on with `\\` as one."""
        joined = self.code.replace("\\\n", " ")
        lines = [line.strip() for line in joined.splitlines()]
        return [ShellCommand(self, line) for line in lines if line and not line.startswith("#")]


@dataclass(frozen=True)
class ShellCommand:
    block: CodeBlock
    line: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)

    @property
    def needs(self) -> str | None:
        said = NEEDS.search(self.line)
        return self.block.needs or (said[1].strip() if said else None)

    @property
    def ours(self) -> bool:
        """Whether it is one call of `toolwright`, without anything for a shell to do."""
        return self.words[:1] == ["toolwright"] and not {"|", ">", "<", "&&", ";", "&"} & set(self.words)

    @property
    def serves(self) -> bool:
        return self.ours and ("serve" in self.words[1:3] or self.words[1] == "ui")


def pages_with_code() -> list[Path]:
    """English pages, and the readmes; a Chinese page has the blocks of its English one."""
    readmes = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "examples/cluster/README.md")
    return [*english_pages(), *(ROOT / name for name in readmes)]


def blocks(page: Path) -> list[CodeBlock]:
    text = page.read_text(encoding="utf-8")
    return [
        CodeBlock(page, text[: found.start()].count("\n") + 1, found[2].strip(), found[3])
        for found in BLOCK.finditer(text)
    ]
