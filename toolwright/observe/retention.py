"""Files of a run that may be removed: attempts of old steps, and all but the newest checkpoints."""

from __future__ import annotations

from pathlib import Path

from toolwright.config.schema import SAMPLED
from toolwright.config.yaml_file import read_yaml
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.observe import rollouts


def removable(
    run: Path,
    *,
    attempts_before: int | None = None,
    keep_attempts: int | None = None,
    keep_checkpoints: int | None = None,
) -> list[Path]:
    """The files and folders that these limits leave out. Metrics, log, report and model always stay."""
    if attempts_before is None and keep_attempts is None and keep_checkpoints is None:
        raise UserError("name what to remove: --attempts-before STEP, --keep-attempts N or --checkpoints N")
    if keep_attempts is not None and keep_attempts < 0:
        raise UserError(f"--keep-attempts {keep_attempts}: expected a number of steps")
    if keep_checkpoints is not None and keep_checkpoints < 1:
        raise UserError(
            f"--checkpoints {keep_checkpoints}: a run without a checkpoint cannot be resumed; keep at least 1"
        )
    found = old_attempts(run, keep_attempts) if keep_attempts is not None else []
    if attempts_before is not None:
        found = [path for step, path in rollouts.files(run).items() if step < attempts_before]
    stated = run / "config.yaml"
    if found and stated.is_file() and read_yaml(stated).get("demonstrations") == SAMPLED:
        found = []  # a resumed run learns from them
    if keep_checkpoints is not None:
        found += checkpoints.newest_first(run / "checkpoints")[keep_checkpoints:]
        found += sorted((run / "checkpoints").glob("step_*.broken"))
    return found


def old_attempts(run: Path, keep: int) -> list[Path]:
    """The files of all steps but the last `keep`."""
    files = list(rollouts.files(run).values())
    return files[: max(0, len(files) - keep)]


def remove(path: Path) -> None:
    """Delete a file or a checkpoint folder."""
    if path.is_dir():
        checkpoints.discard(path)
    else:
        path.unlink(missing_ok=True)
