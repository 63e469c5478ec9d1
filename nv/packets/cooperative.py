"""Cooperative launches: the workspace for the barriers of a grid, and how many groups fit a GPU.

cooperative_groups of CUDA 13 (details/driver_abi.h) declares the workspace: a 32-bit size and a
32-bit counter, which is zero at first and, but for its highest bit, again after each barrier. Code
reads its address from %envreg1 (upper half) and %envreg2, which are words of constant bank 0:
nv.packets.families. A cooperative launch runs alone in its channel: two partly started grids would
wait for ever. UNSURE: that CUDA sets no other field of the launch descriptor, and the size that it
writes; a recording of cudaLaunchCooperativeKernel would settle both. Grids of other channels may
occupy multiprocessors meanwhile; they end without waiting for ours.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ugpu.nv.rm.memory import Memory, allocate_reachable

if TYPE_CHECKING:
    from ugpu.nv.rm.holder import Holder

_COUNT = 256  # workspaces, used in turn: the most cooperative launches that may be pending
_SIZE = 32
_WORDS = struct.Struct("<II")
# Groups that a multiprocessor holds, by compute capability; other capabilities hold as many as the
# nearest below. CUDA C++ Programming Guide 12.9, "Technical Specifications per Compute Capability".
_MOST_GROUPS = {(7, 5): 16, (8, 0): 32, (8, 6): 16, (8, 9): 24, (9, 0): 32, (10, 1): 24,
                (10, 3): 32, (11, 0): 24}  # fmt: skip


class Workspaces:
    """The workspaces of one device, allocated for the first cooperative launch."""

    def __init__(self, driver: Holder) -> None:
        self._driver = driver
        self._memory: Memory | None = None
        self._next = 0

    def take(self) -> int:
        """Return a workspace's address for one launch (or for every run of a graph's launch)."""
        with self._driver.core.lock:
            if self._memory is None:
                self._memory = allocate_reachable(self._driver.gpu, _COUNT * _SIZE)
                self.clear()
            number, self._next = self._next, (self._next + 1) % _COUNT
            return self._memory.address + _SIZE * number

    def clear(self) -> None:
        """Reset all workspaces: a stopped grid leaves its counter at any value.

        Only while no kernel runs.
        """
        if self._memory is not None:
            for at in range(0, _COUNT * _SIZE, _SIZE):
                _WORDS.pack_into(self._memory.view, at, _SIZE, 0)


def groups_that_fit(
    capability: tuple[int, int], sm_count: int, warps_per_sm: int, carveout: int, *,
    warps: int, registers_per_warp: int, shared_size: int,
) -> int:  # fmt: skip
    """Return how many groups a GPU holds at a time. carveout: most bytes of shared memory of a
    multiprocessor. shared_size: bytes of a group, including the system's share."""
    known = max((each for each in _MOST_GROUPS if each <= capability), default=(7, 5))
    return sm_count * min(
        _MOST_GROUPS[known],
        warps_per_sm // warps,
        (64 << 10) // (registers_per_warp * warps) if registers_per_warp else warps_per_sm,
        carveout // shared_size if shared_size else warps_per_sm,
    )
