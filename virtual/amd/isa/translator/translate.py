"""Translate a program of gfx1100 instructions into one LLVM function.

The function runs one wave: `i32 kernel(context, wave state)`. It starts at the entry or, after a
barrier, at the wave state's resume point, and returns a code of `layout`. Blocks become LLVM
blocks; registers are stack slots that SROA promotes to values, or all in the wave state.
"""

from __future__ import annotations

from functools import cache

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.targets.target import Memory
from ugpu.virtual.amd.isa.translator import flow as emit_flow
from ugpu.virtual.amd.isa.translator import modes as emit_modes
from ugpu.virtual.amd.isa.translator import relative as emit_relative
from ugpu.virtual.amd.isa.translator import stepping as emit_stepping
from ugpu.virtual.amd.isa.translator.access import block as emit_block
from ugpu.virtual.amd.isa.translator.access import buffer as emit_buffer
from ugpu.virtual.amd.isa.translator.access import lanes as emit_lanes
from ugpu.virtual.amd.isa.translator.access import local as emit_local
from ugpu.virtual.amd.isa.translator.access import memory as emit_memory
from ugpu.virtual.amd.isa.translator.access import races as emit_races
from ugpu.virtual.amd.isa.translator.access import scratch as emit_scratch
from ugpu.virtual.amd.isa.translator.access import transposed as emit_transposed
from ugpu.virtual.amd.isa.translator.access.lanes import apply_dpp
from ugpu.virtual.amd.isa.translator.arithmetic import bits as emit_bits
from ugpu.virtual.amd.isa.translator.arithmetic import convert as emit_convert
from ugpu.virtual.amd.isa.translator.arithmetic import division as emit_division
from ugpu.virtual.amd.isa.translator.arithmetic import extremes as emit_extremes
from ugpu.virtual.amd.isa.translator.arithmetic import float as emit_float
from ugpu.virtual.amd.isa.translator.arithmetic import fragments as emit_fragments
from ugpu.virtual.amd.isa.translator.arithmetic import integer as emit_int
from ugpu.virtual.amd.isa.translator.arithmetic import matrix as emit_matrix
from ugpu.virtual.amd.isa.translator.arithmetic import media as emit_media
from ugpu.virtual.amd.isa.translator.arithmetic import packed as emit_packed
from ugpu.virtual.amd.isa.translator.arithmetic import scalar as emit_scalar
from ugpu.virtual.amd.isa.translator.arithmetic import scalar_float as emit_scalar_float
from ugpu.virtual.amd.isa.translator.arithmetic import scalar_wide as emit_scalar_wide
from ugpu.virtual.amd.isa.translator.arithmetic import trig as emit_trig
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.flow import emit_end, halt
from ugpu.virtual.amd.isa.translator.liveness import ALL, read_after
from ugpu.virtual.amd.isa.translator.needed import needed
from ugpu.virtual.amd.isa.translator.pinned import pinned_registers
from ugpu.virtual.amd.isa.translator.program import BARRIERS, Block, Program, Stop, successors
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.shader import context
from ugpu.virtual.shader.text import PROFILES, VECTOR, Text
from ugpu.virtual.shader.threads import waves

_MODULES = (
    emit_scalar, emit_int, emit_bits, emit_float, emit_division, emit_convert, emit_lanes,
    emit_packed, emit_matrix, emit_memory, emit_local, emit_buffer, emit_media, emit_relative,
    emit_trig, emit_flow, emit_scalar_float, emit_scalar_wide, emit_extremes,
    emit_transposed, emit_scratch, emit_block,
)  # fmt: skip


@cache
def handlers() -> dict[str, Handler]:
    """Return every instruction's emitter by name."""
    found: dict[str, Handler] = {}
    for module in _MODULES:
        found.update(module.handlers())
    for function in ("exp", "log", "rcp", "rsq", "sqrt"):  # gfx12: of scalars, with scalar results
        for suffix in ("f16", "f32"):
            found[f"v_s_{function}_{suffix}"] = found[f"v_{function}_{suffix}"]
    return found


def translate(
    program: Program,
    vector_limit: int,
    name: str,
    modes: int = 0,
    *,
    stepped: bool = False,
    keep: bool = False,
    races: bool = False,
    quick: bool = False,
) -> str:
    """Return the IR module of a program that has `vector_limit` vector registers.

    modes: see `translator.modes.modes_of`. stepped: the wave state holds all registers at every
    instruction, and the code halts where a debugger requests it (`translator.stepping`); requires
    blocks that are not `full`. keep: the wave state holds all vector registers, and the next wave
    starts with them. races: accesses of local memory are noted (`runtime.races`).
    quick: the wave state holds all registers, so that the text needs none of LLVM's passes: code
    that is generated fast keeps values of several blocks in memory anyway.
    """
    every = frozenset(range(vector_limit))
    pinned = every if stepped or keep or quick else pinned_registers(program, vector_limit)
    e = Registers(vector_limit, pinned, modes, program.lanes)
    e.gfx12 = program.target.memory is Memory.GFX12
    e.stepped, e.kept, e.races, e.resident = stepped, keep, races, stepped or quick
    if stepped:
        e.used_vectors |= every
    resumes: set[int] = set(program.roots)
    jumps = False
    # Without matrix instructions, all lanes of what is loaded are read.
    matrices = any(name.startswith("v_wmma_") for name in program.names())
    live = read_after(program) if matrices else {}
    if len(pinned) < vector_limit:
        e.needed = needed(program)
    for start in sorted(program.blocks):
        block = program.blocks[start]
        _emit_block(e, block, live)
        last = block.instructions[-1] if block.instructions else None
        if last is not None and last.name in BARRIERS:
            resumes.add(last.next_pc)
        if last is not None and last.name in ("s_setpc_b64", "s_swappc_b64"):
            jumps = True
    return _module(e, program, sorted(resumes), name, jumps)


