"""Confinement of a process that runs kernels of clients in its own memory.

After `confine`, the process and its threads can use the descriptors that they have, memory up to a
limit, and nothing else: they open no file, make no socket, start no process, and signal or trace no
other. A system call that is not listed fails with EPERM. This is a seccomp filter, which needs no
privilege and cannot be undone. No process of the same user can read the memory of this one.

Sources: prctl(2), asm/unistd_64.h for x86-64, asm-generic/unistd.h for AArch64.
"""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

from ugpu.hcq.errors import HostError
from ugpu.tools.service.daemon.cards.confinement import bpf
from ugpu.tools.service.daemon.cards.confinement.bpf import ALLOW, DENY, Machine, argument, step

SPARE = 2 << 30  # bytes of address space for stacks, malloc's arenas, and messages; our choice
_DUMPABLE = 4  # PR_SET_DUMPABLE
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


# the same of calls that are allowed with some arguments only, and of clone3
_CLONE, _TGKILL, _IOCTL, _FCNTL, _PRCTL = (56, 220), (234, 131), (16, 29), (72, 25), (157, 167)
_CLONE3 = (435, 435)


def confine(memory: int) -> None:
    """Confine this process, all its threads included, for good. memory: bytes that it may have
    beyond what it has. HostError if the system cannot."""
    machine = bpf.this_machine()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(memory)
    be_first_victim()
    bpf.set_process(_DUMPABLE, 0, "not to be dumpable")
    bpf.install(machine, _program(machine))


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
        raise HostError(f"work of clients cannot be confined: oom_score_adj: {error}") from None


def _program(machine: Machine) -> list[bytes]:
    """Return the filter."""
    steps, column = bpf.beginning(machine), machine.column
    # The C library starts threads by clone if there is no clone3, whose flags a filter cannot see.
    steps += [step(bpf.EQUAL, _CLONE3[column], 0, 1), step(bpf.RETURN, bpf.FAILS | errno.ENOSYS)]
    for numbers, which, tests in (
        (_CLONE, 0, [step(bpf.ANY_BIT, _THREAD, 0, 1)]),
        (_TGKILL, 0, [step(bpf.EQUAL, os.getpid(), 0, 1)]),
        (_IOCTL, 1, [step(bpf.EQUAL, _FIONBIO, 1, 0), step(bpf.EQUAL, _FIONREAD, 0, 1)]),
        (_FCNTL, 1, [step(bpf.AT_LEAST, _SETFL + 1, 1, 0)]),
        (_PRCTL, 0, [step(bpf.EQUAL, _SET_NAME, 0, 1)]),
    ):
        body = [argument(which), *tests, ALLOW, DENY]
        steps += [step(bpf.EQUAL, numbers[column], 0, len(body)), *body]
    allowed = [call[column] for call in _CALLS.values() if call[column] >= 0]
    for position, number in enumerate(allowed):
        steps.append(step(bpf.EQUAL, number, len(allowed) - position, 0))
    return [*steps, DENY, ALLOW]
