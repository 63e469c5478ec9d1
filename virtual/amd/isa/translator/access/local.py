"""Local memory (DS) instructions and all atomic operations, translated to LLVM IR.

Source: RDNA3 ISA document, chapter of the DS opcodes; atomics also "Flat, global and scratch".
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Operand
from ugpu.virtual.amd.isa.translator.access.lanes import enabled_at, gather_lanes
from ugpu.virtual.amd.isa.translator.access.memory import (
    Address,
    check_registers,
    data_registers,
    io_column,
    load_to_columns,
    load_wide,
    narrow_result,
    set_registers,
    store_wide,
)
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.liveness import registers
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.shader.atomics import OPERATIONS
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.lanes.pairs import FRAGMENT as LOAD_FRAGMENT
from ugpu.virtual.shader.lanes.pairs import NAME as LOAD_PAIR
from ugpu.virtual.shader.text import LANES, PASS, VECTOR, constant, lanes


def _local_address(e: Registers, i: Instruction, offset: int) -> str:
    if i.addr is None or i.gds:
        raise Unsupported("no local address")
    address = e.vector_register(i.addr.index)
    return e.binary("add", "i32", address, constant("i32", offset)) if offset else address


def _arguments(e: Registers, address: str) -> list[tuple[str, str]]:
    return [(e.vector, address), (LANES, e.exec())]


def _load(size: int, how: str = "") -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        check_registers(e, i.addr, i.dst)
        address = _local_address(e, i, i.offset)
        if size > 4:
            values = load_wide(e, i.dst, f"lds_load_{size}", *_arguments(e, address))
            set_registers(e, i.dst, values)
            return
        value = _load_narrow(e, size, address)
        e.set_vector_register(i.dst.index, narrow_result(e, i.dst, value, size, how))

    return emit


def load_pair(e: Registers, first: Instruction, second: Instruction, live: int) -> bool:
    """Emit two loads at once if together they read 32 bytes per lane; return whether they do.

    live: halves of registers read in lanes 16..31 after them (see liveness.read_after).
    """
    if e.wide or not e.full or any(i.name != "ds_load_b128" or i.gds for i in (first, second)):
        return False
    low, high = sorted((first, second), key=lambda i: i.offset)
    if low.addr is None or low.addr != high.addr or high.offset - low.offset != 16:
        return False
    assert first.dst is not None and low.dst is not None and high.dst is not None
    if first.dst.index <= low.addr.index < first.dst.index + first.dst.width:
        return False
    if max(i.index + i.width for i in (low.addr, low.dst, high.dst)) > e.vector_limit:
        return False
    places = e.in_place(low.dst), e.in_place(high.dst)
    if places[0] is None or places[1] is None:
        return False
    apart = live & (registers(low.dst) | registers(high.dst))
    address = (VECTOR, _local_address(e, low, low.offset))
    targets = ("ptr", places[0][0]), ("ptr", places[1][0])
    e.call("void", LOAD_PAIR if apart else LOAD_FRAGMENT, ("ptr", "%context"), address, *targets)
    return True


def _load_narrow(e: Registers, size: int, address: str) -> str:
    name = f"{PREFIX}lds_load_{size}"
    return e.by_passes("i32", name, ("ptr", "%context"), *_arguments(e, address))


def _store(size: int, high: bool = False) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.data is not None
        check_registers(e, i.addr, i.data)
        _store_at(e, size, i.data, _local_address(e, i, i.offset), high)

    return emit


def _store_at(e: Registers, size: int, data: Operand, address: str, high: bool = False) -> None:
    arguments = _arguments(e, address)
    if size > 4:
        store_wide(e, data, f"lds_store_{size}", *arguments)
        return
    value = e.vector_register(data.index)
    if high:
        value = e.binary("lshr", "i32", value, constant("i32", 16))
    name = f"{PREFIX}lds_store_{size}"
    e.by_passes("", name, ("ptr", "%context"), *arguments, (e.vector, value))


def _load_two(size: int, step: int) -> Handler:
    """Load two elements; the address may be in a register that the first load overwrites."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        check_registers(e, i.addr, i.dst)
        values = []
        for offset in (i.offset0, i.offset1):
            address = _local_address(e, i, offset * size * step)
            if size == 4:
                values.append(_load_narrow(e, size, address))
            else:
                at = ("ptr", io_column(e, 0))
                values += load_to_columns(e, 2, f"lds_load_{size}", *_arguments(e, address), at)
        set_registers(e, i.dst, values)

    return emit


