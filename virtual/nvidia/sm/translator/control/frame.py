"""The code around a kernel's blocks: entry, scheduler of lanes, saving and restoring of a warp."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.nvidia.sm.translator.control import stepping
from ugpu.virtual.nvidia.sm.translator.control.flow import Flow
from ugpu.virtual.nvidia.sm.translator.control.graph import Graph
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.shader.text import PROFILES

_MIN = "llvm.vector.reduce.umin.v32i32"
_TURN = 256  # blocks that lanes run while waiting lanes are at lower ones


def _slot_bytes(kind: str) -> int:
    """Return the bytes of a saved register."""
    if kind.startswith("<"):
        element = kind.split(" x ")[1].rstrip(">")
        bits = int(element[1:])
        return 64 if bits == 1 else 32 * bits // 8 if bits >= 16 else 64
    return 64


def module_of(
    k: Kernel, graph: Graph, flow: Flow, name: str, *, quick: bool = False
) -> tuple[str, int]:
    """Return the whole module's IR and the bytes of a warp's state. quick: registers that a warp
    keeps while it waits are always in its state, so that no code moves them."""
    places = stepping.placed(k) if k.stepped else None
    saved, size = _saved(k, flow) if places is None else ((), places.end)
    in_state = saved if quick else () if places is None else places.slots
    at_first = {k.slots[name][0] for name in k.facts.live[0] if name in k.slots}
    if places is not None:
        at_first = {slot for slot, _, _ in places.slots}
    saved = () if quick else saved
    lines = [
        f"define i32 @{name}(ptr %context, ptr noalias %warp) nounwind {{",
        "entry:",
        *_entry(k, in_state, at_first),
        *([] if places is None else stepping.entry(places)),
        *_start(k, flow, saved, _cleared(in_state, at_first)),
        *k.lines,
        *_save(k, flow, saved),
    ]
    if flow.schedules:
        lines += _schedule(k, graph, flow)
    lines += ["aborted:", f"  ret i32 {layout.ABORTED}"]
    lines += ["faulted:", f"  ret i32 {layout.FAULTED}", "}"]
    declarations = set(k.declarations)
    if flow.schedules:
        declarations.add(f"declare i32 @{_MIN}(<32 x i32>)")
        declarations.add("declare i32 @llvm.cttz.i32(i32, i1)")
    declarations.add(f"declare void @{PREFIX}arrive(ptr, i32, i32, i32)")
    parts = [*lines, *k.helpers.values(), *sorted(declarations), PROFILES]
    return "\n".join(parts), -(-size // 64) * 64


def _saved(k: Kernel, flow: Flow) -> tuple[tuple[stepping.Slot, ...], int]:
    """Return the slots of the registers that are live where a warp may resume, and the bytes of a
    warp's state with these."""
    names: set[str] = set()
    blocks = set(flow.resumes)
    if flow.waits and flow.resumes:  # diverged lanes may be anywhere
        blocks |= {n for n, divergent in enumerate(k.facts.divergent) if divergent}
    for block in blocks:
        names |= k.facts.live[block]
    found, at = [], k.held.end
    for slot, kind in sorted(k.slots[name] for name in names if name in k.slots):
        found.append((slot, kind, at))
        at += _slot_bytes(kind)
    return tuple(found), at


