"""Clusters on the virtual multiprocessors: kernels that the assembler takes too, and benches."""

from __future__ import annotations

from tests.support.nvidia.nvjitlink import assemble, library
from tests.support.nvidia.sm.sm_run import HEAD

DIRECTIVE = ") .explicitcluster {"
# The address of word %t of `part` in the group of rank %rank, as %far.
FAR = """
.reg .b32 %rank, %far, %near;
shl.b32 %near, %t, 2; mov.u32 %far, part; add.u32 %near, %near, %far;
"""
SYNC = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"


def legal(ptx: str, target: str = "sm_90") -> str:
    """Return a kernel with its head, after NVIDIA's assembler has taken it where it is installed.

    Raises DoesNotAssemble."""
    text = ptx if ".version" in ptx else HEAD.format(target=target) + ptx
    if library() is not None:
        assemble(text.encode(), target)
    return text
