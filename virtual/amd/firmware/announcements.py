"""Notifications from the SMU to its driver by interrupt 0xFE: throttling, fans, power source.

Facts: Linux 6.12 smu_v13_0.c (smu_v13_0_set_irq_state: identifier and mask;
smu_v13_0_irq_process: acknowledgement, events), mp_13_0_0 register header; names of the events,
amdgpu_smu.h of later kernels.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ugpu.am.regs import constants
from ugpu.virtual.amd.block import Block, Reset

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board
    from ugpu.virtual.amd.firmware.smumetrics import Metrics

_CLIENT = constants("soc15_ih_clientid").SOC15_IH_CLIENTID_MP1
AC, DC, THROTTLING, FAN_ABNORMAL, FAN_RECOVERY = 3, 4, 7, 8, 9
_MOST = 16  # maximum of pending events; further ones are lost


class Announcements(Block):
    """Announce events of the board or its environment: throttling, fans and the power source.

    UNSURE: that an event waits for the acknowledgement of the previous one, and that events while
    the interrupt is masked are never announced; Linux acknowledges each event before handling it.
    """

    def __init__(self, chip: Board, metrics: Metrics) -> None:
        super().__init__(chip, "mp1")
        self._metrics = metrics
        self._waiting: deque[int] = deque()
        self._open = False  # an announcement has not been acknowledged
        self._reenabled = True  # changes of the power source are announced
        self.on_write("MP1_SMN_IH_SW_INT_CTRL", self._control)

    def reset(self, scope: Reset) -> None:
        """Drop pending events; nothing is announced before a driver unmasks the interrupt."""
        self._waiting.clear()
        self._open = False
        self._reenabled = True
        self._metrics.throttling.clear()
        self.set("MP1_SMN_IH_SW_INT_CTRL", INT_MASK=1)

    def throttle(self, reason: str) -> None:
        """Lower the clocks for THROTTLER_<reason>_BIT, until `relax`."""
        with self.chip.lock:
            names = constants(self.chip.facts.smu.tables)
            self._metrics.throttling[names[f"THROTTLER_{reason}_BIT"]] = 40
            self._announce(THROTTLING)

    def relax(self) -> None:
        """End the throttling, which is not announced."""
        with self.chip.lock:
            self._metrics.throttling.clear()

    def stall_fan(self) -> None:
        """Announce that a fan does not turn as it should."""
        with self.chip.lock:
            self._announce(FAN_ABNORMAL)

    def turn_fan(self) -> None:
        """Announce that the fan turns again."""
        with self.chip.lock:
            self._announce(FAN_RECOVERY)

    def supply(self, *, battery: bool) -> None:
        """Change the power source; announced once per ReenableAcDcInterrupt message."""
        with self.chip.lock:
            if self._reenabled:
                self._reenabled = False
                self._announce(DC if battery else AC)

    def reenable(self) -> None:
        """Handle the message ReenableAcDcInterrupt."""
        self._reenabled = True

    def _announce(self, event: int) -> None:
        if self.fields("MP1_SMN_IH_SW_INT_CTRL").INT_MASK or len(self._waiting) >= _MOST:
            return
        self._waiting.append(event)
        self._next()

    def _next(self) -> None:
        if self._waiting and not self._open:
            self._open = True
            source = self.fields("MP1_SMN_IH_SW_INT").ID
            event = self._waiting.popleft()
            self.chip.ih.raise_interrupt(_CLIENT, source, data=(event, 0, 0, 0))

    def _control(self, value: int) -> None:
        control = self.fields("MP1_SMN_IH_SW_INT_CTRL")
        if control.INT_MASK:
            self._waiting.clear()
        if control.INT_ACK:
            self.set("MP1_SMN_IH_SW_INT_CTRL", INT_ACK=0)
            self._open = False
            self._next()
