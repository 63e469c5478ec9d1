"""Crash reports of the GSP's firmware (CrashCat): where they lie, and what they say.

Source: open-gpu-kernel-modules 570.144 nv-crashcat.h, libos_v3_crashcat.h, libraries/crashcat/v1;
codes of exceptions, RISC-V Instruction Set Manual, volume II, "Supervisor Cause Register". A
report's queue is only read; the pointer to what was read stays where it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.hcq.errors import FirmwareInvalid

_SIGNATURE = 0xDEAD
_APERTURES = ("host memory", "VRAM", "DMEM", "EMEM")
_UNITS = (8, 1 << 10, 4 << 10, 64 << 10)
_KINDS = ("report", "csr", "gpr", "trace", "registers")
_CAUSES = ("exception", "timeout", "panic", "watchdog")
_MODES = ("", "machine", "supervisor", "user")
_EXCEPTIONS = {
    0: "instruction address misaligned", 1: "instruction access fault", 2: "illegal instruction",
    3: "breakpoint", 4: "load address misaligned", 5: "load access fault",
    6: "store address misaligned", 7: "store access fault", 12: "instruction page fault",
    13: "load page fault", 15: "store page fault",
}  # fmt: skip
_CSRS = ("xstatus", "xie", "xip", "xepc", "xtval", "xcause", "xscratch")
_REPORT_WORDS = 7
_MOST_READ = 64 << 10  # our limit of one look
_FIRST_GROUP, _GROUPS = 2, 4  # scratch groups with four registers each


@dataclass(frozen=True)
class Place:
    """Where a queue of reports lies. aperture: one of four kinds of memory. begin, end: of what
    was not read yet, in the queue; begin > end if it wraps."""

    aperture: str
    offset: int
    size: int
    begin: int
    end: int


def scratch_group(wayfinder: int) -> int | None:
    """Return the number of the group of scratch registers that locates the reports, from the
    wayfinder register; None if the firmware has not reported anything."""
    if wayfinder & 0xFFFF != _SIGNATURE or wayfinder >> 16 & 0xF != 1:
        return None
    group = (wayfinder >> 20 & 7) - _FIRST_GROUP
    return group if 0 <= group < _GROUPS else None


def locate(words: tuple[int, int, int, int]) -> Place:
    """Return what the four scratch registers say; FirmwareInvalid if they contradict."""
    low, high, put, get = words
    value = high << 32 | low
    size = ((value >> 6 & 0xF) + 1) * _UNITS[value >> 3 & 3]
    kind = value & 7
    if kind >= len(_APERTURES) or value >> 3 & 3 == 0:
        raise FirmwareInvalid(
            "the place of the GSP's crash reports is invalid", found=f"{value:#x}"
        )
    if put >= size or get >= size or put % 8 or get % 8:
        raise FirmwareInvalid(
            "the GSP's queue of crash reports is invalid", size=size, put=put, get=get
        )
    return Place(_APERTURES[kind], value >> 10 << 10, size, get, put)


def collect(place: Place, read: Callable[[int, int], bytes]) -> bytes:
    """Read what a queue contains. read(offset, size): from the place's kind of memory."""
    first = place.end if place.end >= place.begin else place.size
    data = read(place.offset + place.begin, min(first - place.begin, _MOST_READ))
    if place.end < place.begin and len(data) < _MOST_READ:
        data += read(place.offset, min(place.end, _MOST_READ - len(data)))
    return data


def packets(data: bytes) -> list[dict[str, object]]:
    """Return the packets by kind, as far as they are valid; a report is followed by its parts."""
    found: list[dict[str, object]] = []
    at = 0
    while at + 8 <= len(data):
        (header,) = struct.unpack_from("<Q", data, at)
        if header & 0xFFFF != _SIGNATURE or header >> 16 & 0xF != 1:
            break
        size = ((header >> 22 & 0x3FF) + 1) * _UNITS[header >> 20 & 3]
        body = data[at + 8 : at + 8 + size]
        if len(body) < size:
            break
        words = struct.unpack(f"<{size // 8}Q", body)
        kind = header >> 32 & 0xFF
        found.append(_packet(_KINDS[kind] if kind < len(_KINDS) else f"kind {kind}", words))
        at += 8 + size
    return found


def _packet(kind: str, words: tuple[int, ...]) -> dict[str, object]:
    if kind == "report" and len(words) >= _REPORT_WORDS:
        return {"kind": kind, **_report(words)}
    if kind == "csr" and len(words) >= len(_CSRS):
        values = {name: hex(words[at]) for at, name in enumerate(_CSRS)}
        return {"kind": kind, **values}
    if kind == "registers":
        return {"kind": kind, "values": {hex(word >> 32): word & 0xFFFF_FFFF for word in words}}
    return {"kind": kind, "words": [hex(word) for word in words]}


def _report(words: tuple[int, ...]) -> dict[str, object]:
    implementer, _, reporter, source, cause, pc, data = words[:_REPORT_WORDS]
    kind, mode = cause & 0xF, source >> 16 & 7
    return {
        "implementer": struct.pack(">Q", implementer).decode("ascii", "replace"),
        "version": reporter & 0xFFFF_FFFF,
        "cause": _CAUSES[kind] if kind < len(_CAUSES) else f"cause {kind}",
        "reason": cause >> 32,
        "contained": cause >> 4 & 0xF,
        "partition": source & 0xFF,
        "ucode": source >> 8 & 0xFF,
        "mode": _MODES[mode] if mode < len(_MODES) else f"mode {mode}",
        "pc": hex(pc),
        "data": hex(data),
    }


def summary(report: dict[str, object]) -> str:
    """Return a report in one line, for an error. The reason is a panic's; the data of an exception
    is the core's cause register."""
    what, data = str(report["cause"]), str(report["data"])
    if what == "exception":
        what += f": {_EXCEPTIONS.get(int(data, 16), 'unknown')}"
    else:
        what += f" {report['reason']:#x}"
    return (
        f"{what} in {report['mode'] or 'unknown'} mode, partition {report['partition']}, "
        f"pc {report['pc']}, data {data}"
    )
