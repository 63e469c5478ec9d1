"""Attach to a PCI function of this machine: through VFIO, or through sysfs if requested."""

from __future__ import annotations

from collections.abc import Mapping

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.transport.base import PciIdentity, Transport
from ugpu.hcq.transport.dma import REACH_BITS
from ugpu.hcq.transport.pci import preflight
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.sysfs import SysfsTransport
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.transport import VfioTransport


def attach_pci(
    address: str,
    *,
    via: str = "vfio",
    bind: bool = False,
    no_iommu: bool = False,
    narrow_link: bool = False,
    reach_bits: int = REACH_BITS,
    least_bars: Mapping[int, int] | None = None,
    system: System | None = None,
) -> Transport:
    """Open the function at `address`; the caller closes the transport.

    via: "vfio"; "iommufd", which is VFIO without groups; or "sysfs", which needs root and gives no
    protection. bind: take the function and its IOMMU group from their kernel drivers first, and
    give them back when the transport closes. no_iommu: accept that the device's DMA is not confined
    (VFIO's no-IOMMU mode); never chosen automatically. narrow_link: accept a link with fewer lanes
    than both its ends have. reach_bits, least_bars: the chip's needs, see VfioTransport. Every
    refusal comes before anything is unbound, and an error after binding gives everything back.
    """
    system = system if system is not None else System()
    if via == "sysfs":
        if bind or no_iommu:
            raise BadArgument("bind and no_iommu require via='vfio'", via=via)
        return SysfsTransport(
            address,
            system=system,
            reach_bits=reach_bits,
            least_bars=least_bars,
            narrow_link=narrow_link,
        )
    if via not in ("vfio", "iommufd"):
        raise BadArgument("via must be 'vfio', 'iommufd' or 'sysfs'", via=via)
    function = PciFunction.find(system, address)
    if bind:
        preflight.before(function, narrow_link=narrow_link)
    binding = Binding.bind(function, no_iommu=no_iommu) if bind else None
    try:
        return VfioTransport(
            function.address,
            system=system,
            reach_bits=reach_bits,
            no_iommu=no_iommu,
            iommufd=True if via == "iommufd" else None,
            least_bars=least_bars,
            narrow_link=narrow_link,
            on_close=binding.restore if binding is not None else None,
        )
    except BaseException:
        if binding is not None:
            binding.restore()
        raise


def identify(address: str, system: System | None = None) -> tuple[str, PciIdentity]:
    """Return the full address of a function and its identity; opens nothing. DeviceNotFound if
    there is none."""
    function = PciFunction.find(system if system is not None else System(), address)
    return function.address, function.identity()
