"""The system-call filter of every run.

It refuses the calls that it names with EPERM, or with ENOSYS if programs can do without them. Calls
that are newer than the newest one reviewed here are refused with ENOSYS too, so that a new kernel does not
silently widen what code can do.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from toolwright.sandbox import kernel

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data, little-endian

_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone itself takes
_TERMINAL_INJECTION = 0x5412  # TIOCSTI
# unix, inet, inet6: the network namespace answers for those; no namespace covers vsock.
_FAMILIES = (1, 2, 10)
_NEWEST_REVIEWED = 462  # mseal
# Leases and notices on files that others use, too, and pipes larger than usual, which are counted by user.
_FCNTL_REFUSED = (1024, 1026, 1031)  # F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ
# Larger socket buffers: the kernel may cut such requests to its own limits; here it keeps the default.
_SOL_SOCKET, _BUFFER_SIZES = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF and their forced forms

# Same number everywhere: io_uring, the new mount calls, pidfd_getfd, process_madvise, mount_setattr,
# quotactl_fd, memfd_secret, process_mrelease, statmount, listmount.
_REFUSED_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442, 443, 447, 448, 457, 458)


@dataclass(frozen=True)
class Architecture:
    """The numbers that differ between machines: the audit number, calls whose arguments are checked, calls
    refused."""

    audit: int
    clone: int
    socket: int
    ioctl: int
    fcntl: int
    setsockopt: int
    # Resources counted for the machine or a user, or visible through files that runs share.
    absent: dict[str, int]
    refused: dict[str, int] = field(repr=False)


_X86_64 = Architecture(
    audit=0xC000003E,
    clone=56,
    socket=41,
    ioctl=16,
    fcntl=72,
    setsockopt=54,
    absent={"io_setup": 206, "inotify_init": 253, "inotify_init1": 294, "flock": 73},
    refused={
        "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
        "ptrace": 101, "syslog": 103, "uselib": 134, "personality": 135, "ustat": 136, "sysfs": 139,
        "vhangup": 153, "modify_ldt": 154, "pivot_root": 155, "_sysctl": 156, "adjtimex": 159, "chroot": 161,
        "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
        "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
        "create_module": 174, "init_module": 175, "delete_module": 176, "get_kernel_syms": 177,
        "query_module": 178, "quotactl": 179, "nfsservctl": 180, "lookup_dcookie": 212, "clock_settime": 227,
        "mbind": 237, "set_mempolicy": 238, "kexec_load": 246, "add_key": 248, "request_key": 249,
        "keyctl": 250, "migrate_pages": 256, "unshare": 272, "move_pages": 279, "perf_event_open": 298,
        "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305,
        "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
        "seccomp": 317, "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    },
)  # fmt: skip

_AARCH64 = Architecture(
    audit=0xC00000B7,
    clone=220,
    socket=198,
    ioctl=29,
    fcntl=25,
    setsockopt=208,
    absent={"io_setup": 0, "inotify_init1": 26, "flock": 32},
    refused={
        "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180,
        "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51,
        "vhangup": 58, "quotactl": 60, "acct": 89, "personality": 92, "unshare": 97, "kexec_load": 104,
        "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117,
        "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171,
        "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "mbind": 235,
        "set_mempolicy": 237, "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241,
        "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266,
        "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273,
        "seccomp": 277, "memfd_create": 279, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
    },
)  # fmt: skip

ARCHITECTURES = {"x86_64": _X86_64, "aarch64": _AARCH64}
_CLONE3 = 435


def _step(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, value)


def _refuse(error: int) -> bytes:
    return _step(_RETURN, 0x00050000 | error)


def _search(errors: dict[int, int]) -> list[bytes]:
    """A binary search over the refused numbers: the kernel walks the filter for every call at install."""
    numbers = sorted(errors)
    if len(numbers) == 1:
        return [_step(_EQUAL, numbers[0], 0, 1), _refuse(errors[numbers[0]]), _step(_RETURN, _ALLOW)]
    middle = numbers[len(numbers) // 2]
    left = _search({number: error for number, error in errors.items() if number < middle})
    right = _search({number: error for number, error in errors.items() if number >= middle})
    return [_step(_AT_LEAST, middle, len(left), 0), *left, *right]


def _when(number: int, steps: list[bytes]) -> list[bytes]:
    """Steps for one call only. The call is allowed if they do not refuse it."""
    return [_step(_EQUAL, number, 0, len(steps) + 1), *steps, _step(_RETURN, _ALLOW)]


def _refuse_values(argument: int, values: tuple[int, ...], error: int) -> list[bytes]:
    """Refuses the call if an argument has one of these values."""
    equal = [_step(_EQUAL, value, len(values) - 1 - at, 0) for at, value in enumerate(values)]
    equal[-1] = _step(_EQUAL, values[-1], 0, 1)
    return [_step(_LOAD, _ARGUMENTS + 8 * argument), *equal, _refuse(error)]


# The zygote needs these to start a run. A second, small filter refuses them to the run.
_NEEDED_BY_ZYGOTE = ("mount", "unshare", "setns", "umount2", "pivot_root")


def for_run(architecture: Architecture) -> bytes:
    """The second filter, which every child installs. The kernel applies both."""
    errors = {architecture.refused[name]: _EPERM for name in _NEEDED_BY_ZYGOTE}
    return b"".join([_step(_LOAD, _NUMBER), *_search(errors)])


def for_zygote(architecture: Architecture) -> bytes:
    """The first filter, which every child inherits: calls that neither a zygote nor a run needs."""
    refused = {number for name, number in architecture.refused.items() if name not in _NEEDED_BY_ZYGOTE}
    errors = dict.fromkeys(refused | {*_REFUSED_EVERYWHERE}, _EPERM)
    errors |= dict.fromkeys(architecture.absent.values(), _ENOSYS)
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture.audit, 1, 0),
        _step(_RETURN, _KILL),  # a call made through another architecture's table would slip past the numbers
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _NEWEST_REVIEWED + 1, 0, 1),
        _refuse(_ENOSYS),
        # glibc falls back from clone3, whose flags a filter cannot see, to clone, whose flags it can.
        _step(_EQUAL, _CLONE3, 0, 1),
        _refuse(_ENOSYS),
        *_when(
            architecture.clone,
            [_step(_LOAD, _ARGUMENTS), _step(_ANY_BIT, _NAMESPACES, 0, 1), _refuse(_EPERM)],
        ),
        *_when(
            architecture.socket,
            [
                _step(_LOAD, _ARGUMENTS),
                *(_step(_EQUAL, family, len(_FAMILIES) - at, 0) for at, family in enumerate(_FAMILIES)),
                _refuse(_EAFNOSUPPORT),
            ],
        ),
        *_when(architecture.ioctl, _refuse_values(1, (_TERMINAL_INJECTION,), _EPERM)),
        *_when(architecture.fcntl, _refuse_values(1, _FCNTL_REFUSED, _EPERM)),
        *_when(
            architecture.setsockopt,
            [
                _step(_LOAD, _ARGUMENTS + 8),
                _step(_EQUAL, _SOL_SOCKET, 0, 2 + len(_BUFFER_SIZES)),
                *_refuse_values(2, _BUFFER_SIZES, 0),
            ],
        ),
        *_search(errors),
    ]
    return b"".join(steps)


class Filter:
    """A filter that is built once and installed by every child."""

    def __init__(self, write: Callable[[Architecture], bytes]) -> None:
        if kernel.MACHINE not in ARCHITECTURES:
            raise OSError(_ENOSYS, f"no system-call table for {kernel.MACHINE}")
        self._code = ctypes.create_string_buffer(write(ARCHITECTURES[kernel.MACHINE]))
        length = (len(self._code) - 1) // 8
        self._header = ctypes.create_string_buffer(
            struct.pack("=HxxxxxxQ", length, ctypes.addressof(self._code))
        )

        self.address = ctypes.addressof(self._header)

    def install(self) -> None:
        kernel.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, self.address)
