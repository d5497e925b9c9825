"""Limits that the system sets for a process: open files, processes, shared memory."""

from __future__ import annotations

import os
import resource

from toolwright.doctor.checks import CHECKS
from toolwright.doctor.result import CheckResult, ok, problem, warning
from toolwright.trainer import control_group

FEW_FILES, TOO_FEW_FILES = 1024, 256
FEW_PROCESSES, TOO_FEW_PROCESSES = 512, 64
SMALL_SHM = 1 << 30


@CHECKS.register("open files")
def open_files() -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return ok("no limit")
    reach = "" if hard == resource.RLIM_INFINITY else f" (the hard limit is {hard:,})"
    text = f"{soft:,} a process{reach}"
    raised = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    remedy = (
        f"ulimit -n {raised}, before the run"
        if raised > soft
        else "raise the hard limit: /etc/security/limits.conf, LimitNOFILE= of systemd, docker run --ulimit "
        "nofile=65536"
    )
    if soft < TOO_FEW_FILES:
        return problem(f"{text}: attempts, tools and Ray take one each, and will run out of them", remedy)
    if soft < FEW_FILES:
        return warning(f"{text}: few for Ray and for many tool calls at once", remedy)
    return ok(text)


@CHECKS.register("processes")
def processes() -> CheckResult:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    own = None if soft == resource.RLIM_INFINITY or os.geteuid() == 0 else soft - _threads_of_user()
    known = [left for left in (own, control_group.processes_left()) if left is not None]
    if not known:
        return ok("no limit")
    left = min(known)
    text = f"{left:,} more processes and threads may be started"
    remedy = "raise ulimit -u, or pids.max of the container (docker run --pids-limit)"
    if left < TOO_FEW_PROCESSES:
        return problem(f"{text}: Ray and the sandbox start more than that", remedy)
    return warning(text, remedy) if left < FEW_PROCESSES else ok(text)


def _threads_of_user() -> int:
    """Count the user's threads: the kernel's limit on processes is one on threads."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:  # ended meanwhile
            continue
    return count


@CHECKS.register("/dev/shm")
def shared_memory() -> CheckResult:
    if not os.path.isdir("/dev/shm"):
        return warning(
            "there is none: Ray keeps objects in /tmp, which is slower", "mount a tmpfs on /dev/shm"
        )
    room = os.statvfs("/dev/shm")
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    text = f"{free / (1 << 30):.1f} of {size / (1 << 30):.1f} GiB free"
    if free < SMALL_SHM:
        return warning(
            f"{text}: little for Ray's object store, which then uses /tmp and is slower",
            "docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm",
        )
    return ok(text)
