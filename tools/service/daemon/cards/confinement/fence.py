"""Confinement of the process of a virtual card, which translates clients' kernels to native code.

It reads files, keeps code on disk and starts assemblers, so it cannot be confined as the processes
of `cpu` are (sandbox). After `enclose`, neither it nor what it starts can

- create, write or remove a file outside the folders that it is given, listen with TCP, or signal
  a process that it has not started (Landlock);
- trace other processes or read their memory, make sockets but those of UNIX, connect to any (ugpud
  would take it for its own user), mount, load code into the kernel, use keys, and so on (`DENIED`,
  a seccomp filter).

It can read what ugpud's user can, and Landlock leaves it modes, owners and times of that user's
files. Both need no privilege and cannot be undone.

Sources: landlock(7), linux/landlock.h; asm/unistd_64.h for x86-64, asm-generic/unistd.h for
AArch64.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from ugpu.hcq.disk import own_folder
from ugpu.hcq.errors import HostError
from ugpu.tools.service.daemon.cards.confinement import bpf
from ugpu.tools.service.daemon.cards.confinement.bpf import ALLOW, DENY, Machine, argument, step

log = logging.getLogger(__name__)

# System calls and their numbers on x86-64 and AArch64; -1: it has none.
DENIED = {
    "connect": (42, 203), "ptrace": (101, 117),
    "process_madvise": (440, 440), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "move_pages": (279, 239), "migrate_pages": (256, 238),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "setns": (308, 268), "unshare": (272, 97),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "syslog": (103, 116),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "iopl": (172, -1), "ioperm": (173, -1), "vhangup": (153, 58),
    "personality": (135, 92), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "mknodat": (259, 33), "mknod": (133, -1),
}  # fmt: skip
# the same of calls that are allowed with one first argument: models of kernel drivers access the
# memory of their own process by address this way
_SOCKET, _PRLIMIT, _READ, _WRITE_TO = (41, 198), (302, 261), (310, 270), (311, 271)
_UNIX = 1  # AF_UNIX

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on all machines
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
# LANDLOCK_ACCESS_FS_*: WRITE_FILE; REMOVE_DIR to MAKE_SYM; REFER (version 2) and TRUNCATE (3)
_WRITE, _CHANGE, _REFER, _TRUNCATE = 1 << 1, 0x1FF0, 1 << 13, 1 << 14
_TCP = 0b11  # LANDLOCK_ACCESS_NET_BIND_TCP, CONNECT_TCP (version 4)
_SCOPES = 0b11  # LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, SIGNAL (version 6)


def version() -> int:
    """Return the version of the system's Landlock; 0 if it has none."""
    return max(0, _call(_CREATE_RULESET, 0, 0, _VERSION))


def lacking() -> list[str]:
    """Return what the system's Landlock does not prevent, for want of a newer version."""
    have = version()
    every = (
        (1, "no Landlock (Linux 5.13): files of ugpud's user can be written"),
        (3, "Landlock before version 3 (Linux 6.2): files of ugpud's user can be truncated"),
        (6, "Landlock before version 6 (Linux 6.12): processes of ugpud's user can be signalled"),
    )
    return [text for least, text in every if have < least]


def enclose(folders: Iterable[Path]) -> None:
    """Confine this process for good; it must have one thread. folders: those that it may change;
    missing ones are created where that is possible. HostError if the system has seccomp but
    refuses. What a system without Landlock does not prevent is in `lacking`."""
    machine = bpf.this_machine()
    bpf.set_process(bpf.NO_NEW_PRIVILEGES, 1, "no_new_privs")
    have = version()
    if have:
        _restrict(have, folders)
    bpf.install(machine, _program(machine))


def _restrict(have: int, folders: Iterable[Path]) -> None:
    files = _WRITE | _CHANGE
    files |= _REFER if have >= 2 else 0
    files |= _TRUNCATE if have >= 3 else 0
    handled = [files, _TCP if have >= 4 else 0, _SCOPES if have >= 6 else 0]
    size = 8 if have < 4 else 16 if have < 6 else 24
    attributes = ctypes.create_string_buffer(struct.pack("QQQ", *handled), 24)
    rules = _call(_CREATE_RULESET, ctypes.addressof(attributes), size, 0)
    if rules < 0:
        raise bpf.refused("a Landlock ruleset")
    try:
        for folder in folders:
            try:
                if not folder.exists():
                    own_folder.make_private(folder)
                _allow(rules, folder, files)
            except OSError as error:  # it could not write there before either
                log.info("%s cannot be written: %s", folder, error)
        # Not a folder; it is written to, not changed.
        _allow(rules, Path(os.devnull), files & (_WRITE | _TRUNCATE))
        if _call(_RESTRICT_SELF, rules, 0):
            raise bpf.refused("a Landlock ruleset")
    finally:
        os.close(rules)


def _allow(rules: int, path: Path, access: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = ctypes.create_string_buffer(struct.pack("<Qi", access, handle), 12)
        if _call(_ADD_RULE, rules, _PATH_BENEATH, ctypes.addressof(rule), 0):
            raise bpf.refused(f"a Landlock rule for {path}")
    finally:
        os.close(handle)


def _call(number: int, *arguments: int) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    result: int = library.syscall(number, *map(ctypes.c_long, arguments))
    return result


def _program(machine: Machine) -> list[bytes]:
    """Return the filter."""
    steps, column = bpf.beginning(machine), machine.column
    own = os.getpid()
    for numbers, first in ((_SOCKET, _UNIX), (_PRLIMIT, 0), (_READ, own), (_WRITE_TO, own)):
        body = [argument(0), step(bpf.EQUAL, first, 1, 0), DENY, ALLOW]
        steps += [step(bpf.EQUAL, numbers[column], 0, len(body)), *body]
    denied = [call[column] for call in DENIED.values() if call[column] >= 0]
    for position, number in enumerate(denied):
        steps.append(step(bpf.EQUAL, number, len(denied) - position, 0))
    return [*steps, ALLOW, DENY]


def folders_of(*paths: Path | None) -> list[Path]:
    """Return the folders among paths that are set, each once."""
    return list(dict.fromkeys(path for path in paths if path is not None))


def check_single() -> None:
    """Raise HostError if this process has several threads: Landlock would confine one of them."""
    if (count := len(os.listdir("/proc/self/task"))) != 1:
        raise HostError(f"work of clients cannot be confined: the process has {count} threads")
