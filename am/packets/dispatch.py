"""Dispatch: one kernel launch as registers and packets.

Source: LLVM AMDGPUUsage (kernel descriptor, initial SGPRs, hidden arguments, AQL dispatch packet),
Linux 6.12 register headers of GC (COMPUTE_* fields).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.am.packets.pm4 import Pm4
from ugpu.am.regs import constants
from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.objects.code_object import Descriptor, KernelImage
from ugpu.hcq.registers.fields import RegisterBlock
from ugpu.hcq.work.command import Launch

LDS_GRANULE = 512  # bytes per unit of COMPUTE_PGM_RSRC2.LDS_SIZE on gfx11
WAVE_SIZE_GRANULE = 256  # bytes per unit of COMPUTE_TMPRING_SIZE.WAVESIZE on gfx11
_NOT_PROVIDED = ("private_segment_buffer", "flat_scratch_init")
_WORDS = {
    "dispatch_ptr": 2, "queue_ptr": 2, "kernarg_segment_ptr": 2, "dispatch_id": 2,
    "private_segment_size": 1,
}  # fmt: skip
# AQL kernel dispatch packet: header, setup, group sizes, grid sizes (threads), private and group
# segment sizes, kernel object, kernel arguments, reserved, completion signal.
_AQL = struct.Struct("<HHHHHHIIIIIQQQQ")
_AQL_KERNARG = 40
_AQL_KERNEL_DISPATCH = 2
# Hidden pointers that stay null: compilers list them even if the kernel does not use them.
_NULL_POINTERS = (
    "hidden_hostcall_buffer",
    "hidden_multigrid_sync_arg",
    "hidden_heap_v1",
    "hidden_default_queue",
    "hidden_completion_action",
    "hidden_queue_ptr",
)
# hidden argument -> (axis, what): the values that depend on the launch; all others stay zero
_HIDDEN = {
    f"hidden_{what}_{axis}": (number, what)
    for number, axis in enumerate("xyz")
    for what in ("block_count", "group_size")
}


@dataclass(frozen=True)
class Scratch:
    """Private memory for waves. address: virtual; wave_size: bytes; waves: per shader engine."""

    address: int
    wave_size: int
    waves: int


@dataclass(frozen=True)
class LaunchDetails:
    """Content of `Kernel.details`: all facts about launches that do not change.

    descriptor: address of the kernel descriptor. private_size: bytes of a thread, the stack
    included. setup: the packets that every launch of the kernel starts with, see encode_setup.
    """

    image: KernelImage
    descriptor: int
    threads_limit: int
    setup: tuple[int, ...]
    private_size: int = 0


class ShaderRegisters:
    """SET_SH_REG offsets of the COMPUTE_* registers, and encoded constants, looked up once."""

    def __init__(self, gc: RegisterBlock) -> None:
        start = constants("nvd").PACKET3_SET_SH_REG_START
        registers = gc.map
        self.rsrc2 = registers["COMPUTE_PGM_RSRC2"]
        self.tmpring = registers["COMPUTE_TMPRING_SIZE"]
        initiator = registers["COMPUTE_DISPATCH_INITIATOR"]
        self.initiators = tuple(
            initiator.encode(COMPUTE_SHADER_EN=1, FORCE_START_AT_000=1, CS_W32_EN=wave32)
            for wave32 in (0, 1)
        )

        def offset(name: str) -> int:
            return gc[name].index - start

        self.pgm_lo = offset("COMPUTE_PGM_LO")
        self.pgm_rsrc1 = offset("COMPUTE_PGM_RSRC1")
        self.pgm_rsrc3 = offset("COMPUTE_PGM_RSRC3")
        self.resource_limits = offset("COMPUTE_RESOURCE_LIMITS")
        self.tmpring_size = offset("COMPUTE_TMPRING_SIZE")
        self.scratch_base = offset("COMPUTE_DISPATCH_SCRATCH_BASE_LO")
        self.restart = offset("COMPUTE_RESTART_X")
        self.start = offset("COMPUTE_START_X")
        self.user_data = offset("COMPUTE_USER_DATA_0")


def null_pointers(image: KernelImage) -> tuple[str, ...]:
    """Return the pointers that a kernel declares and that this driver leaves null."""
    found = [hidden.kind for hidden in image.hidden if hidden.kind in _NULL_POINTERS]
    if image.descriptor.user_sgprs["queue_ptr"] and "hidden_queue_ptr" not in found:
        found.append("queue_ptr")
    return tuple(found)


def check_supported(image: KernelImage) -> None:
    """Raise NotSupported for a kernel that requires something this driver does not provide."""
    name, descriptor = image.name, image.descriptor
    wanted = descriptor.user_sgprs
    for what in _NOT_PROVIDED:
        if wanted[what]:
            raise NotSupported(f"kernel {name} requires {what}, which is not provided", kernel=name)
    if descriptor.preload:
        raise NotSupported(
            f"kernel {name} preloads arguments into registers, which is not supported", kernel=name
        )
    if any(hidden.kind == "hidden_printf_buffer" for hidden in image.hidden):
        raise NotSupported(
            f"kernel {name} requires a printf buffer (hidden_printf_buffer), which is not "
            "provided; "
            "compile it without printf",
            kernel=name,
        )


def encode_launch(pm4: Pm4, launch: Launch, registers: ShaderRegisters) -> None:
    """Append the packets of one launch and its argument block."""
    details = launch.kernel.details
    assert isinstance(details, LaunchDetails)
    _check_shape(launch, details)
    if 0 in launch.grid:
        return
    kernarg = _place_arguments(pm4, launch, details)
    pm4.emit(*details.setup)
    if launch.dynamic_local:
        descriptor = details.image.descriptor
        size = descriptor.local_size + launch.dynamic_local
        pm4.set_sh(registers.pgm_rsrc1, descriptor.rsrc1, _rsrc2(registers, descriptor, size))
    _user_data(pm4, launch, details, registers, kernarg)
    # START_X..Z, NUM_THREAD_X..Z, PIPELINESTAT_ENABLE, PERFCOUNT_ENABLE are consecutive.
    pm4.set_sh(registers.start, 0, 0, 0, *launch.block, 0, 0)
    pm4.dispatch(launch.grid, registers.initiators[details.image.descriptor.is_wave32])


def encode_setup(
    descriptor: Descriptor, code: int, scratch: Scratch | None, registers: ShaderRegisters
) -> tuple[int, ...]:
    """Return the packets of a launch that depend on the kernel alone."""
    pm4 = Pm4()
    pm4.set_sh(registers.pgm_lo, *_split(code >> 8))
    pm4.set_sh(
        registers.pgm_rsrc1, descriptor.rsrc1, _rsrc2(registers, descriptor, descriptor.local_size)
    )
    pm4.set_sh(registers.pgm_rsrc3, descriptor.rsrc3)
    pm4.set_sh(registers.tmpring_size, _tmpring(registers, scratch))
    if scratch is not None:
        pm4.set_sh(registers.scratch_base, *_split(scratch.address >> 8))
    pm4.set_sh(registers.restart, 0, 0, 0)
    pm4.set_sh(registers.resource_limits, 0)
    return tuple(pm4.words)


def _check_shape(launch: Launch, details: LaunchDetails) -> None:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    most = min(details.image.max_threads or details.threads_limit, details.threads_limit)
    if threads > most:
        raise BadArgument(
            f"{launch.kernel.name}: a group must have at most {most} threads", block=launch.block
        )


def _place_arguments(pm4: Pm4, launch: Launch, details: LaunchDetails) -> int | None:
    """Put the argument block behind the commands; return its data offset, None without one."""
    image = details.image
    if not image.kernarg_size:
        return None
    block = bytearray(launch.kernarg.ljust(image.kernarg_size, b"\0"))
    for hidden in image.hidden:
        value = _hidden_value(hidden.kind, launch)
        if value is not None:
            block[hidden.offset : hidden.offset + hidden.size] = value.to_bytes(
                hidden.size, "little"
            )
    offset = pm4.add_data(bytes(block))
    for reference in launch.references:
        pm4.data_symbol(offset + reference.offset, reference.symbol, reference.width)
    return offset


def _hidden_value(kind: str, launch: Launch) -> int | None:
    if kind == "hidden_dynamic_lds_size":
        return launch.dynamic_local
    if kind == "hidden_grid_dims":
        return max((n + 1 for n in range(3) if launch.grid[n] * launch.block[n] > 1), default=1)
    if kind not in _HIDDEN:
        return None
    axis, what = _HIDDEN[kind]
    return launch.grid[axis] if what == "block_count" else launch.block[axis]


def _user_data(
    pm4: Pm4,
    launch: Launch,
    details: LaunchDetails,
    registers: ShaderRegisters,
    kernarg: int | None,
) -> None:
    """Set the initial SGPRs in the ABI's order: dispatch packet, queue, arguments, dispatch id,
    private size.

    There is no AQL queue: its pointer is null, and the id is 0. Compilers request both for calls
    through pointers, because the function may need them.
    """
    descriptor = details.image.descriptor
    wanted = descriptor.user_sgprs
    count = sum(words for name, words in _WORDS.items() if wanted[name])
    if not count:
        return
    pm4.set_sh_count(registers.user_data, count)
    if wanted["dispatch_ptr"]:
        pm4.data_address(_place_packet(pm4, launch, details, kernarg))
    if wanted["queue_ptr"]:
        pm4.emit(0, 0)
    if wanted["kernarg_segment_ptr"]:
        if kernarg is None:
            pm4.emit(0, 0)
        else:
            pm4.data_address(kernarg)
    if wanted["dispatch_id"]:
        pm4.emit(0, 0)
    if wanted["private_segment_size"]:
        pm4.emit(details.private_size)


def _place_packet(pm4: Pm4, launch: Launch, details: LaunchDetails, kernarg: int | None) -> int:
    """Add the AQL packet of this launch, from which kernels read sizes; return its data offset."""
    descriptor = details.image.descriptor
    threads = [groups * size for groups, size in zip(launch.grid, launch.block, strict=True)]
    if any(size >= 1 << 32 for size in threads):
        raise BadArgument("the grid must have fewer than 2**32 threads on each axis", grid=threads)
    packet = _AQL.pack(
        _AQL_KERNEL_DISPATCH, 3, *launch.block, 0, *threads, details.private_size,
        descriptor.local_size + launch.dynamic_local, details.descriptor, 0, 0, 0,
    )  # fmt: skip
    offset = pm4.add_data(packet)
    if kernarg is not None:
        pm4.data_points_to(offset + _AQL_KERNARG, kernarg)
    return offset


def _rsrc2(registers: ShaderRegisters, descriptor: Descriptor, local_size: int) -> int:
    granules = -(-local_size // LDS_GRANULE)
    return int(registers.rsrc2.insert(descriptor.rsrc2, {"LDS_SIZE": granules}))


def _tmpring(registers: ShaderRegisters, scratch: Scratch | None) -> int:
    if scratch is None:
        return 0
    size = scratch.wave_size // WAVE_SIZE_GRANULE
    return int(registers.tmpring.encode(WAVES=scratch.waves, WAVESIZE=size))


def _split(value: int) -> tuple[int, int]:
    return value & 0xFFFF_FFFF, value >> 32
