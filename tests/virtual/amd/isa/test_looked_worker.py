"""A worker that another thread looks at while launches begin and end on it."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.amd.isa.decoder.decode import GFX11
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.runtime.launch import Launch
from ugpu.virtual.amd.isa.runtime.worker import Run, Worker
from ugpu.virtual.amd.shader import Dispatch
from ugpu.virtual.shader import context
from ugpu.virtual.shader.memory import Abort
from ugpu.virtual.shader.threads import worker as workers
from ugpu.virtual.shader.threads.worker import aligned as made

CODE = 0x1000_0000
DISPATCH = Dispatch(
    code_address=CODE, groups=(1, 1, 1), threads=(64, 1, 1), rsrc1=3 | 0xF0 << 12,
    rsrc2=2 << 1 | 1 << 7, rsrc3=0, wave32=True, user_data=[0] * 16,
)  # fmt: skip


def run(dispatch: Dispatch) -> Run:
    return Run(dispatch, Launch.of(dispatch), ArrayMemory(), Abort(), GFX11)


def test_a_launch_that_begins_shows_no_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look comes as the states of the launch are not there yet."""
    worker, seen = Worker(), list[Any]()
    looks: list[threading.Thread] = []

    def aligned(size: int, at: int = 128) -> Any:
        looks.append(threading.Thread(target=lambda: seen.append(worker.looked())))
        looks[0].start()
        looks[0].join(0.05)
        return made(size, at)

    monkeypatch.setattr(workers, "aligned", aligned)
    worker.prepare(run(DISPATCH), 0, CODE)
    looks[0].join()
    assert seen == [[]]


def test_waves_of_the_launch_before_are_not_shown() -> None:
    worker = Worker()
    worker.prepare(run(DISPATCH), 0, CODE)
    worker.set_quad(context.HALT_GROUP, 0)
    worker.state(1).view(np.uint32)[layout.STATE_RESUME // 4] = 9
    assert [(wave.wave, wave.waits) for wave in worker.looked()] == [(0, False), (1, True)]
    worker.rest()
    assert worker.looked() == []
    worker.prepare(run(dataclasses.replace(DISPATCH, threads=(32, 1, 1))), 0, CODE)
    assert worker.looked() == []
