"""Remedies that hold for any card, as texts for errors (fact `remedy`) and named states."""

from __future__ import annotations

RESET = "device.reset() recreates the queues; programs and buffers stay"
POWER_CYCLE = "power the card off and on; where that does not help, reseat it and check its supply"
LINK = "check cable, slot and supply, then rescan the bus"
PLACES = (
    "device.reset() writes the addresses back and boots the card; where no program has it open, "
    "remove it and rescan the bus"
)
BOOT = "open the device: the driver boots it"
COOL = (
    "let the card cool: check its fan, the airflow and the enclosure; device.reset() stops its "
    "work and tells whether it is cool enough"
)
COOL_OFF = "power the card off, let it cool, check its fan and the airflow, and power it on again"
DAMAGED = (
    "device.reset(), and treat results since the last check as wrong; where it comes back, replace "
    "the card"
)
