"""Number of groups that a chip holds at a time.

Source: CUDA C++ Programming Guide 12.9, "Technical Specifications per Compute Capability" (threads,
groups, registers and shared memory of a multiprocessor) and "Occupancy"; CUDA Occupancy Calculator:
registers are allocated to warps in units of 256; from compute capability 8.0 on, 1 KiB of each
group's shared memory is reserved for the system.
"""

from __future__ import annotations

from functools import lru_cache

from ugpu.virtual.nvidia.sm.runtime import layout

_REGISTERS = 64 << 10
_REGISTER_PIECE = 256
_SYSTEM_SHARED = 1 << 10
# Of a multiprocessor, by compute capability: warps, groups, KiB of shared memory.
_MULTIPROCESSORS = {
    75: (32, 16, 64), 80: (64, 32, 164), 86: (48, 16, 100), 87: (48, 16, 164), 88: (48, 16, 164),
    89: (48, 24, 100), 90: (64, 32, 228), 100: (64, 32, 228), 101: (48, 24, 228),
    103: (64, 32, 228), 110: (48, 24, 228), 120: (48, 24, 100), 121: (48, 24, 100),
}  # fmt: skip
_LEAST = (32, 16, 64)


@lru_cache(maxsize=256)
def groups_per_multiprocessor(capability: int, warps: int, shared_size: int, registers: int) -> int:
    """Return how many groups one multiprocessor holds, at least one. registers: of a thread; 0: not
    known. shared_size: bytes of a group, without the part reserved for the system."""
    most_warps, most_groups, shared = _MULTIPROCESSORS.get(capability, _LEAST)
    found = min(most_groups, most_warps // warps)
    system = _SYSTEM_SHARED if capability >= 80 else 0
    if shared_size + system:
        found = min(found, (shared << 10) // (shared_size + system))
    if registers:
        pieces = -(-registers * layout.LANES // _REGISTER_PIECE)
        found = min(found, _REGISTERS // (pieces * _REGISTER_PIECE) // warps)
    return max(found, 1)