def _entry(k: Kernel, in_state: Sequence[stepping.Slot], at_first: Container[str]) -> list[str]:
    """Return the first lines. in_state: registers in the warp's state. at_first: those that may be
    read before they are written."""
    lines = [f"  {slot} = getelementptr i8, ptr %warp, i64 {at}" for slot, _, at in in_state]
    moved = {slot for slot, _, _ in in_state}
    on_stack = [each for each in k.slots.values() if each[0] not in moved]
    lines += [f"  {slot} = alloca {kind}" for slot, kind in on_stack]
    lines += [
        "  %active = alloca i32", "  %alive = alloca i32", "  %next = alloca i32",
        "  %forced = alloca i32", "  %budget = alloca i32", "  %resume = alloca i32",
        "  %turn = alloca i32", "  %favoured = alloca i32", "  %favour = alloca i32",
        "  %places = alloca <32 x i32>",
    ]  # fmt: skip
    for name, offset in (
        ("abort", layout.ABORT), ("stop", layout.STOP), ("tlb", layout.TLB),
        ("all.ids", layout.IDS), ("parameters", layout.PARAMETERS),
    ):  # fmt: skip
        lines.append(f"  %{name}.at = getelementptr i8, ptr %context, i64 {offset}")
        lines.append(f"  %{name} = load ptr, ptr %{name}.at")
    for name, offset in (
        ("lanes", layout.STATE_ACTIVE), ("resume.from", layout.STATE_RESUME),
        ("number", layout.STATE_NUMBER),
    ):  # fmt: skip
        lines.append(f"  %{name}.at = getelementptr i8, ptr %warp, i64 {offset}")
        lines.append(f"  %{name} = load i32, ptr %{name}.at")
    lines += [
        "  %ids.offset = mul i32 %number, 384",
        "  %ids = getelementptr i8, ptr %all.ids, i32 %ids.offset",
        "  %places.saved = getelementptr i8, ptr %warp, i64 " + str(layout.STATE_PLACES),
        "  %next.saved = getelementptr i8, ptr %warp, i64 " + str(layout.STATE_NEXT),
        "  %waiting.saved = getelementptr i8, ptr %warp, i64 " + str(layout.STATE_WAITING),
        "  store i32 %lanes, ptr %active", "  store i32 %lanes, ptr %alive",
        f"  store i32 {layout.ENDED}, ptr %next", "  store i32 0, ptr %forced",
        "  store i32 0, ptr %turn", "  store i32 0, ptr %favoured",
        f"  %budget.at = getelementptr i8, ptr %context, i64 {layout.BUDGET}",
        "  %budget.whole = load i32, ptr %budget.at", "  store i32 %budget.whole, ptr %budget",
    ]  # fmt: skip
    lines += [
        f"  %held{number} = getelementptr i8, ptr %warp, i64 {k.held.place(name)}"
        for name, number in k.held.places.items()
    ]
    return lines + _cleared(on_stack, at_first)


def _cleared(
    slots: Iterable[tuple[str, str, *tuple[int, ...]]], which: Container[str]
) -> list[str]:
    """Return the lines that clear registers."""
    return [
        f"  store {kind} zeroinitializer, ptr {slot}" for slot, kind, *_ in slots if slot in which
    ]


def _fresh_notes(k: Kernel) -> list[str]:
    """Return lines for a warp's start: no product in flight, no register of products fenced."""
    if not k.held.places:
        return []
    at = []
    for table in range(len(k.held.tables)):
        note = k.held.notes + async_layout.TABLE_SIZE * table
        at += [(note, 0), (note + 8, 1)]
    lines = []
    for offset, value in at:
        lines += [f"  %note{offset} = getelementptr i8, ptr %warp, i64 {offset}",
                  f"  store i64 {value}, ptr %note{offset}"]  # fmt: skip
    return lines


def _start(
    k: Kernel, flow: Flow, saved: Sequence[stepping.Slot], cleared: list[str]
) -> list[str]:  # fmt: skip
    fresh = [
        "fresh:",
        "  %lanes.v = bitcast i32 %lanes to <32 x i1>",
        "  %first.places = select <32 x i1> %lanes.v, <32 x i32> zeroinitializer,"
        f" <32 x i32> splat (i32 {layout.ENDED})",
        "  store <32 x i32> %first.places, ptr %places",
        *_fresh_notes(k),
        *cleared,
        "  br label %b0",
    ]
    if not flow.resumes:
        return ["  br label %fresh", *fresh]
    lines = [
        "  %is.fresh = icmp eq i32 %resume.from, 0",
        "  br i1 %is.fresh, label %fresh, label %restore",
        *fresh,
        "restore:",
        "  %places.r = load <32 x i32>, ptr %places.saved, align 64",
        "  store <32 x i32> %places.r, ptr %places",
    ]
    for slot, kind, at in saved:
        name = slot[1:]
        lines += [
            f"  %at.{name} = getelementptr i8, ptr %warp, i64 {at}",
            f"  %in.{name} = load {kind}, ptr %at.{name}, align 4",
            f"  store {kind} %in.{name}, ptr {slot}",
        ]
    cases = " ".join(f"i32 {block + 2}, label %b{block}" for block in sorted(flow.resumes))
    parted = "schedule.again" if flow.schedules else "lost"
    lines.append(f"  switch i32 %resume.from, label %lost [ i32 1, label %{parted} {cases} ]")
    return [*lines, "lost:", "  unreachable"]


