"""Holder: what imported memory uses of the driver of one GPU (qcom.device.driver)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.hcq.device.driver import Driver

if TYPE_CHECKING:
    from ugpu.qcom.kernel_driver.interface import KernelInterface


class Holder(Driver):
    """A client of the kernel driver that holds one GPU."""

    interface: KernelInterface  # closed with the driver
