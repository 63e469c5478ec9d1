"""Calls of the kernel driver: dispatch, contexts, timestamps, properties.

Source: Android msm kernel (msm-4.19), drivers/gpu/msm: kgsl.c (kgsl_ioctl_*), adreno.c
(adreno_getproperty, adreno_prop_*), adreno_drawctxt.c (adreno_drawctxt_create, _wait).
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from typing import Any

from ugpu.qcom.regs import constants, structs
from ugpu.virtual.adreno.kgsl import counters, fault, memory, submit
from ugpu.virtual.adreno.kgsl.context import Context, ResetStatus, after
from ugpu.virtual.adreno.kgsl.refusal import strike
from ugpu.virtual.adreno.planted import Planted
from ugpu.virtual.adreno.program import Program
from ugpu.virtual.node.refusal import refused

_FOREVER = 0xFFFF_FFFF  # of WAITTIMESTAMP_CTXTID
_MOST_CONTEXTS = 256  # per process, adreno_drawctxt.c
_PAUSE_S = 0.05


class Calls:
    """The ioctls of one program. Each handler gets the parameters as a structure of msm_kgsl.h, and
    stores the kernel's results in it. Any: structures of a generated table."""

    def __init__(self, node: Program) -> None:
        self._node = node
        self._machine = node.machine
        self._codes = constants("msm_kgsl")
        self._structs = structs("msm_kgsl")
        handlers: dict[str, Callable[[Any], None]] = {
            "DEVICE_GETPROPERTY": self._get_property,
            "SETPROPERTY": self._set_property,
            "DRAWCTXT_CREATE": self._create,
            "DRAWCTXT_DESTROY": self._destroy,
            "DEVICE_WAITTIMESTAMP_CTXTID": self._wait,
            "CMDSTREAM_READTIMESTAMP_CTXTID": self._read_timestamp,
            "TIMESTAMP_EVENT": self._event,
            "GPU_COMMAND": lambda call: submit.gpu_command(node, call),
            "GET_FAULT_REPORT": self._fault_report,
        }
        for name, handler in {**memory.HANDLERS, **counters.HANDLERS}.items():
            handlers[name] = self._bound(handler)
        self._handlers = {
            self._codes[f"IOCTL_KGSL_{name}"]: (name, handler) for name, handler in handlers.items()
        }
        self._layouts = {name: self._structs[_structure(name)] for name in handlers}

    def _bound(self, handler: Callable[[Program, Any], None]) -> Callable[[Any], None]:
        return lambda call: handler(self._node, call)

    def call(self, request: int, argument: memoryview) -> None:
        """Execute one ioctl; OSError where the kernel refuses it."""
        name, handler = self._handlers.get(request, ("", None))
        if handler is None:
            known = {request & 0xFF: name for request, (name, _) in self._handlers.items()}
            like = known.get(request & 0xFF)
            self._machine.asked[f"ioctl {request:#x}"] += 1
            why = f"; {like} has another size" if like else ""
            raise refused(errno.ENOTTY, f"ioctl {request:#x}{why}")
        strike(self._machine, "any ioctl")
        strike(self._machine, name)
        handler(self._layouts[name].view(argument))

    # Contexts

    def _create(self, call: Any) -> None:
        codes = self._codes
        with self._machine.lock:
            need = codes.KGSL_CONTEXT_PREAMBLE | codes.KGSL_CONTEXT_NO_GMEM_ALLOC
            if call.flags & need != need:
                raise refused(errno.EINVAL, "legacy context switch not supported")
            if call.flags & codes.KGSL_CONTEXT_SECURE:
                raise refused(errno.EOPNOTSUPP, "secure context not supported")
            mine = [found for found in self._machine.contexts.values() if found.node is self._node]
            if len(mine) >= _MOST_CONTEXTS:
                raise refused(errno.ENOSPC, "no context is left")
            known = (
                need | codes.KGSL_CONTEXT_PER_CONTEXT_TS | codes.KGSL_CONTEXT_USER_GENERATED_TS
                | codes.KGSL_CONTEXT_NO_FAULT_TOLERANCE | codes.KGSL_CONTEXT_INVALIDATE_ON_FAULT
                | codes.KGSL_CONTEXT_CTX_SWITCH | codes.KGSL_CONTEXT_PRIORITY_MASK
                | codes.KGSL_CONTEXT_TYPE_MASK | codes.KGSL_CONTEXT_PWR_CONSTRAINT
                | codes.KGSL_CONTEXT_PREEMPT_STYLE_MASK | codes.KGSL_CONTEXT_NO_SNAPSHOT
                | codes.KGSL_CONTEXT_FAULT_INFO
            )  # fmt: skip
            if not self._tells_faults:
                known &= ~codes.KGSL_CONTEXT_FAULT_INFO
            flags = call.flags & known | codes.KGSL_CONTEXT_PER_CONTEXT_TS
            found = Context(self._machine.new_context_id(), self._node, flags)
            self._machine.contexts[found.id] = found
            call.flags, call.drawctxt_id = flags, found.id

    @property
    def _tells_faults(self) -> bool:
        return Planted.OLD_FAULTS not in self._machine.plan.standing

    def _fault_report(self, call: Any) -> None:
        if not self._tells_faults:
            raise refused(errno.ENOTTY, "GET_FAULT_REPORT")
        with self._machine.lock:
            fault.report(self._node.memory, self._context(call.context_id), call)

    def _context(self, number: int) -> Context:
        found = self._machine.contexts.get(number)
        if found is None or found.node is not self._node:
            raise refused(errno.EINVAL, f"this process has no context {number}")
        return found

    def _destroy(self, call: Any) -> None:
        with self._machine.lock:
            self._node.destroy(self._context(call.drawctxt_id))

    # Timestamps

    def _wait(self, call: Any) -> None:
        engine, clock = self._machine.engine, self._machine.clock
        limit_s = None if call.timeout == _FOREVER else call.timeout / 1000
        with engine.changed:
            context = self._context(call.context_id)
            deadline = clock.deadline(limit_s or 0.0)
            while True:
                if engine.error is not None:
                    raise refused(errno.EIO, f"the model failed: {engine.error!r}")
                if context.detached:
                    raise refused(errno.ENOENT, f"context {context.id} was destroyed")
                if context.invalid:
                    raise refused(errno.EDEADLK, f"context {context.id} was ended by a fault")
                own = context.flags & self._codes.KGSL_CONTEXT_USER_GENERATED_TS
                if not own and after(call.timestamp, context.queued):
                    raise refused(
                        errno.EINVAL,
                        f"context {context.id} has issued {context.queued}, not {call.timestamp}",
                    )
                if context.is_retired(call.timestamp):
                    return
                if limit_s is not None and (limit_s == 0 or deadline.expired()):
                    raise refused(errno.ETIMEDOUT, f"timestamp {call.timestamp} has not retired")
                pause_s = _PAUSE_S if limit_s is None else min(deadline.pause_s, _PAUSE_S)
                engine.changed.wait(pause_s)
                engine.check_hang()

    def _read_timestamp(self, call: Any) -> None:
        with self._machine.lock:
            context = self._context(call.context_id)
            known = {
                self._codes.KGSL_TIMESTAMP_CONSUMED: context.consumed,
                self._codes.KGSL_TIMESTAMP_RETIRED: context.retired,
                self._codes.KGSL_TIMESTAMP_QUEUED: context.queued,
            }
            if call.type not in known:
                raise refused(errno.EINVAL, f"unknown timestamp type {call.type}")
            call.timestamp = known[call.type]

    def _event(self, call: Any) -> None:
        if call.type != self._codes.KGSL_TIMESTAMP_EVENT_FENCE or call.len != 4:
            raise refused(errno.EINVAL, f"event of type {call.type} with {call.len} bytes")
        if not self._node.is_here:
            self._machine.asked["TIMESTAMP_EVENT of another process"] += 1
            raise refused(errno.EINVAL, "the model cannot give another process a descriptor")
        with self._machine.lock:
            context = self._context(call.context_id)
            fence = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._node.memory.write(call.priv, struct.pack("<i", fence))
            if context.is_retired(call.timestamp):
                os.eventfd_write(fence, 1)
            else:
                # The program owns `fence` and may close it: the model signals through its own copy.
                copy = os.dup(fence)
                context.events.append((call.timestamp, lambda: _signal(copy)))

    # Properties

    def _get_property(self, call: Any) -> None:
        with self._machine.lock:
            for name in self._codes.names(call.type, prefix="KGSL_PROP_"):
                strike(self._machine, name)
            found = self._property(call)
            if found is None:
                self._machine.asked[f"property {call.type:#x}"] += 1
                raise refused(errno.EINVAL, f"unknown property {call.type:#x}")
            if call.sizebytes != len(found):
                raise refused(
                    errno.EINVAL,
                    f"property {call.type:#x} has {len(found)} bytes, not {call.sizebytes}",
                )
            self._node.memory.write(call.value, found)

    def _property(self, call: Any) -> bytes | None:
        codes, facts = self._codes, self._machine.facts
        if call.type == codes.KGSL_PROP_DEVICE_INFO:
            info = self._structs.kgsl_devinfo.new(
                device_id=1, chip_id=self._chip_id(), mmu_enabled=1, gpu_id=facts.gpu_id,
                gmem_sizebytes=facts.gmem,
            )  # fmt: skip
            return bytes(info)
        if call.type == codes.KGSL_PROP_VERSION:
            version = self._structs.kgsl_version.new(
                drv_major=codes.KGSL_VERSION_MAJOR, drv_minor=codes.KGSL_VERSION_MINOR,
                dev_major=3, dev_minor=1,
            )  # fmt: skip
            return bytes(version)
        if call.type == codes.KGSL_PROP_GPU_RESET_STAT:
            if call.sizebytes != 4:
                return b"\0" * 4
            number = struct.unpack("<I", self._node.memory.read(call.value, 4))[0]
            context = self._context(number)
            status, context.status = context.status, ResetStatus.NO_ERROR
            if self._machine.take(Planted.UNKNOWN_RESET):
                status = ResetStatus.UNKNOWN
            return struct.pack("<I", status)
        if call.type == codes.KGSL_PROP_UCHE_GMEM_VADDR:
            return struct.pack("<Q", 0x10_0000)
        if call.type == codes.KGSL_PROP_GPU_MODEL:
            return f"Adreno{facts.name[1:]}v1".encode().ljust(32, b"\0")
        words = {
            codes.KGSL_PROP_HIGHEST_BANK_BIT: facts.highest_bank_bit,
            codes.KGSL_PROP_UBWC_MODE: 4 if facts.generation == 7 else 2,
            codes.KGSL_PROP_DEVICE_BITNESS: 48,
            codes.KGSL_PROP_MIN_ACCESS_LENGTH: 32,
            codes.KGSL_PROP_MMU_ENABLE: 1,
            codes.KGSL_PROP_SPEED_BIN: 0,
            codes.KGSL_PROP_VK_DEVICE_ID: facts.chip_ids[0],
        }
        if facts.generation == 7 and facts.step >= 2:
            words[codes.KGSL_PROP_IS_RAYTRACING_ENABLED] = 1
        found = words.get(call.type)
        return None if found is None else struct.pack("<I", found)

    def _chip_id(self) -> int:
        """Return the GPU's id, or one of generation 8 (Mesa 25.0.7 freedreno_devices.py)."""
        strange = self._machine.take(Planted.STRANGE_CHIP)
        return 0x4405_0001 if strange else self._machine.facts.chip_ids[0]

    def _set_property(self, call: Any) -> None:
        """Set a power constraint of a context (adreno_set_constraint). It is only stored in
        `Context.power`: the model's clocks do not change."""
        codes, constraint = self._codes, self._structs.kgsl_device_constraint
        if call.type != self._codes.KGSL_PROP_PWR_CONSTRAINT:
            raise refused(errno.EINVAL, f"property {call.type:#x} cannot be set")
        if call.sizebytes != constraint.size:
            raise refused(errno.EINVAL, f"a constraint has {constraint.size} bytes")
        found = constraint.view(self._node.memory.read(call.value, constraint.size))
        with self._machine.lock:
            context = self._context(found.context_id)
            if found.type == codes.KGSL_CONSTRAINT_NONE:
                context.power = None
                return
            if found.type != codes.KGSL_CONSTRAINT_PWRLEVEL:
                raise refused(errno.EINVAL, f"constraint {found.type}")
            level = self._structs.kgsl_device_constraint_pwrlevel
            if found.size != level.size:
                raise refused(errno.EINVAL, f"a power level has {found.size} bytes")
            wanted = level.view(bytearray(self._node.memory.read(found.data, level.size))).level
            if wanted not in (codes.KGSL_CONSTRAINT_PWR_MIN, codes.KGSL_CONSTRAINT_PWR_MAX):
                raise refused(errno.EINVAL, f"power level {wanted}")
            context.power = wanted


def _structure(name: str) -> str:
    renamed = {
        "SETPROPERTY": "kgsl_device_getproperty",
        "GET_FAULT_REPORT": "kgsl_fault_report",
        "DEVICE_GETPROPERTY": "kgsl_device_getproperty",
    }
    return renamed.get(name, f"kgsl_{name.lower()}")


def _signal(fence: int) -> None:
    os.eventfd_write(fence, 1)
    os.close(fence)
