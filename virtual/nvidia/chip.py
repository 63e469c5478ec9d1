"""One virtual GPU: its memory, runlists, channels, error reports and shutdown."""

from __future__ import annotations

from collections import Counter

from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.host.channel import Channel
from ugpu.virtual.nvidia.host.group import TimeSliceGroup
from ugpu.virtual.nvidia.host.runlist import Runlist
from ugpu.virtual.nvidia.host.state import Engine
from ugpu.virtual.nvidia.memory.physical import SystemPages
from ugpu.virtual.nvidia.options import GRAPHICS_COPY_ENGINES, MachineOptions
from ugpu.virtual.nvidia.publisher import Publisher
from ugpu.virtual.nvidia.state import GpuState, MachineState

ENGINE_GR0, ENGINE_COPY0 = 1, 9  # NV2080_ENGINE_TYPE, open-gpu-kernel-modules 580.142 cl2080.h

_ALL_ONES_LIMIT = 64 << 20  # bytes of a mapping that are filled with ones once the GPU is gone


class VirtualGpu(GpuState):
    """One GPU. Its memory and units are described in GpuState."""

    def __init__(
        self, machine: MachineState, index: int, facts: ChipFacts, options: MachineOptions
    ) -> None:
        super().__init__(machine, index, facts, options)
        self._publisher: Publisher | None = None
        self._graveyard: list[SystemPages] = []
        own = range(GRAPHICS_COPY_ENGINES, options.copy_engines)
        names = ["GR0", *(f"CE{number}" for number in own)]
        self.runlists = [
            Runlist(i, f"gpu{index}-{name}", self._idle, options.switch_limit_s)
            for i, name in enumerate(names)
        ]
        machine.kicks += [runlist.kick for runlist in self.runlists]
        self._channels: dict[int, Channel] = {}  # by work submit token
        self.clear_faulted = self._clear_faulted
        # users of each channel number, by runlist: a number is taken while anything holds it
        self._numbers = {runlist.number: Counter[int]() for runlist in self.runlists}

    @property
    def publisher(self) -> Publisher:
        """Return the writer of the GPU's state for programs, created at the first call."""
        if self._publisher is None:
            self._publisher = Publisher(self, self.runlists[0])
        return self._publisher

    # Channels

    def runlist_of(self, engine_type: int) -> Runlist | None:
        """Return the runlist of an NV2080_ENGINE_TYPE; None if the GPU has no such engine."""
        if engine_type == ENGINE_GR0:
            return self.runlists[0]
        number = engine_type - ENGINE_COPY0
        if not 0 <= number < self.options.copy_engines:
            return None
        return self.runlists[max(0, number - GRAPHICS_COPY_ENGINES + 1)]

    def new_channel_number(self, runlist: Runlist) -> int | None:
        """Reserve the lowest free channel of a runlist and return it; None if all are taken."""
        taken = self._numbers[runlist.number]
        for number in range(self.options.channels):
            if not taken[number]:
                taken[number] = 1
                return number
        return None

    def take_channel_number(self, runlist: Runlist, number: int) -> bool:
        """Reserve a channel of a runlist; return whether it exists and was free."""
        taken = self._numbers[runlist.number]
        if taken[number] or number >= self.options.channels:
            return False
        taken[number] = 1
        return True

    def hold_channel_number(self, runlist: Runlist, number: int) -> None:
        """Keep a channel's number from being used again, until `drop_channel_number`."""
        self._numbers[runlist.number][number] += 1

    def drop_channel_number(self, runlist: Runlist, number: int) -> None:
        """End one use of a channel's number; the last end frees it."""
        self._numbers[runlist.number][number] -= 1

    def token(self, runlist: Runlist, number: int) -> int:
        """Return the work submit token: channel [11:0], runlist [22:16], and on GB20x bit 30.

        Source: open-gpu-kernel-modules 580.142 kernel_fifo_tu102.c, _ga100.c, _gb202.c.
        """
        special = 1 << 30 if self.facts.name == "gb202" else 0
        return number | runlist.number << 16 | special

    def add_channel(self, runlist: Runlist, group: TimeSliceGroup, channel: Channel) -> None:
        """Add a channel to a runlist, in a group; its doorbell works from now on."""
        self._channels[self.token(runlist, channel.number)] = channel
        runlist.add(channel, group)

    def remove_channel(self, runlist: Runlist, channel: Channel) -> None:
        """Stop a channel's work and remove the channel."""
        runlist.remove(channel)
        self._channels.pop(self.token(runlist, channel.number), None)
        self.drop_channel_number(runlist, channel.number)

    def remove_engine(self, runlist: Runlist, channel: Channel, engine: Engine) -> None:
        """Remove an engine object from a channel that stays; wait for its work first."""
        if not channel.stopped:
            runlist.pause(channel)
        engine.close()

    def ring(self, token: int) -> None:
        """Handle a write of the doorbell register."""
        if self.lost or self.machine.faults.take(Fault.LOST_DOORBELL, self.index):
            return
        channel = self._channels.get(token)
        if channel is None:
            self.violations.append(f"doorbell with token {token:#x}, which no channel has")
        elif not channel.enabled:
            self.violations.append(f"doorbell of channel {channel.number}, which is not scheduled")
        elif channel.error is None:
            channel.ring()
            self.runlists[token >> 16 & 0x7F].ring(channel)

    def channel_of(self, runlist: Runlist, number: int) -> Channel | None:
        """Return a channel by its runlist and number."""
        return self._channels.get(self.token(runlist, number))

    def _clear_faulted(self, token: int, bit: int) -> bool:
        channel = self._channels.get(token)
        if channel is None or not channel.faulted & bit:
            return False
        channel.faulted = 0
        self.runlists[token >> 16 & 0x7F].ring(channel)
        return True

    def settle(self) -> None:
        """Complete all earlier writes to video memory over the bus."""
        if self.options.doorbell_overtakes:
            for channel in list(self._channels.values()):
                channel.settle()

    def wait_idle(self, limit_s: float = 60.0) -> bool:
        """Wait until no runlist can make progress; return whether that state was reached."""
        return all(runlist.wait_idle(limit_s) for runlist in self.runlists)

    def utilisation(self) -> int:
        """Return the recent utilisation of the graphics engine, in hundredths of a percent."""
        return round(self.runlists[0].load.share() * 10_000)

    def lose(self) -> None:
        """Fall off the bus: calls fail, mapped video memory reads as all ones."""
        if self.lost:
            return
        self.lost = True
        self.report(Xid.FELL_OFF_BUS, "GPU has fallen off the bus.")
        for channel in list(self._channels.values()):
            channel.stop()
        with self.lock:
            for start, size in self.machine.mapped_video_memory(self.index):
                end = start + min(size, _ALL_ONES_LIMIT)
                self.memory.words[start // 8 : end // 8] = 0xFFFF_FFFF_FFFF_FFFF

    # Memory that engines may still touch

    def bury(self, pages: SystemPages) -> None:
        """Keep pages mapped in this process while a running engine may still access them."""
        self._graveyard.append(pages)
        self._idle()

    def _idle(self) -> None:
        if self._graveyard and not any(runlist.running for runlist in self.runlists):
            self._graveyard = []

    def close(self) -> None:
        """Switch off: end threads, free memory. Idempotent."""
        for runlist in self.runlists:
            runlist.close()
        if self._publisher is not None:
            self._publisher.close()
        if self._multiprocessors is not None:
            self._multiprocessors.close()
            self._multiprocessors = None
        self.memory.close()
