"""Hostile code against the sandbox.

Each attack is run twice: with every layer, where it must fail, and without the layers that stop it, where it
must succeed. The second half is what makes the first mean something.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolwright.sandbox.limits import Limits

from .conftest import Server, needs_isolation, needs_root, run_alone

pytestmark = needs_isolation

LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def assert_stopped_by(layers: str, attack: str, server: Server, sign: str = "BREACH") -> None:
    """The attack prints the sign without those layers, and not with them."""
    guarded = server.run(attack)
    assert sign not in guarded["stdout"], guarded
    naked = run_alone(attack, isolation=layers)
    assert sign in naked["stdout"], naked


@needs_root
def test_it_cannot_read_etc_shadow(server: Server) -> None:
    attack = "print('BREACH' if open('/etc/shadow').read() else '')"
    assert_stopped_by("-user,-mount,-landlock", attack, server)


def test_landlock_alone_hides_the_hosts_files() -> None:
    attack = "print('BREACH', open('/etc/passwd').read()[:10])"
    assert "PermissionError" in run_alone(attack, isolation="-mount")["stderr"]
    assert "BREACH" in run_alone(attack, isolation="-mount,-landlock")["stdout"]


def test_the_mount_namespace_alone_hides_the_hosts_files() -> None:
    attack = "print('BREACH', open('/etc/passwd').read()[:10])"
    assert "FileNotFoundError" in run_alone(attack, isolation="-landlock")["stderr"]


def test_it_cannot_read_the_hosts_home(server: Server, tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("dear diary")
    attack = f"print('BREACH', open({str(tmp_path / 'diary')!r}).read())"
    assert_stopped_by("-user,-mount,-landlock", attack, server)


def test_it_sees_an_empty_environment_and_not_the_servers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_TEST_SECRET", "the-server-knows")
    attack = """
import os, glob
seen = repr(dict(os.environ)).encode()
for path in glob.glob('/proc/*/environ'):
    try: seen += open(path, 'rb').read()
    except OSError: pass
print('BREACH' if b'the-server-knows' in seen else len(os.environ))
"""
    assert server.run(attack)["stdout"] == "0\n"
    assert_stopped_by("-user,-pid,-mount,-landlock", attack, server)


READ_PARENT = (
    LIBC
    + """
import struct
target = ctypes.create_string_buffer(b'a secret of the parent', 64)
found = ctypes.create_string_buffer(64)
class Part(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
here = Part(ctypes.addressof(found), 16)
there = Part(id(os), 16)  # the parent is the process this one was forked from: same addresses
for pid in {os.getppid(), *range(1, 50)} - {0, os.getpid()}:
    if libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 16:
        print('BREACH'); break
"""
)


@needs_root
def test_it_cannot_read_the_servers_memory(server: Server) -> None:
    assert_stopped_by("-user,-pid,-seccomp,-landlock,-mount", READ_PARENT, server)


@pytest.fixture
def listener() -> Iterator[tuple[int, int, str]]:
    """A TCP port, a UDP port and an abstract unix socket of the host."""
    name = f"\0sandbox-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        unix.bind(name)
        unix.listen()
        yield tcp.getsockname()[1], udp.getsockname()[1], name


def test_it_cannot_open_a_tcp_connection_to_the_host(server: Server, listener: tuple[int, int, str]) -> None:
    attack = f"import socket; socket.create_connection(('127.0.0.1', {listener[0]}), 2); print('BREACH')"
    assert_stopped_by("-network,-landlock", attack, server)


def test_it_cannot_send_udp_to_the_host(server: Server, listener: tuple[int, int, str]) -> None:
    attack = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('127.0.0.1', {listener[1]})); s.send(b'x'); print('BREACH')
"""
    assert_stopped_by("-network", attack, server)


def test_it_cannot_reach_an_abstract_unix_socket_of_the_host(
    server: Server, listener: tuple[int, int, str]
) -> None:
    attack = f"import socket; socket.socket(socket.AF_UNIX).connect({listener[2]!r}); print('BREACH')"
    assert_stopped_by("-network,-landlock", attack, server)


def test_it_cannot_reach_a_unix_socket_in_the_hosts_files(server: Server, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        attack = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r}); print('BREACH')"
        assert_stopped_by("-user,-mount,-landlock", attack, server)


