"""Global, flat and scalar memory instructions, translated to LLVM IR.

Global loads and stores of up to 32 bits per lane have a fast path in the kernel: if the lanes'
addresses are consecutive and in one page, and the page is in the TLB, one vector is moved. All
other accesses call the functions of `runtime`, once for each pass.
Source: RDNA3 ISA document, chapters on scalar memory, flat and global instructions.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Operand
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.memory import Access
from ugpu.virtual.shader.text import LANES, PASS, VECTOR, constant, lanes
from ugpu.virtual.shader.tlb import hit, tlb_of


class Address:
    """Addresses of a vector access's lanes: base + offset, or a pair of registers + base."""

    def __init__(self, e: Registers, i: Instruction) -> None:
        self.e = e
        if i.addr is None:
            raise Unsupported("no address")
        self.low = e.vector_register(i.addr.index)
        self.high: str | None = None
        if i.saddr is None:
            self.high = e.vector_register(i.addr.index + 1)
            self.base = str(i.offset)
        else:
            base = e.scalar64(i.saddr)
            self.base = e.value(f"add i64 {base}, {i.offset}") if i.offset else base

    def all(self) -> str:
        """Return every lane's address as i64."""
        e = self.e
        if self.high is None:
            wide = e.convert("zext", "i32", "i64", self.low)
        else:
            wide = e.join(self.low, self.high)
        if self.base == "0":
            return wide
        return e.binary("add", "i64", wide, e.broadcast("i64", self.base))

    def consecutive(self, size: int) -> str:
        """Return as i1 whether all enabled lanes follow lane 0 at steps of `size` bytes."""
        e = self.e
        first = e.lane("i32", self.low, 0)
        steps = lanes([size * lane for lane in range(e.lanes)])
        wanted = e.binary("add", "i32", e.broadcast("i32", first), steps)
        good = e.compare("eq", "i32", wanted, self.low)
        if self.high is not None:
            first_high = e.lane("i32", self.high, 0)
            same = e.compare("eq", "i32", e.broadcast("i32", first_high), self.high)
            good = e.binary("and", "i1", good, same)
        bits = e.as_bits(good)
        if not e.full:
            disabled = e.value(f"xor {e.bits} {e.exec()}, -1")
            bits = e.value(f"or {e.bits} {bits}, {disabled}")
        all_follow = e.value(f"icmp eq {e.bits} {bits}, -1")
        # Offsets that wrap around at 4 GB are consecutive numbers but not consecutive addresses.
        straight = e.value(f"icmp ule i32 {first}, {(1 << 32) - e.lanes * size}")
        return e.value(f"and i1 {all_follow}, {straight}")

    def first(self) -> str:
        """Return lane 0's address as i64."""
        e = self.e
        low = e.lane("i32", self.low, 0)
        if self.high is None:
            wide = e.value(f"zext i32 {low} to i64")
        else:
            wide = e.pair(low, e.lane("i32", self.high, 0))
        return e.value(f"add i64 {wide}, {self.base}")


def io_column(e: Registers, column: int) -> str:
    """Return the address of an IO column of the context."""
    offset = context.IO + column * context.IO_COLUMN
    return e.value(f"getelementptr i8, ptr %context, i64 {offset}")


def load_columns(e: Registers, count: int) -> list[str]:
    """Read the first `count` IO columns: one pass of `count` registers."""
    return [e.value(f"load {VECTOR}, ptr {io_column(e, c)}, align 64") for c in range(count)]


def store_columns(e: Registers, values: list[str], first: int = 0) -> None:
    """Write one pass of some registers to the IO columns from `first` on."""
    for column, value in enumerate(values, first):
        e.do(f"store {VECTOR} {value}, ptr {io_column(e, column)}, align 64")


def data_registers(e: Registers, operand: Operand) -> list[str]:
    """Read all registers of an operand."""
    return [e.vector_register(operand.index + k) for k in range(operand.width)]


def check_registers(e: Registers, *operands: Operand | None) -> None:
    """Raise Unsupported, before any code is emitted, if a register is beyond the allocation."""
    for operand in operands:
        if operand is not None and operand.is_vector:
            last = operand.index + operand.width - 1
            if last >= e.vector_limit:
                raise Unsupported(f"v{last} is beyond the {e.vector_limit} allocated")


