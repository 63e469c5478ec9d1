"""GPU_COMMAND: checks of a submission, and queueing.

Source: Android msm kernel (msm-4.19), drivers/gpu/msm: kgsl.c (kgsl_ioctl_gpu_command,
_process_command_input), kgsl_drawobj.c (kgsl_drawobj_cmd_add_cmdlist, kgsl_drawobj_sync_add_sync),
adreno_dispatch.c (_verify_ib, _check_context_state, get_timestamp).
"""

from __future__ import annotations

import errno
from typing import Any

from ugpu.qcom.regs import constants, structs
from ugpu.virtual.adreno.kgsl.context import Context, Submission, SyncPoint, after
from ugpu.virtual.adreno.program import Program
from ugpu.virtual.node.refusal import refused

MOST_BUFFERS, MOST_SYNCS = 100000, 50000  # KGSL_MAX_NUMIBS, KGSL_MAX_SYNCPOINTS
MOST_WORDS = 0xFFFFF  # of an indirect buffer: the field of CP_INDIRECT_BUFFER has 20 bits
_MOST_STRUCTURE = 256


def gpu_command(node: Program, call: Any) -> None:
    """Check and queue a submission; store its timestamp. Nothing is queued where a check fails."""
    codes, machine = constants("msm_kgsl"), node.machine
    if call.numcmds > MOST_BUFFERS or call.numobjs > MOST_BUFFERS or call.numsyncs > MOST_SYNCS:
        raise refused(errno.EINVAL, "too many command objects or sync points")
    with machine.lock:
        context = machine.contexts.get(call.context_id)
        if context is None or context.node is not node:
            raise refused(errno.EINVAL, f"this process has no context {call.context_id}")
        if call.flags & codes.KGSL_CMDBATCH_SYNC and call.numcmds:
            machine.violate("commands of a submission with KGSL_CMDBATCH_SYNC are ignored")
        syncs = _syncs(node, call)
        buffers = () if call.flags & codes.KGSL_CMDBATCH_SYNC else _buffers(node, call)
        if context.detached:
            raise refused(errno.ENOENT, f"context {context.id} was destroyed")
        if context.invalid:
            raise refused(errno.EDEADLK, f"context {context.id} was ended by a fault")
        timestamp = _timestamp(context, call.timestamp)
        machine.engine.queue(Submission(context, timestamp, buffers, syncs))
        call.timestamp = timestamp
        if context.faulted:
            # The commands are queued anyway: the error only reports the fault.
            context.faulted = False
            raise refused(errno.EPROTO, f"context {context.id} had a fault")


def _timestamp(context: Context, wanted: int) -> int:
    if context.flags & constants("msm_kgsl").KGSL_CONTEXT_USER_GENERATED_TS:
        if not after(wanted, context.queued):
            raise refused(
                errno.ERANGE, f"timestamp {wanted} is not later than {context.queued}, the last"
            )
        context.queued = wanted
    else:
        context.queued = context.queued + 1 & 0xFFFF_FFFF
    return context.queued


def _entries(node: Program, address: int, size: int, count: int, layout: Any) -> list[Any]:
    """Return the structures of a list whose entries have `size` bytes in the program's header. The
    size of an empty list is not checked (kgsl.c, _process_command_input)."""
    if not count:
        return []
    if not 0 < size <= _MOST_STRUCTURE:
        raise refused(errno.EINVAL, f"a structure of {size} bytes")
    found = []
    every = node.memory.read(address, count * size)
    for start in range(0, len(every), size):
        raw = every[start : start + size]
        if any(raw[layout.size :]):
            raise refused(errno.EINVAL, f"bytes behind the {layout.size} that the kernel has")
        found.append(layout.view(bytearray(raw[: layout.size].ljust(layout.size, b"\0"))))
    return found


def _buffers(node: Program, call: Any) -> tuple[tuple[int, int], ...]:
    codes, layout = constants("msm_kgsl"), structs("msm_kgsl").kgsl_command_object
    allowed = (
        codes.KGSL_CMDLIST_IB
        | codes.KGSL_CMDLIST_CTXTSWITCH_PREAMBLE
        | codes.KGSL_CMDLIST_IB_PREAMBLE
    )
    buffers = []
    for entry in _entries(node, call.cmdlist, call.cmdsize, call.numcmds, layout):
        if not entry.flags & allowed:
            raise refused(errno.EINVAL, f"command object with flags {entry.flags:#x}")
        if not entry.size or entry.size >> 2 > MOST_WORDS:
            raise refused(errno.EINVAL, f"command object of {entry.size} bytes")
        if entry.gpuaddr % 4 or not entry.gpuaddr:
            raise refused(errno.EINVAL, f"command object at {entry.gpuaddr:#x}")
        if entry.size % 4:
            node.machine.violate(f"command object of {entry.size} bytes: the rest is ignored")
        if not entry.flags & codes.KGSL_CMDLIST_CTXTSWITCH_PREAMBLE:
            buffers.append((entry.gpuaddr, entry.size))
    return tuple(buffers)


def _syncs(node: Program, call: Any) -> tuple[SyncPoint, ...]:
    codes, layouts = constants("msm_kgsl"), structs("msm_kgsl")
    found = []
    for entry in _entries(
        node, call.synclist, call.syncsize, call.numsyncs, layouts.kgsl_command_syncpoint
    ):
        at = layouts.kgsl_cmd_syncpoint_timestamp
        if entry.type != codes.KGSL_CMD_SYNCPOINT_TYPE_TIMESTAMP:
            node.machine.asked[f"sync point of type {entry.type}"] += 1
            raise refused(errno.EINVAL, f"sync point of type {entry.type} is not modelled")
        if entry.size != at.size:
            raise refused(
                errno.EINVAL, f"invalid size of a timestamp sync point: {entry.size} bytes"
            )
        point = at.view(node.memory.read(entry.priv, at.size))
        context = node.machine.contexts.get(point.context_id)
        if context is None:
            raise refused(errno.EINVAL, f"context {point.context_id} does not exist")
        if context.id == call.context_id and after(point.timestamp, context.queued):
            raise refused(errno.EINVAL, "a submission would wait for a later one of its context")
        found.append(SyncPoint(context, point.timestamp))
    return tuple(found)
