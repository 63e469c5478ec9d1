"""Launch descriptors (QMD): decode and check them field by field.

Source: open-gpu-doc classes/compute/cl*qmd.h for the fields; CUDA C++ Programming Guide 12.9,
"Compute Capabilities", for limits of grids, groups, registers and shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ugpu.nv import abi
from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.host.errors import ChannelError

# Versions that a compute class accepts: the QMD headers beside its class header.
VERSIONS = {
    "turing": ((2, 2), (2, 3)),
    "ampere": ((2, 4), (3, 0)),
    "ada": ((3, 0),),
    "hopper": ((4, 0),),
    "blackwell": ((5, 0),),
}
REGISTERS_PER_SM = 64 << 10
LONGEST_CONSTANT_BANK = 64 << 10
_SCHEDULE, _COPY_SCHEDULE = 1, 3  # actions on a dependent QMD
_QUEUE, _GRID_CTA, _GRID_GPC_CGA = 0, 2, 3


@dataclass(frozen=True)
class Release:
    """A semaphore written when the grid is done. words: 4 with a time stamp, else 1 or 2.
    barrier: whether the grid's writes become visible to all before it."""

    address: int
    payload: int
    words: int
    payload_size: int
    reduction: int | None
    signed: bool
    barrier: bool


@dataclass(frozen=True)
class LaunchDescriptor:
    """Content of a QMD. Addresses are GPU virtual, sizes are bytes. constants: (address, size).
    grid: in groups. membar: CWD_MEMBAR_TYPE. cluster: groups of a cluster, for a grid of clusters.
    """

    version: tuple[int, int]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    program_address: int
    registers: int
    barriers: int
    shared_size: int
    carveout: int
    local_size: int
    constants: tuple[tuple[int, int] | None, ...]
    releases: tuple[Release, ...]
    dependents: tuple[int, ...]
    invalidates_code: bool
    invalidates_constants: bool
    invalidates_data: bool
    membar: int
    invalidates_banks: tuple[bool, ...]
    cluster: tuple[int, int, int] | None = None


class _Reader:
    """Reader of the fields of one version, from a QMD given as one number."""

    def __init__(self, version: tuple[int, int]) -> None:
        self.descriptor = abi.qmd(f"{version[0]}.{version[1]}")
        self._fields = {
            name: (field.lsb, field.maximum, field.stride, field.count)
            for name, field in self.descriptor.fields.items()
        }
        covered = 0
        for lsb, maximum, stride, count in self._fields.values():
            for index in range(count):
                covered |= maximum << lsb + index * stride
        self.undefined = ~covered & (1 << 8 * self.descriptor.size) - 1

    def has(self, name: str) -> bool:
        return name in self._fields

    def get(self, number: int, name: str, index: int = 0) -> int:
        lsb, maximum, stride, _ = self._fields[name]
        return number >> lsb + index * stride & maximum


_reader = cache(_Reader)


def qmd_size(facts: ChipFacts) -> int:
    """Return the bytes of a QMD of the chip."""
    return 384 if facts.qmd[0] >= 4 else 256


def refuse(text: str) -> ChannelError:
    """Return the error for a launch that the hardware refuses: a graphics exception."""
    return ChannelError(Xid.GR_EXCEPTION, f"launch descriptor: {text}")


def _need(condition: object, text: str) -> None:
    if not condition:
        raise refuse(text)


def _version(number: int, facts: ChipFacts) -> tuple[int, int]:
    main = _reader(facts.qmd)
    minor_name = "QMD_VERSION" if main.has("QMD_VERSION") else "QMD_MINOR_VERSION"
    return main.get(number, "QMD_MAJOR_VERSION"), main.get(number, minor_name)


def not_run(raw: bytes, facts: ChipFacts) -> str | None:
    """Return why a chip skips a QMD without an error; None if it runs or refuses the QMD.

    Observed on an H100, driver 580.159.04: nothing was computed for QMD_TYPE QUEUE, which Mesa's
    NVK sets there (qmd.rs, Qmd4_0), or for version 3.0, which clcbc0qmd.h defines beside 4.0.
    UNSURE: Blackwell. Its header gives QMD_TYPE the same values; NVK and tinygrad set GRID_CTA.
    """
    number = int.from_bytes(raw, "little")
    version, main = _version(number, facts), _reader(facts.qmd)
    if facts.family == "hopper" and version == (3, 0):
        return "launch descriptor: version 3.0 on Hopper: not run; expected 4.0"
    if version == facts.qmd and main.has("QMD_TYPE") and main.get(number, "QMD_TYPE") == _QUEUE:
        return (
            "launch descriptor: QMD_TYPE is QUEUE (0): not run; expected GRID_CTA (2) or"
            " GRID_GPC_CGA (3)"
        )
    return None


