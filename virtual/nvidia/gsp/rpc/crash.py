"""A crash of the GSP's firmware, as its registers report it: CrashCat, version 1.

Source: open-gpu-kernel-modules 570.144 src/nvidia/inc/libraries/crashcat/nv-crashcat.h. The first
wayfinder names scratch group B of the falcon; the second, in there, a queue in DMEM.
"""

from __future__ import annotations

import struct

from ugpu.virtual.nvidia.gsp.falcon.core import WAYFINDER, Falcon

_SIGNATURE = 0xDEAD
_IMPLEMENTER = int.from_bytes(b"LIBOS3.1", "big")
_GROUP_B, _SCRATCH = 2, 0x300
_DMEM, _KIB = 2, 1
_HALTED = 1 << 4
LOAD_ACCESS_FAULT = 0xD


def crash(falcon: Falcon, now: int) -> None:
    """Halt the firmware and leave a report in DMEM: reporter, time, cause, program counter."""
    payload = struct.pack(
        "<7Q", _IMPLEMENTER, 0x0000_0001, now, 0, LOAD_ACCESS_FAULT, 0x5_0000_1234, 0xBAD0_0000
    )
    head = _SIGNATURE | 1 << 16 | len(payload) // 8 - 1 << 22
    packet = struct.pack("<Q", head) + payload
    falcon.dmem[: len(packet)] = packet
    second = _DMEM | _KIB << 3
    for at, value in enumerate((second & 0xFFFF_FFFF, second >> 32, len(packet), 0)):
        falcon.registers[_SCRATCH + 4 * at] = value
    falcon.registers[WAYFINDER] = _SIGNATURE | 1 << 16 | _GROUP_B << 20
    falcon.active, falcon.riscv_halted = False, True
    falcon.interrupts |= _HALTED
