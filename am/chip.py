"""The chip as one transport reaches it: registers, device memory window, doorbells, presence.

Everything that drives a block gets a Chip. Registers are named through the generated tables, at the
bases that the chip's own discovery table states.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import ParamSpec, Protocol, TypeVar, cast

from am.discovery import Discovery
from am.link import Link
from am.regs import load
from hcq.errors import BadArgument, DeviceLost, DiscoveryError
from hcq.fields import BoundRegister, RegisterBlock, RegisterMap, RegisterValue
from hcq.poll import wait_until
from hcq.transport.base import Transport, Window

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

ALL_ONES = 0xFFFF_FFFF
# Linux 6.12 amdgpu_device.c: generic register wait, usec_timeout.
REGISTER_LIMIT_S = 0.1


class RegisterBus:
    """Registers by absolute dword index, through BAR5 or, beyond its end, the RSMU index pair.

    The index register is read back before the data access: a posted index write could otherwise
    arrive after it (Linux 6.12 amdgpu_device.c, amdgpu_device_indirect_rreg).
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        self.index_register: int | None = None  # dword indices, known after discovery
        self.data_register: int | None = None

    def read32(self, index: int) -> int:
        offset = index * 4
        if offset + 4 <= self.window.size:
            return self.window.read32(offset)
        return self.window.read32(self._select(offset))

    def write32(self, index: int, value: int) -> None:
        offset = index * 4
        if offset + 4 <= self.window.size:
            self.window.write32(offset, value)
            return
        data = self._select(offset)
        self.window.write32(data, value)
        self.window.read32(data)

    def _select(self, address: int) -> int:
        """Aim the RSMU pair at byte `address`; returns the BAR offset of its data register."""
        if self.index_register is None or self.data_register is None:
            raise BadArgument("register beyond BAR5, and no index pair known yet", address=address)
        self.window.write32(self.index_register * 4, address)
        self.window.read32(self.index_register * 4)
        return self.data_register * 4


class Vram:
    """The chip's memory as the host reaches it. Addresses are offsets in VRAM, in bytes.

    Through BAR0 up to its size, beyond that 4 bytes at a time through MM_INDEX/MM_DATA (dword
    registers 0, 1 and 6; Linux 6.12 amdgpu_device.c, amdgpu_device_mm_access).
    """

    def __init__(self, window: Window, bus: RegisterBus, size: int) -> None:
        self.window = window
        self.bus = bus
        self.size = size

    @property
    def visible(self) -> int:
        """Bytes the host reaches directly."""
        return min(self.window.size, self.size)

    def read(self, address: int, size: int) -> bytes:
        self._check(address, size)
        if address + size <= self.visible:
            return self.window.read(address, size)
        words = []
        for offset in range(address, address + size, 4):
            self._aim(offset)
            words.append(self.bus.read32(1).to_bytes(4, "little"))
        return b"".join(words)

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        self._check(address, len(view))
        if address + len(view) <= self.visible:
            self.window.write(address, view)
            return
        for offset in range(0, len(view), 4):
            self._aim(address + offset)
            self.bus.write32(1, int.from_bytes(view[offset : offset + 4], "little"))

    def _aim(self, address: int) -> None:
        self.bus.write32(6, address >> 31)
        self.bus.write32(0, (address & 0x7FFF_FFFF) | 0x8000_0000)

    def _check(self, address: int, size: int) -> None:
        if address % 4 or size % 4 or address < 0 or address + size > self.size:
            raise BadArgument("not a range of VRAM", address=address, size=size, vram=self.size)


class OfChip(Protocol):
    """What drives a block."""

    chip: Chip


def batched(method: Callable[P, R]) -> Callable[P, R]:
    """A method of a block's driver whose register writes may travel together (Transport.batch): it
    sets things up, and neither sleeps nor looks into memory."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        owner = cast(OfChip, args[0])
        with owner.chip.transport.batch():
            return method(*args, **kwargs)

    return run


class Chip:
    """One chip: facts, transport, and, once `describe` was called, its register blocks."""

    gc: RegisterBlock
    mmhub: RegisterBlock
    nbio: RegisterBlock
    mp0: RegisterBlock
    mp1: RegisterBlock
    osssys: RegisterBlock
    hdp: RegisterBlock
    wave_registers: RegisterMap  # indirect, through SQ_IND_INDEX
    discovery: Discovery

    def __init__(self, transport: Transport, facts: ModuleType) -> None:
        self.transport = transport
        self.facts = facts
        self.link = Link(transport)
        self.bus = RegisterBus(transport.window(facts.REGISTER_BAR))
        self.doorbells = transport.window(facts.DOORBELL_BAR)
        self.vram = Vram(transport.window(facts.VRAM_BAR), self.bus, 0)

    def describe(self, discovery: Discovery) -> None:
        """Take the register bases from the chip's discovery table; DiscoveryError without them."""
        self.discovery = discovery
        for block, table in self.facts.REGISTER_TABLES.items():
            found = discovery.find(self.facts.HARDWARE_IDS[block], 0)
            if found is None:
                if block in ("SMUIO", "THM"):
                    continue  # not needed to run; sensors come from the SMU
                raise DiscoveryError(f"the discovery table has no {block}", block=block)
            expected = self.facts.IP_VERSIONS[block]
            if found.version != expected:
                log.warning("%s is version %s, %s expected", block, found.version, expected)
            registers = RegisterBlock(load(table), found.bases, self.bus)
            setattr(self, block.lower() if block != "NBIF" else "nbio", registers)
        self.wave_registers = load(self.facts.WAVE_REGISTER_TABLE)
        self.bus.index_register = self.nbio.BIF_BX_PF0_RSMU_INDEX.index
        self.bus.data_register = self.nbio.BIF_BX_PF0_RSMU_DATA.index

    # ---- presence ----------------------------------------------------------------------------

    def memory_size_mb(self) -> int:
        return self.bus.read32(self.facts.RCC_CONFIG_MEMSIZE)

    def lost(self) -> bool:
        """Whether the chip is gone: nothing in configuration space, or only ones in registers."""
        return not self.transport.present() or self.memory_size_mb() == ALL_ONES

    def check_present(self, while_doing: str) -> None:
        """Raise DeviceLost unless two independent places still answer.

        A single all-ones read may be one lost completion; a dead chip reads all ones everywhere.
        """
        config = self.transport.present()
        if not config or self.memory_size_mb() == ALL_ONES:
            raise DeviceLost(
                f"the chip no longer answers while {while_doing}",
                config_space="answers" if config else "all ones",
                registers="all ones",
            )

    def wait(
        self,
        register: BoundRegister,
        done: Callable[[RegisterValue], bool],
        *,
        unit: str,
        waiting_for: str,
        limit_s: float = REGISTER_LIMIT_S,
    ) -> RegisterValue:
        """Poll `register` until `done(value)`; UnitTimeout after `limit_s`, DeviceLost when gone.

        A value of all ones never counts as done: a dead bus would pass every bit test.
        """
        last: list[RegisterValue] = []

        def probe() -> RegisterValue | None:
            value = register.read()
            last[:] = [value]
            if value == ALL_ONES:
                self.check_present(f"waiting for {waiting_for}")
                return None
            return value if done(value) else None

        return wait_until(
            probe,
            unit=unit,
            waiting_for=waiting_for,
            limit_s=limit_s,
            state=lambda: repr(last[0]) if last else "never read",
        )
