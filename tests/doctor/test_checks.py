"""Machines with something wrong: made wrong for real where a test can, and named by the check for it."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ports import free_port
from tests.waiting import wait_until
from toolwright.doctor.checks import accelerator, machine, network, packages, storage
from toolwright.doctor.checks import ray as ray_checks
from toolwright.trainer import control_group

from .commands import checked, doctor

NO_PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "no_proxy"), "")
NO_PROXIES |= {name.upper(): "" for name in NO_PROXIES}


def installed(folder: Path, name: str, version: str, *requires: str) -> str:
    """A folder that comes first on Python's path and says that this version is installed."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (about / "METADATA").write_text(
        "\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n"
    )
    return str(folder)


class TestPackages:
    def test_a_torch_that_is_too_old_is_named_with_what_is_needed(self, tmp_path: Path) -> None:
        found = checked("torch", PYTHONPATH=installed(tmp_path, "torch", "2.1.0"))
        assert (found["status"], found["exit_code"]) == ("problem", 1)
        assert "2.1.0 is not what Toolwright needs: torch>=2.11" in found["text"]
        assert found["remedy"] == "pip install 'torch>=2.11'"

    def test_a_vllm_that_wants_another_torch_is_a_warning(self, tmp_path: Path) -> None:
        found = checked("vllm", PYTHONPATH=installed(tmp_path, "vllm", "0.30.0", "torch==2.3.1"))
        assert (found["status"], found["exit_code"]) == ("warning", 0)
        assert "vllm needs torch==2.3.1, and " in found["text"]

    def test_a_vllm_that_is_too_old_is_a_problem(self, tmp_path: Path) -> None:
        found = checked("vllm", PYTHONPATH=installed(tmp_path, "vllm", "0.6.0"))
        assert (found["status"], found["exit_code"]) == ("problem", 1)
        assert "0.6.0 is not what Toolwright needs: vllm>=0.24" in found["text"]

    def test_versions_that_do_not_go_together_are_named(self, tmp_path: Path) -> None:
        found = checked("compatibility", PYTHONPATH=installed(tmp_path, "transformers", "4.40.0", "numpy<1"))
        assert found["status"] == "problem"
        assert "toolwright needs transformers>=5.16, and 4.40.0 is there" in found["text"]
        assert "transformers needs numpy<1" in found["text"]

    def test_a_package_that_is_missing_is_a_problem(self) -> None:
        found = packages.version_of("no-such-package", like="ray")
        assert found.status == "problem"
        assert found.text == "missing: Toolwright needs no-such-package>=2.50"

    def test_packages_that_pip_has_no_complaint_about_go_together(self) -> None:
        pip = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
        if pip.returncode != 0:
            pytest.skip(f"pip finds fault with what is installed here: {pip.stdout or pip.stderr}")
        assert packages.compatibility().status == "ok"
        assert packages.transformers().status == "ok"


