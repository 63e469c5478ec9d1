"""The card's PCI function: whether it decodes its BARs and reaches host memory, and its reset.

Source: PCI Express Base Specification 5.0, 7.5.1.1.3 (command register).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.pci.config import SavedConfig

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


@contextmanager
def looked_into(transport: Transport) -> Iterator[None]:
    """Restore the command register at the end of the block, and close the transport."""
    try:
        command = transport.config_read(_COMMAND, 2)
        try:
            yield
        finally:
            with suppress(UgpuError):  # the card is gone, and that error is being raised
                transport.config_write(_COMMAND, command, 2)
    finally:
        transport.close()


def keep_config(chip: BareChip) -> None:
    """Keep configuration space as first contact found it, if another program can reach the slot."""
    if chip.transport.traits.host_memory:
        chip.kept = SavedConfig(chip.transport.config_read)


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


def reset_function(chip: BareChip, strike: Callable[[], object], quiet_s: float) -> None:
    """Reset the chip by `strike`, and preserve its configuration space. The function is enabled
    afterwards, and may not access host memory; the vendor waits for the chip's own start.

    quiet_s: seconds after the reset without any access, which would hang the bus on some platforms.
    """
    config = chip.kept or SavedConfig(chip.transport.config_read)
    disable_master(chip.transport)
    strike()
    chip.clock.sleep(quiet_s)
    config.restore(chip.transport.config_write)
    _enable_again(chip)


def restore_function(chip: BareChip) -> None:
    """Take up a function that lost its power, was unplugged and plugged in again, or whose slot
    another program has reset: configuration space is restored to its state at first contact."""
    if chip.kept is not None:
        chip.kept.restore(chip.transport.config_write)
    _enable_again(chip)


def _enable_again(chip: BareChip) -> None:
    chip.command = enable_function(chip.transport)
    chip.link.keep_awake()
