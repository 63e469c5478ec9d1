"""A kernel whose groups tell each other who they are, within clusters; as PTX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Each group tells all members of its cluster its number; out[group][rank of the sender].
TELL = """
.version 8.7
.target {target}
.address_size 64
.visible .entry tell(.param .u64 .ptr .global .align 16 out) {directive}
{{
  .reg .b32 %r<20>; .reg .b64 %rd<6>; .reg .pred %p<3>;
  .shared .align 4 .b8 heard[64];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %nctaid.x;
  mad.lo.u32 %r4, %r2, %r3, %r1;
  mov.u32 %r5, %cluster_ctarank; mov.u32 %r6, %cluster_nctarank; mov.u32 %r7, heard;
  mad.lo.u32 %r8, %r5, 4, %r7; mov.u32 %r9, 0;
  barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
  NEXT: mapa.shared::cluster.u32 %r10, %r8, %r9; st.shared::cluster.u32 [%r10], %r4;
  add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, %r6; @%p1 bra NEXT;
  barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
  mov.u32 %r11, %tid.x; setp.ge.u32 %p2, %r11, %r6; @%p2 bra END;
  mad.lo.u32 %r12, %r11, 4, %r7; ld.shared.u32 %r13, [%r12];
  ld.param.u64 %rd1, [out]; mad.lo.u32 %r14, %r4, 16, %r11; mul.wide.u32 %rd2, %r14, 4;
  add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r13; {more}
  END: ret;
}}
"""


def text(target: str, directive: str = "", more: str = "") -> str:
    """TELL for a target, such as sm_90."""
    return TELL.format(target=target, directive=directive, more=more)


def expected(grid: Sequence[int], cluster: Sequence[int]) -> NDArray[np.int32]:
    wanted = np.full((grid[0] * grid[1], 16), -1, np.int32)
    for y, x in np.ndindex(grid[1], grid[0]):
        first = x - x % cluster[0], y - y % cluster[1]
        for rank in range(cluster[0] * cluster[1]):
            member = first[0] + rank % cluster[0], first[1] + rank // cluster[0]
            wanted[y * grid[0] + x, rank] = member[1] * grid[0] + member[0]
    return wanted
