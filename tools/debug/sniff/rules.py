"""The memory that belongs to an ioctl: its own block, and the blocks that this block points to.

Both recorders follow the same rules. The preload library reads them as text, one a line, numbers in
C's notation:

    u NUMBER SIZE                                   a call of UVM: its number contains no size
    p KEY POINTER LENGTH CLASS COMMAND              a block points on; KEY is number | size<<16
    c CLASS SIZE                                    the size if the caller left LENGTH zero
    n COMMAND POINTER COUNT ITEM                    a control's block points to COUNT items
    d CLASS 0                                       objects of this class are doorbells
    o KEY CLASS HANDLE                              places of both in a call that makes objects
    m KEY HANDLE FILE                               places of both in a call that prepares a mapping
    b NUMBER POINTER COUNT ITEM                     KGSL: a call's block points to COUNT items
    s NUMBER 0                                      KGSL: a call that submits work

POINTER to COMMAND are byte offsets, -1 for none. Offsets come from the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ugpu.nv import abi

LIMIT = 65536
_MAGIC, _KGSL_MAGIC = ord("F"), 9  # the kernel driver's magic in a call's number

#: outer block -> (its pointer, its length, its class, its command)
_POINTING = {
    "NVOS21_PARAMETERS": ("NV_ESC_RM_ALLOC", "pAllocParms", "paramsSize", "hClass", ""),
    "NVOS64_PARAMETERS": ("NV_ESC_RM_ALLOC", "pAllocParms", "paramsSize", "hClass", ""),
    "NVOS54_PARAMETERS": ("NV_ESC_RM_CONTROL", "params", "paramsSize", "", "cmd"),
    "nv_ioctl_xfer_t": ("NV_ESC_IOCTL_XFER_CMD", "ptr", "size", "", ""),
}
#: control, pointer, count, bytes of an item. Source: ctrl0080gpu.h, ctrl0080gr.h, ctrl0080fb.h,
#: ctrl0080fifo.h, ctrl0080host.h, ctrl0041.h, ctrl2080gr.h, ctrl2080fb.h, ctrl2080bus.h,
#: ctrl2080ce.h, ctrl2080gpu.h, ctrl2080rc.h, ctrl83dedebug.h, ctrl0000system.h, 580.142.
_LISTS = (
    ("NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION", "pDriverVersionBuffer", "sizeOfStrings", 1),
    ("NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION", "pVersionBuffer", "sizeOfStrings", 1),
    ("NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION", "pTitleBuffer", "sizeOfStrings", 1),
    ("NV0041_CTRL_CMD_GET_SURFACE_INFO", "surfaceInfoList", "surfaceInfoListSize", 8),
    ("NV0080_CTRL_CMD_FB_GET_CAPS", "capsTbl", "capsTblSize", 1),
    ("NV0080_CTRL_CMD_FIFO_GET_CAPS", "capsTbl", "capsTblSize", 1),
    ("NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST", "pChannelHandleList", "numChannels", 4),
    ("NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST", "pChannelList", "numChannels", 4),
    ("NV0080_CTRL_CMD_GPU_GET_CLASSLIST", "classList", "numClasses", 4),
    ("NV0080_CTRL_CMD_GR_GET_CAPS", "capsTbl", "capsTblSize", 1),
    ("NV0080_CTRL_CMD_GR_GET_INFO", "grInfoList", "grInfoListSize", 8),
    ("NV0080_CTRL_CMD_HOST_GET_CAPS", "capsTbl", "capsTblSize", 1),
    ("NV2080_CTRL_CMD_BUS_GET_INFO", "busInfoList", "busInfoListSize", 8),
    ("NV2080_CTRL_CMD_CE_GET_CAPS", "capsTbl", "capsTblSize", 1),
    ("NV2080_CTRL_CMD_FB_GET_INFO", "fbInfoList", "fbInfoListSize", 8),
    ("NV2080_CTRL_CMD_GPU_EXEC_REG_OPS", "regOps", "regOpCount", 32),
    ("NV2080_CTRL_CMD_GPU_GET_ENGINES", "engineList", "engineCount", 4),
    ("NV2080_CTRL_CMD_GPU_GET_ENGINE_CLASSLIST", "classList", "numClasses", 4),
    ("NV2080_CTRL_CMD_GR_GET_INFO", "grInfoList", "grInfoListSize", 8),
    ("NV2080_CTRL_CMD_RC_READ_VIRTUAL_MEM", "bufferPtr", "bufferSize", 1),
    ("NV83DE_CTRL_CMD_DEBUG_READ_MEMORY", "buffer", "length", 1),
    ("NV83DE_CTRL_CMD_DEBUG_WRITE_MEMORY", "buffer", "length", 1),
)
#: objects whose mapping has the doorbell
_USERMODE = (
    "VOLTA_USERMODE_A", "TURING_USERMODE_A", "AMPERE_USERMODE_A", "HOPPER_USERMODE_A",
    "BLACKWELL_USERMODE_A",
)  # fmt: skip
#: calls that identify that mapping
_MAKING = (
    ("o", "NVOS64_PARAMETERS", "NV_ESC_RM_ALLOC", ("hClass", "hObjectNew")),
    ("m", "nv_ioctl_nvos33_parameters_with_fd", "NV_ESC_RM_MAP_MEMORY", ("params.hMemory", "fd")),
)

Read = Callable[[int, int], bytes | None]


@dataclass
class Block:
    """A block that an ioctl points to; `at` is the pointer's offset in block `inside` (-1: the
    ioctl's own block)."""

    at: int
    inside: int
    address: int
    size: int