def test_it_cannot_use_sockets_that_no_namespace_covers(server: Server) -> None:
    attack = """
import socket
for family in (socket.AF_VSOCK, socket.AF_ALG, socket.AF_NETLINK):
    try: socket.socket(family, socket.SOCK_SEQPACKET if family == socket.AF_ALG else socket.SOCK_RAW).close()
    except OSError as error:
        if error.errno == 97: continue
    print('BREACH', family)
"""
    assert_stopped_by("-seccomp", attack, server)


RAISE_LIMITS = """
import resource
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    soft, hard = resource.getrlimit(kind)
    try: resource.setrlimit(kind, (hard * 2, hard * 2)); print('BREACH', kind)
    except (ValueError, OSError): pass
"""


def test_it_cannot_raise_its_own_limits(server: Server) -> None:
    assert server.run(RAISE_LIMITS)["stdout"] == ""


@needs_root
def test_without_its_user_namespace_it_could_raise_its_limits(server: Server) -> None:
    if not holds_capability(24):
        pytest.skip("root of this machine may not raise limits itself (no CAP_SYS_RESOURCE)")
    assert_stopped_by("-user", RAISE_LIMITS, server)


def holds_capability(number: int) -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff"))
    return bool(held >> number & 1)


def test_it_has_limits_at_all(server: Server) -> None:
    attack = (
        "import resource; print('BREACH' if resource.getrlimit(resource.RLIMIT_FSIZE)[0] < 0 else 'limited')"
    )
    assert_stopped_by("-limits", attack, server)


def test_it_cannot_stop_its_clock(server: Server) -> None:
    attack = """
import signal, time
signal.alarm(0)
signal.setitimer(signal.ITIMER_REAL, 0)
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
print('still here', flush=True)
while True: time.sleep(1)
"""
    started = time.monotonic()
    result = server.run(attack, timeout_s=0.5)
    assert result["status"] == "timeout"
    assert result["stdout"] == "still here\n"
    assert time.monotonic() - started < 3


