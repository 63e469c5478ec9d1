"""A kernel's machine code as basic blocks, fetched page by page along its control flow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache

from ugpu.virtual.amd.isa.decoder.decode import GFX11, LONGEST, decode
from ugpu.virtual.amd.isa.decoder.formats import Instruction, UnknownInstruction
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.targets.target import Target
from ugpu.virtual.amd.shader import ShaderMemory
from ugpu.virtual.shader.memory import PAGE_SHIFT

PAGE = 1 << PAGE_SHIFT
MOST_INSTRUCTIONS = 200_000  # limit per kernel, which stops runaway decoding of data

BARRIERS = ("s_barrier", "s_barrier_wait")
_ENDS = ("s_endpgm", "s_endpgm_saved")
# Instructions that pass control to code that no instruction names.
NOWHERE = ("s_setpc_b64", "s_swappc_b64", "s_rfe_b64")


class Stop(Enum):
    """Why a block's execution cannot go on past its last instruction."""

    NONE = auto()
    ILLEGAL = auto()  # the words at `end` are not an instruction
    NO_CODE = auto()  # the page at `end` cannot be fetched


@dataclass
class Block:
    """Straight-line code from `start` to `end` (byte offsets), entered only at its start.

    successors: offsets that control may pass to. full: EXEC is known to be all ones at the start.
    """

    start: int
    end: int
    instructions: list[Instruction]
    successors: tuple[int, ...] = ()
    stop: Stop = Stop.NONE
    words: tuple[int, ...] = ()
    full: bool = False


@dataclass
class Program:
    """All code reachable from `entry`; offsets count from GPU address `base` (page aligned).

    spans: (offset, bytes) of the code that was used. roots: offsets reached by indirect jumps.
    lanes: lanes per wave. target: the instruction set.
    """

    base: int
    entry: int
    blocks: dict[int, Block]
    spans: tuple[tuple[int, bytes], ...]
    roots: frozenset[int] = frozenset()
    lanes: int = 32
    target: Target = GFX11
    digest: str = field(default="")

    def __post_init__(self) -> None:
        state = hashlib.sha256(repr((self.entry, sorted(self.roots), self.lanes)).encode())
        for offset, code in self.spans:
            state.update(f"{offset}:{len(code)}:".encode() + code)
        for block in self.blocks.values():
            if block.stop is Stop.NO_CODE:
                state.update(f"missing {block.end}".encode())
        if self.target is not GFX11:
            state.update(self.target.name.encode())
        self.digest = state.hexdigest()
        self._pieces = tuple(_pieces(self.base, self.spans))

    def unchanged(self, memory: ShaderMemory) -> bool:
        """Return whether memory still holds the same code.

        Compares page by page, up to the first difference: memory may hold a shorter program now,
        and fetching beyond it would raise a page fault on the chip.
        """
        return all(memory.fetch(address, size) == code for address, size, code in self._pieces)

    def names(self) -> set[str]:
        """Return the names of the instructions."""
        return {i.name for block in self.blocks.values() for i in block.instructions}

    def words_at(self, offset: int) -> tuple[tuple[int, ...], str]:
        """Return the encoding at an offset and why it cannot run, as far as it was decoded."""
        for block in self.blocks.values():
            for instruction in block.instructions:
                if instruction.pc == offset:
                    return instruction.words, f"{instruction.name} is not executed by these cores"
            if block.end == offset and block.stop is Stop.ILLEGAL:
                return block.words, "no instruction has this encoding"
        return (), ""


def _pieces(base: int, spans: tuple[tuple[int, bytes], ...]) -> Iterator[tuple[int, int, bytes]]:
    """Yield address, size and bytes of the code of each page."""
    for offset, code in spans:
        start = 0
        while start < len(code):
            end = min(len(code), start + PAGE - (offset + start) % PAGE)
            yield base + offset + start, end - start, code[start:end]
            start = end


