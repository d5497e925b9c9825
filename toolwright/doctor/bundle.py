"""One zip for an issue: the machine, what the doctor found, and what a run wrote down, without secrets."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from toolwright import images
from toolwright.doctor.diagnosis import diagnose
from toolwright.doctor.examination import examine
from toolwright.doctor.run_history import RunHistory
from toolwright.doctor.secrets import Scrubber
from toolwright.failures import UserError
from toolwright.observe import rollouts
from toolwright.observe.attempt_index import read_index
from toolwright.trajectory import Trajectory

LOG_LINES = 500
MOST_BYTES = 20 << 20  # of one file
MOST_ATTEMPTS = 64
MOST_PRIVATE = 4 << 20  # characters of attempts that are looked for in the log
# Variables of these are listed, by name alone.
PREFIXES = (
    "ANTHROPIC", "CUDA", "HF_", "HTTP", "HUGGING", "KMP", "LANG", "LC_", "LD_", "MKL", "NCCL", "NO_PROXY",
    "NVIDIA", "OMP", "OPENAI", "PYTHON", "PYTORCH", "RAY", "SLURM", "TERM", "TMPDIR", "TOKENIZERS",
    "TOOLWRIGHT", "TORCH", "TRANSFORMERS", "TRITON", "VLLM", "WANDB",
)  # fmt: skip


def write_bundle(out: Path | None, run: Path | None, *, with_attempts: bool) -> tuple[Path, dict[str, str]]:
    """The file, and what each part of it holds."""
    out = out or Path(f"toolwright-report-{time.strftime('%Y%m%d-%H%M%S')}.zip")
    history = RunHistory.read(run) if run else None
    private = [] if with_attempts or run is None else list(_private(run))
    scrubber = Scrubber(private=private)
    parts = {**_of_machine(), **(_of_run(history, scrubber, with_attempts) if history else {})}
    held = {name: about for name, (about, _) in parts.items()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, (_, text) in parts.items():
                archive.writestr(name, scrubber.text(text[-MOST_BYTES:]))
            listed = "\n".join(f"{name}: {about}" for name, about in held.items())
            archive.writestr(
                "README.txt", f"What `toolwright doctor --report` found, without secrets.\n\n{listed}\n"
            )
    except OSError as error:
        if out.is_file():
            out.unlink()
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from None
    return out, held


def _of_machine() -> dict[str, tuple[str, str]]:
    examined = list(examine())
    lines = [
        f"{one.result.status:<8} {one.name:<24} {one.result.text}"
        + (f" → {one.result.remedy}" * bool(one.result.remedy))
        for one in examined
    ]
    versions = sorted({f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions()}, key=str.lower)
    names = sorted(name for name in os.environ if name.upper().startswith(PREFIXES))
    return {
        "doctor.txt": (f"{len(examined)} checks of the machine", "\n".join(lines) + "\n"),
        "doctor.json": ("the same for programs", json.dumps([one.as_row() for one in examined], indent=1)),
        "versions.txt": (f"{len(versions)} installed packages", "\n".join(versions) + "\n"),
        "environment.txt": (f"{len(names)} variables, without their values", "\n".join(names) + "\n"),
    }


def _of_run(history: RunHistory, scrubber: Scrubber, with_attempts: bool) -> dict[str, tuple[str, str]]:
    hidden = () if with_attempts else ("quote",)
    found = [{k: v for k, v in asdict(one).items() if k not in hidden} for one in diagnose(history)]
    config = yaml.safe_dump(scrubber.tree(history.config), sort_keys=False, allow_unicode=True, width=1000)
    parts = {
        "run/diagnosis.json": (
            f"{len(found)} things that look wrong",
            json.dumps({**history.facts(), "findings": found}, indent=1, ensure_ascii=False),
        ),
        "run/config.yaml": ("its configuration", config),
        "run/command.txt": ("how it was started", history.command),
        "run/log.txt": (f"the last {LOG_LINES} lines of its log", "\n".join(history.log[-LOG_LINES:]) + "\n"),
        "run/metrics.jsonl": (f"metrics of {len(history.rows)} steps", _json_lines(history.rows)),
        "run/incidents.jsonl": (f"{len(history.incidents)} incidents", _json_lines(history.incidents)),
    }
    if with_attempts:
        shown = list(_attempts(history.path))
        about = f"{len(shown)} attempts of the last step, with texts"
        parts["run/attempts.jsonl"] = (about, _json_lines(shown))
    return parts


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _attempts(run: Path) -> Iterator[dict[str, Any]]:
    files = rollouts.files(run)
    for trajectory in (rollouts.read(files[max(files)]) if files else [])[:MOST_ATTEMPTS]:
        yield {
            "task": trajectory.task.id,
            "group": trajectory.group,
            "prompt": images.apart(trajectory.task.prompt)[0],
            "segments": [{"source": s.source, "text": s.text, "calls": s.calls} for s in trajectory.segments],
            "reward": trajectory.reward,
            "reward_parts": trajectory.reward_parts,
            "stop": trajectory.stop,
            "counts": trajectory.counts,
            "failure": trajectory.failure and trajectory.failure.message,
        }


def _private(run: Path) -> Iterator[str]:
    """Prompts and answers that the log may quote: of the last step, and of failed attempts before it."""
    files = rollouts.files(run)
    left = MOST_PRIVATE
    for step in sorted(files, reverse=True):
        try:
            if step != max(files) and not read_index({step: files[step]}).digest(step).failed:
                continue
            found = rollouts.read(files[step])
        except UserError:
            continue
        for trajectory in found:
            if step != max(files) and trajectory.failure is None:
                continue
            for text in _texts(trajectory):
                left -= len(text)
                if left < 0:
                    return
                yield text


def _texts(trajectory: Trajectory) -> Iterator[str]:
    for message in trajectory.task.prompt:
        yield from images.texts_of(message.get("content"))
    for segment in trajectory.segments:
        yield segment.text
        for call in segment.calls:
            yield str(call.get("arguments") or "")
