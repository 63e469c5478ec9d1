"""Calls of `runtime.races` before each access of local memory and each barrier."""

from __future__ import annotations

import re

from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction
from ugpu.virtual.amd.isa.runtime.races import ACCESS, ATOMIC, LOAD, PHASE, STORE
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.text import LANES, constant

_PLAIN = re.compile(r"ds_(load|store)_(2addr_(stride64_)?)?[a-z](\d+)")
_EXCHANGE = re.compile(r"ds_(storexchg)_(2addr_(stride64_)?)?rtn_b(\d+)")
_NO_MEMORY = ("ds_bpermute", "ds_permute", "ds_swizzle", "ds_nop", "ds_gws", "ds_bvh")
_KINDS = {"load": LOAD, "store": STORE, "storexchg": ATOMIC}
_PHASES = {  # signals and waits
    "s_barrier": (1, 1), "s_barrier_signal": (1, 0), "s_barrier_signal_isfirst": (1, 0),
    "s_barrier_wait": (0, 1),
}  # fmt: skip


def _accesses(i: Instruction) -> tuple[int, int, tuple[int, ...]]:
    """Return the kind of a DS operation, its bytes, and the offsets at which it accesses them."""
    shape = _PLAIN.match(i.name) or _EXCHANGE.match(i.name)
    if shape is None:
        return ATOMIC, 8 if i.name.endswith("64") else 4, (i.offset,)
    kind, size = _KINDS[shape[1]], int(shape[4]) // 8
    if shape[2] is None:
        return kind, size, (i.offset,)
    step = size * (64 if shape[3] else 1)
    return kind, size, (i.offset0 * step, i.offset1 * step)


def note_access(e: Registers, i: Instruction) -> None:
    """Call before an instruction: nothing unless it accesses local memory by an address."""
    if i.format is not Format.DS or i.addr is None or i.gds or i.name.startswith(_NO_MEMORY):
        return
    kind, size, offsets = _accesses(i)
    for offset in offsets:
        address = e.binary("add", "i32", e.vector_register(i.addr.index), constant("i32", offset))
        e.by_passes(
            "", ACCESS, ("ptr", "%context"), (e.vector, address), (LANES, e.exec()),
            ("i32", str(size)), ("i32", str(kind)), ("i32", str(i.pc)),
        )  # fmt: skip


def note_phase(e: Registers, i: Instruction) -> None:
    """Call before an instruction: nothing unless it signals or waits at the group's barrier."""
    if i.name in _PHASES:
        signals, waits = _PHASES[i.name]
        e.call(
            "void", PHASE, ("ptr", "%context"), ("i32", str(signals)), ("i32", str(waits))
        )  # fmt: skip
