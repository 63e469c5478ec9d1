"""Which kernel computes an attention on a GPU, and what may be chosen for it."""

from __future__ import annotations

from compiler.index.ranges import Computation, elements
from compiler.kernel import gpu_online, gpu_online_group, gpu_online_matrix, gpu_online_tiles
from compiler.kernel.choices import Attention, Space
from compiler.kernel.ir import Kernel
from compiler.kernel.online import Online
from hcq.target import TargetSpec

FEW = 16  # rows for which a thread each would leave most of a wave idle
COPIED = 192  # bytes of keys and values that a thread has on their way at once, about
BLOCK = 128  # threads of a group that computes a row


def attention(
    computation: Computation, parts: Online, target: TargetSpec, wanted: Attention | None = None
) -> Kernel:
    """The kernel of the form that is wanted."""
    wanted = wanted or default_attention(parts, target)
    if wanted.form == "matrix":
        unit = gpu_online_tiles.suits(parts, target)
        assert unit is not None
        return gpu_online_matrix.by_matrix_units(computation, parts, unit, wanted)
    forms = {"thread": gpu_online.by_threads, "group": gpu_online_group.by_group}
    return forms[wanted.form](computation, parts, target, wanted)


def default_attention(parts: Online, target: TargetSpec) -> Attention:
    """A group per row where there are few; else matrix units where they suit, or a thread."""
    if parts.rows.size < FEW:
        return _group(parts, target)
    return _matrix(parts, target) or _thread(parts, target)


def _matrix(parts: Online, target: TargetSpec) -> Attention | None:
    """Waves for 64 rows, or as many as leave a group for each compute unit; the most keys that
    leave room for other groups, and that a thread can copy at once."""
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
            if taken <= min(gpu_online_tiles.SHARE, COPIED * wanted.block):
                break
    return fitting


def _thread(parts: Online, target: TargetSpec) -> Attention:
    return Attention("thread", gpu_online.default_block(parts, target), gpu_online.KEYS, 1)


def _group(parts: Online, target: TargetSpec) -> Attention:
    """Lanes that read a key's row side by side; two keys at once hide each other's latency."""
    vectors = -(-parts.depth.size // gpu_online_group.TOGETHER)
    lanes = min(8, gpu_online_group.power_above(vectors))
    block = max(BLOCK, target.wave_size)
    while block > target.wave_size and block >= 2 * parts.keys.size * lanes:
        block //= 2
    return Attention("group", block, 2, lanes)


def attention_spaces(parts: Online, target: TargetSpec) -> list[Space]:
    """A space for each form, the default's first."""
    wave = target.wave_size
    blocks = tuple(wave * n for n in (1, 2, 4, 8) if wave * n <= target.max_threads_per_group)

    def by_threads(wanted: Attention) -> bool:
        return wanted.block * gpu_online.row_bytes(parts) <= target.local_memory

    def by_group(wanted: Attention) -> bool:
        words = wanted.block * (gpu_online_group.TOGETHER + wanted.keys) + 1024
        return wanted.lanes <= wave and 4 * words <= target.local_memory

    found = [
        Space(_thread(parts, target), {"block": blocks, "keys": (2, 4, 8, 16)}, by_threads),
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

        found.append(Space(matrix, {"block": blocks, "keys": (16, 32, 64, 128)}, by_units))
    first = default_attention(parts, target)
    return sorted(found, key=lambda space: space.start != first)
