"""First contact with a card: its own firmware, its discovery table, the chip that it has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ugpu.am import chips
from ugpu.am.chip import discovery
from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.chips.facts import ChipFacts
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.function import enable_function, keep_config
from ugpu.hcq.bare.stages import Stages, or_silent
from ugpu.hcq.errors import DeviceNotFound, DiscoveryError
from ugpu.hcq.transport.base import Transport

log = logging.getLogger(__name__)

ChipHook = Callable[[Chip], object]

# Dword registers with the place of the discovery table, low and high, and its size, the same on all
# chips; the size is 0 where the table is at the usual place alone.
DRIVER_SCRATCH = (0x94, 0x95, 0x96)


def wait_ifwi(chip: Chip) -> None:
    """Wait for the board's own firmware, then learn the size of VRAM."""
    generation = chip.generation
    limit_s = generation.ifwi_limit_s
    seen: dict[str, int] = {}

    def probe() -> bool:
        state = chip.bus.read_with(generation.ifwi_register, generation.ifwi_neighbours)
        size = chip.memory_size_mb()
        seen.update(c2pmsg_33=state, vram_mb=size)
        if state == size == ALL_ONES:
            # A chip that comes out of a reset is dark for a while; a chip that was unplugged has
            # lost its configuration space too.
            if not chip.transport.present():
                chip.check_present("waiting for the board's firmware")
            return False
        return bool(state & 0x8000_0000) and size not in (0, ALL_ONES)

    def state() -> dict[str, int]:
        chip.check_present("waiting for the board's firmware")
        return seen

    text = "the board's boot firmware has not finished"
    with or_silent(text, state, limit_s=limit_s, remedy=advice.POWER_CYCLE):
        chip.clock.wait_until(probe, unit="IFWI", waiting_for="board firmware", limit_s=limit_s)
    chip.vram.size = seen["vram_mb"] << 20


def read_discovery(chip: Chip) -> None:
    """Read and check the chip's discovery table, and set `chip` up from it."""
    with _explained(chip):
        chip.describe(_read_table(chip))


def _read_table(chip: Chip) -> discovery.Discovery:
    """Read and check the table. Where it is not at its usual place, the board's firmware states one
    (Linux after 6.12, amdgpu_discovery.c)."""
    generation = chip.generation
    usual = chip.vram.size - generation.discovery_offset
    data = _discovery_at(chip, usual, generation.discovery_size)
    with _explained(chip):
        if not data.startswith(discovery.BINARY_SIGNATURE.to_bytes(4, "little")):
            stated = _stated_place(chip)
            data = data if stated is None else _discovery_at(chip, *stated)
        return discovery.parse(data)


@contextmanager
def _explained(chip: Chip) -> Iterator[None]:
    """Add what the board's firmware says of the table to errors."""
    try:
        yield
    except DiscoveryError as error:
        if "discovery_version_register" not in error.facts:
            version = chip.bus.read32(chip.generation.discovery_version_register)
            error.add_facts(discovery_version_register=version, remedy=advice.POWER_CYCLE)
        raise


def _discovery_at(chip: Chip, start: int, size: int) -> bytes:
    data = chip.read_stated(start, size, discovery.HEADER_SIZE, discovery.stated_size)
    if data[:64] == b"\xff" * 64:
        chip.check_present("reading the discovery table")
    return data


def _stated_place(chip: Chip) -> tuple[int, int] | None:
    """Return the start and the size of the table in VRAM, if the board's firmware states them."""
    low, high, size = (chip.bus.read32(register) for register in DRIVER_SCRATCH)
    if not 0 < size <= discovery.MOST:
        return None
    start = high << 32 | low
    if start + size > chip.vram.size or start % 4 or size % 4:
        raise DiscoveryError(
            "the board's firmware states a place of the discovery table outside of VRAM",
            start=start,
            size=size,
            vram=chip.vram.size,
        )
    return start, size


def first_contact(
    transport: Transport, facts: ChipFacts, stages: Stages, on_chip: ChipHook | None = None
) -> Chip:
    """Set the function up, wait for IFWI, read discovery; return the chip with named registers.
    on_chip: called with the chip before any of its registers is read."""
    with stages.stage("config space"):
        command = enable_function(transport)
        chip = Chip(transport, facts)
        chip.command = command
        keep_config(chip)
        if on_chip is not None:
            on_chip(chip)
        chip.link.keep_awake()
    try:
        with stages.stage("board firmware"):
            wait_ifwi(chip)
        with stages.stage("discovery"):
            read_discovery(chip)
    except BaseException:
        chip.link.restore()
        raise
    return chip


def recognise(transport: Transport, stages: Stages) -> ChipFacts:
    """Find the chip of a card whose PCI id is in no chip's folder by its discovery table. Registers
    that are read before it are the same on all chips. DeviceNotFound if no chip has these blocks.
    """
    with stages.stage("recognition"):
        enable_function(transport)
        chip = Chip(transport, chips.facts_of(chips.DEFAULT))
        chip.link.keep_awake()
        try:
            wait_ifwi(chip)
            found = _read_table(chip)
        finally:
            chip.link.restore()
        ids = chip.generation.hardware_ids
        versions = {
            name: block.version
            for name, number in ids.items()
            for block in [found.find(number)]
            if block is not None
        }
        facts = chips.with_blocks(versions)
        identity = transport.identity
        if facts is None:
            shown = ", ".join(
                f"{name} {'.'.join(map(str, version))}" for name, version in versions.items()
            )
            raise DeviceNotFound(f"PCI id {identity}: no supported chip has the blocks {shown}")
        log.warning(
            "%s: PCI id %s is not known; its blocks are those of %s, as which it is driven",
            transport.name, identity, facts.title,
        )  # fmt: skip
        return facts
