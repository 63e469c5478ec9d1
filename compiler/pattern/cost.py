"""Costs of computing, storing and loading a value: the only place that decides between storing a
value and computing it again.

The unit is one addition of float32 numbers that are already in registers. Everything else is
measured in this unit:

- compute   what an operation costs per element (expression.elementary.COSTS), once per evaluation;
- storage   MEMORY per byte written to and read back from device memory, NEAR per byte that the
            reader finds in a cache, since many neighbours read the same element;
- locality  a value kept inside a group (registers, local memory, stack) costs HELD per element,
            and work that only one group can do is not shared by the machine: PARALLEL groups are
            busy at once. A separate kernel costs KERNEL.

The constants are those of available machines: a core with 16 lanes adds about 3 numbers in the time
in which it moves a byte to and from memory. They need not be exact: decisions change at factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ugpu.compiler.dtype import DType

MEMORY = 8 / 3  # per byte, written or read
NEAR = 2.0  # per byte read from a cache
HELD = 2  # per element written to and read from a group's own memory
KERNEL = 1 << 18  # launching a kernel, and waiting for the one before
PARALLEL = 64  # groups that work at the same time
CHOICE = 3  # selecting one of two pieces by position
HELD_BYTES = 256 << 10  # bytes that a group can hold on a host: what fits the second-level cache
WINDOW = 64  # places of a window up to which a host's kernel writes all of them out
WINDOW_LINES = 1 << 14  # maximum elements of an image that one row of results reads
PHASES = 16  # most phases of a window's columns and rows, which have code of their own
TILED = "tiled sum"  # a convolution's reduction that may use Winograd tiles, less precisely
TILES_MOST = 1024  # channels of an image whose tiles a group of a host's kernel holds
# A convolution of 3 x 3 on a host, directly and with Winograd tiles: time of a multiplication that
# is added, per element; of an element of the image's tiles, of the products, of the weights.
WINDOWS_EACH, TILES_EACH = 1.1, 1.2
TILES_IMAGE, TILES_RESULT, TILES_WEIGHT = 12.0, 12.0, 12.0
TILES_GAIN = 1.15  # from this gain on, less precise results are worth it
# A reduction's result is never cheap to compute again: it costs all that is reduced.
REDUCE = 1 << 10
# Operations of one kernel: beyond it registers spill, and compilers take more than linear time.
LONGEST = 160


def again(cost: float, uses: int) -> float:
    """Return the cost per element of computing a value in each of `uses` places instead of one."""
    return (uses - 1) * cost


def stored(dtype: DType, uses: int) -> float:
    """Return the cost per element of writing a value to memory once and reading it `uses` times."""
    return dtype.itemsize * MEMORY * (1 + uses)


def share(cost: float, uses: int, dtype: DType) -> bool:
    """Return whether to store a value wanted in `uses` places, each element once. Small arrays are
    judged like large ones: code emitted twice is compiled twice, which outweighs a launch."""
    return uses > 1 and again(cost, uses) > stored(dtype, uses)


def repeat(cost: float, dtype: DType) -> bool:
    """Return whether to store a value before its elements are repeated many times: each use then
    reads it from a cache."""
    return cost > dtype.itemsize * NEAR


def apart(costs: Sequence[float], dtype: DType) -> bool:
    """Return whether to store a join of several pieces, rather than select among all of them for
    each element. costs: of an element of each piece."""
    chosen = sum(costs) + CHOICE * (len(costs) - 1)
    return chosen > max(costs, default=0) + stored(dtype, 1)


def hold(cost: float, uses: int = 2) -> bool:
    """Return whether a group keeps a value of its row for a later pass over it."""
    return again(cost, uses) > HELD


def keep_inside(rows: int, length: int, cost: float, dtype: DType) -> bool:
    """Return whether a value wanted across a reduction (one per row, used by all of the row's
    `length` elements at `cost` each) is computed in the kernel of its users, a group per row,
    rather than by a separate kernel, after which its users have the whole machine.

    Inside, only the rows are parallel; apart, the rows are read from memory once more, the result
    is written and read, and there is one more kernel.
    """
    work = rows * length * cost
    inside = work / min(max(rows, 1), PARALLEL)
    reread = rows * length * dtype.itemsize * MEMORY / PARALLEL
    apart = work / PARALLEL + reread + KERNEL
    return inside <= apart


def in_windows(down: int, across: int, columns: int, phases: int) -> bool:
    """Return whether a host's kernel can hold the part of an image that a row of results reads
    through windows of `down` x `across`. columns: of the image, with its padding. phases: of its
    columns and rows, each with code of its own."""
    fits = down * across <= WINDOW and down * columns <= WINDOW_LINES
    return fits and phases <= PHASES


def winograd(
    results: tuple[int, int, int, int], channels: int, window: int, tiles: int, lanes: int
) -> bool:
    """Return whether a convolution is cheaper by Winograd's tiles, on a host. results: batch,
    channels, height, width; window: its side; tiles: in an image; lanes: tiles of a vector."""
    batch, out, _, _ = results
    places = 36 * -(-tiles // lanes) * lanes  # products of a pair of channels
    plain = prod(results) * channels * window**2 * WINDOWS_EACH
    multiply = batch * places * out * channels * TILES_EACH
    transform = batch * places * (channels * TILES_IMAGE + out * TILES_RESULT)
    weights = 36 * out * channels * TILES_WEIGHT
    return plain > TILES_GAIN * (multiply + transform + weights)
