"""Translate a kernel of ir3 into one LLVM function.

The function runs one wave: `i32 kernel(context, wave state)`. It starts at the first instruction,
or, after a barrier, at the place recorded in the wave state. Registers are stack slots that become
values; where a0.x selects among them they are an array in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ugpu.virtual.adreno.sp.operands import NONE, SHARED, SHARED_END, Kind, Op
from ugpu.virtual.adreno.sp.program import BRANCHES, Block, Program, Stop
from ugpu.virtual.adreno.sp.runtime import layout
from ugpu.virtual.adreno.sp.translator import alu, floats, memory, move, resource, wave
from ugpu.virtual.adreno.sp.translator.flow import (
    Flow,
    barrier,
    end_preamble,
    halt,
    poll_abort,
    predicate_lanes,
    taken_lanes,
)
from ugpu.virtual.adreno.sp.translator.registers import Handler, Registers, Unsupported
from ugpu.virtual.shader import context, stepping
from ugpu.virtual.shader.text import PROFILES, constant
from ugpu.virtual.shader.threads import waves

_MODULES = (alu, floats, memory, move, resource, wave)
_MOST_TWICE = 256  # instructions of a program that is also emitted for waves without a mask
# Instructions without effect on results here: caches, hints, ordering that is always kept.
_NOTHING = frozenset({
    "nop", "fence", "lock", "unlock", "sleep", "icinv", "dccln", "dcinv", "dcflu", "ccinv", "tcinv",
})  # fmt: skip
_STOPS = {
    Stop.ILLEGAL: layout.ILLEGAL, Stop.CODE_END: layout.CODE_END, Stop.NO_CODE: layout.NO_CODE,
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Properties, other than the code, on which a translation depends. words: registers of the
    file; separate: where half registers begin in it (see Launch). group, thread, linear: registers
    that receive a wave's numbers; NONE and above for none."""

    lanes: int
    words: int
    separate: int
    generation: int
    private_per_wave: bool
    group: int
    thread: int
    linear: int


@cache
def handlers() -> dict[str, Handler]:
    """Return every instruction's emitter by name."""
    found: dict[str, Handler] = {}
    for module in _MODULES:
        found.update(module.handlers())
    return found


@cache
def _whole_handlers() -> dict[str, Handler]:
    return move.whole_handlers()


def _is_relative(op: Op) -> bool:
    if op.category == 1 and op.name.startswith(("mov-", "movs-")):
        return any(operand.kind is Kind.RELATIVE for operand in op.moved)
    if op.category in (2, 3, 4):
        return any(operand.kind is Kind.RELATIVE for operand in op.sources)
    return False


def emit(e: Registers, op: Op) -> None:
    """Emit one instruction that is not control flow. Raises Unsupported."""
    if op.name in _NOTHING:
        return
    if op.name in ("predt", "predf", "prede"):
        predicate_lanes(e, op)
        return
    whole = _whole_handlers().get(op.name)
    if whole is not None:
        whole(e, op, 0)
        return
    handler = handlers().get(op.name)
    if handler is None:
        raise Unsupported(f"{op.name} is not implemented")
    for turn in range(op.repeat + 1):
        handler(e, op, turn)


def translate(
    program: Program, shape: Shape, name: str, *, stepped: bool = False, keep: bool = False
) -> tuple[str, dict[int, str]]:
    """Return the IR module of a program, and the unsupported instructions with reasons.

    stepped: the wave state holds all registers at every instruction, and the code halts where the
    debugger requests it (`virtual.shader.stepping`). keep: a wave's state initially holds the
    registers of the wave before.
    """
    relative = any(_is_relative(op) for op in program.ops())
    e = Registers(shape.lanes, shape.words, relative, shape.generation, separate=shape.separate,
                  private_per_wave=shape.private_per_wave)  # fmt: skip
    e.predicating = any(op.name in ("predt", "predf") for op in program.ops())
    flow, missing = Flow(program), dict[int, str]()
    e.stepped, e.in_state = stepped, stepped or keep
    e.both = not e.in_state and sum(1 for _ in program.ops()) <= _MOST_TWICE
    resumes = []
    for block in program.blocks.values():
        flow.emit_gate(e, block)
        for full in (True, False) if e.both else (False,):
            e.full = full
            _emit_block(e, block, flow, missing)
        last = block.last
        if last is not None and last.name == "bar":
            resumes.append(block.end)
    first = Registers(shape.lanes, shape.words, relative, shape.generation,
                      separate=shape.separate, prefix="i")  # fmt: skip
    first.full = True
    _first_values(first, shape)
    e.used |= first.used
    e.shared |= first.shared
    if e.in_state:
        e.used, e.shared = set(range(shape.words)), set(range(SHARED, SHARED_END))
    return _module(e, flow, resumes, name, first, keep), missing


