"""Launches: one kernel over a grid as a launch descriptor (QMD) and a constant bank.

Sources: open-gpu-doc classes/compute/cl*qmd.h (fields of each version) and clc6c0.h (SEND_PCAS).
nv.packets.families describes what code expects in constant bank 0. Everything that does not depend
on the launch is built once, when the program is loaded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.command_buffer import Relocation
from ugpu.nv import abi
from ugpu.nv.code.cubin import KernelCode
from ugpu.nv.packets.chains import Successor
from ugpu.nv.packets.clusters import Bits, ClusterFields, cluster_of, clusters_of, fill_bank
from ugpu.nv.packets.cooperative import groups_that_fit
from ugpu.nv.packets.families import STACK_START, ClusterWords, Family
from ugpu.nv.packets.pushbuffer import COMPUTE, Pushbuffer, header, method, word
from ugpu.nv.rm.session import LOCAL_WINDOW, SHARED_WINDOW

if TYPE_CHECKING:
    from ugpu.nv.packets.holder import LaunchHolder
    from ugpu.nv.rm.gpu import Gpu

_REGISTERS_PER_SM = 64 << 10  # CUDA C++ Programming Guide, "Compute Capabilities": Turing on
_REGISTER_GRANULE = 256  # per warp
_WARP = 32
_WARPS_GRANULE = 4
_GROUP_ID = 0x3F  # QMD_GROUP_ID of work that belongs to no group
_SHARED_GRANULE = 128
MAX_GRID = (0x7FFF_FFFF, 0xFFFF, 0xFFFF)
MAX_BLOCK = (1024, 1024, 64)


@dataclass(frozen=True)
class Shape:
    """Places of the values that each launch sets in a descriptor version; offsets in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    block_depth: str  # struct format of the third size
    bank_low: int  # word that holds the lower part of constant bank 0's address
    bank_shift: int
    config: Bits  # TARGET_SM_CONFIG_SHARED_MEM_SIZE
    least_config: Bits  # MIN_SM_CONFIG_SHARED_MEM_SIZE
    shared: Bits  # SHARED_MEMORY_SIZE
    shared_shift: int
    cluster: ClusterFields | None
    successor: Successor | None


