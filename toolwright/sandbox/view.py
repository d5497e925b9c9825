"""The files that a run sees: a root with read-only parts of this machine and a private place to write."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from toolwright.sandbox import kernel

# The private file system of a run is mounted on RUN. Landlock's rule names its parent: a rule on a directory
# also covers what is mounted below it, so one rule set serves every run.
PRIVATE = "/sandbox"
RUN = "/sandbox/run"
WORK = "/sandbox/run/work"
_PRIVATE_LINKS = {"/tmp": f"{RUN}/tmp", "/dev/shm": f"{RUN}/shm"}
FOLDERS_OF_A_RUN = ("work", "tmp", "shm")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LIBRARIES = ("/lib", "/lib64", "/lib32", "/libx32")


@dataclass(frozen=True)
class View:
    """Paths that a run sees read-only, at the same place as on this machine."""

    readable: tuple[str, ...]

    def real(self) -> list[str]:
        """The real paths, without those that do not exist or lie inside another."""
        kept: list[str] = []
        for path in sorted({os.path.realpath(path) for path in self.readable if os.path.exists(path)}):
            if not any(path.startswith(f"{parent}/") for parent in kept):
                kept.append(path)
        return kept


def package_folders() -> list[str]:
    """The folders on `sys.path` that hold installed packages.

    Not all of them lie in the interpreter's prefix: `pip install --user` has a folder in the home, and one
    virtual environment may stand on another. Other entries of `sys.path` hold the user's own code.
    """
    return [path for path in sys.path if holds_packages(path) and os.path.isdir(path)]


def holds_packages(path: str) -> bool:
    return os.path.basename(path) in ("site-packages", "dist-packages")


def of_python() -> View:
    """The interpreter, its packages and the shared libraries they load; nothing else."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= set(package_folders())
    executable = Path(sys.executable)
    paths |= {str(executable), str(executable.resolve())}
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        if prefix not in ("/", "/usr", "/usr/local"):
            paths.add(prefix)
    return View((*paths, *_shared_libraries(), "/usr/share/zoneinfo"))


def of_tools(executables: list[str]) -> View:
    """The operating system's programs as well, for languages that are not Python."""
    homes = [str(Path(path).resolve().parent.parent) for path in executables]
    outside = [home for home in homes if not home.startswith("/usr") and home != "/"]
    return View(("/usr", "/bin", *_LIBRARIES, "/etc/alternatives", "/etc/ld.so.cache", *outside))


def _shared_libraries() -> list[str]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = ["/lib64", "/usr/lib64", "/etc/ld.so.cache"]
    if multiarch and os.path.isdir(f"/usr/lib/{multiarch}"):
        folders += [f"/lib/{multiarch}", f"/usr/lib/{multiarch}"]
    else:
        folders += ["/lib", "/usr/lib"]
    return folders


class Root:
    """Builds a new root.

    The sources are opened first: the user that builds the root may have no access to their folders, and the
    new root may cover these folders.
    """

    def __init__(self, view: View) -> None:
        self.visible = view.real()
        self._folders = {path for path in self.visible if os.path.isdir(path)}
        self._links = {link: target for path in view.readable for link, target in _links_in(path)}
        here = [*self.visible, *(device for device in DEVICES if os.path.exists(device))]
        self._sources = {path: os.open(path, os.O_PATH) for path in here}
        self._descriptors = os.open("/proc/self/fd", os.O_PATH)

    def enter(self) -> None:
        """Makes it the root of this process, which has a mount namespace of its own."""
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        root = next(path for path in ("/tmp", "/mnt", "/run", "/var") if os.path.isdir(path))
        kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755,size=1m")
        os.makedirs(root + RUN)
        for path in self.visible:
            self._bind(path, root, folder=path in self._folders)
            kernel.make_read_only(root + path)
        for device in DEVICES:
            if device in self._sources:
                self._bind(device, root, folder=False)
        for link, target in {**self._links, **_PRIVATE_LINKS}.items():
            if not os.path.lexists(root + link):
                os.makedirs(os.path.dirname(root + link), exist_ok=True)
                os.symlink(target, root + link)
        os.chdir(root)
        kernel.pivot_root(".", ".")
        kernel.unmount(".")
        os.chdir("/")
        read_only = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
        kernel.mount(None, "/", None, read_only | kernel.MS_NOSUID | kernel.MS_NODEV)

    @property
    def trees(self) -> list[int]:
        """Descriptors of the visible paths; a file is the same wherever it is mounted."""
        return [self._sources[path] for path in self.visible]

    def close(self) -> None:
        for descriptor in (*self._sources.values(), self._descriptors):
            os.close(descriptor)

    def _bind(self, path: str, root: str, *, folder: bool) -> None:
        target = root + path
        os.makedirs(target if folder else os.path.dirname(target), exist_ok=True)
        if not folder:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        # The old /proc is reached through a descriptor, because the new root may already cover its path.
        os.fchdir(self._descriptors)
        kernel.mount(str(self._sources[path]), target, None, kernel.MS_BIND | kernel.MS_REC)


def _links_in(path: str) -> list[tuple[str, str]]:
    """The symbolic links on the way to a path, such as `/lib` on most machines, or the `python` of a venv."""
    parts = Path(path).parts[1:]
    for index in range(len(parts)):
        here = "/" + "/".join(parts[: index + 1])
        if os.path.islink(here):
            target = os.readlink(here)
            beyond = os.path.join(os.path.dirname(here), target, *parts[index + 1 :])
            return [(here, target), *_links_in(os.path.normpath(beyond))]
    return []
