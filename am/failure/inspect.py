"""Inspect a chip in any state: registers, hardware queues, waves, page tables.

The only registers written are those that select what others show: GRBM_GFX_CNTL, GRBM_GFX_INDEX and
SQ_IND_INDEX; they are restored. Sources: Linux 6.12 gfx_v11_0.c (gc_reg_list_11_0,
gc_cp_reg_list_11, wave_read_wave_data), gfxhub_v3_0.c (contexts).
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterator

from ugpu.am.chip.chip import Chip
from ugpu.am.units.gfx import MEC, Gfx
from ugpu.am.units.nbio import Nbio
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.tables import TableFormat
from ugpu.hcq.errors import BadArgument, NotRecorded
from ugpu.hcq.registers.fields import BoundRegister, RegisterMap

MOST_WAVES = 256
_AT_ONCE = 16  # vector registers read between checks of the time
_VGPR_UNIT = 4  # of SQ_WAVE_GPR_ALLOC.VGPR_SIZE: cwsr_trap_handler_gfx10.asm, get_vgpr_size_bytes
_SLOTS_OF_SIMD = 20  # bits of VALID_AND_IDLE.WAVE_SLOT
_ROOT_ADDRESS = ~0xFFF


def registers(chip: Chip) -> dict[str, int]:
    """Return the registers that help to diagnose a failed chip, by "block.NAME"."""
    values: dict[str, int] = {}
    for block, patterns in chip.generation.evidence.registers.items():
        here = getattr(chip, block, None)
        if here is None:
            continue
        for name in _named(here.map, patterns):
            values[f"{block}.{name}"] = int(here[name].read())
    return values


@functools.lru_cache(maxsize=64)
def _named(table: RegisterMap, patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for pattern in patterns for name in fnmatch.filter(table, pattern))


def hardware_queues(chip: Chip) -> list[dict[str, object]]:
    """Return the compute queues that are active in the MEC, with their registers. For a recording:
    the queues that it has, with None for missing registers; the last entry gives the number of
    missing queues."""
    gfx, facts = Gfx(chip, Nbio(chip)), chip.generation
    found: list[dict[str, object]] = []
    lacking = 0
    for pipe in range(facts.compute_pipes):
        for queue in range(facts.queues_per_pipe):
            with gfx.select(me=MEC, pipe=pipe, queue=queue):
                try:
                    if not chip.gc.CP_HQD_ACTIVE.read().ACTIVE:
                        continue
                except NotRecorded:
                    lacking += 1
                    continue
                values = {name: _recorded(chip.gc[name]) for name in facts.evidence.queue}
            found.append({"pipe": pipe, "queue": queue, "registers": values})
    if lacking:
        count = facts.compute_pipes * facts.queues_per_pipe
        found.append({"more": f"{lacking} of {count} queues are not recorded"})
    return found


def _recorded(register: BoundRegister) -> int | None:
    """A register's value; None if a recording lacks it."""
    try:
        return int(register.read())
    except NotRecorded:
        return None


def waves(chip: Chip, limit_s: float | None = None) -> Iterator[dict[str, object]]:
    """Yield each existing wave: place (shader engine, array, workgroup processor, SIMD, slot), pc
    and registers. If `limit_s` or MOST_WAVES ends the search early, or if a recording lacks waves,
    the last item reports it."""
    gfx, count, looks, lacking = Gfx(chip, Nbio(chip)), 0, 0, 0
    now, names = chip.clock.now, chip.generation.evidence.wave
    end = None if limit_s is None else now() + limit_s
    with gfx.aiming():
        for place in gfx.simds():
            gfx.aim_at(*place)
            looks += 1
            try:
                there = gfx.wave_register(0, "VALID_AND_IDLE")  # a bit for each slot of the SIMD
            except NotRecorded:
                lacking += 1
                continue
            for slot in range(_SLOTS_OF_SIMD if there not in (0, ALL_ONES) else 0):
                if count == MOST_WAVES or (end is not None and now() > end):
                    yield {"more": "not looked at: the time or the room for waves was used up"}
                    return
                if not there >> slot & 1:
                    continue
                count += 1
                values = {name: gfx.wave_register(slot, name) for name in names}
                pc = values["PC_HI"] << 32 | values["PC_LO"]
                yield {"place": [*place, slot], "pc": pc, "registers": values}
    if lacking:
        yield {"more": f"the waves of {lacking} of {looks} SIMDs are not recorded"}