@dataclass
class LaunchDetails:
    """Content of `Kernel.details`: all facts that are the same for every launch."""

    code: KernelCode
    qmd: bytes
    bank: bytes
    shape: Shape
    send: tuple[int, int, int]  # headers and word of SEND_PCAS
    block_at: int
    grid_at: int
    environment_at: int
    cluster_at: ClusterWords | None
    threads_limit: int
    shared_size: int
    local_size: int
    warps_per_sm: int
    carveouts: tuple[int, ...]
    targets: dict[tuple[int, int], int] = field(default_factory=dict)  # results of `carveout`

    def carveout(self, threads: int, dynamic: int = 0) -> int:
        """Return the size of an SM's shared memory: enough for as many groups as its warps allow.

        dynamic: bytes that a launch adds to the shared memory of each group.
        """
        found = self.targets.get((threads, dynamic))
        if found is None:
            warps = -(-threads // _WARP)
            groups = max(1, self.warps_per_sm // warps)
            size = groups * (self.shared_size + dynamic)
            enough = [carveout for carveout in self.carveouts if carveout >= size]
            found = enough[0] if enough else self.carveouts[-1]
            self.targets[threads, dynamic] = found
        return found


def shape_of(version: str) -> Shape:
    """The shape of a descriptor's version."""
    table = abi.qmd(version)
    grid = "GRID" if "GRID_WIDTH" in table.fields else "CTA_RASTER"
    low = "CONSTANT_BUFFER_ADDR_LOWER"
    shift = 0
    if low not in table.fields:
        low, shift = f"{low}_SHIFTED6", 6

    def at(name: str) -> int:
        return table.field(name).lsb // 8

    shared, shared_shift = "SHARED_MEMORY_SIZE", 0
    if shared not in table.fields:
        shared, shared_shift = f"{shared}_SHIFTED7", 7

    return Shape(
        grid=(at(f"{grid}_WIDTH"), at(f"{grid}_HEIGHT"), at(f"{grid}_DEPTH")),
        block=(
            at("CTA_THREAD_DIMENSION0"),
            at("CTA_THREAD_DIMENSION1"),
            at("CTA_THREAD_DIMENSION2"),
        ),
        block_depth="<B" if table.field("CTA_THREAD_DIMENSION2").width == 8 else "<H",
        bank_low=at(low) // 4,
        bank_shift=shift,
        config=Bits.of(table, "TARGET_SM_CONFIG_SHARED_MEM_SIZE"),
        least_config=Bits.of(table, "MIN_SM_CONFIG_SHARED_MEM_SIZE"),
        shared=Bits.of(table, shared),
        shared_shift=shared_shift,
        cluster=ClusterFields.of(table),
        successor=Successor.of(table),
    )


def shared_size(code: KernelCode, family: Family, *, counts_reserved: bool) -> int:
    """Bytes of shared memory that a group takes, including the system's share."""
    size = code.shared_size
    if not counts_reserved:
        size += family.reserved_shared
    return -(-max(size, family.reserved_shared) // _SHARED_GRANULE) * _SHARED_GRANULE


def _registers_per_warp(code: KernelCode) -> int:
    return -(-code.registers * _WARP // _REGISTER_GRANULE) * _REGISTER_GRANULE


def threads_limit(code: KernelCode) -> int:
    """Most threads of a group, limited by the kernel's declaration and by its registers."""
    per_warp = _registers_per_warp(code)
    warps = _REGISTERS_PER_SM // per_warp // _WARPS_GRANULE * _WARPS_GRANULE
    return min(1024, warps * _WARP, code.max_threads or 1024)


def prepare(
    gpu: Gpu,
    family: Family,
    compute_class: int,
    code: KernelCode,
    *,
    address: int,
    constants: dict[int, tuple[int, int]],
    local_size: int,
    counts_reserved: bool,
    carveouts: tuple[int, ...],
) -> LaunchDetails:
    """Build a kernel's descriptor and constant bank, without the values that each launch sets.

    address: address of the kernel's code. constants: bank -> (address, size) of the constant banks
    that do not change. local_size: bytes of local memory per thread.
    """
    shared = shared_size(code, family, counts_reserved=counts_reserved)
    if shared > carveouts[-1]:
        raise BadArgument(
            f"{code.name} requires {shared} bytes of shared memory, this GPU has {carveouts[-1]}",
            size=shared,
            most=carveouts[-1],
        )
    bank = _bank(code, family)
    table = abi.qmd(family.qmd)
    qmd = table.new()

    def put(name: str, value: int | str, index: int = 0, *, granule: int = 0) -> None:
        """Set a field under its name in this version: the plain value, or the shifted one."""
        if name not in table.fields and granule:
            table.set(qmd, f"{name}_SHIFTED{granule}", int(value) >> granule, index)
        else:
            table.set(qmd, name, value, index)

    def put_any(names: tuple[str, ...], value: int | str) -> None:
        """Set the first of `names` that this version has; do nothing if it has none of them."""
        name = next((name for name in names if name in table.fields), None)
        if name is not None:
            put(name, value)

    major, minor = (int(part) for part in family.qmd.split("."))
    put("QMD_MAJOR_VERSION", major)
    put_any(("QMD_MINOR_VERSION", "QMD_VERSION"), minor)
    put_any(("QMD_TYPE",), family.grid_type)
    put("QMD_GROUP_ID", _GROUP_ID)
    put_any(("SM_GLOBAL_CACHING_ENABLE",), 1)
    put("API_VISIBLE_CALL_LIMIT", "NO_CHECK")
    put_any(("SAMPLER_INDEX",), 1)
    put("CWD_MEMBAR_TYPE", "L1_SYSMEMBAR")
    put("INVALIDATE_SHADER_DATA_CACHE", 1)
    put("INVALIDATE_SHADER_CONSTANT_CACHE", 1)
    put_any(("SASS_VERSION",), gpu.sass_version)
    put_any(("REGISTER_COUNT_V", "REGISTER_COUNT"), code.registers)
    put("BARRIER_COUNT", code.barriers)
    put("SHARED_MEMORY_SIZE", shared, granule=7)
    put("MIN_SM_CONFIG_SHARED_MEM_SIZE", config_of(next(c for c in carveouts if c >= shared)))
    put("MAX_SM_CONFIG_SHARED_MEM_SIZE", config_of(carveouts[-1]))
    put("SHADER_LOCAL_MEMORY_HIGH_SIZE", local_size, granule=4)
    _split(table, qmd, "PROGRAM_ADDRESS", 0, address)
    for number, (start, size) in {**constants, 0: (0, len(bank))}.items():
        put("CONSTANT_BUFFER_VALID", 1, number)
        put("CONSTANT_BUFFER_INVALIDATE", 1, number)
        put("CONSTANT_BUFFER_SIZE_SHIFTED4", -(-size // 16), number)
        _split(table, qmd, "CONSTANT_BUFFER_ADDR", number, start)
    if major >= 4:  # as CUDA does on Hopper: 0.1 us of each launch in a chain on an H100
        put("CONSTANT_BUFFER_PREFETCH", "PREFETCH_PRE", 0)
    return LaunchDetails(
        code=code,
        qmd=bytes(qmd),
        bank=bank,
        shape=shape_of(family.qmd),
        send=_send(compute_class),
        block_at=family.bank.block,
        grid_at=family.bank.grid,
        environment_at=family.bank.environment,
        cluster_at=family.bank.cluster,
        threads_limit=threads_limit(code),
        shared_size=shared,
        local_size=local_size,
        warps_per_sm=gpu.warps_per_sm,
        carveouts=carveouts,
    )


def config_of(carveout: int) -> int:
    """Return a descriptor's value for the shared memory of an SM: units of 4 KiB, plus 1."""
    return carveout // 4096 + 1


def _split(table: abi.Descriptor, qmd: bytearray, name: str, index: int, address: int) -> None:
    """Set an address that takes two fields, shifted if this version requires it."""
    for suffix, shift in (("", 0), ("_SHIFTED4", 4), ("_SHIFTED6", 6)):
        if f"{name}_LOWER{suffix}" in table.fields:
            value = address >> shift
            table.set(qmd, f"{name}_LOWER{suffix}", value & 0xFFFF_FFFF, index)
            table.set(qmd, f"{name}_UPPER{suffix}", value >> 32, index)
            return
    raise BadArgument(f"{table.name} does not contain {name}")


def _bank(code: KernelCode, family: Family) -> bytes:
    """Constant bank 0 without sizes and parameters; a multiple of 16 bytes."""
    layout = family.bank
    count = 0 if layout.cluster is None else layout.cluster.count
    least = max(layout.stack, layout.local_window, layout.block, layout.grid, count) + 16
    size = max(code.parameters_at + code.parameters_size, least)
    bank = bytearray(-(-size // 16) * 16)
    struct.pack_into("<Q", bank, layout.shared_window, SHARED_WINDOW)
    struct.pack_into("<Q", bank, layout.local_window, LOCAL_WINDOW)
    struct.pack_into("<I", bank, layout.stack, STACK_START)
    return bytes(bank)


def _send(compute_class: int) -> tuple[int, int, int]:
    """Header before a descriptor's address, and header and word that start it."""
    address = header(COMPUTE, method(compute_class, "SEND_PCAS_A"), 1)
    if "SEND_SIGNALING_PCAS2_B" in abi.methods(compute_class):
        name = "SEND_SIGNALING_PCAS2_B"
        action = word(compute_class, name, PCAS_ACTION="INVALIDATE_COPY_SCHEDULE")
    else:
        name = "SEND_SIGNALING_PCAS_B"
        action = word(compute_class, name, INVALIDATE=1, SCHEDULE=1)
    return address, header(COMPUTE, method(compute_class, name), 1), action


def details_of(launch: Launch) -> LaunchDetails:
    """Return what is known about a launch's kernel."""
    details = launch.kernel.details
    assert isinstance(details, LaunchDetails)
    return details


def add_launch(image: Pushbuffer, launch: Launch) -> int | None:
    """Append the data of one launch: constant bank and descriptor.

    Returns the number of the descriptor's block, for `start_launch` or `start_after`; None for an
    empty grid.
    """
    details = details_of(launch)
    _check(launch, details)
    if 0 in launch.grid:
        return None
    cluster = cluster_of(launch, details.code)
    bank = bytearray(details.bank)
    struct.pack_into("<3I", bank, details.block_at, *launch.block)
    struct.pack_into("<3I", bank, details.grid_at, *launch.grid)
    if details.cluster_at is not None:
        fill_bank(bank, details.cluster_at, launch.grid, cluster)
    start = details.code.parameters_at
    bank[start : start + len(launch.kernarg)] = launch.kernarg
    holes: list[Relocation] = []
    for reference in launch.references:
        holes += reference.relocations(start // 4)
    shape = details.shape
    qmd = bytearray(details.qmd)
    width, height, depth = clusters_of(launch.grid, cluster)
    struct.pack_into("<I", qmd, shape.grid[0], width)
    struct.pack_into("<H", qmd, shape.grid[1], height)
    struct.pack_into("<H", qmd, shape.grid[2], depth)
    struct.pack_into("<H", qmd, shape.block[0], launch.block[0])
    struct.pack_into("<H", qmd, shape.block[1], launch.block[1])
    struct.pack_into(shape.block_depth, qmd, shape.block[2], launch.block[2])
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    dynamic = -(-launch.dynamic_local // _SHARED_GRANULE) * _SHARED_GRANULE
    if cluster is not None:
        if shape.cluster is None:
            raise NotSupported("this GPU does not support clusters", kernel=launch.kernel.name)
        shape.cluster.insert(qmd, cluster)
    if dynamic:
        _take_shared(qmd, details, dynamic)
    shape.config.insert(qmd, config_of(details.carveout(threads, dynamic)))
    if launch.cooperative:
        _cooperate(bank, launch, details)
    data = image.add_block(bank, holes)
    descriptor = image.add_block(qmd, [])
    image.link(descriptor, shape.bank_low, data, shape.bank_shift)
    if not shape.bank_shift:
        # The next word holds the rest of the address below other fields, which the addend's upper
        # half carries. Shifted addresses have no upper part: commands are below 2^38.
        (upper,) = struct.unpack_from("<I", qmd, shape.bank_low * 4 + 4)
        image.link(descriptor, shape.bank_low + 1, data, 32, upper << 32)
    return descriptor


def start_launch(image: Pushbuffer, launch: Launch, descriptor: int) -> None:
    """Append the methods that start a launch."""
    address, start_header, action = details_of(launch).send
    image.words.append(address)
    image.point(descriptor, 0, 8)
    image.words += (start_header, action)


def chains(launch: Launch) -> bool:
    """Return whether a launch can start its successor."""
    return details_of(launch).shape.successor is not None


def start_after(image: Pushbuffer, launch: Launch, earlier: int, descriptor: int) -> None:
    """Make a launch start when the launch of block `earlier` has ended.

    Both launches are of the same class, one for which `chains` is true.
    """
    successor = details_of(launch).shape.successor
    assert successor is not None
    successor.mark(image.data(earlier))
    image.link(earlier, successor.pointer, descriptor, 8)


def _cooperate(bank: bytearray, launch: Launch, details: LaunchDetails) -> None:
    """Assign a workspace to a grid. BadArgument if the GPU cannot hold all its groups at once."""
    driver = cast("LaunchHolder", launch.kernel.program.core.driver)
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    most = groups_that_fit(
        driver.gpu.capability,
        driver.gpu.sm_count,
        details.warps_per_sm,
        details.carveouts[-1],
        warps=-(-threads // _WARP),
        registers_per_warp=_registers_per_warp(details.code),
        shared_size=details.shared_size + launch.dynamic_local,
    )
    groups = launch.grid[0] * launch.grid[1] * launch.grid[2]
    if groups > most:
        raise BadArgument(
            f"{launch.kernel.name}: requested a cooperative launch of {groups} groups, the GPU "
            f"holds {most}"
            " of this size",
            groups=groups,
            most=most,
        )
    address = driver.workspaces.take()
    # %envreg1 is the upper half, %envreg2 the lower.
    struct.pack_into("<II", bank, details.environment_at + 4, address >> 32, address & 0xFFFF_FFFF)


def _take_shared(qmd: bytearray, details: LaunchDetails, dynamic: int) -> None:
    """Give each group `dynamic` bytes of shared memory after its static share.

    An array of unspecified size starts where the static share ends; the assembler pads the static
    share to the array's alignment.
    """
    size, shape = details.shared_size + dynamic, details.shape
    shape.shared.insert(qmd, size >> shape.shared_shift)
    least = next(carveout for carveout in details.carveouts if carveout >= size)
    shape.least_config.insert(qmd, config_of(least))


def _check(launch: Launch, details: LaunchDetails) -> None:
    name, code = launch.kernel.name, details.code
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if threads > details.threads_limit:
        raise BadArgument(
            f"{name}: a group must have at most {details.threads_limit} threads", block=launch.block
        )
    size = details.shared_size + launch.dynamic_local
    if launch.dynamic_local < 0 or size > details.carveouts[-1]:
        raise BadArgument(
            f"{name}: a group must use at most {details.carveouts[-1]} bytes of shared memory",
            size=size,
        )
    if code.required_block not in (None, launch.block):
        raise BadArgument(
            f"{name}: the block must be {code.required_block} (as compiled)", block=launch.block
        )
    for sizes, most, what in (
        (launch.grid, MAX_GRID, "grid"),
        (launch.block, MAX_BLOCK, "block"),
    ):
        if any(size > limit for size, limit in zip(sizes, most, strict=True)):
            raise BadArgument(f"the {what} of {name} must be at most {most}", **{what: sizes})
