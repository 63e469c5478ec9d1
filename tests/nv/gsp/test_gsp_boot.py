"""The start of a card without a kernel driver, its end, and what is refused on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.nvidia.gsp import gsp_files as made
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.errors import (
    DeviceBusy,
    DeviceLost,
    FirmwareError,
    FirmwareInvalid,
    FirmwareNotFound,
    FirmwareRejected,
    FirmwareSilent,
    NotSupported,
    UgpuError,
)
from ugpu.hcq.find.registry import Attachment
from ugpu.nv import chips
from ugpu.nv.gsp.boot import init, unload
from ugpu.nv.gsp.boot.files import PACKAGE
from ugpu.nv.gsp.boot.fwsec import protected_region
from ugpu.nv.gsp.chip.falcon import Falcon
from ugpu.nv.gsp.images.elf_sections import read_sections
from ugpu.nv.gsp.rm.card import GspCard
from ugpu.virtual.nvidia.gsp.bus.pci import VirtualTransport
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.firmware.images import synthetic_set, whole_set
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions

STAGES = [
    "firmware files", "gfw-boot", "vbios", "layout", "frts", "gsp-reset", "booter", "riscv",
    "init-done", "static-info",
]  # fmt: skip


FSP_STAGES = [
    "firmware files", "gfw-boot", "layout", "chain-of-trust", "lockdown", "riscv", "init-done",
    "static-info",
]  # fmt: skip


@contextlib.contextmanager
def powered(options: CardOptions | None = None, chip: str = "ad102") -> Iterator[Card]:
    card = build_card(chip, options or CardOptions(memory=1 << 30))
    try:
        yield card
    finally:
        card.close()


def booted(
    card: Card, images: dict[str, bytes] | None = None, stages: Stages | None = None
) -> GspCard[Any]:
    files = dict(whole_set(card.facts.name)) if images is None else images
    transport = VirtualTransport(card)
    running: GspCard[Any] = GspCard(
        transport.name,
        Attachment(transport, files, card),
        FirmwareSource(PACKAGE, files),
        stages or Stages(),
    )
    running.start()
    return running


@pytest.mark.parametrize("release", ["570.144", "535.113.01"])
@pytest.mark.parametrize("chip", ["ad102", "tu102", "tu116"])
def test_every_stage_in_order_and_back(release: str, chip: str) -> None:
    images = {n: d for n, d in whole_set(chip).items() if release in n or "acr" in n}
    with powered(chip=chip) as card:
        for _ in range(2):  # the second start finds the card as after power-on
            running = booted(card, images)
            assert [name for name, _ in running.stages.done] == STAGES
            assert running.calls.abi.version == release
            assert protected_region(running.chip)[1], "the GSP owns its memory"
            begin, end = running.places.heap, running.places.heap_end
            assert 0 < begin < end <= running.firmware.static.regions[-1][1]
            running.end(clean=True)
            assert not card.wpr.touches(0, 1 << 30), "nothing is protected any more"
        assert card.violations == []


@pytest.mark.parametrize("chip", ["ad102", "tu102"])
def test_a_further_release_is_one_folder(chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """550.163.01, of which Linux has no files: nothing but its tables is added to the driver."""
    facts = replace(chips.boot_facts(chip), releases=("550.163.01",))
    monkeypatch.setattr(chips, "boot_facts", lambda name: facts)
    with powered(chip=chip) as card:
        running = booted(card, synthetic_set(chip, "550.163.01"))
        assert running.calls.abi.version == "550.163.01"
        assert running.firmware.static.regions
        running.end(clean=True)
        assert card.violations == []


@pytest.mark.parametrize("chip", ["ad102", "tu102"])
def test_noise_before_and_after_the_start_is_served(chip: str) -> None:
    options = CardOptions(memory=1 << 30, notices=20, flood=8, power_on_reads=50, scrub_reads=9)
    with powered(replace(options, dma_reads=3), chip) as card:
        running = booted(card)
        assert len(running.firmware.static.uuid) in (0, 16)
        running.end(clean=True)
        assert card.violations == []


def test_error_correction_takes_a_sixteenth_of_memory() -> None:
    """NV_PFB_PRI_MMU_LOCAL_MEMORY_RANGE: scale in 3:0, magnitude in 9:4, ECC_MODE in 30."""
    with powered(CardOptions(memory=15 << 26), "tu102") as card:
        card.registers.stuck[0x100CE0] = 1 << 30 | 1 << 4 | 10
        running = booted(card)
        assert running.chip.memory_size == 15 << 26
        running.end(clean=True)
        assert card.violations == []


def test_ga100_makes_its_region_with_booter_alone() -> None:
    """FWSEC runs only on the way back; the metadata name no FRTS region."""
    with powered(chip="ga100") as card:
        for runs in range(2):
            running = booted(card)
            done = [name for name, _ in running.stages.done]
            assert done == [name for name in STAGES if name != "frts"]
            begin, end = protected_region(running.chip)
            assert begin < end == card.memory_size - (1 << 20)
            assert len(card.gsp.programs_run) == runs
            running.end(clean=True)
            assert not card.wpr.up
            assert len(card.gsp.programs_run) == runs + 1, "FWSEC-SB, by its loader"
        assert card.violations == []


def test_ga100_checks_a_signature_of_384_bytes() -> None:
    files = dict(whole_set("ga100"))
    name = next(name for name in files if "booter_load-570.144" in name)
    damaged = bytearray(files[name])
    damaged[-1] ^= 1  # of the program's data, which the signature covers
    with powered(chip="ga100") as card:
        with pytest.raises(FirmwareRejected) as caught:
            booted(card, {**files, name: bytes(damaged)})
        assert caught.value.facts["stage"] == "booter"
        assert any("does not match the content" in text for text in card.violations)
        booted(card).end(clean=True)


@pytest.mark.parametrize("chip", ["gh100", "gb202"])
def test_a_chain_of_trust_and_back(chip: str) -> None:
    with powered(chip=chip) as card:
        for _ in range(2):
            running = booted(card)
            assert [name for name, _ in running.stages.done] == FSP_STAGES
            running.end(clean=True)
        assert card.violations == []


@pytest.mark.parametrize("part", ["hash", "publickey", "signature", "image"])
def test_fsp_refuses_a_changed_first_program(part: str) -> None:
    """The file is whole (its sums are right), but what it contains is not what was signed."""
    files = dict(whole_set("gb202"))
    name = next(name for name in files if "fmc" in name)
    parts = {key: bytes(each.data) for key, each in read_sections(name, files[name]).items()}
    parts[part] = bytes((parts[part][0] ^ 1,)) + parts[part][1:]
    with powered(chip="gb202") as card:
        with pytest.raises(FirmwareError) as caught:
            booted(card, {**files, name: made.elf(parts, wide=False, sums=True)})
        assert caught.value.facts["stage"] in ("chain-of-trust", "lockdown")


def registers(card: Card) -> dict[str, Any]:
    """What a driver must leave as it was, if it refuses to start."""
    return {
        "master": card.config.bus_master,
        "wpr": card.wpr.touches(0, card.memory_size),
        "gsp": (card.gsp.active, card.server is not None),
    }


def test_nothing_is_changed_before_all_files_are_there() -> None:
    files = dict(whole_set("ad102"))
    with powered() as card:
        before = registers(card)
        needed = ("booter_load-570", "booter_unload-570", "bootloader-570")
        for name in [name for name in files if any(part in name for part in needed)]:
            with pytest.raises(FirmwareNotFound, match=name.rpartition("/")[2]):
                booted(card, {key: data for key, data in files.items() if key != name})
            assert registers(card) == before
        assert not card.violations


@pytest.mark.parametrize("chip", ["ad102", "tu102", "gb202"])
def test_the_card_of_a_process_that_died_is_reset(chip: str) -> None:
    with powered(chip=chip) as card:
        booted(card).transport.close()
        second = booted(card)
        assert "function reset" in second.found
        second.end(clean=True)
        third = booted(card)
        assert third.found == "cold: as after power-on"
        third.end(clean=True)


def test_a_slot_reset_where_the_function_has_none() -> None:
    with powered(CardOptions(memory=1 << 30, function_reset=False)) as card:
        card.inject_card(CardFault.WPR2_LEFT)
        running = booted(card)
        assert "bus reset" in running.found
        running.end(clean=True)


def test_a_region_that_no_reset_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with powered() as card:
        booted(card).transport.close()
        before = card.wpr.start, card.wpr.end
        monkeypatch.setattr(Card, "function_reset", lambda card: None)  # as on some boards
        with pytest.raises(DeviceBusy, match="GSP still owns"):
            booted(card)
        assert (card.wpr.start, card.wpr.end) == before and not card.config.bus_master


@pytest.mark.parametrize(
    ("part", "stage"),
    [("booter_load", "booter"), ("gsp-", "booter"), ("bootloader", "booter")],
)
def test_a_changed_image_is_refused_by_the_card_and_the_card_is_handed_back(
    part: str, stage: str
) -> None:
    files = dict(whole_set("ad102"))
    name = next(name for name in files if part in name and "570.144" in name)
    damaged = bytearray(files[name])
    place = len(damaged) // 2 if part != "gsp-" else 0x200
    damaged[place] ^= 0xFF
    with powered() as card:
        with pytest.raises(UgpuError) as caught:
            booted(card, {**files, name: bytes(damaged)})
        assert isinstance(caught.value, FirmwareRejected | FirmwareSilent | FirmwareInvalid)
        assert caught.value.facts["stage"] == stage
        assert not card.wpr.touches(0, card.memory_size), "the way back was taken"
        booted(card).end(clean=True)


def test_fuses_that_no_signature_fits() -> None:
    with powered(CardOptions(memory=1 << 30, fuse=5)) as card:
        before = registers(card)
        with pytest.raises(FirmwareInvalid, match="not signed for this chip") as caught:
            booted(card)
        assert caught.value.facts["stage"] in ("vbios", "layout")
        assert registers(card)["wpr"] == before["wpr"] is False


def test_a_rom_without_fwsec() -> None:
    with powered() as card:
        card.rom = bytes(len(card.rom))
        with pytest.raises(FirmwareInvalid, match="no ROM signature") as caught:
            booted(card)
        assert caught.value.facts["stage"] == "vbios"


def test_a_board_whose_firmware_never_ends() -> None:
    with powered(CardOptions(memory=1 << 30, power_on_reads=1 << 30)) as card:
        with pytest.raises(FirmwareSilent, match="board's firmware") as caught:
            booted(card)
        assert caught.value.facts["stage"] == "gfw-boot"


def test_another_chip_behind_the_pci_id(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = chips.boot_facts("ad102")
    assert boot is not None
    monkeypatch.setattr(chips, "boot_facts", lambda name: replace(boot, chip_ids=(0x193,)))
    with powered() as card:
        with pytest.raises(NotSupported, match="expected BOOT_42 of 0x193") as caught:
            booted(card)
        assert caught.value.facts["found"] == 0x192


def test_a_card_that_leaves_the_bus() -> None:
    with powered() as card:
        running = booted(card)
        card.unplug()
        assert running.lost()
        with pytest.raises(DeviceLost):
            running.calls.call(65, b"")
        running.end(clean=True)


@pytest.mark.parametrize("runs", [True, False])
def test_only_firmware_that_runs_is_asked_to_leave(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start that failed when its firmware was up: a core that stopped would not answer,
    and the wait for it would be seconds."""
    asked: list[object] = []

    def fail(*_: object) -> None:
        monkeypatch.setattr(Falcon, "riscv_active", property(lambda _: runs))
        raise FirmwareError("no static information")

    monkeypatch.setattr(init, "read_static", fail)
    monkeypatch.setattr(unload, "leave", lambda start, *_: asked.append(start))
    with powered() as card:
        with pytest.raises(FirmwareError, match="no static information"):
            booted(card)
        assert len(asked) == runs
