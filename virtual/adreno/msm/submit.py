"""GEM_SUBMIT: checks of a submission, and queueing.

Source: Linux drivers/gpu/drm/msm/msm_gem_submit.c (msm_ioctl_gem_submit, submit_lookup_objects,
submit_lookup_cmds); relocations exist only below generation 6 (allow_relocs in adreno_gpu.c).
"""

from __future__ import annotations

import errno
from typing import Any

from ugpu.hcq.uapi import constants, structs
from ugpu.virtual.adreno.kgsl.context import Submission
from ugpu.virtual.adreno.msm.memory import GemObject, address_of, find
from ugpu.virtual.adreno.msm.program import MsmProgram
from ugpu.virtual.node.refusal import refused

_MOST_WORDS = 0xFFFFF  # of CP_INDIRECT_BUFFER
_LAST_FENCE = 0x7FFF_FFFF


def gem_submit(node: MsmProgram, call: Any) -> None:
    """Check and queue a submission; store its fence. Nothing is queued where a check fails."""
    codes, machine = constants("msm_drm"), node.machine
    if call.pad:
        raise refused(errno.EINVAL, "pad is not 0")
    if call.flags & codes.MSM_PIPE_ID_MASK != codes.MSM_PIPE_3D0:
        raise refused(errno.EINVAL, f"pipe {call.flags & codes.MSM_PIPE_ID_MASK:#x}")
    flags = call.flags & ~codes.MSM_PIPE_ID_MASK & 0xFFFF_FFFF
    if flags & ~codes.MSM_SUBMIT_FLAGS & 0xFFFF_FFFF or flags & codes.MSM_SUBMIT_SUDO:
        raise refused(errno.EINVAL, f"flags {call.flags:#x}")
    with machine.lock:
        queue = node.queues.get(call.queueid)
        if queue is None:
            raise refused(errno.ENOENT, f"this file has no queue {call.queueid}")
        for name in ("FENCE_FD_IN", "FENCE_FD_OUT", "SYNCOBJ_IN", "SYNCOBJ_OUT"):
            if flags & codes[f"MSM_SUBMIT_{name}"] & 0xFFFF_FFFF:
                machine.asked[f"GEM_SUBMIT with {name}"] += 1
                raise refused(errno.EINVAL, f"{name} is not modelled")
        objects = _objects(node, call)
        commands = _commands(node, call)
        buffers = _buffers(node, objects, commands)
        chosen = call.fence if flags & codes.MSM_SUBMIT_FENCE_SN_IN else 0
        if flags & codes.MSM_SUBMIT_FENCE_SN_IN and (not chosen or queue.is_pending(chosen)):
            raise refused(errno.EINVAL, f"fence {chosen} cannot be chosen")
        fence = chosen or queue.last % _LAST_FENCE + 1
        queue.queued = queue.queued + 1 & 0xFFFF_FFFF
        queue.fences[fence] = queue.queued
        queue.last = fence
        for found, writes in objects:
            found.uses = [use for use in found.uses if use[0].is_pending(use[1])]
            found.uses.append((queue, fence, writes))
        named = frozenset(found.id for found, _ in objects)
        machine.engine.queue(Submission(queue, queue.queued, buffers, named=named))
        call.fence = fence


def _objects(node: MsmProgram, call: Any) -> list[tuple[GemObject, bool]]:
    """Return the listed objects, and whether the submission writes them."""
    codes, layout = constants("msm_drm"), structs("msm_drm").drm_msm_gem_submit_bo
    entries = []
    wanted = codes.MSM_SUBMIT_BO_READ | codes.MSM_SUBMIT_BO_WRITE
    raw = node.memory.read(call.bos, call.nr_bos * layout.size)
    for start in range(0, len(raw), layout.size):
        entry = layout.view(raw, start)
        if entry.flags & ~codes.MSM_SUBMIT_BO_FLAGS or not entry.flags & wanted:
            raise refused(errno.EINVAL, f"flags {entry.flags:#x} of a named object")
        entries.append(entry)
    found = [
        (find(node, entry.handle, errno.EINVAL), bool(entry.flags & codes.MSM_SUBMIT_BO_WRITE))
        for entry in entries
    ]
    handles = [one.id for one, _ in found]
    if len(set(handles)) != len(handles):
        raise refused(errno.EALREADY, "an object is named twice")
    return found


def _commands(node: MsmProgram, call: Any) -> list[Any]:
    codes, layout = constants("msm_drm"), structs("msm_drm").drm_msm_gem_submit_cmd
    known = (codes.MSM_SUBMIT_CMD_BUF, codes.MSM_SUBMIT_CMD_IB_TARGET_BUF)
    found = []
    for number in range(call.nr_cmds):
        raw = node.memory.read(call.cmds + number * layout.size, layout.size)
        command = layout.view(bytearray(raw))
        if command.type == codes.MSM_SUBMIT_CMD_CTX_RESTORE_BUF:
            node.machine.asked["MSM_SUBMIT_CMD_CTX_RESTORE_BUF"] += 1
            raise refused(errno.EINVAL, "MSM_SUBMIT_CMD_CTX_RESTORE_BUF is not modelled")
        if command.type not in known:
            raise refused(errno.EINVAL, f"command of type {command.type:#x}")
        if command.size % 4:
            raise refused(errno.EINVAL, f"command buffer of {command.size} bytes")
        found.append(command)
    return found


def _buffers(
    node: MsmProgram, objects: list[tuple[GemObject, bool]], commands: list[Any]
) -> tuple[tuple[int, int], ...]:
    """Map the listed objects; return the command buffers for the GPU."""
    for found, _ in objects:
        if not found.needed:
            raise refused(errno.EBUSY, f"handle {found.id} was given up by MADV_DONTNEED")
        address_of(node, found)
    buffers = []
    for command in commands:
        if command.submit_idx >= len(objects):
            raise refused(errno.EINVAL, f"object {command.submit_idx} of {len(objects)}")
        found = objects[command.submit_idx][0]
        # Both count words; the kernel drops the low bits of the offset.
        start = command.submit_offset // 4 * 4
        if not command.size or start + command.size > found.mapped_size:
            raise refused(errno.EINVAL, f"{command.size} bytes at {start} of handle {found.id}")
        if command.nr_relocs:
            raise refused(errno.EINVAL, "relocations are not allowed")
        if command.size // 4 > _MOST_WORDS:
            node.machine.violate(f"a command buffer of {command.size} bytes is cut off")
        if command.type == constants("msm_drm").MSM_SUBMIT_CMD_BUF:
            buffers.append((found.gpuaddr + start, command.size))
    for found, _ in objects:
        if not found.is_mapped:
            node.space.insert(found)
            found.is_mapped = True
    return tuple(buffers)
