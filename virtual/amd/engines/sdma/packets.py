"""Decode and execute the packets of an SDMA queue, with strict checks.

Sources: Linux 6.12 sdma_v6_0.c (packets that the kernel emits: counts are bytes - 1, an indirect
buffer packet ends on a multiple of 8 dwords, HDP flush by poll); ROCr's use of retry count 0xfff as
"forever" and of fill size 2 for dwords.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ugpu.virtual.amd.engines import atomics
from ugpu.virtual.amd.engines.compare import COMPARE
from ugpu.virtual.amd.engines.engine import clock_ticks


class Operation(enum.Enum):
    """Packets that the engines execute; each generation has its numbers (CopyPackets)."""

    NOP = "NOP"
    COPY = "COPY"
    WRITE = "WRITE"
    INDIRECT = "INDIRECT"
    FENCE = "FENCE"
    TRAP = "TRAP"
    POLL_REGMEM = "POLL_REGMEM"
    COND_EXE = "COND_EXE"
    ATOMIC = "ATOMIC"
    CONST_FILL = "CONST_FILL"
    PTE_PDE = "PTE_PDE"
    TIMESTAMP = "TIMESTAMP"
    SRBM_WRITE = "SRBM_WRITE"
    GCR_REQ = "GCR_REQ"


RETRY_FOREVER = 0xFFF
ADDRESS_END = (1 << 64) - 1
FIRST_POLL_S = 20e-6
LONGEST_POLL_S = 1e-3
RETRY_S = 1e-6  # one retry of a bounded poll


class BadSdmaPacket(Exception):
    """A packet that the engine cannot execute; the queue stops at it."""

    def __init__(self, reason: str, header: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.header = header


@dataclass(frozen=True, slots=True)
class SdmaFormat:
    """A packet's fixed part. size: dwords, with the header. reserved: bits that must be zero.

    extended: bit of the header that announces one more dword, of compression, which must be zero.
    """

    name: str
    size: int
    reserved: tuple[int, ...]
    extended: int = 0


@dataclass(frozen=True)
class CopyPackets:
    """The packets of a generation. opcodes: number in bits 7:0 of a header. formats: by operation
    and sub-operation; an operation without one, apart from NOP, is refused. descriptor: dwords of
    a queue descriptor that hold registers; RB_CNTL, dword 0, is written last. descriptor_dwords: of
    the whole. register_bytes: SRBM_WRITE has the byte address of a register and writes all of it,
    instead of an index and a mask of bytes."""

    opcodes: Mapping[Operation, int]
    formats: Mapping[tuple[Operation, int], SdmaFormat]
    descriptor: Mapping[int, str]
    descriptor_dwords: int
    register_bytes: bool = False


def free(*allowed: tuple[int, int]) -> int:
    """Return a mask of the bits outside these fields (lowest bit, width) and the two operations."""
    mask = 0
    for lsb, width in ((0, 16), *allowed):  # every header contains op and sub-op
        mask |= ((1 << width) - 1) << lsb
    return 0xFFFF_FFFF & ~mask


class SdmaSurroundings(Protocol):
    """Units and memory that the packets of an SDMA queue act on."""

    vmid: int
    privileged: bool

    @property
    def indirect_enabled(self) -> bool:
        """Whether indirect buffers are enabled."""
        ...

    def fetch(self, vmid: int, address: int, dwords: int) -> tuple[int, ...]:
        """Read packets; raises BadSdmaPacket after a fault."""
        ...

    def load(self, vmid: int, address: int, size: int) -> bytes:
        """Read memory; a fault reads as zeros."""
        ...

    def store(self, vmid: int, address: int, data: bytes) -> None:
        """Write memory; after a fault the data is lost."""
        ...

    def copy(self, vmid: int, source: int, destination: int, size: int) -> None:
        """Copy memory."""
        ...

    def fill(self, vmid: int, destination: int, pattern: bytes, size: int) -> None:
        """Fill memory with a repeated pattern."""
        ...

    def read_register(self, index: int) -> int:
        """Read a register by absolute dword index."""
        ...

    def write_register(self, index: int, value: int) -> None:
        """Write a register."""
        ...

    def trap(self, context: int) -> None:
        """Raise the trap interrupt, if enabled."""
        ...

    def poll_timeout(self, address: int) -> None:
        """Report a bounded poll that ran out of retries."""
        ...

    def refused_register(self, index: int) -> None:
        """Report a register write by an unprivileged queue."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait `seconds`, or until another engine writes memory. Raises Stopped."""
        ...


