"""Commands of the PSP's ring, several at once: on a card whose registers are behind a link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise

import pytest

from tests.support.amd.am_navi31 import NAME, attach, build_chip
from ugpu.am.chip.chip import IndexedVram
from ugpu.am.device.device import AmDevice, open_device
from ugpu.am.units.psp import psp
from ugpu.am.units.psp import stage as psp_stage
from ugpu.am.units.psp.commands import Command, load_toc
from ugpu.am.units.smu import smu
from ugpu.hcq.errors import FirmwareRejected, FirmwareSilent
from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.amd.chip import Chip


@pytest.fixture
def chip() -> Iterator[Chip]:
    made = build_chip()
    yield made
    made.close()


def plug_in(chip: Chip, *, messages: bool = True) -> AmDevice:
    attachment = attach(chip=chip)
    transport = attachment.transport
    transport.traits = replace(transport.traits, register_messages=messages)
    device = open_device(NAME, attachment)
    assert isinstance(device, AmDevice)
    return device


def objections(chip: Chip) -> list[str]:
    """Violations, but for blocks of registers, which this card's BAR takes in one piece."""
    return [text for text in chip.violations if not text.startswith("block read of BAR5")]


def test_images_go_to_the_ring_together(chip: Chip) -> None:
    with plug_in(chip) as device:
        assert not device.warm
        images = len(device.driver.facts.generation.ip_firmware)
        assert device.driver.units.psp.fence_value == images + 4  # TOC, SMU, TMR, autoload
    assert objections(chip) == []


def test_components_of_the_bootloader_lie_side_by_side_at_addresses_of_their_own(
    chip: Chip,
) -> None:
    with plug_in(chip) as device:
        driver = device.driver
        shelf, generation = driver.units.psp.stage, driver.facts.generation
        assert isinstance(shelf, psp_stage.Shelf) and driver.card.firmware is not None
        images = [driver.card.firmware.boot[kind] for _, _, kind in generation.boot_components]
        places = [shelf.address(image) for image in images]
        assert None not in places and len(set(places)) == len(set(images)) == len(images) - 1
        told = driver.chip.mp0.MP0_SMN_C2PMSG_36.index
        recent = driver.chip.bus.recent
        written = [value << 20 for write, at, value in recent if write and at == told]
        # The second one is the first one again, whose address the register has.
        assert written == [place for place, _ in groupby(places)]
    assert objections(chip) == []


