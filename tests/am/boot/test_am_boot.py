"""Boot: cold, warm, after a crash; the sequence against a golden file; no strictness violated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conftest import Golden
from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import NAME, attach, build_chip, check_runs, opened, plug_in
from tests.support.amd.am_transcript import Names, transcript
from tests.support.died import died
from ugpu.am.chips import facts_of
from ugpu.am.device.device import open_device
from ugpu.am.units.psp import psp
from ugpu.am.work import proof
from ugpu.hcq.errors import (
    BadArgument,
    ChipError,
    DeviceLost,
    DiscoveryError,
    FirmwareInvalid,
    FirmwareNotFound,
    FirmwareRejected,
    FirmwareSilent,
    OutOfMemory,
    UgpuError,
)
from ugpu.hcq.transport.recorded.accesses import Access, TracingTransport
from ugpu.virtual.amd import gpu
from ugpu.virtual.amd.options import ChipOptions, FaultPlan

COLD_STAGES = [
    "config space", "board firmware", "discovery", "memory", "firmware images", "NBIO", "MMHUB",
    "IH", "PSP bootloader", "PSP ring", "TMR", "IP firmware", "SMU", "RLC autoload", "MEC",
    "GFXHUB", "GFX", "compute queue", "copy queues",
]  # fmt: skip


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip()
    yield made
    made.close()


def test_cold_boot_tells_its_stages(chip: Any) -> None:
    heard: list[tuple[str, float]] = []
    with opened(chip, on_stage=lambda name, seconds: heard.append((name, seconds))) as device:
        assert [name for name, _ in device.boot_stages] == COLD_STAGES
        assert heard == device.boot_stages
        assert not device.warm
        info = device.info()
        assert (info["isa"], info["compute_units"], info["start"]) == ("gfx1100", 96, "cold")
        assert device.target.compute_units == 96
    assert chip.violations == []


def test_second_process_finds_the_chip_warm(chip: Any) -> None:
    with opened(chip):
        pass
    with opened(chip) as device, device.load(faulty_object()) as program:
        assert device.warm
        assert "PSP bootloader" not in dict(device.boot_stages)
        check_runs(device, program, device.alloc(64), 3)
    assert chip.violations == []


def test_a_warm_attach_resets_the_engines(chip: Any) -> None:
    resets: list[int] = []
    with opened(chip):
        reset = chip.gfx._soft_reset
    assert chip.gfx.mec.running(0) is False and not chip.gfx.sdma[0].running()
    chip.gfx.on_write("GRBM_SOFT_RESET", lambda value: (resets.append(value), reset(value)))
    with opened(chip) as device:
        assert device.warm
        seen = {field for value in resets for field in chip.gfx.table["GRBM_SOFT_RESET"].fields
                if chip.gfx.table["GRBM_SOFT_RESET"].decode(value)[field]}  # fmt: skip
        assert seen >= {"SOFT_RESET_CP", "SOFT_RESET_CPC", "SOFT_RESET_SDMA0", "SOFT_RESET_SDMA1"}
        with device.alloc(64) as buffer:
            buffer.fill(7)
            assert buffer.numpy(np.uint32)[1] == 7
    assert chip.violations == []
    assert [note for note in chip.notes if "switched off" in note] == []


def test_what_only_looks_warm_is_booted(chip: Any) -> None:
    """A hub that acknowledges nothing more, until the chip is reset."""
    with opened(chip):
        pass
    mode1 = chip.mode1_reset

    def cured() -> None:
        chip.faults.tlb_no_ack = set()
        mode1()

    chip.mode1_reset = cured
    chip.faults.tlb_no_ack = {"gc"}
    with opened(chip) as device:
        assert not device.warm
        assert "mode1 reset" in dict(device.boot_stages)
        with device.alloc(64) as buffer:
            buffer.fill(7)
            assert buffer.numpy(np.uint32)[1] == 7
    assert chip.violations == []


def test_a_warm_chip_whose_queues_stand_still_is_reset(
    chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "PROOF_LIMIT_S", 0.1)
    with opened(chip):
        pass
    mode1, running = chip.mode1_reset, chip.gfx.mec.running
    stuck = [True]

    def cured() -> None:
        stuck.clear()
        mode1()

    chip.mode1_reset = cured
    chip.gfx.mec.running = lambda pipe: not stuck and running(pipe)
    with opened(chip) as device, device.load(faulty_object()) as program:
        assert device.warm and device.reset_report[-1].name == "mode1 reset"
        check_runs(device, program, device.alloc(64), 3)


def test_memory_is_not_touched_before_it_is_ours(chip: Any) -> None:
    """Another driver may have its TMR, its tables or its picture where ours will be."""
    device = plug_in(chip)
    died(device)
    device.transport.close()
    chip.tmr = (2 << 20, 40 << 20)
    with opened(chip) as device:
        assert "mode1 reset" in dict(device.boot_stages)
    assert chip.violations == []


def test_clocks_are_gated(chip: Any) -> None:
    """Values by hand, from the comments of gfx_v11_0.c and the masks of hdp_6_0_0_sh_mask.h,
    athub_3_0_0_sh_mask.h and osssys_6_0_0_sh_mask.h."""
    chip.ih.set("IH_CLK_CTRL", 0xFF80_0000)  # all overrides
    athub = chip.space.index("athub", "ATHUB_MISC_CNTL")
    chip.space.poke(athub, 0x2)
    with opened(chip):
        gc = chip.gfx
        assert gc.get("RLC_CGCG_CGLS_CTRL") == 0x0000363F
        assert gc.get("CP_RB_WPTR_POLL_CNTL") == 0x00900100
        assert gc.get("CP_INT_CNTL") & 0x003C0000 == 0x003C0000
        assert gc.get("RLC_CGTT_MGCG_OVERRIDE") & 0x73E == 0
        assert chip.hdp.get("HDP_MEM_POWER_CTRL") & 0x000F000F == 0x00090009
        assert chip.hdp.get("HDP_CLK_CNTL") & 1 << 27 == 0
        assert chip.mm.get("MM_ATC_L2_MISC_CG") == 0x000C0000
        assert chip.space.peek(athub) == 0xC2
        assert chip.ih.get("IH_CLK_CTRL") == 0x0780_0000
    assert [note for note in chip.notes if "safe mode" in note] == []


def test_everything_in_vmid_0(chip: Any) -> None:
    for _ in ("cold", "warm"):
        with opened(chip, vmid=0) as device, device.load(faulty_object()) as program:
            out = device.alloc(4096)
            check_runs(device, program, out, 3)
            out.fill(9)
            assert (out.numpy(np.uint32) == 9).all()
            (compute,) = chip.gfx.mec.queues()
            assert compute.vmid == 0
            assert {engine.queue.vmid for engine in chip.gfx.sdma} == {0}
            device.reset()
            check_runs(device, program, out, 4)
    assert chip.violations == []
    with pytest.raises(BadArgument, match="vmid must be 0 or 8, got 3"):
        plug_in(chip, vmid=3)


def test_a_crashed_process_costs_a_reset(chip: Any) -> None:
    crashed = plug_in(chip)
    died(crashed)
    crashed.transport.close()
    with opened(chip) as device, device.load(faulty_object()) as program:
        assert not device.warm
        assert "mode1 reset" in dict(device.boot_stages)
        check_runs(device, program, device.alloc(64), 4)
    assert chip.violations == []


def test_a_reset_that_loses_configuration_space_is_survived() -> None:
    """Boards keep BARs and command register through mode1; the kernel restores them anyway."""
    chip = build_chip(ChipOptions(config_lost_on_mode1=True))
    try:
        crashed = plug_in(chip)
        died(crashed)
        crashed.transport.close()
        with opened(chip) as device, device.load(faulty_object()) as program:
            assert "mode1 reset" in dict(device.boot_stages)
            check_runs(device, program, device.alloc(64), 4)
        assert chip.violations == []
    finally:
        chip.close()


def test_leaving_cold(chip: Any) -> None:
    with opened(chip, leave="cold"):
        pass
    with opened(chip) as device:
        assert not device.warm
        assert "mode1 reset" not in dict(device.boot_stages)
    with pytest.raises(BadArgument):
        plug_in(chip, leave="hot")


def test_forcing_cold(chip: Any) -> None:
    with opened(chip):
        pass
    with opened(chip, force_cold=True) as device:
        assert not device.warm
    assert chip.violations == []


def test_sensors_make_sense(chip: Any) -> None:
    with opened(chip) as device:
        values = {(sensor.name, sensor.label): sensor.read() for sensor in device.sensors()}
    assert 1e8 <= values["clock_hertz", "gfx"] <= 4e9
    assert 5 <= values["temperature_celsius", "edge"] <= 110
    assert 1 <= values["power_watts", "socket"] <= 500
    assert 0 <= values["usage_ratio", "gfx"] <= 1


@pytest.mark.parametrize(
    ("built", "units"),
    [
        (ChipOptions(visible_vram=256 << 20), 96),
        (ChipOptions(vram=512 << 20), 96),
        (ChipOptions(registers=512 << 10, index_latch=True), 96),
        (ChipOptions(discovery_version=4), 96),
        (ChipOptions(shader_engines=4, wgps_per_array=2), 32),
        (ChipOptions(seed=7), 96),
    ],
)
def test_other_boards_of_the_kind(built: ChipOptions, units: int) -> None:
    """A small BAR, little memory, registers behind the index pair, other tables and geometries."""
    chip = build_chip(built)
    try:
        with opened(chip) as device, device.load(faulty_object()) as first:
            assert device.target.compute_units == units
            large = device.alloc(300 << 20)
            tail = large[-4096:]
            data = np.arange(1024, dtype=np.uint32)
            tail.copy_from(data)
            assert (tail.numpy(np.uint32) == data).all()
            with device.load(faulty_object()) as beyond:  # code beyond what the host reaches
                check_runs(device, first, tail, 8)
                check_runs(device, beyond, tail, 9)
        assert chip.violations == []
    finally:
        chip.close()


def test_a_harvested_copy_engine_is_left_alone() -> None:
    chip = build_chip(ChipOptions(harvested=((43, 0),)))
    try:
        with opened(chip) as device:
            assert [queue.name for queue in device.driver.queues.copy] == ["SDMA0"]
            with device.alloc(64) as buffer:
                buffer.fill(5)
                assert buffer.numpy(np.uint32)[3] == 5
    finally:
        chip.close()


def test_a_damaged_discovery_table() -> None:
    chip = build_chip(ChipOptions(discovery_flaw="checksum"))
    try:
        with pytest.raises(DiscoveryError, match="checksum"):
            plug_in(chip)
    finally:
        chip.close()


def test_too_little_memory() -> None:
    chip = build_chip(ChipOptions(vram=64 << 20))
    try:
        with pytest.raises(OutOfMemory):
            plug_in(chip)
    finally:
        chip.close()


@pytest.mark.golden
@pytest.mark.parametrize("name", ["navi31", "navi48"])
def test_sequence_of_accesses(golden: Golden, name: str) -> None:
    accesses: list[Access] = []
    marks: list[tuple[int, str]] = []
    attachment = gpu.attach(name)
    tracing: Any = TracingTransport(attachment.transport, accesses.append)
    traced = replace(attachment, transport=tracing)

    def on_stage(stage: str, _seconds: float) -> None:
        marks.append((len(accesses), stage))

    open_device(f"virtual:{name}", traced, on_stage=on_stage).close()
    names = Names(facts_of(name))
    lines, start = [], 0
    for end, stage in [*marks, (len(accesses), "close")]:
        lines += [f"# {stage}", *transcript(accesses[start:end], names), ""]
        start = end
    golden.check(f"am-boot-{name}.txt", "\n".join(lines))


def test_a_sign_of_life_of_all_ones_is_none(chip: Any) -> None:
    """A register behind a bus that does not answer reads as ones, and so may one of a dead unit."""
    with opened(chip) as device:
        psp = device.driver.units.psp
        assert psp.alive()
        index = chip.space.index("mp", "MP0_SMN_C2PMSG_81")
        sign = chip.space.peek(index)
        for value, alive in ((0, False), (0xFFFF_FFFF, False), (sign, True)):
            chip.space.poke(index, value)
            assert psp.alive() is alive


def test_slots_are_counted_beyond_32_bits(chip: Any) -> None:
    """The fence holds the low half of a number that goes on rising."""
    with opened(chip) as device:
        queue = device.driver.queues.compute[0]
        count, fence = queue.count, bytes(queue.control.view[128:136])
        for submitted, low, done in (
            ((1 << 32) + 3, 1, (1 << 32) + 1),
            ((1 << 32) + 3, 0xFFFF_FFFE, (1 << 32) - 2),
            ((5 << 32) + 3, 3, (5 << 32) + 3),
        ):
            queue.count = submitted
            queue.control.view[128:136] = low.to_bytes(8, "little")
            assert queue.done == done
        queue.count = count
        queue.control.view[128:136] = fence


def test_the_command_ring_of_the_psp_wraps(chip: Any) -> None:
    with opened(chip) as device:
        assert device.driver.card.firmware is not None
        toc = device.driver.card.firmware.boot[device.driver.facts.generation.toc_type]
        sizes = {device.driver.units.psp.load_toc(toc) for _ in range(70)}
        assert len(sizes) == 1
    assert chip.violations == []


@pytest.mark.parametrize(
    ("plan", "error", "facts"),
    [
        ({"psp_reject": {"SOS"}}, FirmwareRejected, {"stage": "PSP bootloader", "status": 15}),
        ({"psp_reject": {"RS64_MEC"}}, FirmwareRejected, {"image": "rs64_mec", "status": 15}),
        ({"psp_reject": {"SMU"}}, FirmwareRejected, {"image": "smu", "stage": "TMR"}),
        ({"psp_ring_status": 7}, FirmwareRejected, {"image": "ring", "status": 7}),
        ({"autoload_never": True}, FirmwareSilent, {"stage": "RLC autoload"}),
        ({"smu_responses": {6: 0xFD}}, FirmwareRejected, {"image": "SMU", "status": 0xFD}),
        ({"tlb_no_ack": {"gc"}}, ChipError, {"unit": "GFXHUB"}),
    ],
)
def test_a_boot_that_fails_says_why(
    plan: dict[str, Any],
    error: type[UgpuError],
    facts: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psp, "BOOTLOADER_LIMIT_S", 0.3)
    chip = build_chip()
    for name, value in plan.items():
        setattr(chip.faults, name, value)
    try:
        with pytest.raises(error) as caught:
            plug_in(chip)
        assert facts.items() <= caught.value.facts.items()
        stage = caught.value.facts["stage"]  # in the words of the demo and of the ladder
        assert stage in COLD_STAGES and f"stage={stage}" in str(caught.value)
        for name in plan:
            setattr(chip.faults, name, getattr(FaultPlan(), name))
        with opened(chip) as device, device.load(faulty_object()) as program:
            check_runs(device, program, device.alloc(64), 5)
    finally:
        chip.close()


def test_status_bits_of_an_older_bootloader_are_no_refusal(chip: Any) -> None:
    """Below PSP 13.0.6 nothing says what the low bits of C2PMSG_35 are: the boot polls on."""
    seen: list[int] = []

    def early() -> int:
        seen.append(chip.psp.get("MP0_SMN_C2PMSG_35"))
        return seen[-1] | 0xF if len(seen) in (2, 3) else seen[-1]

    chip.psp.on_read("MP0_SMN_C2PMSG_35", early)
    with opened(chip) as device:
        assert not device.warm
    assert len(seen) > 3


@pytest.mark.parametrize("access", [1, 5, 40, 150, 300, 450, 550, 620])
def test_removal_at_any_time_of_the_boot(access: int) -> None:
    chip = build_chip()
    chip.faults.lost_at_access = access
    try:
        with pytest.raises(DeviceLost):
            plug_in(chip)
    finally:
        chip.close()


def test_missing_and_damaged_images(chip: Any) -> None:
    attachment = attach(chip=chip)
    assert attachment.firmware is not None
    images = dict(attachment.firmware)
    name = "gc_11_0_0_rlc.bin"
    with pytest.raises(FirmwareNotFound, match=name):
        rest = {key: data for key, data in images.items() if key != name}
        open_device(NAME, replace(attachment, firmware=rest))
    attachment = attach(chip=chip)
    with pytest.raises(FirmwareInvalid, match=name):
        open_device(NAME, replace(attachment, firmware=images | {name: images[name][:-4]}))


def test_a_silent_smu_needs_a_reset(chip: Any) -> None:
    with opened(chip) as device, device.load(faulty_object()) as program:
        out = device.alloc(64)
        device.driver.units.smu.limit_s = 0.1
        chip.faults.smu_silent = True
        (power,) = [sensor for sensor in device.sensors() if sensor.name == "power_watts"]
        with pytest.raises(FirmwareSilent) as caught:
            power.read()
        assert caught.value.facts["unit"] == "SMU"
        check_runs(device, program, out, 6)  # what runs does not need the SMU
        chip.faults.smu_silent = False
        device.reset()
        assert device.reset_report[-1].name == "mode1 reset"
        assert device.vram_lost
        assert power.read() > 0
        check_runs(device, program, out, 7)
        data = np.arange(16, dtype=np.uint32)
        out.copy_from(data)
        assert (out.numpy(np.uint32) == data).all()
    assert chip.violations == []


def test_an_unknown_interface_of_the_smu_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """As boards with firmware 78.133 have it: 0x41, where Linux too knows 0x3D and goes on."""
    chip = build_chip(ChipOptions(smu_driver_if=0x41, smu_version=0x004E8500))
    try:
        with opened(chip) as device:
            (line,) = [line for line in caplog.messages if "interface" in line]
            assert "78.133.0" in line and "0x41" in line and "0x3d" in line
            assert all(sensor.read() >= 0 for sensor in device.sensors())
    finally:
        chip.close()
