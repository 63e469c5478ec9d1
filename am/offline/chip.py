"""Read a chip without booting or resetting it: registers named by its discovery table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial

from ugpu.am import chips
from ugpu.am.boot.contact import first_contact, read_discovery
from ugpu.am.chip.chip import Chip
from ugpu.am.chip.placement import QUEUE_VMID
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.device import rest
from ugpu.am.failure import inspect, states
from ugpu.am.failure.diagnosis import needs
from ugpu.am.generations.record import generation_of
from ugpu.am.offline import register_banks as selectors
from ugpu.am.regs import load
from ugpu.am.units.gmc import framebuffer_location
from ugpu.am.units.memory import Carveout
from ugpu.am.units.smu.smu import Smu
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.function import looked_into
from ugpu.hcq.bare.stages import Stages, mildest
from ugpu.hcq.errors import DeviceNotFound, FirmwareSilent, NotRecorded, UgpuError
from ugpu.hcq.find.reached import reached
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.registers.fields import RegisterBlock
from ugpu.hcq.registers.nowhere import Nowhere
from ugpu.hcq.state.ladder import Diagnosis
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.recorded.format import Recording
from ugpu.hcq.transport.recorded.state import Banks, RecordedTransport

_WHOLE_WAVES = 4  # waves that are shown with their registers: thousands of reads each


@contextmanager
def open_window(attachment: Attachment) -> Iterator[Chip]:
    """Open a chip's registers in whatever state the chip is; the transport is closed at the end.

    While the window is open the function decodes its BARs, does not reach host memory, and its end
    of the link stays awake (am.boot.contact.first_contact); configuration space is restored
    afterwards. If a process died while the card rested, the graphics core gets its power back
    (am.device.rest). Raises FirmwareSilent if the board's own firmware has not come up,
    DiscoveryError if the discovery table cannot be read, DeviceLost.
    """
    transport = attachment.transport
    with looked_into(transport):
        chip = first_contact(transport, _facts(transport), Stages())
        try:
            rest.look_into(chip, partial(_smu, chip))
            yield chip
        finally:
            chip.link.restore()


def _facts(transport: Transport) -> ChipFacts:
    identity = transport.identity
    facts = chips.find(identity.vendor, identity.device)
    if facts is None:
        raise DeviceNotFound(f"ugpu does not support PCI id {identity}")
    return facts


def banks(recording: Recording) -> Banks:
    """Return the registers of a recorded chip that select what other registers mean."""
    return selectors.banks(recording)


def _smu(chip: Chip) -> Smu:
    classes = generation_of(chip.generation).units
    base, offset = framebuffer_location(chip)
    carveout = Carveout(chip.vram.size, chip.generation.reserved_vram, base, offset)
    return classes.smu(chip, classes.nbio(chip), carveout)


@contextmanager
def open_recorded(transport: RecordedTransport) -> Iterator[Chip]:
    """Open the chip of a recording at one moment, from recorded accesses alone; the transport is
    closed at the end. NotRecorded if the size of VRAM or the discovery table was not read by then;
    FirmwareSilent, DiscoveryError as in `open_window`."""
    with transport:
        chip = Chip(transport, _facts(transport))
        with transport.constants():
            _describe(chip)
        yield chip


def _describe(chip: Chip) -> None:
    size = chip.memory_size_mb()
    if size in (0, ALL_ONES):
        raise FirmwareSilent(
            "the board's boot firmware had not finished",
            vram_mb=size,
            c2pmsg_33=chip.bus.read32(chip.generation.ifwi_register),
        )
    chip.vram.size = size << 20
    read_discovery(chip)


def observer(transport: Transport) -> Callable[[], None]:
    """Return a function that reads everything that `look` shows of a chip while its driver boots
    it, for a recording (hcq.transport.recorded.recorder). The function raises the errors of
    `open_recorded` where the chip cannot be reached yet, and DeviceLost."""
    chip, described = Chip(transport, _facts(transport)), False

    def observe() -> None:
        nonlocal described
        if not described:
            _describe(chip)
            described = True
        for part in _LOOKS:
            look(chip, part)

    return observe


#: registers that reading changes: semaphores, and windows that advance to the next word
CHANGED_BY_READING = ("*_INVALIDATE_ENG*_SEM", "*_UCODE_DATA", "*_RAM_DATA", "*_FIFO*_DATA",
                      "*_PERFMON_DATA*", "SQ_IND_DATA")  # fmt: skip


def dangers() -> tuple[tuple[str, str], ...]:
    """Return the possible effects of register writes, as (pattern of names, effect).

    Sources: Linux 6.12 amdgpu psp_v13_0.c and smu_v13_0.c (mailboxes), gfx_v11_0.c (soft resets,
    queue state, RLC), gfxhub_v3_0.c and mmhub_v3_0.c (page tables and apertures), nbio_v4_3.c.
    """
    return (
        ("*C2PMSG_*", "is a mailbox of the PSP or the SMU, whose messages reach as far as a reset"
         " of the chip"),
        ("*SOFT_RESET*", "resets units with all that they work on"),
        ("*RESET_REQ*", "resets units with all that they work on"),
        ("*VM_CONTEXT*", "says where page tables are: what runs may then reach other memory"),
        ("*VM_L2_*", "decides how page tables are read: what runs may then reach other memory"),
        ("*_APERTURE_*", "decides which addresses bypass page tables"),
        ("*FB_LOCATION*", "decides where device memory lies"),
        ("CP_HQD_*", "is the state of the queue that GRBM_GFX_CNTL selects; it may run"),
        ("CP_M*_CNTL", "halts or starts processors that run firmware"),
        ("RLC_*", "is firmware's: power gating and saved state depend on it"),
        ("RSMU_*", "selects or accesses another register"),
        ("*PCIE_INDEX*", "selects or accesses another register"),
        ("*PCIE_DATA*", "selects or accesses another register"),
        ("BIF_*", "belongs to the way on which this host reaches the card"),
    )  # fmt: skip


def look(chip: Chip, part: str) -> object:
    """Return one part of a bundle, read without a boot: states, queues, waves, registers."""
    return _LOOKS[part](chip)


def _waves(chip: Chip) -> list[dict[str, object]]:
    """All waves, the first ones with their registers if the chip, or a recording, has them."""
    found = list(inspect.waves(chip))
    with suppress(NotRecorded):
        for wave in found[:_WHOLE_WAVES]:
            inspect.wave_words(chip, wave)
    return found


_LOOKS: dict[str, Callable[[Chip], object]] = {
    "states": states.as_json,
    "queues": inspect.hardware_queues,
    "waves": _waves,
    "registers": inspect.registers,
}


def named_states(attachment: Attachment) -> list[dict[str, object]]:
    """Each unit's state. If the chip cannot be reached, the one state that gives the reason. The
    transport is closed at the end. A recording gives the states of its moment."""
    try:
        with reached(attachment, open_window, open_recorded) as chip:
            return states.as_json(chip)
    except UgpuError as error:
        found = states.unreached(error)
        if found is None:
            raise
        return [asdict(found)]


def diagnose(chip: Chip) -> Diagnosis:
    """The mildest rung that can help a card that no process drives, by its named states."""
    return mildest(needs(chip))


def walk(chip: Chip, address: int, vmid: int | None, hub: str) -> dict[str, object]:
    """Return the translation of a virtual address. vmid: None for the VMID of ugpu's work."""
    form = generation_of(chip.generation).units.page_format()
    return inspect.walk(chip, form, address, QUEUE_VMID if vmid is None else vmid, hub)


def usual_blocks(chip: str) -> dict[str, RegisterBlock]:
    """The register blocks of a chip by name, at the bases that discovery tables usually state."""
    facts = chips.facts_of(chip)
    bases = facts.generation.typical_bases
    names = {block: "nbio" if block == "NBIF" else block.lower() for block in facts.register_tables}
    return {
        names[block]: RegisterBlock(load(table), bases[block], Nowhere())
        for block, table in facts.register_tables.items()
        if block in bases
    }
