"""A group of channels as host schedules it: a TSG, which has an engine for a time slice at a time.

Source: open-gpu-kernel-modules 580.142 kernel_channel_group.c and volta/gv100/dev_ram.h (the
default of 128 << 3 microseconds), ctrla06c.h (time slices, preemption).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from hcq.clock import Work
from nv.virtual.sm_contract import Attention

if TYPE_CHECKING:
    from nv.virtual.host.channel import Channel
    from nv.virtual.host.runlist import Runlist

DEFAULT_TIMESLICE_US = 128 << 3


class ChannelAttention(Attention):
    """Conditions that the running work of one channel checks."""

    def __init__(self) -> None:
        super().__init__()
        self.group: TimeSliceGroup | None = None

    def wait_aside(self) -> None:
        """Give the engine to the next group, and wait for the next slice or for the end."""
        if self.group is not None:
            self.group.runlist.stand_aside(self.group)


class TimeSliceGroup:
    """Channels that share an engine's context; the runlist's lock protects all of it.

    A thread of its own serves the group's channels in turn, while the group has the engine.
    timeslice_s holds once another group wants the engine; alone, a group keeps it.
    """

    def __init__(self, runlist: Runlist, timeslice_us: int = DEFAULT_TIMESLICE_US) -> None:
        self.runlist = runlist
        self.timeslice_s = timeslice_us * 1e-6
        self.channels: list[Channel] = []
        self.running: Channel | None = None  # its work may stand aside, and then has no engine
        self.aside = False  # asked to stand aside
        self.until = 0.0  # end of its slice; 0 until one of its threads has taken it up
        self.began = 0.0  # when it got the engine
        self.turn = 0
        self.thread: threading.Thread | None = None

    @property
    def working(self) -> bool:
        """A channel's work runs, or stands aside."""
        return self.running is not None

    @property
    def in_program(self) -> bool:
        """A grid runs, is translated, or stands aside."""
        return self.running is not None and self.running.attention.in_program

    @property
    def work(self) -> Work:
        """Return the work of the group; see hcq.clock.Part."""
        if self.running is not None and self.in_program:
            return self.running.attention.work
        busy = self.working or self.next_channel() is not None
        return Work.ENGINES if busy else Work.NONE

    def ask_aside(self, value: bool) -> None:
        """Ask the running work to stand aside, or let it go on."""
        self.aside = value
        if self.running is not None:
            self.running.attention.aside = value

    def next_channel(self) -> Channel | None:
        """The next channel with something to do, in turn."""
        count = len(self.channels)
        for step in range(count):
            channel = self.channels[(self.turn + step) % count]
            if channel.has_work and channel.ready():
                return channel
        return None

    def granted(self) -> None:
        """The group has the engine from now on, and is to take it up."""
        self.began = time.perf_counter()
        self.until = 0.0
        self.ask_aside(False)

    def begin(self) -> None:
        """The group's slice starts: from here on its end can be asked for."""
        self.until = time.perf_counter() + self.timeslice_s
