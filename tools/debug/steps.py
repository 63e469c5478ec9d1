"""A boot in steps: the driver's own boot, halted after a stage for inspection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed, UgpuError
from ugpu.hcq.find import offline as window
from ugpu.hcq.find.stages import check_stage
from ugpu.hcq.registers.fields import BoundRegister, RegisterBlock, RegisterValue
from ugpu.hcq.state.threads import start
from ugpu.tools.inspect.registers.sources import matching

Say = Callable[[str], object]


class _Abandoned(UgpuError):
    """Ends the boot from within when its stepper is closed."""


class Boot:
    """One boot of `name`, which starts with the first step. Options are those of `hcq.open`.

    `until`, `next` and `finish` continue the boot and return when it halts. Between them, registers
    may be read and written as the driver would (`blocks`). They raise what the driver raises.
    `close` abandons an unfinished boot, or closes the device. say: called for each stage and for
    changes of watched registers. For use by one thread.
    """

    def __init__(self, name: str, say: Say = print, **options: object) -> None:
        self.name = name
        self._say = say
        self._options = options
        self._patterns: list[str] = []  # patterns to watch, until the chip's registers are known
        self._begin()

    def _begin(self) -> None:
        self.stages: list[tuple[str, float]] = []
        self.device: Device | None = None
        self.chip: object = None
        self._watched: dict[str, BoundRegister] = {}
        self._seen: dict[str, RegisterValue] = {}
        self._change = threading.Condition()
        self._running = False  # the boot's thread is running; else it halts, or is over
        self._target: str | None = ""  # the stage to halt after; "": each; None: do not halt
        self._error: BaseException | None = None
        self._over = self._closed = False
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        where = f"after {self.at!r}" if self.stages else "not begun"
        over = ", over" if self._over else ""
        return (
            f"<boot of {self.name}, {where}{over}: next(), until(STAGE), again([STAGE]), "
            "watch(REGISTER), finish()>"
        )

    @property
    def at(self) -> str:
        """The last stage that ended, "" before the first."""
        return self.stages[-1][0] if self.stages else ""

    @property
    def blocks(self) -> Mapping[str, RegisterBlock]:
        """The chip's registers, available from the stage that finds their place."""
        return window.blocks_of(self.chip)

    def next(self) -> str:
        """Run one stage; return its name, "" if the boot is over."""
        before = len(self.stages)
        self._go("")
        return self.at if len(self.stages) > before else ""

    def until(self, stage: str) -> str:
        """Continue to the end of a stage. BadArgument for a name that is not a stage, before
        anything runs, and if the boot ends without the stage."""
        check_stage(self.name, stage)
        if stage in [name for name, _ in self.stages]:
            raise BadArgument(f"stage {stage!r} has already run; the boot is at {self.at!r}")
        self._go(stage)
        if self._over and self.at != stage:
            names = ", ".join(name for name, _ in self.stages)
            raise BadArgument(f"the boot had no stage {stage!r}, and has finished; it had: {names}")
        return stage

    def again(self, stage: str = "") -> str:
        """Repeat a stage, by default the last one that ended: boot again and halt after it. Watched
        registers stay watched. BadArgument before the first stage.

        The boot so far is abandoned, or its device closed. A card continues as after a driver that
        died (docs/recovery.md); a virtual card is a new one.
        """
        target = stage or self.at
        if not target:
            raise BadArgument("no stage has ended yet")
        self._patterns = [*self._watched, *self._patterns]
        self.close()
        self._begin()
        return self.until(target)

    def finish(self) -> Device:
        """Continue to the end; return the device."""
        self._go(None)
        assert self.device is not None
        return self.device

    def watch(self, *patterns: str) -> None:
        """Report after each stage which of these registers have changed."""
        for pattern in patterns:
            for name in matching(self.blocks, pattern, 64):
                block, _, register = name.partition(".")
                self._watched[name] = self.blocks[block][register]
                self._seen[name] = self._watched[name].read()
                self._say(f"  {name}: {self._seen[name]!r}")

    def close(self) -> None:
        """Abandon the boot, or close the device. May be called again."""
        self._closed = not self._over or self._closed
        if self._thread is not None and not self._over:
            with self._change:
                self._running = True
                self._change.notify_all()
            self._thread.join()
        if self.device is not None:
            self.device.close()

    # The boot's thread

    def _go(self, target: str | None) -> None:
        if self._closed:
            raise Closed("the boot was abandoned")
        if self._over:
            if self._error is not None:
                raise self._error
            return
        with self._change:
            self._target, self._running = target, True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="boot", daemon=True)
                start(self._thread)
            self._change.notify_all()
            while self._running:
                self._change.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        options: dict[str, Any] = self._options
        try:
            self.device = hcq.open(self.name, on_stage=self._ended, on_chip=self._found, **options)
        except BaseException as error:
            self._error = error
        with self._change:
            self._over, self._running = True, False
            self._change.notify_all()

    def _found(self, chip: object) -> None:
        self.chip = chip

    def _ended(self, stage: str, seconds: float) -> None:
        self.stages.append((stage, seconds))
        self._say(f"{stage:<24}{seconds * 1e3:8.1f} ms")
        if self._patterns and self.blocks:
            patterns, self._patterns = self._patterns, []
            self.watch(*patterns)
        for name, register in self._watched.items():
            value = register.read()
            if value != self._seen[name]:
                self._say(f"  {name}: {int(self._seen[name]):#010x} -> {value!r}")
                self._seen[name] = value
        with self._change:
            if self._target is None or self._target not in ("", stage):
                return
            self._running = False
            self._change.notify_all()
            while not self._running:
                self._change.wait()
        if self._closed:
            raise _Abandoned("the boot was abandoned")
