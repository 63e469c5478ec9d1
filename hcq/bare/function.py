"""The card's PCI function: whether it decodes its BARs and reaches host memory.

Source: PCI Express Base Specification 5.0, 7.5.1.1.3 (command register).
"""

from __future__ import annotations

from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.transport.base import Transport

_COMMAND = 4  # offset in configuration space
_MEMORY, _MASTER = 0x2, 0x4


def enable_function(transport: Transport) -> int:
    """Let the function decode its BARs, but not yet access host memory; returns its command
    register.

    A process that died may have left engines running on addresses that are now in other use.
    """
    command = (transport.config_read(_COMMAND, 2) | _MEMORY) & ~_MASTER
    transport.config_write(_COMMAND, command, 2)
    return command


def enable_master(chip: BareChip) -> None:
    """Let the function access host memory. Behind a bridge the command register is not read again,
    because no other program changes it."""
    transport = chip.transport
    command, chip.command = chip.command, None
    if command is None or not chip.bus.messages:
        command = transport.config_read(_COMMAND, 2)
    transport.config_write(_COMMAND, command | _MASTER, 2)


def disable_master(transport: Transport) -> None:
    """Keep the function from accessing host memory."""
    command = transport.config_read(_COMMAND, 2)
    transport.config_write(_COMMAND, command & ~_MASTER, 2)
