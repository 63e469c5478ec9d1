"""One chip behind one transport: registers, device memory window, doorbells, presence.

Every driver of a block gets a Chip. Registers are named through the generated tables, at the bases
that the chip's own discovery table states.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ParamSpec, Protocol, TypeVar, cast

from ugpu.am.chip import remedies as advice
from ugpu.am.chip.discovery import Discovery, IpInstance
from ugpu.am.chip.link import Link
from ugpu.am.chip.recent import described
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.regs import load
from ugpu.hcq.errors import BadArgument, DeviceLost, DiscoveryError
from ugpu.hcq.registers.fields import BoundRegister, RegisterBlock, RegisterMap, RegisterValue
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.base import Transport, Window
from ugpu.hcq.transport.pci.config import SavedConfig
from ugpu.hcq.uapi import constants

P = ParamSpec("P")
R = TypeVar("R")

ALL_ONES = 0xFFFF_FFFF
RECENT = 1024  # accesses kept for reports
# Linux 6.12 amdgpu_device.c: generic register wait, usec_timeout.
REGISTER_LIMIT_S = 0.1


class Recorder(Protocol):
    """Takes register accesses in place of the bus. wait: until bits have a value, or any other
    value (`differs`). keep: `take` gets the register's value at that point, once everything is
    done. fill, put: write zeros or `words` to memory in VMID 0."""

    def read32(self, index: int) -> int: ...
    def write32(self, index: int, value: int) -> None: ...
    def wait(self, index: int, mask: int, value: int, *, differs: bool = False) -> None: ...
    def keep(self, index: int, take: Callable[[int], object]) -> None: ...
    def fill(self, address: int, size: int) -> None: ...
    def put(self, address: int, words: Sequence[int]) -> None: ...


class RegisterBus:
    """Registers by absolute dword index, through BAR5 or, beyond its end, the RSMU index pair.

    The index register is read back before the data access: a posted index write could otherwise
    arrive after it (Linux 6.12 amdgpu_device.c, amdgpu_device_indirect_rreg). Where accesses are
    messages, they arrive in order, at least a microsecond apart, and nothing is read back.
    """

    def __init__(self, window: Window, *, messages: bool = False, runs: bool = True) -> None:
        """messages: each access is a message (Traits.register_messages). runs: neighbouring
        registers can be accessed at once, without a message for each."""
        self.window = window
        self.messages = messages
        self.runs = runs
        self._known: dict[int, int] | None = None  # values by index, inside `setting_up`
        self._aimed: int | None = None  # address that the RSMU pair is set to, inside `setting_up`
        self._kept: dict[int, int] = {}  # values by index, see `keep`
        self.selectors: frozenset[int] = frozenset()  # registers that select what others mean
        self.recorder: Recorder | None = None  # see `recorded`
        # Called with the register's index (None: several) before each access while the graphics
        # core may have no power. False: the core has no power and is left alone (am.device.rest).
        self.rouse: Callable[[int | None], bool] | None = None
        self.index_register: int | None = None  # dword indices, known after discovery
        self.data_register: int | None = None
        # The last accesses, for the evidence of a failure: whether it was a write, index, value.
        self.recent: deque[tuple[bool, int, int]] = deque(maxlen=RECENT)

    @contextmanager
    def recorded(self, recorder: Recorder | None) -> Iterator[None]:
        """Send the accesses inside to `recorder`, or to the chip itself if it is None. They must
        not include registers that the RSMU pair reaches or that GRBM_GFX_CNTL banks."""
        if self.rouse is not None:
            self.rouse(None)
        before, self.recorder = self.recorder, recorder
        try:
            yield
        finally:
            self.recorder = before

    def read32(self, index: int) -> int:
        if self.rouse is not None and not self.rouse(index):
            return ALL_ONES
        if self.recorder is not None:
            return self.recorder.read32(index)
        offset = index * 4
        if offset + 4 <= self.window.size:
            value = self.window.read32(offset)
        else:
            value = self.window.read32(self._select(offset))
        self.recent.append((False, index, value))
        if self._known is not None:
            self._known[index] = value
        return value

    def current32(self, index: int) -> int:
        """See hcq.registers.fields.Bus. Inside `setting_up`, return the value last read or
        written there."""
        if self.recorder is not None:
            return self.recorder.read32(index)
        known = None if self._known is None else self._known.get(index)
        if known is None:
            known = self._kept.pop(index, None)
        return self.read32(index) if known is None or known == ALL_ONES else known

    def write32(self, index: int, value: int) -> None:
        if self.rouse is not None and not self.rouse(index):
            return
        self.recent.append((True, index, value))  # even if the write raises
        self._kept.pop(index, None)
        if self.recorder is not None:
            self.recorder.write32(index, value)
            return
        if self._known is not None:
            if index in self.selectors:
                self._known.clear()
            self._known[index] = value
        offset = index * 4
        if offset + 4 <= self.window.size:
            self.window.write32(offset, value)
            return
        data = self._select(offset)
        self.window.write32(data, value)
        if not self.messages:
            self.window.read32(data)

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        """Where accesses are messages, let updates inside use known register values instead of
        reads. Only the caller may change the registers that it updates. Polls still read."""
        before = self._known
        if self.messages and before is None:
            self._known = {}
        try:
            yield
        finally:
            self._known = before
            self._aimed = None

    def read_ahead(self, first: BoundRegister, last: BoundRegister) -> None:
        """Inside `setting_up`, read all registers from `first` to `last` at once, for the updates
        that follow. Every place between them must be a register that reading does not change."""
        if self._known is None or not self.runs:
            return
        if self.rouse is not None and not self.rouse(None):
            return
        places = range(first.index, last.index + 1)
        if all(place in self._kept for place in places):
            self._known |= {place: self._kept.pop(place) for place in places}
            return
        data = self.window.read(first.index * 4, len(places) * 4)
        for place, (value,) in zip(places, struct.iter_unpack("<I", data), strict=True):
            self.recent.append((False, place, value))
            self._known[place] = value

    def keep(self, register: BoundRegister) -> None:
        """Inside `setting_up`, keep a register's value for its next update, wherever that is. The
        register must not be banked, and only the caller's accesses and resets may change it. The
        caller calls `forget` after a reset."""
        if self._known is not None and register.index in self._known:
            self._kept[register.index] = self._known[register.index]

    def forget(self) -> None:
        """Drop all kept values: the chip, or a part of it, was reset."""
        self._kept.clear()

    def read_with(self, index: int, others: Sequence[int]) -> int:
        """Read a register by its index. Where accesses are messages, the registers up to the last
        of `others` (distances from `index`) are read at once, and `others` are kept: see `keep`."""
        if not (self.messages and self.runs):
            return self.read32(index)
        data = self.window.read(4 * index, 4 * (others[-1] + 1))
        words: list[int] = [word for (word,) in struct.iter_unpack("<I", data)]
        self.recent.append((False, index, words[0]))
        self._kept |= {index + other: words[other] for other in others}
        return words[0]

    def _select(self, address: int) -> int:
        """Aim the RSMU pair at byte `address`; return the BAR offset of its data register. The pair
        stays aimed inside `setting_up`."""
        if self.index_register is None or self.data_register is None:
            raise BadArgument(
                "the register lies outside BAR5, and the index/data pair is not set up yet",
                address=address,
            )
        if self._aimed != address:
            self.window.write32(self.index_register * 4, address)
            if not self.messages:
                self.window.read32(self.index_register * 4)
            self._aimed = None if self._known is None else address
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
            raise BadArgument(
                "the range must lie inside VRAM", address=address, size=size, vram=self.size
            )


class OfChip(Protocol):
    """The class that drives a block."""

    chip: Chip


def batched(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method's register writes travel together (Transport.batch): it sets a block up, and
    neither sleeps nor reads memory. See also RegisterBus.setting_up."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        owner = cast(OfChip, args[0])
        with owner.chip.transport.batch(), owner.chip.bus.setting_up():
            return method(*args, **kwargs)

    return run


class Chip:
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
        self.transport = transport
        self.facts = facts
        self.generation = generation = facts.generation
        self.link = Link(transport)
        self.dark = False  # the graphics core has no power until a reset (am.device.rest)
        self.kept: SavedConfig | None = None  # configuration space as first contact found it
        self.command: int | None = None  # what the command register was set to, until it is changed
        self.bus = RegisterBus(
            transport.window(generation.register_bar),
            messages=transport.traits.register_messages,
            runs=transport.traits.staged is None,
        )
        self.doorbells = transport.window(generation.doorbell_bar)
        self.vram = Vram(transport.window(generation.vram_bar), self.bus, 0)
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

    # ---- presence ----------------------------------------------------------------------------

    def recent_accesses(self) -> list[str]:
        """Return the last register accesses, oldest first; see am.chip.recent."""
        return described(tuple(self.bus.recent), [*self._blocks()])

    def outside_graphics(self, index: int) -> bool:
        """Return whether an absolute dword index is in a block other than the graphics core."""
        owners = [
            name
            for name, blocks in self._instances.items()
            if any(block.find(index) is not None for block in blocks)
        ]
        return bool(owners) and "GC" not in owners

    def _blocks(self) -> Iterator[RegisterBlock]:
        return itertools.chain.from_iterable(self._instances.values())

    @property
    def clock(self) -> Clock:
        """The transport's clock, which all waits and pauses use."""
        return self.transport.clock

    def memory_size_mb(self) -> int:
        return self.bus.read32(self.generation.memory_size_register)

    def lost(self) -> bool:
        """Return whether the chip is gone: configuration space silent, or registers all ones."""
        return not self.transport.present() or self._dark()

    def _dark(self) -> bool:
        """Return whether two registers read all ones: a single one may be a lost completion."""
        if self.memory_size_mb() != ALL_ONES:
            return False
        return self.bus.read32(self.generation.ifwi_register) == ALL_ONES

    def unplaced(self) -> bool:
        """Return whether configuration space answers, but the registers' BAR has no address (above
        its four low bits): a reset of the slot cleared it, and nothing restored it."""
        if not self.transport.present():
            return False
        bar = constants("pci_regs").PCI_BASE_ADDRESS_0 + 4 * self.generation.register_bar
        return not self.transport.config_read(bar) & ~0xF

    def read_again(self, register: BoundRegister) -> int:
        """Read a register, a second time if it reads all ones: one completion may be lost."""
        value = int(register.current())
        return int(register.read()) if value == ALL_ONES else value

    def check_present(self, while_doing: str) -> None:
        """Raise DeviceLost unless two independent places still answer.

        A single all-ones read may be one lost completion; a dead chip reads all ones everywhere.
        """
        config = self.transport.present()
        if not config or self._dark():
            raise DeviceLost(
                f"the chip stopped responding while {while_doing}",
                config_space="responds" if config else "all ones",
                registers="all ones",
                remedy=advice.LINK,
            )

    def wait_bits(
        self,
        register: BoundRegister,
        mask: int,
        value: int,
        *,
        unit: str,
        waiting_for: str,
        limit_s: float = REGISTER_LIMIT_S,
    ) -> None:
        """Wait until the bits of `mask` are `value`, see `wait`. Works in a list too
        (am.units.lists)."""
        if self.bus.recorder is not None:
            self.bus.recorder.wait(register.index, mask, value)
            return
        self.wait(
            register,
            lambda found: int(found) & mask == value,
            unit=unit,
            waiting_for=waiting_for,
            limit_s=limit_s,
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
        assert self.bus.recorder is None  # a list uses `wait_bits`
        last: list[RegisterValue] = []

        def probe() -> RegisterValue | None:
            value = register.read()
            last[:] = [value]
            if value == ALL_ONES:
                self.check_present(f"waiting for {waiting_for}")
                return None
            return value if done(value) else None

        return self.clock.wait_until(
            probe,
            unit=unit,
            waiting_for=waiting_for,
            limit_s=limit_s,
            state=lambda: repr(last[0]) if last else "never read",
        )