def parse(raw: bytes, facts: ChipFacts) -> LaunchDescriptor:
    """Decode and check a QMD. Raises ChannelError with the reason if it is invalid."""
    number = int.from_bytes(raw, "little")
    version = _version(number, facts)
    known = VERSIONS[facts.family]
    _need(
        version in known or version == facts.qmd,
        f"version {version[0]}.{version[1]}, where class {facts.compute_class:x} takes"
        f" {' or '.join(f'{a}.{b}' for a, b in known)}",
    )
    read = _reader(version)
    stray = number & read.undefined
    _need(not stray, f"reserved bits are set, the first at bit {(stray & -stray).bit_length() - 1}")
    _check_kind(read, number)
    cluster = _cluster(read, number, facts)
    return LaunchDescriptor(
        version=version,
        grid=_grid(read, number, cluster),
        block=_block(read, number, facts),
        program_address=_program(read, number),
        registers=_registers(read, number),
        barriers=_barriers(read, number),
        shared_size=_shared(read, number, facts)[0],
        carveout=_shared(read, number, facts)[1],
        local_size=_local(read, number),
        constants=_constants(read, number),
        releases=_releases(read, number),
        dependents=_dependents(read, number),
        invalidates_code=bool(read.get(number, "INVALIDATE_INSTRUCTION_CACHE")),
        invalidates_constants=bool(read.get(number, "INVALIDATE_SHADER_CONSTANT_CACHE")),
        invalidates_data=bool(read.get(number, "INVALIDATE_SHADER_DATA_CACHE")),
        membar=_membar(read, number),
        invalidates_banks=tuple(
            bool(read.get(number, "CONSTANT_BUFFER_INVALIDATE", bank)) for bank in range(8)
        ),
        cluster=cluster,
    )


def _check_kind(read: _Reader, number: int) -> None:
    """Refuse a descriptor that is not a grid."""
    if read.has("QMD_TYPE"):
        kind = read.get(number, "QMD_TYPE")
        _need(kind in (_GRID_CTA, _GRID_GPC_CGA), f"QMD_TYPE {kind} is not a grid of groups")
    else:
        _need(not read.get(number, "IS_QUEUE"), "IS_QUEUE: queues are not modelled")
    _need(read.get(number, "QMD_GROUP_ID") == 0x3F, "QMD_GROUP_ID is not 0x3f")
    _need(read.get(number, "API_VISIBLE_CALL_LIMIT") == 1, "API_VISIBLE_CALL_LIMIT is checked")