def _save(k: Kernel, flow: Flow, saved: Sequence[stepping.Slot]) -> list[str]:
    """Return blocks that save the warp and leave. Resume value: block + 2, or 1: diverged lanes."""
    if not flow.resumes:
        return []
    lines = []
    for label, waiting, code in (
        ("wait.barrier", 1, layout.AT_BARRIER), ("yield", 0, layout.YIELDED),
    ):  # fmt: skip
        lines += [f"{label}:", f"  br label %{label}.go", f"{label}.go:"]
        lines += [f"  %{label}.block = load i32, ptr %resume",
                  f"  %{label}.resume = add i32 %{label}.block, 2",
                  f"  store i32 %{label}.resume, ptr %resume"]  # fmt: skip
        lines += [f"  br label %{label}.leave", f"{label}.leave:"]
        lines += _leave(k, label, saved, waiting, code)
        if not flow.waits and label == "wait.barrier":
            break
    return lines


def _leave(
    k: Kernel, label: str, saved: Sequence[stepping.Slot], waiting: int, code: int
) -> list[str]:
    lines = [
        f"  store i32 {waiting}, ptr %waiting.saved",
        f"  %{label}.places = load <32 x i32>, ptr %places",
        f"  store <32 x i32> %{label}.places, ptr %places.saved, align 64",
        f"  %{label}.alive = load i32, ptr %alive",
        f"  store i32 %{label}.alive, ptr %lanes.at",
        f"  %{label}.to = load i32, ptr %resume",
        f"  store i32 %{label}.to, ptr %resume.from.at",
    ]
    for slot, kind, at in saved:
        name = f"{label}.{slot[1:]}"
        lines += [
            f"  %to.{name} = getelementptr i8, ptr %warp, i64 {at}",
            f"  %out.{name} = load {kind}, ptr {slot}",
            f"  store {kind} %out.{name}, ptr %to.{name}, align 4",
        ]
    if code == layout.AT_BARRIER:
        lines += [
            f"  %id.at = getelementptr i8, ptr %warp, i64 {layout.STATE_BARRIER}",
            "  %id = load i32, ptr %id.at",
            f"  %expected.at = getelementptr i8, ptr %warp, i64 {layout.STATE_EXPECTED}",
            "  %expected = load i32, ptr %expected.at",
            f"  call void @{PREFIX}arrive(ptr %context, i32 %id, i32 32, i32 %expected)",
        ]
    lines.append(f"  ret i32 {code}")
    return lines


