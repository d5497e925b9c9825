"""A check of the layers that isolate generated code, on this kernel and for this user."""

from __future__ import annotations

import os

from toolwright.doctor.checks import CHECKS
from toolwright.doctor.result import CheckResult, ok, problem

NAMESPACES_OFF = {
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=15000"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
}


@CHECKS.register("sandbox")
def sandbox() -> CheckResult:
    """Asks the kernel for each layer, in a process of its own, as the sandbox itself does."""
    from toolwright.sandbox import cgroup, landlock, layers

    missing = layers.missing()
    user = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    there = [name for name in layers.REQUIRED if name not in missing]
    groups = "limits of memory by control groups" if cgroup.available() else "no control groups of its own"
    version = f", Landlock version {landlock.abi()}" if "landlock" in there else ""
    if not missing:
        return ok(f"in force for {user}: {', '.join(there)}{version}; {groups}")
    # The kernel's own words, without the call that they answer.
    said = {name: why.strip().splitlines()[-1].rpartition("): ")[2] for name, why in missing.items()}
    refused = ", ".join(f"{name} ({why})" for name, why in said.items())
    text = f"for {user} the kernel does not provide: {refused}"
    return problem(
        f"{text}; the python tool and code rewards will not start",
        f"{_remedy(missing)}; or accept less isolation: `toolwright sandbox serve --isolation available`, "
        "and tools.python.url=http://127.0.0.1:8010",
    )


def _remedy(missing: dict[str, str]) -> str:
    """Suggest how to turn on the layers that are missing."""
    if "user" in missing or "pid" in missing:
        for path, (off, command) in NAMESPACES_OFF.items():
            try:
                with open(path) as file:
                    if file.read().strip() == off:
                        return command
            except OSError:
                continue
        return "allow user namespaces; in a container: docker run --security-opt seccomp=unconfined"
    if "landlock" in missing:
        return "use a kernel of 5.13 or newer with lsm=landlock among its boot options"
    return "in a container: docker run --security-opt seccomp=unconfined"
