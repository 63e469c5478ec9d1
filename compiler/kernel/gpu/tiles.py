"""Tiles of a product without matrix units on a GPU: the cost of a tile, and the cheapest one.

A compute unit has SIMDS lanes-wide adders and one local memory of BANKS words a cycle. For each
step of the depth a wave multiplies rows x columns elements a thread (as many cycles on its adder)
and reads rows + columns words a thread (as many cycles of the local memory, at wave size 32): the
larger a thread's block, the less is read for a multiplication. Tiles decide how often each factor
comes from memory, how many groups there are to share the work, and what lies outside the output.

What is estimated is cycles of the busiest compute unit, and of all together. A kernel that is over
before the next one could begin gains nothing from being shorter: among tiles below LAUNCH, or CLOSE
to the fastest, those that leave most of the machine to others are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.kernel.choices import Tiles
from hcq.target import TargetSpec

MOVED = 4  # elements moved at once
PADDING = 4  # elements between rows in local memory, against bank conflicts
SIDES = (32, 64, 128)  # of a group's tile
BLOCKS = (4, 8)  # a thread's elements along one side
DEPTH, UNROLL = 16, 4  # of a slice: 64 bytes of a float32 row
SIMDS = 4  # of a compute unit
BANKS = 32  # words of 4 bytes that local memory serves a cycle
COPY = 12  # cycles of a wave to fetch and put away MOVED elements a thread, addresses included
LATENCY = 500  # cycles from a fetch to its use, two barriers included, for one group alone
RESIDENT = 4  # groups that hide each other's latency, at most
LAUNCH = 26_000  # cycles from a kernel to the next: about 10 us
CLOSE = 1.4  # times: nearer than that, two estimates do not tell which tiles are faster
# A thread's registers beside its block: operands of two steps, addresses, counters. RDNA and NVIDIA
# give a wave at most 256; half of that leaves room for several waves.
OTHERS, REGISTERS = 48, 128


@dataclass(frozen=True)
class Product:
    """Sizes of a product. depth: all that is summed over; width: bytes of an element of a sum."""

    rows: int
    columns: int
    depth: int
    batch: int
    width: int


def tiles_fit(tiles: Tiles, width: int, target: TargetSpec) -> bool:
    """Return whether a group can hold the tiles and its threads share the copying evenly."""
    (tall, wide), (rows, columns) = tiles.size, tiles.block
    threads = (tall // rows) * (wide // columns)
    memory = tiles.depth * (tall + wide + 2 * PADDING) * width
    return (
        target.wave_size <= threads <= target.max_threads_per_group
        and all(side * tiles.depth % (threads * MOVED) == 0 for side in tiles.size)
        and tiles.depth % tiles.unroll == 0
        and memory <= target.local_memory
    )


def best_tiles(product: Product, target: TargetSpec) -> Tiles:
    """The least work in all, among those that are about the fastest."""
    candidates = (
        Tiles((tall, wide), (rows, columns), DEPTH, UNROLL)
        for tall in SIDES
        for wide in SIDES
        for rows in BLOCKS
        for columns in BLOCKS
        if rows * columns * max(product.width // 4, 1) + OTHERS <= REGISTERS
    )
    fitting = [tiles for tiles in candidates if tiles_fit(tiles, product.width, target)]
    costs = {tiles: cost(tiles, product, target) for tiles in fitting}
    enough = max(LAUNCH, CLOSE * min(path for path, _ in costs.values()))
    good = [tiles for tiles in fitting if costs[tiles][0] <= enough]
    return min(good, key=lambda tiles: costs[tiles][1])


def cost(tiles: Tiles, product: Product, target: TargetSpec) -> tuple[float, float]:
    """Cycles of the busiest unit, and of all units together."""
    (tall, wide), (rows, columns) = tiles.size, tiles.block
    groups = -(-product.rows // tall) * -(-product.columns // wide) * product.batch
    waves = (tall // rows) * (wide // columns) / target.wave_size
    slices = -(-product.depth // tiles.depth)
    words = product.width / 4
    # few waves leave adders idle; groups beside each other fill them
    shared = -(-groups // target.compute_units)
    busy = min(SIMDS, waves * shared)
    added = waves * tiles.depth * rows * columns
    read = waves * tiles.depth * (rows + columns) * words * target.wave_size / BANKS
    copied = (tall + wide) * tiles.depth / (MOVED * target.wave_size) * COPY / SIMDS
    wait = slices * LATENCY * -(-shared // RESIDENT)
    path = shared * slices * (max(added / busy, read) + copied) + wait
    return path, groups * slices * (max(added / SIMDS, read) + copied)
