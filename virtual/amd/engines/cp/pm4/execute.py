"""Execute the PM4 packets of one queue: those that compute queues accept.

Shader waves run asynchronously to the command processor. A dispatch is queued, and runs at the
latest when a packet waits for it (CS_PARTIAL_FLUSH, RELEASE_MEM), when a wait condition is not met
yet, or when the queue has nothing else to do. So packets that follow a dispatch without a wait see
memory as it was before the dispatch, which can also happen on the chip. Sources: Linux 6.12 nvd.h
and gfx_v11_0.c; navi10_enum.h for event types.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from ugpu.virtual.amd.engines import atomics
from ugpu.virtual.amd.engines.compare import COMPARE
from ugpu.virtual.amd.engines.cp.pm4 import packets
from ugpu.virtual.amd.engines.cp.pm4.decoded import Buffers, Handler, entries
from ugpu.virtual.amd.engines.cp.pm4.packets import BadPacket, PacketFormat, PrivilegedRegister
from ugpu.virtual.amd.engines.cp.pm4.surroundings import Surroundings
from ugpu.virtual.amd.engines.engine import clock_ticks

CS_PARTIAL_FLUSH = 0x07
PARTIAL_FLUSH_INDEX = 4
CS_DONE = 0x2F
# CACHE_FLUSH_TS, CACHE_FLUSH_AND_INV_TS, BOTTOM_OF_PIPE_TS
END_OF_PIPE_EVENTS = frozenset((0x04, 0x14, 0x28))
END_OF_PIPE_INDEX = 5
SHADER_DONE_INDEX = 6
# Events without effect here: caches, statistics and thread trace are not modelled.
QUIET_EVENTS = frozenset((0x06, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x33, 0x34, 0x35, 0x37))

IB_CHAIN = 1 << 20
IB_VALID = 1 << 23
IB_INHERIT_VMID = 1 << 30

# GCR_CNTL bits without which a wave may read stale data from its L0, L1 or scalar cache.
ACQUIRE_SHADER_CACHES = 1 << 7 | 1 << 8 | 1 << 9  # GLK_INV, GLV_INV, GL1_INV

FIRST_POLL_S = 20e-6
LONGEST_POLL_S = 1e-3


class Executor:
    """Run packets on its Surroundings; one per active queue, used only by the queue's own thread.

    A handler receives all words, the index of its payload and the payload's length, and returns the
    number of dwords to skip after the packet.
    """

    formats: ClassVar[Mapping[int, PacketFormat]] = packets.FORMATS
    valid_bit = IB_VALID  # required in each INDIRECT_BUFFER
    inherit_bit = IB_INHERIT_VMID  # an INDIRECT_BUFFER with this bit keeps the VMID
    engines = 1  # values of ENGINE_SEL: a compute queue has one engine, a graphics queue ME and PFP

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.vmid = around.vmid  # of the packets being executed
        self.depth = 0  # 1 inside an indirect buffer
        self.skip = 0  # dwords still to skip, from a COND_EXEC at the end of the fetched words
        self.stale = ""  # the event since which shader caches may be stale; "" if they are not
        self.consumed = 0  # dwords read from the ring; never wraps
        self._chained: tuple[int, int] | None = None  # address and size of the next buffer
        self._table = entries(self.formats, self.handlers())
        self._buffers = Buffers(self._table, self._set_sh_reg, around.undefined_sh)

    def handlers(self) -> dict[int, Handler]:
        """Return the handler of each opcode; subclasses add the packets of their queues."""
        return {
            packets.NOP: self._nop,
            packets.DISPATCH_DIRECT: self._dispatch_direct,
            packets.DISPATCH_INDIRECT: self._dispatch_indirect,
            packets.ATOMIC_MEM: self._atomic_mem,
            packets.COND_EXEC: self._cond_exec,
            packets.PRED_EXEC: self._pred_exec,
            packets.WRITE_DATA: self._write_data,
            packets.WAIT_REG_MEM: self._wait_reg_mem,
            packets.WAIT_REG_MEM64: self._wait_reg_mem64,
            packets.INDIRECT_BUFFER: self._indirect_buffer,
            packets.COPY_DATA: self._copy_data,
            packets.EVENT_WRITE: self._event_write,
            packets.RELEASE_MEM: self._release_mem,
            packets.ACQUIRE_MEM: self._acquire_mem,
            packets.DMA_DATA: self._dma_data,
            packets.SET_SH_REG: self._set_sh_reg,
            packets.SET_UCONFIG_REG: self._set_uconfig_reg,
        }

    def run(self, words: Sequence[int]) -> int:
        """Execute the complete packets in `words`; return how many dwords were consumed.

        An incomplete last packet is left in place. `consumed` advances past each packet of the ring
        before the packet takes effect, so that a fence also frees its own ring space. After an
        exception, `consumed` is at the packet that raised it.
        """
        in_ring, base = not self.depth, self.consumed
        end = len(words)
        at = min(self.skip, end)
        self.skip -= at
        table = self._table
        if in_ring:
            self.consumed = base + at
        while at < end:
            header = words[at]
            entry = table.get(header & packets.KIND)
            if entry is None:
                packets.payload_length(header)
                packets.check(header, words, at + 1, self.formats)
                raise BadPacket("packet cannot be executed", header)
            minimum, maximum, masks, handler = entry
            count = ((header >> 16) & packets.MAXIMUM_COUNT) + 1
            if count > packets.MAXIMUM_COUNT:
                if header & ~packets.SHADER_TYPE != packets.ONE_DWORD_NOP:
                    raise BadPacket("count 0x3fff is valid only for a NOP of one dword", header)
                at += 1
                if in_ring:
                    self.consumed = base + at
                continue
            if not minimum <= count <= maximum:
                packets.check(header, words, at + 1, self.formats)
            payload = at + 1
            after = payload + count
            if after > end:
                break
            if header & packets.RESERVED_HEADER or any(words[payload + i] & m for i, m in masks):
                words = packets.forgive(self.formats, words, at, self.around.forgive)
            if in_ring:
                self.consumed = base + after
            try:
                skip = handler(words, payload, count)
            except BaseException:
                if in_ring:
                    self.consumed = base + at
                raise
            at = after
            if skip:
                at += skip
                if at > end:
                    self.skip = at - end
                    at = end
                if in_ring:
                    self.consumed = base + at
        return at

    # ---- registers ----------------------------------------------------------------------------

    def _nop(self, words: Sequence[int], at: int, count: int) -> int:
        return 0

    def _set_sh_reg(self, words: Sequence[int], at: int, count: int) -> int:
        offset = words[at]
        if offset + count - 1 > len(self.around.sh):
            raise BadPacket(
                f"SET_SH_REG of {count - 1} registers at offset {offset:#x} ends outside SH space",
                words[at - 1],
            )
        values = words[at + 1 : at + count]
        self.around.check_sh(offset, values)
        self.around.sh[offset : offset + count - 1] = values
        return 0

    def _set_uconfig_reg(self, words: Sequence[int], at: int, count: int) -> int:
        first = packets.UCONFIG_REGISTERS.start + words[at]
        if first + count - 1 > packets.UCONFIG_REGISTERS.stop:
            raise BadPacket(
                f"SET_UCONFIG_REG of {count - 1} at {words[at]:#x} ends outside UCONFIG space",
                words[at - 1],
            )
        for number in range(count - 1):
            self.around.write_register(first + number, words[at + 1 + number])
        return 0

    def _read_register(self, index: int, header: int) -> int:
        if index in packets.SH_REGISTERS:
            return self.around.sh[index - packets.SH_REGISTERS.start]
        return self.around.read_register(index)

    def _write_register(self, index: int, value: int, header: int) -> None:
        if index in packets.SH_REGISTERS:
            offset = index - packets.SH_REGISTERS.start
            self.around.check_sh(offset, (value,))
            self.around.sh[offset] = value
        elif index in packets.UCONFIG_REGISTERS or self.around.privileged:
            self.around.write_register(index, value)
        else:
            raise PrivilegedRegister(f"register {index:#x} needs a privileged queue", header)

    # ---- memory -------------------------------------------------------------------------------

    def _write_data(self, words: Sequence[int], at: int, count: int) -> int:
        control = words[at]
        address = words[at + 1] | words[at + 2] << 32
        data = words[at + 3 : at + count]
        destination = (control >> 8) & 0xF
        one_address = bool(control & 1 << 16)
        if control >> 30 >= self.engines:
            raise BadPacket("WRITE_DATA selects an engine not in this queue", words[at - 1])
        if destination == 0:
            for number, value in enumerate(data):
                index = address if one_address else address + number
                self._write_register(index, value, words[at - 1])
        elif destination in (1, 2, 5):
            if address & 3:
                raise BadPacket(f"WRITE_DATA to {address:#x}, not 4-byte aligned", words[at - 1])
            if one_address:
                data = data[-1:]
            self.around.store(self.vmid, address, struct.pack(f"<{len(data)}I", *data))
        else:
            raise BadPacket(f"WRITE_DATA destination {destination} is not modelled", words[at - 1])
        return 0

    def _copy_data(self, words: Sequence[int], at: int, count: int) -> int:
        control = words[at]
        source_kind = control & 0xF
        destination_kind = (control >> 8) & 0xF
        size = 8 if control & 1 << 16 else 4
        source = words[at + 1] | words[at + 2] << 32
        destination = words[at + 3] | words[at + 4] << 32
        header = words[at - 1]
        if control >> 30 >= self.engines:
            raise BadPacket("COPY_DATA selects an engine not in this queue", header)
        if source_kind in (1, 2):
            if source % size:
                raise BadPacket(f"COPY_DATA of {size} bytes from {source:#x}, not aligned", header)
            value = int.from_bytes(self.around.load(self.vmid, source, size), "little")
        elif source_kind in (0, 4):
            value = self._read_register(words[at + 1], header)
            if size == 8:
                value |= self._read_register(words[at + 1] + 1, header) << 32
        elif source_kind == 5:
            value = source
        elif source_kind == 9:
            value = clock_ticks()
        else:
            raise BadPacket(f"COPY_DATA source {source_kind} is not modelled", header)
        if destination_kind in (2, 5):
            if destination % size:
                raise BadPacket(
                    f"COPY_DATA of {size} bytes to {destination:#x}, not aligned", header
                )
            data = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
            self.around.store(self.vmid, destination, data)
        elif destination_kind in (0, 4):
            self._write_register(words[at + 3], value & packets.ALL, header)
            if size == 8:
                self._write_register(words[at + 3] + 1, value >> 32 & packets.ALL, header)
        else:
            raise BadPacket(f"COPY_DATA destination {destination_kind} is not modelled", header)
        return 0

    def _atomic_mem(self, words: Sequence[int], at: int, count: int) -> int:
        control = words[at]
        operation = control & 0x7F
        command = (control >> 8) & 0xF
        address = words[at + 1] | words[at + 2] << 32
        size = atomics.width(operation)
        if size is None or command > 1:
            raise BadPacket(
                f"ATOMIC_MEM {operation:#x} mode {command} is not modelled", words[at - 1]
            )
        if address % size:
            raise BadPacket(
                f"ATOMIC_MEM of {size} bytes at {address:#x}, not aligned", words[at - 1]
            )
        source = words[at + 3] | words[at + 4] << 32
        compare = words[at + 5] | words[at + 6] << 32
        mask = (1 << 8 * size) - 1

        def attempt() -> bool:
            old = int.from_bytes(self.around.load(self.vmid, address, size), "little")
            if command == 1 and old != compare & mask:
                return False
            new = atomics.apply(operation, old, source, compare)
            self.around.store(self.vmid, address, new.to_bytes(size, "little"))
            return True

        self._wait(attempt)
        return 0

    def _dma_data(self, words: Sequence[int], at: int, count: int) -> int:
        """Move bytes with the CP's own DMA; it does not wait for waves, and the CP waits for it."""
        control, command = words[at], words[at + 5]
        source_kind, destination_kind = control >> 29 & 3, control >> 20 & 3
        source = words[at + 1] | words[at + 2] << 32
        destination = words[at + 3] | words[at + 4] << 32
        size = command & 0x3FF_FFFF
        header = words[at - 1]
        if control & 1 or command >> 26 & 0xF:
            raise BadPacket("DMA_DATA by PFP or on registers is not modelled", header)
        if destination_kind not in (0, 3) or source_kind == 1:
            raise BadPacket("DMA_DATA of GDS is not modelled", header)
        if destination >> 48 or (source_kind != 2 and source >> 48):
            raise BadPacket("DMA_DATA addresses must be below 2**48", header)
        if not size:
            return 0
        if source_kind == 2:
            if destination % 4 or size % 4:
                raise BadPacket(f"DMA_DATA fill at {destination:#x} is not aligned", header)
            pattern = words[at + 1].to_bytes(4, "little")
            self.around.fill(self.vmid, destination, pattern, size)
        else:
            self.around.copy(self.vmid, source, destination, size)
        return 0

    # ---- waiting ------------------------------------------------------------------------------

    def _wait(self, met: Callable[[], bool]) -> None:
        self.stale = "a wait for memory"
        if met():
            return
        self.around.drain()  # waves run while the command processor waits
        pause = FIRST_POLL_S
        while not met():
            self.around.pause(pause)
            pause = min(pause * 1.5, LONGEST_POLL_S)

    def _wait_reg_mem(self, words: Sequence[int], at: int, count: int) -> int:
        header, control = words[at - 1], words[at]
        compare = COMPARE[control & 7]
        space, operation, engine = control >> 4 & 3, control >> 6 & 3, control >> 8 & 3
        reference, mask = words[at + 3], words[at + 4]
        if compare is None or space > 1 or operation > 1 or engine >= self.engines:
            raise BadPacket(f"WAIT_REG_MEM control {control:#x} is not modelled", header)
        if operation == 1:
            if space:
                raise BadPacket("WAIT_REG_MEM writes registers only", header)
            # Both operands are registers: write the first, then wait for the second. The kernel
            # does so with GPU_HDP_FLUSH_REQ and _DONE from queues of any privilege, and with
            # VM_INVALIDATE_ENGn_REQ and _ACK, where the written value has more bits than the mask.
            self.around.write_register(words[at + 1], reference)
            index, wanted = words[at + 2], reference & mask
            self._wait(lambda: compare(self._read_register(index, header) & mask, wanted))
            return 0
        if space == 0:
            index = words[at + 1]
            self._wait(lambda: compare(self._read_register(index, header) & mask, reference))
            return 0
        address = words[at + 1] | words[at + 2] << 32
        if address & 3 or address >> 48:
            raise BadPacket(f"WAIT_REG_MEM at {address:#x}: unaligned or above 2**48", header)
        load, vmid = self.around.load, self.vmid
        self._wait(
            lambda: compare(int.from_bytes(load(vmid, address, 4), "little") & mask, reference)
        )
        return 0

    def _wait_reg_mem64(self, words: Sequence[int], at: int, count: int) -> int:
        control = words[at]
        compare = COMPARE[control & 7]
        if compare is None or control >> 4 & 3 != 1 or control >> 6 & 0xF:
            raise BadPacket(f"WAIT_REG_MEM64 control {control:#x} is not modelled", words[at - 1])
        address = words[at + 1] | words[at + 2] << 32
        reference = words[at + 3] | words[at + 4] << 32
        mask = words[at + 5] | words[at + 6] << 32
        load, vmid = self.around.load, self.vmid
        self._wait(
            lambda: compare(int.from_bytes(load(vmid, address, 8), "little") & mask, reference)
        )
        return 0

    # ---- control flow -------------------------------------------------------------------------

    def _indirect_buffer(self, words: Sequence[int], at: int, count: int) -> int:
        header, control = words[at - 1], words[at + 2]
        address = words[at] | words[at + 1] << 32
        size = control & 0xFFFFF
        if control & self.valid_bit != self.valid_bit:
            raise BadPacket("INDIRECT_BUFFER must have VALID set", header)
        if not size:
            raise BadPacket("INDIRECT_BUFFER must have at least 1 dword, got 0", header)
        if bool(control & IB_CHAIN) != bool(self.depth):
            # The MEC has no second level: a buffer may only contain a chain, which replaces the
            # rest of the buffer.
            raise BadPacket(f"INDIRECT_BUFFER control {control:#x} at level {self.depth}", header)
        if self.depth:
            self._chained = (address, size)
            return len(words)
        vmid = self.around.vmid
        if self.around.may_choose_vmid and not control & self.inherit_bit:
            vmid = control >> 24 & 0xF
        self.depth, self.vmid = 1, vmid
        try:
            self._chained = (address, size)
            while self._chained is not None:
                address, size = self._chained
                self._chained = None
                self._run_buffer(self.around.fetch(vmid, address, size), header)
        finally:
            self.depth, self.vmid, self.skip = 0, self.around.vmid, 0
        return 0

    def _run_buffer(self, words: tuple[int, ...], header: int) -> None:
        whole = self._run_decoded(words) == len(words)
        if self._chained is not None:
            self.skip = 0
        if not whole or self.skip:
            raise BadPacket("the last packet of an indirect buffer ends outside the buffer", header)

    def _run_decoded(self, words: tuple[int, ...]) -> int:
        """Do the same as `run` for the words of an indirect buffer."""
        decoded, registers = self._buffers.of(words), self.around.sh
        at, end = decoded.end, len(words)
        for handler, payload, count in decoded.steps:
            if handler is None:
                first = words[payload]
                registers[first : first + count - 1] = words[payload + 1 : payload + count]
            elif skip := handler(words, payload, count):
                at = payload + count + skip
                break
        self.skip = max(at - end, 0)
        return at + self.run(words[at:]) if at < end else end

    def _cond_exec(self, words: Sequence[int], at: int, count: int) -> int:
        address = words[at] | words[at + 1] << 32
        flag = int.from_bytes(self.around.load(self.vmid, address, 4), "little")
        return 0 if flag else words[at + 3]

    def _pred_exec(self, words: Sequence[int], at: int, count: int) -> int:
        if not self.depth:
            raise BadPacket(
                "PRED_EXEC is valid only in indirect buffers, found in the ring", words[at - 1]
            )
        return 0 if words[at] >> 24 & 1 else words[at] & 0x3FFF

    # ---- shaders and caches -------------------------------------------------------------------

    def _launch(self, dims: Sequence[int], initiator: int) -> None:
        if self.stale:
            self.around.unacquired(self.stale)
            self.stale = ""
        self.around.dispatch(self.vmid, dims, initiator)

    def _dispatch_direct(self, words: Sequence[int], at: int, count: int) -> int:
        self._launch(words[at : at + 3], words[at + 3])
        return 0

    def _dispatch_indirect(self, words: Sequence[int], at: int, count: int) -> int:
        address = words[at] | words[at + 1] << 32
        dims = struct.unpack("<3I", self.around.load(self.vmid, address, 12))
        self._launch(dims, words[at + 2])
        return 0

    def _event_write(self, words: Sequence[int], at: int, count: int) -> int:
        event, index = words[at] & 0x3F, words[at] >> 8 & 0xF
        if event == CS_PARTIAL_FLUSH:
            if index != PARTIAL_FLUSH_INDEX:
                raise BadPacket(f"CS_PARTIAL_FLUSH event index must be 4: {index}", words[at - 1])
            if self.around.drain():
                self.stale = "earlier launches"
        elif event not in QUIET_EVENTS or index:
            raise BadPacket(f"EVENT_WRITE {event:#x} index {index} is not modelled", words[at - 1])
        return 0

    def _acquire_mem(self, words: Sequence[int], at: int, count: int) -> int:
        # Caches are not modelled: shader cores and engines see memory writes at once. The model
        # still checks that this packet precedes a launch.
        if words[at + 6] & ACQUIRE_SHADER_CACHES == ACQUIRE_SHADER_CACHES:
            self.stale = ""
        return 0

    def _release_mem(self, words: Sequence[int], at: int, count: int) -> int:
        header, what, how = words[at - 1], words[at], words[at + 1]
        event, index = what & 0x3F, what >> 8 & 0xF
        sound = (event in END_OF_PIPE_EVENTS and index == END_OF_PIPE_INDEX) or (
            event == CS_DONE and index == SHADER_DONE_INDEX
        )
        if not sound:
            raise BadPacket(
                f"RELEASE_MEM event {event:#x} with index {index} is not modelled", header
            )
        destination, interrupt, data = how >> 16 & 3, how >> 24 & 7, how >> 29
        address = words[at + 2] | words[at + 3] << 32
        if destination > 1 or data > 4 or interrupt > 3:
            raise BadPacket(f"RELEASE_MEM selects {how:#010x} are not modelled", header)
        if interrupt == 1 and data:
            raise BadPacket("RELEASE_MEM INT_SEL 1 (interrupt only) requires DATA_SEL 0", header)
        if interrupt > 1 and not data:
            # tinygrad does so before each timestamp that it takes, on boards.
            self.around.forgive("RELEASE_MEM INT_SEL 2 or 3 waits for the write of no data", True)
        if data > 1 and address & 7:
            raise BadPacket(f"RELEASE_MEM of 64 bits to {address:#x}, not 8-byte aligned", header)
        if self.around.drain():
            self.stale = "earlier launches"
        body = b""
        if data == 1:
            body = words[at + 4].to_bytes(4, "little")
        elif data == 2:
            body = (words[at + 4] | words[at + 5] << 32).to_bytes(8, "little")
        elif data:
            body = clock_ticks().to_bytes(8, "little")
        self.around.end_of_pipe(address, body)
        if body:
            self.around.store(self.vmid, address, body)
        if interrupt in (1, 2):
            self.around.end_of_pipe_interrupt(words[at + 6])
        return 0
