"""The libraries of others that the page ships: which version, which file, and what it must hold.

`python tests/ui/vendored.py` fetches them again with npm: to check them, or after a version was changed here.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import toolwright

FOLDER = Path(toolwright.__file__).parent / "ui/static/assets/vendor"


def _as_it_is(data: bytes) -> bytes:
    return data


def _without_map(data: bytes) -> bytes:
    """Without the address of a source map; names of packages become paths, as no bundler runs."""
    lines = [line for line in data.splitlines(keepends=True) if not line.startswith(b"//# sourceMappingURL")]
    return b"".join(lines).replace(b'from"preact"', b'from"./preact.js"')


@dataclass(frozen=True)
class VendoredFile:
    name: str  # in the folder
    package: str
    version: str
    path: str  # in the package
    sha256: str
    change: Callable[[bytes], bytes] = _as_it_is


FILES = (
    VendoredFile(
        "preact.js",
        "preact",
        "11.2.0",
        "dist/preact.mjs",
        "225d7a773766e6fb2cfcc45274fe41d2059f5782f3f2c4569aa5132a2d3a2902",
        _without_map,
    ),
    VendoredFile(
        "hooks.js",
        "preact",
        "11.2.0",
        "hooks/dist/hooks.mjs",
        "5c65ab263688d0805862fd0807c779af02c2799c44fda0873dfcb870d0da70a0",
        _without_map,
    ),
    VendoredFile(
        "LICENSE-preact.txt",
        "preact",
        "11.2.0",
        "LICENSE",
        "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4",
    ),
    VendoredFile(
        "htm.js",
        "htm",
        "3.1.1",
        "dist/htm.mjs",
        "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
    ),
    VendoredFile(
        "LICENSE-htm.txt",
        "htm",
        "3.1.1",
        "LICENSE",
        "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f",
    ),
    VendoredFile(
        "uPlot.js",
        "uplot",
        "1.6.32",
        "dist/uPlot.esm.js",
        "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    ),
    VendoredFile(
        "uPlot.css",
        "uplot",
        "1.6.32",
        "dist/uPlot.min.css",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
    VendoredFile(
        "LICENSE-uplot.txt",
        "uplot",
        "1.6.32",
        "LICENSE",
        "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    ),
)


def fetch(file: VendoredFile) -> bytes:
    """The file as its package at the registry has it, changed as we change it."""
    with tempfile.TemporaryDirectory() as folder:
        asked = f"{file.package}@{file.version}"
        subprocess.run(["npm", "pack", "--silent", asked], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            found = archive.extractfile(f"package/{file.path}")
            assert found is not None, f"{asked} has no file {file.path}"
            return file.change(found.read())


def main() -> int:
    for file in FILES:
        data = fetch(file)
        (FOLDER / file.name).write_bytes(data)
        found = hashlib.sha256(data).hexdigest()
        print(file.name, file.package, file.version, "as expected" if found == file.sha256 else f"is {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
