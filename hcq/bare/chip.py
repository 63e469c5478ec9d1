"""A chip behind a transport, of any vendor: is it still there, and waits that notice if not."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ParamSpec, Protocol, TypeVar, cast

from ugpu.hcq.bare import remedies
from ugpu.hcq.bare.bus import ALL_ONES, RegisterBus, described
from ugpu.hcq.bare.link import Link
from ugpu.hcq.bare.vram import Vram
from ugpu.hcq.errors import DeviceLost
from ugpu.hcq.registers.fields import BoundRegister, Register, RegisterBlock, RegisterValue
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.base import Transport, Window
from ugpu.hcq.transport.pci.config import SavedConfig
from ugpu.hcq.uapi import constants

P = ParamSpec("P")
R = TypeVar("R")

# Our choice where a vendor names none. Linux 6.12 amdgpu_device.c: register wait, usec_timeout.
REGISTER_LIMIT_S = 0.1


class OfChip(Protocol):
    """The class that drives a block."""

    @property
    def chip(self) -> BareChip: ...


def batched(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method's register writes travel together (Transport.batch): it sets a block up, and
    neither sleeps nor reads memory. See also RegisterBus.setting_up."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        owner = cast(OfChip, args[0])
        with owner.chip.transport.batch(), owner.chip.bus.setting_up():
            return method(*args, **kwargs)

    return run


class BareChip(ABC):
    """One chip: its transport, registers and memory.

    doorbells: the window that rings queues. dark: parts of the chip have no power until a reset
    (bare.rest); the vendor clears it once it has seen that the chip was reset. kept: configuration
    space as first contact found it, None where no other program can reach the slot. command: what
    the command register was set to, None if it may have changed. link: kept out of its low-power
    states. A subclass sets `vram` and `doorbells`.
    """

    vram: Vram
    doorbells: Window

    def __init__(self, transport: Transport, register_bar: int) -> None:
        """register_bar: number of the BAR with registers."""
        self.transport = transport
        self.link = Link(transport)
        self.dark = False
        self.kept: SavedConfig | None = None
        self.command: int | None = None
        self._in_reports: dict[int, Register] = {}  # by index, those named there so far
        self.bus = RegisterBus(
            transport.window(register_bar),
            messages=transport.traits.register_messages,
            runs=transport.traits.staged is None,
        )

    @abstractmethod
    def silent(self) -> bool:
        """Return whether two registers that are never all ones read all ones: a single one may be
        a lost completion."""

    def blocks(self) -> Iterable[RegisterBlock]:
        """Return the blocks of registers, for their names in reports."""
        return ()

    def recent_accesses(self) -> list[str]:
        """Return the last register accesses, oldest first; see bare.bus.described."""
        return described(tuple(self.bus.recent), [*self.blocks()], self._in_reports)

    @property
    def clock(self) -> Clock:
        """The transport's clock, which all waits and pauses use."""
        return self.transport.clock

    def lost(self) -> bool:
        """Return whether the chip is gone: configuration space silent, or registers all ones."""
        return not self.transport.present() or self.silent()

    def unplaced(self) -> bool:
        """Return whether configuration space answers, but the registers' BAR has no address (above
        its four low bits): a reset of the slot cleared it, and nothing restored it."""
        if not self.transport.present():
            return False
        bar = constants("pci_regs").PCI_BASE_ADDRESS_0 + 4 * self.bus.window.index
        return not self.transport.config_read(bar) & ~0xF

    def read_again(self, register: BoundRegister) -> int:
        """Read a register, a second time if it reads all ones: one completion may be lost."""
        value = int(register.current())
        return int(register.read()) if value == ALL_ONES else value

    def check_present(self, while_doing: str) -> None:
        """Raise DeviceLost unless two independent places still answer.

        A single all-ones read may be one lost completion; a dead chip reads all ones everywhere.
        """
        config = self.transport.present()
        if not config or self.silent():
            raise DeviceLost(
                f"the chip stopped responding while {while_doing}",
                config_space="responds" if config else "all ones",
                registers="all ones",
                remedy=remedies.LINK,
            )

    def read_stated(
        self, address: int, most: int, header: int, size_of: Callable[[bytes], int]
    ) -> bytes:
        """Read VRAM with a structure of at most `most` bytes that states its size in its first
        `header` bytes: no more than that where a dword takes several messages. size_of: returns the
        size stated."""
        if not self.bus.runs:
            most = min(most, size_of(self.vram.read(address, header)))
        return self.vram.read(address, most)

    def await_answer(self, seconds: float) -> None:
        """Where a poll is a message, wait until there can be an answer."""
        if self.bus.messages:
            self.clock.sleep(seconds)

    def wait_bits(
        self,
        register: BoundRegister,
        mask: int,
        value: int,
        *,
        unit: str,
        waiting_for: str,
        limit_s: float = REGISTER_LIMIT_S,
    ) -> None:
        """Wait until the bits of `mask` are `value`, see `wait`. Works in a list too
        (bare.program)."""
        if self.bus.recorder is not None:
            self.bus.recorder.wait(register.index, mask, value)
            return
        self.wait(
            register,
            lambda found: int(found) & mask == value,
            unit=unit,
            waiting_for=waiting_for,
            limit_s=limit_s,
        )

    def wait(
        self,
        register: BoundRegister,
        done: Callable[[RegisterValue], bool],
        *,
        unit: str,
        waiting_for: str,
        limit_s: float = REGISTER_LIMIT_S,
    ) -> RegisterValue:
        """Poll `register` until `done(value)`; UnitTimeout after `limit_s`, DeviceLost when gone.

        A value of all ones never counts as done: a dead bus would pass every bit test.
        """
        assert self.bus.recorder is None  # a list uses `wait_bits`
        last: list[RegisterValue] = []

        def probe() -> RegisterValue | None:
            value = register.read()
            last[:] = [value]
            if value == ALL_ONES:
                self.check_present(f"waiting for {waiting_for}")
                return None
            return value if done(value) else None

        return self.clock.wait_until(
            probe,
            unit=unit,
            waiting_for=waiting_for,
            limit_s=limit_s,
            state=lambda: repr(last[0]) if last else "never read",
        )
