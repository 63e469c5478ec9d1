"""Confinement of a process that runs kernels of clients in its own memory.

After `confine`, the process and its threads can use the descriptors that they have, memory up to a
limit, and nothing else: they open no file, make no socket, start no process, and signal or trace no
other. A system call that is not listed fails with EPERM. This is a seccomp filter, which needs no
privilege and cannot be undone. No process of the same user can read the memory of this one.

Sources: seccomp(2), linux/filter.h, linux/seccomp.h, linux/audit.h, asm/unistd_64.h for x86-64,
asm-generic/unistd.h for AArch64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.errors import HostError

# BPF_LD | BPF_W | BPF_ABS; BPF_JMP | BPF_K with BPF_JEQ, BPF_JSET, BPF_JGE; BPF_RET | BPF_K
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
SPARE = 2 << 30  # bytes of address space for stacks, malloc's arenas, and messages; our choice
_FILTER, _ALL_THREADS = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
_DUMPABLE, _NO_NEW_PRIVILEGES = 4, 38  # PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS
_THREAD = 0x0001_0000  # CLONE_THREAD
_SET_NAME = 15  # PR_SET_NAME
_FIONREAD, _FIONBIO = 0x541B, 0x5421
_SETFL = 4  # F_SETFL; F_GETFD, F_SETFD and F_GETFL are below it

# System calls and their numbers on x86-64 and AArch64; -1: it has none.
_CALLS = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66),
    "recvfrom": (45, 207), "recvmsg": (47, 212), "sendto": (44, 206), "sendmsg": (46, 211),
    "poll": (7, -1), "ppoll": (271, 73), "select": (23, -1), "pselect6": (270, 72),
    "epoll_wait": (232, -1), "epoll_pwait": (281, 22), "epoll_ctl": (233, 21),
    "close": (3, 57), "fstat": (5, 80), "shutdown": (48, 210),
    "getsockopt": (55, 209), "getsockname": (51, 204), "getpeername": (52, 205),
    "futex": (202, 98), "set_robust_list": (273, 99), "rseq": (334, 293), "membarrier": (324, 283),
    "exit": (60, 93), "exit_group": (231, 94),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216),
    "madvise": (28, 233), "brk": (12, 214),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "getpid": (39, 172), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101), "gettimeofday": (96, 169), "time": (201, -1),
    "getrandom": (318, 278), "getcpu": (309, 168), "sysinfo": (99, 179), "getrusage": (98, 165),
}  # fmt: skip


@dataclass(frozen=True)
class _Machine:
    """column: of `_CALLS`. audit: AUDIT_ARCH_*. The rest: numbers of calls that are allowed with
    some arguments only, of clone3, and of seccomp itself."""

    column: int
    audit: int
    clone: int
    tgkill: int
    ioctl: int
    fcntl: int
    prctl: int
    clone3: int
    seccomp: int


_MACHINES = {
    "x86_64": _Machine(0, 0xC000_003E, 56, 234, 16, 72, 157, 435, 317),
    "aarch64": _Machine(1, 0xC000_00B7, 220, 131, 29, 25, 167, 435, 277),
}


def confine(memory: int) -> None:
    """Confine this process, all its threads included, for good. memory: bytes that it may have
    beyond what it has. HostError if the system cannot."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise HostError(f"kernels of clients cannot be confined on {platform.machine()}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(memory)
    be_first_victim()
    program = _program(machine)
    steps = (ctypes.c_char * len(program)).from_buffer_copy(program)
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(steps))
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    if library.prctl(_DUMPABLE, 0, 0, 0, 0):
        raise _refused("not to be dumpable")
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise _refused("no_new_privs")
    if library.syscall(machine.seccomp, _FILTER, _ALL_THREADS, ctypes.c_char_p(header)):
        raise _refused("a seccomp filter")


def _refused(what: str) -> HostError:
    reason = os.strerror(ctypes.get_errno())
    return HostError(
        f"kernels of clients cannot be confined: the system refuses {what}: {reason}",
        remedy="use a kernel with CONFIG_SECCOMP_FILTER",
    )


def _limit(memory: int) -> None:
    """Limit the address space, and the threads: of those that the user may have, ugpud keeps half.
    (The system has no such limit for root.)"""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmSize:"):
            most = (int(line.split()[1]) << 10) + memory + SPARE
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NPROC, (most // 2, most // 2))


def be_first_victim() -> None:
    """If memory runs out, have the system end this process, not ugpud."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    except OSError as error:
        raise HostError(f"kernels of clients cannot be confined: oom_score_adj: {error}") from None


def _program(machine: _Machine) -> bytes:
    """Return the filter, 8 bytes a step."""
    deny, allow = _step(_RETURN, _ERRNO | errno.EPERM), _step(_RETURN, _ALLOW)
    steps = [_step(_LOAD, _MACHINE), _step(_EQUAL, machine.audit, 1, 0), deny]
    steps.append(_step(_LOAD, _NUMBER))
    # The C library starts threads by clone if there is no clone3, whose flags a filter cannot see.
    steps += [_step(_EQUAL, machine.clone3, 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    for number, argument, tests in (
        (machine.clone, 0, [_step(_ANY_BIT, _THREAD, 0, 1)]),
        (machine.tgkill, 0, [_step(_EQUAL, os.getpid(), 0, 1)]),
        (machine.ioctl, 1, [_step(_EQUAL, _FIONBIO, 1, 0), _step(_EQUAL, _FIONREAD, 0, 1)]),
        (machine.fcntl, 1, [_step(_AT_LEAST, _SETFL + 1, 1, 0)]),
        (machine.prctl, 0, [_step(_EQUAL, _SET_NAME, 0, 1)]),
    ):
        body = [_step(_LOAD, _ARGUMENTS + 8 * argument), *tests, allow, deny]
        steps += [_step(_EQUAL, number, 0, len(body)), *body]
    numbers = [call[machine.column] for call in _CALLS.values() if call[machine.column] >= 0]
    for position, number in enumerate(numbers):
        steps.append(_step(_EQUAL, number, len(numbers) - position, 0))
    return b"".join([*steps, deny, allow])


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return a struct sock_filter."""
    return struct.pack("HBBI", code, if_true, if_false, operand)