def _grid(read: _Reader, number: int, cluster: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Return the sizes of a grid in groups. The fields of a grid of clusters count clusters
    (observed on an H200, driver 580.159.04)."""
    names = ("GRID_WIDTH", "GRID_HEIGHT", "GRID_DEPTH")
    if not read.has(names[0]):
        names = ("CTA_RASTER_WIDTH", "CTA_RASTER_HEIGHT", "CTA_RASTER_DEPTH")
    width, height, depth = (read.get(number, name) for name in names)
    _need(width and height and depth, f"a grid of {width} x {height} x {depth}")
    x, y, z = cluster or (1, 1, 1)
    width, height, depth = width * x, height * y, depth * z
    _need(width < 1 << 31, f"a grid {width} wide")
    return width, height, depth


def _cluster(read: _Reader, number: int, facts: ChipFacts) -> tuple[int, int, int] | None:
    if not read.has("GPC_CGA_WIDTH"):
        return None
    width, height, depth = (
        read.get(number, f"GPC_CGA_{axis}") for axis in ("WIDTH", "HEIGHT", "DEPTH")
    )
    for name in ("LARGE_GPC_CGA_WIDTH_MINUS_ONE", "LARGE_GPC_CGA_HEIGHT_MINUS_ONE",
                 "GPU_CGA_WIDTH", "GPU_CGA_HEIGHT", "GPU_CGA_DEPTH"):  # fmt: skip
        _need(not (read.has(name) and read.get(number, name)), f"{name} is not modelled")
    text = f"clusters of {width} x {height} x {depth} groups"
    if read.get(number, "QMD_TYPE") != _GRID_GPC_CGA:
        _need(max(width, height, depth) <= 1, f"{text}, and QMD_TYPE says that there are none")
        return None
    groups = width * height * depth
    _need(groups, text)
    _need(groups <= facts.most_cluster, f"{text}; {facts.most_cluster} is the limit")
    return width, height, depth


def _block(read: _Reader, number: int, facts: ChipFacts) -> tuple[int, int, int]:
    x, y, z = (read.get(number, f"CTA_THREAD_DIMENSION{axis}") for axis in range(3))
    threads = x * y * z
    _need(threads, f"a group of {x} x {y} x {z} threads")
    _need(threads <= 1024, f"a group of {threads} threads; 1024 is the limit")
    _need(z <= 64, f"a group {z} deep; 64 is the limit")
    name = "REGISTER_COUNT_V" if read.has("REGISTER_COUNT_V") else "REGISTER_COUNT"
    per_thread = -(-read.get(number, name) // 8) * 8
    total = -(-threads // 32) * 32 * per_thread
    _need(
        total <= REGISTERS_PER_SM,
        f"{threads} threads of {per_thread} registers need {total}; an SM has {REGISTERS_PER_SM}",
    )
    return x, y, z


def _program(read: _Reader, number: int) -> int:
    if read.has("PROGRAM_ADDRESS_LOWER_SHIFTED4"):
        address = read.get(number, "PROGRAM_ADDRESS_LOWER_SHIFTED4") << 4
        address |= read.get(number, "PROGRAM_ADDRESS_UPPER_SHIFTED4") << 36
    else:
        address = read.get(number, "PROGRAM_ADDRESS_LOWER")
        address |= read.get(number, "PROGRAM_ADDRESS_UPPER") << 32
    _need(address, "PROGRAM_ADDRESS is 0")
    _need(address % 128 == 0, f"PROGRAM_ADDRESS {address:#x} is not a multiple of 128")
    return address


def _registers(read: _Reader, number: int) -> int:
    name = "REGISTER_COUNT_V" if read.has("REGISTER_COUNT_V") else "REGISTER_COUNT"
    count = read.get(number, name)
    _need(0 < count <= 256, f"{name} {count}")
    return count


def _barriers(read: _Reader, number: int) -> int:
    count = read.get(number, "BARRIER_COUNT")
    _need(count <= 16, f"BARRIER_COUNT {count}")
    return count


def _shared(read: _Reader, number: int, facts: ChipFacts) -> tuple[int, int]:
    if read.has("SHARED_MEMORY_SIZE_SHIFTED7"):
        size = read.get(number, "SHARED_MEMORY_SIZE_SHIFTED7") << 7
    else:
        size = read.get(number, "SHARED_MEMORY_SIZE")
    _need(size % 128 == 0, f"SHARED_MEMORY_SIZE {size} is not a multiple of 128")
    allowed = {kib // 4096 + 1: kib for kib in facts.shared_carveouts}
    codes = {}
    for which in ("MIN", "MAX", "TARGET"):
        code = codes[which] = read.get(number, f"{which}_SM_CONFIG_SHARED_MEM_SIZE")
        _need(
            code in allowed,
            f"{which}_SM_CONFIG_SHARED_MEM_SIZE {code}: an SM of {facts.name} can have"
            f" {', '.join(str(size >> 10) for size in allowed.values())} KiB",
        )
    _need(
        codes["MIN"] <= codes["TARGET"] <= codes["MAX"],
        f"shared memory configurations: {codes['MIN']} <= {codes['TARGET']} <= {codes['MAX']}"
        " does not hold",
    )
    carveout = allowed[codes["TARGET"]]
    _need(
        size <= carveout,
        f"{size} bytes of shared memory, of a carve-out of {carveout}",
    )
    _need(
        size <= facts.shared_per_group + system_share(facts),
        f"{size} bytes of shared memory; a group of {facts.name} has {facts.shared_per_group}",
    )
    return size, carveout


def system_share(facts: ChipFacts) -> int:
    """Return the bytes of each group's shared memory that are reserved for the system; the size in
    a descriptor includes them: CUDA C++ Programming Guide, "Shared Memory" of compute capability
    8.x and 9.0."""
    return 0 if facts.family == "turing" else 1024


def _local(read: _Reader, number: int) -> int:
    if read.has("SHADER_LOCAL_MEMORY_LOW_SIZE_SHIFTED4"):
        low = read.get(number, "SHADER_LOCAL_MEMORY_LOW_SIZE_SHIFTED4") << 4
        high = read.get(number, "SHADER_LOCAL_MEMORY_HIGH_SIZE_SHIFTED4") << 4
    else:
        low = read.get(number, "SHADER_LOCAL_MEMORY_LOW_SIZE")
        high = read.get(number, "SHADER_LOCAL_MEMORY_HIGH_SIZE")
    _need(low % 16 == 0 and high % 16 == 0, f"local memory of {low} and {high} bytes")
    _need(low + high <= 512 << 10, f"{low + high} bytes of local memory a thread")
    return low + high


def _membar(read: _Reader, number: int) -> int:
    kind = read.get(number, "CWD_MEMBAR_TYPE")
    _need(kind != 2, "CWD_MEMBAR_TYPE 2")
    return kind


def _constants(read: _Reader, number: int) -> tuple[tuple[int, int] | None, ...]:
    banks: list[tuple[int, int] | None] = []
    shifted = read.has("CONSTANT_BUFFER_ADDR_LOWER_SHIFTED6")
    names = [f"CONSTANT_BUFFER_ADDR_{half}" + "_SHIFTED6" * shifted for half in ("LOWER", "UPPER")]
    for bank in range(8):
        if not read.get(number, "CONSTANT_BUFFER_VALID", bank):
            banks.append(None)
            continue
        address = read.get(number, names[0], bank) | read.get(number, names[1], bank) << 32
        address <<= 6 if shifted else 0
        size = read.get(number, "CONSTANT_BUFFER_SIZE_SHIFTED4", bank) << 4
        _need(address, f"constant bank {bank} is valid and at address 0")
        _need(address % 64 == 0, f"constant bank {bank} at {address:#x}, no multiple of 64")
        _need(
            0 < size <= LONGEST_CONSTANT_BANK,
            f"constant bank {bank} of {size} bytes",
        )
        banks.append((address, size))
    return tuple(banks)


def _releases(read: _Reader, number: int) -> tuple[Release, ...]:
    found = []
    for index in range(3):
        release = _release(read, number, index)
        if release is not None:
            _need(
                release.address % (16 if release.words == 4 else 4 * release.words) == 0,
                f"release {index} at {release.address:#x} is not aligned",
            )
            found.append(release)
    return tuple(found)


def _release(read: _Reader, number: int, index: int) -> Release | None:
    if read.has("RELEASE_ENABLE"):  # version 4 on: arrays
        enabled = read.get(number, "RELEASE_ENABLE", index)
        address, prefix = f"RELEASE_SEMAPHORE{index}_ADDR", f"RELEASE_SEMAPHORE{index}"

        def field(name: str) -> int:
            return read.get(number, f"RELEASE_{name}", index)

    else:
        name = f"RELEASE{index}_ENABLE"
        if read.has(name):
            enabled = read.get(number, name)
        elif index < 2:
            enabled = read.get(number, f"SEMAPHORE_RELEASE_ENABLE{index}")
        else:
            return None
        address, prefix = f"RELEASE{index}_ADDRESS", f"RELEASE{index}"

        def field(name: str) -> int:
            full = f"RELEASE{index}_{name}"
            return read.get(number, full) if read.has(full) else 0

    if not enabled:
        return None
    where = read.get(number, f"{address}_LOWER") | read.get(number, f"{address}_UPPER") << 32
    structure = field("STRUCTURE_SIZE")
    _need(structure <= 2, f"release {index} of structure size {structure}")
    wide = field("PAYLOAD64B")
    if read.has(f"{prefix}_PAYLOAD"):
        payload = read.get(number, f"{prefix}_PAYLOAD")
    else:
        payload = read.get(number, f"{prefix}_PAYLOAD_LOWER")
        if wide:
            payload |= read.get(number, f"{prefix}_PAYLOAD_UPPER") << 32
    words = (4, 1, 2)[structure]
    _need(not (wide and words == 1), f"release {index}: 64 bits of payload in one word")
    reduction = field("REDUCTION_OP") if field("REDUCTION_ENABLE") else None
    signed = field("REDUCTION_FORMAT") == 1
    single = "RELEASE_MEMBAR_TYPE"  # one field for all in version 2, an array in version 4
    if not read.has(single):
        barrier = field("MEMBAR_TYPE")
    else:
        barrier = read.get(number, single, index if read.has("RELEASE_ENABLE") else 0)
    return Release(
        where, payload, words, 8 if wide else 4, reduction, signed, barrier=bool(barrier)
    )


def _dependents(read: _Reader, number: int) -> tuple[int, ...]:
    found = []
    if read.has("DEPENDENT_QMD_SCHEDULE_ENABLE"):  # version 2
        if read.get(number, "DEPENDENT_QMD_SCHEDULE_ENABLE"):
            _need(read.get(number, "DEPENDENT_QMD_TYPE") == 1, "a dependent QMD that is not a grid")
            found.append(read.get(number, "DEPENDENT_QMD_POINTER") << 8)
        return tuple(found)
    arrays = not read.has("DEPENDENT_QMD0_ENABLE")  # as in version 4.0

    def field(name: str, index: int) -> int:
        if arrays:
            return read.get(number, f"DEPENDENT_QMD_{name}", index)
        return read.get(number, f"DEPENDENT_QMD{index}_{name}")

    for index in range(2):
        if field("ENABLE", index):
            action = field("ACTION", index)
            _need(
                action in (_SCHEDULE, _COPY_SCHEDULE),
                f"action {action} on dependent QMD {index}",
            )
            found.append(read.get(number, f"DEPENDENT_QMD{index}_POINTER") << 8)
    _need(all(found), "a dependent QMD at address 0")
    return tuple(found)
