"""Two versions of a kernel: one that compiles fast and runs at once, and one that runs fast.

The second is compiled behind the program and takes the first one's place, also in graphs and
command buffers that launch it already: both have the same arguments and the same groups
(Program.replace). Their results are equal bit for bit: a kernel with sums that LLVM may reorder has
no first version. If the second fails, the first stays.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ugpu.compiler.codegen.process.behind import Order, behind
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.pattern.work import flops, moved
from ugpu.compiler.runtime.kernels.known import Known, Record
from ugpu.compiler.runtime.kernels.tuners import active
from ugpu.compiler.schedule.group import Group
from ugpu.hcq.device.device import Device
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.errors import Closed, UgpuError
from ugpu.hcq.state.config import config
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.work.program import Program

log = logging.getLogger(__name__)

REORDERED = " reassoc "  # LLVM may reorder such sums: the first version would differ in last bits
VECTORS = "@llvm.fma.v"  # products, whose text has vectors: others are scalar in a first version
# Floating-point operations and bytes of a first version that runs for as long as it saves
# compiling, on a Zen 4: vectors run at half their speed or more, scalars at a tenth.
MOST = {True: (4 << 30, 64 << 20), False: (32 << 20, 8 << 20)}  # by whether it has vectors


def pays(computation: Computation, target: TargetSpec, text: str) -> bool:
    """Return whether a new kernel is to run in a version that compiles fast. The caller holds
    compiler.expression.value.interning."""
    if target.abi != "host" or active() is not None or not config().tiers or REORDERED in text:
        return False
    operations, size = MOST[VECTORS in text]
    return moved(computation) <= size and flops(computation) <= operations


def target_of(device: Device) -> TargetSpec:
    """Return the target that a device's kernels are compiled for. A model translates each kernel
    once more before its first launch, and runs code of few passes about as fast: there the time of
    a kernel is that of compiling it. `UGPU_TIERS=0` compiles the code of boards, and so does a
    recording, which may be played to one. Mesa compiles ir3 in one way, with one key."""
    quick = device.driver.clock.of_model and config().tiers and device.target.abi != "ir3"
    return replace(device.target, quick=quick)


class Tiers:
    """The second versions of one device's kernels. Thread-safe."""

    def __init__(self, device: Device, disk: DiskCache, known: Known) -> None:
        self.device = device
        self._disk = disk
        self._known = known
        self._failures = 0

    def later(self, text: str, record: Record, groups: Sequence[Group], program: Program) -> None:
        """Compile the kernel's second version behind the program, keep it on disk, and have
        `program` run it."""
        done = partial(self._replace, record, tuple(groups), weakref.ref(program))
        behind().submit(Order(text, self.device.target, done))

    def _replace(
        self,
        record: Record,
        groups: Sequence[Group],
        program: weakref.ref[Program],
        result: bytes | UgpuError,
    ) -> None:
        try:
            if isinstance(result, UgpuError):
                raise result
            self._disk.put(record.object, result)
            for group in groups:
                self._known.put(group, record)
            there = program()
            if there is not None:
                there.replace(result)
                log.debug("kernel %s: replaced by its second version", record.name)
        except Closed:
            return  # the device or the program, meanwhile
        except UgpuError as error:
            self._failures += 1
            level = logging.WARNING if self._failures == 1 else logging.DEBUG
            log.log(
                level, "kernel %s runs slower: its second version failed: %s", record.name, error
            )
