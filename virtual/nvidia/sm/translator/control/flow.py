"""Control flow of lanes between blocks: branches, waiting, barriers and ends.

A warp runs one block at a time, with the lanes that are at it. Where lanes diverge, the place where
each continues is stored, and the scheduler runs the lanes at the lowest block; see `graph` for why
they meet again. Between blocks that all lanes run together there is no scheduling.
Source: PTX ISA 8.x, "Control Flow Instructions" and "Parallel Synchronization and Communication
Instructions".
"""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Operand
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.nvidia.sm.translator.access import cluster
from ugpu.virtual.nvidia.sm.translator.access.bulk import groups_left, published
from ugpu.virtual.nvidia.sm.translator.control import stepping
from ugpu.virtual.nvidia.sm.translator.control.graph import EXIT, Graph, gathers
from ugpu.virtual.nvidia.sm.translator.control.waiting import Waits
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number


class Flow:
    """Emit the control flow of one kernel."""

    def __init__(self, kernel: Kernel, graph: Graph, waits: Waits) -> None:
        self.k = kernel
        self.graph = graph
        self.waits = waits
        self.resumes: set[int] = set()
        self.schedules = False

    # -- edges -----------------------------------------------------------------------------------

    def go(self, target: int) -> None:
        """Continue all running lanes at a block."""
        k = self.k
        if target == EXIT:
            self.end_lanes()
            return
        if target <= k.block:
            self._poll(target)
        if not k.divergent:
            k.do(f"br label %b{target}")
            return
        # Other lanes may wait at or before the target.
        waiting = k.value("load i32, ptr %next")
        before = k.value(f"icmp ult i32 {target}, {waiting}")
        wait = k.new_label("wait")
        k.do(f"br i1 {before}, label %b{target}, label %{wait}")
        k.begin(wait)
        self._note_places([(target, k.active())])
        self._schedule()

    def _schedule(self) -> None:
        self.schedules = True
        self.k.do("br label %schedule")

    def _note_places(self, places: list[tuple[int, str]]) -> None:
        """Store where lanes continue: a list of (block, lanes as i32)."""
        k = self.k
        vector = k.value("load <32 x i32>, ptr %places")
        for place, lanes in places:
            mask = k.mask_vector(lanes)
            vector = k.value(
                f"select <32 x i1> {mask}, <32 x i32> splat (i32 {place}), <32 x i32> {vector}"
            )
        k.do(f"store <32 x i32> {vector}, ptr %places")

    def _poll(self, target: int) -> None:
        """Check the abort flags before jumping back to the start of a loop."""
        k = self.k
        self._attend()
        if (k.block, target) not in self.waits.edges:
            return
        left = k.value(f"sub i32 {k.value('load i32, ptr %budget')}, 1")
        k.do(f"store i32 {left}, ptr %budget")
        spent, on = k.new_label("spent"), k.new_label("on")
        empty = k.value(f"icmp eq i32 {left}, 0")
        k.do(f"br i1 {empty}, label %{spent}, label %{on}, !prof !1")
        k.begin(spent)
        self.resumes.add(target)
        if k.divergent:
            self._note_places([(target, k.active())])
            self.schedules = True
            k.do("br label %yield.parted")
        else:
            k.do(f"store i32 {target}, ptr %resume")
            k.do("br label %yield")
        k.begin(on)

    def end_lanes(self) -> None:
        """End the running lanes."""
        k = self.k
        if not k.divergent:
            k.do(f"ret i32 {layout.FINISHED}")
            return
        self._note_places([(layout.ENDED, k.active())])
        self._schedule()

    def part(self, condition: Value, taken: int, other: int) -> None:
        """Send the lanes for which the condition holds to `taken`, the rest to `other`."""
        k = self.k
        if condition.uniform:
            yes, no = k.new_label("yes"), k.new_label("no")
            k.do(f"br i1 {condition.text}, label %{yes}, label %{no}")
            k.begin(yes)
            self.go(taken)
            k.begin(no)
            self.go(other)
            return
        active = k.active()
        bits = k.mask_bits(condition)
        going = bits if active == "-1" else k.value(f"and i32 {bits}, {active}")
        staying = k.value(f"xor i32 {going}, {active}")
        nobody = k.value(f"icmp eq i32 {going}, 0")
        no, some = k.new_label("no"), k.new_label("some")
        yes, both = k.new_label("yes"), k.new_label("both")
        k.do(f"br i1 {nobody}, label %{no}, label %{some}")
        k.begin(some)
        everybody = k.value(f"icmp eq i32 {staying}, 0")
        k.do(f"br i1 {everybody}, label %{yes}, label %{both}")
        k.begin(yes)
        self.go(taken)
        k.begin(no)
        self.go(other)
        k.begin(both)
        if min(taken, other) <= k.block and min(taken, other) != EXIT:
            self._attend()
        places = [(layout.ENDED if target == EXIT else target, lanes)
                  for target, lanes in ((taken, going), (other, staying))]  # fmt: skip
        self._note_places(places)
        self._schedule()

    def _attend(self) -> None:
        """Check the flags; if one is set, end, or yield for as long as required."""
        k = self.k
        asked = k.value("load atomic i32, ptr %abort monotonic, align 4")
        halted = k.value("load atomic i32, ptr %stop monotonic, align 4")
        any_ = k.value(f"icmp ne i32 {k.value(f'or i32 {asked}, {halted}')}, 0")
        attend, on = k.new_label("attend"), k.new_label("on")
        k.do(f"br i1 {any_}, label %{attend}, label %{on}, !prof !1")
        k.begin(attend)
        k.declarations.add(f"declare i32 @{PREFIX}attend(ptr) cold")
        stop = k.value(f"icmp ne i32 {k.value(f'call i32 @{PREFIX}attend(ptr %context)')}, 0")
        k.do(f"br i1 {stop}, label %aborted, label %{on}")
        k.begin(on)

    # -- the ends of blocks ----------------------------------------------------------------------

    def finish(self, number_: int) -> None:
        """Emit the end of a block."""
        k = self.k
        block = self.graph.blocks[number_]
        end = block.end
        if end is None:
            self.go(block.successors[0])
            return
        k.now = end
        if k.stepped:
            stepping.look(k, end)
        condition = self._guard(end)
        if end.name in ("bra", "ret", "exit"):
            if condition is None:
                self.go(block.successors[0])
            else:
                self.part(condition, *block.successors)
        elif end.name == "brx":
            self._table(end, condition, block.successors)
        elif end.name in ("trap", "brkpt"):
            self._trap(end, condition, block.successors)
        elif end.name == "wgmma":
            self._products(end, condition, block.successors[0])
        elif end.name in ("bar", "barrier"):
            self._barrier(end, condition, block.successors[0])
        else:
            raise k.unsupported()

    def _guard(self, i: Instruction) -> Value | None:
        if i.guard is None:
            return None
        value = self.k.register(i.guard)
        return self.k.negate(value) if i.negated else value

    def _trap(self, i: Instruction, condition: Value | None, successors: list[int]) -> None:
        k = self.k
        code = layout.TRAPPED if i.name == "trap" else layout.BREAKPOINT
        lanes = k.active()
        if condition is None:
            k.raise_fault(lanes, str(code))
            return
        wrong = k.value(f"and i32 {k.mask_bits(condition)}, {lanes}")
        k.fault_if(wrong, code)
        self.go(successors[-1])

    def _table(self, i: Instruction, condition: Value | None, successors: list[int]) -> None:
        k = self.k
        index = k.source(i.operands[0], "u32")
        targets = successors if condition is None else successors[:-1]
        if index.uniform and (condition is None or condition.uniform):
            labels = [k.new_label("case") for _ in targets]
            other = k.new_label("beyond")
            rest = None
            if condition is not None:
                rest, on = k.new_label("rest"), k.new_label("on")
                k.do(f"br i1 {condition.text}, label %{on}, label %{rest}")
                k.begin(on)
            cases = " ".join(f"i32 {n}, label %{label}" for n, label in enumerate(labels))
            k.do(f"switch i32 {index.text}, label %{other} [ {cases} ]")
            for label, target in zip(labels, targets, strict=True):
                k.begin(label)
                self.go(target)
            k.begin(other)
            k.raise_fault(k.active(), str(layout.TRAPPED))
            if rest is not None:
                k.begin(rest)
                self.go(successors[-1])
            return
        active = k.active()
        taking = active
        if condition is not None:
            taking = k.value(f"and i32 {active}, {k.mask_bits(condition)}")
        vector = k.vec(index)
        beyond = k.mask_bits(k.cmp("uge", k.varying(index), number("i32", len(targets))))
        k.fault_if(k.value(f"and i32 {beyond}, {taking}"), layout.TRAPPED)
        if min(successors) <= k.block:
            self._attend()
        places = []
        for n, target in enumerate(targets):
            same = k.mask_bits(k.cmp("eq", Value(vector, "i32", False), number("i32", n)))
            lanes = k.value(f"and i32 {same}, {taking}")
            places.append((layout.ENDED if target == EXIT else target, lanes))
        if condition is not None:
            places.append((successors[-1], k.value(f"xor i32 {taking}, {active}")))
        self._note_places(places)
        self._schedule()

    # -- waiting ---------------------------------------------------------------------------------

    def gather(self, number_: int) -> None:
        """Wait until the lanes in an instruction's mask are at it, before the lanes execute it.

        Does nothing where all lanes run together.
        """
        k = self.k
        code = self.graph.blocks[number_].code
        if not (k.divergent and code and gathers(code[0])):
            return
        k.now = code[0]
        active = k.active()
        wanted = self._members(code[0])
        bits = self._union(wanted, active)
        alive = k.value("load i32, ptr %alive")
        missing = k.value(f"and i32 {bits}, {alive}")
        missing = k.value(f"and i32 {missing}, {k.value(f'xor i32 {active}, -1')}")
        forced = k.value("load i32, ptr %forced")
        k.do("store i32 0, ptr %forced")
        complete = k.value(f"icmp eq i32 {missing}, 0")
        here, wait = k.new_label("here"), k.new_label("wait")
        k.do(f"br i1 {complete}, label %{here}, label %{wait}")
        k.begin(wait)
        again = k.value(f"icmp ne i32 {forced}, 0")
        lost, park = k.new_label("lost"), k.new_label("park")
        k.do(f"br i1 {again}, label %{lost}, label %{park}, !prof !1")
        k.begin(lost)
        if code[0].name in ("bar", "barrier"):  # lanes may wait at several places
            k.do(f"br label %{here}")
        else:
            k.raise_fault(missing, str(layout.NOT_TOGETHER))
        k.begin(park)
        self._note_places([(number_ | layout.AT_GATHER, active)])
        self._schedule()
        k.begin(here)

    def _union(self, members: Value, active: str) -> str:
        """Return the union of the masks of all running lanes."""
        k = self.k
        if members.uniform:
            return members.text
        mask = k.mask_vector(active)
        only = k.value(
            f"select <32 x i1> {mask}, <32 x i32> {members.text}, <32 x i32> zeroinitializer"
        )
        return k.call("i32", "llvm.vector.reduce.or.v32i32", ("<32 x i32>", only))

    def _members(self, i: Instruction) -> Value:
        operand = member_mask(i)
        return number("i32", -1) if operand is None else self.k.source(operand, "u32")

    def _barrier(self, i: Instruction, condition: Value | None, successor: int) -> None:
        """Emit bar.sync, bar.arrive, bar.red and barrier.cta, for all warps of the group."""
        k = self.k
        kinds = set(i.modifiers) - {"cta", "aligned"}
        if condition is not None and not condition.uniform:
            raise k.unsupported("a barrier under a predicate that differs by lane")
        if kinds == {"arrive"}:
            self._arrive(i, condition, successor)
            return
        reduces = "red" in kinds
        if kinds != {"sync"} and "cluster" not in kinds and not reduces:
            raise k.unsupported()
        skip = None
        if condition is not None:
            skip, on = k.new_label("skip"), k.new_label("on")
            k.do(f"br i1 {condition.text}, label %{on}, label %{skip}")
            k.begin(on)
        if "cluster" in kinds:
            self._cluster(kinds, successor)
        else:
            published(k)
            operands = i.operands[:-1] if reduces else i.operands
            identity, count = self._barrier_operands(operands)
            if reduces:
                self._contribute(i, identity)
            self._wait_at(identity.text, count.text, successor)
        if skip is not None:
            k.begin(skip)
            self.go(successor)

    def _contribute(self, i: Instruction, identity: Value) -> None:
        """Count the lanes that decide bar.red: where the condition holds; for .and, where not."""
        k = self.k
        if not {"popc", "and", "or"} & set(i.modifiers):
            raise k.unsupported()
        holds = k.mask_bits(k.source(i.operands[-1], "pred"))
        if "and" in i.modifiers:
            holds = k.value(f"xor i32 {holds}, -1")
        lanes = k.value(f"and i32 {holds}, {k.active()}")
        count = k.call("i32", "llvm.ctpop.i32", ("i32", lanes))
        offset = k.value(f"mul i32 {identity.text}, 8")
        at = k.value(f"getelementptr i8, ptr %context, i32 {offset}")
        at = k.value(f"getelementptr i8, ptr {at}, i64 {layout.BARRIERS + 4}")
        total = k.value(f"add i32 {k.value(f'load i32, ptr {at}')}, {count}")
        k.do(f"store i32 {total}, ptr {at}")

    def _wait_at(self, barrier: str, expected: str, successor: int) -> None:
        """Make the running lanes wait at a barrier, then continue."""
        k = self.k
        for offset, value in (
            (layout.STATE_BARRIER, barrier), (layout.STATE_EXPECTED, expected)
        ):  # fmt: skip
            at = k.value(f"getelementptr i8, ptr %warp, i64 {offset}")
            k.do(f"store i32 {value}, ptr {at}")
        self.resumes.add(successor)
        if k.divergent:
            self._note_places([(successor | layout.AT_BARRIER_PLACE, k.active())])
            self._schedule()
        else:
            k.do(f"store i32 {successor}, ptr %resume")
            k.do("br label %wait.barrier")

    def _cluster(self, kinds: set[str], successor: int) -> None:
        """Emit barrier.cluster: lanes arrive, or wait for the phase that they arrived in."""
        if "arrive" in kinds:
            cluster.arrive(self.k, "relaxed" not in kinds)
            self.go(successor)
        elif "wait" in kinds:
            over, on = self.k.new_label("over"), self.k.new_label("on")
            self.k.do(f"br i1 {cluster.passes(self.k)}, label %{over}, label %{on}")
            self.k.begin(over)
            self.go(successor)
            self.k.begin(on)
            cluster.wait(self.k)
            self._wait_at(str(layout.OF_CLUSTER), "0", successor)
        else:
            raise self.k.unsupported()

    def _products(self, i: Instruction, condition: Value | None, successor: int) -> None:
        """Emit wgmma.wait_group: four warps meet, then their products are computed."""
        k = self.k
        if condition is not None:
            raise k.unsupported("under a predicate")
        left = groups_left(k, i)
        k.call("void", f"{PREFIX}product_wait", ("ptr", "%context"), ("i64", str(left)))
        at = k.value(f"getelementptr i8, ptr %context, i64 {layout.FAULT_INDEX}")
        k.do(f"store i32 {i.index}, ptr {at}")
        group = k.value(f"lshr i32 {k.context(layout.WARP, 'i32')}, 2")
        self._wait_at(k.value(f"add i32 {group}, {layout.NAMED}"), "128", successor)

    def _barrier_operands(self, operands: Sequence[Operand]) -> tuple[Value, Value]:
        k = self.k
        if not 1 <= len(operands) <= 2:
            raise k.bad("expected a barrier and a number of threads")
        identity = self._first_active(operands[0])
        count = self._first_active(operands[1]) if len(operands) == 2 else number("i32", 0)
        beyond = k.value(f"icmp ugt i32 {identity.text}, 15")
        k.fault_if(k.value(f"zext i1 {beyond} to i32"), layout.TRAPPED)
        return identity, count

    def _first_active(self, operand: Operand) -> Value:
        """Return the first running lane's value; all lanes must have the same."""
        k = self.k
        value = k.source(operand, "u32")
        if value.uniform:
            return value
        lane = k.call("i32", "llvm.cttz.i32", ("i32", k.active()), ("i1", "false"))
        lane = k.value(f"and i32 {lane}, 31")
        return Value(k.value(f"extractelement <32 x i32> {value.text}, i32 {lane}"), "i32", True)

    def _arrive(self, i: Instruction, condition: Value | None, successor: int) -> None:
        k = self.k
        if condition is not None:
            raise k.unsupported("bar.arrive under a predicate")
        if len(i.operands) != 2:
            raise k.bad("bar.arrive requires the number of threads")
        published(k)
        identity, count = self._barrier_operands(i.operands)
        k.call(
            "void", f"{PREFIX}arrive", ("ptr", "%context"), ("i32", identity.text), ("i32", "32"),
            ("i32", count.text),
        )  # fmt: skip
        self.go(successor)


def member_mask(i: Instruction) -> Operand | None:
    """Return the operand that names the lanes which execute an instruction together, if any."""
    if i.name in ("shfl", "vote", "match", "redux", "elect"):
        return i.operands[-1] if "sync" in i.modifiers and i.operands else None
    if i.name in ("bar", "barrier"):
        return i.operands[0] if i.operands else None
    return None
