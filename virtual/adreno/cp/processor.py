"""The command processor: executes PM4 packets of type 4 and 7.

Dispatches start at CP_EXEC_CS and overlap until CP_WAIT_FOR_IDLE or an event that writes a
timestamp. Dispatches without an ordering between them run in the order of MachineOptions.overlap.
Source: Mesa 25.0.7 src/freedreno/registers/adreno/adreno_pm4.xml; parity, freedreno_pm4.h.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.adreno.cp import memory
from ugpu.virtual.adreno.cp.blit import blit
from ugpu.virtual.adreno.cp.dispatch import ComputeState, decode
from ugpu.virtual.adreno.cp.state import ProcessorState, Ring
from ugpu.virtual.adreno.faults import Cause, GpuFault, PageFault
from ugpu.virtual.adreno.memory.space import AddressSpace, LaunchMemory
from ugpu.virtual.adreno.planted import Planted
from ugpu.virtual.adreno.shader import Dispatch, Ending
from ugpu.virtual.adreno.state import MachineState
from ugpu.virtual.shader.memory import Access

_DEEPEST = 3  # nesting of indirect buffers: the ring's, IB1, IB2 and, on generation 7, IB3
_IGNORED = (
    "CP_NOP", "CP_WAIT_FOR_ME", "CP_WAIT_MEM_WRITES", "CP_SET_DRAW_STATE", "CP_SET_AMBLE",
    "CP_SET_MODE", "CP_SET_MARKER", "CP_THREAD_CONTROL", "CP_CCHE_INVALIDATE",
    "CP_SET_VISIBILITY_OVERRIDE", "CP_SET_SUBDRAW_SIZE", "CP_SKIP_IB2_ENABLE_GLOBAL",
    "CP_SKIP_IB2_ENABLE_LOCAL", "CP_RESET_CONTEXT_STATE", "CP_SET_DRAW_INIT_FLAGS",
    "CP_DRAW_PRED_ENABLE_GLOBAL", "CP_DRAW_PRED_ENABLE_LOCAL", "CP_PREEMPT_DISABLE",
    "CP_MODIFY_TIMESTAMP", "CP_CONTEXT_SWITCH_YIELD", "CP_BV_BR_COUNT_OPS", "CP_LOAD_STATE6",
    "CP_LOAD_STATE6_GEOM", "CP_WHERE_AM_I", "CP_INVALIDATE_STATE",
)  # fmt: skip
# Only the kernel's ring may use them: adreno_pm4.xml, and Linux 6.12 a6xx_gpu.c.
_PRIVILEGED = (
    "CP_ME_INIT", "CP_SET_PROTECTED_MODE", "CP_SMMU_TABLE_UPDATE", "CP_CONTEXT_SWITCH",
    "CP_SET_SECURE_MODE", "CP_BOOTSTRAP_UCODE", "CP_INTERRUPT",
)  # fmt: skip


def odd_parity(value: int) -> int:
    """Return the bit that makes the number of ones odd."""
    return ~value.bit_count() & 1


class CommandProcessor(ProcessorState):
    """Executes one submission. Raises GpuFault where the GPU stops."""

    def __init__(self, machine: MachineState, space: AddressSpace, engine: Ring) -> None:
        super().__init__(machine, space, engine)
        self.compute = ComputeState(machine.constants)
        self._pending: list[Dispatch] = []
        self._depth = 0
        self._handlers = self._table()

    def _table(self) -> dict[int, tuple[str, Callable[[list[int], int], None]]]:
        event = "CP_EVENT_WRITE7" if self.machine.facts.generation == 7 else "CP_EVENT_WRITE"
        own: dict[str, Callable[[list[int], int], None]] = {
            "CP_WAIT_FOR_IDLE": lambda body, at: self.wait_for_idle(),
            "CP_INDIRECT_BUFFER": self._indirect_buffer,
            "CP_LOAD_STATE6_FRAG": lambda body, at: self.compute.load(self, body, at),
            "CP_EXEC_CS": self._exec,
            "CP_EXEC_CS_INDIRECT": self._exec_indirect,
            "CP_RUN_OPENCL": self._run_opencl,
            "CP_BLIT": lambda body, at: blit(self, body, at),
            event: lambda body, at: memory.event_write(self, body, at),
        }
        for name, packet in memory.HANDLERS.items():
            own[name] = self._bound(packet)
        for name in _IGNORED:
            own[name] = lambda body, at: None
        for name in _PRIVILEGED:
            own[name] = self._privileged(name)
        table = {}
        for name, handler in own.items():
            try:
                table[self.codes[name]] = (name, handler)
            except KeyError:
                continue  # the other generation's
        return table

    def _bound(
        self, handler: Callable[[ProcessorState, list[int], int], None]
    ) -> Callable[[list[int], int], None]:
        return lambda body, at: handler(self, body, at)

    def _privileged(self, name: str) -> Callable[[list[int], int], None]:
        def refuse(body: list[int], at: int) -> None:
            raise GpuFault(Cause.PROTECTED, f"{name} in an indirect buffer", at)

        return refuse

    # Packets

    def run(self, address: int, count: int) -> None:
        """Execute an indirect buffer of `count` words."""
        words = self.words(address, count)
        at = 0
        while at < count:
            head, here = words[at], address + 4 * at
            kind = head >> 28
            if kind == 4:
                size, first = head & 0x7F, head >> 8 & 0x3FFFF
                if odd_parity(size) != head >> 7 & 1 or odd_parity(first) != head >> 27 & 1:
                    raise GpuFault(Cause.PARITY, f"type 4 header {head:#010x}", here)
                body = self._body(words, at, size, here)
                for number, value in enumerate(body):
                    self.registers.write(first + number, value, here)
            elif kind == 7:
                size, code = head & 0x3FFF, head >> 16 & 0x7F
                if (
                    odd_parity(size) != head >> 15 & 1
                    or odd_parity(code) != head >> 23 & 1
                    or head >> 24 & 0xF
                ):
                    raise GpuFault(Cause.PARITY, f"type 7 header {head:#010x}", here)
                body = self._body(words, at, size, here)
                skip = self._packet(code, body, here)
                at += skip
            else:
                raise GpuFault(Cause.OPCODE, f"header {head:#010x} of packet type {kind}", here)
            at += 1 + size

    def _body(self, words: list[int], at: int, size: int, here: int) -> list[int]:
        body = words[at + 1 : at + 1 + size]
        if len(body) != size:
            raise GpuFault(
                Cause.HANG, f"the packet has {size} words, the buffer {len(body)} more", here
            )
        return body

    def _packet(self, code: int, body: list[int], here: int) -> int:
        """Execute a packet; return how many words after it are skipped."""
        if code == self.codes.CP_COND_REG_EXEC:
            return self._cond_reg_exec(body, here)
        if code == self.codes.CP_COND_EXEC:
            first, second = (body[0] | body[1] << 32), (body[2] | body[3] << 32)
            go = self.words(first, 1)[0] and self.words(second, 1)[0] >= body[4]
            return 0 if go else body[5]
        known = self._handlers.get(code)
        if known is None:
            name = self._name(code)
            if not name:
                raise GpuFault(Cause.OPCODE, f"opcode {code:#x}", here)
            raise self.gap(f"packet {name}", here)
        known[1](body, here)
        return 0

    def _name(self, code: int) -> str:
        for name in ("CP_DRAW_INDX_OFFSET", "CP_DRAW_INDIRECT_MULTI", "CP_DRAW_AUTO",
                     "CP_REG_TEST", "CP_START_BIN", "CP_END_BIN", "CP_SET_BIN_DATA5",
                     "CP_SET_PSEUDO_REG", "CP_DRAW_PRED_SET", "CP_CONTEXT_REG_BUNCH"):  # fmt: skip
            if self.codes[name] == code:
                return name
        return ""

    def _cond_reg_exec(self, body: list[int], here: int) -> int:
        head = self.packets.CP_COND_REG_EXEC_0.decode(body[0])
        if head.MODE == self.codes.RENDER_MODE:
            return 0 if head.SYSMEM else body[1] & 0xFFFFFF  # compute does not render in bins
        if self.machine.facts.generation == 7 and head.MODE == self.codes.THREAD_MODE:
            return 0 if head.BR else body[1] & 0xFFFFFF
        raise self.gap(f"CP_COND_REG_EXEC in mode {head.MODE}", here)

    def _indirect_buffer(self, body: list[int], here: int) -> None:
        address, count = body[0] | body[1] << 32, body[2] & 0xFFFFF
        if self._depth + 1 >= _DEEPEST:
            raise GpuFault(Cause.HANG, "CP_INDIRECT_BUFFER in an IB3", here)
        if count:
            self._depth += 1
            self.run(address, count)
            self._depth -= 1

    # Dispatches

    def _exec(self, body: list[int], at: int) -> None:
        self.indirect = False
        self._queue((body[1], body[2], body[3]), at)

    def _exec_indirect(self, body: list[int], at: int) -> None:
        x, y, z = self.words(body[1] | body[2] << 32, 3)
        self.indirect = True
        size = self.packets.CP_EXEC_CS_INDIRECT_3.decode(body[3])
        local = self.registers.get("HLSQ_CS_NDRANGE_0", "CP_EXEC_CS_INDIRECT")
        for axis in "XYZ":
            if size[f"LOCALSIZE{axis}"] != local[f"LOCALSIZE{axis}"]:
                self.machine.violate(
                    f"CP_EXEC_CS_INDIRECT and HLSQ_CS_NDRANGE_0 differ in LOCALSIZE{axis}"
                )
        self._queue((x, y, z), at)

    def _run_opencl(self, body: list[int], at: int) -> None:
        names = [f"HLSQ_CS_KERNEL_GROUP_{axis}" for axis in "XYZ"]
        x, y, z = (int(self.registers.get(name, "CP_RUN_OPENCL")) for name in names)
        self.indirect = False
        self._queue((x, y, z), at)

    def _queue(self, groups: tuple[int, int, int], at: int) -> None:
        self._pending.append(decode(self, self.compute, groups, at))

    def wait_for_idle(self) -> None:
        """Run the pending dispatches."""
        pending, self._pending = self._pending, []
        if self.machine.options.overlap == "reverse":
            pending.reverse()
        for dispatch in pending:
            self._launch(dispatch)

    def finish(self) -> None:
        """End a submission: KGSL waits for idle and flushes before it retires it."""
        self.wait_for_idle()

    def _strike(self, code: int) -> None:
        """Raise a fault that a test has planted for the next dispatch. code: address of its
        code."""
        take = self.machine.take
        if take(Planted.SHADER):
            raise GpuFault(Cause.SHADER, f"illegal instruction at {code:#x} (planted)", code)
        if take(Planted.FETCH):
            raise PageFault(code, Access.READ, "translation", "SP instruction fetch")
        if take(Planted.EXTERNAL):
            raise PageFault(code, Access.READ, "external", "SP")

    def _launch(self, dispatch: Dispatch) -> None:
        if 0 in dispatch.groups:
            return
        machine = self.machine
        self._strike(dispatch.code_address)
        processors = machine.processors  # their creation must not count as work of the program
        halt = self.engine.halts_at_page_faults
        memory = LaunchMemory(self.space, self.engine.abort, halt=halt)
        self.engine.processing = True
        try:
            outcome = processors.launch(dispatch, memory, self.engine.abort)
        finally:
            self.engine.processing = False
            memory.close()
        with machine.lock:
            machine.culprits = [*machine.culprits, *memory.culprits][-16:]
            for text in outcome.violations:
                machine.violate(text)
        if memory.faults and halt:
            raise memory.faults[0]
        where = f" at {outcome.pc:#x}: {outcome.text}" if outcome.pc else ""
        if outcome.ending is Ending.DONE:
            self.engine.note_faults(memory.faults)
            return
        if outcome.ending is Ending.NOT_IMPLEMENTED:
            raise self.gap(f"{outcome.detail}{where}", outcome.pc)
        if outcome.ending in (Ending.ILLEGAL_INSTRUCTION, Ending.CODE_END):
            raise GpuFault(Cause.SHADER, f"{outcome.detail}{where}", outcome.pc)
        if memory.faults:
            raise memory.faults[0]
        raise GpuFault(Cause.HANG, f"{outcome.ending.value}: {outcome.detail}{where}", outcome.pc)
