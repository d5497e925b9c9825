"""The layers of isolation: their names, which of them the kernel provides, and which the user chose."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable
from functools import partial

from toolwright.failures import UserError, nearest
from toolwright.sandbox import cgroup, kernel, landlock, seccomp

NAMESPACES = {
    "user": kernel.CLONE_NEWUSER,
    "pid": kernel.CLONE_NEWPID,
    "mount": kernel.CLONE_NEWNS,
    "network": kernel.CLONE_NEWNET,
    "ipc": kernel.CLONE_NEWIPC,
    "uts": kernel.CLONE_NEWUTS,
}
# What `full` means. Control groups are added if available, and never required.
REQUIRED = (*NAMESPACES, "landlock", "seccomp", "limits")
CGROUP = "cgroup"
KNOWN = (*REQUIRED, CGROUP)


def missing() -> dict[str, str]:
    """The layers that the kernel does not provide to this user, each with the kernel's error."""
    attempts: dict[str, Callable[[], None]] = {n: partial(_unshare, flag) for n, flag in NAMESPACES.items()}
    attempts |= {"mount": _mount, "landlock": _landlock, "seccomp": _seccomp}
    return {name: why for name, attempt in attempts.items() if (why := _refusal(attempt))}


def choose(isolation: str, *, option: str = "--isolation") -> frozenset[str]:
    """The layers named by an option: `full`, `available`, `none`, or names joined by commas.

    A name with a minus takes that layer away from `full`: `-network` is everything else.
    """
    words = [word.strip() for word in isolation.split(",") if word.strip()]
    if words == ["none"]:
        return frozenset()
    if words == ["available"]:
        return _with_groups(frozenset(REQUIRED) - missing().keys())
    chosen = set(KNOWN) if all(word.startswith("-") or word == "full" for word in words) else set()
    for word in words:
        name = word.removeprefix("-")
        if name == "full":
            continue
        if name not in KNOWN:
            raise UserError(f"no isolation layer is called {name!r}; {nearest(name, KNOWN)}")
        if word.startswith("-"):
            chosen.discard(name)
        else:
            chosen.add(name)
    _refuse_absent(chosen, option)
    return _with_groups(chosen) if CGROUP in chosen else frozenset(chosen)


def _with_groups(chosen: Iterable[str]) -> frozenset[str]:
    """Adds control groups if they are available."""
    rest = frozenset(chosen) - {CGROUP}
    return rest | {CGROUP} if cgroup.available() else rest


def _refuse_absent(chosen: Iterable[str], option: str) -> None:
    others = sorted(set(chosen) & NAMESPACES.keys() - {"user"})
    if others and "user" not in set(chosen) and os.geteuid() != 0:
        raise UserError(
            f"an ordinary user gets the layers {', '.join(others)} only inside a user namespace: "
            f"keep `user`, or take these away as well"
        )
    absent = {name: why for name, why in missing().items() if name in set(chosen)}
    if not absent:
        return
    lines = "\n".join(f"  {name}: {why}" for name, why in absent.items())
    rest = ",".join(f"-{name}" for name in absent)
    raise UserError(
        f"the kernel does not provide these layers of isolation to this user:\n{lines}\n"
        f"Code would run with less isolation. To accept that, use "
        f"{option}={rest} (or {option}=available)."
    )


def _unshare(flags: int) -> None:
    """Unshares inside a user namespace, as an ordinary user must; otherwise as root."""
    try:
        kernel.unshare(flags | kernel.CLONE_NEWUSER)
    except OSError:
        if os.geteuid() != 0 or flags & kernel.CLONE_NEWUSER:
            raise
        kernel.unshare(flags)


def _landlock() -> None:
    if landlock.abi() < 1:
        raise OSError(38, "the kernel was built or started without Landlock")


def _seccomp() -> None:
    kernel.no_new_privileges()
    seccomp.Filter(seccomp.for_zygote).install()
    seccomp.Filter(seccomp.for_run).install()


def _mount() -> None:
    _unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV)
    kernel.make_read_only("/tmp")


def _refusal(attempt: Callable[[], None]) -> str:
    """The error of an attempt, made in a process of its own; empty if it succeeds."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode())
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-500:])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        answer = answers.read().decode(errors="replace")
    os.waitpid(child, 0)
    return answer
