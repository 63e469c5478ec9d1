"""Fault buffers of a card without a kernel driver: stray accesses are named by their entries; what
goes wrong while entries are taken does not keep a channel from its end."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import LIMIT_S, tenant, work
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import FirmwareError, PageFault, UgpuError
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.nv import abi
from ugpu.nv.device import driver as driver_module
from ugpu.nv.device.device import NvDevice
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.rm import fault_buffers
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.engines import Engine
from ugpu.nv.gsp.rm.fault_buffers import ENTRY, FaultBuffers, MmuFault, decode
from ugpu.nv.gsp.rm.gpu import GspGpu
from ugpu.nv.gsp.rm.states import states
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.firmware.images import whole_set
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.memory.fault_buffers import REPLAYABLE, Replay

CHIPS = ["ad102", "ga102", "tu102", "ga100", "gh100", "gb202"]
STRAY, OTHER = 0x12_3456_7000, 0x23_4567_8000
KERNELS = """
.visible .entry stray_read(.param .u64 place)
{
  .reg .b64 %place;
  .reg .b32 %value;
  ld.param.u64 %place, [place];
  ld.global.u32 %value, [%place];
  st.global.u32 [%place], %value;
  ret;
}
.visible .entry stray_write(.param .u64 place)
{
  .reg .b64 %place;
  ld.param.u64 %place, [place];
  st.global.u32 [%place], 1;
  ret;
}
.visible .entry stray_atomic(.param .u64 place)
{
  .reg .b64 %place;
  .reg .b32 %value;
  ld.param.u64 %place, [place];
  atom.global.add.u32 %value, [%place], 1;
  ret;
}
.visible .entry stray_atomic_sys(.param .u64 place)
{
  .reg .b64 %place;
  ld.param.u64 %place, [place];
  red.global.sys.add.u32 [%place], 1;
  ret;
}
"""
REGISTERS = 0xB83020  # of the replayable buffer: LO, HI, GET, PUT, SIZE


@contextlib.contextmanager
def opened(chip: str = "ad102", **options: Any) -> Iterator[tuple[Card, NvDevice]]:
    card = build_card(chip, CardOptions(memory=1 << 30))
    try:
        with hcq.open(f"virtual:{chip}+gsp", chip=card, **options) as device:
            assert isinstance(device, NvDevice)
            device.limit_s = LIMIT_S
            yield card, device
        assert card.mmu_faults.read(REGISTERS + 16 - 0xB83000) == 0, "the GSP has disabled it"
        assert card.violations == []
    finally:
        card.close()


def gpu_of(device: NvDevice) -> GspGpu:
    gpu = device.driver.gpu
    assert isinstance(gpu, GspGpu)
    return gpu


def faults_of(device: NvDevice) -> FaultBuffers:
    faults: FaultBuffers = gpu_of(device).session.card.faults
    return faults


def launch(device: Device, name: str, place: int = STRAY) -> None:
    with device.load(ptx_kernels.text(KERNELS, device.target.cpu)) as program:
        with device.queue() as queue:
            queue.launch(program[name], grid=(1,), block=(1,), args=(np.uint64(place),))
        device.synchronize()


def copy(device: Device, way: str, place: int = STRAY) -> None:
    stray = Buffer(device.driver.core, VirtAddr(place), 4096, Placement.DEVICE, None)
    with device.alloc(4096) as own:
        with device.queue(QueueKind.COPY) as queue:
            if way == "read":
                queue.copy(own, stray)
            else:
                queue.copy(stray, own)
        device.synchronize()


def caught(run: Callable[..., object], *arguments: object) -> dict[str, Any]:
    with pytest.raises(PageFault) as error:
        run(*arguments)
    return error.value.facts


STRAYS: dict[str, Callable[[Device, str], None]] = {"kernel": launch, "copy": copy}
WRITES = {"kernel": "stray_write", "copy": "write"}


@pytest.mark.parametrize("chip", CHIPS)
def test_a_stray_access_is_named_by_its_entry(chip: str) -> None:
    with opened(chip) as (_, device):
        for access in ("read", "write", "atomic"):
            facts = caught(launch, device, f"stray_{access}")
            assert facts["address"] == STRAY and facts["access"] == access
            assert (facts["unit"], facts["engine"]) == ("GPC0_T1_0", "GR0")
            device.reset()
        for way in ("read", "write"):
            facts = caught(copy, device, way)
            assert facts["address"] == STRAY and facts["access"] == way
            assert facts["unit"] == "HUB_CE0" and facts["engine"].startswith("COPY")
            device.reset()
        work(device)
        assert faults_of(device).as_json() == {"seen": [], "lost": 0, "late": 0}


def test_atomics_by_their_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """NV_PFAULT_ACCESS_TYPE_VIRT_ATOMIC_WEAK is 4, _STRONG is 2 (dev_fault.h)."""
    taken: list[int] = []

    def decoded(raw: bytes, *rest: Any) -> MmuFault:
        taken.append(int(abi.fault_entry().decode(raw)["ACCESS_TYPE"]))
        return decode(raw, *rest)

    monkeypatch.setattr(fault_buffers, "decode", decoded)
    with opened() as (_, device):
        for name in ("stray_atomic", "stray_atomic_sys"):
            assert caught(launch, device, name)["access"] == "atomic"
            device.reset()
    assert taken == [4, 2]


def test_a_report_without_an_address_has_that_of_the_entry(tmp_path: Path) -> None:
    """Firmware of release 535 reports a channel's end without an address."""
    for name, image in whole_set("ad102").items():
        if "535.113.01" in name or "acr" in name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(image)
    with opened(firmware=tmp_path) as (_, device):
        assert device.info()["firmware"] == "535.113.01"
        facts = caught(copy, device, "write")
        assert (facts["address"], facts["access"], facts["unit"]) == (STRAY, "write", "HUB_CE0")
        device.reset()


