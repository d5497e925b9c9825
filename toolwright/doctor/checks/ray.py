"""Ray's clusters: one that a variable names, and what is left of others that died."""

from __future__ import annotations

import os
from pathlib import Path

from toolwright.doctor import probe
from toolwright.doctor.checks import CHECKS
from toolwright.doctor.result import CheckResult, ok, problem, warning

CURRENT = "ray_current_cluster"  # in Ray's folder: the address that `auto` stands for
LARGE = 5 << 30  # bytes of folders of sessions
MOST_FILES = 20_000  # looked at


@CHECKS.register("ray cluster", needs=["network"])
def cluster() -> CheckResult:
    """Asks the address that a run would join: RAY_ADDRESS, or what Ray wrote down."""
    stated = os.environ.get("RAY_ADDRESS", "")
    if not stated or stated == "local":
        return ok("none is named: runtime=ray starts one on this machine")
    address, source = stated, f"RAY_ADDRESS={stated}"
    if stated == "auto":
        try:
            address = (folder() / CURRENT).read_text().strip()
        except OSError:
            return problem(
                f"{source}, and no cluster was started here", "ray start --head, or unset RAY_ADDRESS"
            )
        source += f" ({address})"
    host, _, port = (
        address.partition("://")[2].rpartition(":") if "://" in address else address.rpartition(":")
    )
    if not host or not port.isdigit():
        return problem(f"{source} is not host:port", "export RAY_ADDRESS=host:port, auto, or unset it")
    if why := probe.grpc_refusal(host.strip("[]"), int(port)):
        return problem(
            f"no Ray cluster answers at {source}: {why}",
            "start it (ray start --head), name one that runs, or unset RAY_ADDRESS: runtime=ray then starts "
            "its own",
        )
    return ok(f"{source} answers")


@CHECKS.register("ray leftovers", needs=["network"])
def leftovers() -> CheckResult:
    """Looks for Ray's processes whose head is gone, and for large folders."""
    orphans = []
    for pid, gcs in _raylets():
        host, _, port = gcs.rpartition(":")
        if port.isdigit() and (why := probe.grpc_refusal(host, int(port))):
            orphans.append(f"raylet {pid} waits for the head at {gcs} ({why})")
    if orphans:
        return warning("; ".join(orphans[:3]), "ray stop --force ends Ray's processes on this machine")
    size, whole = _size(folder())
    if size > LARGE:
        more = "" if whole else "more than "
        return warning(
            f"{more}{size / (1 << 30):.0f} GiB of old sessions in {folder()}",
            f"remove {folder()} while no Ray runs",
        )
    return ok("none")


def folder() -> Path:
    return Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"


def _raylets() -> list[tuple[int, str]]:
    """(process, address of its head) of each raylet here."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0].endswith("/raylet"):
            found += [(int(pid), w.partition("=")[2]) for w in words if w.startswith("--gcs-address=")]
    return found


def _size(place: Path) -> tuple[int, bool]:
    """Bytes of the files below, and whether all of them were counted."""
    total = count = 0
    for above, _, names in os.walk(place):
        for name in names:
            count += 1
            if count > MOST_FILES:
                return total, False
            try:
                total += os.lstat(os.path.join(above, name)).st_blocks * 512
            except OSError:
                continue
    return total, True