class SdmaExecutor:
    """Run packets; one executor per enabled queue, used only by the queue's thread."""

    def __init__(self, around: SdmaSurroundings, packets: CopyPackets) -> None:
        self.around = around
        self.vmid = around.vmid
        self.inside = False  # inside an indirect buffer
        self.skip = 0
        self.consumed = 0  # dwords read from the ring; never wraps
        self.packets = 0
        self.position = 0  # dword index in the ring of words[0]; the ring is a multiple of 8 dwords
        handlers: dict[Operation, Callable[[Sequence[int], int], int]] = {
            Operation.COPY: self._copy,
            Operation.WRITE: self._write,
            Operation.INDIRECT: self._indirect,
            Operation.FENCE: self._fence,
            Operation.TRAP: self._trap,
            Operation.POLL_REGMEM: self._poll,
            Operation.COND_EXE: self._cond_exe,
            Operation.ATOMIC: self._atomic,
            Operation.CONST_FILL: self._fill,
            Operation.PTE_PDE: self._page_table,
            Operation.TIMESTAMP: self._timestamp,
            Operation.SRBM_WRITE: self._srbm_write,
            Operation.GCR_REQ: lambda words, at: 0,
        }
        self._register_bytes = packets.register_bytes
        number = packets.opcodes
        self._nop, self._write_op = number[Operation.NOP], number[Operation.WRITE]
        self._handlers = {number[operation]: handler for operation, handler in handlers.items()}
        self._formats = {
            (number[operation], sub): form for (operation, sub), form in packets.formats.items()
        }

    def run(self, words: Sequence[int]) -> int:
        """Execute the complete packets in `words`; return how many dwords were consumed.

        `consumed` advances past each packet of the ring before the packet takes effect. After an
        exception, it is at the packet that raised it.
        """
        in_ring, base = not self.inside, self.consumed
        end = len(words)
        at = min(self.skip, end)
        self.skip -= at
        if in_ring:
            self.consumed = base + at
        while at < end:
            header = words[at]
            if header & 0xFFFF == self._nop:
                if header & 0xC000_0000:
                    raise BadSdmaPacket("NOP has reserved bits set", header)
                at += 1 + (header >> 16 & 0x3FFF)
            else:
                size = self._length(words, at, end)
                if size is None:
                    break
                self.packets += 1
                if in_ring:
                    self.consumed = base + at + size
                try:
                    at += size + self._handlers[header & 0xFF](words, at)
                except BaseException:
                    if in_ring:
                        self.consumed = base + at
                    raise
            if at > end:
                self.skip = at - end
                at = end
            if in_ring:
                self.consumed = base + at
        return at

    def _length(self, words: Sequence[int], at: int, end: int) -> int | None:
        """Check the packet at words[at]; return its size in dwords, None if it is incomplete."""
        header = words[at]
        entry = self._formats.get((header & 0xFF, header >> 8 & 0xFF))
        if entry is None:
            raise BadSdmaPacket(
                f"op {header & 0xFF} sub-op {header >> 8 & 0xFF} is unknown or not modelled", header
            )
        size = entry.size
        if at + size > end:
            return None
        for number, mask in enumerate(entry.reserved):
            if words[at + number] & mask:
                raise BadSdmaPacket(
                    f"{entry.name} dword {number} = {words[at + number]:#010x}: bits "
                    f"{words[at + number] & mask:#x} are reserved or not modelled",
                    header,
                )
        if header & entry.extended:
            size += 1
            if at + size > end:
                return None
            if words[at + size - 1]:
                raise BadSdmaPacket(f"{entry.name} with compression is not modelled", header)
        if header & 0xFF == self._write_op:
            size += (words[at + 3] & 0xFFFFF) + 1
            if at + size > end:
                return None
        return size

    # ---- data ---------------------------------------------------------------------------------

    def _copy(self, words: Sequence[int], at: int) -> int:
        size = words[at + 1] + 1
        source = words[at + 3] | words[at + 4] << 32
        destination = words[at + 5] | words[at + 6] << 32
        self.around.copy(self.vmid, source, destination, size)
        return 0

    def _write(self, words: Sequence[int], at: int) -> int:
        count = (words[at + 3] & 0xFFFFF) + 1
        data = struct.pack(f"<{count}I", *words[at + 4 : at + 4 + count])
        self.around.store(self.vmid, words[at + 1] | words[at + 2] << 32, data)
        return 0

    def _fill(self, words: Sequence[int], at: int) -> int:
        kind = words[at] >> 30
        destination = words[at + 1] | words[at + 2] << 32
        unit = 1 << kind
        if kind == 3 or destination % unit:
            raise BadSdmaPacket(
                f"CONST_FILL of size {kind} at {destination:#x} is not aligned or not modelled",
                words[at],
            )
        pattern = words[at + 3].to_bytes(4, "little")[:unit]
        size = (words[at + 4] // unit + 1) * unit
        self.around.fill(self.vmid, destination, pattern, size)
        return 0

    def _fence(self, words: Sequence[int], at: int) -> int:
        address = words[at + 1] | words[at + 2] << 32
        self.around.store(self.vmid, address, words[at + 3].to_bytes(4, "little"))
        return 0

    def _page_table(self, words: Sequence[int], at: int) -> int:
        """Write page table entries with an increasing address and constant flags."""
        place, flags, first, step = (
            words[at + number] | words[at + number + 1] << 32 for number in (1, 3, 5, 7)
        )
        count = (words[at + 9] & 0x7FFFF) + 1
        entries = ((first + number * step & ADDRESS_END) | flags for number in range(count))
        self.around.store(self.vmid, place, struct.pack(f"<{count}Q", *entries))
        return 0

    def _timestamp(self, words: Sequence[int], at: int) -> int:
        address = words[at + 1] | words[at + 2] << 32
        self.around.store(self.vmid, address, clock_ticks().to_bytes(8, "little"))
        return 0

    def _atomic(self, words: Sequence[int], at: int) -> int:
        header = words[at]
        operation, loop = header >> 25, header >> 16 & 1
        address = words[at + 1] | words[at + 2] << 32
        size = atomics.width(operation)
        if size is None or address % size:
            raise BadSdmaPacket(
                f"ATOMIC {operation:#x} at {address:#x} is not aligned or not modelled", header
            )
        if loop and operation & ~(atomics.WIDE | atomics.NO_RETURN) != atomics.COMPARE_SWAP:
            raise BadSdmaPacket("ATOMIC with LOOP requires a compare-and-swap operation", header)
        source = words[at + 3] | words[at + 4] << 32
        compare = words[at + 5] | words[at + 6] << 32
        mask = (1 << 8 * size) - 1

        def attempt() -> bool:
            old = int.from_bytes(self.around.load(self.vmid, address, size), "little")
            if loop and old != compare & mask:
                return False
            new = atomics.apply(operation, old, source, compare)
            self.around.store(self.vmid, address, new.to_bytes(size, "little"))
            return True

        self._wait(attempt, RETRY_FOREVER)
        return 0

    # ---- control ------------------------------------------------------------------------------

    def _trap(self, words: Sequence[int], at: int) -> int:
        self.around.trap(words[at + 1])
        return 0

    def _srbm_write(self, words: Sequence[int], at: int) -> int:
        index = words[at + 1] >> 2 if self._register_bytes else words[at + 1]
        if not self.around.privileged:
            self.around.refused_register(index)
        elif words[at] >> 28 != 0xF and not self._register_bytes:
            raise BadSdmaPacket("SRBM_WRITE of single bytes is not modelled", words[at])
        else:
            self.around.write_register(index, words[at + 2])
        return 0

    def _cond_exe(self, words: Sequence[int], at: int) -> int:
        address = words[at + 1] | words[at + 2] << 32
        value = int.from_bytes(self.around.load(self.vmid, address, 4), "little")
        return 0 if value == words[at + 3] else words[at + 4]

    def _indirect(self, words: Sequence[int], at: int) -> int:
        header = words[at]
        size = words[at + 3]
        if not self.around.indirect_enabled:
            raise BadSdmaPacket("INDIRECT requires IB_CNTL.IB_ENABLE = 1, found 0", header)
        if self.inside:
            raise BadSdmaPacket("INDIRECT is not valid inside an indirect buffer", header)
        if not size:
            raise BadSdmaPacket("INDIRECT must have at least 1 dword, got 0", header)
        if (self.position + at + 6) % 8:
            raise BadSdmaPacket("INDIRECT must end on an 8-dword boundary of the ring", header)
        # Only a kernel's ring selects VMIDs: a process's buffer is in the VMID of its ring.
        vmid = header >> 16 & 0xF if self.around.privileged else self.around.vmid
        self.inside, self.vmid = True, vmid
        try:
            body = self.around.fetch(vmid, words[at + 1] | words[at + 2] << 32, size)
            if self.run(body) != size or self.skip:
                raise BadSdmaPacket(
                    "the last packet of an indirect buffer ends outside the buffer", header
                )
        finally:
            self.inside, self.vmid, self.skip = False, self.around.vmid, 0
        return 0

    def _wait(self, met: Callable[[], bool], retries: int) -> bool:
        """Wait until `met()` is true; False after `retries` failed attempts."""
        pause = FIRST_POLL_S if retries == RETRY_FOREVER else RETRY_S
        left = retries
        while not met():
            if retries != RETRY_FOREVER:
                if left == 0:
                    return False
                left -= 1
            else:
                pause = min(pause * 1.5, LONGEST_POLL_S)
            self.around.pause(pause)
        return True

    def _poll(self, words: Sequence[int], at: int) -> int:
        header = words[at]
        compare = COMPARE[header >> 28 & 7]
        memory, flush = header >> 31, header >> 26 & 1
        value, mask = words[at + 3], words[at + 4]
        retries = words[at + 5] >> 16 & 0xFFF
        if compare is None or (memory and flush):
            raise BadSdmaPacket(f"POLL_REGMEM header {header:#010x} is not modelled", header)
        around = self.around
        if memory:
            address = words[at + 1] | words[at + 2] << 32
            if address >> 48:
                raise BadSdmaPacket(
                    f"POLL_REGMEM address must be below 2**48, got {address:#x}", header
                )
            vmid = self.vmid
            met = self._wait(
                lambda: compare(
                    int.from_bytes(around.load(vmid, address, 4), "little") & mask, value
                ),
                retries,
            )
        else:
            # Registers are given by byte offset. With HDP_FLUSH the first is DONE, the second REQ.
            if flush:
                around.write_register(words[at + 2] >> 2, value)
            elif words[at + 2]:
                raise BadSdmaPacket(
                    "POLL_REGMEM of a register must have a high address of 0", header
                )
            index = words[at + 1] >> 2
            address = words[at + 1]
            met = self._wait(lambda: compare(around.read_register(index) & mask, value), retries)
        if not met:
            around.poll_timeout(address)
        return 0
