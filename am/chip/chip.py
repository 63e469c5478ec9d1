"""One chip behind one transport: registers, device memory window, doorbells, presence.

Every driver of a block gets a Chip. Registers are named through the generated tables, at the bases
that the chip's own discovery table states.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ugpu.am.chip.discovery import Discovery, IpInstance
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.regs import load
from ugpu.hcq.bare.bus import ALL_ONES, RegisterBus
from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.bare.vram import WindowVram
from ugpu.hcq.errors import DiscoveryError
from ugpu.hcq.registers.fields import BoundRegister, RegisterBlock, RegisterMap
from ugpu.hcq.transport.base import Transport, Window


class IndexedVram(WindowVram):
    """The chip's memory: beyond BAR0's end 4 bytes at a time through MM_INDEX/MM_DATA (dword
    registers 0, 1 and 6; Linux 6.12 amdgpu_device.c, amdgpu_device_mm_access)."""

    def __init__(self, window: Window, bus: RegisterBus, size: int) -> None:
        super().__init__(window, size)
        self.bus = bus

    def read_beyond(self, address: int, size: int) -> bytes:
        words = []
        for offset in range(address, address + size, 4):
            self._aim(offset)
            words.append(self.bus.read32(1).to_bytes(4, "little"))
        return b"".join(words)

    def write_beyond(self, address: int, data: memoryview) -> None:
        for offset in range(0, len(data), 4):
            self._aim(address + offset)
            self.bus.write32(1, int.from_bytes(data[offset : offset + 4], "little"))

    def _aim(self, address: int) -> None:
        self.bus.write32(6, address >> 31)
        self.bus.write32(0, (address & 0x7FFF_FFFF) | 0x8000_0000)


class Chip(BareChip):
    """One chip: its facts, its transport and, after `describe`, its register blocks."""

    gc: RegisterBlock
    mmhub: RegisterBlock
    nbio: RegisterBlock
    mp0: RegisterBlock
    mp1: RegisterBlock
    osssys: RegisterBlock
    hdp: RegisterBlock
    thm: RegisterBlock  # if `instances` has one
    wave_registers: RegisterMap  # indirect, through SQ_IND_INDEX
    discovery: Discovery

    def __init__(self, transport: Transport, facts: ChipFacts) -> None:
        self.facts = facts
        self.generation = generation = facts.generation
        super().__init__(transport, generation.register_bar)
        self.doorbells = transport.window(generation.doorbell_bar)
        self.vram = IndexedVram(transport.window(generation.vram_bar), self.bus, 0)
        self._instances: dict[str, tuple[RegisterBlock, ...]] = {}

    def describe(self, discovery: Discovery) -> None:
        """Take blocks and register bases from the chip's discovery table.

        DiscoveryError, before any write, for a missing block or a version without register table.
        """
        self.discovery = discovery
        for block in self.generation.register_tables:
            found = discovery.instances(self.generation.hardware_ids[block])
            if block in self.generation.optional_blocks and not self._has_table(block, found):
                continue
            if not found:
                raise DiscoveryError(
                    f"expected {block} in the discovery table, found none", block=block
                )
            self._instances[block] = tuple(self._registers(block, one) for one in found)
            name = block.lower() if block != "NBIF" else "nbio"
            setattr(self, name, self._instances[block][0])
        for engine in self.copy_engines():
            self._check_version("SDMA0", engine)
        self.wave_registers = load(self.generation.wave_register_table)
        self.bus.index_register = self.nbio.BIF_BX_PF0_RSMU_INDEX.index
        self.bus.data_register = self.nbio.BIF_BX_PF0_RSMU_DATA.index
        self.bus.selectors = frozenset(
            register.index for register in (self.gc.GRBM_GFX_CNTL, self.gc.GRBM_GFX_INDEX)
        )

    def _has_table(self, block: str, found: Sequence[IpInstance]) -> bool:
        tables = self.generation.register_tables[block]
        return bool(found) and all(one.version in tables for one in found)

    def _registers(self, block: str, found: IpInstance) -> RegisterBlock:
        """Return the registers of one instance, from the table of its version."""
        self._check_version(block, found)
        table = self.generation.register_tables[block][found.version]
        return RegisterBlock(load(table), found.bases, self.bus)

    def _check_version(self, block: str, found: IpInstance) -> None:
        expected = self.facts.versions.get(block)
        known = set(self.generation.register_tables.get(block, ()))
        if block in self.generation.naming_blocks:
            known = {self.facts.versions[block]}  # its firmware is named after it
        if found.version not in known:
            versions = " or ".join(".".join(map(str, version)) for version in sorted(known))
            raise DiscoveryError(
                f"{block}: expected version {versions}, got {'.'.join(map(str, found.version))}",
                block=block,
                instance=found.instance,
                expected=expected,
                found=found.version,
            )

    def instances(self, block: str) -> tuple[RegisterBlock, ...]:
        """Return the registers of each instance of a block that discovery lists and harvesting
        left. The attribute with the block's name is the first instance."""
        return self._instances.get(block, ())

    def copy_engines(self) -> list[IpInstance]:
        """Return the copy engines that discovery lists and harvesting left.

        Discovery tables list them as instances of SDMA0 or as blocks of their own (Linux 6.12
        amdgpu_discovery.c counts both).
        """
        ids, find = self.generation.hardware_ids, self.discovery.find
        found = []
        for index in range(self.facts.copy_engines):
            engine = find(ids["SDMA0"], index)
            if engine is None and f"SDMA{index}" in ids:
                engine = find(ids[f"SDMA{index}"], 0)
            if engine is not None:
                found.append(replace(engine, instance=index))
        return found

    def mailbox(self, number: int) -> BoundRegister:
        """Return one of the PSP's mailbox registers (C2PMSG)."""
        return self.mp0[f"{self.generation.psp_mailbox}_{number}"]

    # ---- presence ----------------------------------------------------------------------------

    def outside_graphics(self, index: int) -> bool:
        """Return whether an absolute dword index is in a block other than the graphics core."""
        owners = [
            name
            for name, blocks in self._instances.items()
            if any(block.find(index) is not None for block in blocks)
        ]
        return bool(owners) and "GC" not in owners

    def blocks(self) -> Iterator[RegisterBlock]:
        return itertools.chain.from_iterable(self._instances.values())

    def memory_size_mb(self) -> int:
        return self.bus.read32(self.generation.memory_size_register)

    def silent(self) -> bool:
        if self.memory_size_mb() != ALL_ONES:
            return False
        return self.bus.read32(self.generation.ifwi_register) == ALL_ONES
