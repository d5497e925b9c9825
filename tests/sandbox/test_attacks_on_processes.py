"""Code that wants to see, change, end or outlive other processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

from .attack import Attack, filled, proofs
from .conftest import needs_isolation
from .pieces import BLIND_ZYGOTE, OWN_GROUP, OWN_USERS, WHERE_ROOT_OWN_HOST_USER
from .served import LiveSession, Server, processes_named

pytestmark = needs_isolation

LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
READ_MEMORY = (
    LIBC
    + """
found = ctypes.create_string_buffer(64)
class Part(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
here, there = Part(ctypes.addressof(found), 16), Part({address}, 16)
read = libc.process_vm_readv({target}, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
print(os.strerror(ctypes.get_errno()) if read != 16 else {what})
"""
)
ATTACH = (
    LIBC
    + """
if libc.ptrace(16, {target}, 0, 0) == 0:
    os.waitpid({target}, 0x40000000); libc.ptrace(17, {target}, 0, 0); print('BREACH')
else: print(os.strerror(ctypes.get_errno()))
"""
)


def mapped_in(pid: int) -> int:
    """An address that a process can read."""
    with open(f"/proc/{pid}/maps") as maps:
        return int(next(line for line in maps if " r" in line).partition("-")[0], 16)


def read_the_servers_memory(server: Server, _: Path) -> dict[str, Any]:
    told = {"{target}": str(server.pid), "{address}": str(mapped_in(server.pid)), "{what}": "'BREACH'"}
    return server.run(replaced(READ_MEMORY, told))


def read_it_through_proc(server: Server, _: Path) -> dict[str, Any]:
    code = f"memory = open('/proc/{{pid}}/mem', 'rb'); memory.seek({mapped_in(server.pid)})\n"
    return server.run(filled(code + "print('BREACH' if memory.read(16) else '')", server, Path()))


def replaced(code: str, told: dict[str, str]) -> str:
    for name, value in told.items():
        code = code.replace(name, value)
    return code


def host_pid(session: LiveSession) -> int:
    """The number of a session's process on the host; code without a pid namespace could find it too."""
    name = f"tw-near-{os.urandom(3).hex()}"
    session.cell(f"import ctypes; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)")
    return processes_named(name)[0]


def trace_a_neighbour(server: Server, _: Path) -> dict[str, Any]:
    with server.session() as near:
        return server.run(ATTACH.replace("{target}", str(host_pid(near))))


def read_a_sessions_variables(server: Server, _: Path) -> dict[str, Any]:
    with server.session() as near:
        near.cell("private = b'BREACH of a variable'")
        told = {
            "{target}": str(host_pid(near)),
            "{address}": str(near.cell("id(private) + 32")["value"]),
            "{what}": "found.value",
        }
        return server.run(replaced(READ_MEMORY, told))


def kill_a_neighbour(server: Server, _: Path) -> dict[str, Any]:
    with server.session() as near:
        answer = server.run(f"import os; os.kill({host_pid(near)}, 9)")
        code, told = near.ask("1")
        return {**answer, "value": "" if code == 200 and told["value"] == "1" else "BREACH"}


def with_its_worker(server: Server, code: str) -> dict[str, Any]:
    """Whether the run took the process above it along."""
    answer = server.run(code)
    return {**answer, "value": "BREACH" if answer.get("reason", "").startswith("worker:") else ""}


def kill_the_parent(server: Server, _: Path) -> dict[str, Any]:
    return with_its_worker(server, "import os, time; os.kill(os.getppid(), 9); time.sleep(0.5)")


def kill_the_group(server: Server, _: Path) -> dict[str, Any]:
    return with_its_worker(server, "import os, time; os.killpg(0, 9); time.sleep(0.5)")


def outlive_the_run(server: Server, _: Path) -> dict[str, Any]:
    """setsid, a second fork, and no stream held."""
    name = f"tw-stray-{os.urandom(3).hex()}"
    daemon = """
import time
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        libc.prctl(15, b'{name}', 0, 0, 0)
        os.write(writing, b'x')
        os.closerange(0, 64)
        time.sleep(60)
    os._exit(0)
os.wait()
os.read(reading, 1)
print('daemon started')
"""
    answer = server.run(LIBC + daemon.replace("{name}", name))
    survivors = processes_named(name)
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    return {**answer, "value": "BREACH" if survivors else ""}


def find_what_earlier_runs_left(server: Server, _: Path) -> dict[str, Any]:
    secret = "xyzzy" + os.urandom(8).hex()
    for _ in range(4):
        server.run(f"text = {secret!r}; print(text)", stdin=secret)
    half, rest = secret[:9], secret[9:]  # so that the search does not find itself
    return server.run(f"""
import gc
wanted = ''.join([{half!r}, {rest!r}]).encode()
def held(thing):
    return thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
texts = [text.encode() if isinstance(text, str) else text
         for thing in gc.get_objects() for text in held(thing) if isinstance(text, (str, bytes))]
print('BREACH' if any(wanted in text and text is not wanted for text in texts) else 'nothing found')
""")


# Who is traced is named by number, and numbers mean nothing across pid namespaces; a process without rights
# over another's user namespace may not trace it; Landlock lets no domain into another; the filter refuses.
UNREACHABLE = ("pid", "landlock", "seccomp")

test_it_fails, test_each_stop_is_enough, test_without_them_it_succeeds = proofs(
    [
        Attack(
            "read the server's memory", read_the_servers_memory, ("user", *UNREACHABLE),
            "Operation not permitted",
        ),
        Attack(
            "read the server's memory through proc", read_it_through_proc, ("user", "mount", "landlock"),
            "FileNotFoundError",
        ),
        Attack(
            "trace a neighbour", trace_a_neighbour, (OWN_USERS, *UNREACHABLE, *WHERE_ROOT_OWN_HOST_USER),
            "Operation not permitted",
        ),
        Attack(
            "read a session's variables", read_a_sessions_variables,
            (OWN_USERS, *UNREACHABLE, *WHERE_ROOT_OWN_HOST_USER), "Operation not permitted",
        ),
        Attack(
            "kill a neighbour", kill_a_neighbour, ("pid", "landlock", *WHERE_ROOT_OWN_HOST_USER),
            "ProcessLookupError",
        ),
        Attack(
            "kill the parent", kill_the_parent, ("pid", "landlock", *WHERE_ROOT_OWN_HOST_USER),
            '"status": "ok"',
        ),
        # A group is signalled across namespaces: a pid namespace alone would not stop this.
        Attack(
            "kill the group", kill_the_group, (OWN_GROUP, "landlock", *WHERE_ROOT_OWN_HOST_USER),
            '"status": "ok"',
        ),
        Attack("outlive the run", outlive_the_run, ("pid",), "daemon started"),
        Attack("find what earlier runs left", find_what_earlier_runs_left, (BLIND_ZYGOTE,), "nothing found"),
    ]
)  # fmt: skip


def test_signals_to_everybody_reach_nobody(server: Server) -> None:
    """Without its namespace this would end the machine: it has no counter-proof."""
    before = server.status()["worker_restarts"]
    assert "ProcessLookupError" in server.run("import os; os.kill(-1, 9)")["stderr"]
    time.sleep(0.3)
    assert server.status()["worker_restarts"] == before


def test_a_daemon_dies_with_its_session(server: Server) -> None:
    name = f"tw-session-{os.urandom(2).hex()}"
    code = f"""
import ctypes, os, time
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid(); ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0); os.write(writing, b'x'); time.sleep(500)
os.read(reading, 1)
"""
    with server.session() as session:
        session.cell(code)
        assert processes_named(name)
    wait_until(lambda: not processes_named(name), "the daemon has ended")
