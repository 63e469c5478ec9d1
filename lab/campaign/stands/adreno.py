"""The virtual machines with an Adreno GPU as stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.campaign.stands.stand import LINES, LONG_S, SHORT_S, Stand, hasten
from ugpu import hcq
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.qcom import chips, kernels
from ugpu.virtual.adreno.gpu import build_machine
from ugpu.virtual.adreno.planted import Planted

_WORDS = np.arange(4096, dtype=np.uint32)


class AdrenoStand(Stand):
    """A machine with one GPU, and our driver on it. Its kernel is the driver's own `fill`, loaded
    as a program of a user."""

    def __init__(self, chip: str, seed: int) -> None:
        self.name, self.seed = chip, seed
        self.chip = chip.partition("+")[0]
        self._switch_on()
        self._opened = False

    def _switch_on(self) -> None:
        self.machine = build_machine(self.chip)
        hasten(self.machine.clock)

    def open(self, stage: str = "", plant: Callable[[], object] | None = None) -> None:
        if plant is not None:
            plant()
        self.device: Any = hcq.open(f"virtual:{self.name}", chip=self.machine)
        self._opened = True
        self.limit(short=False)

    def limit(self, *, short: bool) -> None:
        self.device.limit_s = SHORT_S if short else LONG_S

    def prepare(self) -> None:
        image = kernels.objects(chips.facts(self.chip))["fill"]
        self.program = self.device.load(image)
        self.buffer = self.device.alloc(_WORDS.nbytes)
        self.result = self.device.alloc(_WORDS.nbytes)
        self.witnesses = [
            self.device.alloc(_WORDS.nbytes, placement=placement) for placement in Placement
        ]
        for number, witness in enumerate(self.witnesses):
            witness.copy_from(_WORDS + number)
        self.copy()
        self.launch()

    def fill(self, program: Any, target: object) -> None:
        """Submit the kernel: it stores 3 to the size of `result` at `target`."""
        arguments = (target, np.uint32(3), np.uint32(_WORDS.nbytes))
        with self.device.queue() as queue:
            queue.launch(
                program["fill"], grid=(_WORDS.nbytes // kernels.SPAN,), block=(kernels.THREADS,),
                args=arguments,
            )  # fmt: skip

    def launch(self) -> None:
        self.fill(self.program, self.result)
        self.device.synchronize()
        assert (self.result.numpy(np.uint32) == 3).all()

    def at(self, address: int) -> Buffer:
        """A buffer that the device has not allocated."""
        return Buffer(self.device.driver.core, VirtAddr(address), _WORDS.nbytes, Placement.DEVICE)

    def copy(self) -> None:
        self.buffer.copy_from(_WORDS)
        self.copy_between(self.result, self.buffer)
        assert (self.result.numpy(np.uint32) == _WORDS).all()

    def copy_between(self, target: Buffer, source: Buffer) -> None:
        """Copy by the copy queue, and wait."""
        with self.device.queue(QueueKind.COPY) as queue:
            queue.copy(target, source, _WORDS.nbytes)
        self.device.synchronize()

    def do(self, stage: str, plant: Callable[[], object]) -> None:
        self.lines = LINES[stage]
        plant()
        if stage == "launch":
            self.launch()
        elif stage == "copy":
            self.copy()
        elif stage == "idle":
            self.work()
        elif stage == "reset":
            self.device.reset()
        elif stage == "close":
            self.device.close()
        else:
            raise ValueError(stage)

    def reset(self) -> None:
        self.device.reset()

    def work(self) -> None:
        """Load, upload, launch, copy, download: all parts of the driver."""
        device = self.device
        image = kernels.objects(chips.facts(self.chip))["fill"]
        with (
            device.load(image) as program,
            device.alloc(_WORDS.nbytes) as source,
            device.alloc(_WORDS.nbytes) as result,
        ):
            source.copy_from(_WORDS)
            self.copy_between(result, source)
            assert (result.numpy(np.uint32) == _WORDS).all()
            self.fill(program, result)
            device.synchronize()
            assert (result.numpy(np.uint32) == 3).all()

    def intact(self) -> str:
        for number, witness in enumerate(self.witnesses):
            if not (witness.numpy(np.uint32) == _WORDS + number).all():
                return f"a buffer in {witness.placement.value} memory has changed"
        return ""

    def memory_used(self) -> int:
        used = {sensor.name: sensor for sensor in self.device.sensors()}["memory_used_bytes"]
        return int(used.read())

    def close(self) -> None:
        if self._opened:
            self.device.close()

    def left(self) -> str:
        machine = self.machine
        found = {
            "contexts": len(machine.contexts),
            "nodes": len(machine.nodes),
            "memory": machine.memory.used,
        }
        return str(found) if any(found.values()) else ""

    def stop(self) -> None:
        for node in list(self.machine.nodes):
            node.close()  # type: ignore[attr-defined]
        self.machine.close()

    def objections(self) -> list[str]:
        return list(self.machine.violations)

    def has_struck(self, fault: Planted | str) -> bool:
        """Whether a planted fault has met the driver."""
        return fault in self.machine.plan.struck

    def cure(self) -> None:
        """Take all causes away."""
        self.machine.plan.clear()
