"""Code that wants to read or change the host's files, or fill its disk."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from .attack import ONLY_ROOT, OTHER_USER, Attack, proofs
from .conftest import needs_isolation
from .pieces import CLEARED, EMPTY_START, FETCHED_AT_ONCE, FILE_NAMES, WHERE_ROOT_OWN_HOST_USER
from .served import Server

pytestmark = needs_isolation

HIDDEN = (*OTHER_USER, "mount", "landlock")
A_PACKAGE = next(iter(sorted(Path(sysconfig.get_path("purelib")).glob("*/__init__.py"))), Path("/nowhere"))

THROUGH_PROC = """
import glob, os
ways = [f'{root}/{end}' for root in glob.glob('/proc/*/root') + glob.glob('/proc/*/cwd')
        for end in ('{place}/diary', '../../../../{place}/diary')]
for way in ways:
    try: print(open(way).read())
    except OSError: pass
print(len(glob.glob('/proc/*')), 'seen')
"""
ONE_FILE = """
written = 0
with open('big', 'wb', buffering=0) as file:
    try:
        while written < 200 << 20: written += file.write(bytes(1 << 20))
        print('BREACH')
    except OSError as error: print(written >> 20, error.errno)
"""
MANY_FILES = """
try:
    for number in range(20):
        with open(f'file{number}', 'wb', buffering=0) as file:
            assert file.write(bytes(10 << 20)) == 10 << 20
    print('BREACH')
except (OSError, AssertionError) as error: print('stopped at', number)
"""
EMPTY_FILES = """
try:
    for number in range(25_000): open(f'file{number}', 'w').close()
    print('BREACH')
except OSError as error: print('stopped:', error.errno)
"""


def see_anothers_files(server: Server, _: Path) -> dict[str, Any]:
    search = """
import os
tops = ('/sandbox', '/tmp', '/dev/shm', '.', '..', '../..')
seen = [name for top in tops for _, _, names in os.walk(top) for name in names]
print('BREACH' if 'hidden-file' in seen else 'nothing seen')
"""
    with server.session() as one, server.session() as other:  # one on each of two workers
        for session in (one, other):
            session.cell("open('hidden-file', 'w').write('x')")
        return server.run(search)


def fetch_through_a_link(server: Server, place: Path) -> dict[str, Any]:
    return server.run(f"import os; os.symlink('{place}/diary', 'out.txt')", fetch=["out.txt"])


def fetch_by_a_name_that_climbs(server: Server, place: Path) -> dict[str, Any]:
    return server.ask("POST", "/run", {"code": "", "fetch": [f"../../..{place}/diary"]})[1]


def plant_by_a_name_that_climbs(server: Server, place: Path) -> dict[str, Any]:
    _, answer = server.ask("POST", "/run", {"code": "", "files": {f"../../..{place}/planted": "x"}})
    return {**answer, "value": "BREACH" if (place / "planted").exists() else ""}


def make_the_reader_wait(server: Server, _: Path) -> dict[str, Any]:
    """A pipe that nobody writes to, offered as a file to fetch."""
    answer = server.run("import os; os.mkfifo('pipe')", fetch=["pipe"], timeout_s=5)
    return {**answer, "value": "BREACH" if answer["status"] == "timeout" else ""}


test_it_fails, test_each_stop_is_enough, test_without_them_it_succeeds = proofs(
    [
        Attack(
            "read /etc/shadow", "print('BREACH' if open('/etc/shadow').read() else '')", HIDDEN,
            "FileNotFoundError", skip=ONLY_ROOT,
        ),
        Attack("read the host's home", "print(open('{place}/diary').read())", HIDDEN, "FileNotFoundError"),
        Attack(
            "read the server's environment",
            "print('BREACH' if b'the-server-knows' in open('/proc/{pid}/environ', 'rb').read() else '')",
            ("user", "mount", "landlock"), "FileNotFoundError",
        ),
        Attack(
            "inherit the server's environment",
            "import os; print('BREACH' if 'SANDBOX_TEST_SECRET' in os.environ else sorted(os.environ))",
            (EMPTY_START, CLEARED), "[]",
        ),
        Attack("climb through proc", THROUGH_PROC, HIDDEN, "0 seen"),
        Attack(
            "change the kernel's settings", "open('/proc/sys/kernel/panic', 'r+').close(); print('BREACH')",
            HIDDEN, "FileNotFoundError", skip=ONLY_ROOT,
        ),
        Attack(
            "write into the packages", f"open({str(A_PACKAGE)!r}, 'r+').close(); print('BREACH')", HIDDEN,
            "Error: [Errno ",
            skip="" if os.access(A_PACKAGE, os.W_OK) else "the packages belong to another user",
        ),
        Attack(
            "see another run's files", see_anothers_files, ("mount", *WHERE_ROOT_OWN_HOST_USER),
            "nothing seen",
        ),
        Attack("fetch through a link", fetch_through_a_link, HIDDEN, '"files": {}'),
        Attack(
            "fetch by a name that climbs", fetch_by_a_name_that_climbs, (FILE_NAMES, *HIDDEN),
            "a file name is relative",
        ),
        Attack(
            "plant a file by a name that climbs", plant_by_a_name_that_climbs, (FILE_NAMES, *HIDDEN),
            "a file name is relative",
        ),
        Attack("make the reader of files wait", make_the_reader_wait, (FETCHED_AT_ONCE,), '"status": "ok"'),
        Attack("one file of 200 MB", ONE_FILE, ("mount", "limits"), "64 27"),
        Attack("many files of 10 MB", MANY_FILES, ("mount",), "stopped at 12"),
        Attack("files without content and without end", EMPTY_FILES, ("mount",), "stopped: 28"),
    ]
)  # fmt: skip


@pytest.mark.parametrize("name", ["../up", "/abs", "a/../../b", "", "x/./y", "nul\0"])
def test_a_file_name_cannot_leave_the_working_directory(server: Server, name: str) -> None:
    assert server.ask("POST", "/run", {"code": "", "files": {name: "x"}})[0] == 422
    assert server.ask("POST", "/run", {"code": "", "fetch": [name]})[0] == 422