def test_components_that_do_not_fit_side_by_side_come_one_after_the_other(
    chip: Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit is written over what does, and so is what follows."""
    monkeypatch.setattr(psp_stage, "ROOM", 64 << 10)
    with plug_in(chip) as device:
        driver = device.driver
        shelf, generation = driver.units.psp.stage, driver.facts.generation
        assert isinstance(shelf, psp_stage.Shelf) and driver.card.firmware is not None
        images = [driver.card.firmware.boot[kind] for _, _, kind in generation.boot_components]
        assert {shelf.address(image) is None for image in images} == {True, False}
        device.synchronize()
    assert objections(chip) == []


@pytest.mark.parametrize("position", [1, 5, 8])
def test_a_boot_that_died_while_the_bootloader_loads_goes_on(
    chip: Chip, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    class Died(BaseException):
        pass

    give = psp.Psp._command

    def count(unit: psp.Psp, at: int, command: int) -> None:
        give(unit, at, command)
        if at + 1 == position:
            raise Died

    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(psp.Psp, "_command", count)
        plug_in(chip)
    with plug_in(chip) as device:
        unit = device.driver.units.psp
        assert unit.alive() and not device.warm
        device.synchronize()
    assert objections(chip) == []


def test_a_secure_os_that_starts_late_is_alive_in_the_end(chip: Chip) -> None:
    """The boot before ended between the last command and the sign of life."""
    with plug_in(chip) as device:
        unit, sign = device.driver.units.psp, device.driver.chip.mp0.MP0_SMN_C2PMSG_81
        device.driver.chip.bus.rely(sign, 0)
        assert not unit.alive()
        unit.wait_secure_os()
        assert unit.alive() and int(sign.read())


@pytest.mark.parametrize("count", [1, 63, 64, 65, 150])
def test_any_number_of_commands_runs_in_order(chip: Chip, count: int) -> None:
    with plug_in(chip) as device:
        driver = device.driver
        assert driver.card.firmware is not None
        toc = driver.card.firmware.boot[driver.facts.generation.toc_type]
        seen: list[int] = []

        def fill(buffer: Struct, address: int) -> None:
            seen.append(address)
            load = buffer.cmd.cmd_load_toc
            load.toc_phy_addr_lo, load.toc_phy_addr_hi = address & 0xFFFF_FFFF, address >> 32
            load.toc_size = len(toc)

        before = driver.units.psp.fence_value
        driver.units.psp.run(*(Command("TOC", "LOAD_TOC", fill, toc) for _ in range(count)))
        assert driver.units.psp.fence_value == before + count and len(seen) == count
        lowest = driver.units.carveout.mc(driver.units.carveout.psp_private)
        assert min(seen) >= lowest
        assert any(high > low for low, high in pairwise(seen)) == (count > 1)
    assert objections(chip) == []


@pytest.mark.parametrize("kind", ["RS64_MEC", "SMU", "RLC_G"])
def test_the_image_that_is_refused_is_named(
    chip: Chip, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its answer, which is read when the SMU is silent or the graphics core does not start."""
    monkeypatch.setattr(smu, "MESSAGE_LIMIT_S", 0.1)
    chip.faults.psp_reject = {kind}
    with pytest.raises(FirmwareRejected) as caught:
        plug_in(chip)
    assert caught.value.facts["image"] == kind.lower()
    chip.faults.psp_reject = set()
    with plug_in(chip) as device:
        assert not device.warm


def test_answers_that_are_about_to_be_lost_are_read(chip: Chip) -> None:
    """The next command takes the place of some, and the first that was refused is named."""
    with plug_in(chip) as device:
        driver = device.driver
        unit = driver.units.psp
        assert driver.card.firmware is not None and not unit.unread
        toc = driver.card.firmware.boot[driver.facts.generation.toc_type]
        commands = [replace(load_toc(toc), what=name) for name in ("first", "second", "third")]
        unit.run(*commands, later=True)
        assert len(unit.unread) == 3
        assert unit.load_toc(toc)
        assert [command.what for command, _ in unit.unread] == ["first", "second"]
        bad = replace(commands[0], what="bad", kind="SETUP_VMR")
        unit.run(bad, *commands, later=True)
        with pytest.raises(FirmwareRejected) as caught:
            unit.run(*commands, commands[0], later=True)
        assert caught.value.facts["image"] == "bad" and not unit.unread


def test_the_command_that_is_not_done_is_named(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fence that was written counts."""
    with plug_in(chip) as device:
        units = device.driver.units
        monkeypatch.setattr(psp, "FENCE_LIMIT_S", 0.02)
        execute = chip.psp.commands.execute

        def one_then_silence(content: bytes) -> bytes:
            chip.faults.psp_silent = len(done) > 0
            done.append(0)
            return execute(content)

        done: list[int] = []
        monkeypatch.setattr(chip.psp.commands, "execute", one_then_silence)
        tmr = units.psp.setup_tmr(units.carveout.tmr, 1 << 20)
        names = ("first", "second", "third")
        with pytest.raises(FirmwareSilent) as caught:
            units.psp.run(*(replace(tmr, what=name, kind="LOAD_TOC") for name in names))
        assert caught.value.facts["image"] == "second"


def test_an_answer_that_comes_between_the_reads_of_it_and_of_the_fence_is_read_again(
    chip: Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words in front of the fence were read before the PSP wrote them."""
    torn: list[int] = []
    read = IndexedVram.read

    def early(vram: IndexedVram, address: int, size: int) -> bytes:
        data = read(vram, address, size)
        if size > 4 and not torn and any(data[-4:]):
            torn.append(address)
            return bytes(size - 4) + data[-4:]
        return data

    with plug_in(chip) as device:
        psp_unit = device.driver.units.psp
        monkeypatch.setattr(IndexedVram, "read", early)
        firmware = device.driver.card.firmware
        assert firmware is not None
        toc = firmware.boot[device.driver.facts.generation.toc_type]
        assert psp_unit.load_toc(toc) == psp_unit.load_toc(toc) > 0
        assert torn
    assert objections(chip) == []
