"""Check that a program waits for its loads: a register is used only after the wait for its value.

On a board a load of memory, of LDS or of constants writes its registers some time after it was
issued, and nothing but a wait orders that; the shader core has every value at once, so a missing
wait would be invisible. This is an analysis of the program along all its paths, with the rules by
which the counters fall, and costs nothing at run time. What it finds on a path that no wave takes
is reported too. Stores are not followed: no register waits for them.

Sources: RDNA3 ISA document, "Manually inserted wait states", S_WAITCNT; RDNA4 ISA document, 5.7.1;
LLVM AMDGPUUsage, memory model of gfx11 and gfx12. Loads of one counter return in order, but for
scalar loads, for which only a wait for 0 says anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ugpu.virtual.amd.isa.decoder.disassembly import text
from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand
from ugpu.virtual.amd.isa.targets.target import Memory
from ugpu.virtual.amd.isa.translator.program import Program

_MOST = 63  # highest value of a counter; the chip stalls beyond it
_VECTORS = 1 << 10  # key of v0; keys below are codes of scalar registers
_BASES = {Kind.SGPR: 0, Kind.VCC: 106, Kind.TTMP: 108, Kind.M0: 125, Kind.EXEC: 126}
_LOADS = (Format.FLAT, Format.GLOBAL, Format.SCRATCH, Format.MUBUF, Format.MTBUF)
# Operations that also read their destination, or the lane mask VCC.
_ACCUMULATE = ("v_fmac", "v_dot2acc", "v_dot2c", "v_pk_fmac", "v_dual_fmac", "v_dual_dot2acc")
_READS_VCC = ("v_div_fmas",)
_COUNTED_AS_SCALAR = ("s_sendmsg", "s_get_barrier_state")
# Waits of gfx12, by counter; the first of two is in bits 13:8.
_WAITS = {
    "s_wait_loadcnt": ("load",), "s_wait_dscnt": ("lds",), "s_wait_kmcnt": ("scalar",),
    "s_wait_loadcnt_dscnt": ("load", "lds"), "s_wait_storecnt_dscnt": ("", "lds"),
}  # fmt: skip


@dataclass(frozen=True)
class _Load:
    """A load that may not have returned. newer: later events of its counter, on the path with the
    fewest. ordered: whether it returns in the order of issue."""

    pc: int
    newer: int
    ordered: bool


@dataclass
class _State:
    """Loads under way, by counter and register."""

    loads: dict[str, dict[int, _Load]] = field(
        default_factory=lambda: {"load": {}, "lds": {}, "scalar": {}}
    )

    def copy(self) -> _State:
        return _State({name: dict(entries) for name, entries in self.loads.items()})

    def join(self, other: _State) -> bool:
        """Add what may be under way in another state; return whether anything changed."""
        changed = False
        for name, entries in other.loads.items():
            mine = self.loads[name]
            for register, load in entries.items():
                known = mine.get(register)
                if known is None or load.newer < known.newer:
                    mine[register] = load
                    changed = True
        return changed

    def issue(self, counters: tuple[str, ...], registers: list[int], pc: int) -> None:
        """Count an event of the counters, whose load writes registers."""
        for name in counters:
            entries = self.loads[name]
            for register, load in entries.items():
                entries[register] = _Load(load.pc, min(load.newer + 1, _MOST), load.ordered)
            for register in registers:
                entries[register] = _Load(pc, 0, name != "scalar")

    def wait(self, name: str, most: int, *, mixed: bool) -> None:
        """At most `most` events of a counter are under way. mixed: scalar loads are among them."""
        entries = self.loads[name]
        ordered = not mixed or not self.loads["scalar"]
        for register, load in list(entries.items()):
            if most == 0 or (load.ordered and ordered and load.newer >= most):
                del entries[register]


def _keys(operand: Operand | None) -> Iterator[int]:
    if operand is None:
        return
    base = _VECTORS if operand.is_vector else _BASES.get(operand.kind)
    if base is not None:
        yield from range(base + operand.index, base + operand.index + operand.width)


def _reads(i: Instruction) -> Iterator[int]:
    if i.x is not None and i.y is not None:
        yield from _reads(i.x)
        yield from _reads(i.y)
        return
    for operand in (*i.srcs, i.addr, i.data, i.data1, i.saddr, i.srsrc, i.soffset):
        yield from _keys(operand)
    if i.name.startswith(_ACCUMULATE):
        yield from _keys(i.dst)
    if i.name.startswith(_READS_VCC) or "vccz" in i.name or "vccnz" in i.name:
        yield from (106, 107)


def _writes(i: Instruction) -> Iterator[int]:
    if i.x is not None and i.y is not None:
        yield from _writes(i.x)
        yield from _writes(i.y)
        return
    yield from _keys(i.dst)
    yield from _keys(i.sdst)


def _counters(i: Instruction) -> tuple[str, ...]:
    """Return the counters of a load, or of an operation that only counts; () for any other."""
    if i.format is Format.SMEM and i.srcs and "prefetch" not in i.name:
        return ("scalar",)
    if i.name.startswith(_COUNTED_AS_SCALAR):
        return ("scalar",)
    if i.format is Format.DS:
        return ("lds",)
    if i.format in _LOADS:
        loads = ("load",) if i.dst is not None else ()
        return (*loads, "lds") if i.format is Format.FLAT else loads
    return ()


def _waits(i: Instruction) -> Iterator[tuple[str, int, bool]]:
    """Yield (counter, highest count, whether the counter also has scalar loads)."""
    if i.name == "s_waitcnt":
        yield "load", i.simm16 >> 10 & 63, False
        yield from _shared(i.simm16 >> 4 & 63)
    elif i.name == "s_waitcnt_vmcnt":
        yield "load", i.simm16 & 63, False
    elif i.name == "s_waitcnt_lgkmcnt":
        yield from _shared(i.simm16 & 63)
    elif i.name == "s_wait_idle":
        yield from ((name, 0, False) for name in ("load", "lds", "scalar"))
    elif i.name in _WAITS:
        names = _WAITS[i.name]
        counts = (i.simm16 & 63,) if len(names) == 1 else (i.simm16 >> 8 & 63, i.simm16 & 63)
        yield from ((name, count, False) for name, count in zip(names, counts, strict=True) if name)


def _shared(most: int) -> Iterator[tuple[str, int, bool]]:
    """LGKMcnt of gfx11 counts LDS and scalar loads together."""
    yield "lds", most, True
    yield "scalar", most, True


def _name(register: int) -> str:
    if register >= _VECTORS:
        return f"v{register - _VECTORS}"
    named = {106: "vcc_lo", 107: "vcc_hi", 125: "m0", 126: "exec_lo", 127: "exec_hi"}
    return named.get(register, f"s{register}")


class _Checker:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._base = program.base
        self._asked = _ASKED[program.target.memory is Memory.GFX12]
        self._at = {i.pc: i for block in program.blocks.values() for i in block.instructions}
        self.found: dict[tuple[int, int], str] = {}

    def run(self) -> list[str]:
        """Follow all paths until nothing changes, then return the violations by offset."""
        blocks = self._program.blocks
        before = {start: _State() for start in blocks}
        work = sorted(blocks)
        while work:
            start = work.pop(0)
            after = before[start].copy()
            for instruction in blocks[start].instructions:
                self._step(after, instruction, note=False)
            for target in blocks[start].successors:
                if target in before and before[target].join(after) and target not in work:
                    work.append(target)
        for start, block in blocks.items():
            state = before[start].copy()
            for instruction in block.instructions:
                self._step(state, instruction, note=True)
        return [self.found[key] for key in sorted(self.found)]

    def _step(self, state: _State, i: Instruction, *, note: bool) -> None:
        for name, most, mixed in _waits(i):
            state.wait(name, most, mixed=mixed)
        counters = _counters(i)
        if note:
            self._check(state, i, _reads(i), "reads", ())
            self._check(state, i, _writes(i), "writes", counters)
        written = list(_writes(i))
        for entries in state.loads.values():
            for register in written:
                entries.pop(register, None)
        if counters:
            state.issue(counters, written, i.pc)

    def _check(
        self, state: _State, i: Instruction, used: Iterator[int], how: str, own: tuple[str, ...]
    ) -> None:
        """Note registers under way. own: counters whose loads follow each other in order."""
        for register in used:
            for name, entries in state.loads.items():
                load = entries.get(register)
                if load is None or (name in own and load.ordered):
                    continue
                there, most = self._at[load.pc], load.newer if load.ordered else 0
                self.found.setdefault(
                    (i.pc, register),
                    f"`{text(i)}` at {self._base + i.pc:#x} {how} {_name(register)} without a wait "
                    f"for `{text(there)}` at {self._base + load.pc:#x} (needed: "
                    f"{self._asked[name]} of at most {most})",
                )


# The wait for a counter, as the instruction sets name it.
_ASKED = {
    False: {"load": "vmcnt", "lds": "lgkmcnt", "scalar": "lgkmcnt"},
    True: {"load": "s_wait_loadcnt", "lds": "s_wait_dscnt", "scalar": "s_wait_kmcnt"},
}


def check(program: Program) -> list[str]:
    """Return a text for each use of a register before the wait for its load, in order of offsets.

    Addresses are the GPU's. Violations along paths that only unknown code can take are
    not found: at targets of indirect jumps no load counts as under way.
    """
    return _Checker(program).run()