def _schedule(k: Kernel, graph: Graph, flow: Flow) -> list[str]:
    """Run the lanes at the lowest block; if there are none, the warp ends or waits."""
    ended = f"splat (i32 {layout.ENDED})"
    turns = flow.waits and flow.resumes
    lines = [
        "schedule:",
        "  %s.places = load <32 x i32>, ptr %places",
        f"  %s.alive = icmp ne <32 x i32> %s.places, {ended}",
        "  %s.alive.bits = bitcast <32 x i1> %s.alive to i32",
        "  store i32 %s.alive.bits, ptr %alive",
        *(_favoured(k) if turns else ()),
        f"  %s.lowest = call i32 @{_MIN}(<32 x i32> %s.places)",
        f"  %s.parked = icmp uge i32 %s.lowest, {layout.AT_GATHER}",
        "  br i1 %s.parked, label %schedule.parked, label %schedule.take",
        "schedule.take:",
        "  %t.1 = insertelement <32 x i32> poison, i32 %s.lowest, i32 0",
        "  %t.v = shufflevector <32 x i32> %t.1, <32 x i32> poison, <32 x i32> zeroinitializer",
        "  %t.same = icmp eq <32 x i32> %s.places, %t.v",
        "  %t.bits = bitcast <32 x i1> %t.same to i32",
        "  store i32 %t.bits, ptr %active",
        f"  %t.others = select <32 x i1> %t.same, <32 x i32> {ended}, <32 x i32> %s.places",
        f"  %t.next = call i32 @{_MIN}(<32 x i32> %t.others)",
        "  store i32 %t.next, ptr %next",
        "  br label %schedule.go",
        "schedule.go:",
        "  %go.to = phi i32 [ %s.lowest, %schedule.take ]"
        + (", [ %f.lowest, %schedule.favoured ]" if turns else ""),
        "  switch i32 %go.to, label %schedule.lost [ "
        + " ".join(f"i32 {n}, label %b{n}" for n in range(len(graph.blocks)))
        + " ]",
        "schedule.lost:",
        "  unreachable",
        "schedule.parked:",
        f"  %p.over = icmp eq i32 %s.lowest, {layout.ENDED}",
        "  br i1 %p.over, label %schedule.over, label %schedule.waits",
        "schedule.over:",
        f"  ret i32 {layout.FINISHED}",
        "schedule.waits:",
        f"  %w.barrier = icmp uge i32 %s.lowest, {layout.AT_BARRIER_PLACE}",
        "  br i1 %w.barrier, label %schedule.barrier, label %schedule.gather",
        "schedule.gather:",
        # No other lanes can run: those at the lowest place continue if they are sufficient.
        f"  %g.place = sub i32 %s.lowest, {layout.AT_GATHER}",
        "  %g.1 = insertelement <32 x i32> poison, i32 %s.lowest, i32 0",
        "  %g.v = shufflevector <32 x i32> %g.1, <32 x i32> poison, <32 x i32> zeroinitializer",
        "  %g.same = icmp eq <32 x i32> %s.places, %g.v",
        "  %g.2 = insertelement <32 x i32> poison, i32 %g.place, i32 0",
        "  %g.w = shufflevector <32 x i32> %g.2, <32 x i32> poison, <32 x i32> zeroinitializer",
        "  %g.new = select <32 x i1> %g.same, <32 x i32> %g.w, <32 x i32> %s.places",
        "  store <32 x i32> %g.new, ptr %places",
        "  store i32 1, ptr %forced",
        "  br label %schedule",
        "schedule.barrier:",
    ]
    if not flow.resumes:
        return [*lines, "  unreachable"]
    lines += [
        # All live lanes wait at barriers: their places lose the mark, and the warp waits.
        "  %b.below = icmp ult <32 x i32> %s.places, splat (i32 " + str(layout.ENDED) + ")",
        f"  %b.plain = and <32 x i32> %s.places, splat (i32 {layout.AT_BARRIER_PLACE - 1})",
        "  %b.new = select <32 x i1> %b.below, <32 x i32> %b.plain, <32 x i32> %s.places",
        "  store <32 x i32> %b.new, ptr %places",
        "  store i32 1, ptr %resume",
        "  br label %wait.barrier.leave",
        "schedule.again:",
        "  br label %schedule",
    ]
    if turns:
        lines += _take_turns(k)
    return lines


