"""Seccomp filters: programs that allow or refuse system calls by number and arguments.

Sources: seccomp(2), linux/filter.h, linux/seccomp.h, linux/audit.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from dataclasses import dataclass

from ugpu.hcq.errors import HostError

# BPF_LD | BPF_W | BPF_ABS; BPF_JMP | BPF_K with BPF_JEQ, BPF_JSET, BPF_JGE; BPF_RET | BPF_K
LOAD, EQUAL, ANY_BIT, AT_LEAST, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
NUMBER, MACHINE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
ALLOWED, FAILS = 0x7FFF_0000, 0x0005_0000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
_FILTER, _ALL_THREADS = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS


@dataclass(frozen=True)
class Machine:
    """column: of tables of calls. audit: AUDIT_ARCH_*. seccomp: the number of that call. foreign:
    the least number of another interface of the same machine (x32), which is refused."""

    column: int
    audit: int
    seccomp: int
    foreign: int


_MACHINES = {
    "x86_64": Machine(0, 0xC000_003E, 317, 0x4000_0000),
    "aarch64": Machine(1, 0xC000_00B7, 277, 0x4000_0000),
}


def this_machine() -> Machine:
    """Return the machine; HostError if filters are not written for it."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise HostError(f"work of clients cannot be confined on {platform.machine()}")
    return machine


def step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return a struct sock_filter."""
    return struct.pack("HBBI", code, if_true, if_false, operand)


def argument(number: int) -> bytes:
    """Return the step that loads the low half of an argument."""
    return step(LOAD, ARGUMENTS + 8 * number)


ALLOW, DENY = step(RETURN, ALLOWED), step(RETURN, FAILS | errno.EPERM)


def beginning(machine: Machine) -> list[bytes]:
    """Return the steps that refuse other interfaces, and load the number of the call."""
    return [
        step(LOAD, MACHINE), step(EQUAL, machine.audit, 1, 0), DENY,
        step(LOAD, NUMBER), step(AT_LEAST, machine.foreign, 0, 1), DENY,
    ]  # fmt: skip


def install(machine: Machine, steps: list[bytes]) -> None:
    """Filter the calls of this process, of all its threads, and of what they start, for good.
    HostError if the system refuses."""
    program = b"".join(steps)
    held = (ctypes.c_char * len(program)).from_buffer_copy(program)
    header = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(held))
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    set_process(NO_NEW_PRIVILEGES, 1, "no_new_privs")
    if library.syscall(machine.seccomp, _FILTER, _ALL_THREADS, ctypes.c_char_p(header)):
        raise refused("a seccomp filter")


def set_process(option: int, value: int, what: str) -> None:
    """Call prctl(2). HostError names `what`."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0):
        raise refused(what)


def refused(what: str) -> HostError:
    """Return the error for what the system has just refused."""
    reason = os.strerror(ctypes.get_errno())
    return HostError(
        f"work of clients cannot be confined: the system refuses {what}: {reason}",
        remedy="use a kernel with CONFIG_SECCOMP_FILTER",
    )
