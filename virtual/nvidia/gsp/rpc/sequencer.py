"""The program that the GSP has the CPU execute during its boot (RUN_CPU_SEQUENCER).

Source: open-gpu-kernel-modules 570.144 rmgspseq.h, kernel_gsp_tu102.c (kgspExecuteSequencerBuffer);
Linux 7.3.4 nouveau nvkm/subdev/gsp/rm/r535/gsp.c. The program leaves known values in scratch
registers; a host that executed it wrongly, or not at all, gets no INIT_DONE.
"""

from __future__ import annotations

import struct

from ugpu.virtual.nvidia.gsp.faults import CardFault

WRITE, MODIFY, POLL, DELAY, STORE = range(5)
SCRATCH = 0x1460  # PBUS_SW_SCRATCH registers that the program uses
DONE = SCRATCH + 8
_FIRST, _MASK, _RESULT, _MARK = 0x1200, 0x00F0, 0x12F0, 0x600D


FAULTS: dict[CardFault, tuple[int, ...]] = {  # the program begins with these words
    CardFault.SEQUENCER_OPERATION: (0x77,),
    CardFault.SEQUENCER_CUT: (),
    CardFault.SEQUENCER_LONG: (),
    CardFault.SEQUENCER_OUTSIDE: (WRITE, 16 << 20, 0),
    CardFault.SEQUENCER_SAVE: (STORE, SCRATCH, 8),
    CardFault.SEQUENCER_POLL: (POLL, SCRATCH, 0xFFFF, 0xBAD, 100_000, 1),
}


def program(fault: CardFault | None = None) -> bytes:
    """Return the event's payload: bufferSizeDWord, cmdIndex, regSaveArea, commands. fault: one of
    FAULTS that is planted in it."""
    # The operands of MODIFY are equal, so that a host that takes value for mask gets it right.
    commands = (
        *(FAULTS.get(fault, ()) if fault is not None else ()),
        WRITE, SCRATCH, _FIRST,
        MODIFY, SCRATCH, _MASK, _MASK,
        DELAY, 5,
        POLL, SCRATCH, 0xFFFF, _RESULT, 0, 1,
        STORE, SCRATCH, 3,
        WRITE, DONE, _MARK,
    )  # fmt: skip
    size = len(commands)
    stated = size - 1 if fault is CardFault.SEQUENCER_CUT else size
    stated += 1000 if fault is CardFault.SEQUENCER_LONG else 0
    return struct.pack("<II", size + 1, stated) + bytes(32) + struct.pack(f"<{size}I", *commands)


def problem(scratch: int, done: int) -> str:
    """Return why the registers show that the program was executed wrongly, or ""."""
    if done != _MARK:
        return f"its last write must be {_MARK:#x}, is {done:#x}"
    if scratch != _RESULT:
        return f"its REG_MODIFY must leave {_RESULT:#x}, left {scratch:#x}"
    return ""