def _first_values(e: Registers, shape: Shape) -> None:
    """Set the registers that the launch names to the numbers of group and threads."""
    for axis in range(3):
        if shape.group < NONE:
            at = e.value(f"getelementptr i8, ptr %wave, i64 {layout.GROUP_X + 4 * axis}")
            value = e.value(f"load i32, ptr {at}")
            number = shape.group + axis
            if SHARED <= number < SHARED_END:
                e.set_scalar(number, value)
            else:
                e.set_word(number, e.broadcast("i32", value))
    ids = e.value(f"getelementptr i8, ptr %context, i64 {layout.IDS}")
    table = e.value(f"load ptr, ptr {ids}")
    own = e.value(f"getelementptr i8, ptr %wave, i64 {layout.NUMBER}")
    wide = e.value(f"zext i32 {e.value(f'load i32, ptr {own}')} to i64")
    table = e.value(f"getelementptr [4 x {e.vector}], ptr {table}, i64 {wide}")
    for axis in range(4):
        number = shape.linear if axis == 3 else shape.thread + axis
        if (shape.linear if axis == 3 else shape.thread) < NONE:
            at = e.value(f"getelementptr {e.vector}, ptr {table}, i64 {axis}")
            e.set_word(number, e.value(f"load {e.vector}, ptr {at}, align 64"))


def _emit_block(e: Registers, block: Block, flow: Flow, missing: dict[int, str]) -> None:
    e.begin(f"{'f' if e.full else 'm'}{block.start}")
    e.forget_masks()
    e.aliases.clear()
    for op in block.ops:
        if e.stepped:
            stepping.look(e, op.index, op.index, waves.FINISHED)
            e.forget_masks()
        mark = len(e.lines)
        try:
            if op.name in BRANCHES or op.name in ("end", "bar"):
                _emit_end(e, op, block, flow)
                return
            if op.name == "shpe":
                end_preamble(e)
            else:
                emit(e, op)
        except Unsupported as reason:
            missing[op.index] = str(reason)
            del e.lines[mark:]
            halt(e, op.index, layout.NOT_IMPLEMENTED)
            return
    if block.stop is not Stop.NONE:
        halt(e, block.end, _STOPS[block.stop])
        return
    _go_on(e, block.end, flow)


def _own(e: Registers) -> str:
    """Return all current lanes, predicated off or not."""
    return "-1" if e.full else e.value(f"load {e.bits}, ptr %exec")


def _go_on(e: Registers, place: int, flow: Flow) -> None:
    if e.full:
        e.do(f"br label %f{place}")
    else:
        flow.enter(e, place, _own(e))


def _emit_end(e: Registers, op: Op, block: Block, flow: Flow) -> None:
    own = _own(e)
    if op.name == "end":
        flow.leave(e, block.end)
        return
    if op.name == "bar":
        barrier(e, op, flow)
        return
    target = block.target
    assert target is not None
    if op.name == "jump" and target > op.index:
        _jump_forward(e, op, target, flow, own)
        return
    taken = taken_lanes(e, op, own)
    if e.predicating and op.name != "jump":
        predicated = e.value(f"load {e.bits}, ptr %predicated")
        taken = e.value(f"and {e.bits} {taken}, {predicated}")
    if op.name == "jump":
        _jump_back(e, op, target, flow, own)
        return
    flow.branch(e, op, target, taken, own)


def _jump_forward(e: Registers, op: Op, target: int, flow: Flow, own: str) -> None:
    if e.full:
        e.do(f"br label %f{target}")
        return
    old = e.value(f"load {e.bits}, ptr %waiting{target}")
    e.do(f"store {e.bits} {e.value(f'or {e.bits} {old}, {own}')}, ptr %waiting{target}")
    flow.leave(e, op.index + 1)


def _jump_back(e: Registers, op: Op, target: int, flow: Flow, own: str) -> None:
    poll_abort(e)
    flow.enter(e, target, own)


# ---- the function --------------------------------------------------------------------------------


def _slots(e: Registers, flow: Flow) -> list[str]:
    bits = e.bits
    lines = ["  %resume.slot = alloca i32", f"  %arriving = alloca {bits}"]
    lines += [f"  %waiting{gate} = alloca {bits}" for gate in flow.gates]
    lines += [f"  %slot.{kind} = alloca {e.vector_of(kind)}, align 64" for kind in sorted(e.slots)]
    if e.in_state:
        lines += [_pointer(slot[1:], "wave", place) for slot, _, place in _state(e)]
        lines.append(_pointer("file", "wave", layout.REGISTERS))
        return [*lines, *(stepping.found(context.STEPS, context.STEP) if e.stepped else ())]
    lines += [f"  %{name} = alloca {bits}" for name in ("exec", "predicated")]
    lines += [f"  %p{k} = alloca {bits}" for k in range(4)]
    lines += ["  %a1 = alloca i32", f"  %a0 = alloca {e.vector_of('i16')}"]
    lines += [f"  %s{k} = alloca i32" for k in sorted(e.shared)]
    if e.relative:
        lines.append(f"  %file = alloca [{e.words} x {e.vector}], align 64")
        for k in range(e.words):
            lines.append(f"  %r{k} = getelementptr {e.vector}, ptr %file, i64 {k}")
    else:
        lines += [f"  %r{k} = alloca {e.vector}, align 64" for k in sorted(e.used)]
    return lines


