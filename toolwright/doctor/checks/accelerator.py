"""GPUs, their driver, and whether torch is a build for them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from toolwright.doctor.checks import CHECKS
from toolwright.doctor.checks.packages import version_of
from toolwright.doctor.result import CheckResult, ok, problem, warning

ASKED = "name,memory.total,memory.free,driver_version"
SMI_S = 5.0
NVIDIA = "10de"  # as PCI names it


@CHECKS.register("gpu")
def gpu() -> CheckResult:
    if not has_gpu():
        return ok("no NVIDIA GPU: everything runs on the CPU")
    driver = _driver()
    if shutil.which("nvidia-smi") is None:
        if driver is None:
            return problem("an NVIDIA GPU is there, but no driver", "install NVIDIA's driver for this system")
        return ok(f"driver {driver}; nvidia-smi is not installed")
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=SMI_S,
        )
    except subprocess.TimeoutExpired:
        return problem(
            f"nvidia-smi does not answer within {SMI_S:g} s: the driver hangs", "restart the machine"
        )
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        return problem(
            f"nvidia-smi fails: {said}", "install the driver again, in the version of the loaded module"
        )
    return ok("; ".join(" ".join(line.split()) for line in done.stdout.splitlines() if line.strip()))


@CHECKS.register("torch", needs=["torch"])
def torch() -> CheckResult:
    """Checks the version before importing torch: a wrong one need not be imported."""
    known = version_of("torch")
    if known.status != "ok":
        return known
    try:
        import torch as library
    except Exception as error:
        why = " ".join(str(error).split())
        return problem(f"{known.text} cannot be imported: {why}", "pip install --force-reinstall torch")
    build = _build(library.version)
    threads = library.get_num_threads()
    text = f"{known.text}, built for {build}, {threads} thread{'s' * (threads != 1)}"
    if not has_gpu():
        return ok(text)
    if build == "CPU":
        return problem(
            f"{text}, but there is an NVIDIA GPU, which it cannot use",
            "pip uninstall torch; pip install torch --index-url https://download.pytorch.org/whl/cu128",
        )
    if not library.cuda.is_available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1"):
            return warning(
                f"{text}; CUDA_VISIBLE_DEVICES={hidden!r} hides the GPU", "unset CUDA_VISIBLE_DEVICES"
            )
        return problem(
            f"{text}, but the GPU cannot be used with driver {_driver() or 'unknown'}",
            f"install a driver that supports {build}, or a torch built for an older CUDA",
        )
    return ok(f"{text}, {library.cuda.device_count()} GPUs")


@CHECKS.register("nccl", needs=["torch"])
def nccl() -> CheckResult:
    """Ask torch, which brings NCCL along."""
    if not has_gpu():
        return ok("not needed without GPUs: ranks on CPUs speak Gloo")
    import torch as library

    if not library.distributed.is_available() or not library.distributed.is_nccl_available():
        return warning(
            "this torch has no NCCL: a learner over several GPUs will not start", "install torch for CUDA"
        )
    return ok(".".join(map(str, library.cuda.nccl.version())))


def _build(version: object) -> str:
    cuda, hip = getattr(version, "cuda", None), getattr(version, "hip", None)
    return f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU"


@cache
def has_gpu() -> bool:
    """Look for a device file or in PCI's list, so that a GPU without a driver is seen too."""
    if any(re.fullmatch(r"nvidia\d+", name) for name in os.listdir("/dev")):
        return True
    return any(_is_display(device) for device in Path("/sys/bus/pci/devices").glob("*"))


def _is_display(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip().endswith(NVIDIA) and kind.startswith("0x03")


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else None
