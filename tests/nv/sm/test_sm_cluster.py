"""Clusters of one group, which every group is that is launched without clusters."""

from __future__ import annotations

import numpy as np
import pytest

from hcq.errors import NotSupported
from nv.virtual.sm_contract import SmEnding
from tests.support.sm_run import Bench, body

HEAD = ".shared .align 16 .b8 part[256];"


def test_a_group_finds_itself_alone_in_its_cluster() -> None:
    text = """
    mov.u32 %r1, %cluster_nctarank; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %clusterid.x;
    shl.b32 %r4, %t, 2; mov.u32 %r5, part; add.u32 %r5, %r5, %r4;
    mapa.shared::cluster.u32 %r6, %r5, %r2;
    st.shared::cluster.u32 [%r6], %t;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    mov.u32 %r7, part; sub.u32 %r8, 63, %t; shl.b32 %r8, %r8, 2; add.u32 %r7, %r7, %r8;
    ld.shared::cta.u32 %r9, [%r7];
    mad.lo.u32 %r9, %r1, 1000, %r9; add.u32 %r9, %r9, %r2; mad.lo.u32 %r10, %r3, 64, %t;
    mul.wide.u32 %at, %r10, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r9;
    """
    bench = Bench()
    address, out = bench.array(np.zeros((3, 64), np.uint32))
    bench.good(body(1, text, HEAD), address, grid=(3,), block=(64,), shared=256)
    assert (out == 1000 + np.arange(63, -1, -1)).all()


def test_there_is_no_other_group() -> None:
    bench = Bench()
    text = "mov.u32 %r1, part; mapa.shared::cluster.u32 %r2, %r1, 1;"
    outcome = bench.launch(body(1, text, HEAD), 0, shared=256)
    assert outcome.ending is SmEnding.ILLEGAL_ADDRESS


def test_clusters_of_several_groups_are_refused() -> None:
    text = body(1, "").replace(") {", ") .reqnctapercluster 2, 1, 1 {", 1)
    with pytest.raises(NotSupported, match="wants clusters"):
        Bench().launch(text, 0, grid=(2,))
    Bench().good(text.replace("2, 1, 1", "1, 1, 1"), 0)
