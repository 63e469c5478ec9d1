"""The kernel IR: one grammar, from the scheduler's expressions to the emitter's input.

    kernel     = name, parameters, locals, grid, block, body
    statement  = Store(memory, index, value) | Loop(range, body, bound)
               | If(conditions, body) | Barrier | Prefetch | TileStep
               | Fetch | Close | Await | GroupProduct | Settle      asynchronous NVIDIA units
               | Bulk | Signal
    value, index                            compiler.expression.value, compiler.expression.algebra

verify.py checks what may stand where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ugpu.compiler.expression.algebra import Index, Range, Validity
from ugpu.compiler.expression.value import Load, Memory, Value
from ugpu.hcq.state.text import table


@dataclass(frozen=True)
class Store:
    """memory[index .. index + lanes) = value."""

    memory: Memory
    index: Index
    value: Value


@dataclass(frozen=True)
class Loop:
    """For range = 0 .. min(range.size, bound) - 1. rolled: a host's compiler must not unroll it
    before it vectorises."""

    range: Range
    body: tuple[Statement, ...]
    bound: Index | None = None
    rolled: bool = False


@dataclass(frozen=True)
class If:
    """Run the body where all conditions hold."""

    conditions: Validity
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Barrier:
    """All threads of the group reach this point and then see each other's stores to local memory.
    cluster: the barrier is for all groups of the cluster."""

    cluster: bool = False


@dataclass(frozen=True)
class Prefetch:
    """Begin to bring the cache line of memory[index], a parameter, near the core. No effect on
    results; only for hosts. level: of the caches, the nearest that is to have it."""

    memory: Memory
    index: Index
    level: int = 1


@dataclass(frozen=True)
class TileStep:
    """One operation on a host's tile registers (compiler.kernel.host.products.amx), of 16 rows of
    64 bytes.

    operation: "zero"; "load" and "store", with rows `pitch` elements of a local memory apart, the
    first at `index`; "stream", a load of what need not stay in the nearest cache; "multiply", which
    adds to a tile of float32 or int32 the product of two tiles, `factors`: a row of the right one
    has for each of 16 columns as many steps of the depth side by side as take 4 bytes. kind: the
    types of a product, one of TILE_PRODUCTS.
    """

    operation: str
    tile: int
    memory: Memory | None = None
    index: Index | None = None
    pitch: int = 0
    factors: tuple[int, int] = (0, 0)
    kind: str = ""


TILES, TILE_ROWS, TILE_BYTES = 8, 16, 64  # tile registers, their rows, bytes of a row
TILE_PRODUCTS = ("bf16ps", "bssd", "bsud", "busd", "buud")  # left and right bytes: signed or not


@dataclass(frozen=True)
class Fetch:
    """Begin memory[index .. index + lanes) = source without waiting; zeros where the source's
    conditions do not hold. From a parameter to local memory, 16 bytes at a multiple of 16."""

    memory: Memory
    index: Index
    source: Load
    lanes: int


@dataclass(frozen=True)
class Close:
    """Close a group: all fetches of the thread since its last Close."""


@dataclass(frozen=True)
class Await:
    """Wait until all but the thread's last `pending` groups of fetches have arrived. units: after
    the next barrier, GroupProduct also sees what the thread fetched or stored."""

    pending: int
    units: bool = False


@dataclass(frozen=True)
class GroupProduct:
    """Four waves begin to add left x right to their totals, for each (tile, left index, right
    index): 64 rows by `columns`, of the unit's depth. turned: whether rows of the swizzled memory
    run across rather than along the depth. totals: those of a tile are columns / 2 apart. The
    layout of factors in a ring that is not swizzled is described in compiler.kernel.nvidia.packed.
    """

    unit: str
    totals: Memory
    columns: int
    left: Memory
    right: Memory
    turned: tuple[bool, bool]
    steps: tuple[tuple[int, Index, Index], ...]


@dataclass(frozen=True)
class Settle:
    """Wait until all but the last `pending` GroupProducts have ended; with 0 pending, the totals
    may be used."""

    totals: Memory
    pending: int


@dataclass(frozen=True)
class Signal:
    """One thread's step on barrier objects, which count arrivals and bytes phase by phase; `memory`
    is an array of them, uint64 each.

    operation: "begin" initialises the whole array: a phase of an object ends after `number`
    arrivals, once the expected bytes have come; other threads may use the objects after a Barrier.
    "expect" arrives at the object at `index`, and expects `number` bytes more in this phase.
    "arrive": the thread has finished reading its data. "wait" continues when the phase with parity
    `number` is over; the phase before the first has parity 1. group: "arrive" at the object of that
    group of the cluster.
    """

    operation: str
    memory: Memory
    index: Index
    number: Index
    group: Index | None = None


@dataclass(frozen=True)
class Bulk:
    """Begin memory[index .. index + count) = source[start ..] in one thread; the bytes count for
    the barrier object signal[place]. Whole multiples of 16 bytes at multiples of 16.
    groups: number of the cluster's groups, from the first, that get the data; 1: only the thread's
    own group."""

    memory: Memory
    index: Index
    source: Memory
    start: Index
    count: int
    signal: Memory
    place: Index
    groups: int = 1


Asynchronous = Fetch | Close | Await | GroupProduct | Settle | Bulk | Signal
Statement = Store | Loop | If | Barrier | Prefetch | TileStep | Asynchronous


@dataclass(frozen=True)
class Kernel:
    """A kernel for one kind of target. grid: groups per axis (x fastest); block: threads per group.

    parameters: the outputs first (`outputs` of them), then the inputs. origin: the tensor
    operations it computes. cluster: number of neighbouring groups along x that run together.
    """

    name: str
    parameters: tuple[Memory, ...]
    locals: tuple[Memory, ...]
    grid: tuple[int, int, int]
    block: int
    body: tuple[Statement, ...]
    origin: str = ""
    notes: Mapping[str, int] = field(default_factory=dict)
    outputs: int = 1
    cluster: int = 1

    def __repr__(self) -> str:
        names = ", ".join(memory.name for memory in self.parameters)
        return f"<Kernel {self.name}({names}), grid {self.grid}, block {self.block}>"

    def _repr_html_(self) -> str:
        names = ", ".join(f"{each.name}: {each.dtype.name}[{each.count}]"
                          for each in self.parameters)  # fmt: skip
        return table(f"Kernel {self.name}", {
            "computes": self.origin, "parameters": names, "grid": self.grid, "block": self.block,
        })  # fmt: skip

    def group(self, axis: int) -> Range:
        return group_range(axis, self.grid[axis])

    @property
    def dynamic_local(self) -> int:
        """Bytes of local memory that the launch must provide."""
        return sum(m.count * m.dtype.itemsize for m in self.locals if m.dynamic)


def nested(ranges: Sequence[Range], *body: Statement) -> tuple[Statement, ...]:
    """Return statements inside a loop over each range, the first outermost."""
    for counter in reversed(ranges):
        body = (Loop(counter, body),)
    return body


def guarded(conditions: Validity, *body: Statement) -> tuple[Statement, ...]:
    """Return statements that run where all conditions hold: as they are if there are none."""
    return (If(conditions, body),) if conditions else body


def group_range(axis: int, size: int) -> Range:
    """Return the variable that counts groups along a grid axis."""
    return Range(f"group_{'xyz'[axis]}", size, "group")


def thread_range(size: int) -> Range:
    """Return the variable that counts the threads of a group."""
    return Range("thread", size, "thread")
