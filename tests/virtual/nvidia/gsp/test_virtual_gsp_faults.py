"""Each planted fault of a register-level NVIDIA card shows as public reports say it does."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from tests.support.nvidia.gsp.gsp_fsp_script import FspScript
from tests.support.nvidia.gsp.gsp_script import FRTS, GSP, SB, SEC2, Script
from ugpu.hcq.errors import BadArgument
from ugpu.virtual.nvidia.gpu import build_machine, faults, plant
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.options import MachineOptions

MEMORY = 1 << 30
UNLOAD = 0xFF_0000_00FF


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script(build_card("ad102", CardOptions(memory=MEMORY)))
    yield made
    made.close()
    made.card.close()


@pytest.fixture
def trusted() -> Iterator[FspScript]:
    made = FspScript(build_card("gb202", CardOptions(memory=MEMORY)))
    yield made
    made.close()
    made.card.close()


def load(script: Script) -> int:
    """Boot as far as the booter; return its mailbox."""
    script.power_on()
    script.layout()
    script.arguments()
    script.send(72, bytes(0x3A0))
    script.send(73, script.registry())
    script.fwsec(FRTS)
    script.to_riscv()
    return script.booter("booter_load", script.meta_at)


def fwsec(script: Script) -> int:
    script.power_on()
    script.layout()
    script.fwsec(FRTS)
    return script.read(0x1438) >> 16


def silent(script: Script) -> bool:
    return load(script) == 0 and script.receive() is None


def init_result(script: Script) -> int:
    assert load(script) == 0
    return script.until(0x1001).result


def crash_report(script: Script) -> tuple[int, int, int, int]:
    """Wayfinder, halted, the report's type of cause, and what the exception was."""
    script.boot()
    script.send(65, bytes(0x678))
    assert script.receive() is None
    low, size = script.read(GSP + 0x300), script.read(GSP + 0x308)
    assert low == 2 | 1 << 3 and size == 128
    script.write(GSP + 0x1C0, 1 << 25)
    words = [script.read(GSP + 0x1C4) for _ in range(size // 4)]
    cause, _, data = struct.unpack_from("<3Q", struct.pack("<32I", *words), 8 + 32)
    return script.read(GSP + 0x94), script.read(0x111388) >> 4 & 1, cause & 0xF, data


def checksum(script: Script) -> int:
    script.boot()
    script.send(65, bytes(0x678))
    at = 0x41000 + 0x1000 * (1 + script.pointer)
    element = bytes(script.shared.view[at : at + 0x1000])
    (length,) = struct.unpack_from("<I", element, 0x38)
    total = 0
    for (word,) in struct.iter_unpack("<Q", element[: 0x30 + (length + 7 & ~7)]):
        total ^= word
    return total >> 32 ^ total & 0xFFFF_FFFF


def number(script: Script) -> int:
    """Return by how much the next message's number differs from the right one."""
    script.boot()
    right = len(script.events)
    script.send(65, bytes(0x678))
    at = 0x41000 + 0x1000 * (1 + script.pointer)
    return int(struct.unpack_from("<I", script.shared.view, at + 0x24)[0]) - right


def unload(script: Script) -> tuple[int, bool]:
    script.boot()
    script.call(47, bytes(8))
    script.fwsec(SB)
    return script.booter("booter_unload", UNLOAD), script.card.wpr.up


def messages(script: Script) -> int:
    interrupts = script.transport.interrupts
    for offset, value in ((0xB81214, 1), (0xB81608, 0xF), (0xB81640, 160)):
        script.write(offset, value)
    return int(interrupts.wait(0))


def hangs(script: Script) -> int:
    script.power_on()
    script.layout()
    try:
        script.fwsec(FRTS)
    except AssertionError:
        return script.read(GSP + 0x100)
    return -1


def never_clean(script: Script) -> int:
    script.write(SEC2 + 0x3C0, 1)
    script.write(SEC2 + 0x3C0, 0)
    return min(script.read(SEC2 + 0xF4) >> 12 & 1 for _ in range(100))


def lost(script: Script) -> object:
    script.boot()
    script.send(65, bytes(0x678))
    return script.receive()


def timed_out(script: Script) -> int:
    script.boot()
    return script.call(65, bytes(0x678)).result


def suspended(script: Script) -> bool:
    script.boot()
    script.call(47, bytes(8))
    return script.read(GSP + 0x40) == 0x8000_0000


SEEN: dict[CardFault, tuple[Callable[[Script], object], object]] = {
    CardFault.POWER_ON_NEVER: (lambda s: max(s.read(0x118234) for _ in range(100)), 0),
    CardFault.WPR2_LEFT: (lambda s: s.read(0x1FA828) != 0, True),
    CardFault.VBIOS_WITHOUT_BIT: (lambda s: b"BIT\0" in s.rom(), False),
    CardFault.VBIOS_WITHOUT_FWSEC: (lambda s: s.rom()[0x1106], 1),
    CardFault.FUSES_NEWER: (lambda s: s.read(0x8241E0), 0x7F),
    CardFault.MEMORY_UNKNOWN: (lambda s: s.read(0x1183A4), 0),
    CardFault.SCRUB_NEVER: (never_clean, 1),
    CardFault.FALCON_HANGS: (hangs, 0),
    CardFault.FWSEC_FAILS: (fwsec, 4),
    CardFault.BOOTER_FAILS: (load, 0x0B),
    CardFault.UNLOADER_FAILS: (unload, (0x0F, True)),
    CardFault.GSP_NOT_STARTED: (lambda s: (load(s), s.read(0x111388) >> 7 & 1), (0, 0)),
    CardFault.GSP_SILENT: (silent, True),
    CardFault.INIT_FAILS: (init_result, 0x65),
    CardFault.RPC_LOST: (lost, None),
    CardFault.RPC_TIMES_OUT: (timed_out, 0x65),
    CardFault.REPLY_CHECKSUM: (checksum, 1),
    CardFault.REPLY_NUMBER: (number, -1),
    CardFault.GSP_CRASHES: (crash_report, (0xDEAD | 1 << 16 | 2 << 20, 1, 0, 0xD)),
    CardFault.UNLOAD_SILENT: (suspended, False),
    CardFault.MESSAGE_LOST: (messages, 0),
    CardFault.FALLS_OFF: (lambda s: s.read(0), 0xFFFF_FFFF),
}  # fmt: skip


@pytest.mark.parametrize("kind", SEEN)
def test_a_fault_shows(script: Script, kind: CardFault) -> None:
    look, expected = SEEN[kind]
    late = kind in (CardFault.RPC_LOST, CardFault.RPC_TIMES_OUT, CardFault.REPLY_CHECKSUM,
                    CardFault.REPLY_NUMBER, CardFault.GSP_CRASHES)  # fmt: skip
    plant_late = script.until

    def plant_after_boot(function: int) -> object:
        message = plant_late(function)
        if function == 0x1001:
            script.card.inject_card(kind)
        return message

    if late:
        script.until = plant_after_boot  # type: ignore[method-assign,assignment]
    else:
        script.card.inject_card(kind)
    assert look(script) == expected
    assert script.card.faults.struck == ([] if kind is CardFault.POWER_ON_NEVER else [kind])


def test_the_card_falls_off_while_its_gsp_is_started(script: Script) -> None:
    script.card.inject_card("falls_off_at_boot")
    assert load(script) == 0xFFFF_FFFF and not script.transport.present()


FSP: dict[CardFault, tuple[int | None, int]] = {  # the response, and the mailbox
    CardFault.FSP_REFUSES: (0x9E, 0),
    CardFault.FMC_FAILS: (0, 0x7F),
}


@pytest.mark.parametrize("kind", FSP)
def test_a_fault_of_the_fsp_shows(trusted: FspScript, kind: CardFault) -> None:
    trusted.card.inject_card(kind)
    trusted.power_on()
    trusted.layout()
    trusted.arguments()
    response, mailbox = FSP[kind]
    assert trusted.trust() == response
    while response == 0 and trusted.read(0x1100F4) >> 8 == 0xBADF41:
        pass
    if mailbox:
        assert trusted.read(0x110040) == mailbox


def test_the_fsp_is_silent_or_the_lockdown_stays(trusted: FspScript) -> None:
    trusted.card.inject_card(CardFault.FSP_SILENT)
    trusted.power_on()
    trusted.layout()
    trusted.arguments()
    with pytest.raises(AssertionError):
        trusted.trust()
    trusted.card.inject_card(CardFault.LOCKDOWN_NEVER)
    assert trusted.trust() == 0
    while trusted.read(0x1100F4) >> 8 == 0xBADF41:
        pass
    assert {trusted.read(0x1100F4) >> 13 & 1 for _ in range(50)} == {1}


def test_faults_are_planted_by_name() -> None:
    assert set(faults()) >= {kind.name.lower() for kind in CardFault}
    machine = build_machine("ad102", MachineOptions(memory=1 << 28))
    card = build_card("ad102", CardOptions(memory=MEMORY))
    try:
        plant(card, "booter_fails", "2")  # type: ignore[arg-type]
        plant(card, "lost_doorbell", "")  # type: ignore[arg-type]
        assert card.faults.holds(CardFault.BOOTER_FAILS) and card.machine.faults.pending
        with pytest.raises(BadArgument, match="at register level"):
            plant(machine, "booter_fails", "")
        with pytest.raises(BadArgument, match="fault must be one of"):
            card.inject_card("nothing")
    finally:
        card.close()
        machine.close()
