"""The virtual NVIDIA machines as stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lab.campaign.stands.stand import LINES, LONG_S, SHORT_S, Stand, hasten
from tests.support.kernels import contract_object
from tests.support.nvidia.nv_machine import left_behind, opened
from tests.support.nvidia.nv_machine import work as all_work
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.queue import QueueKind
from ugpu.virtual.nvidia.gpu import build_machine
from ugpu.virtual.nvidia.options import MachineOptions

_WORDS = np.arange(16384, dtype=np.uint32)


class NvStand(Stand):
    """A machine with one GPU, and our driver on it."""

    def __init__(self, chip: str, seed: int) -> None:
        self._chip, self.seed = chip, seed
        self._switch_on()
        self._opened = False

    def _switch_on(self) -> None:
        self.machine = build_machine(self._chip, MachineOptions())
        hasten(self.machine.clock)
        self.clean = left_behind(self.machine)

    def open(self, stage: str = "", plant: Callable[[], object] | None = None) -> None:
        if plant is not None:
            plant()
        self.device: Any = opened(self.machine)
        self._opened = True
        self.limit(short=False)

    def limit(self, *, short: bool) -> None:
        self.device.limit_s = SHORT_S if short else LONG_S

    def prepare(self) -> None:
        self.program = self.device.load(contract_object(self.device.target))
        self.buffer = self.device.alloc(_WORDS.nbytes)
        self.result = self.device.alloc(_WORDS.nbytes)
        self.witnesses = [
            self.device.alloc(_WORDS.nbytes, placement=placement) for placement in Placement
        ]
        for number, witness in enumerate(self.witnesses):
            witness.copy_from(_WORDS + number)
        self.copy()
        self.launch()

    def launch(self) -> None:
        self.submit()
        self.device.synchronize()
        assert (self.result.numpy(np.uint32) == 3 * _WORDS).all()

    def submit(self) -> None:
        arguments = (self.result, self.buffer, np.uint32(len(_WORDS)), np.uint32(3))
        with self.device.queue() as queue:
            queue.launch(
                self.program["scale"], grid=(len(_WORDS) // 64,), block=(64,), args=arguments
            )

    def copy(self) -> None:
        self.buffer.copy_from(_WORDS)
        with self.device.queue(QueueKind.COPY) as queue:
            queue.copy(self.result, self.buffer, _WORDS.nbytes)
        self.device.synchronize()
        assert (self.result.numpy(np.uint32) == _WORDS).all()

    def do(self, stage: str, plant: Callable[[], object]) -> None:
        self.lines = LINES[stage]
        plant()
        if stage == "launch":
            self.launch()
        elif stage == "copy":
            self.copy()
        elif stage == "idle":
            all_work(self.device)  # allocates, loads, maps
        elif stage == "reset":
            self.device.reset()
        elif stage == "close":
            self.device.close()
        else:
            raise ValueError(stage)

    def reset(self) -> None:
        self.device.reset()

    def work(self) -> None:
        all_work(self.device)

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
        found = left_behind(self.machine)
        return "" if found == self.clean else f"{found}, at first {self.clean}"

    def stop(self) -> None:
        self.machine.close()

    def objections(self) -> list[str]:
        return list(self.machine.violations)

    def again(self) -> None:
        """Restart the machine after the program ends."""
        self.close()
        if left := self.left():
            raise AssertionError(f"left behind: {left}")
        self.machine.close()
        self._switch_on()
