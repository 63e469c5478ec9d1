"""Two versions of a translated kernel: one that compiles fast, and one that runs fast."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.adreno.ir3_text import END, OUT, i, k, run, spaced, stored, words
from tests.support.shader_memory import ArrayMemory
from ugpu.hcq.objects import recompile
from ugpu.hcq.state.config import setting
from ugpu.virtual.shader import versions


class Held(recompile.Recompile):
    """A queue that keeps its orders."""

    def __init__(self) -> None:
        super().__init__(1)
        self.held: list[recompile.Order] = []

    def submit(self, order: recompile.Order) -> None:
        self.held.append(order)


def test_a_kernel_gives_the_same_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Held()
    monkeypatch.setattr(recompile.SHARED, "queue", queue)
    code = words(*spaced([i("add.u", DST=4, SRC1=0, SRC2=k(77), FULL=1), *stored(4)]), END)
    results = []
    with setting("UGPU_TIERS", "1"):
        for launch in range(versions.OFTEN + 2):
            memory = ArrayMemory()
            content = memory.map(OUT, np.zeros(64, np.uint32))
            run(code, memory=memory)
            results.append(content.tolist())
            if launch == versions.OFTEN:
                child = queue.child()
                assert queue.held
                for order in queue.held:
                    queue.carry_out(child, order)
                child.close()
    assert results == [[77 + lane for lane in range(64)]] * len(results)
