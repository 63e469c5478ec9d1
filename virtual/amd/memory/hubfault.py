"""Page faults of a hub: the latched status, and the interrupt.

Facts: GCVM_L2_PROTECTION_FAULT_STATUS in gc_11_0_0; Linux 6.12 gmc_v11_0_process_interrupt.
"""

from __future__ import annotations

from ugpu.virtual.amd.memory.access import Fault
from ugpu.virtual.amd.memory.hub import HubState
from ugpu.virtual.amd.memory.walker import Refusal
from ugpu.virtual.shader.memory import Access

# Interrupt client that reports each hub's faults (soc15_ih_clientid.h, SOC21); source id 0.
_CLIENT_VMC, _CLIENT_GFX = 0x12, 0x0A
_CONTROL = "L2_PROTECTION_FAULT_CNTL"
# Clients 0..15 each have an interrupt enable in FAULT_CNTL; the others share one. All are on at
# reset.
_CONTROL_DEFAULT = 0x3FFF_FFFC


class FaultUnit:
    """Latches the first fault of its hub until the driver clears it."""

    def __init__(self, hub: HubState) -> None:
        self._hub = hub
        self._stale = False
        hub.on_write(hub.vm + _CONTROL, self._control)
        hub.on_read(hub.vm + hub.fault_status, self._read_status)
        self._latches = tuple(
            hub.vm + name
            for name in (
                hub.fault_status, "L2_PROTECTION_FAULT_ADDR_LO32", "L2_PROTECTION_FAULT_ADDR_HI32",
            )
        )  # fmt: skip
        for name in self._latches:
            hub.chip.space.read_only(hub.block, name)

    def reset(self) -> None:
        """Enter the power-on state."""
        self._hub.set(self._hub.vm + _CONTROL, _CONTROL_DEFAULT)
        self.clear()

    def _read_status(self) -> int:
        stale, self._stale = self._stale, False
        return 0 if stale else self._hub.get(self._latches[0])

    def clear(self) -> None:
        """Clear the latched fault."""
        self._stale = False
        for name in self._latches:
            self._hub.set(name, 0)

    def _control(self, value: int) -> None:
        if value & 1:
            self.clear()

    def raise_fault(
        self, vmid: int, address: int, access: Access, client: int, refusal: Refusal
    ) -> Fault:
        """Latch and report a refused access. The chip's lock is held."""
        hub = self._hub
        status, low, high = self._latches
        asked = 2 << access if refusal.permission & 1 else 0
        layout = hub.chip.space.register(hub.block, status)
        value = layout.encode(
            WALKER_ERROR=refusal.walker,
            PERMISSION_FAULTS=refusal.permission | asked,
            MAPPING_ERROR=int(refusal.mapping),
            CID=client,
            RW=int(access is Access.WRITE),
            VMID=vmid,
        )
        fault = Fault(address, access, vmid, client, value)
        latched = hub.get(status)
        if (
            latched
            and not hub.fields(hub.vm + _CONTROL)[
                "ALLOW_SUBSEQUENT_PROTECTION_FAULT_STATUS_ADDR_UPDATES"
            ]
        ):
            hub.set(status, MORE_FAULTS=1)
            return fault._replace(latched=False)
        page = address >> 12
        self._stale = hub.chip.options.stale_fault_status
        hub.set(status, value)
        hub.set(low, page)
        hub.set(high, page >> 32 & 0xF)
        if self._reported(vmid, client, access, refusal):
            self._interrupt(vmid, page, access)
        return fault

    def _reported(self, vmid: int, client: int, access: Access, refusal: Refusal) -> bool:
        hub = self._hub
        control = hub.fields(hub.vm + _CONTROL)
        if client < 16:
            enabled = control.CLIENT_ID_NO_RETRY_FAULT_INTERRUPT >> client & 1
        else:
            enabled = control.OTHER_CLIENT_ID_NO_RETRY_FAULT_INTERRUPT
        if refusal.walker == 1:
            kind = "RANGE"
        elif refusal.walker:
            kind = "PDE0"
        elif refusal.mapping:
            kind = "DUMMY_PAGE"
        elif refusal.permission & 1:
            kind = "VALID"
        else:
            kind = access.name
        context = hub.fields(f"{hub.vm}CONTEXT{vmid}_CNTL")
        return bool(enabled and context[f"{kind}_PROTECTION_FAULT_ENABLE_INTERRUPT"])

    def _interrupt(self, vmid: int, page: int, access: Access) -> None:
        hub = self._hub
        multimedia = hub.block == "mmhub"
        details = page >> 32 & 0xF | (0x20 if access is Access.WRITE else 0)
        hub.chip.ih.raise_interrupt(
            _CLIENT_VMC if multimedia else _CLIENT_GFX,
            0,
            vmid=vmid,
            vmid_source=int(multimedia),
            data=(page & 0xFFFF_FFFF, details, 0, 0),
        )
