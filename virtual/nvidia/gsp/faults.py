"""Faults of a register-level card: what goes wrong on boards before the first channel.

`card.inject_card(fault)` plants one; those of the GPU behind are `virtual.nvidia.faults`. Sources:
public reports of NVIDIA's open kernel modules and of tinygrad; open-gpu-kernel-modules 570.144
kernel_gsp.c, kern_fsp_gh100.c.
"""

from __future__ import annotations

import enum

from ugpu.virtual.faults import Plan


class CardFault(enum.Enum):
    """A fault that can be planted; its value is the effect."""

    POWER_ON_NEVER = "the card's own firmware never reports that power-on has finished"
    WPR2_LEFT = "WPR2 is set, as by a GSP that an earlier process left; at once"
    VBIOS_WITHOUT_BIT = "the VBIOS has no BIT header; at once"
    VBIOS_WITHOUT_FWSEC = "the VBIOS lists no FWSEC for production; at once"
    FUSES_NEWER = "the fuses ask for a newer version than any signature has; at once"
    MEMORY_UNKNOWN = "the size of video memory reads as 0; at once"
    SCRUB_NEVER = "the next falcon that is reset never has clean memory"
    FALCON_HANGS = "the next falcon program never halts"
    FWSEC_FAILS = "the next FWSEC reports an error"
    BOOTER_FAILS = "the next booter leaves 0x0b in its mailbox"
    UNLOADER_FAILS = "the next unload of the booter leaves an error, and WPR2"
    GSP_NOT_STARTED = "the booter reports success, the GSP's core does not run"
    GSP_SILENT = "the GSP's core runs, its firmware sends nothing"
    INIT_FAILS = "the firmware logs an error, and reports INIT_DONE with 0x65 (timeout)"
    RPC_LOST = "the next call of the CPU gets no answer"
    RPC_TIMES_OUT = "the next call of the CPU is answered with 0x65 (timeout)"
    REPLY_CHECKSUM = "the next message of the GSP has a wrong checksum"
    REPLY_NUMBER = "the next message of the GSP has an old seqNum"
    GSP_CRASHES = "the next call of the CPU halts the GSP, with a CrashCat report"
    UNLOAD_SILENT = "the next unload is answered, but the GSP never reports its end"
    MESSAGE_LOST = "the next message-signalled interrupt does not arrive"
    FSP_SILENT = "the next message to the FSP gets no response"
    FSP_REFUSES = "the next message to the FSP is refused with 0x9e (invalid state)"
    FMC_FAILS = "the FSP takes the FMC, which leaves an error in the GSP's mailbox"
    LOCKDOWN_NEVER = "the lockdown of the GSP's registers is never released"
    FALLS_OFF = "the card no longer answers; at once"
    FALLS_OFF_AT_BOOT = "the card no longer answers when its GSP is started"


CardFaults = Plan[CardFault]  # the card's lock protects it
