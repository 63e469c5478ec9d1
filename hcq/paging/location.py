"""Description of an address relative to a device's memory: the meaning of a page fault for
people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_NEAR = 1 << 20  # bytes after an allocation that an overrun may reach


@dataclass(frozen=True)
class Region:
    """Memory in use: bytes [address, address + size).

    Attributes:
        address: of the first byte.
        size: in bytes.
        kind: "device memory", "code" and so on.
    """

    address: int
    size: int
    kind: str


def place_of(page: int, regions: Iterable[Region]) -> str:
    """Describe where the page at `page`, an address that faulted, lies relative to `regions`."""
    region = max(
        (region for region in regions if region.address <= page),
        key=lambda region: region.address,
        default=None,
    )
    if region is None:
        return "below all memory of this device"
    offset = page - region.address
    what = f"{region.size} bytes of {region.kind} at {region.address:#x}"
    if offset < region.size:
        return f"in the page at byte {offset} of {what}"
    if offset - region.size < _NEAR:
        return f"in the page {offset - region.size} bytes behind the end of {what}"
    return "nothing of this device is mapped near it"
