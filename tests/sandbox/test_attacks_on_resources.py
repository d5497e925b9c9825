"""Code that wants more time, memory, processes or output than it was given."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.waiting import wait_until
from toolwright.sandbox.limits import RunLimits

from .attack import ONLY_ROOT, Attack, proofs
from .conftest import needs_isolation, run_alone
from .pieces import (
    CLOCK,
    DESCRIPTORS_TOGETHER,
    FLOOD,
    GROUPS,
    HARD_LIMITS,
    KERNEL_MEMORY,
    MEMORY_TOGETHER,
    OWN_USERS,
    WHERE_ROOT_OWN_HOST_USER,
)
from .served import Server

pytestmark = needs_isolation


def holds_capability(number: int) -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff"))
    return bool(held >> number & 1)


DEAF = """
import signal, time
signal.alarm(0)
signal.setitimer(signal.ITIMER_REAL, 0)
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
print('deaf', flush=True)
"""
RAISE = """
import resource
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    soft, hard = resource.getrlimit(kind)
    for wanted in ((hard, hard), (hard * 2, hard * 2), (-1, -1)):
        try: resource.setrlimit(kind, wanted)
        except (ValueError, OSError): continue
        if resource.getrlimit(kind)[0] != soft: print('BREACH', kind, soft, wanted)
print('tried')
"""
FORKS = """
import os, time
made = 0
try:
    for _ in range(100):
        if os.fork() == 0: time.sleep(5); os._exit(0)
        made += 1
except OSError: pass
print('BREACH' if made == 100 else 'stopped', flush=True)
os._exit(0)
"""
IN_PROCESSES = """
import os, time
reading, writing = os.pipe()
for _ in range(6):
    if os.fork() == 0:
        block = bytearray(os.urandom(1 << 20)) * 50
        os.write(writing, b'x'); time.sleep(60); os._exit(0)
for _ in range(6): os.read(reading, 1)
time.sleep(4); print('BREACH', flush=True); os._exit(0)
"""
FORKED_BY_THREADS = """
import os, threading, time
reading, writing = os.pipe()
def grow():
    if os.fork() == 0:
        block = bytearray(os.urandom(1 << 20)) * 170
        os.write(writing, b'x'); time.sleep(60); os._exit(0)
    time.sleep(60)
for _ in range(4): threading.Thread(target=grow, daemon=True).start()
for _ in range(4): os.read(reading, 1)
time.sleep(4); print('BREACH', flush=True); os._exit(0)
"""
# Each is smaller than the zygote, with which it shares nothing.
SMALL_AND_MANY = """
import subprocess, sys, time
code = 'block = bytearray(2 << 20); print(flush=True); import time; time.sleep(60)'
many = [subprocess.Popen([sys.executable, '-I', '-S', '-c', code], stdout=-1) for _ in range(40)]
for one in many: one.stdout.readline()
time.sleep(4); print('BREACH', flush=True)
"""
# The pages of files in memory belong to no process.
FILES_IN_MEMORY = """
import time
for number in range(2):
    with open(f'file{number}', 'wb') as file:
        for _ in range(60): file.write(bytes(1 << 20))
time.sleep(1); print('BREACH', flush=True)
"""
BUFFERS = """
import os, signal, socket, time
reading, writing = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        ends = [end for _ in range(100) for end in socket.socketpair()]
        for end in ends:
            end.setblocking(False)
            try:
                while True: end.send(bytes(65536))
            except OSError: pass
        os.write(writing, b'x'); signal.pause()
for _ in range(8): os.read(reading, 1)
time.sleep(1); print('BREACH', flush=True); os._exit(0)
"""
# Pages that differ from their neighbours in what may be done with them are mappings of their own.
MAPPINGS = """
import ctypes, os, signal, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
reading, writing = os.pipe()
for _ in range(50):
    if os.fork() == 0:
        start = libc.mmap(None, 48 << 20, 0, 0x22, -1, 0)
        for page in range(0, 12000, 2): libc.mprotect(start + page * 4096, 4096, 1)
        os.write(writing, b'x'); signal.pause()
for _ in range(50): os.read(reading, 1)
time.sleep(5); print('BREACH', flush=True); os._exit(0)
"""


def wishing(code: str, **options: Any) -> Any:
    return lambda server, _: server.run(code, **{"timeout_s": 60, **options})


def take_the_neighbours_processes(server: Server, _: Path) -> dict[str, Any]:
    hog = """
import os, time
try:
    while True:
        if os.fork() == 0: time.sleep(30); os._exit(0)
except OSError: pass
"""
    one_fork = """
