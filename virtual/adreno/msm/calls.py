"""Calls of msm: parameters, submit queues, fences; virtual.adreno.msm.memory has those of memory.

Source: Linux drivers/gpu/drm/msm: msm_drv.c (msm_ioctl_*), msm_submitqueue.c, adreno/adreno_gpu.c
(adreno_get_param); drivers/gpu/drm/drm_gem.c.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

from ugpu.hcq.registers.layout import Layout
from ugpu.hcq.uapi import constants, structs
from ugpu.virtual.adreno.kgsl.refusal import strike
from ugpu.virtual.adreno.msm import memory, submit
from ugpu.virtual.adreno.msm.program import MsmProgram
from ugpu.virtual.adreno.msm.queue import MsmQueue
from ugpu.virtual.adreno.planted import Planted
from ugpu.virtual.node.refusal import refused

PRIORITIES = 3  # one ring, NR_SCHED_PRIORITIES of it
FASTEST_HZ = 710_000_000  # of an Adreno 630: sdm845.dtsi; the model's clock does not depend on it
_GEM_CLOSE = 0x4008_6409  # DRM_IOCTL_GEM_CLOSE of drm.h: {u32 handle, u32 pad}
_PRIME_FD_TO_HANDLE = 0xC00C_642E  # DRM_IOCTL_PRIME_FD_TO_HANDLE: {u32 handle, u32 flags, s32 fd}
_PAUSE_S = 0.05


class MsmCalls:
    """The ioctls of one program. Each handler gets the parameters as a structure of msm_drm.h.
    Any: structures of a generated table."""

    def __init__(self, node: MsmProgram) -> None:
        self._node = node
        self._machine = node.machine
        self._codes = constants("msm_drm")
        layouts = structs("msm_drm")
        self._new_queue(PRIORITIES // 2)  # the default queue, number 0
        known: dict[str, tuple[Callable[[MsmProgram, Any], None], Layout[Any] | None]] = {
            "GET_PARAM": (self._get_param, layouts.drm_msm_param),
            "GEM_NEW": (memory.gem_new, layouts.drm_msm_gem_new),
            "GEM_INFO": (memory.gem_info, layouts.drm_msm_gem_info),
            "GEM_CPU_PREP": (self._cpu_prep, layouts.drm_msm_gem_cpu_prep),
            "GEM_CPU_FINI": (memory.gem_cpu_fini, layouts.drm_msm_gem_cpu_fini),
            "GEM_MADVISE": (memory.gem_madvise, layouts.drm_msm_gem_madvise),
            "GEM_SUBMIT": (submit.gem_submit, layouts.drm_msm_gem_submit),
            "WAIT_FENCE": (self._wait_fence, layouts.drm_msm_wait_fence),
            "SUBMITQUEUE_NEW": (self._queue_new, layouts.drm_msm_submitqueue),
            "SUBMITQUEUE_CLOSE": (self._queue_close, None),
            "SUBMITQUEUE_QUERY": (self._queue_query, layouts.drm_msm_submitqueue_query),
        }
        self._handlers = {
            self._codes[f"DRM_IOCTL_MSM_{name}"]: (name, *rest) for name, rest in known.items()
        }
        self._handlers[_GEM_CLOSE] = ("GEM_CLOSE", memory.gem_close, None)
        imports = ("PRIME_FD_TO_HANDLE", memory.prime_fd_to_handle, None)
        self._handlers[_PRIME_FD_TO_HANDLE] = imports

    def call(self, request: int, argument: memoryview) -> None:
        """Execute one ioctl; OSError where the kernel refuses it."""
        name, handler, layout = self._handlers.get(request, ("", None, None))
        if handler is None:
            self._machine.asked[f"ioctl {request:#x}"] += 1
            # DRM identifies a call by its number and type alone; an unknown one is EINVAL.
            raise refused(errno.EINVAL, f"ioctl {request:#x}")
        strike(self._machine, "any ioctl")
        strike(self._machine, name)
        handler(self._node, argument if layout is None else layout.view(argument))

    # ---- parameters ------------------------------------------------------------------------------

    def _get_param(self, node: MsmProgram, call: Any) -> None:
        codes = self._codes
        if call.pipe != codes.MSM_PIPE_3D0 or call.pad:
            raise refused(errno.EINVAL, f"pipe {call.pipe:#x}, pad {call.pad}")
        for name in codes.names(call.param, prefix="MSM_PARAM_"):
            strike(self._machine, name)
        if call.len:
            raise refused(errno.EINVAL, f"{call.len} bytes for a number")
        found = self._parameter(call.param)
        if found is None:
            self._machine.asked[f"parameter {call.param:#x}"] += 1
            raise refused(errno.EINVAL, f"no parameter {call.param:#x}")
        call.value = found

    def _parameter(self, number: int) -> int | None:
        codes, facts, node = self._codes, self._machine.facts, self._node
        from_a650 = facts.generation == 7 or node.va_size > 4 << 30
        chip_id = 0x4405_0001 if self._strange(number) else facts.chip_ids[0]
        return {
            codes.MSM_PARAM_GPU_ID: facts.gpu_id if facts.generation == 6 else 0,
            codes.MSM_PARAM_GMEM_SIZE: facts.gmem,
            codes.MSM_PARAM_GMEM_BASE: 0 if from_a650 else 0x10_0000,
            codes.MSM_PARAM_CHIP_ID: chip_id,
            codes.MSM_PARAM_MAX_FREQ: FASTEST_HZ,
            codes.MSM_PARAM_TIMESTAMP: self._machine.ticks(),
            codes.MSM_PARAM_PRIORITIES: PRIORITIES,
            codes.MSM_PARAM_PP_PGTABLE: 0,
            codes.MSM_PARAM_FAULTS: node.faults,
            codes.MSM_PARAM_SUSPENDS: 0,
            codes.MSM_PARAM_VA_START: 1 << 32,
            codes.MSM_PARAM_VA_SIZE: node.va_size,
            codes.MSM_PARAM_HIGHEST_BANK_BIT: facts.highest_bank_bit,
            codes.MSM_PARAM_RAYTRACING: int(facts.generation == 7 and facts.step >= 2),
        }.get(number)

    def _strange(self, number: int) -> bool:
        is_id = number == self._codes.MSM_PARAM_CHIP_ID
        return is_id and self._machine.take(Planted.STRANGE_CHIP)

    # ---- submit queues ---------------------------------------------------------------------------

    def _new_queue(self, priority: int) -> MsmQueue:
        machine, node = self._machine, self._node
        with machine.lock:
            number = max(node.queues, default=-1) + 1
            made = MsmQueue(number, machine.new_context_id(), node)
            node.queues[number] = made
            machine.contexts[made.id] = made
            return made

    def _queue(self, number: int) -> MsmQueue:
        found = self._node.queues.get(number)
        if found is None:
            raise refused(errno.ENOENT, f"this file has no queue {number}")
        return found

    def _queue_new(self, node: MsmProgram, call: Any) -> None:
        if call.flags & ~self._codes.MSM_SUBMITQUEUE_FLAGS:
            raise refused(errno.EINVAL, f"flags {call.flags:#x} of a queue")
        if call.prio >= PRIORITIES:
            raise refused(errno.EINVAL, f"priority {call.prio}, there are {PRIORITIES}")
        call.id = self._new_queue(call.prio).number

    def _queue_close(self, node: MsmProgram, argument: memoryview) -> None:
        """Close a queue; its queued submissions still run."""
        machine, number = self._machine, struct.unpack_from("<I", argument)[0]
        with machine.lock:
            if not number:
                raise refused(errno.ENOENT, "the default queue cannot be closed")
            queue = self._queue(number)
            del node.queues[number]
            if queue.is_retired(queue.queued):
                machine.contexts.pop(queue.id, None)
            else:
                queue.events.append((queue.queued, lambda: _forget(node, queue)))

    def _queue_query(self, node: MsmProgram, call: Any) -> None:
        if call.pad:
            raise refused(errno.EINVAL, "pad is not 0")
        with self._machine.lock:
            queue = self._queue(call.id)
            if call.param != self._codes.MSM_SUBMITQUEUE_PARAM_FAULTS:
                raise refused(errno.EINVAL, f"no parameter {call.param} of a queue")
            if not call.len:
                call.len = 4
                return
            call.len = min(call.len, 4)
            node.memory.write(call.data, struct.pack("<I", queue.faults)[: call.len])

    # ---- waiting ---------------------------------------------------------------------------------

    def _wait_fence(self, node: MsmProgram, call: Any) -> None:
        if call.flags & ~self._codes.MSM_WAIT_FENCE_FLAGS:
            raise refused(errno.EINVAL, f"flags {call.flags:#x}")
        with self._machine.lock:
            queue = self._queue(call.queueid)
            if call.fence > queue.last:
                raise refused(errno.EINVAL, f"fence {call.fence}, the last one is {queue.last}")
        self._wait(lambda: not queue.is_pending(call.fence), call.timeout, f"fence {call.fence}")

    def _cpu_prep(self, node: MsmProgram, call: Any) -> None:
        codes = self._codes
        if call.op & ~codes.MSM_PREP_FLAGS:
            raise refused(errno.EINVAL, f"operation {call.op:#x}")
        with self._machine.lock:
            found = memory.find(node, call.handle)

        def is_idle() -> bool:
            return not memory.is_busy(node, found, for_writing=bool(call.op & codes.MSM_PREP_WRITE))

        if call.op & codes.MSM_PREP_NOSYNC:
            with self._machine.lock:
                if not is_idle():
                    raise refused(errno.EBUSY, f"handle {call.handle} is in use")
            return
        self._wait(is_idle, call.timeout, f"handle {call.handle}")

    def _wait(self, done: Callable[[], bool], until: Any, what: str) -> None:
        """Wait until `done`, or until a time of CLOCK_MONOTONIC; then ETIMEDOUT."""
        engine, clock = self._machine.engine, self._machine.clock
        end = until.tv_sec + until.tv_nsec * 1e-9
        with engine.changed:
            while not done():
                if engine.error is not None:
                    raise refused(errno.EIO, f"the model failed: {engine.error!r}")
                left = end - clock.now()
                if left <= 0:
                    raise refused(errno.ETIMEDOUT, f"{what} has not retired")
                engine.changed.wait(min(left, _PAUSE_S))
                engine.check_hang()


def _forget(node: MsmProgram, queue: MsmQueue) -> None:
    node.machine.contexts.pop(queue.id, None)
