"""Show a decoded instruction in LLVM's assembly syntax (LLVM 22, true16).

Used in reports of illegal instructions, traces and tests. Immediates that LLVM prints as words
(s_delay_alu, s_waitcnt_depctr, messages, hardware registers, swizzles) are numbers here; OP_SEL of
VOP3 is shown by the halves of the operands alone, as by LLVM's code generator.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Dpp8, Dpp16, Format, Instruction
from ugpu.virtual.amd.isa.decoder.operands import SPECIALS, Kind, Operand, Type
from ugpu.virtual.amd.isa.targets.target import target as find_target

_PLAIN_SHORT = {
    "v_readfirstlane_b32", "v_swap_b32", "v_swap_b16", "v_permlane64_b32", "v_swaprel_b32",
    "v_dot2acc_f32_f16",
    "v_pk_fmac_f16", "v_fmamk_f32", "v_fmaak_f32", "v_fmamk_f16", "v_fmaak_f16", "v_nop",
    "v_pipeflush",
}  # fmt: skip
_PAIRS = {Kind.VCC: "vcc", Kind.EXEC: "exec"}
_APERTURES = ("src_shared_base", "src_shared_limit", "src_private_base", "src_private_limit")
_NAMED = {
    Kind.M0: "m0",
    Kind.NULL: "null",
    Kind.SCC: "src_scc",
    Kind.VCCZ: "src_vccz",
    Kind.EXECZ: "src_execz",
    Kind.LDS_DIRECT: "src_lds_direct",
}
_INVERSE_2PI = {16: "0.15915494", 32: "0.15915494", 64: "0.15915494309189532"}
_DECIMAL_SOPP = {"s_endpgm", "s_nop", "s_setkill", "s_sethalt", "s_sleep", "s_setprio", "s_trap"}


_PREFETCHES = ("s_prefetch", "s_buffer_prefetch")
_DEFAULT_FORMAT = 1  # BUF_FMT_8_UNORM


def text(instruction: Instruction) -> str:
    """Return one line of assembly; branch targets are byte offsets."""
    if instruction.x is not None and instruction.y is not None:
        return f"{text(instruction.x)} :: {text(instruction.y)}"
    operands = ", ".join(_operands(instruction))
    modifiers = " ".join(_modifiers(instruction))
    return " ".join(part for part in (_mnemonic(instruction), operands, modifiers) if part)


def _mnemonic(instruction: Instruction) -> str:
    name, encoding = instruction.mnemonic or instruction.name, instruction.format
    if encoding in (Format.VOP1, Format.VOP2, Format.VOPC):
        if instruction.dpp is not None:
            return name if encoding is Format.VOPC else f"{name}_dpp"
        return name if name in _PLAIN_SHORT else f"{name}_e32"
    if name in ("v_nop", "v_pipeflush"):
        return name
    if encoding in (Format.VOP3, Format.VOP3SD, Format.VOP3P):
        if instruction.dpp is not None:
            plain = encoding is Format.VOP3P and not name.startswith("v_dot2_f32_")
            return f"{name}_dpp" if plain else f"{name}_e64_dpp"
        return f"{name}_e64" if encoding is not Format.VOP3P and instruction.opcode < 512 else name
    return name


def _operands(instruction: Instruction) -> list[str]:
    encoding = instruction.format
    if encoding is Format.DS:
        parts = [instruction.dst, instruction.addr, instruction.data, instruction.data1]
        return [operand_text(part) for part in parts if part is not None]
    if encoding in (Format.FLAT, Format.GLOBAL, Format.SCRATCH):
        return _flat_operands(instruction)
    if encoding in (Format.MUBUF, Format.MTBUF):
        return _buffer_operands(instruction)
    halves = "_mix" not in instruction.name
    shown = [operand_text(part, halves) for part in (instruction.dst,) if part is not None]
    hidden = instruction.name.startswith("v_cmpx")
    if instruction.sdst is not None and not hidden:
        shown.append(operand_text(instruction.sdst))
    whole = 2 if "fmaak" in instruction.name else 1 if "fmamk" in instruction.name else None
    for number, source in enumerate(instruction.srcs):
        if encoding is Format.VOPD and source.kind is Kind.VCC and number == 2:
            continue
        if number == whole and encoding is not Format.VOPD:
            shown.append(hex(instruction.words[1]))
        elif source.kind is Kind.FLOAT and instruction.name.startswith("v_cvt_pk_f32_"):
            shown.append(_float_text(source))
        else:
            shown.append(operand_text(source, halves))
        if encoding is Format.SOPC and source.kind is Kind.FLOAT and source.type is Type.F16:
            shown[-1] = hex(source.value)
    if instruction.name.startswith(_PREFETCHES):
        soffset = instruction.soffset
        shown.append(_hex(instruction.offset))
        shown.append("null" if soffset is None else operand_text(soffset))
        return [*shown, str(instruction.simm16)]
    if encoding is Format.SMEM and instruction.dst is None and instruction.srcs:
        shown.insert(0, _immediate(instruction.simm16))
    if encoding is Format.SMEM and instruction.srcs:
        if instruction.soffset is not None:
            shown.append(operand_text(instruction.soffset))
        else:
            shown.append(_hex(instruction.offset))
    if encoding is Format.SOPP and instruction.branch_target is None:
        shown += _sopp_immediate(instruction)
    if encoding is Format.SOPK or "sendmsg_rtn" in instruction.name:
        if instruction.name in ("s_addk_i32", "s_mulk_i32", "s_cmovk_i32"):
            shown.pop()
        if instruction.branch_target is None:
            shown.append(hex(instruction.simm16))
    if instruction.branch_target is not None:
        shown.append(hex(instruction.branch_target))
    return shown


def _immediate(value: int) -> str:
    return str(value) if value <= 64 else hex(value)


def _sopp_immediate(instruction: Instruction) -> list[str]:
    name, value = instruction.name, instruction.simm16
    if name == "s_waitcnt":
        counts = (("vmcnt", value >> 10 & 63, 63), ("expcnt", value & 7, 7))
        shown = [f"{unit}({count})" for unit, count, most in counts if count != most]
        if value >> 4 & 63 != 63:
            shown.append(f"lgkmcnt({value >> 4 & 63})")
        return [" ".join(shown)]
    if name in _DECIMAL_SOPP:
        return [str(value)] if value or name != "s_endpgm" else []
    bare = ("s_barrier", "s_barrier_leave", "s_wakeup", "s_wait_idle", "s_code_end", "s_icache_inv")
    return [] if name in bare and not value else [hex(value)]


def _flat_operands(instruction: Instruction) -> list[str]:
    shown = [operand_text(instruction.dst)] if instruction.dst is not None else []
    if "addtid" not in instruction.name:
        shown.append(operand_text(instruction.addr) if instruction.addr is not None else "off")
    if instruction.data is not None:
        shown.append(operand_text(instruction.data))
    if instruction.format is not Format.FLAT:
        shown.append(operand_text(instruction.saddr) if instruction.saddr is not None else "off")
    return shown


def _buffer_operands(instruction: Instruction) -> list[str]:
    data = instruction.data if instruction.data is not None else instruction.dst
    shown = [operand_text(data)] if data is not None else []
    if instruction.srsrc is not None and instruction.soffset is not None:
        shown.append(operand_text(instruction.addr) if instruction.addr is not None else "off")
        shown += [operand_text(instruction.srsrc), operand_text(instruction.soffset)]
    return shown


def _hex(value: int) -> str:
    return f"-{-value:#x}" if value < 0 else hex(value)


def operand_text(operand: Operand, halves: bool = True) -> str:
    """Return an operand with its modifiers and half, as `-|v3.h|`."""
    shown = _bare(operand)
    if halves and operand.kind is Kind.VGPR and operand.type.bits == 16:
        shown += ".h" if operand.high else ".l"
    if operand.absolute:
        shown = f"|{shown}|"
    if operand.neg:
        plain = operand.is_constant and not operand.absolute
        return f"neg({shown})" if plain else f"-{shown}"
    return shown


def _bare(operand: Operand) -> str:
    prefix = {Kind.SGPR: "s", Kind.VGPR: "v", Kind.TTMP: "ttmp"}.get(operand.kind)
    if prefix is not None:
        if operand.width == 1:
            return f"{prefix}{operand.index}"
        return f"{prefix}[{operand.index}:{operand.index + operand.width - 1}]"
    if operand.kind in _PAIRS:
        half = "" if operand.width == 2 else ("_lo", "_hi")[operand.index]
        return _PAIRS[operand.kind] + half
    if operand.kind is Kind.APERTURE:
        return _APERTURES[operand.index]
    if operand.kind is Kind.INTEGER:
        return str(operand.index - 128 if operand.index <= 192 else 192 - operand.index)
    if operand.kind is Kind.SPECIAL:
        return SPECIALS[operand.index]
    if operand.kind is Kind.FLOAT:
        return hex(operand.value) if operand.type is Type.B16 else _float_text(operand)
    if operand.kind is Kind.LITERAL:
        return hex(operand.value >> 32 if operand.type is Type.F64 else operand.value)
    return _NAMED[operand.kind]


def _float_text(operand: Operand) -> str:
    bits = operand.type.bits if operand.type.bits in (16, 64) else 32
    if operand.index == 248:
        return _INVERSE_2PI[bits]
    halves = ("0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0")
    return halves[operand.index - 240]


def _modifiers(instruction: Instruction) -> list[str]:
    if instruction.name.startswith(_PREFETCHES):
        return []
    if instruction.format in (Format.VOP3, Format.VOP3SD, Format.VOP3P):
        shown = _vop3_modifiers(instruction)
    elif instruction.format is Format.VINTERP:
        shown = ["clamp"] if instruction.clamp else []
        if any(instruction.op_sel):
            shown.append(_bits("op_sel", instruction.op_sel))
        shown.append(f"wait_exp:{instruction.simm16}")
    else:
        shown = _memory_modifiers(instruction)
    if isinstance(instruction.dpp, Dpp16):
        shown += _dpp16(instruction.dpp)
    elif isinstance(instruction.dpp, Dpp8):
        shown.append(f"dpp8:[{','.join(map(str, instruction.dpp.selectors))}]")
        if instruction.dpp.fetch_inactive:
            shown.append("fi:1")
    return shown


def _bits(name: str, values: tuple[int, ...]) -> str:
    return f"{name}:[{','.join(map(str, values))}]"


def _vop3_modifiers(instruction: Instruction) -> list[str]:
    shown = []
    if instruction.format is Format.VOP3P:
        packed = "mix" not in instruction.name
        if any(instruction.op_sel):
            shown.append(_bits("op_sel", instruction.op_sel))
        if any(instruction.op_sel_hi) if not packed else not all(instruction.op_sel_hi):
            shown.append(_bits("op_sel_hi", instruction.op_sel_hi))
        if packed:
            for name in ("neg_lo", "neg_hi"):
                if any(getattr(instruction, name)):
                    shown.append(_bits(name, getattr(instruction, name)))
    elif "permlane" in instruction.name and any(instruction.op_sel):
        shown.append(_bits("op_sel", instruction.op_sel[:2]))
    if (byte := _byte(instruction)) != 0:
        shown.append(f"byte_sel:{byte}")
    if instruction.clamp:
        shown.append("clamp")
    if instruction.omod:
        shown.append(("", "mul:2", "mul:4", "div:2")[instruction.omod])
    return shown


def _byte(instruction: Instruction) -> int:
    """Return which byte a conversion of 8-bit floats uses, by its bits of OP_SEL."""
    name, selected = instruction.name, instruction.op_sel
    if name in ("v_cvt_f32_fp8", "v_cvt_f32_bf8") and selected:
        return selected[1] | selected[0] << 1
    if name in ("v_cvt_sr_fp8_f32", "v_cvt_sr_bf8_f32") and selected:
        return selected[2] | selected[3] << 1
    return 0


def _hints(instruction: Instruction) -> list[str]:
    """Return the scope and the temporal hint of gfx12, as LLVM names them (printTH)."""
    hint, scope = instruction.hint, instruction.scope
    name, shown = instruction.name, []
    if name.startswith("s_atc_probe"):
        return []
    if instruction.scaled:
        shown.append("scale_offset")
    if "atomic" in name and hint:
        if hint & 4:
            kind = "CASCADE_NT" if hint & 2 else "CASCADE_RT"
            text = kind if scope >= 2 else hex(hint)
        else:
            text = "_".join(word for bit, word in ((2, "NT"), (1, "RETURN")) if hint & bit)
        shown.append(f"th:TH_ATOMIC_{text}")
    elif hint:
        store = "store" in name
        third = "BYPASS" if scope == 3 else "WB" if store else "LU"
        words = ("", "NT", "HT", third, "NT_RT", "RT_NT", "NT_HT", "NT_WB" if store else "0x7")
        prefix = "" if words[hint] == "0x7" else "TH_STORE_" if store else "TH_LOAD_"
        shown.append(f"th:{prefix}{words[hint]}")
    if scope:
        shown.append(f"scope:SCOPE_{('CU', 'SE', 'DEV', 'SYS')[scope]}")
    if instruction.volatile:
        shown.append("nv")
    return shown


def _memory_modifiers(instruction: Instruction) -> list[str]:
    shown = []
    if instruction.format is Format.MTBUF and instruction.simm16 != _DEFAULT_FORMAT:
        names = find_target("gfx11").table("FORMATS")
        row = names.get(instruction.simm16)
        shown.append(f"format:[{row.name}]" if row else f"format:{instruction.simm16}")
    for flag in ("idxen", "offen"):
        if getattr(instruction, flag):
            shown.append(flag)
    if instruction.format is Format.SMEM:
        if instruction.soffset is not None and (instruction.offset or instruction.always_offset):
            shown.append(f"offset:{_hex(instruction.offset)}")
    elif instruction.offset:
        shown.append(f"offset:{instruction.offset}")
    for name in ("offset0", "offset1"):
        if getattr(instruction, name):
            shown.append(f"{name}:{getattr(instruction, name)}")
    hints = _hints(instruction)
    first = [] if instruction.wide else ["glc"]
    return (
        shown
        + hints
        + [flag for flag in (*first, "slc", "dlc", "tfe", "gds") if getattr(instruction, flag)]
    )


def _dpp16(dpp: Dpp16) -> list[str]:
    control = dpp.control
    if control < 0x100:
        name = f"quad_perm:[{','.join(str(control >> 2 * lane & 3) for lane in range(4))}]"
    elif control in (0x140, 0x141):
        name = ("row_mirror", "row_half_mirror")[control & 1]
    else:
        kinds = {0x10: "row_shl", 0x11: "row_shr", 0x12: "row_ror", 0x15: "row_share"}
        name = f"{kinds.get(control >> 4, 'row_xmask')}:{control & 0xF}"
    shown = [name, f"row_mask:{dpp.row_mask:#x}", f"bank_mask:{dpp.bank_mask:#x}"]
    if dpp.bound_ctrl:
        shown.append("bound_ctrl:1")
    if dpp.fetch_inactive:
        shown.append("fi:1")
    return shown
