"""Hardware of AMD cards: page faults, waves, packets, discovery, hubs, interrupts."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.campaign.kind import Kind, Layer, Recovery, nothing
from lab.campaign.kinds.firmware import NAVI, planned
from ugpu.am.chips import all_facts
from ugpu.hcq.errors import (
    BadPacket,
    ChipError,
    DeviceHang,
    DiscoveryError,
    FirmwareInvalid,
    FirmwareNotFound,
    IllegalInstruction,
    PageFault,
    UgpuError,
)
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command_buffer import CommandBuffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.amd.reports import report

_UNMAPPED, _HOLE = np.uint64(0x1234_5678_9000), np.uint64(0x8000_0000_0000)
_GMC, _IRQ = "Linux gmc_v11_0.c", "Linux irqsrcs_gfx_11_0_0.h"
_RESET = "device.reset()"
_RLC = "_rlc.bin"  # end of the file's name, which is different for each chip


def kernel(name: str, run: Any, error: type[UgpuError], **fields: Any) -> Kind:
    """A kernel that does what it must not; `run` takes the stand."""
    made: dict[str, Any] = {
        "layer": Layer.HARDWARE, "planted": "a kernel of tests.support.amd.am_faulty",
        "devices": NAVI, "stages": ("launch",), "plant": nothing, "source": _GMC,
        "remedy": _RESET, "provoke": run,
    }  # fmt: skip
    return Kind(name=name, error=error, **(made | fields))


def reported(name: str, what: str, error: type[UgpuError] | None, **fields: Any) -> Kind:
    """An error that an engine reports by its interrupt."""
    made: dict[str, Any] = {
        "layer": Layer.HARDWARE, "planted": f'`reports.report(chip, "{what}")`', "devices": NAVI,
        "stages": ("launch", "copy"), "source": _IRQ, "remedy": _RESET,
        "plant": lambda stand: report(stand.chip, what),
    }  # fmt: skip
    return Kind(name=name, error=error, **(made | fields))


def discovery(flaw: str, remedy: str) -> Kind:
    """A discovery table that the board firmware wrote wrong; the card is built with it."""

    def plant(stand: Any) -> None:
        stand.chip.options = _with(stand.chip.options, discovery_flaw=flaw)
        stand.chip.power_cycle()

    def cure(stand: Any) -> None:
        stand.chip.options = _with(stand.chip.options, discovery_flaw=None)
        stand.chip.power_cycle()

    return Kind(
        name=f"discovery table: {flaw}", layer=Layer.FIRMWARE, devices=NAVI,
        planted=f"`ChipOptions(discovery_flaw={flaw!r})`", stages=("config space",), plant=plant,
        cure=cure, error=DiscoveryError, facts={"stage": "discovery"}, remedy=remedy,
        state="discovery: unreadable", source="Linux amdgpu_discovery.c", recovery=Recovery.REOPEN,
    )  # fmt: skip


def _with(options: ChipOptions, **changes: Any) -> ChipOptions:
    from dataclasses import replace

    return replace(options, **changes)


# ---- what kernels and packets do -----------------------------------------------------------------


def _freed(stand: Any) -> None:
    victim = stand.device.alloc(4096)
    address = np.uint64(victim.address)
    victim.close()
    stand.run("read_at", address)


def _past_the_end(stand: Any) -> None:
    with stand.device.alloc(4096) as small:
        stand.run("read_at", np.uint64(small.address + 4096))


def _code(stand: Any) -> None:
    stand.run("write_at", np.uint64(stand.program["good"].address))


def _into_data(stand: Any) -> None:
    with stand.device.alloc(4096) as data:
        stand.run("jump_to", np.uint64(data.address))


def _copy_from(stand: Any, address: int, *, writes: bool = False) -> None:
    core = stand.device.driver.core
    out = stand.out
    nowhere = Buffer(core, out.address, 64, out.placement, owner=out)
    nowhere.address = type(out.address)(address)
    with stand.device.queue(QueueKind.COPY) as queue:
        queue.copy(*((nowhere, out) if writes else (out, nowhere)), 64)
    stand.device.synchronize()


def _packet(*words: int) -> Any:
    def run(stand: Any) -> None:
        queue = stand.device.driver.queues.compute[0]
        image = CommandBuffer(np.array(words, np.uint32), len(words), ())
        queue.submit(image, np.zeros(0, np.uint64))
        queue.timeline.advance()
        queue.timeline.wait(limit_s=60)

    return run


def _copy_packet(*words: int) -> Any:
    def run(stand: Any) -> None:
        queue = stand.device.driver.queues.copy[0]
        image = CommandBuffer(np.array(words, np.uint32), len(words), ())
        queue.submit(image, np.zeros(0, np.uint64))
        queue.timeline.advance()
        queue.timeline.wait(limit_s=60)

    return run


def _forever(stand: Any) -> None:
    stand.run("forever")


def _never_signalled(stand: Any) -> None:
    timeline = stand.device.timeline()
    try:
        queue = stand.device.queue()
        queue.wait(timeline, 5).fill(stand.out, 1)
        queue.submit()
        stand.device.synchronize()
    finally:
        timeline.close()


# ---- hubs and interrupts -------------------------------------------------------------------------


def _overflow(stand: Any) -> None:
    """More entries than the ring holds, none of them a failure."""
    for _ in range(9000):
        stand.chip.ih.raise_interrupt(0x0A, 49, 0, 8)


def _stale_semaphore(stand: Any) -> None:
    stand.chip.mm.set("MMVM_INVALIDATE_ENG17_SEM", 1)
    stand.chip.mm._semaphores.add(17)


def _without_rlc(stand: Any) -> None:
    stand.changes["firmware"] = lambda files: {
        k: v for k, v in files.items() if not k.endswith(_RLC)
    }


def _of_another_chip(stand: Any) -> None:
    """The SMU's image, whose version is that of an image of a chip beside this one."""
    facts, name = stand.facts, "smu_{}.bin"
    mark = next(other.marks[name] for other in all_facts() if other.name != facts.name)
    wanted = facts.image_name(name, "MP1")

    def relabelled(files: dict[str, bytes]) -> dict[str, bytes]:
        data = files[wanted]  # the upper half of ucode_version (common_firmware_header)
        return {**files, wanted: data[:18] + mark.to_bytes(2, "little") + data[20:]}

    stand.changes["firmware"] = relabelled


