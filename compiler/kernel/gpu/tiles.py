"""Tiles of a product without matrix units on a GPU: the cost of a tile, and the cheapest one.

A compute unit has SIMDS lanes-wide adders and one local memory of BANKS words a cycle. For each
step of the depth a wave multiplies rows x columns elements a thread (as many cycles on its adder)
and reads rows + columns words a thread (as many cycles of the local memory, at wave size 32): a
larger block of a thread needs fewer reads for a multiplication. Tiles determine how often each
factor is read from memory, how many groups share the work, and how much work is outside the output.

The estimates are cycles of the busiest compute unit, and of all together. A kernel that ends before
the next one could begin gains nothing from being shorter: among tiles below LAUNCH, those with the
smallest block are chosen, since code grows with the block and takes as long to compile as thousands
of launches. Otherwise, among tiles CLOSE to the fastest, those that leave most of the machine to
other kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ugpu.compiler.kernel.choices import Tiles
from ugpu.hcq.state.target import TargetSpec

MOVED = 4  # elements moved at once
PADDING = 4  # elements between rows in local memory, against bank conflicts
SIDES = (32, 64, 128)  # sides of a group's tile
BLOCKS = (4, 8)  # a thread's elements along one side
DEPTH, UNROLL = 16, 4  # of a slice: 64 bytes of a float32 row
SIMDS = 4  # SIMDs of a compute unit
BANKS = 32  # words of 4 bytes that local memory serves a cycle
COPY = 12  # cycles of a wave to fetch and store MOVED elements a thread, addresses included
LATENCY = 500  # cycles from a fetch to its use, two barriers included, for one group alone
RESIDENT = 4  # maximum groups that hide each other's latency
LAUNCH = 26_000  # cycles from a kernel to the next: about 10 us
CLOSE = 1.4  # ratio below which two estimates do not show which tiles are faster
# A thread's registers beside its block: operands of two steps, addresses, counters. RDNA and NVIDIA
# give a wave at most 256; half of that leaves room for several waves.
OTHERS, REGISTERS = 48, 128


@dataclass(frozen=True)
class Product:
    """Sizes of a product. depth: product of all summed ranges; width: bytes of a sum's element."""

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
    """Return the tiles with the smallest block among those that take less than a launch, else with
    the least total work among those that are about the fastest."""
    most, unroll = (REGISTERS - OTHERS) // max(product.width // 4, 1), UNROLL
    if target.quick:  # half the text: a model's calls take as long, its first one 0.2 s less
        unroll = 1
        if target.abi == "ptx":  # the same again; a model of RDNA runs larger blocks faster
            most = min(BLOCKS) ** 2
    candidates = (
        Tiles((tall, wide), (rows, columns), DEPTH, unroll)
        for tall in SIDES
        for wide in SIDES
        for rows in BLOCKS
        for columns in BLOCKS
        if rows * columns <= most
    )
    fitting = [tiles for tiles in candidates if tiles_fit(tiles, product.width, target)]
    costs = {tiles: cost(tiles, product, target) for tiles in fitting}
    enough = max(LAUNCH, CLOSE * min(path for path, _ in costs.values()))
    good = [tiles for tiles in fitting if costs[tiles][0] <= enough]
    if enough == LAUNCH:
        least = min(math.prod(tiles.block) for tiles in good)
        good = [tiles for tiles in good if math.prod(tiles.block) == least]
    return min(good, key=lambda tiles: costs[tiles][1])


def cost(tiles: Tiles, product: Product, target: TargetSpec) -> tuple[float, float]:
    """Return the cycles of the busiest unit, and of all units together."""
    (tall, wide), (rows, columns) = tiles.size, tiles.block
    groups = -(-product.rows // tall) * -(-product.columns // wide) * product.batch
    waves = (tall // rows) * (wide // columns) / target.wave_size
    slices = -(-product.depth // tiles.depth)
    words = product.width / 4
    # few waves leave adders idle; concurrent groups fill them
    shared = -(-groups // target.compute_units)
    busy = min(SIMDS, waves * shared)
    added = waves * tiles.depth * rows * columns
    read = waves * tiles.depth * (rows + columns) * words * target.wave_size / BANKS
    copied = (tall + wide) * tiles.depth / (MOVED * target.wave_size) * COPY / SIMDS
    wait = slices * LATENCY * -(-shared // RESIDENT)
    path = shared * slices * (max(added / busy, read) + copied) + wait
    return path, groups * slices * (max(added / SIMDS, read) + copied)
