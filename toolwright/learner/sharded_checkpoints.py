"""Checkpoints that every rank writes its part of, while the next step runs; readable by any number of ranks.

The folder must be one that all ranks see. What lies in it is torch's distributed checkpoint.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from toolwright.learner import checkpoints
from toolwright.learner.sharding import RankGroup
from toolwright.learner.shards import read

SUMS = ".checksums"  # of one rank's files, until the first rank has collected them
# Of a checkpoint that cannot be written or read; torch collects what the ranks raised in the last of them.
Failed = (OSError, RuntimeError, ValueError, KeyError, CheckpointException)


class Writer(dcp.FileSystemWriter):
    """Each rank sums up its own files, while they are still in its memory, and leaves the checksums beside
    them; the first rank collects them."""

    def __init__(self, shards: Path) -> None:
        super().__init__(shards, sync_files=True)
        self.shards = shards

    def write_data(self, plan: Any, planner: Any) -> Any:
        written = super().write_data(plan, planner)
        names = {result.storage_data.relative_path for result in written.value()}
        sums = {f"{checkpoints.SHARDS}/{name}": checkpoints.checksum(self.shards / name) for name in names}
        if sums:
            (self.shards / f"{min(names)}{SUMS}").write_text(json.dumps(sums))
        return written


def collected(shards: Path) -> checkpoints.Checksums:
    """Collect the checksums that the ranks left, and remove their files."""
    sums: checkpoints.Checksums = {}
    for file in shards.glob(f"*{SUMS}"):
        sums.update(json.loads(file.read_text()))
        file.unlink()
    return sums


class Saver:
    """All ranks call its methods, with the same arguments. One checkpoint is under way at the most."""

    def __init__(self, ranks: RankGroup) -> None:
        self.ranks = ranks
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: tuple[Path, int, Future[Any]] | None = None

    def save(
        self, folder: Path, step: int, state: dict[str, Any], tensors: dict[str, Any], *, keep: int
    ) -> None:
        """Returns once the tensors are copied. Their checkpoint has its name when `wait` returns; until then
        there is none."""
        self.wait()
        shards = folder / f"step_{step}.partial" / checkpoints.SHARDS
        failure: OSError | None = None
        if self.ranks.rank == 0:
            try:
                checkpoints.begin(folder, step).mkdir()
            except OSError as error:
                failure = error
        self._agree(failure, folder, step)
        written = dcp.async_save(tensors, storage_writer=Writer(shards), process_group=self.ranks.aside)
        assert isinstance(written, Future)
        if self.ranks.rank == 0:
            # The first rank's part ends last: it writes what tells where all the others are.
            written = self._pool.submit(_settle, written, folder, step, state, keep)
        self._under_way = folder, step, written

    def wait(self) -> None:
        """Wait until the checkpoint under way is in its place. Raises if it could not be written."""
        if self._under_way is None:
            return
        folder, step, written = self._under_way
        self._under_way = None
        try:
            written.result()
            failure: BaseException | None = None
        except Failed as error:
            failure = error
        # Only the first rank knows whether the checkpoint has got its name.
        self._agree(failure, folder, step)

    def _agree(self, failure: BaseException | None, folder: Path, step: int) -> None:
        """All ranks go on, or none."""
        if any_of(self.ranks, failure is not None):
            failure = failure or RuntimeError("another rank could not write its part")
            raise checkpoints.unwritten(folder, step, _cause(failure)) from failure

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._pool.shutdown()


def _cause(failure: BaseException) -> BaseException:
    """The error of the first rank that failed: torch's own message has every rank's stack."""
    if isinstance(failure, CheckpointException):
        return next((error for error, _ in failure.failures.values()), failure)
    return failure


def _settle(written: Future[Any], folder: Path, step: int, state: dict[str, Any], keep: int) -> None:
    partial = folder / f"step_{step}.partial"
    try:
        written.result()
        checkpoints.seal(partial, state, collected(partial / checkpoints.SHARDS))
    except BaseException:
        checkpoints.begin(folder, step)
        raise
    checkpoints.settle(folder, step, keep=keep)


class Restorable(Protocol):
    def restore(self, state: dict[str, Any], tensors: dict[str, Any]) -> None: ...


def restore(path: Path, learner: Restorable, ranks: RankGroup) -> dict[str, Any]:
    """The learner as the checkpoint has it, its plain values returned. All ranks call it; they may be more
    or fewer than wrote it, or it may be of a single process."""
    shards = path / checkpoints.SHARDS
    if not shards.is_dir():
        state, tensors = checkpoints.load(path)
    else:
        _verify_together(path, ranks)
        try:
            state, tensors = checkpoints.plain(path), read(shards, ranks.blank)
        except Failed as error:
            raise checkpoints.unreadable(path, _cause(error)) from error
    learner.restore(state, tensors)
    return state


def _verify_together(path: Path, ranks: RankGroup) -> None:
    """Each rank checks a share of the files; all go on, or none."""
    broken: checkpoints.BrokenCheckpoint | None = None
    try:
        checkpoints.verify(path, sorted(checkpoints.checksums(path))[ranks.rank :: ranks.size])
    except checkpoints.BrokenCheckpoint as error:
        broken = error
    if any_of(ranks, broken is not None):
        raise broken or checkpoints.BrokenCheckpoint(path, "another rank found it damaged")


def any_of(ranks: RankGroup, mine: bool) -> bool:
    """True if it is true on any rank."""
    found = torch.tensor(float(mine))
    dist.all_reduce(found, dist.ReduceOp.MAX, group=ranks.aside)
    return bool(found)
