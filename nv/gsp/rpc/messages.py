"""The messages that a start begins with: facts about the machine, and settings (registry)."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ugpu.nv.abi.firmware import FirmwareAbi

_TABLE, _ENTRY = struct.Struct("<2I"), struct.Struct("<IB3xII")
# What nouveau and nova-core set (Linux 7.3 rm/r535/gsp.c): save configuration space, let the
# secondary bus be reset, and start although the firmware's list does not contain the PCI id.
SETTINGS = {"RMSecBusResetEnable": 1, "RMForcePcieConfigSave": 1, "RMDevidCheckIgnore": 1}
_MOST_VA = (1 << 47) - 4096  # of user space on x86-64
_PAGE = 4096
_MIRROR_SIZE = 0x1000


def system_info(abi: FirmwareAbi, facts: Mapping[str, int]) -> bytes:
    """Return the payload of GSP_SET_SYSTEM_INFO. facts: fields that describe the function; those
    that the release lacks are left out. ACPI's methods are absent, as in a machine that has none
    for the GPU."""
    layout = abi.structs.GspSystemInfo
    block = layout.new(maxUserVa=_MOST_VA, pciConfigMirrorSize=_MIRROR_SIZE, bIsPassthru=1)
    for name, value in {**facts, "hostPageSize": _PAGE}.items():
        if name in layout.fields:
            block[name] = value
    return bytes(block.raw)


def registry(abi: FirmwareAbi, settings: Mapping[str, int]) -> bytes:
    """Return the payload of SET_REGISTRY; settings: numbers of 32 bits by name."""
    kind = abi.constants.REGISTRY_TABLE_ENTRY_TYPE_DWORD
    entries, names = b"", b""
    start = _TABLE.size + _ENTRY.size * len(settings)
    for name, value in settings.items():
        entries += _ENTRY.pack(start + len(names), kind, value, 4)
        names += name.encode("ascii") + b"\0"
    size = start + len(names)
    return _TABLE.pack(size, len(settings)) + entries + names
