"""One of the eight queue slots of an SDMA engine: its registers, ring and doorbell.

All pointers are in bytes. Facts: Linux 6.12 sdma_v6_0.c (order of set-up, byte units),
gc_11_0_0_{sh_mask,default}.h.
"""

from __future__ import annotations

import struct

from ugpu.hcq.registers.fields import RegisterValue
from ugpu.virtual.amd.engines.sdma.queue import SdmaQueue, SdmaSetup
from ugpu.virtual.amd.engines.sdma.state import EngineState
from ugpu.virtual.amd.registers import Writer

POWER_ON = {"RB_CNTL": 0x00040800, "IB_CNTL": 0x00000100, "CONTEXT_STATUS": 0x00000804}
SETUP_REGISTERS = ("RB_BASE", "RB_BASE_HI", "RB_RPTR_ADDR_LO", "RB_RPTR_ADDR_HI")


class SdmaSlot:
    """One queue slot. All methods run with the chip's lock held."""

    def __init__(self, engine: EngineState, number: int) -> None:
        self.engine = engine
        self.number = number
        self.queue: SdmaQueue | None = None
        self._write("RB_CNTL", self._ring_control)
        for name in ("RB_WPTR", "RB_WPTR_HI", "MINOR_PTR_UPDATE"):
            self._write(name, self._wptr_written)
        for name in SETUP_REGISTERS:
            self._write(name, self._setup_written(name))
        for name, reader in (
            ("RB_RPTR", lambda: self._rptr() & 0xFFFF_FFFF),
            ("RB_RPTR_HI", lambda: self._rptr() >> 32),
            ("RB_WPTR", lambda: self._wptr() & 0xFFFF_FFFF),
            ("RB_WPTR_HI", lambda: self._wptr() >> 32),
            ("CONTEXT_STATUS", self._status),
        ):
            engine.on_read(self._name(name), reader)

    def __repr__(self) -> str:
        return f"SdmaSlot({self.engine.instance}.{self.number}, {self.queue!r})"

    def _name(self, name: str) -> str:
        return f"SDMA{self.engine.instance}_QUEUE{self.number}_{name}"

    def _write(self, name: str, writer: Writer) -> None:
        self.engine.on_write(self._name(name), writer)

    def _set(self, name: str, value: int) -> None:
        self.engine.set(self._name(name), value)

    def value(self, name: str) -> RegisterValue:
        """Return a register of this slot with its fields."""
        return self.engine.fields(self._name(name))

    def flag(self, text: str) -> None:
        """Record a violation: an access that boards tolerate."""
        self.engine.flag(f"queue {self.number}: {text}" if self.number else text)

    def fault(self, text: str) -> None:
        """Record a fault: an access that fails on a board."""
        self.engine.fault(f"queue {self.number}: {text}" if self.number else text)

    def reset(self) -> None:
        """Discard the queue; registers have power-on values (the engine has cleared them)."""
        self.drop()
        for name, value in POWER_ON.items():
            self._set(name, value)

    def drop(self) -> None:
        """Remove the queue at once."""
        if self.queue is not None:
            self.queue.kill()
            self.engine.retire(self.queue)
            self.queue = None

    # ---- queues given by a descriptor ---------------------------------------------------------

    @property
    def active(self) -> SdmaQueue | None:
        """The queue, under the name that other engines' slots use."""
        return self.queue

    def doorbell_dword(self) -> int:
        """Return the dword index of the doorbell, or -1 if the queue has none."""
        return self.value("DOORBELL_OFFSET").OFFSET if self.value("DOORBELL").ENABLE else -1

    def map(self, mqd: int, wptr: int, vmid: int = 0) -> None:
        """Enable a descriptor's ring in `vmid`; both addresses are in VMID 0."""
        hub, chip, layout = self.engine.chip.gc, self.engine.chip, self.engine.packets
        data, fault = hub.read(0, mqd, 4 * layout.descriptor_dwords, self.engine.client)
        pointer, wptr_fault = hub.read(0, wptr, 8, self.engine.client)
        if fault is not None or wptr_fault is not None:
            self.fault(f"descriptor at {mqd:#x} or pointer at {wptr:#x} cannot be read")
            return
        words = struct.unpack(f"<{layout.descriptor_dwords}I", data)
        for dword, name in layout.descriptor.items():
            chip.space.write(self.engine.index(self._name(name)), words[dword])
        for name, value in zip(
            ("RB_WPTR", "RB_WPTR_HI"), struct.unpack("<II", pointer), strict=True
        ):
            self._set(name, value)
        register = chip.space.register("gc", self._name("RB_CNTL"))
        control = register.insert(words[0], {"RB_VMID": vmid, "RB_ENABLE": 1})
        chip.space.write(self.engine.index(self._name("RB_CNTL")), control)

    def unmap(self, *, reset: bool) -> None:
        """Unmap the queue between packets, as the scheduler does, or by a reset: both at once."""
        self.drop()
        self._set("RB_CNTL", POWER_ON["RB_CNTL"])
        self._set("DOORBELL", 0)

    # ---- the ring -----------------------------------------------------------------------------

    def _wide(self, low: str, high: str) -> int:
        get = self.engine.get
        return get(self._name(low)) | get(self._name(high)) << 32

    def _rptr(self) -> int:
        if self.queue is not None:
            return self.queue.rptr
        return self._wide("RB_RPTR", "RB_RPTR_HI")

    def _wptr(self) -> int:
        if self.queue is not None:
            return self.queue.wptr
        return self._wide("RB_WPTR", "RB_WPTR_HI")

    def _status(self) -> int:
        """Read CONTEXT_STATUS: IDLE is 0 while the queue has work or is hung (Linux 6.12
        amdgpu_amdkfd_gfx_v11.c, hqd_sdma_destroy_v11, waits for IDLE)."""
        layout = self.engine.chip.space.register("gc", self._name("CONTEXT_STATUS"))
        idle = self.queue is None or not self.queue.busy
        return layout.insert(POWER_ON["CONTEXT_STATUS"], {"IDLE": int(idle)})

    def _ring_control(self, value: int) -> None:
        if value & 1 and self.queue is None:
            self._enable()
        elif not value & 1 and self.queue is not None:
            if self.queue.busy and not self.queue.hung:
                self.engine.chip.note(f"SDMA{self.engine.instance}: ring disabled with work in it")
            for name, pointer in (("RPTR", self.queue.rptr), ("WPTR", self.queue.wptr)):
                self._set(f"RB_{name}", pointer & 0xFFFF_FFFF)
                self._set(f"RB_{name}_HI", pointer >> 32)
            self.drop()

    def _enable(self) -> None:
        control = self.value("RB_CNTL")
        report = self._wide("RB_RPTR_ADDR_LO", "RB_RPTR_ADDR_HI")
        setup = SdmaSetup(
            vmid=control.RB_VMID,
            base=self._wide("RB_BASE", "RB_BASE_HI") << 8,
            size=4 << control.RB_SIZE,
            rptr_report=report & ~3 if control.RPTR_WRITEBACK_ENABLE else 0,
            privileged=bool(control.RB_PRIV),
        )
        if setup.base == 0 or setup.size < 256:
            self.fault(f"ring enabled at {setup.base:#x} with {setup.size} bytes")
        if control.RB_SWAP_ENABLE or control.WPTR_POLL_SWAP_ENABLE:
            self.fault("byte swapping is not modelled")
        other = self.engine.rival(self.number)
        if other is not None:
            self.flag(f"enabled with the doorbell of queue {other}")
        if report & 7:
            self.flag(f"RPTR write-back to {report:#x}, which is not 8-byte aligned")
        if self._minor_update():
            self.flag("ring enabled while MINOR_PTR_UPDATE is set")
        rptr = self._wide("RB_RPTR", "RB_RPTR_HI")
        wptr = self._wide("RB_WPTR", "RB_WPTR_HI")
        self.queue = SdmaQueue(self, setup, rptr)
        if wptr != rptr:
            self.queue.ring(wptr)

    def _minor_update(self) -> int:
        return self.engine.get(self._name("MINOR_PTR_UPDATE")) & 1

    def _wptr_written(self, value: int) -> None:
        if self.queue is not None and not self._minor_update():
            wptr = self._wide("RB_WPTR", "RB_WPTR_HI")
            if wptr > self.queue.wptr:
                self.queue.ring(wptr)

    def _setup_written(self, name: str) -> Writer:
        def written(value: int) -> None:
            if self.queue is not None:
                self.flag(f"{name} written with {value:#x} while the ring is enabled")

        return written

    def doorbell(self, dword: int, value: int) -> bool:
        """Handle a doorbell write; see board.DoorbellTarget."""
        if self.doorbell_dword() != dword:
            return False
        self.engine.set(self._name("DOORBELL"), CAPTURED=1)
        if self.queue is None:
            return False
        self.queue.ring(value)
        return True
