"""What the GSP is started with: the libos arguments, and in them the resource manager's.

Source: open-gpu-kernel-modules 570.144 libos_init_args.h, gsp_init_args.h; Linux 7.3.4 nouveau
nvkm/subdev/gsp/rm/r535/gsp.c. The log buffers come first, in a fixed order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.nv.abi.firmware import FirmwareAbi
from ugpu.virtual.nvidia.gsp.bus.memory import BusMaster
from ugpu.virtual.nvidia.gsp.rpc.queue import needed, usable

_ENTRY = struct.Struct("<QQQBB6x")
_ORDER = ("LOGINIT", "LOGINTR", "LOGRM", "LOGMNOC", "LOGKRNL", "RMARGS")
_OPTIONAL = ("LOGMNOC", "LOGKRNL")
_CONTIGUOUS, _SYSTEM = 1, 1
LOG_SIZE = 0x10000


@dataclass(frozen=True)
class Arguments:
    """logs: address of each log buffer by name. queues: address of the shared region, entries of
    its page table, offsets of command and status queue."""

    logs: dict[str, int]
    queues: tuple[int, int, int, int]

    @classmethod
    def read(
        cls, board: BusMaster, address: int, interface: FirmwareAbi, *, resuming: bool = False
    ) -> Arguments:
        """Read and check the arguments. resuming: for firmware that was suspended. Raises
        QueueError."""
        aligned = address and not address % 0x1000
        usable(aligned, f"libos arguments at {address:#x} must be page-aligned")
        raw = needed(board.bus_read(address, 0x1000), f"libos arguments at {address:#x}")
        regions: dict[str, tuple[int, int]] = {}
        for at in range(0, 0x1000, _ENTRY.size):
            number, where, size, kind, place = _ENTRY.unpack_from(raw, at)
            if not number:
                break
            name = number.to_bytes(8, "big").lstrip(b"\0").decode("latin-1")
            known = (kind, place) == (_CONTIGUOUS, _SYSTEM)
            usable(known, f"libos argument {name}: kind {kind}, location {place}")
            regions[name] = (where, size)
        wanted = [name for name in _ORDER if name in regions or name not in _OPTIONAL]
        given = list(regions)
        usable(given == wanted, f"libos arguments must be {wanted}, are {given}")
        logs = {name: regions[name] for name in wanted[:-1]}
        for name, (where, size) in logs.items():
            fits = size >= LOG_SIZE and not where % 0x1000
            usable(fits, f"{name} has {size:#x} bytes at {where:#x}")
        where, size = regions["RMARGS"]
        layout = interface.structs.GSP_ARGUMENTS_CACHED
        least = layout.size
        usable(size >= least, f"RMARGS must have {least:#x} bytes, has {size:#x} at {where:#x}")
        view = layout.view(needed(board.bus_read(where, least), f"RMARGS at {where:#x}"))
        queues, resumed = view.messageQueueInitArguments, view.srInitArguments
        state = (resumed.oldLevel, resumed.flags, resumed.bInPMTransition)
        expected = (3, 0, 1) if resuming else (0, 0, 0)
        usable(state == expected, f"srInit of a start must be {expected}, is {state}")
        addresses = {name: place[0] for name, place in logs.items()}
        places = (queues.cmdQueueOffset, queues.statQueueOffset)
        return cls(addresses, (queues.sharedMemPhysAddr, queues.pageTableEntryCount, *places))
