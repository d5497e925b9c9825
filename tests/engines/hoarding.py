"""An engine that shares memory with a worker of its own, as vLLM's does, and tells what it is called."""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.synchronize import Event


def work(name: str, holds_it: Event) -> None:
    memory = SharedMemory(name)
    holds_it.set()
    while memory.size:
        time.sleep(1)


if __name__ == "__main__":
    wire = Connection(int(sys.argv[1]))
    memory, context = SharedMemory(create=True, size=1 << 20), multiprocessing.get_context("spawn")
    worker_holds_it = context.Event()
    context.Process(target=work, args=(memory.name, worker_holds_it)).start()
    worker_holds_it.wait()
    _, number, *_ = wire.recv()
    wire.send(("done", number, {"name": memory.name}))
    while True:
        time.sleep(1)
