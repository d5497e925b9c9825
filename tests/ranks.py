"""Ranks for tests: processes that stay, and become a group of as many as a test asks for."""

from __future__ import annotations

import gc
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tests.forks import forks
from tests.ports import free_port

PATIENCE_S = 600.0


class Ranks:
    """A call is made on every rank, with its group before its own arguments."""

    def __init__(self, most: int) -> None:
        context = forks()
        self.ends: list[Connection] = []
        self.processes = []
        for _ in range(most):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            self.ends.append(ours)
            self.processes.append(process)

    def __call__(self, size: int, work: Callable[..., Any], *args: Any, **settings: Any) -> list[Any]:
        """What each of `size` ranks returned. `settings` are of the group."""
        port = free_port()
        for rank, end in enumerate(self.ends[:size]):
            end.send((work, args, {"rank": rank, "size": size, "port": port, **settings}))
        found = []
        for rank, end in enumerate(self.ends[:size]):
            assert end.poll(PATIENCE_S), f"rank {rank} of {size} says nothing in {work.__name__}"
            found.append(pickle.loads(end.recv_bytes()))
        for rank, (fine, answer) in enumerate(found):
            assert fine, f"rank {rank} of {size}: {answer}"
        return [answer for _, answer in found]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _serve(end: Connection) -> None:
    gc.freeze()  # what was imported before the fork stays
    import torch

    from toolwright.learner.sharding import RankGroup

    torch.set_num_threads(1)
    while True:
        work, args, settings = end.recv()
        try:
            joined = {"address": "127.0.0.1", "device": torch.device("cpu"), "timeout_s": 300.0, **settings}
            group = RankGroup.join(**joined)
            try:
                answer = True, work(group, *args)
            finally:
                group.leave()
        except BaseException:
            answer = False, traceback.format_exc()
        # By value: sent as they are, torch's tensors take a descriptor each, and an ordinary user has 1,024.
        end.send_bytes(pickle.dumps(answer))
