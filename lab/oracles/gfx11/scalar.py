"""Scalar ALU and program control for the oracle: SOP1, SOP2, SOPK, SOPC, SOPP.

Source: RDNA3 ISA document, chapters "Scalar ALU operations" and "Program flow control".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lab.oracles.gfx11.state import WaveState
from ugpu.hcq.errors import NotSupported
from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand

_WORD = 0xFFFF_FFFF
_MODE_REGISTER = 1
# Their work is a matter of time, caches and priorities, which the oracle does not have.
_NO_EFFECT = {
    "s_nop", "s_sleep", "s_clause", "s_delay_alu", "s_waitcnt", "s_waitcnt_depctr", "s_wait_idle",
    "s_set_inst_prefetch_distance", "s_setprio", "s_icache_inv", "s_incperflevel", "s_code_end",
    "s_decperflevel", "s_ttracedata", "s_ttracedata_imm", "s_sendmsg", "s_wakeup", "s_wait_event",
    "s_version", "s_waitcnt_vscnt", "s_waitcnt_vmcnt", "s_waitcnt_expcnt", "s_waitcnt_lgkmcnt",
}  # fmt: skip


def signed(value: int, bits: int) -> int:
    """Read the low bits as two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def execute_scalar(instruction: Instruction, state: WaveState) -> None:
    """Execute one scalar instruction; state.pc is already that of the next one."""
    name = instruction.name
    if name in _NO_EFFECT:
        return
    if instruction.format is Format.SOPP:
        _program(instruction, state)
    elif instruction.format is Format.SOPC:
        _compare(instruction, state)
    elif instruction.format is Format.SOPK:
        _immediate(instruction, state)
    elif instruction.format is Format.SOP2:
        _two(instruction, state)
    else:
        _one(instruction, state)


# Program control -----------------------------------------------------------------------------


def _program(instruction: Instruction, state: WaveState) -> None:
    name = instruction.name
    if name in ("s_endpgm", "s_endpgm_saved"):
        state.done = True
        return
    if name == "s_barrier":
        state.at_barrier = True
        return
    if name in ("s_round_mode", "s_denorm_mode"):
        shift = 0 if name == "s_round_mode" else 4
        kept = state.mode.value & ~(0xF << shift)
        state.mode = replace(state.mode, value=kept | (instruction.simm16 & 0xF) << shift)
        return
    taken = {
        "s_branch": True,
        "s_cbranch_scc0": not state.scc,
        "s_cbranch_scc1": state.scc,
        "s_cbranch_vccz": not state.vcc,
        "s_cbranch_vccnz": bool(state.vcc),
        "s_cbranch_execz": not state.exec,
        "s_cbranch_execnz": bool(state.exec),
    }
    if name not in taken or instruction.branch_target is None:
        raise NotSupported("the oracle does not execute", instruction=name)
    if taken[name]:
        state.pc = instruction.branch_target


# Comparisons ---------------------------------------------------------------------------------

_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def _related(name: str, first: int, second: int) -> bool:
    relation, kind = name.split("_")[-2:]
    bits = int(kind[1:])
    if kind[0] == "i":
        first, second = signed(first, bits), signed(second, bits)
    return _RELATIONS[relation](first, second)


def _compare(instruction: Instruction, state: WaveState) -> None:
    first, second = (state.read_scalar(source) for source in instruction.srcs)
    if instruction.name.startswith("s_bitcmp"):
        bit = first >> (second & (instruction.srcs[0].type.bits - 1)) & 1
        state.scc = bit == int(instruction.name[len("s_bitcmp")])
    else:
        state.scc = _related(instruction.name, first, second)


# Immediates ----------------------------------------------------------------------------------


def _immediate(instruction: Instruction, state: WaveState) -> None:
    name, dst = instruction.name, instruction.dst
    constant = instruction.simm16_signed
    if name.startswith("s_cmpk"):
        value = state.read_scalar(instruction.srcs[0])
        unsigned = name.endswith("u32")
        state.scc = _related(name, value, instruction.simm16 if unsigned else constant & _WORD)
        return
    if name in ("s_setreg_b32", "s_setreg_imm32_b32"):
        _set_hardware(instruction, state)
        return
    if dst is None:
        raise NotSupported("the oracle does not execute", instruction=name)
    if name == "s_movk_i32":
        state.write_scalar(dst, constant & _WORD)
    elif name == "s_cmovk_i32":
        if state.scc:
            state.write_scalar(dst, constant & _WORD)
    elif name == "s_addk_i32":
        total = signed(state.read_scalar(dst), 32) + constant
        state.write_scalar(dst, total & _WORD)
        state.scc = signed(total, 32) != total
    elif name == "s_mulk_i32":
        state.write_scalar(dst, signed(state.read_scalar(dst), 32) * constant & _WORD)
    elif name == "s_getreg_b32":
        number, offset, size = _hardware_field(instruction)
        found = state.mode.value if number == _MODE_REGISTER else state.hardware.get(number, 0)
        state.write_scalar(dst, found >> offset & (1 << size) - 1)
    elif name == "s_call_b64" and instruction.branch_target is not None:
        state.write_scalar(dst, state.code_base + state.pc)
        state.pc = instruction.branch_target
    else:
        raise NotSupported("the oracle does not execute", instruction=name)


