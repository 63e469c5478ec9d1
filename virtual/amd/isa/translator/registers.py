"""Registers of one wave in the translated function: reading operands, writing results under EXEC.

Every register is a stack slot (alloca) that LLVM's SROA pass promotes: vector registers are vectors
of i32, one per lane, scalar registers are i32 (VCC 106, M0 125, EXEC 126), and SCC is i1. Vector
registers that native functions use in place are pinned: they are always in the wave state, in a
register file for each pass of 32 lanes. In a kernel's first version all registers are in the wave
state. Masks of 64 lanes are two scalar registers.
Source of operand meanings: RDNA3 ISA document, "Scalar source operands" and "VOP3 modifiers".
Longer than 500 lines: reading and writing operands of every kind and modifier is one interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand, Type
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.runtime.launch import (
    APART,
    DOUBLES,
    IEEE,
    OMOD_F32,
    OMOD_OTHERS,
    SATURATES,
    SINGLES,
    output_modifiers,
)
from ugpu.virtual.amd.isa.translator import saturation
from ugpu.virtual.amd.isa.translator.block_text import SCC, BlockText
from ugpu.virtual.shader.text import ELEMENT_BITS, PASS, constant, integer_of, lanes

_BASE = {
    Kind.SGPR: 0, Kind.VCC: layout.SGPR_VCC, Kind.EXEC: layout.SGPR_EXEC, Kind.M0: layout.SGPR_M0,
    Kind.TTMP: layout.SGPR_TTMP,
}  # fmt: skip
_FLOATS = ("half", "bfloat", "float", "double")
_ONE = {"half": 0x3C00, "bfloat": 0x3F80, "float": 0x3F800000, "double": 0x3FF0000000000000}
_OMOD = {
    "half": (0, 0x4000, 0x4400, 0x3800),
    "float": (0, 0x40000000, 0x40800000, 0x3F000000),
    "double": (0, 0x4000000000000000, 0x4010000000000000, 0x3FE0000000000000),
}
_KINDS = {Type.F16: "half", Type.F32: "float", Type.F64: "double"}
_NORMAL = {"half": 0x400, "float": 0x800000, "double": 1 << 52}  # the least that is not denormal
# Results that OMOD does not scale, although they are floats.
_UNSCALED = {"v_dot2_f16_f16", "v_cvt_f32_fp8", "v_cvt_f32_bf8"}


class Unsupported(Exception):
    """The instruction cannot be translated: a wave that reaches it halts as at an illegal one."""


class Registers(BlockText):
    """Access to registers and operands; tracks which registers the function uses.

    full: EXEC is known to be all ones here, so that writes do not need a mask.
    vector_limit: number of vector registers that the dispatch allocated; using a higher one is
    illegal. pinned: vector registers that stay in the wave state. modes: see Launch.modes. ieee:
    MODE.IEEE. saturates: MODE.FP16_OVFL may be set (translator.saturation). apart: f64 has
    denormals of its own (translator.modes). omod, and singles and
    doubles, the denormal fields: an instruction that changes MODE changes them until the end of the
    block.
    """

    def __init__(
        self,
        vector_limit: int,
        pinned: frozenset[int] = frozenset(),
        modes: int = 0,
        lanes: int = PASS,
    ) -> None:
        super().__init__(lanes)
        self.wide = lanes > PASS  # masks are pairs of scalar registers
        self._modes = modes
        self.ieee, self.apart = bool(modes & IEEE), bool(modes & APART)
        self.saturates = bool(modes & SATURATES)
        self._start_modes()
        self.vector_limit = vector_limit
        self.pinned = pinned
        self.used_scalars: set[int] = set()
        self.used_vectors: set[int] = set()
        self.full = False
        self._exec_mask: str | None = None
        self.extra_mask: str | None = None  # DPP's mask for the current instruction
        self.override: tuple[Operand, str] | None = None  # its permuted first source
        self.pending: list[tuple[int, str, str]] | None = None  # writes held back by a VOPD
        self.uses_scratch_vector = False
        self.switches_mode = False  # the kernel changes the denormal mode
        self.races = False  # accesses of local memory are noted
        self.gfx12 = False  # the instruction set
        self.kept = False  # vector registers are in the wave state and start with its values
        self.needed: Mapping[int, int] = {}  # vector registers that are read after blocks' ends
        self.pc = 0  # byte offset of the current instruction

    def start_block(self, full: bool) -> None:
        """Reset the knowledge about EXEC and the mode for a new block."""
        self.full = full
        self._exec_mask = None
        self._start_modes()

    def _start_modes(self) -> None:
        self.omod = self._modes & (OMOD_F32 | OMOD_OTHERS)
        kept = ~self._modes
        self.singles, self.doubles = kept >> SINGLES & 3, kept >> DOUBLES & 3
        self.of_doubles: int | None = None  # the host's denormals, while not those of f32

    def forget_mask(self) -> None:
        """Discard the cached EXEC mask, so that the next use reads EXEC again."""
        self._exec_mask = None

    def note_access(self) -> None:
        """Store the current instruction's offset before a runtime call that may fault."""
        at = self.once(f"getelementptr i8, ptr %context, i64 {layout.ACCESS_PC}")
        self.do(f"store i32 {self.pc}, ptr {at}")

    def limit_omod(self, denormals: int) -> None:
        """From here on ignore OMOD for types whose denormal results are now kept.

        If they were kept at launch, OMOD stays ignored, because Launch.modes does not tell whether
        IEEE mode is off. Compilers do not emit OMOD after such a switch.
        """
        self.omod = self._modes & output_modifiers(denormals, ieee=False)

    # -- scalar registers -----------------------------------------------------------------------

    def scalar_register(self, number: int) -> str:
        """Read one scalar register by its encoding (0..127)."""
        if number == layout.SGPR_NULL:
            return "0"
        self.used_scalars.add(number)
        known = self.known_scalar(number)
        if known:
            return known
        value = self.value(f"load i32, ptr {self.scalar_at(number)}")
        if self.gfx12 and number == layout.SGPR_GROUP_YZ:
            self.used_scalars.add(layout.SGPR_GROUP_Z)
            z = self.value(f"load i32, ptr {self.scalar_at(layout.SGPR_GROUP_Z)}")
            return self.value(f"or i32 {value}, {self.value(f'shl i32 {z}, 16')}")
        self.know_scalar(number, value)
        return value

    def set_scalar_register(self, number: int, value: str) -> None:
        """Write one scalar register by its encoding."""
        if number == layout.SGPR_NULL:
            return
        if number > 127:
            raise Unsupported(f"scalar register {number}")
        self.used_scalars.add(number)
        at = self.scalar_at(number)
        self.store(f"s{number}", [f"store i32 {value}, ptr {at}"])
        if not (self.gfx12 and number == layout.SGPR_GROUP_YZ):
            self.know_scalar(number, value)
        if number in (layout.SGPR_EXEC, layout.SGPR_EXEC + 1):
            self._exec_mask = None
            self.full = False

    def pair(self, low: str, high: str) -> str:
        """Join two i32 into an i64."""
        wide_low = self.once(f"zext i32 {low} to i64")
        wide_high = self.once(f"zext i32 {high} to i64")
        shifted = self.once(f"shl i64 {wide_high}, 32")
        return self.once(f"or disjoint i64 {shifted}, {wide_low}")

    def halves(self, value: str) -> tuple[str, str]:
        """Split an i64 into its low and high i32."""
        low = self.value(f"trunc i64 {value} to i32")
        shifted = self.value(f"lshr i64 {value}, 32")
        return low, self.value(f"trunc i64 {shifted} to i32")

    def scalar(self, operand: Operand) -> str:
        """Read 32 bits of a scalar operand as i32."""
        kind = operand.kind
        if operand.is_constant:
            return str(operand.value & 0xFFFFFFFF)
        if kind in _BASE:
            value = self.scalar_register(_BASE[kind] + operand.index)
            if operand.high:
                return self.value(f"lshr i32 {value}, 16")
            return value
        if kind is Kind.NULL:
            return "0"
        if kind is Kind.SCC:
            return self.value(f"zext i1 {self.scc()} to i32")
        if kind in (Kind.VCCZ, Kind.EXECZ):
            mask = self.mask_register(layout.SGPR_VCC) if kind is Kind.VCCZ else self.exec()
            zero = self.value(f"icmp eq {self.bits} {mask}, 0")
            return self.value(f"zext i1 {zero} to i32")
        if kind is Kind.APERTURE:
            return self.halves(self.aperture(operand.index))[0]
        raise Unsupported(f"scalar source {kind.value}")

    def scalar64(self, operand: Operand) -> str:
        """Read 64 bits of a scalar operand as i64."""
        kind = operand.kind
        if operand.is_constant:
            return str(operand.value & 0xFFFFFFFFFFFFFFFF)
        if kind in _BASE:
            base = _BASE[kind] + operand.index
            return self.pair(self.scalar_register(base), self.scalar_register(base + 1))
        if kind is Kind.APERTURE:
            return self.aperture(operand.index)
        if kind is Kind.NULL:
            return "0"
        return self.value(f"zext i32 {self.scalar(operand)} to i64")

    def aperture(self, index: int) -> str:
        """Return an aperture's base or limit (last byte of its 4 GB) as i64."""
        field = layout.SHARED_HIGH if index < 2 else layout.PRIVATE_HIGH
        base = self.value(f"shl i64 {self.context(field, 'i64')}, 32")
        return self.value(f"or i64 {base}, 4294967295") if index & 1 else base

    def set_scalar(self, operand: Operand, value: str, offset: int = 0) -> None:
        """Write 32 bits to register `offset` of a scalar destination."""
        if operand.kind is Kind.NULL:
            return
        if operand.kind not in _BASE:
            raise Unsupported(f"scalar destination {operand.kind.value}")
        self.set_scalar_register(_BASE[operand.kind] + operand.index + offset, value)

    def set_scalar64(self, operand: Operand, value: str) -> None:
        """Write 64 bits to a scalar destination."""
        low, high = self.halves(value)
        self.set_scalar(operand, low)
        self.set_scalar(operand, high, 1)

    def scc(self) -> str:
        """Read SCC as i1."""
        known = self.known_scalar(SCC)
        if known:
            return known
        value = self.value(f"load i1, ptr {self.scc_at()}")
        self.know_scalar(SCC, value)
        return value

    def set_scc(self, value: str) -> None:
        """Write SCC (i1)."""
        at = self.scc_at()
        self.store(f"s{SCC}", [f"store i1 {value}, ptr {at}"])
        self.know_scalar(SCC, value)

    def context(self, field: int, kind: str) -> str:
        """Load a field of the worker context."""
        address = self.once(f"getelementptr i8, ptr %context, i64 {field}")
        return self.value(f"load {kind}, ptr {address}")

    # -- masks ----------------------------------------------------------------------------------

    def mask_register(self, number: int) -> str:
        """Read a lane mask as one number. number: its first scalar register."""
        low = self.scalar_register(number)
        return self.pair(low, self.scalar_register(number + 1)) if self.wide else low

    def exec(self) -> str:
        """Read EXEC as one number."""
        return "-1" if self.full else self.mask_register(layout.SGPR_EXEC)

    def exec_low(self) -> str:
        """Read the first 32 lanes of EXEC as i32."""
        return "-1" if self.full else self.scalar_register(layout.SGPR_EXEC)

    def exec_mask(self) -> str | None:
        """Return EXEC as a condition per lane, or None if it is known to be all ones."""
        if self.full:
            return None
        if self._exec_mask is None:
            self._exec_mask = self.as_mask(self.mask_register(layout.SGPR_EXEC))
        return self._exec_mask

    def mask_source(self, operand: Operand) -> str:
        """Read a lane mask as a condition per lane."""
        return self.as_mask(self.scalar64(operand) if self.wide else self.scalar(operand))

    def set_mask(self, operand: Operand, mask: str) -> None:
        """Write a lane mask, given as a condition per lane; disabled lanes get zero."""
        enabled = self.write_mask()
        if enabled is not None:
            mask = self.binary("and", "i1", mask, enabled)
        if self.wide:
            self.set_scalar64(operand, self.as_bits(mask))
        else:
            self.set_scalar(operand, self.as_bits(mask))

    def write_mask(self) -> str | None:
        """Return the lanes to write as a condition per lane, or None for all."""
        mask = self.exec_mask()
        if self.extra_mask is None:
            return mask
        if mask is None:
            return self.extra_mask
        return self.binary("and", "i1", mask, self.extra_mask)

    # -- vector registers -----------------------------------------------------------------------

    def _use(self, number: int) -> None:
        if number >= self.vector_limit:
            raise Unsupported(f"v{number} is beyond the {self.vector_limit} allocated")
        self.used_vectors.add(number)

    def vector_register(self, number: int, element: str = "i32") -> str:
        """Read a vector register. element: of 32 bits."""
        self._use(number)
        known = self.known_vector(number)
        if known is not None:
            return self.convert("bitcast", known[0], element, known[1])
        if number not in self.pinned:
            value = self.value(f"load {self.vector_of(element)}, ptr %v{number}, align 64")
        else:
            part = f"<{PASS} x {element}>"
            value = self.whole(element, [
                self.value(f"load {part}, ptr {self.pinned_at(number, n)}, align 64")
                for n in self.passes
            ])  # fmt: skip
        self.know_vector(number, element, value)
        return value

    def store_vector(self, number: int, value: str, element: str = "i32") -> None:
        """Write a vector register in all lanes, regardless of EXEC."""
        self._use(number)
        self.know_vector(number, element, value)
        if number not in self.pinned:
            places = [(self.vector_of(element), value, f"%v{number}")]
        else:
            places = [
                (f"<{PASS} x {element}>", part, self.pinned_at(number, n))
                for n, part in enumerate(self.cut(element, value))
            ]
        self.store(f"v{number}", [
            f"store {kind} {part}, ptr {at}, align 64" for kind, part, at in places
        ])  # fmt: skip

    def pinned_at(self, number: int, turn: int) -> str:
        """Return the address of one pass of a pinned register.

        It is computed once a block, which costs nothing; computed once at the function's start, it
        would be another value to spill.
        """
        offset = layout.register_at(number, turn, self.vector_limit)
        return self.once(f"getelementptr i8, ptr %wave, i64 {offset}")

    def set_vector_register(self, number: int, value: str, element: str = "i32") -> None:
        """Write a vector register in the enabled lanes. element: of 32 bits."""
        self._use(number)
        if self.pending is not None:
            self.pending.append((number, value, element))
            return
        mask = self.write_mask()
        if mask is not None:
            value = self.select(mask, element, value, self.vector_register(number, element))
        self.store_vector(number, value, element)

    def in_place(self, operand: Operand, *, written: bool = True) -> list[str] | None:
        """Return the address of an operand's consecutive registers for each pass.

        None if they are not all pinned. A write to such an address writes all lanes. written:
        whether the instruction writes there.
        """
        numbers = range(operand.index, operand.index + operand.width)
        if operand.kind is not Kind.VGPR or not self.pinned.issuperset(numbers):
            return None
        for number in numbers:
            self._use(number)
        self.used_in_memory(numbers, written)
        return [self.pinned_at(operand.index, n) for n in self.passes]

    def scratch_vector(self) -> str:
        """Return the address of scratch memory for one vector, valid within one instruction."""
        self.uses_scratch_vector = True
        return "%lanes.slot"

    def join(self, low: str, high: str) -> str:
        """Join the low and high 32 bits of each lane into an i64."""
        count, kind = self.lanes, self.vector
        order = lanes([number for lane in range(count) for number in (lane, lane + count)])
        mixed = self.value(
            f"shufflevector {kind} {low}, {kind} {high}, <{2 * count} x i32> {order}"
        )
        return self.value(f"bitcast <{2 * count} x i32> {mixed} to {self.vector_of('i64')}")

    def split(self, value: str) -> tuple[str, str]:
        """Split the i64 of each lane into its low and high 32 bits."""
        low = self.convert("trunc", "i64", "i32", value)
        shifted = self.binary("lshr", "i64", value, constant("i64", 32))
        return low, self.convert("trunc", "i64", "i32", shifted)

    def set_vector64(self, number: int, value: str) -> None:
        """Write the i64 of each lane to two registers."""
        low, high = self.split(value)
        self.set_vector_register(number, low)
        self.set_vector_register(number + 1, high)

    def source(self, operand: Operand, element: str = "i32") -> str:
        """Read an operand in every lane as `element`, with float modifiers applied."""
        integer = integer_of(element)
        bits = ELEMENT_BITS[element]
        if operand.is_constant:
            value = constant(element, operand.value)
        elif operand.kind is Kind.VGPR and element == "float" and self.override is None:
            value = self.vector_register(operand.index, element)
        elif operand.kind is Kind.VGPR:
            value = self._vector_bits(operand, bits)
            value = self.convert("bitcast", integer, element, value)
        else:
            if bits == 64:
                scalar = self.scalar64(operand)
            else:
                scalar = self.scalar(operand)
                if bits == 16:
                    scalar = self.value(f"trunc i32 {scalar} to i16")
            value = self.convert("bitcast", integer, element, self.broadcast(integer, scalar))
        return self._modified(operand, element, value)

    def _vector_bits(self, operand: Operand, bits: int) -> str:
        if self.override is not None and self.override[0] is operand:
            low = self.override[1]
        else:
            low = self.vector_register(operand.index)
        if bits == 64:
            return self.join(low, self.vector_register(operand.index + 1))
        if operand.high:
            low = self.binary("lshr", "i32", low, constant("i32", 16))
        if bits == 16:
            return self.convert("trunc", "i32", "i16", low)
        return low

    def _modified(self, operand: Operand, element: str, value: str) -> str:
        if element in _FLOATS:
            if operand.absolute:
                value = self.intrinsic("fabs", element, value)
            if operand.neg:
                value = self.unary("fneg", element, value)
        return value

    def set_result(self, instruction: Instruction, element: str, value: str) -> None:
        """Write a vector result, with float output modifiers, in the enabled lanes."""
        if instruction.dst is None:
            raise Unsupported("no destination")
        if element in _FLOATS:
            limits = element == "half" and self.saturates
            sources = self._float_sources(instruction) if limits else []
            value = self.saturated(value, sources) if limits else value
            value = self.output_modified(instruction, element, value)
            if limits and instruction.omod:
                value = self.saturated(value, sources)
        self.set_vector(instruction.dst, element, value)

    def _float_sources(self, instruction: Instruction) -> list[tuple[str, str]]:
        """Return kind and value of each source that is a float."""
        operands = list(instruction.srcs)
        if "fmac" in instruction.name and instruction.dst is not None:
            operands.append(instruction.dst)
        kinds = [(_KINDS.get(operand.type), operand) for operand in operands]
        return [(kind, self.source(operand, kind)) for kind, operand in kinds if kind is not None]

    def saturated(self, value: str, sources: Sequence[tuple[str, str]]) -> str:
        """Limit halves where MODE.FP16_OVFL is set; see `saturation.saturated`."""
        if not self.saturates:
            return value
        self.used_scalars.add(layout.SGPR_NULL)
        return saturation.saturated(self, value, sources)

    def output_modified(self, instruction: Instruction, element: str, value: str) -> str:
        """Apply OMOD and CLAMP (to 0..1, NaN becomes 0) to a result. Gfx11 ignores OMOD in some
        modes (launch.output_modifiers), gfx12 in none (RDNA4 ISA document, 7.2.3.1)."""
        applies = self.gfx12 or self.omod & (OMOD_F32 if element == "float" else OMOD_OTHERS)
        if instruction.omod and applies and instruction.name not in _UNSCALED:
            value = self._scaled(element, value, instruction.omod)
        if instruction.clamp:
            value = self.clamped(element, value)
        return value

    def _scaled(self, element: str, value: str, omod: int) -> str:
        """Scale a result; denormals and -0 become +0. UNSURE: what becomes of a denormal before it
        is scaled; the document states nothing of the order. Here it counts as any number."""
        integer, ones = integer_of(element), (1 << ELEMENT_BITS[element] - 1) - 1
        product = self.binary("fmul", element, value, constant(element, _OMOD[element][omod]))
        bits = self.convert("bitcast", element, integer, product)
        size = self.binary("and", integer, bits, constant(integer, ones))
        tiny = self.compare("ult", integer, size, constant(integer, _NORMAL[element]))
        zero = constant(integer, 0)
        return self.convert("bitcast", integer, element, self.select(tiny, integer, zero, bits))

    def clamped(self, element: str, value: str) -> str:
        """Clamp floats to 0..1; NaN becomes 0."""
        zero, one = constant(element, 0), constant(element, _ONE[element])
        value = self.select(self.compare("ogt", element, value, zero), element, value, zero)
        return self.select(self.compare("olt", element, value, one), element, value, one)

    def set_vector(self, operand: Operand, element: str, value: str) -> None:
        """Write `value` to a vector destination; 16-bit values keep the register's other half.

        A scalar destination, as of gfx12's v_s_exp_f32, gets lane 0 of what all lanes computed.
        """
        if element == "float" and operand.kind is Kind.VGPR:
            self.set_vector_register(operand.index, value, element)
            return
        integer = integer_of(element)
        value = self.convert("bitcast", element, integer, value)
        bits = ELEMENT_BITS[element]
        if operand.kind is not Kind.VGPR:
            if bits > 32:
                raise Unsupported(f"vector destination {operand.kind.value}")
            self.set_scalar(
                operand, self.lane("i32", self.convert("zext", integer, "i32", value), 0)
            )
            return
        if bits == 64:
            self.set_vector64(operand.index, value)
            return
        if bits == 16:
            value = self.merged(operand, self.convert("zext", "i16", "i32", value))
        self.set_vector_register(operand.index, value)

    def merged(self, operand: Operand, value: str) -> str:
        """Insert the low 16 bits of `value` (upper bits zero) into the operand's half."""
        old = self.vector_register(operand.index)
        if operand.high:
            value = self.binary("shl", "i32", value, constant("i32", 16))
        kept = self.binary("and", "i32", old, constant("i32", 0xFFFF if operand.high else ~0xFFFF))
        return self.binary("or", "i32", kept, value)
