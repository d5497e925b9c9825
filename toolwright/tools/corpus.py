"""A local corpus and its BM25 index, built once and kept in the cache."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from toolwright.failures import UserError

log = logging.getLogger(__name__)

_TOKEN = r"(?u)\b\w+\b"
_VERSION = "1"  # of the tokenisation; a change needs new indices


class Corpus:
    """Searches documents; the best match comes first."""

    def __init__(self, file: Path) -> None:
        bm25s = _bm25s()
        self._texts = _texts(file)
        place = _cache() / _digest(file)
        if (place / "params.index.json").is_file():
            self._index = bm25s.BM25.load(str(place), show_progress=False)
            return
        log.info("building the search index over %s (%d documents), once", file, len(self._texts))
        self._index = bm25s.BM25()
        self._index.index(_tokens(self._texts), show_progress=False)
        _keep(self._index, place)

    def search(self, query: str, topk: int) -> list[str]:
        tokens = _tokens([query], ids=False)
        if not tokens[0]:
            return []
        found, scores = self._index.retrieve(
            tokens,
            k=min(topk, len(self._texts)),
            show_progress=False,
            n_threads=0,
            backend_selection="numpy",  # else equal scores are ordered otherwise where JAX is installed
        )
        return [self._texts[int(i)] for i, score in zip(found[0], scores[0], strict=True) if score > 0]


def check(file: str) -> None:
    """Checks the file and the package without reading the corpus."""
    if not Path(file).expanduser().is_file():
        raise UserError(f"corpus={file}: no such file")
    import importlib.util

    if importlib.util.find_spec("bm25s") is None:
        raise UserError("a search index needs the package bm25s: pip install 'toolwright[search]'")


def _bm25s() -> Any:
    """Imports the package. It starts JAX if that is installed, which would take 75 % of a GPU's memory."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import bm25s

    return bm25s


def _texts(file: Path) -> list[str]:
    from toolwright.tasks import rows

    return [_text(row, file, number) for number, row in enumerate(rows.read(file), 1)]


def _text(row: dict[str, Any], file: Path, number: int) -> str:
    if row.get("contents"):
        return str(row["contents"])
    if row.get("text"):
        return f"{row['title']}\n{row['text']}" if row.get("title") else str(row["text"])
    raise UserError(
        f"{file}: document {number} has neither `contents` nor `text` (with a `title`); it has {sorted(row)}"
    )


def _tokens(texts: list[str], *, ids: bool = True) -> Any:
    return _bm25s().tokenize(
        texts, token_pattern=_TOKEN, stopwords="english", return_ids=ids, show_progress=False
    )


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "toolwright" / "search"


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256")
    digest.update(f"{_VERSION} {_bm25s().__version__}".encode())
    return digest.hexdigest()[:32]


def _keep(index: Any, place: Path) -> None:
    """Saves the index whole or not at all. If several workers build it at once, the first one stays."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = tempfile.mkdtemp(dir=place.parent, prefix="building-")
        try:
            index.save(partial, show_progress=False)
            os.rename(partial, place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if not place.is_dir():
            log.warning("the search index cannot be kept in %s, it will be built again: %s", place, error)