def _emit_block(e: Registers, block: Block, live: dict[int, int]) -> None:
    e.begin(f"pc{block.start}")
    e.start_block(block.full)
    done: Instruction | None = None  # instruction already emitted together with the previous one
    for number, instruction in enumerate(block.instructions):
        if instruction is done:
            continue
        if e.stepped:
            emit_modes.leave(e)
            emit_stepping.look(e, instruction.pc)
        mark = len(e.lines)
        try:
            following = block.instructions[number + 1 : number + 2]
            if e.races:
                emit_races.note_access(e, instruction)
                emit_races.note_phase(e, instruction)
            elif following and emit_local.load_pair(
                e, instruction, following[0], live.get(following[0].pc, ALL)
            ):
                done = following[0]
                e.end_instruction()
                continue
            if successors(instruction) is not None:
                emit_modes.leave(e)
                emit_end(e, instruction)
                return
            emit(e, instruction)
            e.end_instruction()
        except Unsupported:
            e.take_back(mark)
            halt(e, instruction.pc, layout.HALTED)
            return
    emit_modes.leave(e)
    if block.stop is Stop.ILLEGAL:
        halt(e, block.end, layout.HALTED)
    elif block.stop is Stop.NO_CODE:
        halt(e, block.end, layout.NO_CODE)
    else:
        e.do(f"br label %pc{block.end}")


def emit(e: Registers, instruction: Instruction) -> None:
    """Emit one instruction that is not control flow. Raises Unsupported."""
    e.pc = instruction.pc
    emit_modes.enter(e, instruction)
    if instruction.x is not None and instruction.y is not None:
        _emit_pair(e, instruction.x, instruction.y)
        return
    handler = handlers().get(instruction.name)
    if e.gfx12:  # its matrix instructions have the names of gfx11's, but not their layout of lanes
        handler = emit_fragments.handlers().get(instruction.name, handler)
    if handler is None:
        raise Unsupported(instruction.name)
    try:
        if instruction.dpp is not None:
            apply_dpp(e, instruction)
        handler(e, instruction)
    finally:
        e.override = e.extra_mask = None


def _emit_pair(e: Registers, x: Instruction, y: Instruction) -> None:
    """Emit the two operations of a VOPD; both read their sources before either writes."""
    held: list[tuple[int, str, str]] = []
    e.pending = held
    try:
        for half in (x, y):
            name = half.name.replace("v_dual_", "v_")
            handler = handlers().get(name)
            if handler is None:
                raise Unsupported(half.name)
            handler(e, half)
    finally:
        e.pending = None
    for number, value, element in held:
        e.set_vector_register(number, value, element)