def _state(e: Registers) -> list[tuple[str, str, int]]:
    """Return the slots that the wave state keeps: their name, type and offset there."""
    found = [(f"%r{k}", e.vector, layout.register_at(k, e.lanes)) for k in _registers(e)]
    found += [(f"%s{k}", "i32", layout.SHARED + 4 * (k - 192)) for k in sorted(e.shared)]
    found += [(f"%p{k}", e.bits, layout.PREDICATES + 16 * k) for k in range(4)]
    found += [("%a1", "i32", layout.A1), ("%a0", e.vector_of("i16"), layout.A0)]
    found.append(("%exec", e.bits, layout.EXEC))
    found.append(("%predicated", e.bits, layout.PREDICATED))
    return found


def _registers(e: Registers) -> list[int]:
    return list(range(e.words)) if e.relative else sorted(e.used)


def _undefined(e: Registers, keep: bool) -> list[str]:
    """Give every slot its first value: contents that no kernel may rely on."""
    lines = []
    for slot, kind, place in _state(e):
        if keep and slot not in ("%exec", "%predicated"):
            continue
        value = "0"
        if place >= layout.REGISTERS:
            value = constant("i32", layout.UNDEFINED)
        elif slot == "%a0":
            value = constant("i16", layout.UNDEFINED & 0xFFFF)
        elif slot == "%predicated":
            value = "-1"
        elif slot.startswith("%s"):
            value = str(layout.UNDEFINED)
        if slot == "%exec":
            lines.append(f"  %exec.first.p = getelementptr i8, ptr %wave, i64 {layout.EXEC}")
            lines.append(f"  %exec.first = load {kind}, ptr %exec.first.p, align 16")
            value = "%exec.first"
        lines.append(f"  store {kind} {value}, ptr {slot}, align 4")
    return lines


def _pointer(name: str, base: str, offset: int) -> str:
    return f"  %{name} = getelementptr i8, ptr %{base}, i64 {offset}"


def _module(
    e: Registers, flow: Flow, resumes: list[int], name: str, first: Registers, keep: bool
) -> str:
    head = [f"define i32 @{name}(ptr %context, ptr noalias %wave) nounwind {{", "entry:"]
    head += _slots(e, flow)
    for field, offset in (
        ("abort", context.ABORT), ("stop", context.STOP), ("constants", layout.CONSTANTS),
        ("tables", layout.TABLES),
    ):  # fmt: skip
        head += [
            _pointer(field + ".p", "context", offset),
            f"  %{field} = load ptr, ptr %{field}.p",
        ]
    head += [
        _pointer("waves.p", "context", context.WAVES),
        "  %group.waves = load i32, ptr %waves.p",
    ]
    head += [_pointer("resume.p", "wave", layout.RESUME), "  %resume = load i32, ptr %resume.p"]
    head += [f"  store {e.bits} 0, ptr %waiting{gate}" for gate in flow.gates]
    head.append(f"  store {e.bits} 0, ptr %arriving")
    state = _state(e)
    head += [_pointer(f"st{k}", "wave", place) for k, (_, _, place) in enumerate(state)]
    head += ["  %fresh = icmp eq i32 %resume, 0", "  br i1 %fresh, label %first, label %restore"]
    head += ["first:", *_undefined(e, keep), *first.lines]
    head += ["  br label %resume0", "restore:"]
    for k, (slot, kind, _) in enumerate(() if e.in_state else state):
        head.append(f"  %ld{k} = load {kind}, ptr %st{k}, align 4")
        head.append(f"  store {kind} %ld{k}, ptr {slot}")
    cases = " ".join(f"i32 {place + 1}, label %resume{place}" for place in resumes)
    head.append(f"  switch i32 %resume, label %resume0 [ {cases} ]")
    for place in sorted({0, *resumes}):
        head.append(f"resume{place}:")
        head.append(f"  %own{place} = load {e.bits}, ptr %exec")
        head.append(f"  %whole{place} = icmp eq {e.bits} %own{place}, -1")
        whole = "f" if e.both else "m"
        head.append(f"  br i1 %whole{place}, label %{whole}{place}, label %m{place}")
    tail = ["save:"]
    for k, (slot, kind, _) in enumerate(() if e.in_state else state):
        tail += [
            f"  %sv{k} = load {kind}, ptr {slot}",
            f"  store {kind} %sv{k}, ptr %st{k}, align 4",
        ]
    tail += ["  %resume.o = load i32, ptr %resume.slot", "  store i32 %resume.o, ptr %resume.p"]
    tail += [f"  ret i32 {waves.AT_BARRIER}", "finished:", f"  ret i32 {waves.FINISHED}"]
    tail += ["stopped:", f"  ret i32 {waves.ABORTED}", "}"]
    return "\n".join([*head, *e.lines, *tail, *sorted(e.declarations), PROFILES])
