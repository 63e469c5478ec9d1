"""A crash of the GSP's firmware, as its registers report it: CrashCat, version 1.

Source: open-gpu-kernel-modules 595.45.04 src/common/uproc/os/common/include/nv-crashcat.h,
libos_v3_crashcat.h, src/nvidia/src/libraries/crashcat/v1/impl/crashcat_report_v1_libos3.c. The
first wayfinder names scratch group B of the falcon; the second, in there, a queue in DMEM. The type
of the cause has four values; what an exception was (xcause) is in the report's data, and with the
other registers of the core in a packet of its own.
"""

from __future__ import annotations

import struct

from ugpu.virtual.nvidia.gsp.falcon.core import WAYFINDER, Falcon

_SIGNATURE = 0xDEAD
_IMPLEMENTER = int.from_bytes(b"LIBOS3.1", "big")
_GROUP_B, _SCRATCH = 2, 0x300
_DMEM, _KIB = 2, 1
_NOWHERE = 5  # no aperture
_HALTED = 1 << 4
_REPORT, _CSRS = 0, 1  # kinds of packets
_EXCEPTION, _UNCONTAINED = 0x0, 0xF << 4
_PARTITION, _TASK, _USER = 1, 2, 3
_VERSION = 3 << 28 | 1 << 24
LOAD_PAGE_FAULT = 0xD  # xcause, RISC-V privileged architecture
_PC, _ADDRESS = 0x5_0000_1234, 0xBAD0_0000


def _packet(kind: int, *words: int) -> bytes:
    head = _SIGNATURE | 1 << 16 | len(words) - 1 << 22 | kind << 32
    return struct.pack(f"<{len(words) + 1}Q", head, *words)


def crash(falcon: Falcon, now: int, *, readable: bool = True) -> None:
    """Halt the firmware of a task that read an unmapped address, and leave a report in DMEM. now:
    nanoseconds. readable: else the report is said to be in a memory that does not exist."""
    who = _PARTITION | _USER << 16 | _TASK << 24
    report = _packet(
        _REPORT, _IMPLEMENTER, who, _VERSION | now // 10**9 << 32, who, _EXCEPTION | _UNCONTAINED,
        _PC, LOAD_PAGE_FAULT,
    )  # fmt: skip
    packet = report + _packet(_CSRS, 0, 0, 0, _PC, _ADDRESS, LOAD_PAGE_FAULT, 0)
    falcon.dmem[: len(packet)] = packet
    second = (_DMEM if readable else _NOWHERE) | _KIB << 3
    for at, value in enumerate((second & 0xFFFF_FFFF, second >> 32, len(packet), 0)):
        falcon.registers[_SCRATCH + 4 * at] = value
    falcon.registers[WAYFINDER] = _SIGNATURE | 1 << 16 | _GROUP_B << 20
    falcon.active, falcon.riscv_halted = False, True
    falcon.interrupt(_HALTED)
