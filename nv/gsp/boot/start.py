"""What the steps of one start pass on, and how the state of the GSP reads."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.errors import DeviceLost, FirmwareError
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.uapi import constants
from ugpu.nv.chips.boot import BootFacts
from ugpu.nv.gsp.boot.files import BootFiles
from ugpu.nv.gsp.chip.chip import MEMORY_BAR, REGISTER_BAR, GspChip, is_locked
from ugpu.nv.gsp.chip.falcon import Falcon
from ugpu.nv.gsp.images.fwsec import Fwsec
from ugpu.nv.gsp.layout.arguments import LOGS
from ugpu.nv.gsp.layout.memory import Keeper, Pages
from ugpu.nv.gsp.rpc.crash import scratch_group

_INSTANCE_BAR = 3
# TIMEOUT: nova-core; booter starts the core before it halts, so RM and nouveau look once.
_CORE_LIMIT_S = 5.0
_LOOK_S = 0.25  # between two looks whether the firmware has crashed, while waiting for it
_PLACE = re.compile(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])\Z")


@dataclass
class Start:
    """One start. The steps fill it in; `memory` owns what the GSP reads and writes until it no
    longer runs.

    fwsec, signature: the VBIOS's program, None where FSP starts the GSP. places: of the
    firmware in VRAM, fields of GspFwWprMeta. arguments: libos's list of regions. manager: the
    resource manager's arguments. fmc_arguments: of
    the first program that FSP starts. logs: buffers by name.
    locked_down: the GSP said that its registers must not be accessed.
    """

    chip: GspChip
    files: BootFiles
    memory: Keeper = field(init=False)
    gsp: Falcon = field(init=False)
    sec2: Falcon = field(init=False)
    metadata: Pages = field(init=False)
    arguments: Pages = field(init=False)
    manager: Pages = field(init=False)
    fmc_arguments: Pages = field(init=False)
    queues: Pages = field(init=False)
    fwsec: Fwsec | None = None
    signature: bytes = b""
    places: dict[str, int] = field(default_factory=dict)
    saved: Pages | None = None  # GspFwSRMeta, of firmware that was suspended
    logs: dict[str, Pages] = field(default_factory=dict)
    reported: list[str] = field(default_factory=list)  # texts of the firmware's reports
    locked_down: bool = False
    running: bool = False  # the RISC-V core was started, and may access memory
    up: bool = False  # the firmware has reported the end of its start, with whatever result

    _looked_at: float = 0.0

    def __post_init__(self) -> None:
        self.memory = Keeper(self.chip.transport, self.chip.boot.bus_bits)
        self.gsp = Falcon(self.chip, "GSP", self.chip.gsp)
        self.sec2 = Falcon(self.chip, "SEC2", self.chip.sec2)

    @property
    def boot(self) -> BootFacts:
        """How the chip is booted."""
        return self.chip.boot

    def check(self) -> None:
        """Raise DeviceLost if the chip is gone, FirmwareError if the firmware has crashed; called
        while waiting for the GSP."""
        if self.chip.silent():
            self.chip.check_present("waiting for the GSP")
            raise DeviceLost("the chip's registers read as all ones")
        now = self.chip.clock.now()
        if self.locked_down or now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        if scratch_group(int(self.gsp.regs.WAYFINDER.read())) is not None:
            raise FirmwareError("the GSP's firmware has crashed")

    def await_core(self) -> None:
        """Step "riscv", after booter or FSP's chain of trust: tell the firmware its version, and
        wait until the RISC-V core is active."""

        def runs() -> bool:
            self.check()
            return self.gsp.riscv_active

        self.gsp.regs.OS.write(self.files.boot_loader.app_version)
        with or_silent("the GSP's RISC-V core does not run", self.state):
            self.chip.clock.wait_until(
                runs, unit="GSP", waiting_for="the RISC-V core", limit_s=_CORE_LIMIT_S
            )

    def state(self) -> dict[str, object]:
        """Return what explains a GSP that does not answer. Never raises for locked registers."""
        facts: dict[str, object] = {}
        if self.reported:
            facts["reported"] = self.reported[-4:]
        if self.locked_down:
            return {**facts, "lockdown": "the GSP's registers are locked"}
        regs = self.gsp.regs
        for name in ("MAILBOX0", "MAILBOX1", self.boot.core, "HWCFG2", "IRQSTAT", "WAYFINDER"):
            value = int(regs[name].read())
            facts[name.lower()] = f"{value:#x} (locked)" if is_locked(value) else value
        facts["logs"] = [name for name in LOGS if self.logs and self.logs[name].view[0]]
        return facts


def machine_facts(transport: Transport, boot: BootFacts) -> dict[str, int]:
    """Return where the host placed the function, read from configuration space, as fields of
    GspSystemInfo."""
    identity = transport.identity
    match = _PLACE.search(transport.name)
    place = 0
    if match is not None:
        domain, bus, device, function = (int(part, 16) for part in match.groups())
        place = domain << 16 | bus << 8 | device << 3 | function
    return {
        "gpuPhysAddr": bar_address(transport, REGISTER_BAR),
        "gpuPhysFbAddr": bar_address(transport, MEMORY_BAR),
        "gpuPhysInstAddr": bar_address(transport, _INSTANCE_BAR),
        "nvDomainBusDeviceFunc": place,
        "PCIDeviceID": identity.device << 16 | identity.vendor,
        "PCISubDeviceID": identity.subsystem_device << 16 | identity.subsystem_vendor,
        "PCIRevisionID": identity.revision,
        "pciConfigMirrorBase": boot.mirror,
    }


def bar_address(transport: Transport, index: int) -> int:
    """Return the address of a BAR on the bus, as configuration space has it."""
    regs = constants("pci_regs")
    at = regs.PCI_BASE_ADDRESS_0 + 4 * index
    low = transport.config_read(at)
    address = low & ~0xF
    if low & regs.PCI_BASE_ADDRESS_MEM_TYPE_64:
        address |= transport.config_read(at + 4) << 32
    return address
