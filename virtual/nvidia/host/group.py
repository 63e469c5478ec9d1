"""A group of channels as host schedules it: a TSG, which has an engine for one time slice a turn.

Source: open-gpu-kernel-modules 580.142 kernel_channel_group.c and volta/gv100/dev_ram.h (the
default of 128 << 3 microseconds), ctrla06c.h (time slices, preemption), ctrl2080gr.h
(NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE).
"""

from __future__ import annotations

import enum
import threading
import time

from ugpu.hcq.state.clock import Clock, Deadline, Work
from ugpu.virtual.nvidia.host.channel import Channel

DEFAULT_TIMESLICE_US = 128 << 3


class Preemption(enum.IntEnum):
    """When the compute engine leaves a running grid for another group's work.

    NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE. WFI: once the engine is idle. UNSURE: CTA; its
    name says between groups of threads, the header says "at the instruction level", as for CILP.
    """

    WFI = 0
    CTA = 1
    CILP = 2


class _Switching(Clock):
    """Time in which a group should leave the engine. Time that the model itself needs for the grid
    does not count."""

    def __init__(self, group: TimeSliceGroup) -> None:
        self._group = group

    def work(self) -> Work:
        return self._group.work


class TimeSliceGroup:
    """Channels that share an engine's context. The runlist's lock protects all its state.

    The group's own thread serves its channels in turn, while the group has the engine. timeslice_s
    applies once another group waits for the engine; without one, the group keeps it.
    """

    def __init__(self, timeslice_us: int = DEFAULT_TIMESLICE_US) -> None:
        self.timeslice_s = timeslice_us * 1e-6
        self.channels: list[Channel] = []
        self.running: Channel | None = None  # its work may have stood aside and have no engine
        self.aside = False  # whether it was asked to yield
        self.preemption = Preemption.WFI  # the default: observed on an H100
        self.deadline: Deadline | None = None  # with a grid that does not leave the engine
        self.until = 0.0  # end of its slice; 0 until one of its threads starts the slice
        self.turn = 0
        self.thread: threading.Thread | None = None

    @property
    def working(self) -> bool:
        """Whether a channel's work runs, or yields."""
        return self.running is not None

    @property
    def in_program(self) -> bool:
        """Whether a grid runs, is being translated, or yields."""
        return self.running is not None and self.running.attention.in_program

    @property
    def work(self) -> Work:
        """Return the work of the group; see hcq.state.clock.Part."""
        if self.running is not None and self.in_program:
            return self.running.attention.work
        busy = self.working or self.next_channel() is not None
        return Work.ENGINES if busy else Work.NONE

    def ask_aside(self, value: bool) -> None:
        """Ask the running work to yield, or let it continue."""
        self.aside = value
        self.deadline = None
        if self.running is not None:
            self.running.attention.preempted = self.preemption is not Preemption.WFI
            self.running.attention.aside = value

    def leaves_in_time(self, limit_s: float) -> bool:
        """Return False once a grid that is not preempted has kept the engine longer than the limit.

        Called repeatedly for a group that was asked to yield.
        """
        if self.preemption is not Preemption.WFI or not self.in_program:
            self.deadline = None
            return True
        if self.deadline is None:
            self.deadline = Deadline(_Switching(self), limit_s)
        return not self.deadline.expired()

    def next_channel(self) -> Channel | None:
        """Return the next channel in turn that has something to do; none while the fault of one
        may be served (uvm_gpu_non_replayable_faults.c, "fault and switch")."""
        if any(channel.faulted for channel in self.channels):
            return None
        count = len(self.channels)
        for step in range(count):
            channel = self.channels[(self.turn + step) % count]
            if channel.has_work and channel.ready():
                return channel
        return None

    def granted(self) -> None:
        """Record that the group has the engine from now on; its thread has yet to start a slice."""
        self.until = 0.0
        self.ask_aside(False)

    def begin(self) -> None:
        """Start the group's slice: its end can be requested from now on."""
        self.until = time.perf_counter() + self.timeslice_s
