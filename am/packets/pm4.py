"""PM4: the packets of gfx11's compute micro engine.

Source: Linux 6.12 nvd.h (opcodes, fields), gfx_v11_0.c (how the kernel fills them). Shifts and
masks come from the generated constants; this file defines the words of each packet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ugpu.am.packets.assembler import Assembler
from ugpu.am.regs import constants
from ugpu.hcq.work.command_buffer import Symbol

# Event types and their indices (VGT_EVENT_TYPE, soc21_enum.h).
CS_PARTIAL_FLUSH = 7
CACHE_FLUSH_AND_INV_TS = 0x14
BOTTOM_OF_PIPE_TS = 0x28
_INDEX_PARTIAL_FLUSH = 4
_INDEX_END_OF_PIPE = 5
DATA_64, DATA_CLOCK = 2, 3  # RELEASE_MEM data_sel
_INTERRUPT_AFTER_WRITE = 2  # RELEASE_MEM int_sel
_WAIT_EQUAL, _WAIT_UNEQUAL, _WAIT_GREATER_EQUAL = 3, 4, 5
# WRITE_DATA and COPY_DATA: the memory destination, and control bits that have no macros for
# COPY_DATA (gfx_v11_0.c, ring_emit_rreg, uses bare numbers).
_MEMORY, _WRITE_CONFIRM, _ONE_ADDRESS = 5, 1 << 20, 1 << 16
_SOURCE_MEMORY = 1
_WAIT_MEMORY = 1
_POLL_INTERVAL = 0x20  # clocks / 16 between polls of WAIT_REG_MEM
_ACQUIRE_INTERVAL = 0xA
_DMA_L2, _DMA_DATA_VALUE = 3, 2  # DMA_DATA src_sel and dst_sel
DMA_MOST = 0x3FF_FFC0  # bytes per DMA_DATA: 26 bits of count
_DMA_SYNC = 1 << 31
_INHERIT_VMID = 1 << 30  # of INDIRECT_BUFFER; gfx_v11_0.c has it as a bare number
_SIZE_ALL_LOW, _SIZE_ALL_HIGH = 0xFFFF_FFFF, 0xFF_FFFF


@cache
def header(packet: str, payload: int) -> int:
    """The header of the type 3 packet PACKET3_<packet> with `payload` further dwords."""
    nvd = constants("nvd")
    return nvd.PACKET_TYPE3 << 30 | (payload - 1) << 16 | nvd[f"PACKET3_{packet}"] << 8


@cache
def _at(macro: str, value: int) -> int:
    """`value` in the place that the header's macro gives it. Most macros do not mask their
    argument: combine the results by or, since inserting into a word would clear the higher bits."""
    return constants("nvd").field(macro).insert(0, value)


@cache
def acquire_all() -> int:
    """GCR_CNTL of a full acquire: instruction, scalar and vector caches, GL1 and GL2."""
    value = 0
    for name in ("GLI_INV", "GLM_WB", "GLM_INV", "GLK_WB", "GLK_INV", "GLV_INV", "GL1_INV",
                 "GL2_INV", "GL2_WB"):  # fmt: skip
        value |= _at(f"PACKET3_ACQUIRE_MEM_GCR_CNTL_{name}", 1)
    return value


@cache
def release_all() -> int:
    """Cache actions of RELEASE_MEM: write GL2 and metadata back, invalidate what may be stale."""
    nvd = constants("nvd")
    names = ("GLM_WB", "GLM_INV", "GLV_INV", "GL1_INV", "GL2_INV", "GL2_WB", "SEQ")
    value = 0
    for name in names:
        value |= nvd[f"PACKET3_RELEASE_MEM_GCR_{name}"]
    return value


@cache
def _release_event(event: int) -> int:
    index = _at("PACKET3_RELEASE_MEM_EVENT_INDEX", _INDEX_END_OF_PIPE)
    return _at("PACKET3_RELEASE_MEM_EVENT_TYPE", event) | index


@cache
def _release_selects(data: int, *, interrupt: bool) -> int:
    value = _at("PACKET3_RELEASE_MEM_DATA_SEL", data)
    return value | (_at("PACKET3_RELEASE_MEM_INT_SEL", _INTERRUPT_AFTER_WRITE) if interrupt else 0)


class Pm4(Assembler):
    """An image of PM4 packets."""

    def set_sh(self, offset: int, *values: int) -> None:
        """SET_SH_REG header and values; more words may follow: see `set_sh_count`."""
        self.set_sh_count(offset, len(values))
        self.emit(*values)

    def set_sh_count(self, offset: int, count: int) -> None:
        """SET_SH_REG for `count` registers from `offset` (from PACKET3_SET_SH_REG_START on)."""
        self.emit(header("SET_SH_REG", 1 + count), offset)

    def dispatch(self, groups: tuple[int, int, int], initiator: int) -> None:
        self.emit(header("DISPATCH_DIRECT", 4), *groups, initiator)

    def acquire(self) -> None:
        """ACQUIRE_MEM over all memory: later commands see what others have written."""
        self.emit(
            header("ACQUIRE_MEM", 7),
            0,
            _SIZE_ALL_LOW,
            _SIZE_ALL_HIGH,
            0,
            0,
            _ACQUIRE_INTERVAL,
            acquire_all(),
        )

    def wait_idle(self) -> None:
        """EVENT_WRITE: later packets start after all earlier dispatches have ended."""
        event = _at("EVENT_TYPE", CS_PARTIAL_FLUSH) | _at("EVENT_INDEX", _INDEX_PARTIAL_FLUSH)
        self.emit(header("EVENT_WRITE", 1), event)

    def release(
        self, address: Symbol, value: Symbol | None, *, interrupt: bool, flush: bool
    ) -> None:
        """RELEASE_MEM: when all earlier work has ended, write `value`, or the clock if None."""
        event = CACHE_FLUSH_AND_INV_TS if flush else BOTTOM_OF_PIPE_TS
        actions = release_all() if flush else 0
        data = DATA_CLOCK if value is None else DATA_64
        self.emit(
            header("RELEASE_MEM", 7),
            _release_event(event) | actions,
            _release_selects(data, interrupt=interrupt),
        )
        self.pair(address)
        self.pair(value if value is not None else Symbol.constant(0))
        self.emit(0)

    def wait_memory(self, address: Symbol, value: Symbol) -> None:
        """WAIT_REG_MEM: stall until the 32 bits at `address` reach the value's low 32 bits.

        UNSURE: WAIT_REG_MEM64 would compare all 64; the kernel does not use it on this queue type.
        """
        control = _at("WAIT_REG_MEM_FUNCTION", _WAIT_GREATER_EQUAL)
        control |= _at("WAIT_REG_MEM_MEM_SPACE", _WAIT_MEMORY)
        self.emit(header("WAIT_REG_MEM", 6), control)
        self.pair(address)
        self.low(value)
        self.emit(0xFFFF_FFFF, _POLL_INTERVAL)

    def write_register(self, index: int, value: int) -> None:
        """WRITE_DATA to a register by absolute dword index, completed before what follows."""
        self.emit(header("WRITE_DATA", 4), _WRITE_CONFIRM | _ONE_ADDRESS, index, 0, value)

    def store(self, address: Symbol, value: int) -> None:
        """WRITE_DATA of 32 bits to memory, completed before what follows."""
        self.emit(header("WRITE_DATA", 4), _WRITE_CONFIRM | _at("WRITE_DATA_DST_SEL", _MEMORY))
        self.pair(address)
        self.emit(value)

    def store_words(self, address: Symbol, words: Sequence[int]) -> None:
        """WRITE_DATA of neighbouring words of memory, completed before what follows."""
        control = _WRITE_CONFIRM | _at("WRITE_DATA_DST_SEL", _MEMORY)
        self.emit(header("WRITE_DATA", 3 + len(words)), control)
        self.pair(address)
        self.emit(*words)

    def store_register(self, address: Symbol, index: int) -> None:
        """COPY_DATA from a register to 32 bits of memory, completed before what follows."""
        self.emit(header("COPY_DATA", 5), _WRITE_CONFIRM | _MEMORY << 8, index, 0)
        self.pair(address)

    def copy_word(self, address: Symbol, source: int) -> None:
        """COPY_DATA of 32 bits of memory, completed before what follows."""
        self.emit(header("COPY_DATA", 5), _WRITE_CONFIRM | _MEMORY << 8 | _SOURCE_MEMORY)
        self.pair(Symbol.constant(source))
        self.pair(address)

    def wait_register(self, index: int, mask: int, value: int, *, differs: bool = False) -> None:
        """WAIT_REG_MEM: stall until the bits of `mask` in a register are, or are not, `value`."""
        control = _at("WAIT_REG_MEM_FUNCTION", _WAIT_UNEQUAL if differs else _WAIT_EQUAL)
        self.emit(header("WAIT_REG_MEM", 6), control, index, 0, value, mask, _POLL_INTERVAL)

    def copy(self, destination: Symbol, source: Symbol, size: int) -> None:
        """DMA_DATA from memory to memory through L2, in pieces that a packet can count."""
        for start in range(0, size, DMA_MOST):
            self._dma(_DMA_L2)
            self.pair(source.plus(start))
            self.pair(destination.plus(start))
            self.emit(min(DMA_MOST, size - start))

    def fill(self, destination: Symbol, value: int, size: int) -> None:
        """DMA_DATA of one repeated word."""
        for start in range(0, size, DMA_MOST):
            self._dma(_DMA_DATA_VALUE)
            self.emit(value & 0xFFFF_FFFF, 0)
            self.pair(destination.plus(start))
            self.emit(min(DMA_MOST, size - start))

    def _dma(self, source: int) -> None:
        """Header and control of DMA_DATA; later packets wait until the transfer has ended."""
        selects = _at("PACKET3_DMA_DATA_SRC_SEL", source) | _at("PACKET3_DMA_DATA_DST_SEL", _DMA_L2)
        self.emit(header("DMA_DATA", 6), selects | _DMA_SYNC)


def indirect_buffer() -> tuple[int, int]:
    """(header, control without the size in dwords) of the packet that runs an image in the VMID of
    its queue: user queues inherit it (gfx_v11_0.c, ring_emit_ib_compute; libdrm's tests of user
    queues)."""
    return header("INDIRECT_BUFFER", 3), constants("nvd").INDIRECT_BUFFER_VALID | _INHERIT_VMID


def fence(address: int) -> list[int]:
    """RELEASE_MEM that writes 64 bits to `address`; words 5 and 6 are the value."""
    packet = Pm4()
    packet.release(Symbol.constant(address), Symbol.constant(0), interrupt=False, flush=False)
    return packet.words


def filler(words: int) -> list[int]:
    """A NOP packet that takes `words` dwords, two or more."""
    return [header("NOP", words - 1), *([0] * (words - 1))]
