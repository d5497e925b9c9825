"""The system-call filters, walked as the kernel walks them: for both machines, whichever this one is."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from toolwright.sandbox import kernel, seccomp
from toolwright.sandbox.layers import NAMESPACES

ALLOW, KILL, EPERM, ENOSYS, EAFNOSUPPORT = 0x7FFF0000, 0x80000000, 0x50001, 0x50026, 0x50061
# Other calls that both filters look at or leave alone, by machine.
OTHERS = {
    "x86_64": {"read": 0, "write": 1, "execve": 59, "clone": 56, "socket": 41, "ioctl": 16,
               "fcntl": 72, "setsockopt": 54},
    "aarch64": {"read": 63, "write": 64, "execve": 221, "clone": 220, "socket": 198, "ioctl": 29,
                "fcntl": 25, "setsockopt": 208},
}  # fmt: skip
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),  # arm64 has the generic table
}
MACHINES = sorted(seccomp.ARCHITECTURES)


def verdict(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """What the filter returns for a call: loads, jumps and returns are all that it is made of."""
    data = struct.pack("<IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("=HBBI", program))
    place, held = 0, 0
    for _ in range(len(steps)):  # the kernel takes no loops either
        code, when_true, when_false, value = steps[place]
        place += 1
        if code == 0x20:
            held = struct.unpack_from("<I", data, value)[0]
        elif code == 0x06:
            return value
        else:
            holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            place += when_true if holds else when_false
    raise AssertionError("the filter did not return")


def both(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """The verdict of the two filters together: the stricter one counts."""
    architecture = seccomp.ARCHITECTURES[machine]
    asked = [
        verdict(write(architecture), architecture.audit if audit is None else audit, number, *arguments)
        for write in (seccomp.for_zygote, seccomp.for_run)
    ]
    return next((answer for answer in asked if answer != ALLOW), ALLOW)


@pytest.mark.parametrize("machine", MACHINES)
def test_refused_calls_are_refused_and_their_neighbours_are_not(machine: str) -> None:
    refused = {*seccomp.ARCHITECTURES[machine].refused.values(), *seccomp._REFUSED_EVERYWHERE}
    absent = {*seccomp.ARCHITECTURES[machine].absent.values()}
    looked_at = {OTHERS[machine][name] for name in ("clone", "socket", "ioctl", "fcntl", "setsockopt")}
    for number in set(range(seccomp._NEWEST_REVIEWED + 1)) - looked_at - {seccomp._CLONE3}:
        expected = EPERM if number in refused else ENOSYS if number in absent else ALLOW
        assert both(machine, number) == expected, number


@pytest.mark.parametrize("machine", MACHINES)
def test_newer_calls_and_other_architectures_are_refused(machine: str) -> None:
    other = next(name for name in MACHINES if name != machine)
    assert both(machine, seccomp._NEWEST_REVIEWED + 1) == ENOSYS
    assert both(machine, 0x40000000 | OTHERS[machine]["read"]) == ENOSYS  # x32's table
    assert both(machine, 0xFFFFFFFF) == ENOSYS
    foreign = seccomp.ARCHITECTURES[other].audit
    assert both(machine, OTHERS[machine]["read"], audit=foreign) == KILL
    assert both(machine, OTHERS[machine]["read"], audit=0x40000003) == KILL  # i386


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_checks_arguments(machine: str) -> None:
    numbers = OTHERS[machine]
    assert both(machine, seccomp._CLONE3) == ENOSYS
    assert both(machine, numbers["clone"], 17) == ALLOW
    for name, flag in NAMESPACES.items():
        assert both(machine, numbers["clone"], 17 | flag) == EPERM, name
    for family in range(64):
        expected = ALLOW if family in (1, 2, 10) else EAFNOSUPPORT
        assert both(machine, numbers["socket"], family) == expected, family
    assert both(machine, numbers["ioctl"], 0, 0x5401) == ALLOW
    assert both(machine, numbers["ioctl"], 0, 0x5412) == EPERM
    for command in range(1020, 1040):
        expected = EPERM if command in (1024, 1026, 1031) else ALLOW
        assert both(machine, numbers["fcntl"], 0, command) == expected, command
    for option in range(64):
        done_without = option in (7, 8, 32, 33)  # it seems to have been done
        assert both(machine, numbers["setsockopt"], 0, 1, option) == (0x50000 if done_without else ALLOW)
        assert both(machine, numbers["setsockopt"], 0, 6, option) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_of_the_zygote_allows_what_it_needs(machine: str) -> None:
    architecture = seccomp.ARCHITECTURES[machine]
    for name in seccomp._NEEDED_BY_ZYGOTE:
        number = architecture.refused[name]
        assert verdict(seccomp.for_zygote(architecture), architecture.audit, number) == ALLOW
        assert verdict(seccomp.for_run(architecture), architecture.audit, number) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernels_own_table(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"{HEADERS[machine]} is not installed")
    table = dict(re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text(), re.M))
    assert len(table) > 200
    ours = {
        **seccomp.ARCHITECTURES[machine].refused,
        **seccomp.ARCHITECTURES[machine].absent,
        **kernel.NUMBERS_BY_MACHINE[machine],
        **OTHERS[machine],
    }
    wrong = {name: number for name, number in ours.items() if int(table.get(name, number)) != number}
    assert not wrong
    assert len(table.keys() & ours.keys()) > 50
