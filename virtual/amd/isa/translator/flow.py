"""Program control: branches, barriers, program end, wait counters and mode, translated to LLVM IR.

Source: RDNA3 ISA document, chapters of the SOPP, SOP1 and SOPK opcodes.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator import modes
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.amd.isa.translator.relative import NOTE, SPILL
from ugpu.virtual.shader.threads import waves

# Instructions that only affect timing, ordering or debugging on a real chip: no effect here.
_NOTHING = (
    "s_nop", "s_sleep", "s_set_inst_prefetch_distance", "s_clause", "s_delay_alu",
    "s_waitcnt_depctr",
    "s_waitcnt", "s_wait_idle", "s_wait_event", "s_wakeup", "s_setprio", "s_sendmsg",
    "s_incperflevel", "s_decperflevel", "s_ttracedata", "s_ttracedata_imm", "s_icache_inv",
    "s_version", "s_waitcnt_vscnt", "s_waitcnt_vmcnt", "s_waitcnt_expcnt", "s_waitcnt_lgkmcnt",
    "v_nop", "v_pipeflush", "s_code_end",
    # gfx12: waits by counter, prefetches, and caches, which the model does not have
    "s_wait_loadcnt", "s_wait_storecnt", "s_wait_samplecnt", "s_wait_bvhcnt", "s_wait_expcnt",
    "s_wait_dscnt", "s_wait_kmcnt", "s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt",
    "s_prefetch_inst", "s_prefetch_inst_pc_rel", "s_prefetch_data", "s_prefetch_data_pc_rel",
    "s_buffer_prefetch_data", "global_inv", "global_wb", "global_wbinv", "s_dcache_inv",
)  # fmt: skip
_HWREG_SHADER_CYCLES = 29
_MODE_DEFAULT = 0xF0  # round to nearest even, denormals kept: LLVM's default for compute
_WORKGROUP = 0xFFFF  # s_barrier_wait -1: the workgroup's barrier; named ones are not modelled
_REALTIME = 0x83  # s_sendmsg_rtn message: the constant-frequency counter


def _nothing(e: Registers, i: Instruction) -> None:
    """Do nothing."""


def return_to(e: Registers, resume: int | str, code: int) -> None:
    """Save the wave and leave the function; `resume` is the byte offset to continue at."""
    value = str(resume + 1) if isinstance(resume, int) else e.value(f"add i32 {resume}, 1")
    e.do(f"store i32 {value}, ptr %resume.slot")
    e.do(f"store i32 {code}, ptr %code.slot")
    e.do("br label %save")


def halt(e: Registers, offset: int | str, code: int) -> None:
    """End the wave at an instruction that cannot be executed; its registers are saved."""
    at = e.value(f"getelementptr i8, ptr %context, i64 {layout.HALT_PC}")
    e.do(f"store i64 {offset}, ptr {at}")
    e.do("store i32 0, ptr %resume.slot")
    e.do(f"store i32 {code}, ptr %code.slot")
    e.do("br label %save")


def poll_abort(e: Registers, pc: int) -> None:
    """Leave the function if the dispatch is being aborted; store a snapshot if one is requested.

    A snapshot contains the wave's program counter, its scalar registers and the vector registers
    that it still needs (virtual.shader.memory.Abort.look). A wave whose registers are in its state
    stays here until they have been read.
    """
    asked = e.value("load atomic i64, ptr %abort monotonic, align 8")  # both words of the flag
    halted = e.value("load atomic i32, ptr %stop monotonic, align 4")
    either = e.value(f"or i64 {asked}, {e.value(f'zext i32 {halted} to i64')}")
    some = e.value(f"icmp ne i64 {either}, 0")
    on, told, note = e.new_label("on"), e.new_label("told"), e.new_label("note")
    e.do(f"br i1 {some}, label %{told}, label %{on}, !prof !1")
    e.begin(told)
    stop = e.value(f"icmp ne i32 {e.value(f'trunc i64 {either} to i32')}, 0")
    e.do(f"br i1 {stop}, label %stopped, label %{note}")
    e.begin(note)
    if not e.resident:
        e.do(SPILL)
        e.do(f"{NOTE}{e.needed.get(pc, 0):x}")
        scc = e.value(f"zext i1 {e.scc()} to i32")
        e.do(f"store i32 {scc}, ptr %scc.p")
    at, looks = (
        e.value(f"getelementptr i8, ptr %context, i64 {field}")
        for field in (layout.LOOK_PC, layout.LOOKS)
    )
    e.do(f"store i32 {pc}, ptr {at}")
    count = e.value(f"load i32, ptr {looks}")
    e.do(f"store atomic i32 {e.value(f'add i32 {count}, 1')}, ptr {looks} release, align 4")
    if e.resident:
        seen = e.new_label("seen")
        e.do(f"br label %{seen}")
        e.begin(seen)
        now = e.value("load atomic i64, ptr %abort acquire, align 8")
        waits = e.value(f"icmp eq i64 {now}, {1 << 32}")
        e.do(f"br i1 {waits}, label %{seen}, label %{on}")
    else:
        e.do(f"br label %{on}")
    e.begin(on)


def _branch_condition(e: Registers, name: str) -> str:
    if name in ("s_cbranch_scc0", "s_cbranch_scc1"):
        scc = e.scc()
        return scc if name.endswith("1") else e.value(f"xor i1 {scc}, true")
    mask = e.exec() if "exec" in name else e.mask_register(layout.SGPR_VCC)
    return e.value(f"icmp {'ne' if name.endswith('nz') else 'eq'} {e.bits} {mask}, 0")


def emit_end(e: Registers, i: Instruction) -> None:
    """Emit the control-flow instruction at the end of a block."""
    name = i.name
    target = i.branch_target
    if name in ("s_endpgm", "s_endpgm_saved"):
        e.do(f"ret i32 {waves.FINISHED}")
    elif name == "s_barrier" or (name == "s_barrier_wait" and i.simm16 == _WORKGROUP):
        return_to(e, i.next_pc, waves.AT_BARRIER)
    elif name == "s_branch" and target is not None:
        if target <= i.pc:
            poll_abort(e, i.pc)
        e.do(f"br label %pc{target}")
    elif name == "s_call_b64" and target is not None and i.dst is not None:
        e.set_scalar64(i.dst, _address(e, i.next_pc))
        e.do(f"br label %pc{target}")
    elif name in ("s_setpc_b64", "s_swappc_b64"):
        goal = e.scalar64(i.srcs[0])
        if name == "s_swappc_b64" and i.dst is not None:
            e.set_scalar64(i.dst, _address(e, i.next_pc))
        base = e.context(layout.CODE_BASE, "i64")
        offset = e.value(f"sub i64 {goal}, {base}")
        short = e.value(f"trunc i64 {offset} to i32")
        # Code offsets have 32 bits; the core handles targets that are further away.
        near = e.value(f"icmp eq i64 {e.value(f'sext i32 {short} to i64')}, {offset}")
        jump, lost = e.new_label("jump"), e.new_label("lost")
        e.do(f"br i1 {near}, label %{jump}, label %{lost}")
        e.begin(lost)
        halt(e, offset, layout.FAR_CODE)
        e.begin(jump)
        return_to(e, short, waves.JUMPED)
    elif target is not None and name.startswith("s_cbranch") and "cdbg" not in name:
        condition = _branch_condition(e, name)
        if target <= i.pc:
            poll_abort(e, i.pc)
        e.do(f"br i1 {condition}, label %pc{target}, label %pc{i.next_pc}")
    elif target is not None and "cdbg" in name:
        e.do(f"br label %pc{i.next_pc}")  # no debugger is ever attached
    else:
        raise Unsupported(name)


def _address(e: Registers, offset: int) -> str:
    return e.value(f"add i64 {e.context(layout.CODE_BASE, 'i64')}, {offset}")


def _get_pc(e: Registers, i: Instruction) -> None:
    assert i.dst is not None
    e.set_scalar64(i.dst, _address(e, i.next_pc))


def _get_register(e: Registers, i: Instruction) -> None:
    assert i.dst is not None
    register, offset, size = i.simm16 & 0x3F, i.simm16 >> 6 & 0x1F, (i.simm16 >> 11) + 1
    if register == modes.HWREG_MODE:
        value = str(_MODE_DEFAULT)
    elif register == _HWREG_SHADER_CYCLES:
        value = e.value(f"trunc i64 {e.call('i64', 'llvm.readcyclecounter')} to i32")
    else:
        raise Unsupported(f"hardware register {register}")
    shifted = e.value(f"lshr i32 {value}, {offset}")
    e.set_scalar(i.dst, e.value(f"and i32 {shifted}, {(1 << size) - 1}"))


def _set_register(e: Registers, i: Instruction) -> None:
    """Accept writes of MODE that do not change rounding; the denormal fields and FP16_OVFL take
    effect."""
    register, offset = i.simm16 & 0x3F, i.simm16 >> 6 & 0x1F
    if register != modes.HWREG_MODE or not i.srcs or not i.srcs[0].is_constant:
        raise Unsupported(f"write of hardware register {register}")
    written = modes.written_mode(i)
    value = i.srcs[0].value << offset & written
    if value & 0xF:
        raise Unsupported("a rounding mode other than nearest even")
    modes.switch(e, written >> 4 & 0xF, value >> 4 & 0xF)
    modes.switch_overflow(e, written, value)


def _signal(e: Registers, i: Instruction) -> None:
    """Signal the workgroup's barrier: the wave's wait for it does both, later and so more strictly.

    A wave that ends counts as having signalled (RDNA4 ISA document, 5.6).
    """
    source = i.srcs[0]
    if not source.is_constant or source.value != 0xFFFF_FFFF:
        raise Unsupported("a barrier other than the workgroup's")


def _set_halt(e: Registers, i: Instruction) -> None:
    """Halt the wave permanently by HALT or FATAL_HALT; bit 0 sets or clears the status bit."""
    if i.simm16 & 1 or i.name == "s_sendmsghalt":
        halt(e, i.pc, layout.SET_HALT)
        e.begin(e.new_label("halted"))


def _round_mode(e: Registers, i: Instruction) -> None:
    if i.simm16 & 0xF:
        raise Unsupported("a rounding mode other than nearest even")


def _denormal_mode(e: Registers, i: Instruction) -> None:
    modes.switch(e, 0xF, i.simm16 & 0xF)


def _message(e: Registers, i: Instruction) -> None:
    if i.simm16 != _REALTIME or i.dst is None:
        raise Unsupported(f"message {i.simm16:#x}")
    value = e.call("i64", "llvm.readcyclecounter")
    if i.dst.width == 2:
        e.set_scalar64(i.dst, value)
    else:
        e.set_scalar(i.dst, e.value(f"trunc i64 {value} to i32"))


def handlers() -> dict[str, Handler]:
    """Return the emitters of instructions that do not end a block, by instruction name."""
    found: dict[str, Handler] = dict.fromkeys(_NOTHING, _nothing)
    found["s_getpc_b64"] = _get_pc
    found["s_getreg_b32"] = _get_register
    found["s_setreg_b32"] = _set_register
    found["s_setreg_imm32_b32"] = _set_register
    found["s_round_mode"] = _round_mode
    found["s_sethalt"] = found["s_sendmsghalt"] = _set_halt
    found["s_denorm_mode"] = _denormal_mode
    found["s_sendmsg_rtn_b32"] = _message
    found["s_sendmsg_rtn_b64"] = _message
    found["s_barrier_signal"] = _signal
    return found
