"""Hardware queue descriptors: the registers of each queue slot, and the activation of queues.

Facts: Linux 6.12 gc_11_0_0_{offset,sh_mask,default}.h, v11_structs.h (where the MQD mirrors
registers), gfx_v11_0.c (values of a compute MQD, order of activation).
"""

from __future__ import annotations

import struct

from ugpu.virtual.amd.engines.cp.queue import CLIENT_CPC, ComputeQueue, QueueSetup
from ugpu.virtual.amd.engines.cp.state import MecState, Runner, RunningQueue, Unit

POINTERS = ("CP_HQD_PQ_RPTR", "CP_HQD_PQ_WPTR_LO", "CP_HQD_PQ_WPTR_HI")

# Registers that software may write while the queue is active.
LIVE = frozenset(
    (
        "CP_HQD_ACTIVE",
        "CP_HQD_DEQUEUE_REQUEST",
        "CP_HQD_PQ_WPTR_LO",
        "CP_HQD_PQ_WPTR_HI",
        "CP_HQD_PQ_DOORBELL_CONTROL",
        "CP_HQD_PIPE_PRIORITY",
        "CP_HQD_QUEUE_PRIORITY",
        "CP_HQD_QUANTUM",
        "CP_HQD_ERROR",
        "CP_HQD_MSG_TYPE",
        "CP_HQD_EOP_EVENTS",
    )
)