# Loads by name: bytes, and how they are written to the destination.
LOADS = {
    "load_u8": (1, "zero"), "load_i8": (1, "sign"), "load_u16": (2, "zero"),
    "load_i16": (2, "sign"), "load_b32": (4, ""), "load_b64": (8, ""), "load_b96": (12, ""),
    "load_b128": (16, ""), "load_d16_u8": (1, "low"), "load_d16_i8": (1, "low sign"),
    "load_d16_b16": (2, "low"), "load_d16_hi_u8": (1, "high"),
    "load_d16_hi_i8": (1, "high sign"), "load_d16_hi_b16": (2, "high"),
}  # fmt: skip
# Stores by name: bytes, and whether the register's upper half is stored.
STORES = {
    "store_b8": (1, False), "store_b16": (2, False), "store_b32": (4, False),
    "store_b64": (8, False), "store_b96": (12, False), "store_b128": (16, False),
    "store_d16_hi_b8": (1, True), "store_d16_hi_b16": (2, True),
}  # fmt: skip


def narrow_result(e: Registers, dst: Operand, value: str, size: int, how: str) -> str:
    """Convert zero-extended loaded bytes to the value for the destination register."""
    if "sign" in how:
        shift = constant("i32", 32 - 8 * size)
        value = e.binary("ashr", "i32", e.binary("shl", "i32", value, shift), shift)
    if "low" in how:
        value = e.binary("and", "i32", value, constant("i32", 0xFFFF))
        kept = e.binary("and", "i32", e.vector_register(dst.index), constant("i32", ~0xFFFF))
        return e.binary("or", "i32", kept, value)
    if "high" in how:
        value = e.binary("shl", "i32", value, constant("i32", 16))
        kept = e.binary("and", "i32", e.vector_register(dst.index), constant("i32", 0xFFFF))
        return e.binary("or", "i32", kept, value)
    return value


def begin_pass(e: Registers, turn: int) -> None:
    """Store the pass's first lane, for functions that compute a lane's scratch address."""
    if e.wide:
        at = e.value(f"getelementptr i8, ptr %context, i64 {layout.FIRST_LANE}")
        e.do(f"store i64 {PASS * turn}, ptr {at}")


def joined_passes(e: Registers, passes: list[list[str]]) -> list[str]:
    """Join the parts of each register that the passes have read."""
    return [e.whole("i32", list(parts)) for parts in zip(*passes, strict=True)]


def load_to_columns(
    e: Registers, count: int, function: str, *arguments: tuple[str, str]
) -> list[str]:
    """Call a load that leaves `count` dwords per lane in the IO columns; return the registers."""
    found = []
    for turn, one in enumerate(e.cut_arguments(arguments)):
        begin_pass(e, turn)
        e.call("void", PREFIX + function, ("ptr", "%context"), *one)
        found.append(load_columns(e, count))
    return joined_passes(e, found)


def load_wide(
    e: Registers, dst: Operand, function: str, *arguments: tuple[str, str]
) -> list[str] | None:
    """Call a load of more than four bytes per lane. Return the value of each register, or None if
    the load has written the registers itself."""
    places = e.in_place(dst) if e.full else None
    e.note_access()
    if places is None:
        column = ("ptr", io_column(e, 0))
        return load_to_columns(e, dst.width, function, *arguments, column)
    for turn, one in enumerate(e.cut_arguments(arguments)):
        begin_pass(e, turn)
        e.call("void", PREFIX + function, ("ptr", "%context"), *one, ("ptr", places[turn]))
    return None


def set_registers(e: Registers, dst: Operand, values: list[str] | None) -> None:
    """Write the values returned by `load_wide`."""
    for k, value in enumerate(values or ()):
        e.set_vector_register(dst.index + k, value)


def store_wide(e: Registers, data: Operand, function: str, *arguments: tuple[str, str]) -> None:
    """Call a store of more than four bytes per lane."""
    places = e.in_place(data, written=False)
    words = [] if places else [e.cut("i32", word) for word in data_registers(e, data)]
    e.note_access()
    for turn, one in enumerate(e.cut_arguments(arguments)):
        if places is None:
            store_columns(e, [word[turn] for word in words])
        at = places[turn] if places else io_column(e, 0)
        begin_pass(e, turn)
        e.call("void", PREFIX + function, ("ptr", "%context"), *one, ("ptr", at))


