"""The rules that every kernel must keep; checked after lowering, before anything is emitted.

LLVM's back ends abort the process on IR they cannot handle, so a broken rule must be found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ugpu.compiler.dtype import (
    DType,
    bfloat16,
    bool_,
    float32,
    int8,
    int32,
    is_narrow,
    uint8,
    uint32,
    uint64,
)
from ugpu.compiler.expression.algebra import Index, Range, Validity
from ugpu.compiler.expression.lookup import Lookup, atoms
from ugpu.compiler.expression.value import OPS, Load, Memory, Value, unseen, walk
from ugpu.compiler.kernel.ir import (
    TILE_BYTES,
    TILE_PRODUCTS,
    TILE_ROWS,
    TILES,
    Await,
    Barrier,
    Bulk,
    Close,
    Fetch,
    GroupProduct,
    If,
    Kernel,
    Loop,
    Prefetch,
    Settle,
    Signal,
    Statement,
    Store,
    TileStep,
)
from ugpu.compiler.kernel.matrix_units import GROUP_UNITS, MATRICES, ROW, UNITS

UNLOWERED = frozenset(("reduce", "along", "function", "number", "results"))
ELEMENT_OPS = ("load", "const", "cast", "bitcast", "where", "gate", "extract", "pack", "broadcast",
               "shuffle", "compress", "dot2", "dot4", "narrow", "matrix", "exchange",
               "matrices")  # fmt: skip
# operations whose lanes differ from their sources'
MIXED = ("extract", "pack", "broadcast", "shuffle", "count", "dot2", "dot4", "matrix")
WHOLE_WAVES = ("matrix", "exchange", "matrices")  # operations of all threads of a wave together
GIVEN = ("global", "by_value")  # spaces of parameters
GROUP = 128  # threads that share a GroupProduct
EVERY, GROUPS, SOME = 2, 1, 0  # which threads reach a statement together: all, whole groups
# the threads that must reach a statement together, and the rule
TOGETHER: Mapping[type, tuple[int, str]] = {
    Barrier: (EVERY, "a barrier is reached by all threads or none"),
    Await: (EVERY, "all threads wait or none"),
    Close: (EVERY, "all threads close a group or none"),
    GroupProduct: (GROUPS, "a group's unit works for whole groups"),
    Settle: (GROUPS, "whole groups wait for units"),
}
# types and lanes of the sources of an operation, and of its result
VECTORS: Mapping[str, tuple[tuple[DType, ...], tuple[int, ...]]] = {
    "dot2": ((bfloat16, bfloat16, float32, float32), (32, 32, 16, 16)),
    "dot4": ((uint8, int8, int32, int32), (64, 64, 16, 16)),
    "narrow": ((float32, bfloat16), (16, 16)),
}


class BrokenKernel(AssertionError):
    """A pass made a kernel that breaks a rule: a bug in the compiler, not in the caller."""


def _require(holds: bool, rule: str, where: object) -> None:
    if not holds:
        raise BrokenKernel(f"{rule}: {where}")


def verify(kernel: Kernel) -> Kernel:
    """Check every rule; return the kernel, or raise BrokenKernel with the rule."""
    _require(
        len(kernel.grid) == 3 and all(0 < g < 1 << 31 for g in kernel.grid), "grid", kernel.grid
    )
    _require(0 < kernel.block <= 1024, "block", kernel.block)
    _require(kernel.grid[0] % kernel.cluster == 0, "whole clusters", kernel.grid)
    memories = (*kernel.parameters, *kernel.locals)
    _require(
        len({m.name for m in memories}) == len(memories), "memories have distinct names", memories
    )
    _require(all(m.space in GIVEN for m in kernel.parameters), "parameters are given", memories)
    _require(all(m.space not in GIVEN for m in kernel.locals), "locals are not given", memories)
    for memory in kernel.locals:
        whole = memory.space == "local" and memory.count * memory.dtype.itemsize % (8 * ROW) == 0
        _require(whole or not memory.swizzled, "whole blocks of swizzled rows", memory)
    bound = {kernel.group(axis).name: kernel.grid[axis] for axis in range(3)}
    bound["thread"] = kernel.block
    _Checker(kernel, frozenset(memories)).statements(kernel.body, bound, EVERY)
    return kernel


class _Checker:
    def __init__(self, kernel: Kernel, memories: frozenset[Memory]) -> None:
        self.kernel = kernel
        self.memories = memories
        # Values, by identity, already checked here: statements share them, and names that a body
        # binds are also bound in the bodies inside it.
        self.seen: set[int] = set()

    def statements(self, body: Iterable[Statement], bound: dict[str, int], together: int) -> None:
        for statement in body:
            wanted, rule = TOGETHER.get(type(statement), (SOME, ""))
            _require(together >= wanted, rule, self.kernel.name)
            if isinstance(statement, Store):
                self.store(statement, bound, together)
            elif isinstance(statement, Prefetch):
                parameter = statement.memory in self.kernel.parameters
                _require(parameter, "prefetches are of parameters", statement)
                self.access(statement.memory, statement.index, 1, bound)
            elif isinstance(statement, TileStep):
                self.tile(statement, bound)
            elif isinstance(statement, Fetch):
                self.fetch(statement, bound)
            elif isinstance(statement, GroupProduct):
                self.group_product(statement, bound)
            elif isinstance(statement, Settle | Await):
                _require(statement.pending >= 0, "how many may be pending", statement)
            elif isinstance(statement, Signal):
                self.signal(statement, bound)
            elif isinstance(statement, Bulk):
                self.bulk(statement, bound)
            elif isinstance(statement, If):
                self.conditions(statement.conditions, bound)
                inside = min(together, self.together(statement.conditions))
                self.nested(statement.body, bound, inside, fresh=inside != together)
            elif isinstance(statement, Loop):
                self.loop(statement, bound, together)

    def together(self, conditions: Validity) -> int:
        """Return which threads stay together under the conditions."""
        divided = [c for c in conditions if any(r.kind == "thread" for r in c.ranges())]
        if not divided:
            return EVERY
        from_memory = any(isinstance(atom, Lookup) for c in divided for atom in atoms(c))
        if from_memory or any(len(c.ranges()) > 1 for c in divided):
            return SOME
        threads = range(self.kernel.block)
        inside = [all(c.evaluate({"thread": t}) >= 0 for c in divided) for t in threads]
        groups = [inside[first : first + GROUP] for first in range(0, len(inside), GROUP)]
        whole = all(len(each) == GROUP for each in groups if any(each))
        return GROUPS if whole and all(len(set(each)) == 1 for each in groups) else SOME

    def loop(self, loop: Loop, bound: dict[str, int], together: int) -> None:
        variable = loop.range
        _require(variable.kind == "loop", "a loop counts a loop range", variable)
        _require(variable.name not in bound, "a loop's range is bound once", variable)
        divided = False
        if loop.bound is not None:
            self.index(loop.bound, bound)
            divided = any(r.kind == "thread" for r in loop.bound.ranges())
            if divided:
                together = SOME
        inside = {**bound, variable.name: variable.size}
        self.nested(loop.body, inside, together, fresh=divided)

    def nested(
        self, body: Iterable[Statement], bound: dict[str, int], together: int, *, fresh: bool
    ) -> None:
        """Check a body. fresh: other threads run it, so all its values are checked again."""
        before = self.seen
        self.seen = set() if fresh else set(before)
        self.statements(body, bound, together)
        self.seen = before

    def store(self, store: Store, bound: dict[str, int], together: int) -> None:
        memory = store.memory
        _require(memory in self.memories, "a store names a memory of the kernel", memory)
        _require(store.value.dtype is memory.dtype, "a store has its memory's type", store)
        _require(
            memory.space not in GIVEN or memory in self.kernel.parameters[: self.kernel.outputs],
            "only the first parameter is written",
            memory,
        )
        self.access(memory, store.index, store.value.lanes, bound)
        for node in unseen(store.value, self.seen):
            self.value(node, bound)
            if node.op in WHOLE_WAVES:
                _require(together >= GROUPS, "this is for whole waves", self.kernel.name)

    def tile(self, step: TileStep, bound: dict[str, int]) -> None:
        tiles = (step.tile, *(step.factors if step.operation == "multiply" else ()))
        known = step.operation in ("zero", "load", "stream", "store", "multiply")
        known = known and (step.kind in TILE_PRODUCTS) == (step.operation == "multiply")
        _require(known and all(0 <= tile < TILES for tile in tiles), "a step of tiles", step)
        if step.operation in ("load", "stream", "store"):
            assert step.memory is not None and step.index is not None, step
            _require(step.memory in self.memories, "a tile is of a memory of the kernel", step)
            _require(step.memory.space == "local", "tiles are of local memory", step)
            width = TILE_BYTES // step.memory.dtype.itemsize
            _require(step.pitch >= width, "rows of a tile lie apart", step)
            self.access(step.memory, step.index, (TILE_ROWS - 1) * step.pitch + width, bound)

    def fetch(self, fetch: Fetch, bound: dict[str, int]) -> None:
        memory, source = fetch.memory, fetch.source
        whole = fetch.lanes * memory.dtype.itemsize == 16
        _require(memory.space == "local" and memory in self.memories, "fetches go to local", fetch)
        _require(source.memory in self.kernel.parameters, "fetches are of parameters", fetch)
        _require(source.memory.dtype is memory.dtype, "fetches keep the type", fetch)
        aligned = all(i.multiple() % fetch.lanes == 0 for i in (fetch.index, source.index))
        _require(whole and aligned, "a fetch moves 16 aligned bytes", fetch)
        self.access(memory, fetch.index, fetch.lanes, bound)
        self.index(source.index, bound)
        self.conditions(source.conditions, bound)

    def signal(self, signal: Signal, bound: dict[str, int]) -> None:
        known = signal.operation in ("begin", "expect", "arrive", "wait")
        _require(known, "a step with barrier objects", signal)
        self.barriers(signal.memory, signal.index, bound)
        self.index(signal.number, bound)
        if signal.group is not None:
            self.index(signal.group, bound)
            near = signal.group.low >= 0 and signal.group.high < self.kernel.cluster
            _require(near and signal.operation == "arrive", "a group of the cluster", signal)
        parity = signal.operation != "wait" or (signal.number.low >= 0 and signal.number.high <= 1)
        _require(parity, "a phase is named by its parity", signal)
        counted = signal.number.is_constant and 0 < signal.number.constant < 1 << 20
        _require(counted or signal.operation == "wait", "arrivals and bytes in a phase", signal)

    def barriers(self, memory: Memory, index: Index, bound: dict[str, int]) -> None:
        """PTX ISA, "mbarrier": an opaque object of 64 bits at a multiple of 8 bytes."""
        _require(memory in self.memories, "barrier objects are of the kernel", memory)
        fits = memory.space == "local" and memory.dtype is uint64
        _require(fits, "barrier objects are 64 bits of local memory", memory)
        self.access(memory, index, 1, bound)

    def bulk(self, bulk: Bulk, bound: dict[str, int]) -> None:
        memory, width = bulk.memory, 16 // bulk.memory.dtype.itemsize
        _require(memory.space == "local" and memory in self.memories, "copies go to local", bulk)
        _require(bulk.source in self.kernel.parameters, "copies are of parameters", bulk)
        _require(bulk.source.dtype is memory.dtype, "copies keep the type", bulk)
        _require(0 < bulk.groups <= self.kernel.cluster, "copies go to groups of the cluster", bulk)
        aligned = all(i.multiple() % width == 0 for i in (bulk.index, bulk.start))
        whole = bulk.count > 0 and bulk.count % width == 0
        _require(whole and aligned, "a copy moves aligned multiples of 16 bytes", bulk)
        self.access(memory, bulk.index, bulk.count, bound)
        self.index(bulk.start, bound)
        inside = bulk.start.low >= 0 and bulk.start.high + bulk.count <= bulk.source.count
        _require(inside, "a copy stays inside its source", bulk)
        self.barriers(bulk.signal, bulk.place, bound)

    def group_product(self, product: GroupProduct, bound: dict[str, int]) -> None:
        unit = GROUP_UNITS.get(product.unit)
        _require(unit is not None, "a group's unit", product)
        assert unit is not None
        _require(unit.turns or not any(product.turned), "a unit that takes turned rows", product)
        _require(product.columns in range(8, 257, 8), "columns of a group's unit", product)
        totals = product.totals
        _require(totals.dtype is unit.total and totals.lanes == 1, "totals of a group", totals)
        for tile, *places in product.steps:
            last = (tile + 1) * product.columns // 2
            _require(tile >= 0 and last <= totals.count, "totals of a tile", product)
            for memory, index in zip((product.left, product.right), places, strict=True):
                fits = memory.dynamic and memory.dtype is unit.element
                _require(fits, "a group's unit reads a ring of its type", memory)
                self.access(memory, index, 1, bound)

    def access(self, memory: Memory, index: Index, lanes: int, bound: dict[str, int]) -> None:
        self.index(index, bound)
        if memory.space == "register":
            _require(index.is_constant, "registers are indexed by constants", memory)
            _require(0 <= index.constant < memory.count, "a register index is in range", index)
            _require(lanes == memory.lanes, "a register is accessed whole", memory)
        elif memory.space == "by_value":
            _require(index.is_constant and not index.constant, "a number has one element", memory)
            _require(lanes == 1 and memory.count == 1, "a number is a scalar", memory)
        elif memory.space == "local":
            inside = index.low >= 0 and index.high + lanes <= memory.count
            _require(inside, f"a local access stays inside {memory}", index)

    def memory(self, memory: Memory, bound: dict[str, int]) -> None:
        """Check a memory that is loaded from."""
        for each in memory.among or (memory,):
            _require(each in self.memories, "a load names a memory of the kernel", memory)
            fits = each.dtype is memory.dtype and each.count <= memory.count
            _require(fits, "memories to choose among are of one type", memory)
        if memory.which is not None:
            self.index(memory.which, bound)
            whole = all(r.kind == "group" for r in memory.which.ranges())
            _require(whole, "a group reads one of them", memory)

    def index(self, index: Index, bound: dict[str, int]) -> None:
        for used in index.ranges():
            _require(self.is_bound(used, bound), "a range is used inside its loop", used)
        for atom in atoms(index):
            if isinstance(atom, Lookup):
                _require(atom.source.dtype.is_integer, "a lookup is an integer", atom)
                for node in walk(atom.source):
                    self.value(node, bound)

    def is_bound(self, used: Range, bound: dict[str, int]) -> bool:
        return bound.get(used.name) == used.size

    def conditions(self, conditions: Validity, bound: dict[str, int]) -> None:
        for condition in conditions:
            self.index(condition, bound)

    def value(self, node: Value, bound: dict[str, int]) -> None:
        _require(
            node.op in OPS and node.op not in UNLOWERED,
            "an operation of the lowered grammar",
            node,
        )
        arity, rule = OPS[node.op]
        _require(arity is None or len(node.sources) == arity, "number of sources", node)
        if node.op == "load":
            access: Load = node.arg
            self.memory(access.memory, bound)
            _require(access.memory.dtype is node.dtype, "a load has its memory's type", node)
            if access.memory.space != "global":
                _require(not access.conditions, "only loads of parameters are gated", access)
            self.access(access.memory, access.index, node.lanes, bound)
            self.conditions(access.conditions, bound)
        elif node.op == "matrices":
            access, turned = node.arg
            _require(access.memory.space == "local", "matrices lie in local memory", node)
            _require(access.memory.dtype is node.dtype, "matrices have their memory's type", node)
            _require(node.lanes * node.dtype.itemsize == MATRICES, "lanes of four matrices", node)
            width = not turned or node.dtype.itemsize == 2
            _require(width, "matrices of 16-bit elements can be turned", node)
            aligned = access.index.multiple() % node.lanes == 0
            _require(aligned, "rows of matrices are 16 aligned bytes", node)
            self.access(access.memory, access.index, node.lanes, bound)
        elif node.op == "index":
            _require(node.dtype.is_integer, "an index is an integer", node)
            self.index(node.arg, bound)
        elif node.op == "gate":
            self.conditions(node.arg, bound)
        elif node.op == "exchange":
            bit = isinstance(node.arg, int) and node.arg > 0 and node.arg & (node.arg - 1) == 0
            _require(bit and node.lanes == 1, "scalars are exchanged along one bit", node)
            _require(node.arg < self.kernel.block, "lanes are exchanged inside the group", node)
        elif node.op == "shuffle":
            among = 2 * node.sources[0].lanes
            known = len(node.arg) == node.lanes and all(0 <= lane < among for lane in node.arg)
            known = known and node.sources[0].lanes == node.sources[1].lanes
            _require(known, "a shuffle chooses among its sources' lanes", node)
        if node.op not in MIXED:
            same = all(s.lanes == node.lanes for s in node.sources)
            _require(same, "sources have the result's lanes", node)
        self.types(node, rule)

    def vectors(self, node: Value) -> tuple[tuple[DType, ...], tuple[int, ...]]:
        """Return types and lanes of the sources of an operation on vectors, and of its result."""
        if node.op != "matrix":
            return VECTORS[node.op]
        unit = UNITS.get(node.arg)
        _require(unit is not None, "a supported matrix unit", node.arg)
        assert unit is not None
        lanes = unit.left_lanes, unit.held, unit.total_lanes, unit.total_lanes
        return (unit.element, unit.element, unit.total, unit.total), lanes

    def types(self, node: Value, rule: str) -> None:
        kinds = [source.dtype for source in node.sources]
        if node.op not in ELEMENT_OPS:
            narrow = [k for k in (*kinds, node.dtype) if is_narrow(k)]
            _require(not narrow, "16-bit and 8-bit floats are computed in float32", node)
        if rule == "where":
            _require(kinds[0] is bool_, "where chooses by a bool", node)
            _require(kinds[1] is kinds[2] is node.dtype, "where keeps the type", node)
        elif rule == "compress":
            _require(kinds[1] is bool_, "bools choose a vector's lanes", node)
            kept = kinds[0] is node.dtype and node.dtype is not bool_
            _require(kept, "lanes that are chosen keep their type", node)
        elif rule == "count":
            known = kinds[0] is bool_ and node.dtype.is_integer and node.lanes == 1
            most = node.dtype.bits
            _require(known and node.sources[0].lanes <= most, "a count of bools", node)
        elif rule == "matrix" or rule in VECTORS:
            types, lanes = self.vectors(node)
            found = [source.lanes for source in node.sources]
            _require((*found, node.lanes) == lanes, f"lanes of {node.op}", node)
            _require((*kinds, node.dtype) == types, f"types of {node.op}", node)
        elif rule == "compare":
            _require(kinds[0] is kinds[1] and node.dtype is bool_, "a comparison", node)
        elif rule != "free":
            _require(all(k is node.dtype for k in kinds), "sources have the result's type", node)
        if rule == "float":
            _require(node.dtype.is_float, "an operation on floats", node)
        elif rule == "integer":
            _require(node.dtype.is_integer, "an operation on integers", node)
        elif rule == "bits":
            _require(not node.dtype.is_float, "a bitwise operation", node)
        if node.op == "mulhi":
            _require(node.dtype is uint32, "mulhi multiplies uint32", node)
        if node.op == "bitcast":
            _require(kinds[0].itemsize == node.dtype.itemsize, "a bitcast keeps the size", node)