import os
try: os.wait() if os.fork() else os._exit(0)
except OSError: print('BREACH')
"""
    with server.session() as one, server.session() as other:  # one on each of two workers
        one.cell(hog)
        other.cell(hog)
        return server.run(one_fork)


def flood(server: Server, _: Path) -> dict[str, Any]:
    answer = server.run("for _ in range(1000): print('x' * 99_999)", timeout_s=60)
    return {**answer, "stdout": "", "value": "BREACH" if answer["status"] == "ok" else ""}


test_it_fails, test_each_stop_is_enough, test_without_them_it_succeeds = proofs(
    [
        Attack(
            "stop the clock and sleep", wishing(DEAF + "time.sleep(3); print('BREACH')", timeout_s=0.5),
            (CLOCK,), '"status": "timeout"',
        ),
        Attack(
            "stop the clock and compute",
            wishing(DEAF + "while time.process_time() < 4: pass\nprint('BREACH')", timeout_s=0.5),
            (CLOCK, "limits"), '"status": "timeout"',
        ),
        Attack("raise its own limits", RAISE, (HARD_LIMITS,), "tried"),
        Attack(
            "raise its own limits as root", RAISE, ("user",), "tried",
            skip=ONLY_ROOT or ("" if holds_capability(24) else "this root has no CAP_SYS_RESOURCE"),
        ),
        Attack("fork a hundred times", FORKS, ("limits",), "stopped"),
        Attack("fork as root, whose processes are not counted", FORKS, ("user",), "stopped", skip=ONLY_ROOT),
        Attack(
            "use up the neighbours' processes", take_the_neighbours_processes,
            (OWN_USERS, *WHERE_ROOT_OWN_HOST_USER), '"ok"',
        ),
        Attack(
            "2 GB of addresses", "import mmap; block = mmap.mmap(-1, 2 << 30); print('BREACH')", ("limits",),
            "Cannot allocate memory",
        ),
        Attack(
            "200 MB of memory",
            wishing("import time; a = bytearray(200 << 20); time.sleep(4); print('BREACH')", memory_mb=100),
            ("limits", MEMORY_TOGETHER, *GROUPS), '"status": "memory"',
        ),
        Attack(
            "memory in many processes", wishing(IN_PROCESSES, memory_mb=150), (MEMORY_TOGETHER, *GROUPS),
            '"status": "memory"',
        ),
        Attack(
            "memory in processes forked by threads", wishing(FORKED_BY_THREADS, memory_mb=600),
            (MEMORY_TOGETHER, *GROUPS), '"status": "memory"',
        ),
        Attack(
            "memory in processes smaller than the zygote", wishing(SMALL_AND_MANY, memory_mb=100),
            (MEMORY_TOGETHER, *GROUPS), '"status": "memory"',
        ),
        Attack(
            "memory that no process holds", wishing(FILES_IN_MEMORY, memory_mb=64), (KERNEL_MEMORY, *GROUPS),
            '"status": "memory"',
        ),
        # So many descriptors would end it as well.
        Attack(
            "memory in buffers of sockets", wishing(BUFFERS, memory_mb=64), (KERNEL_MEMORY, *GROUPS),
            '"status": "memory"', also=(DESCRIPTORS_TOGETHER,),
        ),
        Attack(
            "memory in mappings", wishing(MAPPINGS, memory_mb=64), (KERNEL_MEMORY, *GROUPS),
            '"status": "memory"',
        ),
        Attack(
            "memory outside the address space", "import os; os.memfd_create('x'); print('BREACH')",
            ("seccomp",), "PermissionError",
        ),
        Attack("100 MB of output", flood, (FLOOD,), "the run wrote too much output"),
    ]
)  # fmt: skip


def test_a_fork_bomb_hurts_nobody(server: Server) -> None:
    answers = []
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    thread = threading.Thread(target=lambda: answers.append(server.run(bomb, timeout_s=1.5)))
    thread.start()
    for number in range(5):
        code = f"import os; os.wait() if os.fork() else os._exit(0); print({number})"
        assert server.run(code, timeout_s=60)["status"] == "ok"
    thread.join()
    assert answers[0]["status"] == "timeout"


def test_a_run_that_passes_its_memory_takes_nobody_with_it(server: Server) -> None:
    """The ceiling was that of all runs of a worker, and the kernel's choice among them anybody."""
    restarts = server.status()["worker_restarts"]
    with server.session() as one, server.session() as other:  # one on each of two workers
        for session in (one, other):
            session.cell("kept = bytearray(50 << 20)")
        hog = {"code": FILES_IN_MEMORY, "memory_mb": 64, "timeout_s": 60}
        good = {"code": "block = bytearray(50 << 20); print(1)", "memory_mb": 64, "timeout_s": 60}
        results = server.post("/run/batch", {"runs": [hog, good] * 4})["results"]
        assert [result["status"] for result in results] == ["memory", "ok"] * 4
        assert [session.cell("len(kept)")["value"] for session in (one, other)] == [str(50 << 20)] * 2
    assert server.status()["worker_restarts"] == restarts


def test_the_memory_of_a_session_is_checked_between_its_cells(server: Server) -> None:
    later = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        time.sleep(0.3)
        block = bytearray(os.urandom(1 << 20)) * 60
        time.sleep(500); os._exit(0)
"""
    with server.session(memory_mb=120) as session:
        session.cell(later)
        wait_until(lambda: server.status()["sessions"] == 0, "it was found too heavy")
        code, told = session.ask("1")
        assert code == 410
        assert "more memory than the limit" in told["error"]


def test_limits_given_to_the_server_are_the_ones_in_force() -> None:
    limits = RunLimits(open_files=77, processes=33, signals=44, file_mb=1)
    expected = {"NOFILE": 77, "NPROC": 33, "SIGPENDING": 44, "FSIZE": 1 << 20}
    expected |= dict.fromkeys(("CORE", "MSGQUEUE", "MEMLOCK"), 0)
    attack = f"""
import resource
for name in {list(expected)}: print(*resource.getrlimit(getattr(resource, "RLIMIT_" + name)))
"""
    lines = run_alone(attack, limits=limits)["stdout"].splitlines()
    assert lines == [f"{amount} {amount}" for amount in expected.values()]


def test_a_run_has_no_capability_and_none_that_a_program_would_inherit() -> None:
    attack = """
import ctypes, struct
call = ctypes.CDLL(None, use_errno=True)
held = ctypes.create_string_buffer(24)
assert call.capget(struct.pack("=Ii", 0x20080522, 0), held) == 0
print(held.raw.count(0), sum(call.prctl(47, 1, number, 0, 0) > 0 for number in range(41)))
"""
    assert run_alone(attack)["stdout"] == "24 0\n"