def _hardware_field(instruction: Instruction) -> tuple[int, int, int]:
    """Return register number, first bit and size of a hwreg immediate."""
    value = instruction.simm16
    return value & 0x3F, value >> 6 & 0x1F, (value >> 11) + 1


def _set_hardware(instruction: Instruction, state: WaveState) -> None:
    number, offset, size = _hardware_field(instruction)
    mask = (1 << size) - 1 << offset
    value = state.read_scalar(instruction.srcs[0]) << offset & mask
    if number == _MODE_REGISTER:
        state.mode = replace(state.mode, value=state.mode.value & ~mask | value)
    else:
        state.hardware[number] = state.hardware.get(number, 0) & ~mask | value


# Two sources ---------------------------------------------------------------------------------

# Value, and whether SCC becomes "the result is not zero".
_LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
    "and_not1": lambda a, b: a & ~b,
    "or_not1": lambda a, b: a | ~b,
}


def _split(name: str) -> tuple[str, str, int]:
    """Split s_lshl_b64 into lshl, b, 64."""
    stem, _, kind = name[2:].rpartition("_")
    return stem, kind[0], int(kind[1:])


def _two(instruction: Instruction, state: WaveState) -> None:
    first, second = (state.read_scalar(source) for source in instruction.srcs)
    stem, kind, bits = _split(instruction.name)
    mask = (1 << bits) - 1
    scc: bool | None = None
    if stem in _LOGIC:
        result = _LOGIC[stem](first, second) & mask
        scc = result != 0
    elif stem in ("add", "sub", "addc", "subb", "absdiff", "min", "max") or "lshl" in stem:
        result, scc = _arithmetic(stem, kind, bits, first, second, state.scc)
    elif stem in ("lshr", "ashr"):
        value = first if stem == "lshr" else signed(first, bits)
        result = value >> (second & (bits - 1)) & mask
        scc = result != 0
    elif stem == "bfe":
        result = _extract(first, second & (bits - 1), second >> 16 & 0x7F, bits, kind == "i")
        scc = result != 0
    elif stem == "bfm":
        result = ((1 << (first & (bits - 1))) - 1) << (second & (bits - 1)) & mask
    elif stem == "mul":
        result = first * second & mask
    elif stem == "mul_hi":
        if kind == "i":
            first, second = signed(first, 32), signed(second, 32)
        result = first * second >> 32 & mask
    elif stem == "cselect":
        result = first if state.scc else second
    elif stem.startswith("pack"):
        halves = instruction.name.split("_")[2]
        low = first >> (16 if halves[0] == "h" else 0) & 0xFFFF
        result = low | (second >> (16 if halves[1] == "h" else 0) & 0xFFFF) << 16
    else:
        raise NotSupported("the oracle does not execute", instruction=instruction.name)
    if instruction.dst is not None:
        state.write_scalar(instruction.dst, result)
    if scc is not None:
        state.scc = scc


def _extract(value: int, offset: int, width: int, bits: int, sign: bool) -> int:
    width = min(width, bits - offset)
    if width <= 0:
        return 0
    field = value >> offset & (1 << width) - 1
    return (signed(field, width) if sign else field) & (1 << bits) - 1


def _arithmetic(
    stem: str, kind: str, bits: int, first: int, second: int, carry: bool
) -> tuple[int, bool]:
    """Return the result and SCC of additions, shifts to the left, minima and maxima."""
    mask = (1 << bits) - 1
    if stem == "lshl":
        result = first << (second & (bits - 1)) & mask
        return result, result != 0
    if stem.startswith("lshl"):
        total = (first << int(stem[4])) + second
        return total & mask, total > mask
    if kind == "i":
        first, second = signed(first, bits), signed(second, bits)
    if stem == "min":
        return min(first, second) & mask, first < second
    if stem == "max":
        return max(first, second) & mask, first >= second
    if stem == "absdiff":
        result = abs(signed(first - second, bits)) & mask  # of the difference that fits
        return result, result != 0
    borrowed = int(carry) if stem in ("addc", "subb") else 0
    total = first + second + borrowed if stem.startswith("add") else first - second - borrowed
    if kind == "i":
        return total & mask, signed(total, bits) != total
    return total & mask, not 0 <= total <= mask


# One source ----------------------------------------------------------------------------------


