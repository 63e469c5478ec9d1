"""What explains a GSP that failed: its crash report, logs, last calls, last register accesses.

Nothing is written except the address of a falcon's memory port. The logs' texts are not published:
a log is kept as it is, and as a list of its 64-bit words in order.
"""

from __future__ import annotations

import struct
from functools import partial

from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import NotSupported, UgpuError
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.chip.chip import is_locked
from ugpu.nv.gsp.layout.memory import Pages
from ugpu.nv.gsp.rpc import crash
from ugpu.nv.gsp.rpc.calls import Calls

_GROUP_WORDS = 4


def read_crash(start: Start) -> list[dict[str, object]]:
    """Return the packets of the firmware's crash reports; none if it reported nothing, or its
    registers are locked."""
    regs, bus = start.gsp.regs, start.chip.bus
    wayfinder = int(regs.WAYFINDER.read())
    group = None if is_locked(wayfinder) else crash.scratch_group(wayfinder)
    if group is None:
        return []
    first = regs.COMMON_SCRATCH_GROUP_0.index + group * _GROUP_WORDS
    low, high, put, get = (bus.read32(first + number) for number in range(_GROUP_WORDS))
    place = crash.locate((low, high, put, get))

    def read(offset: int, size: int) -> bytes:
        if place.aperture == "DMEM":
            return start.gsp.read_data(offset, size)
        if place.aperture == "VRAM" and offset + size <= start.chip.memory_size:
            return start.chip.vram.read_beyond(offset, size)
        raise NotSupported(f"the crash report lies in {place.aperture}, which is not read")

    return crash.packets(crash.collect(place, read))


def log_words(pages: Pages) -> list[str]:
    """Return a log's words from the oldest kept one; empty if nothing was logged."""
    words = struct.unpack(f"<{pages.size // 8}Q", bytes(pages.view[: pages.size]))
    put, ring = words[0], words[1:]
    if not put:
        return []
    place = put % len(ring)
    ordered = ring[:place] if put < len(ring) else ring[place:] + ring[:place]
    return [f"{word:#x}" for word in ordered]


def gather(found: Evidence, start: Start, calls: Calls | None) -> None:
    """Add the parts to a bundle. calls: None if the start did not come to them."""
    chip = start.chip
    # ORDER: first, because the following parts read registers.
    found.take("accesses.txt", lambda: "\n".join(chip.recent_accesses()) + "\n")
    found.take("firmware.json", lambda: _firmware(start))
    if calls is not None:
        found.take("calls.txt", lambda: "\n".join(map(str, tuple(calls.history))) + "\n")
    for name, pages in start.logs.items():
        kept = log_words(pages)
        if kept:
            found.take(f"log-{name}.json", partial(list, kept))
        else:
            found.missing[f"log-{name}.json"] = "the firmware has not written to it"
    if chip.lost():
        found.missing["state.json"] = found.missing["crash.json"] = "the GPU does not answer"
        return
    found.take("state.json", start.state)
    found.take("crash.json", lambda: read_crash(start))


def explain(start: Start) -> dict[str, object]:
    """Return facts for an error: the GSP's state, and its crash report in one line."""
    return {**start.state(), **crash_fact(start)}


def crash_fact(start: Start) -> dict[str, object]:
    """Return the firmware's first crash report in one line as a fact, if there is one."""
    try:
        if start.locked_down or start.chip.lost():
            return {}
        for packet in read_crash(start):
            if packet["kind"] == "report" and "pc" in packet:
                return {"crash": crash.summary(packet)}
    except UgpuError as error:
        return {"crash": f"a report that cannot be read: {error.message}"}
    return {}


def _firmware(start: Start) -> dict[str, object]:
    return {
        "chip": start.chip.facts.name,
        "release": start.files.abi.version,
        "vram": start.chip.memory_size,
        "places": start.places,
        "reported": start.reported,
        "locked_down": start.locked_down,
        "running": start.running,
    }