class _BelowBase(Exception):
    """Control flow reached code before the base."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset


class _Fetcher:
    """Pages of code, fetched when control flow first reaches them."""

    def __init__(self, memory: ShaderMemory, base: int, lanes: int, target: Target) -> None:
        self._memory = memory
        self._lanes = lanes
        self._target = target
        self._base = base
        self._pages: dict[int, bytes | None] = {}

    def page(self, number: int) -> bytes | None:
        """Return a page of code, counted from the base; None if it cannot be fetched."""
        if number < 0:
            raise _BelowBase(number * PAGE)
        if number not in self._pages:
            self._pages[number] = self._memory.fetch(self._base + number * PAGE, PAGE)
        return self._pages[number]

    def instruction(self, offset: int) -> Instruction | None:
        """Decode at an offset; None if its page cannot be fetched. Raises UnknownInstruction."""
        number, inside = divmod(offset, PAGE)
        code = self.page(number)
        if code is None:
            return None
        if inside + LONGEST > PAGE:
            return self._at_end(offset, code, inside)
        return _moved(decode(code, inside, self._lanes, self._target), offset - inside)

    def _at_end(self, offset: int, code: bytes, inside: int) -> Instruction | None:
        try:
            return _moved(decode(code, inside, self._lanes, self._target), offset - inside)
        except UnknownInstruction as short:
            if inside + 4 * (len(short.words) + 1) <= PAGE:
                raise
        following = self.page(offset // PAGE + 1)
        if following is None:
            return None
        return _moved(
            decode(code + following[:LONGEST], inside, self._lanes, self._target), offset - inside
        )


def _moved(instruction: Instruction, by: int) -> Instruction:
    """Return the instruction with its byte offsets counted from the base instead of its page."""
    if by:
        # Instruction is frozen to prevent accidental changes; this one is new and not shared yet.
        object.__setattr__(instruction, "pc", instruction.pc + by)
        if instruction.branch_target is not None:
            object.__setattr__(instruction, "branch_target", instruction.branch_target + by)
    return instruction


def load(
    memory: ShaderMemory,
    address: int,
    roots: frozenset[int] = frozenset(),
    lanes: int = 32,
    target: Target = GFX11,
) -> Program:
    """Fetch and decode all code reachable from `address` and from the GPU addresses `roots`.

    lanes: lanes per wave, 32 or 64.
    """
    base = address & -PAGE
    while True:
        try:
            return _load(memory, address, base, roots, lanes, target)
        except _BelowBase as below:
            base += below.offset & -PAGE


def _load(
    memory: ShaderMemory,
    address: int,
    base: int,
    roots: frozenset[int],
    lanes: int,
    target: Target,
) -> Program:
    fetcher = _Fetcher(memory, base, lanes, target)
    decoded: dict[int, Instruction] = {}
    bad: dict[int, tuple[Stop, tuple[int, ...]]] = {}
    starts = {address - base, *(root - base for root in roots)}
    work = sorted(starts)
    while work:
        offset = work.pop()
        while offset not in decoded and offset not in bad:
            if offset < 0:
                raise _BelowBase(offset)
            try:
                instruction = fetcher.instruction(offset)
            except UnknownInstruction as unknown:
                bad[offset] = (Stop.ILLEGAL, unknown.words)
                break
            if instruction is None or len(decoded) >= MOST_INSTRUCTIONS:
                bad[offset] = (Stop.NO_CODE, ())
                break
            decoded[offset] = instruction
            following = successors(instruction)
            if following is not None:
                fresh = [target for target in following if target not in starts]
                starts.update(following)
                work.extend(fresh)
                break
            offset = instruction.next_pc
    blocks = {start: _block(start, starts, decoded, bad) for start in sorted(starts)}
    offsets = frozenset(root - base for root in roots)
    return Program(base, address - base, blocks, _spans(decoded, bad), offsets, lanes, target)


def successors(instruction: Instruction) -> tuple[int, ...] | None:
    """Return the successors of an instruction that ends a block; None for all others."""
    name = instruction.name
    if name in _ENDS or name in NOWHERE:
        return ()
    target = instruction.branch_target
    if name == "s_branch" or name == "s_call_b64":
        return () if target is None else (target,)
    if target is not None:
        return (target, instruction.next_pc)
    if name in BARRIERS:
        return (instruction.next_pc,)
    return None


def _block(
    start: int,
    starts: set[int],
    decoded: dict[int, Instruction],
    bad: dict[int, tuple[Stop, tuple[int, ...]]],
) -> Block:
    found: list[Instruction] = []
    offset = start
    while True:
        if offset in bad:
            stop, words = bad[offset]
            return Block(start, offset, found, (), stop, words)
        instruction = decoded[offset]
        found.append(instruction)
        offset = instruction.next_pc
        following = successors(instruction)
        if following is not None:
            return Block(start, offset, found, following)
        if offset in starts:
            return Block(start, offset, found, (offset,))


def _spans(
    decoded: dict[int, Instruction], bad: dict[int, tuple[Stop, tuple[int, ...]]]
) -> tuple[tuple[int, bytes], ...]:
    found = {offset: instruction.words for offset, instruction in decoded.items()}
    found.update((offset, words) for offset, (_, words) in bad.items() if words)
    spans: list[tuple[int, bytearray]] = []
    for offset in sorted(found):
        code = b"".join(word.to_bytes(4, "little") for word in found[offset])
        if spans and spans[-1][0] + len(spans[-1][1]) == offset:
            spans[-1][1].extend(code)
        else:
            spans.append((offset, bytearray(code)))
    return tuple((offset, bytes(code)) for offset, code in spans)


# -- where EXEC is known to be all ones ----------------------------------------------------------

_BASES = {
    Kind.SGPR: 0, Kind.VCC: layout.SGPR_VCC, Kind.EXEC: layout.SGPR_EXEC, Kind.M0: layout.SGPR_M0,
    Kind.TTMP: layout.SGPR_TTMP,
}  # fmt: skip


def mark_full_blocks(program: Program, entry_full: bool) -> None:
    """Set `full` of the blocks whose EXEC is all ones on every path to them.

    A forward analysis of the set of scalar registers known to be all ones, joined by intersection.
    """
    known: dict[int, frozenset[int]] = {
        program.entry: exec_registers(program) if entry_full else frozenset()
    }
    for root in program.roots:
        known[root] = frozenset()
    work = list(known)
    while work:
        block = program.blocks[work.pop()]
        after = set(known[block.start])
        for instruction in block.instructions:
            ones_after(instruction, after)
        for target in block.successors:
            merged = frozenset(after) if target not in known else known[target] & after
            if known.get(target) != merged:
                known[target] = merged
                work.append(target)
    for start, block in program.blocks.items():
        block.full = exec_registers(program) <= known.get(start, frozenset())


def exec_registers(program: Program) -> frozenset[int]:
    """Return the scalar registers that form EXEC, for a program's waves."""
    return frozenset(range(layout.SGPR_EXEC, layout.SGPR_EXEC + program.lanes // 32))


def _is_ones(operand: Operand, word: int, ones: set[int]) -> bool:
    if operand.is_constant:
        return operand.value >> 32 * word & 0xFFFFFFFF == 0xFFFFFFFF
    return operand.kind in _BASES and _BASES[operand.kind] + operand.index + word in ones


@cache
def _changes_vectors(name: str) -> bool:
    """Return whether an instruction changes scalar registers only by its destinations."""
    vectors = name.startswith(("v_", "ds_", "global_", "flat_"))
    return vectors and "exec" not in name and not name.startswith("v_cmpx")


def ones_after(instruction: Instruction, ones: set[int]) -> None:
    """Apply one instruction's effect to the set of scalar registers known to be all ones."""
    name, dst = instruction.name, instruction.dst
    if _changes_vectors(name) and instruction.sdst is None and (dst is None or dst.is_vector):
        return
    words = range(2 if name.endswith("_b64") else 1)
    stem = name.removesuffix("_b64").removesuffix("_b32")
    result: list[int] = []  # words of the destination that are all ones
    exec_after: list[int] | None = None  # the same for EXEC
    if stem in ("s_mov", "s_or", "s_and"):
        all_or_any = any if stem == "s_or" else all
        result = [
            word
            for word in words
            if all_or_any(_is_ones(operand, word, ones) for operand in instruction.srcs)
        ]
    elif stem.endswith("_saveexec"):
        result = [word for word in words if layout.SGPR_EXEC + word in ones]
        source = [word for word in words if _is_ones(instruction.srcs[0], word, ones)]
        both = {"s_or_saveexec": {*result, *source}, "s_and_saveexec": {*result} & {*source}}
        exec_after = sorted(both.get(stem, set()))
    elif "exec" in name or name.startswith("v_cmpx"):
        exec_after, words = [], range(2)
    for operand in (instruction.dst, instruction.sdst):
        if operand is None or operand.kind not in _BASES:
            continue
        first = _BASES[operand.kind] + operand.index
        ones.difference_update(range(first, first + operand.width))
        if operand is instruction.dst:
            ones.update(first + word for word in result)
    if exec_after is not None:
        ones.difference_update(layout.SGPR_EXEC + word for word in words)
        ones.update(layout.SGPR_EXEC + word for word in exec_after)
