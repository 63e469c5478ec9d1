"""Stands by the names that kinds give them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nv.virtual.gpu import CHIPS
from tests.campaign.adreno import AdrenoStand
from tests.campaign.amd import AmStand, Navi32Stand, UsbStand
from tests.campaign.kinds_adreno import CHIPS as KGSL_CHIPS
from tests.campaign.kinds_msm import CHIPS as MSM_CHIPS
from tests.campaign.libusb import LibUsbStand
from tests.campaign.nvidia import NvStand
from tests.campaign.pci import IommufdStand, PciStand, SysfsStand
from tests.campaign.served import ServedStand
from tests.campaign.stand import Stand
from tests.campaign.thunderbolt import ThunderboltStand
from tests.campaign.uas import UasStand

STANDS: dict[str, Callable[[int], Stand]] = {
    "navi31": AmStand,
    "navi31+usb": UsbStand,
    "navi31+usb-stock": UasStand,
    "navi32": Navi32Stand,
    "vfio": PciStand,
    "iommufd": IommufdStand,
    "sysfs": SysfsStand,
    "vfio-user": ServedStand,
    "libusb": LibUsbStand,
    "thunderbolt": ThunderboltStand,
    **{chip: partial(NvStand, chip) for chip in CHIPS},
    **{chip: partial(AdrenoStand, chip) for chip in (*KGSL_CHIPS, *MSM_CHIPS)},
}