def _module(e: Registers, program: Program, resumes: list[int], name: str, jumps: bool) -> str:
    scalars = [] if e.resident else sorted(e.used_scalars)
    vectors = sorted(e.used_vectors)
    # Vectors that live across a call are spilled: unaligned they would cross lines of the cache.
    attributes = 'nounwind "stackrealign"'
    head = [f"define i32 @{name}(ptr %context, ptr noalias %wave) {attributes} {{", "entry:"]
    if e.stepped:
        head.extend(emit_stepping.tables())
    if not e.resident:
        head.append("  %scc = alloca i1")
        head.extend(f"  %s{k} = alloca i32" for k in scalars)
    moving = [k for k in vectors if k not in e.pinned]
    head.extend(f"  %v{k} = alloca {e.vector}" for k in moving)
    if e.uses_scratch_vector:
        head.append(f"  %lanes.slot = alloca {e.vector}")
    if e.switches_mode:
        # A previous wave may have left a different mode.
        head.append("  %mode.slot = alloca i32")
        head.append(f"  %mode.p = getelementptr i8, ptr %context, i64 {context.MXCSR}")
        head.append("  call void @llvm.x86.sse.ldmxcsr(ptr %mode.p)")
        head.append("  %mode.saved = alloca i32")
        head.append("  store volatile i32 1, ptr %mode.slot")
    head.append("  %resume.slot = alloca i32")
    head.append("  %code.slot = alloca i32")
    head.append(f"  %abort.p = getelementptr i8, ptr %context, i64 {context.ABORT}")
    head.append("  %abort = load ptr, ptr %abort.p")
    head.append(f"  %stop.p = getelementptr i8, ptr %context, i64 {context.STOP}")
    head.append("  %stop = load ptr, ptr %stop.p")
    head.append(f"  %resume.p = getelementptr i8, ptr %wave, i64 {layout.STATE_RESUME}")
    for k in scalars:
        head.append(f"  %sp{k} = getelementptr i32, ptr %wave, i32 {k}")
        head.append(f"  %si{k} = load i32, ptr %sp{k}")
        head.append(f"  store i32 %si{k}, ptr %s{k}")
    if not e.resident:
        head.append(f"  %scc.p = getelementptr i8, ptr %wave, i64 {layout.STATE_SCC}")
        head.append("  %scc.i = load i32, ptr %scc.p")
        head.append("  %scc.b = icmp ne i32 %scc.i, 0")
        head.append("  store i1 %scc.b, ptr %scc")
    for k in moving if e.resident else vectors:
        for turn in e.passes:
            at = layout.register_at(k, turn, e.vector_limit)
            head.append(f"  %vp{k}.{turn} = getelementptr i8, ptr %wave, i64 {at}")
    if resumes or jumps:
        head.extend(_resume(moving, program.entry, resumes, e.lanes))
    head.append("start:")
    head.extend(_initial(e, vectors))
    head.append(f"  br label %pc{program.entry}")
    if not (resumes or jumps):
        head.insert(head.index("start:"), "  br label %start")
    tail = [*_save(e, scalars, moving), "stopped:", f"  ret i32 {waves.ABORTED}", "}"]
    lines = [line for line in e.lines if line]
    body = emit_relative.expanded(lines, scalars, frozenset(moving), e.lanes)
    return "\n".join([*head, *body, *tail, *sorted(e.declarations), PROFILES])


def _initial(e: Registers, vectors: list[int]) -> list[str]:
    """Return the lines that initialise the vector registers: zeros except for v0.

    Registers that are kept already have their values in the wave state.
    """
    t = Text(e.lanes, "vi")
    if e.kept:
        return t.lines
    if e.resident:
        size = layout.REGISTER * max(vectors, default=0)  # v1 and further ones
        for turn in e.passes if size else ():
            at = t.value(
                f"getelementptr i8, ptr %wave, i64 {layout.register_at(1, turn, e.vector_limit)}"
            )
            t.do(f"call void @llvm.memset.p0.i64(ptr align 64 {at}, i8 0, i64 {size}, i1 false)")
            e.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        return t.lines
    for k in vectors:
        if k in e.pinned:
            if k:
                for turn in e.passes:
                    t.do(f"store {VECTOR} zeroinitializer, ptr %vp{k}.{turn}, align 64")
            continue
        value = "zeroinitializer" if k else _state_vector(t, k)
        t.do(f"store {t.vector} {value}, ptr %v{k}, align 64")
    return t.lines


def _state_vector(t: Text, k: int) -> str:
    """Read a vector register from the wave state."""
    return t.whole("i32", [
        t.value(f"load {VECTOR}, ptr %vp{k}.{turn}, align 64") for turn in t.passes
    ])  # fmt: skip


def _resume(vectors: list[int], entry: int, resumes: list[int], lanes: int) -> list[str]:
    lines = [
        "  %resume = load i32, ptr %resume.p",
        "  %fresh = icmp eq i32 %resume, 0",
        "  br i1 %fresh, label %start, label %restore",
        "restore:",
    ]
    t = Text(lanes, "vr")
    for k in vectors:
        t.do(f"store {t.vector} {_state_vector(t, k)}, ptr %v{k}")
    lines.extend(t.lines)
    cases = " ".join(f"i32 {offset + 1}, label %pc{offset}" for offset in resumes)
    lines.append(f"  switch i32 %resume, label %elsewhere [ {cases} ]")
    lines.append("elsewhere:")
    lines.append(f"  %pc.p = getelementptr i8, ptr %context, i64 {layout.HALT_PC}")
    lines.append("  %pc.32 = sub i32 %resume, 1")
    lines.append("  %pc.64 = sext i32 %pc.32 to i64")
    lines.append("  store i64 %pc.64, ptr %pc.p")
    lines.append(f"  ret i32 {layout.UNKNOWN_CODE}")
    return lines


def _save(e: Registers, scalars: list[int], vectors: list[int]) -> list[str]:
    lines = ["save:"]
    for k in scalars:
        lines.append(f"  %so{k} = load i32, ptr %s{k}")
        lines.append(f"  store i32 %so{k}, ptr %sp{k}")
    if not e.resident:
        lines.append("  %scc.o = load i1, ptr %scc")
        lines.append("  %scc.w = zext i1 %scc.o to i32")
        lines.append("  store i32 %scc.w, ptr %scc.p")
    lines.extend(emit_relative.stored_vectors(Text(e.lanes, "vo"), vectors))
    lines.append("  %resume.o = load i32, ptr %resume.slot")
    lines.append("  store i32 %resume.o, ptr %resume.p")
    lines.append("  %code.o = load i32, ptr %code.slot")
    lines.append("  ret i32 %code.o")
    return lines
