"""What a chip that failed can still tell, for a bundle (hcq.bundle): registers, queues, waves, page
tables, interrupts, sensors, programs.

Registers are read, and none is written but those that select what others show (GRBM_GFX_CNTL,
GRBM_GFX_INDEX, SQ_IND_INDEX). A chip that is gone, or whose bus answers no more, is not touched:
then what the host knows is all there is.

Sources: Linux 6.12 gfx_v11_0.c (gc_reg_list_11_0, gc_cp_reg_list_11, and wave_read: which wave
registers there are), gfxhub_v3_0.c, psp_v13_0.c, smu_v13_0.c, sdma_v6_0.c.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from am.chip import ALL_ONES
from am.generations.gfx11.evidence import QUEUE_REGISTERS, REGISTERS, WAVE_REGISTERS
from am.gfx import MEC
from am.queue import SLOT_WORDS, SLOTS, ComputeQueue, RingQueue
from hcq.bundle import Evidence
from hcq.errors import UgpuError
from hcq.registerfile import RegisterFile

if TYPE_CHECKING:
    from am.device import AmDevice

_SLOTS_AROUND = 4  # shown before and behind the one that the hardware is at
_WAVES_LIMIT_S = 0.1  # TIMEOUT: our choice; all waves of a chip take longer through some transports
_MOST_WAVES = 64
_SLOTS_OF_SIMD = 16
_MOST_CODE = 1 << 20  # bytes of a program


def gather(device: AmDevice, error: UgpuError) -> Evidence:
    """Collect the parts; never raises what the chip or the link does."""
    found = Evidence()
    found.take("queues.json", lambda: [_queue(queue) for queue in _queues(device)])
    found.take("memory.json", lambda: _regions(device))
    found.take("boot.json", lambda: _boot(device))
    if device.cut_off or device.chip.lost():
        for name in ("registers.json", "hqd.json", "waves.json", "walk.json", "sensors.json"):
            found.missing[name] = "the chip does not answer"
        return found
    found.take("registers.json", lambda: _registers(device))
    found.take("hqd.json", lambda: _hardware_queues(device))
    found.take("waves.json", lambda: list(_waves(device)))
    address = error.facts.get("address")
    if isinstance(address, int):
        found.take("walk.json", lambda: _walk(device, address))
    found.take("sensors.json", lambda: _sensors(device))
    pc = error.facts.get("pc")
    if isinstance(pc, int):
        found.take("program.bin", lambda: _code(device, pc)[1])
        found.take("program.json", lambda: {"address": _code(device, pc)[0], "pc": pc})
    return found


def _queues(device: AmDevice) -> list[RingQueue]:
    return [*device.compute_queues, *device.copy_queues]


def _queue(queue: RingQueue) -> dict[str, object]:
    """What the host knows: counts, and the slots around the one that has not ended."""
    done, ring = queue.done, queue.ring.view
    first = max(0, done - _SLOTS_AROUND)
    slots = {}
    for number in range(first, min(queue.count, done + _SLOTS_AROUND)):
        start = number % SLOTS * SLOT_WORDS * 4
        words = ring[start : start + SLOT_WORDS * 4].cast("I")
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


def _regions(device: AmDevice) -> list[dict[str, object]]:
    return [
        {"address": region.address, "size": region.size, "kind": region.kind}
        for region in device.memory.regions()
    ]


def _boot(device: AmDevice) -> dict[str, object]:
    return {
        "chip": device.facts.name,
        "warm": device.warm,
        "stages": device.boot_stages,
        "resets": [str(step) for step in device.reset_report],
        "firmware": {name: str(value) for name, value in device.info().items()},
    }


def _registers(device: AmDevice) -> str:
    values: dict[str, int] = {}
    for block, patterns in REGISTERS.items():
        registers = getattr(device.chip, block, None)
        if registers is None:
            continue
        for pattern in patterns:
            for name in fnmatch.filter(registers.map, pattern):
                values[f"{block}.{name}"] = int(registers[name].read())
    return RegisterFile(device.name, device.facts.name, values).dumps()


def _hardware_queues(device: AmDevice) -> dict[str, dict[str, int]]:
    gfx, gc = device.units.gfx, device.chip.gc
    found = {}
    for queue in device.compute_queues:
        assert isinstance(queue, ComputeQueue)
        with gfx.select(me=MEC, pipe=queue.pipe, queue=queue.queue):
            found[queue.name] = {name: int(gc[name].read()) for name in QUEUE_REGISTERS}
    return found


def _waves(device: AmDevice) -> Iterator[dict[str, object]]:
    """Each wave that is there, as far as time allows, with the kernel it is in."""
    info = device.chip.discovery.gc
    if info is None:
        return
    gfx = device.units.gfx
    end, count = time.monotonic() + _WAVES_LIMIT_S, 0
    for place in gfx.simds():
        with gfx.aim(*place):
            for slot in range(_SLOTS_OF_SIMD):
                if time.monotonic() > end or count == _MOST_WAVES:
                    yield {"more": "not looked at: the time or the room for waves was used up"}
                    return
                status = gfx.wave_register(slot, "STATUS")
                if status in (0, ALL_ONES):
                    continue
                count += 1
                registers = {name: gfx.wave_register(slot, name) for name in WAVE_REGISTERS}
                yield {"place": [*place, slot], **registers, **_where(device, registers)}


def _where(device: AmDevice, registers: dict[str, int]) -> dict[str, object]:
    pc = registers["PC_HI"] << 32 | registers["PC_LO"]
    found = device.programs.find(pc)
    if found is None:
        return {"pc": pc}
    return {
        "pc": pc,
        "kernel": found[0],
        "offset": found[1],
        "source": device.programs.source_of(pc),
    }


def _walk(device: AmDevice, address: int) -> dict[str, object]:
    """The entries that lead to an address, as they lie in VRAM and as the driver wrote them."""
    tables = device.memory.tables
    form, physical = device.memory.format, tables.root
    steps = []
    for number, level in enumerate(form.levels):
        place = physical + 8 * (address >> level.shift & (1 << level.bits) - 1)
        entry = int.from_bytes(device.chip.vram.read(place, 8), "little")
        steps.append({"level": number, "at": place, "entry": f"{entry:#018x}"})
        if not form.is_table(number, entry):
            break
        physical = form.physical(number, entry)
    known = tables.lookup(address)
    return {
        "address": address,
        "root": tables.root,
        "steps": steps,
        "driver": None if known is None else f"{known.entry:#018x} at level {known.level}",
    }


def _sensors(device: AmDevice) -> dict[str, object]:
    return {sensor.name: sensor.read() for sensor in device.sensors()}


def _code(device: AmDevice, pc: int) -> tuple[int, bytes]:
    """The program that holds `pc`, as it was written: address and bytes."""
    address, code = device.programs.code_at(pc)
    if len(code) > _MOST_CODE:
        raise ValueError(f"{len(code)} bytes, of which {_MOST_CODE} are kept at most")
    return address, code
