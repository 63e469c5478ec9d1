"""What the GSP is started with: the libos arguments, and in them the resource manager's.

Source: open-gpu-kernel-modules 570.144 libos_init_args.h, gsp_init_args.h; Linux 7.3.4 nouveau
nvkm/subdev/gsp/rm/r535/gsp.c. The log buffers come first, in a fixed order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ugpu.nv.abi.firmware import FirmwareAbi
from ugpu.virtual.nvidia.gsp.rpc.logs import SIZE as LOG_SIZE
from ugpu.virtual.nvidia.gsp.rpc.queue import needed, usable

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

_ENTRY = struct.Struct("<QQQBB6x")
_ORDER = ("LOGINIT", "LOGINTR", "LOGRM", "LOGMNOC", "LOGKRNL", "RMARGS")
_OPTIONAL = ("LOGMNOC", "LOGKRNL")
_CONTIGUOUS, _SYSTEM = 1, 1
_STARTED, _RESUMED = (0, 0), (3, 1)  # srInit: oldLevel, bInPMTransition
# Of a resume. NVIDIA's own code sets PM_SUSPEND, Linux 7.3.4 PRESERVING and PM_TRANSITION
# (g_gpu_nvoc.h GPU_STATE_FLAGS_*; gpu_suspend.c).
_FLAGS = 0x7F


@dataclass(frozen=True)
class Arguments:
    """logs: address of each log buffer by name. manager: address of the resource manager's. queues:
    address of the shared region, entries of its page table, offsets of command and status queue."""

    logs: dict[str, int]
    manager: int
    queues: tuple[int, int, int, int]

    @classmethod
    def read(cls, board: Card, address: int, interface: FirmwareAbi) -> Arguments:
        """Read and check the arguments of a start. Raises QueueError."""
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
        buffers = {name: regions[name] for name in wanted[:-1]}
        for name, (where, size) in buffers.items():
            fits = size >= LOG_SIZE and not where % 0x1000
            usable(fits, f"{name} has {size:#x} bytes at {where:#x}")
        addresses = {name: place[0] for name, place in buffers.items()}
        where, size = regions["RMARGS"]
        least = interface.structs.GSP_ARGUMENTS_CACHED.size
        usable(size >= least, f"RMARGS must have {least:#x} bytes, has {size:#x} at {where:#x}")
        return cls(addresses, where, _queues(board, where, interface, _STARTED))

    def read_again(self, board: Card, interface: FirmwareAbi) -> None:
        """Check the resource manager's arguments after a suspend, all that is read then: nouveau
        has freed libos's by INIT_DONE (r535_gsp_init). Raises QueueError."""
        queues = _queues(board, self.manager, interface, _RESUMED)
        usable(queues == self.queues, "the queues are not those before the suspend")


def _queues(
    board: Card, where: int, interface: FirmwareAbi, expected: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Read RMARGS; return the queues. expected: its srInit. Raises QueueError."""
    layout = interface.structs.GSP_ARGUMENTS_CACHED
    view = layout.view(needed(board.bus_read(where, layout.size), f"RMARGS at {where:#x}"))
    queues, resumed = view.messageQueueInitArguments, view.srInitArguments
    state = (resumed.oldLevel, resumed.bInPMTransition)
    known = state == expected and not resumed.flags & ~(_FLAGS if expected == _RESUMED else 0)
    usable(known, f"srInit must be {expected}, is {state}, with flags {resumed.flags:#x}")
    places = (queues.cmdQueueOffset, queues.statQueueOffset)
    return (queues.sharedMemPhysAddr, queues.pageTableEntryCount, *places)