class Slot:
    """One queue slot of a pipe. All methods run with the chip's lock held."""

    def __init__(self, mec: MecState, unit: Unit, me: int, pipe: int, queue: int) -> None:
        self.mec = mec
        self.unit = unit
        self.me = me
        self.pipe = pipe
        self.queue = queue
        self.ring_id = me << 2 | pipe | queue << 4  # the slot's id in interrupt entries
        self.name = f"{unit.name} queue {me}.{pipe}.{queue}"
        self.values: dict[str, int] = {}
        self.sh: list[int] = []
        self.active: ComputeQueue | None = None
        self.reset()

    def __repr__(self) -> str:
        return f"Slot({self.me}.{self.pipe}.{self.queue}, {self.active!r})"

    def reset(self) -> None:
        """Stop the queue and enter the power-on state."""
        if self.active is not None:
            self.active.kill()
            self.mec.retire(self.active)
            self.active = None
        self.values = dict(self.mec.layout.power_on)
        self.sh = self.mec.sh_registers.power_on()

    def _flag(self, text: str) -> None:
        self.mec.chip.violation(f"{self.name}: {text}")

    def _fault(self, text: str) -> None:
        self.mec.chip.fault(f"{self.name}: {text}")

    def _field(self, register: str, field: str) -> int:
        value = self.mec.chip.space.register("gc", register).decode(self.values.get(register, 0))
        return value[field]

    def _wide(self, low: str, high: str) -> int:
        return self.values.get(low, 0) | self.values.get(high, 0) << 32

    def running(self) -> bool:
        """Return whether the slot's pipe executes its firmware."""
        return self.unit.running(self.pipe)

    def executor(self, queue: RunningQueue) -> Runner:
        """Create the executor that runs the packets of the slot's queue."""
        return self.unit.executor(queue)

    def doorbell_dword(self) -> int:
        """Return the dword index of the doorbell, or -1 if the queue has none."""
        control = self.values.get("CP_HQD_PQ_DOORBELL_CONTROL", 0)
        return control >> 2 & 0x3FF_FFFF if control >> 30 & 1 else -1

    def error(self, field: str) -> None:
        """Set a bit of CP_HQD_ERROR."""
        register = self.mec.chip.space.register("gc", "CP_HQD_ERROR")
        self.values["CP_HQD_ERROR"] = register.insert(
            self.values.get("CP_HQD_ERROR", 0), {field: 1}
        )

    # ---- register accesses --------------------------------------------------------------------

    def read(self, name: str) -> int:
        """Read one of the slot's registers."""
        queue = self.active
        if queue is not None:
            if name == "CP_HQD_ACTIVE":
                return 1
            if name == "CP_HQD_PQ_RPTR":
                return queue.rptr % queue.setup.size
            if name == "CP_HQD_PQ_WPTR_LO":
                return queue.wptr & 0xFFFF_FFFF
            if name == "CP_HQD_PQ_WPTR_HI":
                return queue.wptr >> 32
        return self.values.get(name, 0)

    def write(self, name: str, value: int) -> None:
        """Write one of the slot's registers."""
        queue = self.active
        if queue is not None and name not in LIVE and value != self.values.get(name, 0):
            self._flag(f"{name} written with {value:#x} while the queue is active")
        if name == "CP_HQD_ACTIVE":
            self._write_active(value & 1)
            return
        self.values[name] = value
        if queue is None:
            return
        if name == "CP_HQD_PQ_WPTR_LO":
            queue.ring(queue.wptr & ~0xFFFF_FFFF | value)
        elif name == "CP_HQD_PQ_WPTR_HI":
            queue.ring(queue.wptr & 0xFFFF_FFFF | value << 32)
        elif name == "CP_HQD_DEQUEUE_REQUEST":
            self._dequeue(value & 0xF)

    def _write_active(self, active: int) -> None:
        if active and self.active is None:
            self._activate()
        elif not active and self.active is not None:
            self._flag("CP_HQD_ACTIVE cleared without a dequeue")
            self.active.kill()
            self.retire()

    # ---- activation ---------------------------------------------------------------------------

    def _activate(self) -> None:
        setup = self._setup()
        if not self.mec.rlc_ready():
            self._fault("activated before the RLC has booted the CP")
        context = self.mec.chip.space.register("gc", "GCVM_CONTEXT0_CNTL").decode(
            self.mec.get(f"GCVM_CONTEXT{setup.vmid}_CNTL")
        )
        if not context.ENABLE_CONTEXT:
            self._fault(f"activated in VMID {setup.vmid}, whose context is not enabled")
        address = self._mqd_address()
        if address == 0 or address & 0xFF:
            self._fault(f"MQD at {address:#x}: expected a multiple of 256 bytes, not 0")
        rival = self.mec.rival(self)
        if rival is not None:
            self._flag(f"activated with the doorbell of {rival}")
        rptr = self.values.get("CP_HQD_PQ_RPTR", 0)
        wptr = self._wide("CP_HQD_PQ_WPTR_LO", "CP_HQD_PQ_WPTR_HI")
        self.active = ComputeQueue(self.mec, self, setup, rptr, wptr)
        if self.active.rptr != wptr or (setup.wptr_poll and self.mec.polls()):
            self.active.worker.wake()

    def _setup(self) -> QueueSetup:
        size = 2 << self._field("CP_HQD_PQ_CONTROL", "QUEUE_SIZE")
        base = self._wide("CP_HQD_PQ_BASE", "CP_HQD_PQ_BASE_HI") << 8
        report = self._wide("CP_HQD_PQ_RPTR_REPORT_ADDR", "CP_HQD_PQ_RPTR_REPORT_ADDR_HI")
        poll = self._wide("CP_HQD_PQ_WPTR_POLL_ADDR", "CP_HQD_PQ_WPTR_POLL_ADDR_HI")
        eop = self._wide("CP_HQD_EOP_BASE_ADDR", "CP_HQD_EOP_BASE_ADDR_HI") << 8
        if not 64 <= size <= 1 << 30:
            self._flag(f"activated with a ring of {size} dwords")
        if base == 0:
            self._fault("activated without a ring")
        if eop == 0 and self.unit.needs_eop:
            self._fault("activated without an EOP buffer")
        if report & 3 or poll & 7:
            self._flag(f"pointer addresses {report:#x}, {poll:#x} are not aligned")
        if self._field("CP_HQD_PQ_CONTROL", "SLOT_BASED_WPTR"):
            self._fault("SLOT_BASED_WPTR: AQL queues are not modelled")
        if not self._field("CP_HQD_PQ_DOORBELL_CONTROL", "DOORBELL_EN"):
            self.mec.chip.note(f"{self.name} activated without its doorbell")
        return QueueSetup(
            vmid=self._field("CP_HQD_VMID", "VMID"),
            base=base,
            size=size,
            rptr_report=report & ~3,
            wptr_poll=poll & ~7,
            eop_base=eop,
            eop_size=2 << self._field("CP_HQD_EOP_CONTROL", "EOP_SIZE"),
            report_rptr=not self._field("CP_HQD_PQ_CONTROL", "NO_UPDATE_RPTR"),
            privileged=bool(self._field("CP_HQD_PQ_CONTROL", "PRIV_STATE")),
            kernel=bool(self._field("CP_HQD_PQ_CONTROL", "KMD_QUEUE")),
        )

    def map(self, mqd: int, wptr: int, vmid: int = 0) -> None:
        """Load the whole slot from a queue descriptor and activate it, as KIQ and MES do.

        The write pointer is read from memory at `wptr`. Both addresses are of VMID 0; the queue
        runs in `vmid`.
        """
        hub, layout = self.mec.chip.gc, self.mec.layout
        data, fault = hub.read(0, mqd, 4 * layout.dwords, CLIENT_CPC)
        if fault is not None:
            self._fault(f"MQD at {mqd:#x} cannot be read")
            return
        if self.active is not None:
            self._flag("mapped while a queue is in the slot")
            self.active.kill()
            self.retire()
        words = struct.unpack(f"<{layout.dwords}I", data)
        for dword in range(layout.first_hqd, layout.last_hqd + 1):
            owner = self.mec.chip.space.owner(
                self.mec.index("CP_MQD_BASE_ADDR") + dword - layout.first_hqd
            )
            if owner is not None and owner[1] not in ("CP_HQD_ACTIVE", *POINTERS):
                self.values[owner[1]] = words[dword]
        if self._mqd_address() != mqd:
            self._flag(f"MQD at {mqd:#x} says that it is at {self._mqd_address():#x}")
        pointer, fault = hub.read(0, wptr, 8, CLIENT_CPC)
        if fault is not None:
            self._fault(f"write pointer at {wptr:#x} cannot be read")
            return
        self.values["CP_HQD_PQ_RPTR"] = words[layout.rptr]
        self.values["CP_HQD_VMID"] = vmid
        low, high = struct.unpack("<II", pointer)
        self.values["CP_HQD_PQ_WPTR_LO"], self.values["CP_HQD_PQ_WPTR_HI"] = low, high
        self._activate()
        self.connect()

    def _mqd_address(self) -> int:
        return self._wide("CP_MQD_BASE_ADDR", "CP_MQD_BASE_ADDR_HI")

    def connect(self) -> None:
        """Load the compute state from the MQD when the queue's first work arrives.

        The write of CP_HQD_ACTIVE does not load it: tinygrad's AM driver flushes the MQD out of the
        HDP after that write, and its queues run on boards.
        """
        address = self._mqd_address()
        if address == 0 or address & 0xFF:
            return  # reported at activation
        vmid, layout = self._field("CP_MQD_CONTROL", "VMID"), self.mec.layout
        data, fault = self.mec.chip.gc.read(vmid, address, 4 * layout.dwords, CLIENT_CPC)
        if fault is not None:
            self._fault(f"MQD at {address:#x} cannot be read")
            return
        mqd = struct.unpack(f"<{layout.dwords}I", data)
        if mqd[0] != layout.header:
            self._fault(
                f"MQD at {address:#x} begins with {mqd[0]:#010x}, not {layout.header:#010x}"
            )
            return
        for name, dword in layout.compute.items():
            self.sh[self.mec.sh_registers.at(name)] = mqd[dword]

    def _save_mqd(self) -> None:
        """Save the pointers in the MQD when the queue is disconnected."""
        address = self._mqd_address()
        vmid = self._field("CP_MQD_CONTROL", "VMID")
        hub, layout = self.mec.chip.gc, self.mec.layout
        pointers = struct.pack("<I", self.values["CP_HQD_PQ_RPTR"])
        hub.write(vmid, address + 4 * layout.rptr, pointers, CLIENT_CPC)
        low, high = self.values["CP_HQD_PQ_WPTR_LO"], self.values["CP_HQD_PQ_WPTR_HI"]
        hub.write(vmid, address + 4 * layout.wptr, struct.pack("<II", low, high), CLIENT_CPC)

    # ---- dequeue ------------------------------------------------------------------------------

    def unmap(self, *, reset: bool) -> None:
        """Remove the queue, as KIQ and MES do: drain it, or with `reset` reset its waves."""
        self._dequeue(2 if reset else 1)

    def _dequeue(self, request: int) -> None:
        """Handle a DEQUEUE_REQ: 1 drains, 2 resets the waves; both finish later."""
        queue = self.active
        if queue is None or request == 0 or self.mec.chip.faults.dequeue_never:
            return
        if request == 1:
            queue.drain_out()
        elif request == 2:
            if self.running():
                queue.kill()
                self.mec.later(lambda: self._dequeued(queue))
        else:
            self._fault(f"DEQUEUE_REQ {request} (save for later) is not modelled")

    def drained(self, queue: RunningQueue) -> None:
        """Finish the dequeue of a queue that its thread has drained."""
        queue.worker.stop()
        self.mec.later(lambda: self._dequeued(queue))

    def _dequeued(self, queue: RunningQueue) -> None:
        if self.active is not queue:
            return
        if not queue.worker.join(0):
            self.mec.later(lambda: self._dequeued(queue))  # its waves have not ended yet
            return
        self.retire()
        self._save_mqd()

    def retire(self) -> None:
        """Remove the queue from the slot; its pointers stay in the registers."""
        queue = self.active
        assert queue is not None
        for name in POINTERS:
            self.values[name] = self.read(name)
        self.values["CP_HQD_ACTIVE"] = 0
        self.values["CP_HQD_DEQUEUE_REQUEST"] = 0
        self.active = None
        self.mec.retire(queue)
