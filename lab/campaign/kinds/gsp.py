"""Faults of the register-level NVIDIA cards: virtual.nvidia.gsp.faults.CardFault, at the steps of a
start without NVIDIA's kernel driver, and after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from ugpu.hcq.errors import (
    ChipError,
    DeviceBusy,
    DeviceLost,
    DriverRefused,
    FirmwareError,
    FirmwareInvalid,
    FirmwareRejected,
    FirmwareSilent,
    NotSupported,
    UgpuError,
    UnitTimeout,
)
from ugpu.nv.gsp.rpc.records import BadRecord
from ugpu.nv.gsp.rpc.sequencer import BadProgram
from ugpu.virtual.nvidia.gsp.faults import CardFault

_HW, _FW, _LINK, _HOST = Layer.HARDWARE, Layer.FIRMWARE, Layer.LINK, Layer.HOST
_F, _OGKM = CardFault, "open-gpu-kernel-modules 570.144"
_ISSUE = "NVIDIA/open-gpu-kernel-modules issue"
FWSEC, FSP = ("ad102+gsp",), ("gb202+gsp",)
PORTS, BOOTER = ("tu102+gsp",), ("ga100+gsp",)  # programs through ports; booter alone
BY_FWSEC, BY_BOOTER = (*FWSEC, *PORTS), (*FWSEC, *BOOTER)
DEVICES = (*FWSEC, *FSP, *PORTS, *BOOTER)
_RESET = "the GSP was reset while its firmware ran"  # it answers no call that lets it leave


def kind(
    fault: CardFault, layer: Layer, stages: str | Sequence[str], error: type[UgpuError] | None,
    remedy: str = "", *, step: str = "", lasts: bool = False, strands: bool = False,
    devices: tuple[str, ...] = FWSEC, **fields: Any,
) -> Kind:  # fmt: skip
    """Return a kind. step: which the error names, if that is not the stage at which the fault is
    planted; "-" for none. lasts: the driver cannot recover, another card is put into the
    slot. strands: the card cannot be handed back, the next start resets it."""
    stages = (stages,) if isinstance(stages, str) else tuple(stages)
    step = step or stages[0]
    facts = dict(fields.pop("facts", {}))
    if error is not None and step != "-":
        facts["stage"] = step
    rest: dict[str, Any] = {"source": _OGKM}

    def plant(stand: Any) -> None:
        stand.stranded = strands
        stand.card.inject_card(fault)

    if lasts:
        rest |= {"recovery": Recovery.REOPEN, "cure": lambda stand: stand.again()}
    else:
        rest["recovery"] = Recovery.REOPEN if error is not None else Recovery.NONE
    return Kind(
        name=f"{fault.name.lower()} (GSP)", layer=layer,
        planted=f"`card.inject_card(\"{fault.name.lower()}\")`", devices=devices, stages=stages,
        plant=plant, error=error, remedy=remedy, facts=facts,
        struck=lambda stand: fault in stand.card.faults.struck, **(rest | fields),
    )  # fmt: skip


_DEAD: dict[str, Any] = {"objections": (_RESET,)}
_LINKS = [
    kind(_F.REGISTERS_DARK, _LINK, "power", DeviceLost, "check cable", step="gfw-boot", lasts=True,
         facts={"config_space": "responds"}, source="tinygrad issues 15843, 15652, 16454"),
    kind(_F.OTHER_CHIP, _HW, "power", NotSupported, "expected BOOT_42 of 0x192", step="gfw-boot",
         lasts=True, facts={"found": 0x140}),
    kind(_F.GUEST, _HOST, "power", NotSupported, "vGPU", step="gfw-boot", lasts=True),
    kind(_F.FALLS_OFF, _LINK, "power", DeviceLost, "check cable", step="-", lasts=True),
    kind(_F.FALLS_OFF_AT_BOOT, _LINK, "booter", DeviceLost, "check cable", lasts=True,
         source="tinygrad issue 16454"),
    kind(_F.FALLS_OFF_AT_CALL, _LINK, "static-info", DeviceLost, "check cable", lasts=True,
         objections=("with bus mastering off",), source="tinygrad pull request 18215"),
    kind(_F.MESSAGE_LOST, _LINK, "open", None),
    kind(_F.WPR2_LEFT, _FW, "power", None, source=f"{_ISSUE} 1230, 1104, 876, 1058"),
    kind(_F.GSP_LEFT, _FW, "power", None, source=f"{_ISSUE} 1230"),
    kind(_F.WPR2_STUCK, _FW, "power", DeviceBusy, "power the card off", step="unload or reset",
         lasts=True, source=f"{_ISSUE} 1058"),
]  # fmt: skip
_BOARD = [
    kind(_F.POWER_ON_NEVER, _FW, "power", FirmwareSilent, "power the card off", step="gfw-boot",
         lasts=True, devices=(*FWSEC, *FSP)),
    kind(_F.PROGRESS_LOCKED, _FW, "power", FirmwareSilent, "power the card off", step="gfw-boot",
         lasts=True, facts={"waiting_for": "access to its progress"}),
    kind(_F.VBIOS_ZEROS, _HW, "vbios", FirmwareInvalid, lasts=True,
         facts={"expected": 0xAA55, "found": 0}),
    kind(_F.VBIOS_ONES, _HW, "vbios", FirmwareInvalid, lasts=True,
         facts={"expected": 0xAA55, "found": 0xFFFF}),
    kind(_F.VBIOS_WITHOUT_PCIR, _HW, "vbios", FirmwareInvalid, lasts=True,
         facts={"found": b"PCIX"}),
    kind(_F.VBIOS_WITHOUT_BIT, _HW, "vbios", FirmwareInvalid, "BIT header", lasts=True),
    kind(_F.VBIOS_WITHOUT_TOKEN, _HW, "vbios", FirmwareInvalid, "token 0x70", lasts=True),
    kind(_F.VBIOS_WITHOUT_SECURE, _HW, "vbios", FirmwareInvalid, "code type 0xe0", lasts=True),
    kind(_F.VBIOS_WITHOUT_FWSEC, _HW, "vbios", FirmwareInvalid, lasts=True,
         facts={"found": "0x1"}),
    kind(_F.VBIOS_DESCRIPTOR, _HW, "vbios", FirmwareInvalid, lasts=True, facts={"found": 7}),
    kind(_F.VBIOS_MAPPER, _HW, "vbios", FirmwareInvalid, "DMEM mapper", step="layout", lasts=True),
    kind(_F.VBIOS_SIGNATURE, _HW, "vbios", FirmwareRejected, step="frts", lasts=True,
         facts={"found": "0x0-0x0"}, objections=("the signature does not match",)),
    kind(_F.FUSES_NEWER, _HW, "vbios", FirmwareInvalid, "update the board's VBIOS", lasts=True,
         facts={"fuse_version": 7}),
    kind(_F.MEMORY_UNKNOWN, _HW, "layout", ChipError, lasts=True, facts={"found": 0},
         devices=(*FWSEC, *FSP)),
    kind(_F.MEMORY_ONES, _HW, "layout", ChipError, lasts=True, facts={"found": 0xFFFF_FFFF << 20}),
    kind(_F.MEMORY_SMALL, _HW, "layout", NotSupported, lasts=True, facts={"vram": 128 << 20}),
]  # fmt: skip
_PROGRAMS = [
    kind(_F.SCRUB_NEVER, _HW, "frts", UnitTimeout, devices=BY_FWSEC,
         facts={"waiting_for": "end of memory scrubbing"}),
    kind(_F.DMA_NEVER, _HW, "frts", UnitTimeout, facts={"waiting_for": "DMA of block 0"}),
    kind(_F.FALCON_HANGS, _FW, "frts", UnitTimeout, devices=BY_FWSEC,
         facts={"program": "FWSEC-FRTS"}),
    kind(_F.FWSEC_FAILS, _FW, "frts", FirmwareRejected, devices=BY_FWSEC, facts={"status": 4}),
    kind(_F.FWSEC_ELSEWHERE, _FW, "frts", FirmwareRejected,
         facts={"expected": "0x3fe00000-0x3ff00000", "found": "0x3fd00000-0x3fe00000"}),
    kind(_F.FWSEC_NOTHING, _FW, "frts", FirmwareRejected, "protected nothing",
         facts={"expected": "0x3fe00000-0x3ff00000", "found": "0x0-0x0"}),
    kind(_F.FWSEC_MAILBOX, _FW, "frts", FirmwareRejected, facts={"status": 0x31}),
    kind(_F.BOOTER_META, _FW, "booter", FirmwareRejected, devices=BY_BOOTER, facts={"status": 0xA},
         source=f"{_ISSUE} 673"),
    kind(_F.BOOTER_FAILS, _FW, "booter", FirmwareRejected, devices=BY_BOOTER, facts={"status": 0xB},
         source="a report of a CMP 50HX"),
    kind(_F.SB_FAILS, _FW, "close", None, devices=BY_FWSEC),
    kind(_F.UNLOADER_FAILS, _FW, "close", None, devices=BY_BOOTER, source=f"{_ISSUE} 673"),
    kind(_F.WPR2_STAYS, _FW, "close", None, devices=BY_BOOTER),
    kind(_F.UNLOAD_SILENT, _FW, "close", None),
]  # fmt: skip
_FSP = [
    kind(_F.FSP_BUSY, _FW, "chain-of-trust", DeviceBusy, lasts=True, devices=FSP,
         facts={"holder": "FSP"}),
    kind(_F.FSP_SILENT, _FW, "chain-of-trust", FirmwareSilent, devices=FSP,
         facts={"waiting_for": "its reply"}),
    kind(_F.FSP_REFUSES, _FW, "chain-of-trust", FirmwareError, devices=FSP, facts={"status": 0x9E}),
    kind(_F.FSP_REPLY_SIZE, _FW, "chain-of-trust", FirmwareError, strands=True, devices=FSP,
         facts={"size": 8}),
    kind(_F.FSP_REPLY_KIND, _FW, "chain-of-trust", FirmwareError, strands=True, devices=FSP,
         facts={"expected": "0x1510de7e to 0x14", "found": "0x1510de7e to 0x13"}),
    kind(_F.FMC_FAILS, _FW, "chain-of-trust", FirmwareRejected, step="lockdown", devices=FSP,
         facts={"status": 0x7F}),
    kind(_F.MASK_NEVER, _FW, "chain-of-trust", FirmwareSilent, strands=True, step="lockdown",
         devices=FSP,
         facts={"hwcfg2": "0xbadf4100 (locked)"}),
    kind(_F.LOCKDOWN_NEVER, _FW, "chain-of-trust", FirmwareSilent, strands=True, step="lockdown",
         devices=FSP,
         facts={"waiting_for": "end of lockdown"}),
    kind(_F.HALT_NEVER, _FW, "close", None, devices=FSP),
]  # fmt: skip
_INIT = [
    kind(_F.GSP_NOT_STARTED, _FW, "booter", FirmwareSilent, step="riscv",
         facts={"riscv_cpuctl": 0}),
    kind(_F.GSP_HALTS, _FW, "booter", FirmwareSilent, step="riscv", facts={"riscv_cpuctl": 1 << 4}),
    kind(_F.GSP_SILENT, _FW, "booter", FirmwareSilent, "INIT_DONE", devices=BY_BOOTER,
         step="init-done"),
    kind(_F.QUEUE_SHAPE, _FW, "booter", BadRecord, step="init-done",
         facts={"expected": "0x40000 0x1000 63", "found": "0x40000 0x1000 31"}),
    kind(_F.WRITE_INDEX, _FW, "booter", BadRecord, step="init-done",
         facts={"found": 70, "slots": 63}),
    kind(_F.INIT_NEVER, _FW, "booter", FirmwareSilent, "INIT_DONE", step="init-done",
         source="tinygrad issue 15638"),
    kind(_F.INIT_FAILS, _FW, "booter", FirmwareError, step="init-done",
         facts={"status": "NV_ERR_TIMEOUT", "event": "EVENT_GSP_INIT_DONE"},
         source="tinygrad issue 14338"),
    kind(_F.INIT_REFUSED, _FW, "booter", FirmwareError, step="init-done",
         facts={"status": "NV_ERR_INVALID_ARGUMENT", "event": "EVENT_GSP_INIT_DONE"},
         source=f"{_ISSUE} 1058"),
    kind(_F.INIT_CRASHES, _FW, "booter", FirmwareError, devices=BY_BOOTER, step="init-done",
         facts={"crash": "exception: load page fault in user mode, partition 1, pc 0x500001234, "
                         "data 0xd"}, source=f"{_ISSUE} 829, 876"),
    kind(_F.INIT_LOCKDOWN, _FW, "booter", FirmwareSilent, step="init-done",
         facts={"lockdown": "the GSP's registers are locked"}, source=f"{_ISSUE} 1230"),
    kind(_F.SEQUENCER_OPERATION, _FW, "booter", BadProgram, step="init-done",
         facts={"operation": 0x77, "position": 0}),
    kind(_F.SEQUENCER_CUT, _FW, "booter", BadProgram, step="init-done",
         facts={"operation": "REG_WRITE"}),
    kind(_F.SEQUENCER_LONG, _FW, "booter", BadProgram, step="init-done",
         facts={"words": 1021, "have": 21}),
    kind(_F.SEQUENCER_OUTSIDE, _FW, "booter", BadProgram, step="init-done",
         facts={"address": 16 << 20}),
    kind(_F.SEQUENCER_SAVE, _FW, "booter", BadProgram, step="init-done", facts={"index": 8}),
    kind(_F.SEQUENCER_POLL, _FW, "booter", FirmwareSilent, "operation 0 of", step="init-done",
         facts={"state": "0x0"}),
]  # fmt: skip
_MESSAGES = [
    kind(_F.RPC_LOST, _FW, "static-info", FirmwareSilent, **_DEAD, source=f"{_ISSUE} 446, 1230",
         facts={"request": "GET_GSP_STATIC_INFO"}),
    kind(_F.RPC_TIMES_OUT, _FW, "static-info", FirmwareError, facts={"status": "NV_ERR_TIMEOUT"}),
    kind(_F.RPC_REFUSED, _FW, "static-info", FirmwareError,
         facts={"status": "NV_ERR_NOT_SUPPORTED"}),
    kind(_F.REPLY_CHECKSUM, _FW, "static-info", BadRecord, "checksum", **_DEAD),
    kind(_F.REPLY_NUMBER, _FW, "static-info", FirmwareSilent, **_DEAD),
    kind(_F.REPLY_AHEAD, _FW, "static-info", BadRecord, "out of order", **_DEAD),
    kind(_F.REPLY_SIGNATURE, _FW, "static-info", BadRecord, **_DEAD,
         facts={"expected": 0x43505256, "found": 0xC3505256}),
    kind(_F.REPLY_LENGTH, _FW, "static-info", BadRecord, facts={"length": 16}, **_DEAD),
    kind(_F.REPLY_PAGES, _FW, "static-info", BadRecord, facts={"expected": 1, "found": 2}, **_DEAD),
    kind(_F.REPLY_OTHER, _FW, "static-info", FirmwareSilent, **_DEAD),
    kind(_F.REPLY_TWICE, _FW, "static-info", None),
    kind(_F.CONTINUATION_ALONE, _FW, "static-info", BadRecord, "did not begin", **_DEAD),
    kind(_F.READ_INDEX, _FW, "static-info", BadRecord, strands=True, step="-",
         facts={"found": 70, "slots": 63}),
    kind(_F.STATIC_CUT, _FW, "static-info", FirmwareError, facts={"size": 828, "need": 1656}),
    kind(_F.STATIC_OUTSIDE, _FW, "static-info", FirmwareError, facts={"vram": 1 << 30}),
    kind(_F.STATIC_NONE, _FW, "static-info", FirmwareError, facts={"regions": 1}),
    kind(_F.INTERRUPT_TABLE, _FW, "open", FirmwareError, step="-", facts={"rows": 9}),
    kind(_F.GSP_CRASHES, _FW, "static-info", FirmwareError,
         facts={"request": "GET_GSP_STATIC_INFO",
                "crash": "exception: load page fault in user mode, partition 1, pc 0x500001234, "
                         "data 0xd"}, source=f"{_ISSUE} 829"),
    kind(_F.CRASH_UNREADABLE, _FW, "static-info", FirmwareError,
         facts={"crash": "a report that cannot be read: the place of the GSP's crash reports is "
                         "invalid"}),
    kind(_F.GSP_DIES, _FW, "static-info", FirmwareSilent, facts={"riscv_cpuctl": 1 << 4},
         source=f"{_ISSUE} 1080, 1064"),
    kind(_F.FLUSH_NEVER, _HW, "open", UnitTimeout, step="-", lasts=True, facts={"unit": "FB"}),
    kind(_F.INVALIDATE_NEVER, _HW, "open", UnitTimeout, step="-", lasts=True,
         facts={"unit": "MMU"}),
]  # fmt: skip
_SUSPEND = [
    kind(_F.FBSR_FAILS, _FW, "suspend", DriverRefused, step="-", devices=(*FWSEC, *FSP),
         facts={"status": "NV_ERR_INVALID_STATE"}, recovery=Recovery.GO_ON),
    kind(_F.SLEEP_DAMAGED, _FW, "resume", FirmwareRejected, step="booter", devices=BY_BOOTER,
         facts={"status": 0x12}, recovery=Recovery.RESET, lost=True,
         objections=("the saved region was changed",)),
]  # fmt: skip
KINDS = [*_LINKS, *_BOARD, *_PROGRAMS, *_FSP, *_INIT, *_MESSAGES, *_SUSPEND]
