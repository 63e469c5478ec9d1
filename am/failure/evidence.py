"""Evidence from a failed chip, for a bundle (hcq.disk.bundle): registers, queues, waves, page
tables, interrupts, sensors, programs.

A chip that is gone, or whose bus no longer answers, is not accessed: the evidence is then limited
to the host's data.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ugpu.am.failure import inspect, states
from ugpu.am.work.queue import SLOT_WORDS, SLOTS, RingQueue
from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import NotSupported, UgpuError
from ugpu.hcq.registers.value_file import RegisterFile

if TYPE_CHECKING:
    from ugpu.am.work.holder import Holder

_SLOTS_AROUND = 4  # shown before and after the slot that the hardware is at
_WAVES_LIMIT_S = 0.1  # TIMEOUT: our choice; all waves of a chip take longer through some transports
_WORDS_LIMIT_S = 0.05  # TIMEOUT: our choice, see docs/figures.md (a bundle)
_MOST_CODE = 1 << 20  # bytes of a program


def gather(driver: Holder, error: UgpuError) -> Evidence:
    """Collect the parts; errors of the chip or the link are not raised."""
    found = Evidence()
    # ORDER: first, because the following parts read registers.
    found.take("accesses.txt", lambda: "\n".join(driver.chip.recent_accesses()) + "\n")
    found.take("queues.json", lambda: [_queue(queue) for queue in _queues(driver)])
    found.take("memory.json", lambda: _regions(driver))
    found.take("boot.json", lambda: _boot(driver))
    found.take("driver.json", lambda: {name: str(fact) for name, fact in driver.info().items()})
    if driver.core.cut_off or driver.chip.lost() or driver.chip.dark:
        for name in (
            "registers.json",
            "states.json",
            "hqd.json",
            "waves.json",
            "walk.json",
            "sensors.json",
        ):
            found.missing[name] = (
                "the graphics core has no power" if driver.chip.dark else "the chip does not answer"
            )
        return found
    found.take("registers.json", lambda: _registers(driver))
    found.take("states.json", lambda: states.as_json(driver.chip))
    waves: list[dict[str, object]] = []
    found.take("hqd.json", lambda: _hardware_queues(driver))
    found.take("waves.json", lambda: _waves(driver, waves))
    address = error.facts.get("address")
    if isinstance(address, int):
        found.take("walk.json", lambda: _walk(driver, address))
    found.take("sensors.json", lambda: _sensors(driver))
    # A wave may have begun after the error was raised, so the error does not name its program.
    inside = [wave["pc"] for wave in waves if "kernel" in wave]
    pc = error.facts.get("pc", next(iter(inside), None))
    if isinstance(pc, int):
        found.take("program.bin", lambda: _code(driver, pc)[1])
        found.take("program.json", lambda: {"address": _code(driver, pc)[0], "pc": pc})
    return found


def _queues(driver: Holder) -> list[RingQueue]:
    return [*driver.queues.compute, *driver.queues.copy]


def _queue(queue: RingQueue) -> dict[str, object]:
    """Return the host's data on a queue: counts, and the slots around the one that has not
    ended."""
    done, ring = queue.done, queue.ring.view
    first = max(0, done - _SLOTS_AROUND)
    slots = {}
    for number in range(first, min(queue.count, done + _SLOTS_AROUND)):
        start = number % SLOTS * SLOT_WORDS * 4
        words = struct.unpack(f"<{SLOT_WORDS}I", bytes(ring[start : start + SLOT_WORDS * 4]))
        slots[number + 1] = [f"{word:08x}" for word in words]
    return {
        "name": queue.name,
        "timeline": queue.timeline.value,
        "timeline_last": queue.timeline.last,
        "submitted": queue.count,
        "done": done,
        "suspects": list(queue.suspects),
        "ring": int(queue.ring.address),
        "slots": slots,
    }


def _regions(driver: Holder) -> list[dict[str, object]]:
    return [
        {"address": region.address, "size": region.size, "kind": region.kind}
        for region in driver.memory.regions()
    ]


def _boot(driver: Holder) -> dict[str, object]:
    return {
        "chip": driver.facts.name,
        "warm": driver.warm,
        "stages": driver.stages.done,
        "resets": [str(step) for step in driver.reset_report],
    }


def _registers(driver: Holder) -> str:
    values = inspect.registers(driver.chip)
    return RegisterFile(driver.name, driver.facts.name, values).dumps()


def _check_writable(driver: Holder) -> None:
    """Raise NotSupported for a graphics core without firmware: it takes no writes, by which queues
    and waves are selected."""
    if not driver.units.gfx.loaded():
        raise NotSupported("the graphics core's firmware is not loaded")


def _hardware_queues(driver: Holder) -> list[dict[str, object]]:
    _check_writable(driver)
    return inspect.hardware_queues(driver.chip)


def _waves(driver: Holder, waves: list[dict[str, object]]) -> list[dict[str, object]]:
    """Put each existing wave into `waves`, as far as time allows, with its kernel. The first one in
    a kernel of this driver gets its scalar and vector registers too."""
    _check_writable(driver)
    ours = []
    for wave in inspect.waves(driver.chip, _WAVES_LIMIT_S):
        waves.append(wave)
        pc = wave.get("pc")
        found = driver.programs.find(pc) if isinstance(pc, int) else None
        if found is not None and isinstance(pc, int):
            source = driver.programs.source_of(pc)
            wave |= {"kernel": found[0], "offset": found[1], "source": source}
            ours.append(wave)
    if ours:
        inspect.wave_words(driver.chip, ours[0], _WORDS_LIMIT_S)
    return waves


def _walk(driver: Holder, address: int) -> dict[str, object]:
    """Return the entries that lead to an address, as in VRAM and as the driver wrote them."""
    memory = driver.memory
    known = memory.tables.lookup(address)
    return {
        **inspect.walk(driver.chip, memory.format, address, driver.vmid),
        "driver": None if known is None else f"{known.entry:#018x} at level {known.level}",
    }


def _sensors(driver: Holder) -> dict[str, object]:
    return {sensor.name: sensor.read() for sensor in driver.sensors()}


def _code(driver: Holder, pc: int) -> tuple[int, bytes]:
    """Return the program that contains `pc`, as it was written: address and bytes."""
    address, code = driver.programs.code_at(pc)
    if len(code) > _MOST_CODE:
        raise ValueError(f"{len(code)} bytes, of which {_MOST_CODE} are kept at most")
    return address, code
