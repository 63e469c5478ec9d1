"""Rates of a host's core per cycle: the constants of the cost model of products.

Facts by processor, by LLVM's name. Sources: Software Optimization Guide for the AMD Zen4
Microarchitecture (57647), 2.10 and 2.12; for Zen 5 (58455); for family 17h and 19h (55723, 56665);
Intel 64 and IA-32 Architectures Optimization Reference Manual, "Golden Cove", "Ice Lake Client",
"Skylake Server", "Haswell"; Arm Neoverse N1, N2, V1 and V2 Core Software Optimization Guides,
"Instruction throughput". Sizes of caches come from the target (hcq.state.target.Caches).
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.compiler.kernel.host.nest import share
from ugpu.hcq.state.target import TargetSpec

BEGIN = 0.3  # cost of beginning a step of a panel
WIDEST = 4  # vectors of a panel
SPARE = 2  # registers that hold neither totals nor a row
L3_BYTES = 20  # bytes a cycle that a core reads from memory or L3 and writes to a nearer level


@dataclass(frozen=True)
class Core:
    """The work of one cycle. vector_bytes: size of the vectors; multiplies: multiplications with
    addition; loads: of vectors, or of elements into all lanes, as mixed in a product; moved: bytes
    packed in order of memory; near: bytes from the second-level cache to the first, 0 if
    multiplications hide them."""

    vector_bytes: int
    multiplies: float
    loads: float
    moved: float = L3_BYTES
    near: float = 0


# measured by lab.bench's compiler_tiles: vectors of 64 bytes pass its ports in two halves,
# single elements do not
ZEN4 = Core(64, 1, 1.25)
# Golden Cove: a load for each multiplication. Of a symmetric product of 256 x 256, panels of 8 x 2
# take 0.9 of the time of those of 16 x 1, which need 17 loads for 16 multiplications.
TILED = Core(64, 1, 1)
FULL = Core(64, 2, 2, near=64)
# UNSURE: according to published figures its third level gives about half as much as Zen 4's; a run
# of lab.bench's compiler_tiles on one would settle it. Sapphire Rapids, which has it too, is not
# described by it: of the panels chosen so, 13 x 2 of 768^3 and 8 x 2 of a transposed left factor of
# 512 x 256 were slower than 6 x 4, which the work of a Zen 4 chooses.
MESH = Core(64, 2, 2, L3_BYTES / 2, 48)
HALF = Core(32, 2, 2)
NEON = Core(16, 2, 2)
WIDE_NEON = Core(16, 4, 3)
CORES = {
    "znver4": ZEN4, "znver5": FULL,
    "skylake-avx512": MESH, "cascadelake": MESH, "cooperlake": MESH, "icelake-server": MESH,
    "sapphirerapids": TILED, "emeraldrapids": TILED, "graniterapids": MESH, "graniterapids-d": MESH,
    "haswell": HALF, "broadwell": HALF, "skylake": HALF, "alderlake": HALF, "raptorlake": HALF,
    "znver2": HALF, "znver3": HALF,
    "neoverse-n1": NEON, "neoverse-n2": NEON, "neoverse-v1": WIDE_NEON, "neoverse-v2": WIDE_NEON,
}  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """Costs in the time of one multiplication of whole vectors with addition.

    load: of a vector. spill: load of another vector if its panel is too large for the first level.
    pack: an element of a factor, by a vector load and a store, with memory not in cache. direct: to
    fetch an element that is not packed. pack_one: to pack elements that come singly, or few at a
    time. finish: to clear an element of the tile, to load it again and to store it. tile: a
    pair of steps of a vector of totals in tile registers, of which one instruction makes 256 in 16
    cycles. first, second: bytes of a core's caches.
    """

    load: float = 0.8
    spill: float = 0.0
    pack: float = 0.2
    direct: float = 0.05
    pack_one: float = 1.0
    finish: float = 0.3
    tile: float = 1 / 16
    first: int = 32 << 10
    second: int = 1 << 20

    @property
    def left_bytes(self) -> int:
        """Maximum bytes of a packed left slice, which stays in the second-level cache."""
        return self.second // 4

    @property
    def direct_bytes(self) -> int:
        """Bytes of a left slice that is not packed."""
        return self.second * 11 // 32

    @property
    def right_bytes(self) -> int:
        """Bytes of a packed right slice; it is read in order, at worst from the third level."""
        return self.second * 9 // 16

    @property
    def tile_bytes(self) -> int:
        return self.second * 3 // 8

    def step(self, multiplies: float, loads: float) -> float:
        """Return the cost of a step of a panel of totals: its multiplications, or the loads that
        they need if these take longer, and what begins it."""
        return max(multiplies, self.load * loads) + BEGIN

    def panel(self, registers: int, rows: int, vectors: int, most: int) -> tuple[int, int]:
        """Return the height and the vectors of the cheapest panels of totals for so many rows and
        vectors. most: rows of a panel."""
        shapes = []
        for wide in range(1, min(WIDEST, vectors) + 1):
            high = share(rows, min(highest(registers, wide), most))
            count = -(-rows // high) * -(-vectors // wide)
            shapes.append((count * self.step(high * wide, high + wide), high, wide))
        _, high, wide = min(shapes)
        return high, wide


def highest(registers: int, vectors: int) -> int:
    """Return the most rows of totals that registers hold beside a row of so many vectors."""
    return (registers - SPARE - vectors) // vectors


DEFAULT = Rates()  # Zen 4's


def rates_of(target: TargetSpec) -> Rates:
    """Return the rates of a target's processor; those of Zen 4 for an unknown one."""
    core = CORES.get(target.cpu, ZEN4)
    if target.vector_bytes < core.vector_bytes and target.cpu in CORES:
        # narrower vectors pass two ports whole
        core = Core(target.vector_bytes, 2, 2, core.moved, core.near)
    cycles, slower = core.multiplies, L3_BYTES / core.moved
    return Rates(
        load=cycles / core.loads,
        spill=cycles * target.vector_bytes / core.near if core.near else 0.0,
        pack=0.2 * cycles * slower,
        direct=0.05 * cycles * slower,
        pack_one=1.0 * cycles,
        finish=0.3 * cycles,
        tile=cycles / 16,
        first=target.caches.first,
        second=target.caches.second,
    )


# Cycles until the first line of a row comes from beyond the second-level cache. Measured on
# Sapphire Rapids: products of 32 rows by 12 weights of 384 x 1536, one after the other, take 1.4 to
# 1.7 times as long in place as packed. On Zen 4 multiplications hide it.
ROW = {"sapphirerapids": 32, "emeraldrapids": 32}


def row_cost(target: TargetSpec, size: int) -> float:
    """Return the cost of beginning with the next row of a factor of `size` bytes."""
    return ROW.get(target.cpu, 0) * (target.caches.far < size)
