"""Displays that a card drives: they go dark when it is bound to vfio-pci.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci (boot_vga); drivers/gpu/drm/drm_sysfs.c
(enabled); drivers/video/fbdev (graphics/fbN).
"""

from __future__ import annotations

from ugpu.hcq.transport.pci.function import PciFunction

REMEDY = "connect the display to another GPU, or work over ssh; `ugpu unbind` gives the card back"


def warning(function: PciFunction) -> str:
    """Return what the console loses if the card is taken from its kernel driver; "" for a card
    without displays, or one that is bound to vfio-pci."""
    if function.driver in ("vfio-pci", "pci-stub"):
        return ""
    folder = function.folder
    connectors = [
        path.parent.name.partition("-")[2]
        for path in sorted(folder.glob("drm/card*/card*-*/enabled"))
        if function.attribute(str(path.relative_to(folder))) == "enabled"
    ]
    consoles = [path.name for path in sorted(folder.glob("graphics/fb*"))]
    uses = [f"the display at {', '.join(connectors)}"] if connectors else []
    uses += [f"the text console ({', '.join(consoles)})"] if consoles else []
    if function.attribute("boot_vga") == "1":
        uses.append("the display of the firmware (boot_vga)")
    if not uses:
        return ""
    return f"the card drives {' and '.join(uses)}: bound to vfio-pci it shows nothing"
