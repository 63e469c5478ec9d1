"""Cleaner: overwrites a holder's data in multiprocessors, local memory and the kernels' heap.

It is not known whether anything clears shared memory between two processes. The resource manager's
sources do not; LeftoverLocals (arXiv 2401.16603) found no leftovers on NVIDIA GPUs with CUDA's
driver, whose part in it is not public.

One group occupies a whole multiprocessor: its 1024 threads have 64 of the 64 Ki registers each, and
all shared memory that a group can have. The code writes R0 to R61; the last two registers that a
launch requests are the program counter's (Mesa 25.0.7, src/nouveau/compiler/nak/sm70.rs,
hw_reserved_gprs; "2" for the same reason in Jia et al., arXiv 1804.06826). No group ends before all
have begun, so that each multiprocessor has one. Groups wait about 10 ms for all others; `gap`
reports how many groups timed out.

The kernel is PTX and requires an installed assembler; without one `gap` reports that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ugpu.hcq.errors import MissingDependency
from ugpu.hcq.rings import proof as rings
from ugpu.hcq.work.command import Barrier, Command, Fill, Launch
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.nv.packets.launch import LaunchDetails
from ugpu.nv.rm.memory import Memory, allocate_reachable
from ugpu.nv.work import proof

if TYPE_CHECKING:
    from ugpu.hcq.work.program import Kernel, Program
    from ugpu.nv.work.holder import WorkHolder
    from ugpu.nv.work.queue import ChannelQueue

_THREADS, _REGISTERS = 1024, 64
_VALUES = 61  # besides the address of shared memory; with 61, nothing is spilled
_STEP = 16  # bytes that a thread stores at a time
_POLLS = 1 << 14  # about 0.7 us each
_COUNTS = 8  # bytes: groups that have begun, and groups that did not see all of them
_PTX = f"""
.version 7.0
.target sm_75
.address_size 64
.extern .shared .align 16 .b8 all[];
.visible .entry clean(.param .u64 counts, .param .u32 size, .param .u32 groups)
.reqntid {_THREADS}, 1, 1
{{
  .reg .pred %p;
  .reg .b32 %base, %at, %place, %size, %groups, %found, %left, %v<{_VALUES}>;
  .reg .b64 %counts;
  ld.param.u32 %size, [size];
  mov.u32 %base, all;
  mov.u32 %at, %tid.x;
  shl.b32 %at, %at, {_STEP.bit_length() - 1};
ZERO:
  setp.ge.u32 %p, %at, %size;
  @%p bra REGISTERS;
  add.u32 %place, %base, %at;
  st.volatile.shared.v4.u32 [%place], {{0, 0, 0, 0}};
  add.u32 %at, %at, {_THREADS * _STEP};
  bra ZERO;
REGISTERS:
  bar.sync 0;
  {" ".join(f"ld.volatile.shared.u32 %v{n}, [%base+{4 * n}];" for n in range(_VALUES))}
  bar.sync 0;
  {" ".join(f"st.volatile.shared.u32 [%base+{4 * n}], %v{n};" for n in range(_VALUES))}
  mov.u32 %at, %tid.x;
  setp.ne.u32 %p, %at, 0;
  @%p bra END;
  ld.param.u64 %counts, [counts];
  ld.param.u32 %groups, [groups];
  mov.u32 %left, {_POLLS};
  atom.global.add.u32 %found, [%counts], 1;
WAIT:
  ld.relaxed.gpu.global.u32 %found, [%counts];
  setp.ge.u32 %p, %found, %groups;
  @%p bra END;
  sub.u32 %left, %left, 1;
  setp.ne.u32 %p, %left, 0;
  @%p bra WAIT;
  red.global.add.u32 [%counts+4], 1;
END:
  bar.sync 0;
  ret;
}}
""".encode()


class Cleaner(rings.Cleaner):
    """The cleaner of one holder. It clears local memory, the kernels' heap, shared memory and
    registers, but for what `gap` names afterwards."""

    def __init__(self, driver: WorkHolder) -> None:
        self._driver = driver
        self._program: Program | None = None
        self._counts: Memory | None = None
        self._problem = ""  # why the kernel cannot run

    @property
    def gap(self) -> str:
        """See Driver.clean_gap."""
        if self._problem or self._counts is None:
            return self._problem
        alone = int.from_bytes(self._counts.view[4:_COUNTS], "little")
        if not alone:
            return ""
        return (
            f"{alone} of {self._driver.gpu.sm_count} groups that clear a multiprocessor each did"
            " not run beside all others: a multiprocessor may have had none"
        )

    @property
    def queue(self) -> ChannelQueue:
        """See proof.Cleaner."""
        return self._driver.compute_queue

    def commands(self) -> Sequence[Command]:
        """See proof.Cleaner."""
        commands: list[Command] = [Barrier(), *self._driver.programs.clear_memory()]
        kernel = self._kernel()
        if kernel is not None:
            commands += self._launch(kernel)
        return commands

    def _launch(self, kernel: Kernel) -> list[Command]:
        driver = self._driver
        if self._counts is None:
            self._counts = allocate_reachable(driver.gpu, _COUNTS)
        counts, groups = self._counts.address, driver.gpu.sm_count
        size = driver.target.dynamic_local_memory - kernel.local_size
        arguments = struct.pack("<QII", counts, size, groups)
        launch = Launch(kernel, (groups, 1, 1), (_THREADS, 1, 1), arguments, dynamic_local=size)
        return [Fill(Symbol.constant(counts), 0, _COUNTS), Barrier(), launch]

    def _kernel(self) -> Kernel | None:
        """Return the kernel; None if there is none, with the reason in `_problem`."""
        driver = self._driver
        if self._program is None:
            try:
                way = (driver.compute_queue, lambda queue, end: proof.wait(driver, queue, end))
                self._program = driver.programs.load(_PTX, way=way)
            except MissingDependency as error:
                self._problem = f"shared memory and registers were not cleared: {error}"
                return None
        kernel = self._program["clean"]
        details = kernel.details
        assert isinstance(details, LaunchDetails)
        found = details.code.registers, details.code.stack_size
        self._problem = ""
        if found != (_REGISTERS, 0):
            self._problem = (
                f"not all registers were cleared: the assembler gives {found[0]} registers and "
                f"{found[1]} bytes of stack to a thread, expected {_REGISTERS} and 0"
            )
        return kernel