def _store_two(size: int, step: int) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        check_registers(e, i.addr, i.data, i.data1)
        for operand, offset in ((i.data, i.offset0), (i.data1, i.offset1)):
            assert operand is not None
            _store_at(e, size, operand, _local_address(e, i, offset * size * step))

    return emit


# -- atomics -------------------------------------------------------------------------------------


Call = tuple[str, list[tuple[str, str]]]  # a native function, and its arguments


def memory_hosts(e: Registers, bits: int, addresses: str, flat: bool, enabled: str) -> Call:
    """Return the call that finds the host addresses of flat (or global) atomic accesses."""
    arguments = [
        (e.vector_of("i64"), addresses), (LANES, enabled), ("i1", "true" if flat else "false"),
    ]  # fmt: skip
    return f"atomic_hosts_{bits}", arguments


def atomic_call(
    e: Registers, bits: int, operation: str, hosts: Call, enabled: str, data: list[str],
    returns: bool,
) -> list[str]:  # fmt: skip
    """Call the runtime's atomic operation on the registers `data`; if `returns`, return the
    registers with the old values. hosts: the call that returns the host addresses of a pass."""
    words, element = bits // 32, f"i{bits}"
    kind, part = e.vector_of(element), f"<{PASS} x {element}>"
    values = [_element(e, data[k : k + words]) for k in range(0, len(data), words)]
    first, second = [*values, "zeroinitializer"][:2]
    if operation in ("cas", "cas_f"):  # the new value comes first
        first, second = second, first
    number = ("i32", str(OPERATIONS[bits].index(operation)))
    arguments = e.cut_arguments([(LANES, enabled), number, (kind, first), (kind, second)])
    context, wide = ("ptr", "%context"), f"<{PASS} x i64>"
    e.note_access()
    old = []
    for where, what in zip(e.cut_arguments(hosts[1]), arguments, strict=True):
        places = (wide, e.call(wide, PREFIX + hosts[0], context, *where))
        old.append(e.call(part, f"{PREFIX}atomic_{bits}", context, places, *what))
    if not returns:
        return []
    found = e.whole(element, old)
    return [found] if words == 1 else list(e.split(found))


def _element(e: Registers, words: list[str]) -> str:
    return words[0] if len(words) == 1 else e.join(words[0], words[1])


def _atomic(
    e: Registers, bits: int, operation: str, hosts: Call, dst: Operand | None, data: list[str]
) -> None:
    old = atomic_call(e, bits, operation, hosts, e.exec(), data, dst is not None)
    if dst is not None:
        set_registers(e, dst, old)


