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

    # Bus and identity
    REGISTERS_DARK = "registers read as all ones, configuration space answers; at once"
    OTHER_CHIP = "BOOT_42 names another chip than the PCI id (GV100); at once"
    GUEST = "BOOT_1 says that the GPU is a part of another one (vGPU); at once"
    FALLS_OFF = "the card no longer answers; at once"
    FALLS_OFF_AT_BOOT = "the card no longer answers when its GSP is started"
    FALLS_OFF_AT_CALL = "the card no longer answers at the next call of the CPU"
    MESSAGE_LOST = "the next message-signalled interrupt does not arrive"
    # What an earlier driver left
    WPR2_LEFT = "WPR2 is set, as by a GSP that an earlier process left; at once"
    GSP_LEFT = "WPR2 is set and the GSP's core runs, as of another driver that died; at once"
    WPR2_STUCK = "WPR2 is set, and no reset takes it down; at once"
    # The board's firmware, VBIOS, fuses, memory
    POWER_ON_NEVER = "the card's own firmware never reports that power-on has finished"
    PROGRESS_LOCKED = "the progress of the card's firmware stays locked to the CPU; at once"
    VBIOS_ZEROS = "the VBIOS reads as zeros: its flash is empty; at once"
    VBIOS_ONES = "the VBIOS reads as ones: its flash does not answer; at once"
    VBIOS_WITHOUT_PCIR = "the VBIOS's first image has no PCIR structure; at once"
    VBIOS_WITHOUT_BIT = "the VBIOS has no BIT header; at once"
    VBIOS_WITHOUT_TOKEN = "the VBIOS's BIT has no token of falcon data; at once"
    VBIOS_WITHOUT_SECURE = "the VBIOS has no image of firmware (code type 0xe0); at once"
    VBIOS_WITHOUT_FWSEC = "the VBIOS lists no FWSEC for production; at once"
    VBIOS_DESCRIPTOR = "FWSEC's descriptor has version 7; at once"
    VBIOS_MAPPER = "FWSEC has no DMEM mapper; at once"
    VBIOS_SIGNATURE = "FWSEC's code is not what was signed; at once"
    FUSES_NEWER = "the fuses ask for a newer version than any signature has; at once"
    MEMORY_UNKNOWN = "the size of video memory reads as 0; at once"
    MEMORY_ONES = "the size of video memory reads as all ones; at once"
    MEMORY_SMALL = "the size of video memory reads as 128 MiB; at once"
    # Falcons and their programs
    SCRUB_NEVER = "the next falcon that is reset never has clean memory"
    DMA_NEVER = "no block of DMA arrives in the next falcon that is reset"
    FALCON_HANGS = "the next falcon program never halts"
    FWSEC_FAILS = "the next FWSEC reports an error"
    FWSEC_ELSEWHERE = "the next FWSEC-FRTS protects a region 1 MiB lower than asked"
    FWSEC_NOTHING = "the next FWSEC-FRTS halts without error and protects nothing"
    FWSEC_MAILBOX = "the next FWSEC leaves 0x31 in its mailbox"
    SB_FAILS = "the next FWSEC-SB reports an error"
    BOOTER_META = "the next booter leaves 0x0a in its mailbox"
    BOOTER_FAILS = "the next booter leaves 0x0b in its mailbox"
    UNLOADER_FAILS = "the next unload of the booter leaves an error, and WPR2"
    WPR2_STAYS = "the next unload of the booter reports success, and leaves WPR2"
    # FSP
    FSP_BUSY = "the FSP's queue holds a message that it has not read; at once"
    FSP_SILENT = "the next message to the FSP gets no response"
    FSP_REFUSES = "the next message to the FSP is refused with 0x9e (invalid state)"
    FSP_REPLY_SIZE = "the next response of the FSP has 8 bytes"
    FSP_REPLY_KIND = "the next response of the FSP is to another message (0x13)"
    FMC_FAILS = "the FSP takes the FMC, which leaves an error in the GSP's mailbox"
    MASK_NEVER = "the GSP's registers stay the FSP's after the next FMC has started"
    LOCKDOWN_NEVER = "the lockdown of the GSP's registers is never released"
    HALT_NEVER = "the GSP reports the end of its firmware, but its core does not halt (FSP)"
    # The GSP before INIT_DONE
    GSP_NOT_STARTED = "the booter reports success, the GSP's core does not run"
    GSP_HALTS = "the GSP's core halts as soon as it is started"
    GSP_SILENT = "the GSP's core runs, its firmware sends nothing"
    QUEUE_SHAPE = "the firmware's status queue has 31 slots"
    WRITE_INDEX = "the firmware's write index is outside of its queue, before INIT_DONE"
    INIT_NEVER = "the firmware sends notices and LIBOS_PRINT, but no INIT_DONE"
    INIT_FAILS = "the firmware logs an error, and reports INIT_DONE with 0x65 (timeout)"
    INIT_REFUSED = "the firmware logs an error, and reports INIT_DONE with 0x1f"
    INIT_CRASHES = "the firmware crashes before INIT_DONE, with a CrashCat report"
    INIT_LOCKDOWN = "the firmware locks its registers before INIT_DONE, and falls silent"
    SEQUENCER_OPERATION = "the CPU sequencer's program begins with an unknown operation"
    SEQUENCER_CUT = "the CPU sequencer's program ends within an operation"
    SEQUENCER_LONG = "the CPU sequencer's program claims more words than its message has"
    SEQUENCER_OUTSIDE = "the CPU sequencer's program writes past the end of BAR0"
    SEQUENCER_SAVE = "the CPU sequencer's program saves a register in place 8 of 8"
    SEQUENCER_POLL = "the CPU sequencer's program polls for a value that never comes"
    # Messages of the GSP
    RPC_LOST = "the next call of the CPU gets no answer"
    RPC_TIMES_OUT = "the next call of the CPU is answered with 0x65 (timeout)"
    RPC_REFUSED = "the next call of the CPU is answered with 0x56 (not supported)"
    REPLY_CHECKSUM = "the next message of the GSP has a wrong checksum"
    REPLY_NUMBER = "the next message of the GSP has an old seqNum"
    REPLY_AHEAD = "the next message of the GSP has a seqNum 5 ahead"
    REPLY_SIGNATURE = "the next message of the GSP has another RPC signature"
    REPLY_LENGTH = "the next message of the GSP states a length of 16 bytes"
    REPLY_PAGES = "the next message of the GSP states a wrong number of elements"
    REPLY_OTHER = "the next call of the CPU is answered with another function's number"
    REPLY_TWICE = "the next message of the GSP is sent twice, with one seqNum"
    CONTINUATION_ALONE = "the GSP continues a message that it did not begin"
    READ_INDEX = "the firmware's read index is outside of its queue after the next call"
    STATIC_CUT = "the next GET_GSP_STATIC_INFO is answered with half of the structure"
    STATIC_OUTSIDE = "the next GET_GSP_STATIC_INFO describes memory past the end"
    STATIC_NONE = "the next GET_GSP_STATIC_INFO describes no usable memory"
    INTERRUPT_TABLE = "the next table of interrupts lacks the GSP's row"
    GSP_CRASHES = "the next call of the CPU halts the GSP, with a CrashCat report"
    CRASH_UNREADABLE = "the next call halts the GSP, with a report in no known memory"
    GSP_DIES = "the next call of the CPU halts the GSP, without a report"
    UNLOAD_SILENT = "the next unload is answered, but the GSP never reports its end"
    FBSR_FAILS = "the GSP cannot prepare the next suspend"
    SLEEP_DAMAGED = "what the GSP saved in host memory is damaged when it resumes next"
    # Memory of the card at work
    FLUSH_NEVER = "a flush of the CPU's writes to video memory never ends; at once"
    INVALIDATE_NEVER = "an invalidation of translations never ends; at once"


CardFaults = Plan[CardFault]  # the card's lock protects it
