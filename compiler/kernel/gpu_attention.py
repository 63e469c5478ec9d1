"""Which kernel computes an attention on a GPU, and what may be chosen for it."""

from __future__ import annotations

from compiler.index.ranges import Computation
from compiler.kernel import gpu_online, gpu_online_group
from compiler.kernel.choices import Attention, Space
from compiler.kernel.ir import Kernel
from compiler.kernel.online import Online
from hcq.target import TargetSpec

FEW = 16  # rows for which a thread each would leave most of a wave idle
BLOCK = 128  # threads of a group that computes a row


def attention(
    computation: Computation, parts: Online, target: TargetSpec, wanted: Attention | None = None
) -> Kernel:
    """The kernel of the form that is wanted."""
    wanted = wanted or default_attention(parts, target)
    forms = {"thread": gpu_online.by_threads, "group": gpu_online_group.by_group}
    return forms[wanted.form](computation, parts, target, wanted)


def default_attention(parts: Online, target: TargetSpec) -> Attention:
    """A group per row where there are few, else a thread."""
    return _group(parts, target) if parts.rows.size < FEW else _thread(parts, target)


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
    first = default_attention(parts, target)
    return sorted(found, key=lambda space: space.start != first)
