"""Launches of kernels as packets: program, constants, sizes, CP_EXEC_CS.

Sources: Mesa 25.0.7 src/freedreno/computerator/a6xx.cc and src/freedreno/vulkan tu_shader.cc
(tu6_emit_cs_config, tu6_emit_xs), tu_cmd_buffer.cc (tu_dispatch): both write the same registers,
which differ between generations 6 and 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.objects.ir3_object import NO_REGISTER, Ir3Kernel
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.command_buffer import Reference
from ugpu.qcom.chips.facts import ChipFacts
from ugpu.qcom.packets import textures
from ugpu.qcom.packets.pm4 import Stream, Tables

INSTRUCTION_UNIT = 128  # bytes of code that SP_CS_INSTRLEN counts
_WORD = 1 << 32
_VEC4 = 16  # bytes
# Vec4 of the constant file -> CONSTANTRAMMODE, the smallest mode that holds them.
_CONSTANT_MODES = ((128, "CONSTLEN_128"), (192, "CONSTLEN_192"), (256, "CONSTLEN_256"))
# Rows of a tile of groups, by the divisor of the group's height: tu6_emit_cs_config. Our groups are
# one thread high.
_TILE_WIDTH, _TILE_HEIGHT = 4, 17


@dataclass(frozen=True)
class PrivateMemory:
    """Memory for variables that are not in registers. per_thread, per_processor: bytes."""

    address: int
    per_thread: int
    per_processor: int
    per_wave: bool


NO_PRIVATE_MEMORY = PrivateMemory(0, 0, 0, False)


@dataclass(frozen=True)
class Prepared:
    """A loaded kernel. code: address of its instructions. words: the packets that all its launches
    share."""

    kernel: Ir3Kernel
    code: int
    private: PrivateMemory
    words: tuple[int, ...] = ()


def prepare(
    kernel: Ir3Kernel, code: int, private: PrivateMemory, facts: ChipFacts, tables: Tables
) -> Prepared:
    """Encode the packets that all launches of a kernel share."""
    prepared = Prepared(kernel, code, private)
    stream = Stream(tables)
    program(stream, facts, prepared)
    words = [*kernel.immediates, *[0] * (-len(kernel.immediates) % 4)]
    words = words[: 4 * max(0, kernel.constants - kernel.immediates_at)]
    if words:
        _load(stream, kernel.immediates_at, words, ())
    return replace(prepared, words=tuple(stream.words))


def branch_stack(kernel: Ir3Kernel) -> int:
    """Return the depth of the stack of diverging branches in the register's unit, pairs
    (ir3_shader_branchstack_hw)."""
    return -(-kernel.branch_stack // 2)


def check_launch(launch: Launch, kernel: Ir3Kernel) -> None:
    """Raise BadArgument where the group's or the grid's size cannot be run."""
    if launch.block[0] > kernel.threads or launch.block[1:] != (1, 1):
        raise BadArgument(
            f"{kernel.name} is compiled for groups of up to {kernel.threads} threads along x",
            block=launch.block, expected=(kernel.threads, 1, 1),
        )  # fmt: skip
    for size, groups in zip(launch.block, launch.grid, strict=True):
        if size * groups >= _WORD:
            raise BadArgument(
                f"{kernel.name}: threads along an axis must be fewer than 2^32",
                grid=launch.grid, block=launch.block,
            )  # fmt: skip


def encode_launch(stream: Stream, launch: Launch) -> None:
    """Append the packets of a launch; none for a launch without groups."""
    prepared: Prepared = launch.kernel.details
    kernel = prepared.kernel
    check_launch(launch, kernel)
    if 0 in launch.grid:
        return
    stream.insert(prepared.words, ())
    constants(stream, kernel, launch.kernarg, launch.references)
    textures.bind(stream, launch, kernel)
    dispatch(stream, launch.grid, launch.block)


def program(stream: Stream, facts: ChipFacts, prepared: Prepared) -> None:
    """Write the registers that describe a kernel's code and its resources."""
    kernel, codes = prepared.kernel, stream.tables.codes
    newer = stream.tables.number >= 7
    stream.write("HLSQ_INVALIDATE_CMD", CS_STATE=1, CS_IBO=1)
    constant_length = -(-kernel.constants // 4)
    stream.write("HLSQ_CS_CNTL", CONSTLEN=constant_length, ENABLED=1)
    units = len(kernel.code) // INSTRUCTION_UNIT
    stream.write(
        "SP_CS_CONFIG",
        ENABLED=1,
        NTEX=len(kernel.textures),
        NSAMP=len(kernel.samplers),
        NIBO=len(kernel.images),
    )
    textures.static(stream, kernel)
    size = codes.THREAD128 if kernel.double_wave else codes.THREAD64
    stream.write(
        "SP_CS_CTRL_REG0",
        HALFREGFOOTPRINT=kernel.half_registers,
        FULLREGFOOTPRINT=kernel.full_registers,
        BRANCHSTACK=branch_stack(kernel),
        THREADSIZE=size,
        EARLYPREAMBLE=int(kernel.early_preamble),
        MERGEDREGS=int(kernel.merged_registers),
    )
    stream.write("SP_CS_INSTRLEN", units)
    code, private = _halves(prepared.code), prepared.private
    registers = stream.tables.registers
    stream.write(
        "SP_CS_OBJ_FIRST_EXEC_OFFSET",
        0,
        *code,
        registers.SP_CS_PVT_MEM_PARAM.encode(
            MEMSIZEPERITEM=private.per_thread >> codes.SP_CS_PVT_MEM_PARAM__MEMSIZEPERITEM__SHR
        ),
        *_halves(private.address),
        registers.SP_CS_PVT_MEM_SIZE.encode(
            TOTALPVTMEMSIZE=private.per_processor >> codes.SP_CS_PVT_MEM_SIZE__TOTALPVTMEMSIZE__SHR,
            PERWAVEMEMLAYOUT=int(private.per_wave),
        ),
    )
    stream.write(
        "SP_CS_PVT_MEM_HW_STACK_OFFSET",
        OFFSET=private.per_processor >> codes.SP_CS_PVT_MEM_HW_STACK_OFFSET__OFFSET__SHR,
    )
    local = max((kernel.local_size - 1) // 1024, 1)  # KiB less one; at least one, as in Mesa
    mode = next((m for most, m in _CONSTANT_MODES if kernel.constants <= most), "CONSTLEN_512")
    stream.write("SP_CS_CTRL_REG1", SHARED_SIZE=local, CONSTANTRAMMODE=codes[mode])
    _numbers(stream, facts, kernel, size, local, codes[mode])
    if newer:
        stream.write("SP_CS_VGPR_CONFIG", 0)
        stream.write("SP_CS_UNKNOWN_A9BE", 0)
        return
    stream.packet(  # into the instruction cache
        "CP_LOAD_STATE6_FRAG",
        stream.tables.packet_word(
            "CP_LOAD_STATE6_0",
            STATE_TYPE=codes.ST6_SHADER,
            STATE_SRC=codes.SS6_INDIRECT,
            STATE_BLOCK=codes.SB6_CS_SHADER,
            NUM_UNIT=min(units, facts.instruction_cache),
        ),
        *code,
    )


def _halves(address: int) -> tuple[int, int]:
    return address & _WORD - 1, address >> 32


def _numbers(
    stream: Stream, facts: ChipFacts, kernel: Ir3Kernel, size: int, local: int, mode: int
) -> None:
    """Write the registers that select where group and thread numbers go, and the wave's size."""
    none = NO_REGISTER
    where = {
        "WGIDCONSTID": kernel.group_register, "WGSIZECONSTID": none, "WGOFFSETCONSTID": none,
        "LOCALIDREGID": kernel.thread_register,
    }  # fmt: skip
    if stream.tables.number < 7:
        if facts.has_lpac:
            stream.write("HLSQ_CS_CTRL_REG1", SHARED_SIZE=local, CONSTANTRAMMODE=mode)
        stream.write("HLSQ_CS_CNTL_0", **where)
        stream.write("HLSQ_CS_CNTL_1", LINEARLOCALIDREGID=none, THREADSIZE=size)
        if facts.has_lpac:
            stream.write("SP_CS_CNTL_0", **where)
            stream.write("SP_CS_CNTL_1", LINEARLOCALIDREGID=none, THREADSIZE=size)
        return
    codes = stream.tables.codes
    stream.write(
        "HLSQ_CS_CNTL_1", LINEARLOCALIDREGID=none, THREADSIZE=size, WORKGROUPRASTORDERZFIRSTEN=1,
        WGTILEWIDTH=_TILE_WIDTH, WGTILEHEIGHT=_TILE_HEIGHT,
    )  # fmt: skip
    stream.write("HLSQ_FS_CNTL_0", THREADSIZE=codes.THREAD64)
    stream.write("SP_CS_CNTL_0", **where)
    stream.write(
        "SP_CS_CNTL_1", LINEARLOCALIDREGID=none, THREADSIZE=size,
        WORKITEMRASTORDER=codes.WORKITEMRASTORDER_LINEAR,
    )  # fmt: skip


def constants(
    stream: Stream, kernel: Ir3Kernel, kernarg: bytes, references: Sequence[Reference]
) -> None:
    """Load the parameters at the start of the constant file."""
    block = kernarg + bytes(-len(kernarg) % _VEC4)
    count = min(len(block) // _VEC4, kernel.constants)
    if count:
        words = [int.from_bytes(block[at : at + 4], "little") for at in range(0, 16 * count, 4)]
        _load(stream, 0, words, references)


def _load(stream: Stream, first: int, words: list[int], references: Sequence[Reference]) -> None:
    codes = stream.tables.codes
    head = stream.tables.packet_word(
        "CP_LOAD_STATE6_0",
        DST_OFF=first,
        STATE_TYPE=codes.ST6_CONSTANTS,
        STATE_SRC=codes.SS6_DIRECT,
        STATE_BLOCK=codes.SB6_CS_SHADER,
        NUM_UNIT=len(words) // 4,
    )
    start = len(stream)
    stream.packet("CP_LOAD_STATE6_FRAG", head, 0, 0, *words)
    for reference in references:
        stream.relocations.extend(reference.relocations(start + 4))


def dispatch(stream: Stream, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    """Write the sizes and the packet that starts the groups."""
    codes, registers = stream.tables.codes, stream.tables.registers
    stream.packet(
        "CP_SET_MARKER", stream.tables.packet_word("CP_SET_MARKER_0", MODE=codes.RM6_COMPUTE)
    )
    sizes = dict(zip(("LOCALSIZEX", "LOCALSIZEY", "LOCALSIZEZ"), (b - 1 for b in block),
                     strict=True))  # fmt: skip
    totals = [size * groups for size, groups in zip(block, grid, strict=True)]
    stream.write(
        "HLSQ_CS_NDRANGE_0",
        registers.HLSQ_CS_NDRANGE_0.encode(KERNELDIM=3, **sizes),
        totals[0], 0, totals[1], 0, totals[2], 0,
    )  # fmt: skip
    if stream.tables.number >= 7:
        stream.write("HLSQ_CS_LAST_LOCAL_SIZE", **sizes)
    for axis in "XYZ":
        stream.write(f"HLSQ_CS_KERNEL_GROUP_{axis}", 1)
    stream.packet("CP_EXEC_CS", 0, *grid)
