"""Page faults of a context, and GET_FAULT_REPORT, which reports them.

Source: Qualcomm's graphics-kernel, kgsl.c (kgsl_ioctl_get_fault_report, kgsl_update_fault_count,
kgsl_update_fault_details, kgsl_add_fault) and kgsl_iommu.c (kgsl_iommu_add_fault_info). Only the
form of the call that requests counts writes the number of entries back.
"""

from __future__ import annotations

import errno
from typing import Any

from ugpu.qcom.regs import constants, structs
from ugpu.virtual.adreno.faults import PageFault
from ugpu.virtual.adreno.kgsl.context import Context
from ugpu.virtual.node.process import UserMemory
from ugpu.virtual.node.refusal import refused
from ugpu.virtual.shader.memory import Access

_MOST = 40  # KGSL_MAX_FAULT_ENTRIES; the removal of entries older than 5 s is not modelled


def add(context: Context, found: PageFault) -> None:
    """Record a page fault of a context that was created with KGSL_CONTEXT_FAULT_INFO."""
    codes = constants("msm_kgsl")
    if not context.flags & codes.KGSL_CONTEXT_FAULT_INFO or context.invalid or context.detached:
        return
    bits = codes[f"KGSL_PAGEFAULT_TYPE_{found.kind.upper()}"]
    write = found.access is Access.WRITE
    bits |= codes.KGSL_PAGEFAULT_TYPE_WRITE if write else codes.KGSL_PAGEFAULT_TYPE_READ
    context.page_faults = [*context.page_faults, (found.address, bits)][-_MOST:]


def report(memory: UserMemory, context: Context, call: Any) -> None:
    """GET_FAULT_REPORT, for a context that a fault has ended: the number of types, the number of
    faults of each, or the faults. Under the machine's lock."""
    codes, layouts = constants("msm_kgsl"), structs("msm_kgsl")
    if not context.flags & codes.KGSL_CONTEXT_FAULT_INFO:
        raise refused(errno.EINVAL, f"context {context.id} was made without FAULT_INFO")
    if not context.invalid:
        raise refused(errno.EINVAL, f"context {context.id} is valid")
    if not call.faultlist:
        call.faultnents = codes.KGSL_FAULT_TYPE_MAX
        return
    layout = layouts.kgsl_fault
    size = min(layout.size, call.faultsize)
    places = [call.faultlist + number * call.faultsize for number in range(call.faultnents)]
    entries = [
        layout.view(bytearray(memory.read(place, size).ljust(layout.size, b"\0")))
        for place in places
    ]
    if not any(entry.fault for entry in entries):
        if places and context.page_faults:
            count = layout.new(type=codes.KGSL_FAULT_TYPE_PAGEFAULT, count=len(context.page_faults))
            memory.write(places[0], bytes(count)[:size])
        return
    for entry in entries:
        if entry.type >= codes.KGSL_FAULT_TYPE_MAX:
            raise refused(errno.EINVAL, f"fault of type {entry.type}")
    # The last of several entries of one type takes effect.
    wanted = {entry.type: entry for entry in entries}.get(codes.KGSL_FAULT_TYPE_PAGEFAULT)
    if wanted is None:
        return
    layout = layouts.kgsl_pagefault_report
    for number, (address, bits) in enumerate(context.page_faults[: wanted.count]):
        one = bytes(layout.new(fault_addr=address, fault_type=bits))
        memory.write(wanted.fault + number * wanted.size, one[: wanted.size])
