"""What a chip tells of itself in any state: named states, queues, waves, page tables, evidence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import shared_facts
from ugpu import hcq
from ugpu.am.chips import facts_of
from ugpu.am.chips import gfx11_evidence as lists
from ugpu.am.device.device import open_device
from ugpu.am.failure import evidence
from ugpu.am.failure.inspect import walk
from ugpu.am.offline import chip as window
from ugpu.am.regs import load
from ugpu.hcq.disk import bundle
from ugpu.hcq.errors import FirmwareError, IllegalInstruction, PageFault, UgpuError
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.gpu import attach, build_chip
from ugpu.virtual.amd.options import ChipOptions, Delays, FaultPlan


@contextlib.contextmanager
def card(faults: FaultPlan | None = None) -> Iterator[Chip]:
    options = ChipOptions(faults=faults or FaultPlan(), delays=Delays())
    chip = build_chip(facts_of("navi31"), options)
    try:
        yield chip
    finally:
        chip.close()


def named(chip: Chip) -> dict[str, dict[str, Any]]:
    with window.open_window(attach("navi31", chip)) as seen:
        found: Any = window.look(seen, "states")
    return {one["unit"]: one for one in found}


def test_a_chip_that_was_not_booted_is_no_failure() -> None:
    with card() as chip:
        found = named(chip)
    assert [one for one in found.values() if not one["ok"]] == []
    assert found["PSP"]["name"] == "bootloader ready" and found["RLC"]["name"] == "not loaded"


def test_a_chip_that_was_left_warm() -> None:
    with card() as chip:
        hcq.open("virtual:navi31", chip=chip).close()
        found = named(chip)
    assert [one for one in found.values() if not one["ok"]] == []
    assert found["PSP"]["name"] == "secure OS" and found["SMU"]["name"] == "running"


@pytest.mark.parametrize(
    ("faults", "unit", "name"),
    [
        (FaultPlan(secure_os_never=True), "PSP", "bootloader not ready"),
        (FaultPlan(psp_ring_status=0x5), "PSP", "ring refused"),
        (FaultPlan(smu_silent=True), "SMU", "hung or at work"),
        (FaultPlan(autoload_never=True), "RLC", "autoload not complete"),
    ],
)
def test_a_boot_that_failed_is_named(faults: FaultPlan, unit: str, name: str) -> None:
    with card(faults) as chip:
        attachment = attach("navi31", chip)
        with pytest.raises(FirmwareError):
            open_device("card", attachment)
        found = named(chip)
    wrong = next(one for one in found.values() if not one["ok"])
    assert (wrong["unit"], wrong["name"]) == (unit, name)
    assert wrong["meaning"] and wrong["remedy"] and wrong["registers"]


def named_anyhow(chip: Chip) -> dict[str, Any]:
    (found,) = window.named_states(attach("navi31", chip))
    assert found["ok"] is False and found["meaning"] and found["remedy"]
    return found


def test_board_firmware_that_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_facts(monkeypatch, ifwi_limit_s=0.2)
    with card(FaultPlan(ifwi_never=True)) as chip:
        found = named_anyhow(chip)
    assert (found["unit"], found["name"]) == ("board firmware", "not done")
    assert found["registers"].keys() == {"C2PMSG_33", "RCC_CONFIG_MEMSIZE"}


def test_a_discovery_table_that_cannot_be_read() -> None:
    chip = build_chip(facts_of("navi31"), ChipOptions(discovery_flaw="signature", delays=Delays()))
    found = named_anyhow(chip)
    chip.close()
    assert (found["unit"], found["name"]) == ("discovery", "unreadable")


def test_a_card_that_is_not_there() -> None:
    with card() as chip:
        attachment = attach("navi31", chip)
        chip.unplug()
        (found,) = window.named_states(attachment)
    assert (found["unit"], found["name"]) == ("link", "no answer")


def test_a_card_that_left() -> None:
    with card() as chip, window.open_window(attach("navi31", chip)) as seen:
        chip.unplug()
        found: Any = window.look(seen, "states")
    assert [(one["unit"], one["name"], one["ok"]) for one in found] == [
        ("link", "no answer", False)
    ]


def test_the_lists_name_registers_that_there_are() -> None:
    gc = load("gc_11_0_0")
    assert [name for name in lists.QUEUE_REGISTERS if name not in gc] == []
    waves = load("gc_11_0_0_indirect")
    assert [name for name in lists.WAVE_REGISTERS if f"SQ_WAVE_{name}" not in waves] == []


@pytest.fixture(scope="module")
def gpu() -> Iterator[Any]:
    with hcq.open("virtual:navi31", vram=256 << 20) as device:
        yield device


def run(gpu: Any, name: str, *arguments: object) -> None:
    program = gpu.load(faulty_object())
    with gpu.queue() as queue:
        queue.launch(program[name], grid=(1, 1, 1), block=(64, 1, 1), args=arguments)


def test_evidence_of_a_page_fault(gpu: Any) -> None:
    buffer = gpu.alloc(4096)
    run(gpu, "write_at", buffer, np.uint64(0x2040_0000_0000))
    with pytest.raises(PageFault) as caught:
        gpu.synchronize()
    found = evidence.gather(gpu.driver, caught.value)
    assert found.missing == {}
    parts = {name: json.loads(data) for name, data in found.parts.items() if name.endswith("json")}
    assert parts["queues.json"][0]["suspects"] == ["write_at"]
    assert parts["walk.json"]["end"] == "level 1 has no valid entry"
    assert parts["walk.json"]["driver"] is None
    assert parts["registers.json"]["registers"]["gc.SCRATCH_REG7"] == 0x75470001
    assert parts["program.json"]["pc"] == caught.value.facts["pc"]
    assert (
        len(found.parts["program.bin"])
        > caught.value.facts["pc"] - parts["program.json"]["address"]
    )
    assert parts["hqd.json"][0]["registers"]["CP_HQD_ACTIVE"] == 1
    gpu.reset()
    # Nothing of it took a semaphore or left a selection behind: the device works.
    word = np.arange(1024, dtype=np.uint32)
    other = gpu.alloc(4096)
    other.copy_from(word)
    assert np.array_equal(other.numpy(np.uint32), word)


def test_the_wave_that_stopped(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_WAVES_LIMIT_S", None)
    run(gpu, "illegal", gpu.alloc(4096))
    with pytest.raises(IllegalInstruction) as caught:
        gpu.synchronize()
    parts = evidence.gather(gpu.driver, caught.value).parts
    waves = json.loads(parts["waves.json"])
    assert [wave["kernel"] for wave in waves] == ["illegal"]
    assert waves[0]["pc"] == caught.value.facts["pc"]
    gpu.reset()


def test_a_walk_ends_where_the_driver_mapped(gpu: Any) -> None:
    buffer = gpu.alloc(1 << 21)
    memory = gpu.driver.memory
    for offset in (0, 4096, (1 << 21) - 4):
        address = int(buffer.address) + offset
        found = walk(gpu.chip, memory.format, address, gpu.driver.vmid)
        known = memory.tables.lookup(address)
        assert found["end"] == "a page" and found["physical"] == known.physical
    assert walk(gpu.chip, memory.format, 0x1000, gpu.driver.vmid)["end"] != "a page"
    assert walk(gpu.chip, memory.format, 0x1000, 5)["enabled"] is False


def test_a_bundle_of_a_card_that_left(tmp_path: Any) -> None:
    with card() as chip:
        device = open_device("card", attach("navi31", chip))
        chip.unplug()
        with pytest.raises(UgpuError) as caught:
            device.alloc(4096).copy_from(bytes(4096))
            device.synchronize()
        found = evidence.gather(device.driver, caught.value)
        assert found.missing["registers.json"] == "the chip does not answer"
        assert {"queues.json", "memory.json", "boot.json"} <= set(found.parts)
        path = bundle.write(tmp_path, "card", caught.value, found)
        assert bundle.read(path).manifest["device"] == "card"
        with contextlib.suppress(UgpuError):
            device.close()