class TestLimits:
    def test_too_few_open_files_are_a_problem(self) -> None:
        hard = min(64, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        found = checked("open files", broken=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard)))
        assert (found["status"], found["exit_code"]) == ("problem", 1)
        assert found["text"].startswith("64 a process (the hard limit is 64)")
        assert "raise the hard limit" in found["remedy"]

    def test_a_soft_limit_can_be_raised(self) -> None:
        found = checked("open files", broken=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 900)))
        assert found["remedy"] == "ulimit -n 900, before the run"

    def test_few_addresses_are_named(self) -> None:
        """`ulimit -v` counts what is reserved, of which Ray and CUDA use the least part."""
        few = 4 << 30
        found = checked("memory", broken=lambda: resource.setrlimit(resource.RLIMIT_AS, (few, few)))
        assert (found["status"], found["exit_code"]) == ("warning", 0)
        assert "a process may reserve 4.0 GiB of addresses" in found["text"]
        assert found["remedy"] == "ulimit -v unlimited, before the run"

    @pytest.mark.parametrize(
        ("files", "cores"),
        [
            ({"cgroup.controllers": "cpu", "cpu.max": "150000 100000"}, 1.5),
            ({"cgroup.controllers": "cpu", "cpu.max": "max 100000"}, None),
            ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
            ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
            ({}, None),
        ],
    )
    def test_the_quota_of_a_control_group(
        self, files: dict[str, str], cores: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written(tmp_path, files)
        monkeypatch.setattr(control_group, "ROOT", tmp_path)
        monkeypatch.setattr(control_group, "own_paths", lambda: {"": "", "cpu": ""})
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # more threads than cores are a warning, too
        assert control_group.cpu_quota() == cores
        assert machine.cores().status == ("ok" if cores is None else "warning")

    def test_the_tightest_of_nested_groups_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used = {"memory.current": str(600 << 20), "memory.stat": f"anon 5\ninactive_file {100 << 20}\n"}
        outer = {"cgroup.controllers": "memory", "memory.max": str(800 << 20), **used}
        inner = {f"job/{name}": text for name, text in {**used, "memory.max": "max"}.items()}
        written(tmp_path, outer | inner)
        monkeypatch.setattr(control_group, "ROOT", tmp_path)
        monkeypatch.setattr(control_group, "own_paths", lambda: {"": "job"})
        assert control_group.memory_left() == (800 << 20, 300 << 20)
        found = machine.memory()
        assert found.status == "problem"
        assert "the control group leaves 0.3 of its 0.8 GiB" in found.text


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


class Room(NamedTuple):
    """What `os.statvfs` tells of a disk."""

    f_frsize: int = 4096
    f_blocks: int = 1 << 20
    f_bavail: int = 1 << 20
    f_files: int = 1 << 20
    f_favail: int = 1 << 20


class TestDisks:
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
    def test_a_full_disk_is_named(self, tmp_path: Path) -> None:
        small = tmp_path / "small"
        small.mkdir()
        mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
        mounted = subprocess.run(mounting, capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
        try:
            found = checked("disk of runs", cwd=small)
        finally:
            subprocess.run(["umount", str(small)], check=True)
        assert (found["status"], found["exit_code"]) == ("problem", 1)
        assert found["text"].startswith("the disk is full: 0.0 of 0.0 GiB free in ")
        assert "run.dir=FOLDER" in found["remedy"]

    def test_a_disk_that_takes_no_more_is_named(self, tmp_path: Path) -> None:
        """A quota is not seen in what is free."""
        limit = 64 << 10
        found = checked(
            "disk of runs",
            cwd=tmp_path,
            broken=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
        assert (found["status"], found["exit_code"]) == ("problem", 1)
        assert "nothing can be written in" in found["text"]
        assert "File too large" in found["text"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk")
    def test_a_disk_that_is_read_only_is_not_called_full(self, tmp_path: Path) -> None:
        sealed = tmp_path / "sealed"
        sealed.mkdir()
        mounting = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(sealed)]
        mounted = subprocess.run(mounting, capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
        try:
            found = checked("disk of runs", cwd=sealed)
        finally:
            subprocess.run(["umount", str(sealed)], check=True)
        assert (found["status"], found["exit_code"]) == ("problem", 1)
        assert found["text"].startswith(f"nothing can be written in {sealed}: Read-only file system")

    def test_a_folder_of_temporary_files_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        found = checked("disk of temporary files", TMPDIR=str(tmp_path / "gone"))
        assert (found["status"], found["exit_code"]) == ("warning", 0)
        assert found["text"].startswith(f"TMPDIR={tmp_path}/gone cannot be written, so ")
        assert found["remedy"] == f"mkdir -p {tmp_path}/gone, or unset TMPDIR"

    @pytest.mark.parametrize(
        ("room", "status", "said"),
        [
            (Room(f_bavail=100), "problem", "the disk is full: 0.0 of 4.0 GiB free in "),
            (Room(f_favail=12), "problem", "the disk is full: 12 more files fit in "),
            (Room(f_bavail=1 << 18), "warning", "1.0 of 4.0 GiB free in "),
            (Room(), "ok", "4.0 of 4.0 GiB free in "),
        ],
    )
    def test_how_much_is_enough(
        self, room: Room, status: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "statvfs", lambda path: room)
        found = storage.room_in(tmp_path, remedy="make room")
        assert (found.status, found.text) == (status, f"{said}{tmp_path}")


# Runs a command that may not make namespaces, as in a container whose filter refuses them.
WITHOUT_NAMESPACES = """
import os, sys
from toolwright.sandbox import kernel, seccomp
kernel.no_new_privileges()
seccomp.Filter(seccomp.for_run).install()
os.execv(sys.executable, [sys.executable, "-m", "toolwright", "doctor", "--only", "sandbox"])
"""


class TestTheSandbox:
    def test_namespaces_that_are_refused_are_named(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_NAMESPACES], capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 1, done.stderr
        assert "the kernel does not provide: user (Operation not permitted), pid (Operation" in done.stdout
        assert "the python tool and code rewards will not start" in done.stdout
        assert "toolwright sandbox serve --isolation available" in done.stdout

    def test_what_is_in_force_is_listed(self) -> None:
        found = checked("sandbox")
        assert found["status"] in ("ok", "problem")
        assert "seccomp" in found["text"]
        assert ("root" if os.geteuid() == 0 else f"user {os.geteuid()}") in found["text"]


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def web_page() -> Iterator[int]:
    """The port of a server that is not Ray's."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(timeout=60)


class TestRay:
    def test_an_address_where_nobody_listens_is_named(self) -> None:
        address = f"127.0.0.1:{free_port()}"
        found = checked("ray cluster", RAY_ADDRESS=address)
        assert (found["status"], found["exit_code"]) == ("problem", 1)
        assert f"no Ray cluster answers at RAY_ADDRESS={address}: Connection refused" in found["text"]
        assert "unset RAY_ADDRESS" in found["remedy"]

    def test_a_head_that_hangs_is_named(self, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", f"ray://127.0.0.1:{silent}")
        assert ray_checks.cluster().text.endswith(": it does not answer")

    def test_a_server_of_another_kind_is_named(self, web_page: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{web_page}")
        assert ray_checks.cluster().text.endswith(": what answers is not Ray")

    @pytest.mark.parametrize(
        ("address", "status"), [("", "ok"), ("local", "ok"), ("somewhere", "problem"), ("auto", "problem")]
    )
    def test_addresses_without_a_cluster(
        self, address: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        assert ray_checks.cluster().status == status

    def test_a_raylet_whose_head_is_gone_is_a_leftover(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        head = f"127.0.0.1:{free_port()}"
        words = [str(tmp_path / "raylet"), "-c", "read forever", f"--gcs-address={head}"]
        process = subprocess.Popen(words, executable="/bin/sh", stdin=subprocess.PIPE)
        try:
            started = Path(f"/proc/{process.pid}/cmdline")
            wait_until(lambda: head.encode() in started.read_bytes(), "its command line is there")
            found = ray_checks.leftovers()
        finally:
            process.kill()
            process.communicate()
        assert found.status == "warning"
        assert f"raylet {process.pid} waits for the head at {head} (Connection refused)" in found.text

    def test_large_folders_of_old_sessions_are_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        monkeypatch.setattr(ray_checks, "LARGE", 10_000)
        monkeypatch.setattr(ray_checks, "_raylets", list)
        assert ray_checks.leftovers().status == "ok"
        written(tmp_path / "ray", {"session_1/logs/worker.out": "x" * 20_000})
        assert "of old sessions in" in ray_checks.leftovers().text


class TestTheNetwork:
    def test_a_proxy_is_shown_without_its_password(self) -> None:
        port = free_port()
        found = checked("proxies", **{**NO_PROXIES, "https_proxy": f"http://me:hunter2@127.0.0.1:{port}"})
        assert found["status"] == "warning"
        assert f"https_proxy is 127.0.0.1:{port}" in found["text"]
        assert "does not answer" in found["text"]
        assert "hunter2" not in str(found)

    def test_a_proxy_for_this_machine_itself_is_a_warning(
        self, silent: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in {
            **NO_PROXIES,
            "HTTP_PROXY": f"127.0.0.1:{silent}",
            "NO_PROXY": "localhost",
        }.items():
            monkeypatch.setenv(name, value)
        found = network.proxies()
        assert found.status == "warning"
        assert "NO_PROXY leaves out 127.0.0.1" in found.text
        monkeypatch.setenv("NO_PROXY", "localhost, 127.0.0.1")
        assert network.proxies().status == "ok"

    def test_loopback_works_here(self) -> None:
        assert network.ports().status == "ok"

    def test_the_hub_offline_with_a_token_that_is_not_shown(self, tmp_path: Path) -> None:
        found = checked("hub", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1", HF_TOKEN="hf_plantedplanted")
        assert found["status"] in ("ok", "warning")  # where there is little room
        if found["status"] == "ok":
            assert f"files in {tmp_path}, a token, HF_HUB_OFFLINE is set" in found["text"]
        assert "planted" not in str(found)

    def test_a_hub_out_of_reach_is_a_warning(self, tmp_path: Path) -> None:
        endpoint = f"http://127.0.0.1:{free_port()}"
        off = {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "", **NO_PROXIES}
        found = checked("hub", HF_HOME=str(tmp_path), HF_ENDPOINT=endpoint, **off)
        assert (found["status"], found["exit_code"]) == ("warning", 0)
        assert "127.0.0.1 is out of reach: Connection refused" in found["text"]

    def test_a_home_that_is_a_file_is_a_problem(self, tmp_path: Path) -> None:
        (tmp_path / "taken").touch()
        found = checked("hub", HF_HOME=str(tmp_path / "taken"))
        assert found["status"] == "problem"
        assert "is a file" in found["text"]


class TestTheMachine:
    def test_more_threads_than_cores_are_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "100000")
        monkeypatch.setattr(control_group, "cpu_quota", lambda: None)
        assert "OMP_NUM_THREADS=100000 asks for more threads" in machine.cores().text

    def test_a_clock_in_the_past_is_a_problem(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert machine.clock().status == "ok"
        monkeypatch.setattr(machine, "RELEASED", 1 << 40)
        assert "certificates" in machine.clock().text

    def test_a_terminal_that_is_not_utf8_is_a_warning(self) -> None:
        found = checked("terminal", PYTHONIOENCODING="latin-1")
        assert (found["status"], found["exit_code"]) == ("warning", 0)
        assert "output in" in found["text"]


class TestAGpu:
    @pytest.fixture(autouse=True)
    def there_is_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(accelerator, "has_gpu", lambda: True)

    def test_a_torch_for_the_cpu_beside_it_is_a_problem(self) -> None:
        torch = pytest.importorskip("torch")
        if torch.version.cuda or torch.version.hip:
            pytest.skip("this torch is built for GPUs")
        found = accelerator.torch()
        assert found.status == "problem"
        assert "there is an NVIDIA GPU, which it cannot use" in found.text

    def test_one_without_a_driver_is_a_problem(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(accelerator, "_driver", lambda: None)
        monkeypatch.setenv("PATH", "")
        assert accelerator.gpu().text == "an NVIDIA GPU is there, but no driver"

    @pytest.mark.parametrize(
        ("script", "status", "said"),
        [
            ("echo 'H200, 143771 MiB, 143000 MiB, 570.1'", "ok", "H200, 143771 MiB, 143000 MiB, 570.1"),
            (
                "echo 'Driver/library version mismatch'; exit 18",
                "problem",
                "nvidia-smi fails: Driver/library",
            ),
            ("sleep 60", "problem", "the driver hangs"),
        ],
    )
    def test_what_its_driver_says(
        self, script: str, status: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script.replace('sleep', 'exec sleep')}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(accelerator, "SMI_S", 0.2 if "sleep" in script else 60)
        found = accelerator.gpu()
        assert found.status == status
        assert said in found.text


def test_every_check_of_a_machine_in_one_command() -> None:
    done = doctor()
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    for name in ("cores", "open files", "sandbox", "torch", "exactness", "ray cluster", "hub"):
        assert f" {name} " in done.stdout
    assert "engine and learner compute the same numbers" in done.stdout
