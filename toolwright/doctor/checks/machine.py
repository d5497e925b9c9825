"""The machine itself: system, Python, cores, memory, clock, terminal."""

from __future__ import annotations

import locale
import os
import platform
import resource
import struct
import sys
import tempfile
import time
from pathlib import Path

from toolwright.doctor.checks import CHECKS
from toolwright.doctor.result import CheckResult, ok, problem, warning
from toolwright.trainer import control_group

GIB = 1 << 30
LITTLE, TOO_LITTLE = 2 * GIB, GIB // 2  # of free memory: the demo takes about 1 GiB
FEW_ADDRESSES = 64 * GIB
SKEW_S = 2.0  # between this machine's clock and a disk's
RELEASED = 1_760_000_000  # seconds since 1970: no machine that runs this is older


@CHECKS.register("system")
def system() -> CheckResult:
    text = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if sys.platform != "linux":
        return warning(
            f"{text}: tools that run code need Linux", "run in a Linux container or virtual machine"
        )
    return ok(text)


@CHECKS.register("python")
def python() -> CheckResult:
    text = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if struct.calcsize("P") < 8:
        return problem(f"{text} is a 32-bit build, for which there is no torch", "install a 64-bit Python")
    return ok(text)


@CHECKS.register("cores")
def cores() -> CheckResult:
    present = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    quota, threads = control_group.cpu_quota(), os.environ.get("OMP_NUM_THREADS", "")
    text = f"{usable} of {present} usable" if usable < present else f"{present}"
    if quota is not None and quota < usable:
        return warning(
            f"{text}, and the control group gives time for {quota:g} of them; more threads slow each other "
            "down",
            f"set run.threads={max(1, int(quota))}, or give the container more cores",
        )
    if threads.isdigit() and int(threads) > usable:
        return warning(
            f"{text}, but OMP_NUM_THREADS={threads} asks for more threads", f"export OMP_NUM_THREADS={usable}"
        )
    return ok(text + (f", OMP_NUM_THREADS={threads}" if threads else ""))


@CHECKS.register("memory")
def memory() -> CheckResult:
    sizes = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, size = line.partition(":")
        sizes[name] = int(size.split()[0]) * 1024
    total, left = sizes["MemTotal"], sizes.get("MemAvailable", sizes["MemFree"])
    text = f"{left / GIB:.1f} of {total / GIB:.1f} GiB free"
    group = control_group.memory_left()
    if group is not None and group[1] < left:
        left = group[1]
        text += f"; the control group leaves {left / GIB:.1f} of its {group[0] / GIB:.1f} GiB"
    remedy = (
        "end other programs, or raise the container's limit; engine.slots, model.context and model=tiny "
        "need less"
    )
    if left < TOO_LITTLE:
        return problem(text, remedy)
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY and addresses < FEW_ADDRESSES:
        return warning(
            f"{text}, but a process may reserve {addresses / GIB:.1f} GiB of addresses: Ray and CUDA reserve "
            "far more than they use",
            "ulimit -v unlimited, before the run",
        )
    return warning(text, remedy) if left < LITTLE else ok(text)


@CHECKS.register("clock")
def clock() -> CheckResult:
    """Compares the clocks that timings, file times and certificates depend on."""
    wall, steady = time.time(), time.monotonic()
    with tempfile.TemporaryFile() as file:
        written = os.fstat(file.fileno()).st_mtime
    away = written - time.time()
    drift = (time.time() - wall) - (time.monotonic() - steady)
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    set_it = "set the machine's clock: timedatectl set-ntp true, or ask who runs it"
    if wall < RELEASED:
        return problem(
            f"{now} is in the past: certificates of the hub and of providers will be refused", set_it
        )
    if abs(away) > SKEW_S:
        return warning(f"{now}, and files are dated {away:+.0f} s from it ({tempfile.gettempdir()})", set_it)
    if abs(drift) > SKEW_S:
        return warning(f"{now}, and it jumped by {drift:+.1f} s during the check", set_it)
    return ok(f"{now}, the same as the disk's, and steady")


@CHECKS.register("terminal")
def terminal() -> CheckResult:
    written = (getattr(sys.stdout, "encoding", None) or "none").lower().replace("-", "")
    read = locale.getpreferredencoding(False).lower().replace("-", "")
    text = f"TERM={os.environ.get('TERM', '')}, output in {written}, files in {read}"
    if {written, read} - {"utf8"}:
        return warning(
            f"{text}: tables and attempts hold other characters", "export PYTHONUTF8=1 LANG=C.UTF-8"
        )
    return ok(text)
