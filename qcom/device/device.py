"""Devices for Adreno GPUs, for hcq.find.registry: `kgsl:0`, `msm:0`."""

from __future__ import annotations

from typing import Any

from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.transport.node import NodeAttachment
from ugpu.hcq.work.buffer import Buffer
from ugpu.qcom.device.driver import AdrenoDriver, StageHook
from ugpu.qcom.kernel_driver import imports
from ugpu.qcom.kernel_driver.counters import Counters
from ugpu.qcom.kernel_driver.interface import KernelInterface
from ugpu.qcom.kernel_driver.kgsl import Kgsl
from ugpu.qcom.kernel_driver.msm import Msm


class AdrenoDevice(Device):
    """One Adreno GPU. See hcq.Device."""

    def __init__(self, driver: AdrenoDriver) -> None:
        super().__init__(driver)
        self._driver = driver

    @property
    def driver(self) -> AdrenoDriver:
        """See Device."""
        return self._driver

    @property
    def boot_stages(self) -> list[tuple[str, float]]:
        """Return the durations of the start: (name, seconds) of each stage."""
        return self._driver.boot_stages

    def import_memory(self, data: Any, *, read_only: bool = False) -> Buffer:
        """See qcom.kernel_driver.imports.import_memory."""
        return imports.import_memory(self._driver, data, read_only=read_only)

    def import_dma_buf(self, descriptor: int, *, read_only: bool = False) -> Buffer:
        """See qcom.kernel_driver.imports.import_dma_buf."""
        return imports.import_dma_buf(self._driver, descriptor, read_only=read_only)

    def counters(self, *events: tuple[str, int]) -> Counters:
        """Count events of the GPU, as ("SP", 1): see qcom.kernel_driver.counters. NotSupported
        on msm."""
        with self._driver.core.lock:
            self._driver.core.check_usable()
            return Counters(self._kgsl("performance counters"), events)

    def constrain_power(self, level: str) -> None:
        """Hold the clocks at "max" or "min" while work of this device runs, even after a reset; ""
        for the kernel's own choice. BadArgument for other levels, NotSupported on msm."""
        if level not in ("max", "min", ""):
            raise BadArgument(f"expected 'max', 'min' or '', got {level!r}")
        with self._driver.core.lock:
            self._driver.core.check_usable()
            self._kgsl("power constraints").constrain_power(level)

    def _kgsl(self, what: str) -> Kgsl:
        if not isinstance(self._driver.interface, Kgsl):
            raise NotSupported(f"{self.name}: the kernel driver has no {what}")
        return self._driver.interface

    def sync(self, buffer: Buffer, *, to_gpu: bool) -> None:
        """See qcom.kernel_driver.imports.sync."""
        imports.sync(self._driver, buffer, to_gpu=to_gpu)


def open_device(
    name: str, attachment: NodeAttachment, *, on_stage: StageHook | None = None
) -> AdrenoDevice:
    """Open the GPU behind `attachment`. The device takes ownership of the attachment's node.

    on_stage(name, seconds) is called after each stage. DeviceNotFound and AccessDenied where the
    node cannot be opened.
    """
    interface: KernelInterface
    try:
        make = Msm if attachment.driver == "msm" else Kgsl
        interface = make(attachment.node, attachment.index)
    except BaseException:
        attachment.node.close()
        raise
    return AdrenoDevice(AdrenoDriver(name, interface, attachment.index, on_stage=on_stage))