def _one(instruction: Instruction, state: WaveState) -> None:
    name = instruction.name
    if name in ("s_getpc_b64", "s_setpc_b64", "s_swappc_b64"):
        _jump(instruction, state)
        return
    if "saveexec" in name or "wrexec" in name:
        _exec_update(instruction, state)
        return
    if name.startswith("s_movrel"):
        _move_relative(instruction, state)
        return
    if instruction.dst is None or not instruction.srcs:
        raise NotSupported("the oracle does not execute", instruction=name)
    source = state.read_scalar(instruction.srcs[0])
    bits = instruction.srcs[0].type.bits
    if name.startswith(("s_mov_b", "s_cmov_b")):
        if name.startswith("s_mov") or state.scc:
            state.write_scalar(instruction.dst, source)
        return
    if name.startswith("s_bitset"):
        size = instruction.dst.type.bits
        old, bit = state.read_scalar(instruction.dst), 1 << (source & (size - 1))
        state.write_scalar(instruction.dst, old | bit if name[8] == "1" else old & ~bit)
        return
    result, sets_scc = _unary(name, source, bits)
    state.write_scalar(instruction.dst, result & (1 << instruction.dst.type.bits) - 1)
    if sets_scc:
        state.scc = result != 0


def _move_relative(instruction: Instruction, state: WaveState) -> None:
    """Move between scalar registers whose numbers M0 is added to."""
    source, dst, name = instruction.srcs[0], instruction.dst, instruction.name
    both = name == "s_movrelsd_2_b32"
    if not name.startswith("s_movreld"):
        source = _relative(source, state.m0 & 0x3FF if both else state.m0)
    if dst is not None and not name.startswith("s_movrels_"):
        dst = _relative(dst, state.m0 >> 16 & 0x3FF if both else state.m0)
    if dst is not None:
        state.write_scalar(dst, state.read_scalar(source))


def _relative(operand: Operand, offset: int) -> Operand:
    index = operand.index + offset
    if operand.kind is not Kind.SGPR or not 0 <= index <= 106 - operand.width:
        raise NotSupported("a relative register that is none", index=index)
    return replace(operand, index=index)


def _unary(name: str, value: int, bits: int) -> tuple[int, bool]:
    """Return the result and whether SCC becomes "the result is not zero"."""
    mask = (1 << bits) - 1
    if name.startswith("s_brev"):
        return int(f"{value:0{bits}b}"[::-1], 2), False
    if name.startswith("s_ctz"):
        return (value & -value).bit_length() - 1 if value else -1, False
    if name.startswith("s_clz"):
        return bits - value.bit_length() if value else -1, False
    if name.startswith("s_cls"):
        differing = value ^ (mask if value >> (bits - 1) else 0)
        return bits - differing.bit_length() if differing else -1, False
    if name.startswith("s_sext"):
        return signed(value, int(name.rpartition("_i")[2])), False
    if name.startswith("s_bcnt"):
        ones = value.bit_count()
        return ones if name[6] == "1" else bits - ones, True
    if name.startswith("s_not"):
        return ~value & mask, True
    if name == "s_abs_i32":
        return abs(signed(value, 32)) & mask, True
    if name == "s_bitreplicate_b64_b32":
        return sum((value >> bit & 1) * 3 << 2 * bit for bit in range(32)), False
    if name.startswith("s_quadmask"):
        return sum(bool(value >> 4 * q & 15) << q for q in range(bits // 4)), True
    if name.startswith("s_wqm"):
        return sum(bool(value >> 4 * q & 15) * 15 << 4 * q for q in range(bits // 4)), True
    raise NotSupported("the oracle does not execute", instruction=name)


def _jump(instruction: Instruction, state: WaveState) -> None:
    target = state.read_scalar(instruction.srcs[0]) if instruction.srcs else None
    if instruction.dst is not None:
        state.write_scalar(instruction.dst, state.code_base + state.pc)
    if target is not None:
        state.pc = (target & ~3) - state.code_base


def _exec_update(instruction: Instruction, state: WaveState) -> None:
    """Combine a mask with EXEC: the saveexec forms return the old EXEC, wrexec the new one."""
    source, old = state.read_scalar(instruction.srcs[0]), state.exec
    stem = instruction.name[2:].rsplit("_", 2)[0]
    combined = {
        "and": source & old,
        "or": source | old,
        "xor": source ^ old,
        "nand": ~(source & old),
        "nor": ~(source | old),
        "xnor": ~(source ^ old),
        "and_not0": ~source & old,
        "or_not0": ~source | old,
        "and_not1": source & ~old,
        "or_not1": source | ~old,
    }[stem]
    state.exec = combined & _WORD
    state.scc = state.exec != 0
    if instruction.dst is not None:
        state.write_scalar(instruction.dst, state.exec if "wrexec" in instruction.name else old)