def _favoured(k: Kernel) -> list[str]:
    """Let lanes that were given a turn run for some blocks, even if others are at lower ones."""
    ended = f"splat (i32 {layout.ENDED})"
    may = [n for n, divergent in enumerate(k.facts.divergent) if divergent]
    cases = " ".join(f"i32 {n}, label %schedule.favoured" for n in may)
    return [
        "  %f.lanes = load i32, ptr %favoured",
        "  %f.none = icmp eq i32 %f.lanes, 0",
        "  br i1 %f.none, label %schedule.usual, label %schedule.turn, !prof !0",
        "schedule.turn:",
        "  %f.mask = bitcast i32 %f.lanes to <32 x i1>",
        f"  %f.places = select <32 x i1> %f.mask, <32 x i32> %s.places, <32 x i32> {ended}",
        f"  %f.lowest = call i32 @{_MIN}(<32 x i32> %f.places)",
        "  %f.left = load i32, ptr %favour",
        "  %f.less = sub i32 %f.left, 1",
        "  store i32 %f.less, ptr %favour",
        "  %f.over = icmp eq i32 %f.left, 0",
        f"  %f.to = select i1 %f.over, i32 {layout.ENDED}, i32 %f.lowest",
        f"  switch i32 %f.to, label %schedule.spent [ {cases} ]",
        "schedule.spent:",
        "  store i32 0, ptr %favoured",
        "  br label %schedule.usual",
        "schedule.favoured:",
        "  %f.1 = insertelement <32 x i32> poison, i32 %f.lowest, i32 0",
        "  %f.v = shufflevector <32 x i32> %f.1, <32 x i32> poison, <32 x i32> zeroinitializer",
        "  %f.same = icmp eq <32 x i32> %s.places, %f.v",
        "  %f.bits = bitcast <32 x i1> %f.same to i32",
        "  store i32 %f.bits, ptr %active",
        "  store i32 0, ptr %next",
        "  br label %schedule.go",
        "schedule.usual:",
    ]


def _take_turns(k: Kernel) -> list[str]:
    """Handle a warp with diverged lanes that has waited long: give turns to lanes, then warps."""
    may = [n for n, divergent in enumerate(k.facts.divergent) if divergent]
    cases = " ".join(f"i32 {n}, label %yield.parted.give" for n in may)
    return [
        "yield.parted:",
        "  store i32 %budget.whole, ptr %budget",
        "  store i32 0, ptr %favoured",
        "  %o.places = load <32 x i32>, ptr %places",
        f"  %o.run.v = icmp ult <32 x i32> %o.places, splat (i32 {layout.AT_GATHER})",
        "  %o.run = bitcast <32 x i1> %o.run.v to i32",
        "  %o.active = load i32, ptr %active",
        "  %o.others = xor i32 %o.active, -1",
        "  %o.may = and i32 %o.run, %o.others",
        "  br label %yield.parted.next",
        "yield.parted.next:",
        "  %o.turn = load i32, ptr %turn",
        "  %o.turn.w = zext i32 %o.turn to i64",
        "  %o.past = shl i64 -1, %o.turn.w",
        "  %o.past.n = trunc i64 %o.past to i32",
        "  %o.left = and i32 %o.may, %o.past.n",
        "  %o.none = icmp eq i32 %o.left, 0",
        "  br i1 %o.none, label %yield.parted.leave, label %yield.parted.some",
        "yield.parted.some:",
        "  %o.lane = call i32 @llvm.cttz.i32(i32 %o.left, i1 true)",
        "  %o.after = add i32 %o.lane, 1",
        "  store i32 %o.after, ptr %turn",
        "  %o.place = extractelement <32 x i32> %o.places, i32 %o.lane",
        f"  switch i32 %o.place, label %yield.parted.next [ {cases} ]",
        "yield.parted.give:",
        "  %o.1 = insertelement <32 x i32> poison, i32 %o.place, i32 0",
        "  %o.v = shufflevector <32 x i32> %o.1, <32 x i32> poison, <32 x i32> zeroinitializer",
        "  %o.same = icmp eq <32 x i32> %o.places, %o.v",
        "  %o.bits = bitcast <32 x i1> %o.same to i32",
        "  store i32 %o.bits, ptr %favoured",
        f"  store i32 {_TURN}, ptr %favour",
        "  br label %schedule",
        "yield.parted.leave:",
        "  store i32 1, ptr %resume",
        "  br label %yield.leave",
    ]
