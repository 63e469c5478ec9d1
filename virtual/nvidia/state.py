"""What the parts of a machine share: state of one GPU, and of all of them.

`chip.VirtualGpu` adds channels, `rm.objects.DriverState` clients, `machine.VirtualMachine` faults.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ugpu.hcq.device import debugging
from ugpu.hcq.state.config import config
from ugpu.nv import abi
from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.faults import Plan
from ugpu.virtual.nvidia.engines.caches import CacheWatch
from ugpu.virtual.nvidia.engines.coherence import Coherence
from ugpu.virtual.nvidia.faults import Fault, Xid, XidReport
from ugpu.virtual.nvidia.memory.faults import FaultUnit
from ugpu.virtual.nvidia.memory.formats import format_of
from ugpu.virtual.nvidia.memory.physical import PAGE, Backing, VideoMemory
from ugpu.virtual.nvidia.memory.space import AddressSpace, SystemMemory
from ugpu.virtual.nvidia.options import MachineOptions
from ugpu.virtual.nvidia.sm_contract import GridLaunch, Multiprocessors, SmEnding, SmOutcome

# GPCs, and TPCs in each, of the full architecture; two SMs make a TPC (NVIDIA whitepapers
# of Turing, A100, GA102, Ada, H100 and RTX Blackwell).
SHAPES = {
    "tu102": (6, 6), "tu116": (3, 4), "ga100": (8, 8), "ga102": (7, 6), "ad102": (12, 6),
    "gh100": (8, 9), "gb202": (12, 8),
}  # fmt: skip

# HWW_WARP_ESR codes: Linux 6.12 drivers/gpu/drm/nouveau/nvkm/engine/gr/gf100.c,
# gf100_mp_warp_error.
WARP_ESR = {
    SmEnding.ILLEGAL_INSTRUCTION: 0x09,
    SmEnding.ILLEGAL_ADDRESS: 0x0E,
    SmEnding.MISALIGNED_ADDRESS: 0x0F,
    SmEnding.ASSERT: 0x0B,
}
_DATA_PAGES = 1 << 16  # pages of global data whose content is recorded


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


class MachineState:
    """State of the kernel driver and of all GPUs.

    `lock` is the resource manager's: one call at a time. `log` is the kernel log with its Xids.
    kicks: wake the runlists of all GPUs.
    """

    gpus: Sequence[GpuState]

    def __init__(self, options: MachineOptions) -> None:
        self.options = options
        self.abi = abi.select(options.driver)
        self.lock = threading.RLock()
        self.faults: Plan[Fault] = Plan()
        self.log: list[XidReport] = []
        self.system_used = 0
        self.asked: Counter[str] = Counter()  # requested controls and ioctls that are not modelled
        self.refused: list[str] = []  # calls that RM and UVM refused, and why
        self.mappings: dict[int, tuple[Backing, int, int]] = {}  # CPU mappings: offset, size
        self.memblock_size = 0
        self.coherence = Coherence(self._is_system) if self.options.coherence else None
        self._mapping_numbers = itertools.count(1)
        self.kicks: list[Callable[[], object]] = []

    def add_mapping(self, backing: Backing, offset: int, size: int) -> int:
        """Record a CPU mapping; return the number for removing it."""
        number = next(self._mapping_numbers)
        self.mappings[number] = (backing, offset, size)
        return number

    def mapped_video_memory(self, gpu: int) -> list[tuple[int, int]]:
        """Return the CPU's mappings of a GPU's memory: (address, size)."""
        return [
            (backing.physical + offset, size)
            for backing, offset, size in self.mappings.values()
            if backing.gpu == gpu
        ]

    def _is_system(self, page: int) -> bool:
        """Return whether a page of this process does not belong to a GPU's memory."""
        return all(not 0 <= page * PAGE - gpu.memory.base < gpu.memory.size for gpu in self.gpus)


class GpuState:
    """Memory and units of one GPU. `lock` protects its memory, page tables and translations."""

    def __init__(
        self, machine: MachineState, index: int, facts: ChipFacts, options: MachineOptions
    ) -> None:
        self.machine = machine
        self.index = index
        self.facts = facts
        self.options = options
        self.lock = threading.RLock()
        self.memory = VideoMemory(
            options.memory or facts.memory_size, options.poison, shared=options.shared_memory
        )
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
        self.fault_unit: FaultUnit | None = None  # fault buffers, of a card with registers
        self.non_stall: Callable[[int], object] = lambda engine_type: None  # NON_STALL_INTERRUPT
        # CLEAR_FAULTED: the work submit token of a channel, and the bit; whether it was set
        self.clear_faulted: Callable[[int, int], bool] = lambda token, bit: False
        self._spaces: weakref.WeakSet[AddressSpace] = weakref.WeakSet()
        self.exceptions: list[SmException] = []
        self.violations: list[str] = []  # driver errors that hardware would ignore
        self.instruction_cache = CacheWatch("code", self.violations.append)
        self.constant_cache = CacheWatch("constants", self.violations.append)
        self.data_cache = CacheWatch("global data", self.violations.append, _DATA_PAGES)
        self._started = time.perf_counter_ns()
        self._epoch = time.time_ns()
        self._multiprocessors: Multiprocessors | None = None

    @property
    def multiprocessors(self) -> Multiprocessors:
        """The SMs, created at the first launch."""
        if self._multiprocessors is None:
            make = self.options.multiprocessors or _ptx_multiprocessors
            self._multiprocessors = make(self.facts)
        return self._multiprocessors

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

    def kick(self) -> None:
        """Wake all runlists, of all GPUs: memory that a channel may wait for has changed."""
        for kick in self.machine.kicks:
            kick()

    def report(self, xid: Xid, text: str, channel: int | None = None) -> None:
        """Add an Xid report to the kernel log."""
        self.machine.log.append(XidReport(self.index, int(xid), text, channel))

    def latch_exception(self, channel: int, grid: GridLaunch, outcome: SmOutcome) -> None:
        """Latch an SM's exception, which stays until it is cleared."""
        x, y, z = outcome.group
        flat = x + grid.grid[0] * (y + grid.grid[1] * z)
        self.exceptions.append(
            SmException(
                channel,
                flat % self.facts.sm_count,
                WARP_ESR.get(outcome.ending, 0x01),
                grid.program_address + outcome.program_counter,
                outcome.warp,
                outcome,
            )
        )
