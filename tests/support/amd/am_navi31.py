"""A virtual Navi31, or another chip, with the real driver on it, for tests that look at both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ugpu.am.chips.facts import ChipFacts
from ugpu.am.chips.navi31.facts import FACTS
from ugpu.am.device.device import AmDevice, open_device
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program
from ugpu.virtual.amd import gpu
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.options import ChipOptions

NAME = "virtual:navi31"


def shared_facts(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change facts of the generation for one test; chips that are opened from then on have them."""
    changed = replace(FACTS, generation=replace(FACTS.generation, **changes))
    monkeypatch.setattr("ugpu.am.chips.navi31.facts.FACTS", changed)


def build_chip(options: ChipOptions | None = None, facts: ChipFacts = FACTS) -> Chip:
    """A whole virtual card, switched on. The caller closes it."""
    return gpu.build_chip(facts, options)


def attach(chip: Chip | None = None, **options: Any) -> Attachment:
    """A way to a virtual Navi31."""
    return gpu.attach("navi31", chip, **options)


def plug_in(chip: Any, **options: Any) -> AmDevice:
    """Open the driver on a chip that stays powered when the device is closed."""
    name = chip.facts.name
    return open_device(f"virtual:{name}", gpu.attach(name, chip), **options)


@contextmanager
def opened(chip: Any, **options: Any) -> Iterator[AmDevice]:
    with plug_in(chip, **options) as device:
        assert isinstance(device, AmDevice)
        yield device


def run(device: AmDevice, program: Program, name: str, *args: object) -> None:
    """Run one wave of a kernel and wait for it."""
    with device.queue() as queue:
        queue.launch(program[name], grid=(1,), block=(32,), args=args)
    device.synchronize()


def start_forever(chip: Any, device: AmDevice, program: Program, out: Buffer) -> None:
    """Launch a kernel that never ends, and wait until it runs."""
    launches = chip.gfx.mec.array.launches
    with device.queue() as queue:
        queue.launch(program["forever"], grid=(1,), block=(32,), args=(out,))
    chip.clock.wait_until(
        lambda: chip.gfx.mec.array.launches > launches,
        unit="shader array", waiting_for="the launch", limit_s=60,
    )  # fmt: skip


def check_runs(device: AmDevice, program: Program, out: Buffer, value: int) -> None:
    """The program's good kernel gives the right answer."""
    run(device, program, "good", out, np.uint32(value))
    assert out.numpy(np.uint32)[0] == value
