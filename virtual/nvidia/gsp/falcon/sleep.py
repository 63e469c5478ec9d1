"""What a suspended GSP leaves in host memory, and goes on from: GspFwSRMeta, and the protected
region of video memory as pages behind three levels of tables.

Sources: open-gpu-kernel-modules 550.163.01 and 570.144 gsp_fw_sr_meta.h, kernel_gsp_tu102.c
(kgspPrepareSuspendResumeData, kgspSavePowerMgmtState); Linux 7.3 nouveau rm/r535/gsp.c, tu102.c,
gh100.c. UNSURE: the content of the field `internal`, which no header describes since 570.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.gsp.falcon import radix3
from ugpu.virtual.nvidia.gsp.falcon.core import Refused, require
from ugpu.virtual.nvidia.gsp.falcon.wpr import RESUME_MAGIC, SIZE, WprMeta
from ugpu.virtual.nvidia.gsp.faults import CardFault

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card
    from ugpu.virtual.nvidia.gsp.rpc.server import GspServer

REVISION = 2
_HEAD = struct.Struct("<4Q")
_INTERNAL = slice(0x20, 0xA0)
_SECRET = b"virtual card"  # real chips keep it in the processor
_ERROR = 0x12  # UNSURE: none is public


@dataclass
class Sleeper:
    """A suspended run of the firmware. proof: what GspFwSRMeta must hold for it to go on."""

    server: GspServer
    proof: bytes


def _region(meta: WprMeta) -> tuple[int, int]:
    """Return the start and size of what is saved, as kernel_gsp_gh100.c and nouveau compute it."""
    start = meta.nonWprHeapOffset + meta.nonWprHeapSize
    return start, meta.frtsOffset + meta.frtsSize - start


def _describes(board: Card, address: int) -> tuple[bytes, int, int]:
    """Read and check GspFwSRMeta; return it, its tables' root, and the size. Raises Refused."""
    raw = radix3.need(board, address, SIZE, _ERROR)
    magic, revision, root, size = _HEAD.unpack_from(raw)
    known = (magic, revision) == (RESUME_MAGIC, REVISION)
    require(known, _ERROR, f"GspFwSRMeta: magic {magic:#x}, revision {revision}")
    return raw, root, size


def save(board: Card, address: int) -> None:
    """Save the region of firmware that was told to suspend, and keep the firmware. Raises
    Refused."""
    server = board.sleeping
    if server is None:
        raise Refused(_ERROR, "the firmware was not told to suspend")
    raw, root, size = _describes(board, address)
    start, expected = _region(server.meta)
    fresh = size == expected and not any(raw[_INTERNAL])
    require(fresh, _ERROR, f"GspFwSRMeta: {size:#x} bytes, not {expected:#x}; or not cleared")
    content = bytes(board.falcon_memory(start, size))
    for number, page in enumerate(radix3.pages(board, root, size)):
        part = content[number * radix3.PAGE : (number + 1) * radix3.PAGE]
        require(board.bus_write(page, part), _ERROR, f"cannot write page {number} at {page:#x}")
    digest = hashlib.sha256(content).digest()
    seal = hmac.digest(_SECRET, raw[: _INTERNAL.start] + digest, "sha256")
    proof = (seal + digest).ljust(_INTERNAL.stop - _INTERNAL.start, b"\0")
    board.bus_write(address + _INTERNAL.start, proof)
    board.sleeper = Sleeper(server, proof)


def restore(board: Card, address: int) -> GspServer:
    """Verify what was saved, write it back and protect it; return the firmware. Raises Refused."""
    raw, root, size = _describes(board, address)
    sleeper = board.sleeper
    if sleeper is None or not hmac.compare_digest(raw[_INTERNAL], sleeper.proof):
        raise Refused(_ERROR, "GspFwSRMeta is not that of the last suspend")
    content = radix3.read(board, root, size)
    damaged = board.faults.take(CardFault.SLEEP_DAMAGED)
    kept = hashlib.sha256(content).digest() == sleeper.proof[32:64]
    require(kept and not damaged, _ERROR, "the saved region was changed")
    meta = sleeper.server.meta
    board.falcon_memory(_region(meta)[0], size)[:] = content
    board.wpr.set(meta.gspFwWprStart, meta.gspFwWprEnd)
    board.sleeper = None
    return sleeper.server
