"""Read a bare NVIDIA card without booting or resetting it; see hcq.find.offline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict

from ugpu.hcq.bare import remedies
from ugpu.hcq.bare.function import enable_function, looked_into
from ugpu.hcq.bare.stages import State, mildest, needs
from ugpu.hcq.errors import DeviceLost, DeviceNotFound, FirmwareSilent, NotSupported
from ugpu.hcq.find.reached import reached
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.registers.fields import RegisterBlock
from ugpu.hcq.registers.nowhere import Nowhere
from ugpu.hcq.state.ladder import Diagnosis, Level
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.recorded.format import Recording
from ugpu.hcq.transport.recorded.state import Banks, RecordedTransport
from ugpu.nv import chips
from ugpu.nv.gsp.chip.chip import GSP_BASE, SEC2_BASE, GspChip, chip_behind
from ugpu.nv.gsp.rm.states import as_json, states
from ugpu.nv.regs import block

# Named states (nv.gsp.rm.states: unit, name), and the mildest level that can help.
_NEEDS = {
    ("link", "no answer"): Level.BUS,
    ("link", "no addresses"): Level.BUS,
    ("board firmware", "not done"): Level.BUS,
    ("FSP", "not done"): Level.BUS,
    ("GSP", "crashed"): Level.FLR,
    ("GSP", "boot cut off"): Level.FLR,
}
#: ports into a falcon's memory, which advance with each access
CHANGED_BY_READING = ("*IMEMD0", "*DMEMD0", "*IMEMT0", "*EMEMD0")
_NO_PARTS = {
    "queues": "the GSP's firmware owns its queues: `ugpu crash` shows those of a failed device",
    "waves": "its registers of warps are not described",
}


@contextmanager
def open_window(attachment: Attachment) -> Iterator[GspChip]:
    """Open a chip's registers in whatever state the chip is; the transport is closed at the end.

    While the window is open the function decodes its BARs, does not reach host memory, and its end
    of the link stays awake; configuration space is restored afterwards. DeviceLost, NotSupported.
    """
    transport = attachment.transport
    with looked_into(transport):
        chip = chip_behind(transport)
        enable_function(transport)
        chip.link.keep_awake()
        try:
            chip.identify()
            with suppress(FirmwareSilent):  # `states` shows it
                chip.await_board_firmware()
            yield chip
        finally:
            chip.link.restore()


@contextmanager
def open_recorded(transport: RecordedTransport) -> Iterator[GspChip]:
    """Open the chip of a recording at one moment, from recorded accesses alone; the transport is
    closed at the end."""
    with transport:
        yield chip_behind(transport)


def banks(recording: Recording) -> Banks:
    """Return no registers: none that is recorded changes the meaning of others, but the ports of
    CHANGED_BY_READING."""
    return Banks(window=0)


def observer(transport: Transport) -> Callable[[], None]:
    """Return a function that reads what `look` shows while a driver boots the chip."""
    chip = chip_behind(transport)

    def observe() -> None:
        for part in _LOOKS:
            look(chip, part)

    return observe


def dangers() -> tuple[tuple[str, str], ...]:
    """Return the possible effects of register writes, as (pattern of names, effect). Sources: those
    of nv/regs."""
    return (
        ("*ENGINE", "resets a falcon with all that it works on"),
        ("*CPUCTL*", "starts or stops a processor that runs firmware"),
        ("*MAILBOX*", "is a mailbox of firmware"),
        ("*QUEUE_HEAD*", "makes firmware read messages"),
        ("*QUEUE_TAIL*", "makes firmware read messages"),
        ("*BAR?_BLOCK*", "decides what BAR 1 and BAR 2 show"),
        ("*BAR0_WINDOW*", "decides what the window in BAR 0 shows"),
        ("*FLUSH_SYSMEM*", "is an address of host memory that the GPU reads"),
        ("*MMU_INVALIDATE*", "drops translations"),
        ("*DOORBELL", "tells a channel that it has work"),
        ("DMA*", "copies between memory and a falcon"),
    )


def registers(chip: GspChip) -> dict[str, int]:
    """Return the registers by "block.NAME", without ports that change when they are read."""
    values = {}
    for name in ("nv", "gsp", "sec2"):
        here: RegisterBlock = getattr(chip, name)
        for register in here.map:
            if not register.endswith(("MEMD0", "MEMT0")):
                values[f"{name}.{register}"] = int(here[register].read())
    return values


def look(chip: GspChip, part: str) -> object:
    """Return one part of a bundle, read without a boot: states, registers."""
    if part in _NO_PARTS:
        raise NotSupported(f"a bare NVIDIA card shows no {part}: {_NO_PARTS[part]}")
    return _LOOKS[part](chip)


_LOOKS: dict[str, Callable[[GspChip], object]] = {"states": as_json, "registers": registers}


def named_states(attachment: Attachment) -> list[dict[str, object]]:
    """Return each unit's state. If the chip cannot be reached, the one state that gives the reason.
    The transport is closed at the end."""
    try:
        with reached(attachment, open_window, open_recorded) as chip:
            return as_json(chip)
    except DeviceLost as error:
        remedy = str(error.facts.get("remedy", remedies.LINK))
        return [asdict(State("link", "no answer", False, error.message, remedy, {}))]


def diagnose(chip: GspChip) -> Diagnosis:
    """Return the mildest rung that can help a card that no process drives, by its named states."""
    return mildest(needs(states(chip), _NEEDS))


def walk(chip: GspChip, address: int, vmid: int | None, hub: str) -> dict[str, object]:
    """Raise NotSupported: no register holds a channel's page tables."""
    raise NotSupported(
        "the page tables of a bare NVIDIA card have no register: each channel's instance block in "
        "VRAM names its own; a bundle of a failed device has memory.json"
    )


def usual_blocks(chip: str) -> dict[str, RegisterBlock]:
    """Return the register blocks of a chip by name."""
    if chips.boot_facts(chip) is None:
        raise DeviceNotFound(f"{chip} is not a chip that ugpu boots without a kernel driver")
    bus = Nowhere()
    return {
        "nv": block("bar0", 0, bus),
        "gsp": block("falcon", GSP_BASE, bus),
        "sec2": block("falcon", SEC2_BASE, bus),
    }
