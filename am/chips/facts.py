"""Facts that differ between AMD chips, shared by the driver and the models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ugpu.am.chips.generations import FirmwareFile, GenerationFacts, SmuInterface, Version


@dataclass(frozen=True)
class BoardFacts:
    """A board with the chip, from which its virtual card is built. Sizes are bytes.

    channels: memory channels of 16 bits. vector_registers: per lane on each SIMD, wave32.
    graphics_megahertz, memory_megahertz: highest clocks. power_limit: watts. shutdown_celsius:
    temperature at which the board's table has its driver switch the card off; our choice, no header
    states it.
    """

    vram: int
    shader_engines: int
    arrays_per_engine: int
    wgps_per_array: int
    channels: int
    vector_registers: int
    smu_version: int
    graphics_megahertz: int
    memory_megahertz: int
    power_limit: int
    shutdown_celsius: int = 118


@dataclass(frozen=True)
class ChipFacts:
    """One chip.

    name: of its folder ("navi31"). title: for people ("Navi31"). isa: processor as LLVM names it.
    pci_ids: device ids; the vendor is the generation's. versions: of its blocks, as its discovery
    table states them. copy_engines: SDMA engines, before harvesting. clock_gates: clocks that may
    be gated, named as in soc21.c without AMD_CG_SUPPORT_. mode1_since: first SMU firmware that
    supports mode1; mode1_by_debug: only the debug mailbox takes the request. mode2_since: first SMU
    firmware that supports mode2, 0 for chips without. reservations_since: first secure OS that
    reports which VRAM the firmware keeps, 0 for chips without. kickers: boards, as device id and
    revision, whose firmware has other names (_kicker). marks: upper half of the version of images
    (FirmwareFile.name), which no other chip's image has (the files of linux-firmware, April 2025
    and September 2026). products: boards that have the chip. proven:
    the board that ran ugpu's driver and its report in docs/hardware; "" where none.
    """

    name: str
    title: str
    isa: str
    generation: GenerationFacts
    pci_ids: tuple[int, ...]
    versions: Mapping[str, Version]
    copy_engines: int
    clock_gates: frozenset[str]
    board: BoardFacts
    mode1_since: int = 0
    mode1_by_debug: bool = False
    mode2_since: int = 0
    reservations_since: int = 0
    products: tuple[str, ...] = ()
    proven: str = ""
    kickers: frozenset[tuple[int, int]] = frozenset()
    marks: Mapping[str, int] = field(default_factory=dict)

    def table(self, block: str) -> str:
        """Return the register table of a block in am/regs, for the chip's own version."""
        return self.generation.register_tables[block][self.versions[block]]

    @property
    def register_tables(self) -> dict[str, str]:
        """Block -> table in am/regs."""
        return {block: self.table(block) for block in self.generation.register_tables}

    def image(self, file: FirmwareFile, *, kicker: bool = False) -> str:
        """Return the name of an image in linux-firmware: "psp_13_0_0_sos.bin". kicker: for a board
        of `kickers`."""
        name = self.image_name(file.name, file.block)
        return name.replace(".bin", "_kicker.bin") if kicker and file.kicker else name

    def image_name(self, pattern: str, block: str) -> str:
        """Put the version of a block into the name of an image."""
        return pattern.format("_".join(map(str, self.versions[block])))

    @property
    def firmware_files(self) -> tuple[str, ...]:
        """Names of all images that the driver searches for."""
        return tuple(self.image(file) for file in self.generation.firmware)

    @property
    def smu(self) -> SmuInterface:
        """The interface of the chip's SMU firmware."""
        return self.generation.smu_interfaces[self.versions["MP1"]]
