"""Commands of a USB bridge with the vendor's firmware: their status, data and pipes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from lab.campaign.stands.uas import READ, WRITE, WRITE_16, Change, UasStand
from ugpu.hcq.errors import (
    CommandFailed,
    EndpointStalled,
    TransferTimeout,
    TransportError,
    UgpuError,
    WrongAnswer,
)
from ugpu.virtual.usb.uas import COMMAND, DATA_IN, DATA_OUT, STATUS

DEVICES = ("navi31+usb-stock",)
_UAS, _SPC = "USB Attached SCSI (T10/2095-D), 6.2", "SPC-4, 4.5"
_USE = ("idle", "launch", "copy")
_WORK = ("launch", "copy")  # amid a message to the SMU, VRAM is lost with a mode1 reset


def kind(
    name: str, planted: str, error: type[UgpuError] | None, plant: Callable[[Any], object],
    stages: tuple[str, ...] = _USE, **fields: Any,
) -> Kind:  # fmt: skip
    made: dict[str, Any] = {
        "layer": Layer.LINK, "recovery": Recovery.RESET, "source": _UAS,
        "struck": lambda stand: stand.struck, "cure": UasStand.cure,
    }  # fmt: skip
    return Kind(
        name=f"{name} (UAS)", devices=DEVICES, stages=stages, planted=planted, error=error,
        plant=plant, **(made | fields),
    )  # fmt: skip


def answer(
    name: str, error: type[UgpuError], change: Change, opcode: int = READ,
    pipe: int = STATUS, **fields: Any,
) -> Kind:  # fmt: skip
    """A command's status, or with DATA_IN its data, is replaced."""
    where = "the data" if pipe == DATA_IN else "the status"
    return kind(
        name, f"{where} of one command {opcode:#04x}", error,
        lambda stand: stand.change(pipe, opcode, change), **fields,
    )  # fmt: skip


def _halt(name: str, pipe: int, **fields: Any) -> Kind:
    return kind(
        f"{name} pipe halts", "`firmware._halted`", EndpointStalled, partial(_strike, pipe),
        source="Universal Serial Bus 3.2, 8.11", **fields,
    )  # fmt: skip


def _strike(pipe: int, stand: UasStand) -> None:
    stand.halt(pipe)


def _sense(status: int, key: int = 0, code: int = 0) -> Change:
    """A sense unit with this status, and sense data of fixed form where a key is given."""
    data = struct.pack(">BxBxxxxBxxxxBB4x", 0x70, key, 10, code, 0) if key else b""

    def made(_unit: bytes, tag: int) -> bytes:
        return struct.pack(">BxHxxB7xH", 3, tag, status, len(data)) + data

    return made


def _response(code: int) -> Change:
    return lambda _unit, tag: struct.pack(">BxHxxxB", 4, tag, code)


KINDS = [
    kind("command is not taken", "the command pipe takes nothing", TransferTimeout,
         UasStand.refuse_command),
    answer("status never comes", TransferTimeout, lambda unit, tag: b""),
    answer("status of a write never comes", TransferTimeout, lambda unit, tag: b"", WRITE,
           stages=_WORK),
    answer("data never comes", TransferTimeout, lambda data, tag: b"", pipe=DATA_IN),
    answer("data is short", TransportError, lambda data, tag: data[:-1] or None, pipe=DATA_IN),
    answer("status has another command's tag", WrongAnswer,
           lambda unit, tag: unit[:2] + bytes((0, tag + 1)) + unit[4:]),
    answer("status is short", WrongAnswer, lambda unit, tag: unit[:8]),
    answer("status is not a status unit", WrongAnswer, lambda unit, tag: b"\x06" + unit[1:]),
    answer("command ends with a hardware error", CommandFailed, _sense(2, 4, 0x44), source=_SPC,
           facts={"status": 2, "key": 4, "code": 0x44}),
    answer("command is aborted", CommandFailed, _sense(2, 0xB, 0x47), WRITE, source=_SPC,
           stages=_WORK, facts={"status": 2, "key": 0xB}),
    answer("device is busy", CommandFailed, _sense(8), WRITE, source="SAM-5, 5.3", stages=_WORK,
           facts={"status": 8}),
    answer("firmware refuses the command unit", CommandFailed, _response(2),
           facts={"response": 2}),
    answer("fill of SRAM never ends", TransferTimeout, lambda unit, tag: b"", WRITE_16,
           stages=("copy",)),
    _halt("command", COMMAND),
    _halt("status", STATUS),
    _halt("data-in", DATA_IN),
    _halt("data-out", DATA_OUT, stages=("copy",)),
]  # fmt: skip