def wave_words(chip: Chip, wave: dict[str, object], limit_s: float | None = None) -> None:
    """Add the scalar registers, by their encoding, and the vector registers with all lanes to a
    wave of `waves`: as many as it has, or as the time allows. Those of a running wave change
    meanwhile."""
    place, values = wave.get("place"), wave.get("registers")
    if not isinstance(place, list) or not isinstance(values, dict):
        return
    wide = any(
        chip.wave_registers[f"SQ_WAVE_{name}"].decode(values[name])["WAVE64"]
        for name in ("STATUS", "IB_STS2")
        if "WAVE64" in chip.wave_registers[f"SQ_WAVE_{name}"].fields
    )
    gfx, lanes = Gfx(chip, Nbio(chip)), 64 if wide else 32
    size = chip.wave_registers["SQ_WAVE_GPR_ALLOC"].decode(values["GPR_ALLOC"]).VGPR_SIZE
    count, now = _VGPR_UNIT * (size + 1), chip.clock.now
    end = None if limit_s is None else now() + limit_s
    engine, array, wgp, simd, slot = place
    with gfx.aim(engine, array, wgp, simd):
        wave["scalars"] = gfx.wave_scalars(slot)
        vectors: list[list[int]] = []
        wave["vectors"] = vectors
        while len(vectors) < count and (end is None or now() < end):
            step = min(_AT_ONCE, count - len(vectors))
            vectors += gfx.wave_vectors(slot, lanes, step, len(vectors))


def walk(
    chip: Chip, form: TableFormat, address: int, vmid: int, hub: str = "gc"
) -> dict[str, object]:
    """Return the page table entries that lead to a virtual address, as they are in VRAM.

    hub: "gc" or "mmhub". The root is the one in the hub's context of `vmid`. For a recording, the
    walk ends at the first entry that it lacks.
    """
    if address < 0 or not 0 <= vmid < 16:
        raise BadArgument("expected an address and a VMID below 16", address=address, vmid=vmid)
    prefix = "GCVM" if hub == "gc" else "MMVM"
    block = getattr(chip, hub)
    low, high = (
        int(block[f"{prefix}_CONTEXT{vmid}_PAGE_TABLE_BASE_ADDR_{part}"].read())
        for part in ("LO32", "HI32")
    )
    enabled = bool(block[f"{prefix}_CONTEXT{vmid}_CNTL"].read().ENABLE_CONTEXT)
    root = (high << 32 | low) & _ROOT_ADDRESS
    steps, physical, end = [], root, "a page" if enabled else "the context is off"
    for number, level in enumerate(form.levels if enabled else ()):
        place = physical + 8 * (address >> level.shift & (1 << level.bits) - 1)
        if place + 8 > chip.vram.size:
            end = f"level {number} lies outside VRAM"
            break
        try:
            entry = int.from_bytes(chip.vram.read(place, 8), "little")
        except NotRecorded as error:
            end = f"level {number}: {error.message}"
            break
        steps.append({"level": number, "at": place, "entry": entry})
        physical = form.physical(number, entry)
        if not form.is_table(number, entry):
            end = "a page" if entry & 1 else f"level {number} has no valid entry"
            break
    found: dict[str, object] = {
        "address": address, "vmid": vmid, "enabled": enabled, "root": root, "steps": steps,
        "end": end,
    }  # fmt: skip
    if end == "a page":
        found["physical"] = physical + (address & (1 << form.levels[len(steps) - 1].shift) - 1)
    return found
