"""Stands by the names that kinds give them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lab.campaign.kinds.adreno import CHIPS as KGSL_CHIPS
from lab.campaign.kinds.gsp import DEVICES as GSP_CARDS
from lab.campaign.kinds.msm import CHIPS as MSM_CHIPS
from lab.campaign.stands.adreno import AdrenoStand
from lab.campaign.stands.amd import AmStand, Navi32Stand, Navi48Stand, UsbStand
from lab.campaign.stands.gsp import GspStand
from lab.campaign.stands.libusb import LibUsbStand
from lab.campaign.stands.nvidia import NvStand
from lab.campaign.stands.pci import IommufdStand, PciStand, SysfsStand
from lab.campaign.stands.served import ServedStand
from lab.campaign.stands.stand import Stand
from lab.campaign.stands.thunderbolt import ThunderboltStand
from lab.campaign.stands.uas import UasStand
from ugpu.virtual.nvidia.gpu import CHIPS

STANDS: dict[str, Callable[[int], Stand]] = {
    "navi31": AmStand,
    "navi31+usb": UsbStand,
    "navi31+usb-stock": UasStand,
    "navi32": Navi32Stand,
    "navi48": Navi48Stand,
    "vfio": PciStand,
    "iommufd": IommufdStand,
    "sysfs": SysfsStand,
    "vfio-user": ServedStand,
    "libusb": LibUsbStand,
    "thunderbolt": ThunderboltStand,
    **{chip: partial(NvStand, chip) for chip in CHIPS},
    **{name: partial(GspStand, name.partition("+")[0]) for name in GSP_CARDS},
    **{chip: partial(AdrenoStand, chip) for chip in (*KGSL_CHIPS, *MSM_CHIPS)},
}
