"""UVM's fault reports for tools: entries and control block of an event queue, version 1.

All numbers little endian. Source: open-gpu-kernel-modules 535.183.01, 550.163.01, 570.144, 580.142
and 595.45.04, kernel-open/nvidia-uvm/uvm_types.h (UvmEventEntry, UvmEventFatalFaultInfo,
UvmToolsEventControlData, UvmEventMemoryAccessType); the same in all of them.
"""

from __future__ import annotations

TOOLS_NODE = "/dev/nvidia-uvm-tools"
QUEUE_VERSION = 1  # only the block of branch 550 has a member for it
ENTRY_SIZE = 64
CONTROL_SIZE = 528
# get_ahead, get_behind, put_ahead, put_behind: entries, modulo their number, a power of two
CONTROL_FORMAT = "<4I"
FATAL_FAULT = 6  # UvmEventTypeFatalFault
EVENT_TYPES = 15  # UvmEventNumTypes: types from 1 on, below it
# event type, fault type, access, processor, reason; the address, and the CPU's clock in ns
FATAL_FAULT_FORMAT = "<5B3xQQ"
ACCESSES = ("invalid", "read", "write", "atomic", "prefetch")
