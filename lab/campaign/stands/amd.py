"""The virtual Navi31 as a stand: directly, and behind the virtual USB bridge; Navi32, Navi48."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from lab.campaign.stands.stand import LINES, LONG_S, SHORT_S, Stand, hasten
from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, plug_in, run, start_forever
from ugpu import hcq
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.am.chips.navi32.facts import FACTS as NAVI32
from ugpu.am.chips.navi48.facts import FACTS as NAVI48
from ugpu.am.device.device import AmDevice, open_device
from ugpu.am.offline import chip as window
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.virtual.amd.gpu import attach, endpoint
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions

BOOT = (
    "config space", "board firmware", "discovery", "memory", "firmware images", "NBIO", "MMHUB",
    "IH", "PSP bootloader", "PSP ring", "TMR", "IP firmware", "SMU", "RLC autoload", "MEC",
    "GFXHUB", "GFX", "compute queue", "copy queues",
)  # fmt: skip
_WORDS = np.arange(16384, dtype=np.uint32)


class AmStand(Stand):
    """A card that stays powered when the device is closed."""

    boot_stages = BOOT
    facts = NAVI31
    device: AmDevice

    def __init__(self, seed: int, **options: Any) -> None:
        built = ChipOptions(**{"vram": 256 << 20, "noise": 0, "seed": seed + 1, **options})
        self.seed = seed
        self.switch_on(built)
        self.changes: dict[str, Any] = {}  # to the attachment: kinds of damaged firmware files
        self._opened = False

    def switch_on(self, options: ChipOptions) -> None:
        self.chip: Any = build_chip(options, self.facts)
        hasten(self.chip.clock)

    # ---- life ----------------------------------------------------------------------------------

    def open(self, stage: str = "", plant: Callable[[], object] | None = None) -> None:
        heard: list[str] = []

        def on_stage(name: str, _seconds: float) -> None:
            heard.append(name)
            if plant is not None and BOOT.index(stage) and name == BOOT[BOOT.index(stage) - 1]:
                plant()

        if plant is not None and stage == BOOT[0]:
            plant()
        self.__dict__.pop("program", None)  # of a device that was closed
        self.device = self.connect(on_stage=on_stage)
        self._opened = True
        self.limit(short=False)

    def limit(self, *, short: bool) -> None:
        self.device.limit_s = SHORT_S if short else LONG_S

    def connect(self, **options: Any) -> Any:
        if "firmware" not in self.changes:
            return plug_in(self.chip, **options)
        way = attach(self.chip.facts.name, self.chip)
        changed = self.changes["firmware"](dict(way.firmware or {}))
        name = f"virtual:{self.chip.facts.name}"
        return open_device(name, replace(way, firmware=changed), **options)

    def prepare(self) -> None:
        self.program = self.device.load(self.code())
        self.out = self.device.alloc(64)
        check_runs(self.device, self.program, self.out, 1)
        self.witnesses = [
            self.device.alloc(_WORDS.nbytes, placement=placement) for placement in Placement
        ]
        for number, witness in enumerate(self.witnesses):
            witness.copy_from(_WORDS + number)

    def code(self) -> bytes:
        return faulty_object(self.facts.isa)

    def do(self, stage: str, plant: Callable[[], object]) -> None:
        self.lines = LINES[stage]
        if stage == "wait":
            start_forever(self.chip, self.device, self.program, self.out)
        plant()
        if stage == "launch":
            check_runs(self.device, self.program, self.out, 5)
        elif stage == "copy":
            self.copy()
        elif stage == "wait":
            self.device.synchronize()
        elif stage == "idle":
            self.device.synchronize()
            self.read_sensors()
            check_runs(self.device, self.program, self.out, 6)
        elif stage == "reset":
            self.device.reset()
        elif stage == "close":
            self.device.close()
        else:
            raise ValueError(stage)

    def read_sensors(self) -> None:
        for sensor in self.device.sensors():
            sensor.read()

    def run(self, kernel: str, *args: object) -> None:
        """Run a kernel of tests.support.amd.am_faulty."""
        run(self.device, self.program, kernel, self.out, *args)

    def allocate_host(self) -> None:
        """Take much host memory that the card reaches."""
        self.device.alloc(8 << 20, placement=Placement.HOST).close()

    def copy(self) -> None:
        with self.device.alloc(_WORDS.nbytes) as buffer:
            buffer.copy_from(_WORDS)
            self.device.synchronize()
            assert (buffer.numpy(np.uint32) == _WORDS).all()

    def reset(self) -> None:
        self.device.reset()

    def work(self) -> None:
        self.copy()
        if not hasattr(self, "program"):
            with self.device.load(self.code()) as program, self.device.alloc(64) as out:
                check_runs(self.device, program, out, 9)
        elif self.program.memory is None or self.program.memory.closed or self.out.closed:
            del self.program
            self.work()
        else:
            check_runs(self.device, self.program, self.out, 9)

    def intact(self) -> str:
        for number, witness in enumerate(self.witnesses):
            if not (witness.numpy(np.uint32) == _WORDS + number).all():
                return f"a buffer in {witness.placement.value} memory has changed"
        return ""

    def memory_used(self) -> int:
        return self.device.driver.memory.used

    def close(self) -> None:
        if self._opened:
            self.device.close()

    def stop(self) -> None:
        self.chip.close()

    # ---- what can be seen ----------------------------------------------------------------------

    def left(self) -> str:
        alive = self.chip.msi
        return "" if alive is None else "the transport is still attached"

    def states(self) -> dict[str, str]:
        """Through the open device, or through a window of its own."""
        if self.chip.msi is not None:
            from ugpu.am.failure.states import states

            found: Any = [vars(one) for one in states(self.device.chip)]
        else:
            found = window.named_states(attach(self.chip.facts.name, self.chip))
        return {f"{s['unit']}: {s['name']}": s["remedy"] for s in found if not s["ok"]}

    def objections(self) -> list[str]:
        return list(self.chip.violations)

    @property
    def memory_lost(self) -> bool:
        return self.device.vram_lost


class Navi32Stand(AmStand):
    facts = NAVI32


class Navi48Stand(AmStand):
    facts = NAVI48


class UsbStand(AmStand):
    """The same card behind the virtual bridge. `box` is its enclosure."""

    firmware: Literal["custom", "uas"] = "custom"
    name = "virtual:navi31+usb"

    def switch_on(self, options: ChipOptions) -> None:
        self.card = endpoint("navi31", options=options)
        self.chip = self.card.chip
        hasten(self.chip.clock)
        self.box = Enclosure(self.card, EnclosureOptions(self.firmware))

    def connect(self, **options: Any) -> Any:
        return hcq.open(self.name, enclosure=self.box, **options)

    def close(self) -> None:
        with contextlib.suppress(UgpuError):
            super().close()

    def stop(self) -> None:
        self.box.close()
        self.card.close()
        self.chip.close()

    def left(self) -> str:
        return ""

    def objections(self) -> list[str]:
        return [*self.box.objections, *self.chip.violations]
