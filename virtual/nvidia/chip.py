"""One virtual GPU: its memory, runlists, channels, error reports and shutdown."""

from __future__ import annotations

import hashlib
import importlib
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ugpu.hcq.device import debugging
from ugpu.hcq.state.config import config
from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.nvidia.engines.caches import CacheWatch
from ugpu.virtual.nvidia.faults import Fault, Xid, XidReport
from ugpu.virtual.nvidia.host.channel import Channel, Engine
from ugpu.virtual.nvidia.host.group import TimeSliceGroup
from ugpu.virtual.nvidia.host.runlist import Runlist
from ugpu.virtual.nvidia.memory.formats import format_of
from ugpu.virtual.nvidia.memory.physical import Backing, SystemPages, VideoMemory
from ugpu.virtual.nvidia.memory.space import AddressSpace, SystemMemory
from ugpu.virtual.nvidia.options import GRAPHICS_COPY_ENGINES, MachineOptions
from ugpu.virtual.nvidia.publisher import Publisher
from ugpu.virtual.nvidia.sm_contract import GridLaunch, Multiprocessors, SmEnding, SmOutcome

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.machine import VirtualMachine

ENGINE_GR0, ENGINE_COPY0 = 1, 9  # NV2080_ENGINE_TYPE, open-gpu-kernel-modules 580.142 cl2080.h

# GPCs, and TPCs in each, of the full architecture; two SMs make a TPC (NVIDIA whitepapers
# of Turing, GA102, Ada, H100 and RTX Blackwell).
SHAPES = {"tu102": (6, 6), "ga102": (7, 6), "ad102": (12, 6), "gh100": (8, 9), "gb202": (12, 8)}

# HWW_WARP_ESR codes: Linux 6.12 drivers/gpu/drm/nouveau/nvkm/engine/gr/gf100.c,
# gf100_mp_warp_error.
WARP_ESR = {
    SmEnding.ILLEGAL_INSTRUCTION: 0x09,
    SmEnding.ILLEGAL_ADDRESS: 0x0E,
    SmEnding.MISALIGNED_ADDRESS: 0x0F,
    SmEnding.ASSERT: 0x0B,
}
_DATA_PAGES = 1 << 16  # pages of global data whose content is recorded
_ALL_ONES_LIMIT = 64 << 20  # bytes of a mapping that are filled with ones once the GPU is gone


@dataclass(frozen=True)
class SmException:
    """Exception latched by one SM. esr: HWW_WARP_ESR code. program_counter: GPU address."""

    channel: int
    sm: int
    esr: int
    program_counter: int
    warp: int
    outcome: SmOutcome


def _ptx_multiprocessors(facts: ChipFacts) -> Multiprocessors:
    """Make the SMs that execute PTX. They are large, and a machine that only copies needs none."""
    module = importlib.import_module("ugpu.virtual.nvidia.sm.multiprocessors")
    folder = config().cache_folder / facts.target
    made: Multiprocessors = module.VirtualMultiprocessors(
        cache=folder, debugger=debugging.attached()
    )
    return made