@dataclass
class Rules:
    """The rules of one branch; see the module's docstring."""

    uvm: dict[int, int] = field(default_factory=dict)
    pointing: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    classes: dict[int, int] = field(default_factory=dict)
    lists: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    doorbells: list[int] = field(default_factory=list)
    making: list[tuple[str, int, int, int]] = field(default_factory=list)
    calls: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    submits: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, table: abi.Abi) -> Rules:
        """Take the offsets and sizes from a branch's tables."""
        rules = cls()
        for ioctl in table.ioctls.values():
            if ioctl.node == "uvm":
                rules.uvm[ioctl.number] = table.structs[ioctl.struct].size
        for name, (call, *members) in _POINTING.items():
            layout = table.structs[name]
            places = [layout.offset_of(member) if member else -1 for member in members]
            key = table.ioctls[call].number | layout.size << 16
            rules.pointing[key] = (places[0], places[1], places[2], places[3])
        for number, rule in table.classes.items():
            block = table.structs.get(rule.struct) if rule.struct else None
            if block is not None:
                rules.classes[number] = block.size
        for control, pointer, count, item in _LISTS:
            if control not in table.constants:
                continue
            command = table.constants[control]
            block = table.structs.get(table.parameters_of_control(command) or "")
            if block is not None and pointer in block.fields:
                entry = (block.offset_of(pointer), block.offset_of(count), item)
                rules.lists.setdefault(command, []).append(entry)
        rules.doorbells = [table.constants[n] for n in _USERMODE if n in table.constants]
        for letter, name, call, pair in _MAKING:
            layout = table.structs[name]
            key = table.ioctls[call].number | layout.size << 16
            first, second = (layout.offset_of(member) for member in pair)
            rules.making.append((letter, key, first, second))
        return rules

    def text(self) -> str:
        """Return the rules in the format of the preload library."""
        lines = [f"u {number:#x} {size}" for number, size in self.uvm.items()]
        for key, places in self.pointing.items():
            lines.append(f"p {key:#x} {' '.join(map(str, places))}")
        lines += [f"c {number:#x} {size}" for number, size in self.classes.items()]
        for command, entries in self.lists.items():
            lines += [f"n {command:#x} {' '.join(map(str, entry))}" for entry in entries]
        lines += [f"d {number:#x} 0" for number in self.doorbells]
        lines += [
            f"{letter} {key:#x} {first} {second}" for letter, key, first, second in self.making
        ]
        for number, lists in self.calls.items():
            lines += [f"b {number:#x} {' '.join(map(str, entry))}" for entry in lists]
        lines += [f"s {number:#x} 0" for number in self.submits]
        return "\n".join(lines) + "\n"

    def own_size(self, request: int) -> int:
        """Return the size of an ioctl's own block in bytes."""
        if (request >> 8) & 0xFF in (_MAGIC, _KGSL_MAGIC) and request >> 16:
            return (request >> 16) & 0x3FFF
        return self.uvm.get(request, 0)

    def blocks(self, request: int, own: bytes, read: Read) -> Iterator[Block]:
        """Yield the blocks that an ioctl's own block points to; `read(address, size)` reads
        memory."""
        for pointer, count, item in self.calls.get(request, ()):
            address = word(own, pointer, 8)
            size = (word(own, count, 4) if count >= 0 else 1) * item
            if address and size:
                yield Block(pointer, -1, address, size)
        if (request >> 8) & 0xFF != _MAGIC:
            return
        places = self.pointing.get((request & 0xFF) | ((request >> 16) & 0x3FFF) << 16)
        if places is None:
            return
        pointer, length, number, command = places
        address, size = word(own, pointer, 8), word(own, length, 4)
        if not size and number >= 0:
            size = self.classes.get(word(own, number, 4), 0)
        if not address or not size:
            return
        yield Block(pointer, -1, address, size)
        if command < 0:
            return
        entries = self.lists.get(word(own, command, 4), ())
        outer = read(address, min(size, LIMIT)) if entries else None
        for at, count, item in entries:
            if outer is not None:
                inner, total = word(outer, at, 8), word(outer, count, 4) * item
                if inner and total:
                    yield Block(at, 0, inner, total)


def word(raw: bytes, at: int, size: int) -> int:
    """Return a little-endian number inside a block; 0 if it does not fit in the block."""
    return int.from_bytes(raw[at : at + size], "little") if 0 <= at <= len(raw) - size else 0
