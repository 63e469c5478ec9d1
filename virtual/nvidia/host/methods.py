"""Methods of the host unit itself, below 0x100: semaphores, barriers, invalidations.

Source: open-gpu-doc classes/host/clc56f.h, manuals/turing/tu104/dev_pbdma.ref.txt; the fields of
each method from the generated tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ugpu.nv import abi
from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.host import old_semaphore
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.host.semaphore import Operation, reduce, satisfied, store
from ugpu.virtual.nvidia.host.state import ENGINE_FAULTED, PBDMA_FAULTED, ChannelState
from ugpu.virtual.nvidia.memory.faults import Client

# MEM_OP_D_OPERATION. Only privileged channels may invalidate translations and clear access counters
# (dev_pbdma.ref.txt), and programs do not have any.
_PRIVILEGED = (0x09, 0x0A, 0x16)
_INVALIDATIONS = (0x09, 0x0A)  # all of a directory; a range, where the model drops all
_CLEAR_COUNTERS = 0x16  # of accesses: the model counts none
# Membars of the host, and of the second level cache, which all engines share: nothing to do.
_HARMLESS = (0x05, 0x0D, 0x0E, 0x0F, 0x10, 0x15)


@cache
def _offsets(class_id: int) -> dict[str, int]:
    table = abi.methods(class_id)
    names = (
        "NOP", "SEM_ADDR_LO", "SEM_ADDR_HI", "SEM_PAYLOAD_LO", "SEM_PAYLOAD_HI", "SEM_EXECUTE",
        "NON_STALL_INTERRUPT", "WFI", "MEM_OP_A", "MEM_OP_B", "MEM_OP_C", "MEM_OP_D", "YIELD",
        "SET_REFERENCE", "FB_FLUSH", "ILLEGAL", "CLEAR_FAULTED",
    )  # fmt: skip
    return {name: table.method(name).offset for name in names if name in table}


class HostMethods:
    """One channel's registers of the host unit."""

    def __init__(self, channel: ChannelState) -> None:
        self._channel = channel
        self._values: dict[int, int] = {}
        self._table = abi.methods(channel.class_id)
        offsets = self._offset = _offsets(channel.class_id)
        self._actions: dict[int, Callable[[int], Callable[[], bool] | None]] = {
            offsets["SEM_EXECUTE"]: self._semaphore,
            offsets["WFI"]: self._wait_for_idle,
            offsets["MEM_OP_D"]: self._memory_operation,
            offsets["SET_REFERENCE"]: self._set_reference,
        }
        for name in ("NOP", "YIELD"):
            self._actions[offsets[name]] = self._nothing
        self._actions[offsets["NON_STALL_INTERRUPT"]] = self._non_stall
        if channel.gpu.facts.family == "turing":  # later an interrupt alone
            self._actions[offsets["CLEAR_FAULTED"]] = self._clear_faulted
        self._latched = {
            offsets[name]
            for name in (
                "SEM_ADDR_LO", "SEM_ADDR_HI", "SEM_PAYLOAD_LO", "SEM_PAYLOAD_HI",
                "MEM_OP_A", "MEM_OP_B", "MEM_OP_C",
            )
        }  # fmt: skip
        old = old_semaphore.offsets(self._table)
        if old:
            self._latched.update(old[:3])
            self._actions[old[3]] = self._old_semaphore
            self._old = old

    def method(self, address: int, value: int) -> Callable[[], bool] | None:
        """Execute one method. If the channel must wait, return the condition to poll."""
        if address in self._latched:
            self._check(address, value)
            self._values[address] = value
            return None
        action = self._actions.get(address)
        if action is None:
            raise ChannelError(
                Xid.PBDMA_ERROR, f"host method {address:#x} = {value:#x} is not modelled"
            )
        self._check(address, value)
        return action(value)

    def _check(self, address: int, value: int) -> None:
        found = self._table.find(address)
        if found is not None and found[0].undefined(value):
            raise ChannelError(
                Xid.PBDMA_ERROR, f"{found[0].name} = {value:#x}: reserved bits are set"
            )

    def _value(self, name: str) -> int:
        return self._values.get(self._offset[name], 0)

    def _non_stall(self, value: int) -> None:
        channel = self._channel
        channel.gpu.non_stall(channel.runlist_engine)

    def _clear_faulted(self, value: int) -> None:
        # The model sets the bit before it reports the fault: hardware tries again for a while.
        token, bit = value & 0x7FFF_FFFF, ENGINE_FAULTED if value >> 31 else PBDMA_FAULTED
        if not self._channel.gpu.clear_faulted(token, bit):
            raise ChannelError(
                Xid.PBDMA_ERROR, f"CLEAR_FAULTED {value:#x}: the channel's bit is not set"
            )

    def _nothing(self, value: int) -> None:
        return None

    def _wait_for_idle(self, value: int) -> None:
        self._channel.wait_idle()

    def _set_reference(self, value: int) -> None:
        self._channel.wait_idle()
        self._channel.system_barrier()

    def _memory_operation(self, value: int) -> None:
        operation = value >> 27  # the host does not wait for engines first
        if operation in _INVALIDATIONS and self._channel.privileged:
            self._values[self._offset["MEM_OP_D"]] = value
            # TLB_INVALIDATE_PDB: ONE names a directory, ALL means every space.
            gpu, how = self._channel.gpu, self._value("MEM_OP_C")
            gpu.invalidate(None if how & 1 else self._directory())
            if gpu.fault_unit is not None:  # REPLAY, ACCESS_TYPE
                address = self._value("MEM_OP_B") << 32 | self._value("MEM_OP_A") & ~0xFFF
                gpu.fault_unit.replay(how >> 2 & 7, self._directory(), address, how >> 7 & 7)
        elif operation == _CLEAR_COUNTERS and self._channel.privileged:
            return
        elif operation not in _HARMLESS:
            why = (
                ": the channel is not privileged" if operation in _PRIVILEGED else ": not modelled"
            )
            raise ChannelError(Xid.PBDMA_ERROR, f"MEM_OP_D operation {operation}{why}")

    def _directory(self) -> int:
        """Return the page directory that MEM_OP_C and MEM_OP_D name."""
        low, high = self._value("MEM_OP_C") >> 12, self._values.get(self._offset["MEM_OP_D"], 0)
        return low << 12 | (high & 0x07FF_FFFF) << 32

    def _old_semaphore(self, value: int) -> Callable[[], bool] | None:
        channel = self._channel
        address, payload = (
            (self._values.get(self._old[0], 0) & 0xFF) << 32 | self._values.get(self._old[1], 0),
            self._values.get(self._old[2], 0),
        )
        if value & 0x1F == old_semaphore.RELEASE:
            if not value >> 20 & 1:  # RELEASE_WFI_EN is 0
                channel.wait_idle()
                channel.system_barrier()
            channel.released(address, "a release")
            if channel.gpu.machine.faults.take(Fault.LOST_RELEASE, channel.gpu.index):
                return None
        waiting = old_semaphore.execute(channel.space, address, payload, value, channel.gpu.time_ns)
        channel.gpu.kick()
        return waiting

    def _semaphore(self, value: int) -> Callable[[], bool] | None:
        channel = self._channel
        address = self._value("SEM_ADDR_HI") << 32 | self._value("SEM_ADDR_LO")
        wide = bool(value >> 24 & 1)
        size, bits = (8, 64) if wide else (4, 32)
        payload = self._value("SEM_PAYLOAD_LO")
        if wide:
            payload |= self._value("SEM_PAYLOAD_HI") << 32
        code = value & 7
        if code > Operation.REDUCTION:
            raise ChannelError(Xid.PBDMA_ERROR, f"SEM_EXECUTE operation {code} is not modelled")
        if address % size:
            raise ChannelError(Xid.PBDMA_ERROR, f"semaphore at {address:#x} is not aligned")
        operation = Operation(code)
        if operation not in (Operation.RELEASE, Operation.REDUCTION):

            def passes() -> bool:
                now = channel.space.read_word(address, size, Client.HOST)
                return satisfied(operation, now, payload, bits)

            return passes
        if value >> 20 & 1:  # RELEASE_WFI
            channel.wait_idle()
            channel.system_barrier()
        channel.released(address, "a release")
        if channel.gpu.machine.faults.take(Fault.LOST_RELEASE, channel.gpu.index):
            return None
        stamp = channel.gpu.time_ns() if value >> 25 & 1 else None
        if operation is Operation.REDUCTION:
            old = channel.space.read_word(address, size, Client.HOST)
            payload = reduce(value >> 27 & 0xF, old, payload, bits, not value >> 31)
            stamp = None
        store(channel.space, Client.HOST, address, payload, size, stamp)
        channel.gpu.kick()
        return None