class VirtualGpu:
    """One GPU. `lock` protects its memory, page tables and translations."""

    def __init__(
        self, machine: VirtualMachine, index: int, facts: ChipFacts, options: MachineOptions
    ) -> None:
        self.machine = machine
        self.index = index
        self.facts = facts
        self.options = options
        self.lock = threading.RLock()
        self.memory = VideoMemory(options.memory or facts.memory_size, options.poison)
        self.form = format_of(facts.mmu)
        self.gpu_id = 0x100 * (index + 1)
        self.bus = index + 1
        self.gpcs, self.tpcs_per_gpc = SHAPES[facts.name]
        self.sm_per_tpc = 2
        digest = hashlib.sha256(f"ugpu virtual {facts.name} {index}".encode()).digest()
        self.uuid = digest[:16]
        self.lost = False
        self.reset_required = False
        self.remap_pending = False
        self.ecc_uncorrected = 0
        self.ecc_corrected = 0  # set by tests
        self.link: tuple[int, int] | None = None  # generation and lanes, if set by tests
        self.system_memory: SystemMemory | None = None  # None: bus addresses are this process's
        self.non_stall: Callable[[int], object] = lambda engine_type: None  # NON_STALL_INTERRUPT
        self._spaces: weakref.WeakSet[AddressSpace] = weakref.WeakSet()
        self.exceptions: list[SmException] = []
        self.violations: list[str] = []  # driver errors that hardware would ignore
        self.instruction_cache = CacheWatch("code", self.violations.append)
        self.constant_cache = CacheWatch("constants", self.violations.append)
        self.data_cache = CacheWatch("global data", self.violations.append, _DATA_PAGES)
        self._started = time.perf_counter_ns()
        self._epoch = time.time_ns()
        self._multiprocessors: Multiprocessors | None = None
        self._publisher: Publisher | None = None
        self._graveyard: list[SystemPages] = []
        own = range(GRAPHICS_COPY_ENGINES, options.copy_engines)
        names = ["GR0", *(f"CE{number}" for number in own)]
        self.runlists = [
            Runlist(i, f"gpu{index}-{name}", self._idle, options.switch_limit_s)
            for i, name in enumerate(names)
        ]
        self._channels: dict[int, Channel] = {}  # by work submit token
        self._numbers: dict[int, set[int]] = {runlist.number: set() for runlist in self.runlists}

    @property
    def multiprocessors(self) -> Multiprocessors:
        """The SMs, created at the first launch."""
        if self._multiprocessors is None:
            make = self.options.multiprocessors or _ptx_multiprocessors
            self._multiprocessors = make(self.facts)
        return self._multiprocessors

    @property
    def publisher(self) -> Publisher:
        """Return the writer of the GPU's state for programs, created at the first call."""
        if self._publisher is None:
            self._publisher = Publisher(self)
        return self._publisher

    @property
    def uuid_text(self) -> str:
        """The UUID in the form that programs show."""
        text = self.uuid.hex()
        return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def time_ns(self) -> int:
        """Return PTIMER: nanoseconds, never backwards."""
        return self._epoch + time.perf_counter_ns() - self._started

    def new_space(self) -> AddressSpace:
        """Make an empty address space."""
        with self.lock:
            space = AddressSpace(
                self.memory, self.form, self.lock, self._peer_memory, self.system_memory
            )
            self._spaces.add(space)
            return space

    def invalidate(self, directory: int | None) -> None:
        """Drop the translations of all spaces, or of those with a page directory."""
        with self.lock:
            for space in list(self._spaces):
                if directory is None or space.root == directory:
                    space.invalidate()

    def physical_runs(
        self, address: int, size: int, *, system: bool
    ) -> list[tuple[int, int]] | None:
        """Return the pieces (address in this process, bytes) of physical memory; None if a part
        does not exist or cannot be accessed."""
        if not system:
            inside = address + size <= self.memory.size
            return [(self.memory.base + address, size)] if inside else None
        pieces: list[tuple[int, int]] = []
        while size:
            found = self.system_memory(address, size) if self.system_memory else (address, size)
            if found is None:
                return None
            pieces.append(found)
            address, size = address + found[1], size - found[1]
        return pieces

    def _peer_memory(self, number: int) -> VideoMemory | None:
        gpus = self.machine.gpus
        return gpus[number].memory if number < len(gpus) and not gpus[number].lost else None

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
            if number not in taken:
                taken.add(number)
                return number
        return None

    def take_channel_number(self, runlist: Runlist, number: int) -> bool:
        """Reserve a channel of a runlist; return whether it exists and was free."""
        taken = self._numbers[runlist.number]
        if number in taken or number >= self.options.channels:
            return False
        taken.add(number)
        return True

    def token(self, runlist: Runlist, number: int) -> int:
        """Return the work submit token: channel [11:0], runlist [22:16], and on GB20x bit 30.

        Source: open-gpu-kernel-modules 580.142 kernel_fifo_tu102.c, _ga100.c, _gb202.c.
        """
        special = 1 << 30 if self.facts.name == "gb202" else 0
        return number | runlist.number << 16 | special

    def add_channel(self, group: TimeSliceGroup, channel: Channel) -> None:
        """Add a channel to its group's runlist; its doorbell works from now on."""
        self._channels[self.token(group.runlist, channel.number)] = channel
        group.runlist.add(channel, group)

    def remove_channel(self, runlist: Runlist, channel: Channel) -> None:
        """Stop a channel's work and remove the channel."""
        runlist.remove(channel)
        self._channels.pop(self.token(runlist, channel.number), None)
        self._numbers[runlist.number].discard(channel.number)

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

    def settle(self) -> None:
        """Complete all earlier writes to video memory over the bus."""
        if self.options.doorbell_overtakes:
            for channel in list(self._channels.values()):
                channel.settle()

    def kick(self) -> None:
        """Wake all runlists, of all GPUs: memory that a channel may wait for has changed."""
        for gpu in self.machine.gpus:
            for runlist in gpu.runlists:
                runlist.kick()

    def wait_idle(self, limit_s: float = 60.0) -> bool:
        """Wait until no runlist can make progress; return whether that state was reached."""
        return all(runlist.wait_idle(limit_s) for runlist in self.runlists)

    def utilisation(self) -> int:
        """Return the recent utilisation of the graphics engine, in hundredths of a percent."""
        return round(self.runlists[0].load.share() * 10_000)

    # Errors

    def report(self, xid: Xid, text: str, channel: int | None = None) -> None:
        """Add an Xid report to the kernel log."""
        self.machine.log.append(XidReport(self.index, int(xid), text, channel))

    def latch_exception(self, channel: Channel, grid: GridLaunch, outcome: SmOutcome) -> None:
        """Latch an SM's exception, which stays until it is cleared."""
        x, y, z = outcome.group
        flat = x + grid.grid[0] * (y + grid.grid[1] * z)
        self.exceptions.append(
            SmException(
                channel.number,
                flat % self.facts.sm_count,
                WARP_ESR.get(outcome.ending, 0x01),
                grid.program_address + outcome.program_counter,
                outcome.warp,
                outcome,
            )
        )

    def lose(self) -> None:
        """Fall off the bus: calls fail, mapped video memory reads as all ones."""
        if self.lost:
            return
        self.lost = True
        self.report(Xid.FELL_OFF_BUS, "GPU has fallen off the bus.")
        for channel in list(self._channels.values()):
            channel.stop()
        with self.lock:
            for start, size in self.machine.mapped_video_memory(self):
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

    def free_backing(self, backing: Backing) -> None:
        """Drop one reference to memory; the last one frees it."""
        backing.users -= 1
        if backing.users:
            return
        if self.machine.coherence is not None:
            self.machine.coherence.freed(backing.host, backing.size)
        if backing.gpu is not None:
            owner = self.machine.gpus[backing.gpu]
            with owner.lock:
                owner.memory.free(backing.physical)
        elif backing.pages is not None:
            self.machine.system_used -= backing.pages.size
            for gpu in self.machine.gpus:
                gpu.bury(backing.pages)

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