@pytest.mark.parametrize("way", ["kernel", "copy"])
def test_an_entry_interrupts_a_wait(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_SPINS", 0)  # each wait sleeps
    with opened() as (_, device):
        interrupts = gpu_of(device).session.card.interrupts
        assert interrupts is not None
        wait, came = interrupts.wait, []

        def noted(limit_s: float) -> None:
            wait(LIMIT_S)  # as long as the whole work may take
            came.append(limit_s)

        monkeypatch.setattr(interrupts, "wait", noted)
        facts = caught(STRAYS[way], device, WRITES[way])
        assert facts["access"] == "write" and came
        device.reset()


def test_two_channels_at_once() -> None:
    with opened() as (_, device):
        gpu, faults = gpu_of(device), faults_of(device)
        stray = Buffer(device.driver.core, VirtAddr(OTHER), 4096, Placement.DEVICE, None)
        program = device.load(ptx_kernels.text(KERNELS, device.target.cpu))
        with device.alloc(4096) as own:
            with device.queue(QueueKind.COPY) as queue:
                queue.copy(own, stray)
            with device.queue() as queue:
                queue.launch(
                    program["stray_write"], grid=(1,), block=(1,), args=(np.uint64(STRAY),)
                )
            limit = device.driver.clock.deadline(LIMIT_S)
            while len(gpu.session.events._seen) < 2 and not limit.expired():
                gpu.poll()
            seen = {
                each.address: (each.access, each.engine[:2]) for each in gpu.session.events._seen
            }
            assert seen == {STRAY: ("write", "GR"), OTHER: ("read", "CO")}
            facts = caught(device.synchronize)
            assert facts["address"] in seen and facts["access"] == seen[facts["address"]][0]
            assert not faults.seen
            device.reset()
        program.close()


def entry(address: int, **values: int) -> bytes:
    """NVC369_BUF_ENTRY of clc369.h, of a channel that there is not."""
    fields = {"ADDR": address >> 12, "INST": 0x777, "VALID": 1, "REPLAYABLE_FAULT": 1} | values
    return bytes(abi.fault_entry().new(**fields))


def test_a_full_buffer_overflows_and_wraps() -> None:
    with opened() as (card, device):
        faults, unit = faults_of(device), card.mmu_faults
        for number in range(8193):
            unit._put(REPLAYABLE, entry(STRAY + 4096 * number))
        assert card.read32(REGISTERS + 12) == 1 << 31 | 8191
        chip = gpu_of(device).session.card.chip
        shown = states(chip)[-1]
        assert (shown.name, shown.ok, shown.meaning[:5]) == ("overflow", False, "8191 "), shown
        device.driver.gpu.poll()
        assert card.read32(REGISTERS + 12) == card.read32(REGISTERS + 8) == 8191
        assert states(chip)[-1].name == "clear"
        assert faults.lost == 1 and faults.seen[-1].address == STRAY + 4096 * 8190
        assert len(faults.seen) == 256
        shown = json.loads(device.driver.evidence(UgpuError("a test")).parts["faults.json"])
        assert shown["lost"] == 1 and len(shown["seen"]) == 256, shown
        assert caught(launch, device, "stray_write")["unit"] == "GPC0_T1_0"
        assert card.read32(REGISTERS + 12) == card.read32(REGISTERS + 8) == 0, "it has wrapped"
        device.reset()


@pytest.mark.parametrize("comes", [False, True])
def test_an_entry_that_is_not_valid_yet(comes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as (card, device):
        faults, view = faults_of(device), faults_of(device)._ring.view
        for number in range(3):
            card.mmu_faults._put(REPLAYABLE, entry(STRAY + 4096 * number))
        view[ENTRY + 31] &= 0x7F
        clock = gpu_of(device).session.card.transport.clock
        waits: list[bool] = []

        def polled(holds: bool) -> None:
            waits.append(holds)
            if comes and len(waits) == 9:
                view[ENTRY + 31] |= 0x80

        monkeypatch.setattr(clock, "polled", polled)
        monkeypatch.setattr(fault_buffers, "_VALID_LIMIT_S", LIMIT_S if comes else 0.001)
        device.driver.gpu.poll()
        wanted = [0, 1, 2] if comes else [0, 2]
        assert [fault.address for fault in faults.seen] == [STRAY + 4096 * at for at in wanted]
        assert faults.late == (not comes) and len(waits) > 9 * comes
        assert card.read32(REGISTERS + 8) == card.read32(REGISTERS + 12) == 3
        assert caught(launch, device, "stray_write")["access"] == "write"
        device.reset()


def test_a_prefetch_is_replayed_and_ends_no_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as (card, device):
        asked: list[int] = []
        monkeypatch.setattr(card.mmu_faults, "replay", asked.append)
        prefetch = abi.fault_codes("ga100").field("ACCESS_TYPE").values["VIRT_PREFETCH"]
        card.mmu_faults._put(REPLAYABLE, entry(STRAY, ACCESS_TYPE=prefetch))
        device.driver.gpu.poll()
        card.mmu_faults._put(REPLAYABLE, entry(STRAY, ACCESS_TYPE=prefetch))
        card.mmu_faults._put(REPLAYABLE, entry(STRAY))
        device.driver.gpu.poll()
        device.driver.gpu.poll()
        assert [how for how in asked if how] == [Replay.START, Replay.CANCEL_GLOBAL]


STEPS: dict[str, tuple[type, str]] = {
    "decode": (FaultBuffers, "_note"), "wait": (FaultBuffers, "_is_valid"),
    "cancel": (GspChip, "replay_faults"), "report": (GspClient, "control"),
}  # fmt: skip


@pytest.mark.parametrize("way", ["kernel", "copy"])
@pytest.mark.parametrize("step", STEPS)
def test_an_exception_while_entries_are_taken(
    step: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before the step; the next look completes what was begun."""
    with opened() as (_, device):
        owner, name = STEPS[step]
        goes_on = getattr(owner, name)
        struck: list[str] = []

        def strike(self: Any, *arguments: Any) -> Any:
            if not struck and (step != "report" or "NON_REPLAYABLE" in arguments[1]):
                struck.append(step)
                raise KeyboardInterrupt
            return goes_on(self, *arguments)

        monkeypatch.setattr(owner, name, strike)
        concerned = way == ("copy" if step == "report" else "kernel") or step == "decode"
        if concerned:
            with pytest.raises(KeyboardInterrupt):
                STRAYS[way](device, WRITES[way])
            facts = caught(device.synchronize)
        else:
            facts = caught(STRAYS[way], device, WRITES[way])
        assert bool(struck) == concerned
        assert (facts["address"], facts["access"]) == (STRAY, "write") and facts["unit"]
        monkeypatch.undo()
        device.reset()
        work(device)


@pytest.mark.parametrize("refused", ["_GET_STATIC_INFO", "_REGISTER_FAULT_BUFFER",
                                     "_REGISTER_CLIENT_SHADOW_FAULT_BUFFER"])  # fmt: skip
def test_a_registration_that_is_refused(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open fails with the GSP's answer, and the next one finds no buffer left over."""
    control = GspClient.control

    def refuse(self: GspClient, handle: int, command: str, parameters: Any = None) -> None:
        if command.endswith(f"GMMU{refused}"):
            raise FirmwareError(f"the GSP refuses {command}")
        control(self, handle, command, parameters)

    card = build_card("ad102", CardOptions(memory=1 << 30))
    with monkeypatch.context() as patch:
        patch.setattr(GspClient, "control", refuse)
        with pytest.raises(FirmwareError, match=refused):
            hcq.open("virtual:ad102+gsp", chip=card)
    assert card.mmu_faults.read(REGISTERS + 16 - 0xB83000) == 0
    with hcq.open("virtual:ad102+gsp", chip=card) as device:
        assert isinstance(device, NvDevice)
        work(device)
    assert card.violations == []
    card.close()


def test_the_buffers_stay_until_the_last_holder() -> None:
    with opened() as (card, device):
        with tenant(device, "second") as other:
            assert caught(launch, other, "stray_read")["unit"] == "GPC0_T1_0"
        assert card.read32(REGISTERS + 16) >> 31, "still enabled"
        assert caught(copy, device, "read")["unit"] == "HUB_CE0"
        device.reset()


@pytest.mark.parametrize("refused", ["FBSR_INIT", "UNREGISTER_FAULT_BUFFER", ""])
def test_entries_after_a_suspend(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    control = GspClient.control

    def refuse(self: GspClient, handle: int, command: str, parameters: Any = None) -> None:
        if refused and command.endswith(f"_{refused}"):
            raise FirmwareError(f"the GSP refuses {command}")
        control(self, handle, command, parameters)

    with opened() as (_, device):
        work(device)
        with monkeypatch.context() as patch:
            patch.setattr(GspClient, "control", refuse)
            if refused:
                with pytest.raises(FirmwareError, match=refused):
                    device.suspend()
            else:
                device.suspend()
                device.resume()
        assert caught(launch, device, "stray_read")["unit"] == "GPC0_T1_0"
        device.reset()
        if refused != "UNREGISTER_FAULT_BUFFER":  # the shadow buffer is gone, and its faults end
            assert caught(copy, device, "read")["unit"] == "HUB_CE0"
            device.reset()


@given(st.binary(min_size=ENTRY, max_size=ENTRY), st.sampled_from(sorted(abi.FAULT_TABLES)))
def test_any_entry_is_decoded(raw: bytes, family: str) -> None:
    """By the layout of clc369.h, read here by words."""
    words = struct.unpack("<8I", raw)
    fault = decode(raw, family, [Engine("GR", 0, 0, 64), Engine("COPY", 1, 1, 16, (33,))])
    assert fault.instance == words[1] << 32 | words[0] & ~0xFFF
    assert fault.address == words[3] << 32 | words[2] & ~0xFFF
    assert fault.time_ns == words[5] << 32 | words[4]
    assert fault.unit.startswith("HUB_" if words[7] >> 20 & 1 else f"GPC{words[7] >> 24 & 31}_")
    engine = words[6] & 0x1FF
    assert fault.engine == ("GR0" if 64 <= engine < 128 else "COPY1" if engine in (16, 33) else "")
    accesses = dict(enumerate(("read", "write", "atomic", "prefetch", "atomic")))
    access = words[7] >> 16 & 0xF
    if not access & 8:  # of physical addresses
        assert fault.access == accesses.get(access, f"access of type {access}")
    assert (words[7] & 0x1F != 2 or fault.kind == "PTE") and fault.kind


def test_a_damaged_queue_is_refused() -> None:
    """Any GET and PUT: what lies outside is an error, and nothing is read beyond the queue."""
    with opened() as (_, device):
        queue = faults_of(device)._queue.view
        for get, put in ((8192, 0), (0, 8192), (1 << 63, 1), (5, (1 << 64) - 1)):
            struct.pack_into("<Q", queue, 64, get)
            struct.pack_into("<Q", queue, 128, put)
            with pytest.raises(FirmwareError, match="damaged"):
                device.driver.gpu.poll()
        struct.pack_into("<Q", queue, 64, 8191)  # an entry that the GSP does not know: refused
        struct.pack_into("<Q", queue, 128, 0)
        with pytest.raises(UgpuError, match="REPORT_NON_REPLAYABLE_FAULT"):
            device.driver.gpu.poll()
        struct.pack_into("<Q", queue, 64, 0)
        device.reset()
        work(device)