def _damaged_rlc(damage: Any) -> Any:
    def plant(stand: Any) -> None:
        stand.changes["firmware"] = lambda files: {
            name: damage(data) if name.endswith(_RLC) else data for name, data in files.items()
        }

    return plant


def files(name: str, plant: Any, error: type[UgpuError], remedy: str) -> Kind:
    return Kind(
        name=name, layer=Layer.HOST, planted="other firmware files", devices=NAVI,
        stages=("config space",), plant=plant, error=error, remedy=remedy,
        facts={"stage": "firmware images"}, source="Linux amdgpu_ucode.h",
        cure=lambda stand: stand.changes.clear(), recovery=Recovery.REOPEN,
    )  # fmt: skip


KINDS = [
    kernel("read of an unmapped address", lambda s: s.run("read_at", _UNMAPPED), PageFault,
           facts={"access": "read", "hub": "GFXHUB", "client": "TCP", "kernel": "read_at"}),
    kernel("write to an unmapped address", lambda s: s.run("write_at", _UNMAPPED), PageFault,
           facts={"access": "write", "kernel": "write_at"}),
    kernel("jump to an unmapped address", lambda s: s.run("jump_to", _UNMAPPED), PageFault,
           facts={"access": "execute", "client": "SQC (inst)"}),
    kernel("null pointer", lambda s: s.run("read_at", np.uint64(0)), PageFault,
           facts={"address": 0}),
    kernel("address in the canonical hole", lambda s: s.run("read_at", _HOLE), PageFault),
    kernel("read past the end of a buffer", _past_the_end, PageFault, facts={"access": "read"}),
    kernel("access to freed memory", _freed, PageFault, facts={"access": "read"}),
    kernel("write to code", _code, PageFault, facts={"access": "write", "refused": "write"}),
    kernel("jump into data", _into_data, PageFault, facts={"access": "execute"}),
    kernel("illegal instruction", lambda s: s.run("illegal"), IllegalInstruction,
           facts={"kernel": "illegal"}, source="Linux kfd_int_process_v11.c"),
    kernel("endless kernel", _forever, DeviceHang, facts={"active": 1}, stages=("wait",),
           source=_IRQ),
    kernel("wait for a signal that never comes", _never_signalled, DeviceHang, stages=("wait",),
           source=_IRQ, planted="a queue waits for a timeline"),
    kernel("copy from an unmapped address", lambda s: _copy_from(s, int(_UNMAPPED)), PageFault,
           stages=("copy",), planted="a copy command", facts={"access": "read"}),
    kernel("copy to an unmapped address",
           lambda s: _copy_from(s, int(_UNMAPPED), writes=True), PageFault,
           stages=("copy",), planted="a copy command", facts={"access": "write"}),
    kernel("unknown packet of a compute queue", _packet(0xC000_FE00, 0), BadPacket,
           planted="a packet", facts={"source": 183}, source=_IRQ),
    kernel("reserved type of packet", _packet(0x4000_0000, 0), BadPacket, planted="a packet",
           source="PM4 packet headers"),
    kernel("unknown packet of a copy queue", _copy_packet(0x0000_00FF, 0), BadPacket,
           stages=("copy",), planted="a packet", source="Linux irqsrcs_gfx_11_0_0.h"),
    reported("reserved bit of a packet set", "cp reserved bit", BadPacket, stages=("launch",)),
    reported("packet accesses a privileged register", "cp privileged register", BadPacket,
             stages=("launch",)),
    reported("packet is privileged", "cp privileged instruction", BadPacket, stages=("launch",)),
    reported("uncorrectable error in the CP's memory", "cp ecc", ChipError, stages=("launch",)),
    reported("fatal error of the CP", "cp fatal", ChipError, stages=("launch",)),
    reported("fatal error of the graphics core", "rlc fatal", ChipError, stages=("launch",)),
    reported("poisoned data consumed", "utcl2 poison", ChipError, layer=Layer.MEMORY),
    reported("uncorrectable error in a wave's registers", "sq fatal uncorrectable", ChipError,
             stages=("launch",), layer=Layer.MEMORY),
    reported("detected fatal error of a wave", "sq fatal detected", ChipError,
             stages=("launch",), layer=Layer.MEMORY),
    reported("memory violation of a wave", "sq memory violation", ChipError, stages=("launch",)),
    reported("copy engine writes a protected register", "sdma protected register", BadPacket,
             stages=("copy",)),
    reported("doorbell of an invalid copy queue", "sdma invalid doorbell", ChipError,
             stages=("copy",)),
    reported("atomic operation of a copy engine times out", "sdma atomic timeout", DeviceHang,
             stages=("copy",)),
    reported("poll of a copy engine runs out of retries", "sdma poll timeout", DeviceHang,
             stages=("copy",)),
    reported("page request of a copy engine times out", "sdma page timeout", DeviceHang,
             stages=("copy",)),
    reported("copy engine accesses a null page", "sdma null page", PageFault, stages=("copy",)),
    reported("page fault seen by the copy engine alone", "sdma page fault", PageFault,
             stages=("copy",)),
    reported("copy engine address in the canonical hole", "sdma canonical hole", PageFault,
             stages=("copy",)),
    reported("ECC error of a copy engine", "sdma ecc", ChipError, stages=("copy",),
             layer=Layer.MEMORY),
    reported("SRAM ECC error of a copy engine", "sdma sram ecc", ChipError, stages=("copy",),
             layer=Layer.MEMORY),
    reported("copy engine is frozen", "sdma frozen", ChipError, stages=("copy",)),
    reported("semaphore of a copy engine incomplete", "sdma semaphore incomplete", ChipError,
             stages=("copy",)),
    reported("semaphore wait of a copy engine fails", "sdma semaphore wait failed", ChipError,
             stages=("copy",)),
    discovery("signature", "power the card off and on"),
    discovery("checksum", "power the card off and on"),
    discovery("table signature", "power the card off and on"),
    discovery("table checksum", "power the card off and on"),
    discovery("gc checksum", "power the card off and on"),
    discovery("harvest", "power the card off and on"),
    discovery("size", "power the card off and on"),
    planned("graphics hub does not acknowledge a TLB flush", ("GFXHUB", "copy"),
            {"tlb_no_ack": {"gc"}}, ChipError, layer=Layer.HARDWARE, source=_GMC,
            facts={"unit": "GFXHUB"}, remedy="mode1", recovery=Recovery.RESET),
    planned("memory hub does not acknowledge a TLB flush", ("MMHUB",),
            {"tlb_no_ack": {"mmhub"}}, ChipError, layer=Layer.HARDWARE, source=_GMC,
            facts={"unit": "MMHUB"}, remedy="mode1", recovery=Recovery.RESET),
    Kind(name="TLB semaphore held by a process that died", layer=Layer.HARDWARE,
         planted="the model's semaphore taken", devices=NAVI, stages=("config space",),
         plant=_stale_semaphore, error=None, source=_GMC, recovery=Recovery.NONE),
    planned("interrupts are lost", ("NBIO", "launch", "copy", "idle"), {"interrupts_lost": True},
            None, layer=Layer.HARDWARE, source="Linux ih_v6_0.c", recovery=Recovery.NONE),
    Kind(name="interrupt ring overflows", layer=Layer.HARDWARE, planted="9,000 entries at once",
         devices=NAVI, stages=("launch", "copy", "idle"), plant=_overflow, error=None,
         source="Linux ih_v6_0.c", recovery=Recovery.NONE),
    planned("doorbells are lost", ("launch", "copy"), {"doorbells_lost": True}, DeviceHang,
            layer=Layer.HARDWARE, source="Linux nbio_v4_3.c", remedy=_RESET,
            recovery=Recovery.RESET),
    files("firmware file missing", _without_rlc, FirmwareNotFound, "linux-firmware"),
    files("firmware file truncated", _damaged_rlc(lambda data: data[:-4]), FirmwareInvalid,
          "linux-firmware"),
    files("firmware file empty", _damaged_rlc(lambda data: b""), FirmwareInvalid,
          "linux-firmware"),
    files("firmware file of another kind", _damaged_rlc(lambda data: bytes(len(data))),
          FirmwareInvalid, "linux-firmware"),
    files("firmware file of another chip", _of_another_chip, FirmwareInvalid, "linux-firmware"),
]  # fmt: skip