def processes_named(name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
    return found


DAEMON = (
    LIBC
    + """
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
)


def test_no_daemon_survives_its_run(server: Server) -> None:
    name = f"tw-daemon-{os.getpid() % 10000}"
    attack = DAEMON.replace("{name}", name)
    assert server.run(attack)["stdout"] == "daemon started\n"
    assert processes_named(name) == []


@needs_root
def test_without_its_pid_namespace_a_daemon_would_survive() -> None:
    name = f"tw-stray-{os.getpid() % 10000}"
    attack = DAEMON.replace("{name}", name)
    run_alone(attack, isolation="-pid,-user,-cgroup")
    survivors = processes_named(name)
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    assert survivors


COUNT_FORKS = """
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


def test_a_fork_bomb_stays_small(server: Server) -> None:
    assert_stopped_by("-limits", COUNT_FORKS, server)


def test_a_fork_bomb_hurts_nobody(server: Server) -> None:
    answers = []
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    thread = threading.Thread(target=lambda: answers.append(server.run(bomb, timeout_s=1.5)))
    thread.start()
    for number in range(5):
        assert (
            server.run(f"import os; os.wait() if os.fork() else os._exit(0); print({number})")["status"]
            == "ok"
        )
    thread.join()
    assert answers[0]["status"] == "timeout"


def test_a_memory_bomb_is_refused_its_memory(server: Server) -> None:
    assert server.run("block = bytearray(700 << 20)")["status"] == "memory"
    # Addresses only: nothing is written, so that only the limit could object.
    attack = "import mmap; block = mmap.mmap(-1, 2 << 30); print('BREACH')"
    assert_stopped_by("-limits", attack, server)


def test_memory_spread_over_processes_is_counted_together(server: Server) -> None:
    attack = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        block = bytearray(os.urandom(1 << 20)) * 100
        time.sleep(20); os._exit(0)
time.sleep(20)
"""
    result = server.run(attack, timeout_s=15, memory_mb=300)
    assert result["status"] == "memory", result
    assert result["duration_s"] < 10


def test_memory_outside_the_address_space_is_refused(server: Server) -> None:
    attack = "import os\nfd = os.memfd_create('x'); print('BREACH')"
    assert_stopped_by("-seccomp", attack, server)


BIG_FILE = """
written = 0
with open('big', 'wb', buffering=0) as file:
    try:
        while written < 200 << 20: written += file.write(bytes(1 << 20))
        print('BREACH')
    except OSError as error: print(written >> 20, error.errno)
"""


def test_a_large_file_is_cut_short(server: Server) -> None:
    assert server.run(BIG_FILE)["stdout"] == "64 27\n"
    assert_stopped_by("-limits,-mount", BIG_FILE, server)


def test_many_files_do_not_fill_the_disk(server: Server) -> None:
    attack = """
total = 0
try:
    for number in range(100):
        with open(f'file{number}', 'wb', buffering=0) as file: total += file.write(bytes(10 << 20))
    print('BREACH')
except OSError as error: print(error.errno)
"""
    assert server.run(attack)["stdout"] == "28\n"


def test_links_lead_nowhere_else(server: Server, tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("dear diary")
    attack = f"import os; os.symlink({str(tmp_path / 'diary')!r}, 'out.txt')"
    assert server.run(attack, fetch=["out.txt"])["files"] == {}
    climb = """
import os
ways = ('/proc/1/root/etc', '/proc/self/cwd', '../../../../etc/passwd')
print([path for path in ways if os.path.exists(path)])
"""
    assert server.run(climb)["stdout"] == "[]\n"


@pytest.mark.parametrize("name", ["../up", "/abs", "a/../../b", "", "x/./y", "nul\0"])
def test_a_file_name_cannot_leave_the_working_directory(server: Server, name: str) -> None:
    assert server.ask("POST", "/run", {"code": "", "files": {name: "x"}})[0] == 422
    assert server.ask("POST", "/run", {"code": "", "fetch": [name]})[0] == 422


PTRACE = LIBC + "print('BREACH' if libc.ptrace(0, 0, 0, 0) == 0 else ctypes.get_errno())"


def test_it_cannot_ptrace(server: Server) -> None:
    assert_stopped_by("-seccomp", PTRACE, server)


PTRACE_NEIGHBOUR = (
    LIBC
    + """
import time
for pid in [os.getppid(), *range(max(2, os.getpid() - 20), os.getpid() + 20)]:
    if pid not in (0, os.getpid()) and libc.ptrace(16, pid, 0, 0) == 0:
        os.waitpid(pid, 0x40000000); libc.ptrace(17, pid, 0, 0); print('BREACH', pid); break
"""
)


@needs_root
def test_it_cannot_ptrace_a_neighbour(server: Server) -> None:
    assert_stopped_by("-user,-pid,-seccomp,-landlock", PTRACE_NEIGHBOUR, server)


@needs_root
def test_it_cannot_write_into_the_interpreters_packages(server: Server) -> None:
    canary = Path(sysconfig.get_path("purelib")) / f"sandbox_canary_{os.getpid()}.txt"
    attack = f"open({str(canary)!r}, 'w').write('x'); print('BREACH')"
    try:
        assert_stopped_by("-user,-mount,-landlock", attack, server)
    finally:
        canary.unlink(missing_ok=True)


def test_a_run_does_not_see_another_runs_files(server: Server) -> None:
    hidden = threading.Thread(
        target=lambda: server.run("open('hidden-file', 'w').write('x'); import time; time.sleep(1)")
    )
    hidden.start()
    time.sleep(0.3)
    search = """
import os
tops = ('/sandbox', '/tmp', '/dev/shm', '.', '..', '../..')
seen = [name for top in tops for _, _, names in os.walk(top) for name in names]
print('hidden-file' in seen)
"""
    assert {server.run(search)["stdout"] for _ in range(6)} == {"False\n"}
    hidden.join()


def test_without_its_mount_namespace_a_run_would_see_the_others_files() -> None:
    attack = "import os; print('BREACH' if os.getcwd() in map(os.path.realpath, os.scandir('..')) else '')"
    assert "BREACH" in run_alone(attack, isolation="-mount,-landlock,-user")["stdout"]


def test_a_run_inherits_nothing_of_other_runs_in_memory(server: Server) -> None:
    secret = "xyzzy" + os.urandom(8).hex()
    for _ in range(4):
        server.run(f"text = {secret!r}; print(text)", stdin=secret)
    half, rest = secret[:9], secret[9:]  # so that the search does not find itself
    scan = f"""
import gc
wanted = {half!r} + {rest!r}
others = [o for o in gc.get_objects() if isinstance(o, dict) and o is not globals()]
print(sum(any(v == wanted for v in o.values() if isinstance(v, str)) for o in others))
"""
    assert server.run(scan)["stdout"] == "0\n"


KILL_PARENT = """
import os, signal
for target in (lambda: os.kill(os.getppid(), 9), lambda: os.killpg(0, 15), lambda: os.kill(-1, 9)):
    try: target()
    except OSError: pass
print('done')
"""


def test_it_cannot_kill_its_parent(server: Server) -> None:
    before = server.status()["worker_restarts"]
    server.run(KILL_PARENT)
    time.sleep(0.3)
    assert server.status()["worker_restarts"] == before
    assert server.run("print(1)")["status"] == "ok"


def test_without_its_pid_namespace_it_would_kill_its_parent() -> None:
    result = run_alone("import os; os.kill(os.getppid(), 9); print('done')", isolation="-pid,-landlock,-user")
    assert result["status"] == "killed"
    assert result["reason"].startswith("worker:")


MOUNT = (
    LIBC + "os.makedirs('m')\nprint('BREACH' if libc.mount(b'none', b'm', b'tmpfs', 0, b'') == 0 else 'no')"
)


@needs_root
def test_it_cannot_mount(server: Server) -> None:
    assert_stopped_by("-user,-seccomp,-landlock", MOUNT, server)


NEW_NAMESPACE = LIBC + "print('BREACH' if libc.unshare(0x10000000) == 0 else 'no')"


@needs_root
def test_it_cannot_make_namespaces_of_its_own(server: Server) -> None:
    assert_stopped_by("-seccomp,-user", NEW_NAMESPACE, server)


@needs_root
def test_it_cannot_load_a_kernel_module(server: Server) -> None:
    attack = LIBC + (
        "libc.syscall(175 if os.uname().machine == 'x86_64' else 105, b'x' * 100, 100, b'')\n"
        "print('BREACH' if ctypes.get_errno() in (8, 38) else ctypes.get_errno())"
    )
    assert_stopped_by("-user,-seccomp", attack, server)


def test_it_holds_no_descriptor_but_its_own_streams(server: Server) -> None:
    attack = """
import os
held = []
for number in range(1024):
    try: os.fstat(number); held.append(number)
    except OSError: pass
print(held)
"""
    assert server.run(attack)["stdout"] == "[0, 1, 2]\n"


def test_it_cannot_answer_in_the_protocols_place(server: Server) -> None:
    attack = """
import os, struct
forged = b'{"status":"error","stdout":"forged","exit_code":99}'
for number in range(3, 256):
    frame = struct.pack('<IBI', len(forged), 6, 1) + forged
    for message in (forged, frame, b'r', struct.pack('<BIidq', 1, 1, 0, 0, 0)):
        try: os.write(number, message)
        except OSError: pass
print('honest')
"""
    result = server.run(attack)
    assert (result["status"], result["stdout"], result["exit_code"]) == ("ok", "honest\n", 0)
    assert server.run("print(2)")["stdout"] == "2\n"


def test_a_session_that_forges_an_answer_ends_alone(server: Server) -> None:
    honest, forger = (server.post("/sessions", {})["id"] for _ in range(2))
    server.post(f"/sessions/{honest}/run", {"code": "kept = 41"})
    attack = """
import os, struct
for number in range(3, 64):
    try: os.write(number, struct.pack('<IBI', 7, 0, 0))
    except OSError: pass
"""
    code, answer = server.ask("POST", f"/sessions/{forger}/run", {"code": attack})
    assert code == 200
    assert answer["status"] == "killed"
    assert server.ask("POST", f"/sessions/{forger}/run", {"code": "1"})[0] == 410
    assert server.post(f"/sessions/{honest}/run", {"code": "kept + 1"})["value"] == "42"
    server.ask("DELETE", f"/sessions/{honest}")


def test_a_session_does_not_see_anothers_variables(server: Server) -> None:
    one, other = (server.post("/sessions", {})["id"] for _ in range(2))
    server.post(f"/sessions/{one}/run", {"code": "private = 'mine'; open('f', 'w').write('x')"})
    result = server.post(
        f"/sessions/{other}/run", {"code": "import os; ('private' in globals(), os.listdir('.'))"}
    )
    assert result["value"] == "(False, [])"
    for name in (one, other):
        server.ask("DELETE", f"/sessions/{name}")


def test_limits_given_to_the_server_are_the_ones_in_force() -> None:
    attack = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    assert run_alone(attack, limits=Limits(open_files=77))["stdout"] == "77\n"