def arguments_of(e: Registers, address: Address) -> tuple[str, list[tuple[str, str]]]:
    """Return the kind of runtime functions for an address, and their arguments for it."""
    if address.high is None:
        return "near", [("i64", address.base), (e.vector, address.low), (LANES, e.exec())]
    return "far", [
        (e.vector, address.low), (e.vector, address.high), ("i64", address.base), (LANES, e.exec()),
    ]  # fmt: skip


def _call_access(
    e: Registers, verb: str, size: int, address: Address, data: str | None = None
) -> str:
    """Call the runtime's access of up to four bytes per lane; return the result of a load."""
    reach, arguments = arguments_of(e, address)
    stored = [(e.vector, data)] if data is not None else []
    result = "i32" if verb == "load" else ""
    name = f"{PREFIX}{reach}_{verb}_{size}"
    e.note_access()
    return e.by_passes(result, name, ("ptr", "%context"), *arguments, *stored)


def _global_load(size: int, how: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        check_registers(e, i.dst, i.addr)
        e.exec_mask()
        address = Address(e, i)
        if size > 4:
            reach, arguments = arguments_of(e, address)
            values = load_wide(e, i.dst, f"{reach}_load_{size}", *arguments)
            set_registers(e, i.dst, values)
            return
        fast, slow, done = e.new_label("fast"), e.new_label("slow"), e.new_label("done")
        consecutive = address.consecutive(size)
        known, host = hit(e, tlb_of(e), address.first(), e.lanes * size, Access.READ)
        good = e.value(f"and i1 {consecutive}, {known}")
        e.do(f"br i1 {good}, label %{fast}, label %{slow}, !prof !0")
        e.begin(fast)
        kind = f"i{8 * size}"
        value = e.value(f"load {e.vector_of(kind)}, ptr {host}, align 1")
        value = e.convert("zext", kind, "i32", value)
        e.set_vector_register(i.dst.index, narrow_result(e, i.dst, value, size, how))
        e.do(f"br label %{done}")
        e.begin(slow)
        value = _call_access(e, "load", size, address)
        e.set_vector_register(i.dst.index, narrow_result(e, i.dst, value, size, how))
        e.do(f"br label %{done}")
        e.begin(done)

    return emit


def stored(e: Registers, i: Instruction, high: bool) -> str:
    """Return the register whose low bytes a store of up to four bytes per lane writes."""
    assert i.data is not None
    value = e.vector_register(i.data.index)
    return e.binary("lshr", "i32", value, constant("i32", 16)) if high else value


def _global_store(size: int, high: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        check_registers(e, i.data, i.addr)
        mask = e.exec_mask()
        address = Address(e, i)
        if size > 4:
            assert i.data is not None
            reach, arguments = arguments_of(e, address)
            store_wide(e, i.data, f"{reach}_store_{size}", *arguments)
            return
        value = stored(e, i, high)
        fast, slow, done = e.new_label("fast"), e.new_label("slow"), e.new_label("done")
        consecutive = address.consecutive(size)
        known, host = hit(e, tlb_of(e), address.first(), e.lanes * size, Access.WRITE)
        good = e.value(f"and i1 {consecutive}, {known}")
        e.do(f"br i1 {good}, label %{fast}, label %{slow}, !prof !0")
        e.begin(fast)
        kind = f"i{8 * size}"
        narrow = e.convert("trunc", "i32", kind, value)
        if mask is None:
            e.do(f"store {e.vector_of(kind)} {narrow}, ptr {host}, align 1")
        else:
            e.call(
                "void", f"llvm.masked.store.v{e.lanes}{kind}.p0", (e.vector_of(kind), narrow),
                ("ptr align 1", host), (e.vector_of("i1"), mask),
            )  # fmt: skip
        e.do(f"br label %{done}")
        e.begin(slow)
        _call_access(e, "store", size, address, value)
        e.do(f"br label %{done}")
        e.begin(done)

    return emit


def load_lanes(
    e: Registers,
    i: Instruction,
    size: int,
    how: str,
    function: str,
    arguments: list[tuple[str, str]],
) -> None:
    """Load by a function that leaves what each lane gets in columns."""
    assert i.dst is not None
    if size > 4:
        set_registers(e, i.dst, load_wide(e, i.dst, function, *arguments))
        return
    e.note_access()
    (value,) = load_to_columns(e, 1, function, *arguments)
    e.set_vector_register(i.dst.index, narrow_result(e, i.dst, value, size, how))


def store_lanes(
    e: Registers,
    i: Instruction,
    size: int,
    high: bool,
    function: str,
    arguments: list[tuple[str, str]],
) -> None:
    """Store by a function that takes each lane's data from columns."""
    assert i.data is not None
    if size > 4:
        store_wide(e, i.data, function, *arguments)
        return
    parts = e.cut("i32", stored(e, i, high))
    e.note_access()
    for turn, one in enumerate(e.cut_arguments(arguments)):
        store_columns(e, [parts[turn]])
        begin_pass(e, turn)
        e.call("void", PREFIX + function, ("ptr", "%context"), *one)


def _flat_arguments(e: Registers, i: Instruction) -> list[tuple[str, str]]:
    return [(e.vector_of("i64"), Address(e, i).all()), (LANES, e.exec())]


def _flat_load(size: int, how: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        check_registers(e, i.dst, i.addr)
        load_lanes(e, i, size, how, f"flat_load_{size}", _flat_arguments(e, i))

    return emit


def _flat_store(size: int, high: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        check_registers(e, i.data, i.addr)
        store_lanes(e, i, size, high, f"flat_store_{size}", _flat_arguments(e, i))

    return emit


def _scalar_address(e: Registers, i: Instruction) -> str:
    address = e.value(f"add i64 {e.scalar64(i.srcs[0])}, {i.offset}")
    if i.soffset is not None:
        extra = e.value(f"zext i32 {e.scalar(i.soffset)} to i64")
        address = e.value(f"add i64 {address}, {extra}")
    return address


def _scalar_load(count: int) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        address = _scalar_address(e, i)
        e.note_access()
        e.call(
            "void", PREFIX + "scalar_load",
            ("ptr", "%context"), ("i64", address), ("i64", str(count)),
        )  # fmt: skip
        for k in range(count):
            at = e.value(f"getelementptr i8, ptr %context, i64 {context.IO + 4 * k}")
            e.set_scalar(i.dst, e.value(f"load i32, ptr {at}"), k)

    return emit


def _narrow_scalar_load(bits: int, extend: str) -> Handler:
    """Load part of a dword, of gfx12. extend: LLVM's "sext" or "zext"."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        address = _scalar_address(e, i)
        whole = e.value(f"and i64 {address}, -4")
        e.note_access()
        e.call(
            "void", PREFIX + "scalar_load", ("ptr", "%context"), ("i64", whole), ("i64", "1")
        )  # fmt: skip
        at = e.value(f"getelementptr i8, ptr %context, i64 {context.IO}")
        word = e.value(f"load i32, ptr {at}")
        e.set_scalar(i.dst, part_of(e, word, address, bits, extend))

    return emit


def part_of(e: Registers, word: str, address: str, bits: int, extend: str) -> str:
    """Return the part of a scalar dword in which an address lies, extended to i32."""
    byte = e.value(f"and i32 {e.value(f'trunc i64 {address} to i32')}, {4 - bits // 8}")
    word = e.value(f"lshr i32 {word}, {e.value(f'shl i32 {byte}, 3')}")
    part = e.value(f"trunc i32 {word} to i{bits}")
    return e.value(f"{extend} i{bits} {part} to i32")


def _nothing(e: Registers, i: Instruction) -> None:
    """Do nothing for cache control: the model's memory is coherent."""


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found: dict[str, Handler] = {}
    for name, (size, how) in LOADS.items():
        found[f"global_{name}"] = _global_load(size, how)
        found[f"flat_{name}"] = _flat_load(size, how)
    for name, (size, high) in STORES.items():
        found[f"global_{name}"] = _global_store(size, high)
        found[f"flat_{name}"] = _flat_store(size, high)
    for count in (1, 2, 3, 4, 8, 16):
        found[f"s_load_b{32 * count}"] = _scalar_load(count)
    for bits in (8, 16):
        found[f"s_load_i{bits}"] = _narrow_scalar_load(bits, "sext")
        found[f"s_load_u{bits}"] = _narrow_scalar_load(bits, "zext")
    for name in ("s_dcache_inv", "s_gl1_inv", "buffer_gl0_inv", "buffer_gl1_inv"):
        found[name] = _nothing
    return found
