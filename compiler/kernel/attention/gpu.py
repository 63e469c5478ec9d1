"""Choose the kernel that computes an attention on a GPU, and list its choices."""

from __future__ import annotations

from dataclasses import replace

from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Value, walk
from ugpu.compiler.kernel.attention import group as gpu_online_group
from ugpu.compiler.kernel.attention import matrix as gpu_online_matrix
from ugpu.compiler.kernel.attention import threads as gpu_online
from ugpu.compiler.kernel.attention import tiles as gpu_online_tiles
from ugpu.compiler.kernel.choices import Attention, Space
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.pattern.online import Online
from ugpu.hcq.state.target import TargetSpec

FEW = 16  # rows for which one thread each would leave most of a wave idle
# Registers of a lane for a tile of keys, as many as the output and the rows of a depth of 128 leave
# free: words on their way to local memory, and scores. With two buffers, words that stay on their
# way while a tile is computed.
TILE_WORDS, STAGED_WORDS = 112, 40
# A group that computes a row is one wave, which waits for no other: on the virtual Navi31 that
# takes 0.4 times the time of four. Sharing the keys gives enough waves for each compute unit.
GROUP_KEYS, GROUP_LANES = 2, 8  # two keys at once hide each other's latency
WAVES = 4  # such groups for each compute unit: two a SIMD of a Navi31, which hides latencies
# Keys are shared among groups if a group's reads would take longer than the start of a second
# kernel (WORTH: 128 KiB take 6 us at the 20 GB/s that one of 48 units has of a Navi31's 960 GB/s).
# The parts have at least PART_BYTES, or PART_KEYS for groups of many rows, as each part stores its
# rows.
WORTH, PART_BYTES, PART_KEYS = 128 << 10, 32 << 10, 256


def attention(
    computation: Computation, parts: Online, target: TargetSpec, wanted: Attention | None = None
) -> Kernel:
    """Return the kernel of the wanted form."""
    wanted = wanted or default_attention(parts, target)
    if wanted.form == "matrix":
        unit = gpu_online_tiles.suits(parts, target)
        assert unit is not None
        return gpu_online_matrix.by_matrix_units(computation, parts, unit, wanted)
    forms = {"thread": gpu_online.by_threads, "group": gpu_online_group.by_group}
    return forms[wanted.form](computation, parts, target, wanted)


def pieces_of(parts: Online, target: TargetSpec) -> int:
    """Return the number of parts in which groups share the keys (compiler.plan.online_parts): 1 if
    there are enough groups for all compute units, or too little to read to be worth a second
    kernel."""
    wanted = default_attention(parts, target)
    single = wanted.form == "group"
    groups, units = groups_of(parts, target, wanted), target.compute_units
    enough = WAVES * units if single else units
    of_key = parts.depth.size * _bytes(parts.right) + parts.columns.size * _bytes(parts.factor)
    read = parts.keys.size * of_key
    if groups >= enough or read < WORTH:
        return 1
    most = read // PART_BYTES if single else parts.keys.size // PART_KEYS
    return max(1, min(most, -(-enough // groups)))


def _bytes(factor: Value) -> int:
    """Return the bytes of an element as stored in memory."""
    return min((n.dtype.itemsize for n in walk(factor) if n.op == "load"), default=0)


def groups_of(parts: Online, target: TargetSpec, wanted: Attention) -> int:
    """Return the number of groups of a kernel's grid."""
    heads, rows, columns = elements(parts.batch), parts.rows.size, parts.columns.size
    if wanted.form == "group":
        return heads * rows * gpu_online_group.column_blocks(columns, wanted.block)
    if wanted.form == "thread":
        blocks = -(-columns // gpu_online.column_block(columns))
        return heads * -(-rows // wanted.block) * blocks
    unit = gpu_online_tiles.suits(parts, target)
    assert unit is not None
    blocks = -(-columns // gpu_online_tiles.wide_size(parts, unit))
    return heads * -(-rows // (wanted.block // unit.wave * unit.rows)) * blocks


def default_attention(parts: Online, target: TargetSpec) -> Attention:
    """Use a group per row if there are few rows; otherwise matrix units if suitable, or a thread
    per row."""
    if parts.rows.size < FEW:
        return _group(parts, target)
    return _matrix(parts, target) or _thread(parts, target)


def _matrix(parts: Online, target: TargetSpec) -> Attention | None:
    """Choose waves for 64 rows, or fewer so that each compute unit has a group; the most keys that
    leave room for other groups, and whose copy and scores a lane can hold; two buffers if both
    fit."""
    unit = gpu_online_tiles.suits(parts, target)
    if unit is None:
        return None
    waves = 4
    while waves > 1 and (
        -(-parts.rows.size // (waves * unit.rows)) * elements(parts.batch) < target.compute_units
        or (waves // 2) * unit.rows >= parts.rows.size
    ):
        waves //= 2
    fitting: Attention | None = None
    for keys in (64, 32, 16):
        wanted = Attention("matrix", waves * unit.wave, keys, 1)
        if gpu_online_tiles.fits(parts, unit, wanted, target):
            fitting = wanted
            taken = gpu_online_tiles.local_bytes(parts, unit, wanted)
            words = taken // (4 * wanted.block)
            if taken <= gpu_online_tiles.SHARE and words + keys <= TILE_WORDS:
                double = words <= STAGED_WORDS and 2 * taken <= gpu_online_tiles.SHARE
                several = parts.keys.size > 2 * keys
                return replace(wanted, buffers=2) if double and several else wanted
    return fitting


def _thread(parts: Online, target: TargetSpec) -> Attention:
    return Attention("thread", gpu_online.default_block(parts, target), gpu_online.KEYS, 1)


def _group(parts: Online, target: TargetSpec) -> Attention:
    """Choose one wave, whose lanes read neighbouring parts of a key's row."""
    vectors = -(-parts.depth.size // gpu_online_group.TOGETHER)
    lanes = min(GROUP_LANES, gpu_online_group.power_above(vectors))
    return Attention("group", target.wave_size, GROUP_KEYS, lanes)


def attention_spaces(parts: Online, target: TargetSpec) -> list[Space]:
    """Return a space for each form, the default's first."""
    wave = target.wave_size
    blocks = tuple(wave * n for n in (1, 2, 4, 8) if wave * n <= target.max_threads_per_group)

    def by_threads(wanted: Attention) -> bool:
        return wanted.block * gpu_online.row_bytes(parts) <= target.local_memory

    def by_group(wanted: Attention) -> bool:
        words = wanted.block * (gpu_online_group.TOGETHER + wanted.keys) + 1024
        return wanted.lanes <= wave and 4 * words <= target.local_memory

    found = [
        Space(_thread(parts, target), {"block": blocks, "keys": (2, 4, 8, 16, 32)}, by_threads),
        Space(
            _group(parts, target),
            {"block": blocks, "keys": (1, 2, 4), "lanes": (1, 2, 4, 8, 16, 32)},
            by_group,
        ),
    ]
    matrix, unit = _matrix(parts, target), gpu_online_tiles.suits(parts, target)
    if matrix is not None and unit is not None:

        def by_units(wanted: Attention) -> bool:
            return gpu_online_tiles.fits(parts, unit, wanted, target)

        options = {"block": blocks, "keys": (16, 32, 64, 128), "buffers": (1, 2)}
        found.append(Space(matrix, options, by_units))
    first = default_attention(parts, target)
    return sorted(found, key=lambda space: space.start != first)