def _memory_atomic(bits: int, operation: str, flat: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.data is not None
        check_registers(e, i.addr, i.data, i.dst)
        hosts = memory_hosts(e, bits, Address(e, i).all(), flat, e.exec())
        _atomic(e, bits, operation, hosts, i.dst, data_registers(e, i.data))

    return emit


def _local_hosts(e: Registers, bits: int, address: str) -> Call:
    return f"lds_hosts_{bits // 8}", _arguments(e, address)


def _local_atomic(bits: int, operation: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.data is not None
        check_registers(e, i.addr, i.data, i.data1, i.dst)
        hosts = _local_hosts(e, bits, _local_address(e, i, i.offset))
        data = data_registers(e, i.data)
        if i.data1 is not None:
            data += data_registers(e, i.data1)
        _atomic(e, bits, operation, hosts, i.dst, data)

    return emit


def _exchange_two(bits: int, step: int) -> Handler:
    """Exchange two elements, the first before the second."""

    def emit(e: Registers, i: Instruction) -> None:
        check_registers(e, i.addr, i.data, i.data1, i.dst)
        old: list[str] = []
        for operand, offset in ((i.data, i.offset0), (i.data1, i.offset1)):
            assert operand is not None
            hosts = _local_hosts(e, bits, _local_address(e, i, offset * step * bits // 8))
            old += atomic_call(e, bits, "exch", hosts, e.exec(), data_registers(e, operand), True)
        assert i.dst is not None
        set_registers(e, i.dst, old)

    return emit


_COMMON = {
    "add_u": "add", "sub_u": "sub", "min_i": "min_s", "min_u": "min_u", "max_i": "max_s",
    "max_u": "max_u", "and_b": "and", "or_b": "or", "xor_b": "xor", "inc_u": "inc", "dec_u": "dec",
}  # fmt: skip


# Of gfx12. The first two subtract down to zero, or only if the result is not negative.
_LATER = {
    "sub_clamp_u32": "csub", "cond_sub_u32": "cond_sub", "pk_add_f16": "add_f16x2",
    "pk_add_bf16": "add_bf16x2",
}  # fmt: skip


def _atomic_names() -> dict[str, tuple[int, str]]:
    """Return the memory atomics: suffix -> (bits, operation)."""
    found: dict[str, tuple[int, str]] = {}
    for bits in (32, 64):
        for name, operation in _COMMON.items():
            found[f"{name}{bits}"] = (bits, operation)
        found[f"swap_b{bits}"] = (bits, "exch")
        found[f"cmpswap_b{bits}"] = (bits, "cas")
    for name, operation in (
        ("csub_u32", "csub"), ("cmpswap_f32", "cas_f"), ("min_f32", "min_f"),
        ("max_f32", "max_f"), ("add_f32", "add_f32"), ("min_num_f32", "min_f"),
        ("max_num_f32", "max_f"), *_LATER.items(),
    ):  # fmt: skip
        found[name] = (32, operation)
    return found


ATOMIC_NAMES = _atomic_names()


def _atomics() -> dict[str, Handler]:
    found: dict[str, Handler] = {}
    for name, (bits, operation) in ATOMIC_NAMES.items():
        found[f"global_atomic_{name}"] = _memory_atomic(bits, operation, False)
        found[f"flat_atomic_{name}"] = _memory_atomic(bits, operation, True)
    for bits in (32, 64):
        local = {
            **_COMMON, "rsub_u": "rsub", "min_f": "min_f", "max_f": "max_f",
            "add_f": f"add_f{bits}", "mskor_b": "mskor", "cmpstore_b": "cas", "cmpstore_f": "cas_f",
            "storexchg_b": "exch", "wrap_b": "wrap", "min_num_f": "min_f", "max_num_f": "max_f",
        }  # fmt: skip
        for name, operation in local.items():
            handler = _local_atomic(bits, operation)
            stem, letter = name.rsplit("_", 1)
            found[f"ds_{stem}_{letter}{bits}"] = handler
            found[f"ds_{stem}_rtn_{letter}{bits}"] = handler
    for name, operation in _LATER.items():
        handler = _local_atomic(32, operation)
        stem, kind = name.rsplit("_", 1)
        found[f"ds_{name}"] = found[f"ds_{stem}_rtn_{kind}"] = handler
    return found


# -- lanes through the LDS crossbar --------------------------------------------------------------


def _enabled_only(e: Registers, value: str, lane: str) -> str:
    """Replace values read from disabled lanes by zero."""
    if e.full:
        return value
    return e.select(enabled_at(e, lane), "i32", value, constant("i32", 0))


def _named_lane(e: Registers, i: Instruction) -> str:
    """Return the lane selected by each lane's address, within its own 32 lanes."""
    number = e.binary("lshr", "i32", _local_address(e, i, i.offset), constant("i32", 2))
    number = e.binary("and", "i32", number, constant("i32", 31))
    if not e.wide:
        return number
    return e.binary("or", "i32", number, lanes([lane & ~31 for lane in range(e.lanes)]))


def _backward_permute(e: Registers, i: Instruction) -> None:
    """Make each lane read the lane that its address selects."""
    assert i.data is not None and i.dst is not None
    lane = _named_lane(e, i)
    value = gather_lanes(e, e.vector_register(i.data.index), lane)
    e.set_vector(i.dst, "i32", _enabled_only(e, value, lane))


def _forward_permute(e: Registers, i: Instruction) -> None:
    """Make each enabled lane write to the lane that its address selects.

    If several select the same lane, the highest wins; lanes that none selects get zero.
    """
    assert i.data is not None and i.dst is not None
    lane = _named_lane(e, i)
    slot = e.scratch_vector()
    e.do(f"store {e.vector} zeroinitializer, ptr {slot}")
    wide = e.convert("zext", "i32", "i64", lane)
    pointers = e.value(f"getelementptr i32, ptr {slot}, {e.vector_of('i64')} {wide}")
    mask = e.exec_mask() or "splat (i1 true)"
    e.call(
        "void", f"llvm.masked.scatter.v{e.lanes}i32.v{e.lanes}p0",
        (e.vector, e.vector_register(i.data.index)),
        (e.vector_of("ptr"), pointers), (e.vector_of("i1"), mask),
    )  # fmt: skip
    e.set_vector(i.dst, "i32", e.value(f"load {e.vector}, ptr {slot}"))


def swizzle_sources(offset: int) -> list[int]:
    """Return the lane that each of 32 lanes reads with ds_swizzle_b32's pattern."""
    found = []
    for lane in range(32):
        if offset >= 0xE000:  # FFT: reversed bits under a mask
            mask = offset & 0x1F
            reverse = int(f"{lane:05b}"[::-1], 2)
            source = (lane & mask) | (reverse & ~mask & 0x1F) if mask else reverse
            if mask:
                raise Unsupported("partial FFT swizzle")
        elif offset >= 0xC000:  # rotate
            amount, mask = offset >> 5 & 0x1F, offset & 0x1F
            step = -amount if offset >> 10 & 1 else amount
            source = (lane & mask) | ((lane + step) & ~mask & 0x1F)
        elif offset & 0x8000:  # quads
            source = lane & ~3 | offset >> 2 * (lane & 3) & 3
        else:
            source = (lane & offset & 0x1F | offset >> 5 & 0x1F) ^ (offset >> 10 & 0x1F)
        found.append(source)
    return found


def _swizzle(e: Registers, i: Instruction) -> None:
    assert i.addr is not None and i.dst is not None
    order = [PASS * turn + lane for turn in e.passes for lane in swizzle_sources(i.offset)]
    value = e.shuffle("i32", e.vector_register(i.addr.index), order)
    e.set_vector(i.dst, "i32", _enabled_only(e, value, lanes(order)))


def _nothing(e: Registers, i: Instruction) -> None:
    """Do nothing."""


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found = _atomics()
    for name, size, how in (
        ("u8", 1, "zero"), ("i8", 1, "sign"), ("u16", 2, "zero"), ("i16", 2, "sign"),
        ("b32", 4, ""),
        ("b64", 8, ""), ("b96", 12, ""), ("b128", 16, ""), ("u8_d16", 1, "low"),
        ("u8_d16_hi", 1, "high"), ("i8_d16", 1, "low sign"), ("i8_d16_hi", 1, "high sign"),
        ("u16_d16", 2, "low"), ("u16_d16_hi", 2, "high"),
    ):  # fmt: skip
        found[f"ds_load_{name}"] = _load(size, how)
    for name, size in (("b8", 1), ("b16", 2), ("b32", 4), ("b64", 8), ("b96", 12), ("b128", 16)):
        found[f"ds_store_{name}"] = _store(size)
    found["ds_store_b8_d16_hi"] = _store(1, high=True)
    found["ds_store_b16_d16_hi"] = _store(2, high=True)
    for bits in (32, 64):
        for suffix, step in (("", 1), ("_stride64", 64)):
            found[f"ds_storexchg_2addr{suffix}_rtn_b{bits}"] = _exchange_two(bits, step)
            found[f"ds_load_2addr{suffix}_b{bits}"] = _load_two(bits // 8, step)
            found[f"ds_store_2addr{suffix}_b{bits}"] = _store_two(bits // 8, step)
    found["ds_bpermute_b32"] = _backward_permute
    found["ds_permute_b32"] = _forward_permute
    found["ds_swizzle_b32"] = _swizzle
    found["ds_nop"] = _nothing
    return found
