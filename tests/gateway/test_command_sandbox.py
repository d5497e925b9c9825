"""Commands in the sandbox: they reach the policy, and nothing else of the machine."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolwright.config.agent_program import AgentProgram
from toolwright.failures import UserError
from toolwright.gateway.command_sandbox import CommandSandbox
from toolwright.sandbox import layers
from toolwright.trajectory import Trajectory

from .test_programs import alive, command, failure, run

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or bool(layers.missing()), reason="the kernel does not give all layers here"
)


def sandboxed(folder: Path, source: str, *words: str, **settings: Any) -> list[Trajectory]:
    agent = {**command(folder, source, *words), "isolation": "full", **settings.pop("agent", {})}
    return run(agent, **settings)


def printed(trajectory: Trajectory) -> list[str]:
    assert trajectory.failure is None, trajectory.failure
    assert trajectory.result is not None
    return str(trajectory.result["output"]).splitlines()


def test_it_gets_its_task_asks_the_policy_and_leaves_its_answer(tmp_path: Path) -> None:
    source = (
        "task = json.load(sys.stdin)\n"
        "assert sys.argv[1] == task['question'] == 'go' and os.listdir('.') == []\n"
        "import tempfile; tempfile.NamedTemporaryFile().write(b'mine'); open('note', 'w').write('mine')\n"
        "ask('one'); ask('two'); print('it is 42')\n"
    )
    made = sandboxed(tmp_path, source, "{question}", count=3)
    assert [printed(one) for one in made] == [["it is 42"]] * 3
    assert [one.turns for one in made] == [2, 2, 2]
    assert not list(Path(tempfile.gettempdir()).glob("toolwright-run-*/note"))


def test_it_reads_and_writes_nothing_of_the_users(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not tell")
    source = (
        "ask('go')\n"
        "def tried(act):\n"
        "    try: print('did', act())\n"
        "    except OSError as error: print(type(error).__name__)\n"
        f"tried(lambda: os.listdir({str(Path.home())!r}))\n"
        f"tried(lambda: open({str(secret)!r}).read())\n"
        f"tried(lambda: open({str(tmp_path / 'agent.py')!r}, 'a'))\n"
        "tried(lambda: os.kill(1, 9) or os.listdir('/proc'))\n"
        "tried(lambda: os.mkdir('/etc/mine'))\n"
        "print(sorted(name for name in os.environ if 'SECRET' in name))\n"
    )
    os.environ["MY_SECRET"] = "x"
    try:
        lines = printed(*sandboxed(tmp_path, source))
    finally:
        del os.environ["MY_SECRET"]
    assert all(not line.startswith("did") for line in lines), lines
    assert lines[-1] == "[]"


def test_readable_files_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows").write_text("three rows")
    source = (
        "ask('go')\n"
        f"print(open({str(tmp_path / 'data' / 'rows')!r}).read())\n"
        f"try: open({str(tmp_path / 'data' / 'rows')!r}, 'w')\n"
        "except OSError: print('refused')\n"
    )
    made = sandboxed(tmp_path, source, agent={"readable": [str(tmp_path / "data")]})
    assert printed(*made) == ["three rows", "refused"]


def test_it_reaches_no_other_port_and_no_other_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        source = (
            "import socket\nask('go')\n"
            f"for place in (('127.0.0.1', {other.getsockname()[1]}), ('10.0.0.1', 80), ('127.0.0.1', 22)):\n"
            "    try: socket.create_connection(place, timeout=3); print('reached')\n"
            "    except OSError: print('refused')\n"
            "try: socket.create_server(('127.0.0.1', 0)); print('reached')\n"
            "except OSError: print('refused')\n"
            "try: post('/v1/chat/completions', {'messages': []}, key='tw-another')\n"
            "except urllib.error.HTTPError as error: print(error.code)\n"
        )
        assert printed(*sandboxed(tmp_path, source)) == ["refused"] * 4 + ["401"]


def test_forks_without_end_end_with_the_attempt_and_harm_no_neighbour(tmp_path: Path) -> None:
    source = (
        "import time\nask('go')\n"
        "if json.load(sys.stdin)['extra_info'] and os.getpid():\n"
        "    made = 0\n"
        "    try:\n"
        "        while made < 5000:\n"
        "            if os.fork() == 0: time.sleep(600)\n"
        "            made += 1\n"
        "    except OSError: print('refused', made < 300)\n"
    )
    (trajectory,) = sandboxed(tmp_path, source)
    assert printed(trajectory) == ["refused True"]
    assert agents_alive(tmp_path) == []


LEAVES = (
    "import subprocess, time\nask('go')\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[0]],"
    " start_new_session=True)\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0: time.sleep(600)\n"
    "    os._exit(0)\n"
    "print('left')\n"
)


def test_processes_that_a_command_leaves_running_end_with_it(tmp_path: Path) -> None:
    (trajectory,) = sandboxed(tmp_path, LEAVES)
    assert printed(trajectory) == ["left"]
    assert agents_alive(tmp_path) == []


@pytest.mark.slow
def test_it_cannot_outlive_its_attempt(tmp_path: Path) -> None:
    (trajectory,) = sandboxed(tmp_path, LEAVES + "time.sleep(600)\n", timeout_s=12)
    assert "took longer than rollout.timeout_s=12" in failure(trajectory)
    assert agents_alive(tmp_path) == []


def agents_alive(folder: Path) -> list[str]:
    """Processes whose command line names the folder."""
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_agent(pid, folder)]


def _is_agent(pid: str, folder: Path) -> bool:
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and alive(int(pid))
    except OSError:
        return False


def test_a_crash_and_a_signal_are_failures_by_their_exit_codes(tmp_path: Path) -> None:
    (trajectory,) = sandboxed(tmp_path, "ask('go'); raise SystemError('broken')")
    assert "exited with 1" in failure(trajectory)
    assert "SystemError: broken" in failure(trajectory)
    (trajectory,) = sandboxed(tmp_path, "ask('go'); os.kill(os.getpid(), 11)")
    assert "exited with 139" in failure(trajectory)


def test_what_the_machine_cannot_give_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(layers, "missing", lambda: {"network": "Operation not permitted"})
    with pytest.raises(
        UserError, match=r"network: Operation not permitted\n.*rollout.agent.isolation=-network"
    ):
        CommandSandbox("full", [], [])
    assert "network" not in CommandSandbox("available", [], []).layers
    assert "commands run without network" in caplog.text


@pytest.mark.slow
def test_without_a_layer_the_others_hold(tmp_path: Path) -> None:
    source = f"ask('go')\ntry: os.listdir({str(Path.home())!r})\nexcept OSError: print('refused')\n"
    # Root's runs are another user's, who may not read the interpreter in root's home unless it is mounted.
    # Everybody else needs the user namespace.
    own = ("-mount,-user", "-user,-cgroup") if os.geteuid() == 0 else ("-mount",)
    for less in ("-network", "-pid", *own):
        assert printed(*sandboxed(tmp_path, source, agent={"isolation": less})) == ["refused"], less


def test_only_a_command_can_be_run_in_it() -> None:
    with pytest.raises(ValidationError, match="the sandbox runs commands, and this is a url"):
        AgentProgram(url="http://x", isolation="full")
    with pytest.raises(UserError, match="there is no '/nowhere'"):
        CommandSandbox("available", [], ["/nowhere"])
