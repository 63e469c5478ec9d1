"""LLVM IR to NIR: a function's blocks and instructions, one lane after another.

Vectors are split into their lanes, as Adreno's registers hold them; loads and stores join up to
four again. A phi and a variable are NIR registers, which Mesa turns into SSA values.

    pointer to global memory   a 64-bit base and a 32-bit offset in bytes, or a 64-bit address
    pointer to local memory    a 32-bit offset in bytes
    parameter                  bytes of the constant file, in order, at multiples of its size
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ugpu.compiler.codegen.adreno import calls
from ugpu.compiler.codegen.adreno.images import Images
from ugpu.compiler.codegen.adreno.llvm.structure import Walk
from ugpu.compiler.codegen.adreno.llvm.syntax import Instruction, Operand
from ugpu.compiler.codegen.adreno.llvm.text import Function
from ugpu.compiler.codegen.adreno.memory import Memory
from ugpu.compiler.codegen.adreno.nir import BREAK, CONTINUE, Builder, Tables
from ugpu.compiler.codegen.adreno.variables import Lanes, Variables
from ugpu.hcq.errors import CompileError
from ugpu.hcq.objects.ir3_object import Ir3Sampler, Ir3Texture

_INTEGER = {
    "add": "iadd", "sub": "isub", "mul": "imul", "udiv": "udiv", "sdiv": "idiv", "urem": "umod",
    "srem": "irem", "and": "iand", "or": "ior", "xor": "ixor", "shl": "ishl", "lshr": "ushr",
    "ashr": "ishr",
}  # fmt: skip
_FLOAT = {"fadd": "fadd", "fsub": "fsub", "fmul": "fmul", "fdiv": "fdiv"}
_CONVERT = {
    "zext": "u2u", "sext": "i2i", "trunc": "u2u", "fptrunc": "f2f", "fpext": "f2f",
    "fptoui": "f2u", "fptosi": "f2i", "uitofp": "u2f", "sitofp": "i2f", "ptrtoint": "u2u",
    "inttoptr": "u2u",
}  # fmt: skip
# Operation and whether its sources change places.
_ICMP = {
    "eq": ("ieq", False), "ne": ("ine", False), "slt": ("ilt", False), "sge": ("ige", False),
    "sgt": ("ilt", True), "sle": ("ige", True), "ult": ("ult", False), "uge": ("uge", False),
    "ugt": ("ult", True), "ule": ("uge", True),
}  # fmt: skip
_FCMP = {
    "oeq": ("feq", False), "une": ("fneu", False), "olt": ("flt", False), "oge": ("fge", False),
    "ogt": ("flt", True), "ole": ("fge", True),
}  # fmt: skip
# Unordered comparisons are the opposite ones, inverted.
_SCALARS = {"i": "integer", "f": "float"}  # kinds of types, and of parameters (hcq.work.program)
_OPPOSITE = {"uge": "olt", "ult": "oge", "ule": "ogt", "ugt": "ole"}


@dataclass(frozen=True)
class Shader:
    """A serialised shader. parameters: (name, offset in the constant file, bytes, is an address,
    kind); bytes of constants in all, and of local memory. lanes: whether it uses lanes of its wave.
    textures: sources of its texel fetches. images: those whose texels it stores or loads. samplers:
    of its textures."""

    blob: bytes
    parameters: tuple[tuple[str, int, int, bool, str], ...]
    constants: int
    local_size: int
    lanes: bool
    textures: tuple[Ir3Texture, ...]
    images: tuple[Ir3Texture, ...]
    samplers: tuple[Ir3Sampler, ...]


def shader_of(function: Function, tables: Tables, threads: int, wide_atomics: bool) -> Shader:
    """Return the shader of a kernel with groups of `threads`. wide_atomics: of 64 bits exist."""
    return Selection(function, tables, threads, wide_atomics).shader()


class Selection:
    """The translation of one function."""

    def __init__(
        self, function: Function, tables: Tables, threads: int, wide_atomics: bool
    ) -> None:
        self.function = function
        self.wide_atomics = wide_atomics
        self.threads = threads
        self.build = Builder(tables)
        self.values: dict[str, Lanes] = {}
        self.made: dict[str, Instruction] = {}  # the instruction that defines a name
        self.registers: dict[str, Lanes] = {}
        self.parameters: list[tuple[str, int, int, bool, str]] = []
        self.memory = Memory(self)
        self.images = Images(self, self.memory.texels)
        self.variables = Variables(self.build)
        self.lanes_used = False

    def shader(self) -> Shader:
        constants = self._entry()
        for block in self.function.blocks.values():
            for one in block:
                if one.result:
                    self.made[one.result] = one
        blocks = self.function.blocks
        Walk({name: block[-1].targets for name, block in blocks.items()}, self)
        size = self.function.local_size
        blob = self.build.serialise(self.threads, size, 64 if self.lanes_used else 0)
        textures = tuple(self.memory.texels.textures)
        images, samplers = tuple(self.images.images), tuple(self.images.samplers)
        parameters = tuple(self.parameters)
        return Shader(
            blob, parameters, constants, size, self.lanes_used, textures, images, samplers
        )

    def _entry(self) -> int:
        """Load parameters, declare registers; return the bytes of constants."""
        build, offset = self.build, 0
        zero = build.constant(32, 0)
        for name, kind in self.function.parameters:
            size = kind.bits // 8
            if kind.lanes > 1 or size not in (1, 2, 4, 8):
                raise CompileError("expected parameters of 8, 16, 32 or 64 bits", parameter=name)
            offset += -offset % size
            count = max(size // 4, 1)
            value = build.intrinsic("load_const_ir3", [zero], count, 32, base=offset // 4)
            if size == 8:
                value = build.alu("pack_64_2x32", 64, value)
            elif size < 4:
                if offset % 4:
                    value = build.alu("ushr", 32, value, build.constant(32, 8 * (offset % 4)))
                value = build.alu(f"u2u{kind.bits}", kind.bits, value)
            self.values[name] = (value,)
            if kind.kind == "p":
                here = len(self.parameters), self.function.sizes[name]
                self.memory.texels.bases[value] = here
            scalar = _SCALARS.get(kind.kind, "")
            self.parameters.append((name[1:], offset, size, kind.kind == "p", scalar))
            offset += size
        for block in self.function.blocks.values():
            for one in block:
                if one.operation == "phi" and one.type is not None:
                    self.registers[one.result] = self.variables.registers(one.type)
                elif one.operation == "alloca":
                    self.variables.declare(one)
        return offset

    # ---- control flow (structure.Sink) ---------------------------------------------------------

    def run(self, block: str) -> None:
        for one in self.function.blocks[block]:
            found = _OPERATIONS[one.operation](self, one)
            if found:
                self.values[one.result] = found

    def edge(self, source: str, target: str) -> None:
        for one in self.function.blocks[target]:
            if one.operation != "phi":
                break
            given = self.lanes(one.operands[one.targets.index(source)])
            self.variables.stored(given, self.registers[one.result])

    def begin_if(self, block: str) -> None:
        (test,) = self.lanes(self.function.blocks[block][-1].operands[0])
        self.build.begin_if(test)

    def begin_else(self) -> None:
        self.build.begin_else()

    def end_if(self) -> None:
        self.build.end_if()

    def begin_loop(self) -> None:
        self.build.begin_loop()

    def end_loop(self) -> None:
        self.build.end_loop()

    def leave(self) -> None:
        self.build.jump(BREAK)

    def again(self) -> None:
        self.build.jump(CONTINUE)

    # ---- values --------------------------------------------------------------------------------

    def lanes(self, operand: Operand) -> Lanes:
        """Return the definitions of an operand's lanes."""
        if operand.name:
            known = self.values.get(operand.name) or self.memory.address(operand.name)
            if known is None:
                raise CompileError("the value is used before it is defined", value=operand.name)
            return known
        bits = operand.type.bits
        return tuple(self.build.constant(bits, lane or 0) for lane in operand.lanes)

    def each(self, name: str, bits: int, one: Instruction, exact: bool = True) -> Lanes:
        """Emit an operation on each lane of all operands."""
        given = [self.lanes(operand) for operand in one.operands]
        alu = self.build.alu
        return tuple([alu(name, bits, *each, exact=exact) for each in zip(*given, strict=True)])

    def _float(self, one: Instruction) -> Lanes:
        assert one.type is not None
        return self.each(_FLOAT[one.operation], one.type.bits, one, exact=not one.loose)

    def _integer(self, one: Instruction) -> Lanes:
        name, kind = _INTEGER[one.operation], one.type
        assert kind is not None
        if name not in ("ishl", "ushr", "ishr"):
            if kind.bits == 1:  # arithmetic modulo two
                name = {"iadd": "ixor", "isub": "ixor", "imul": "iand"}.get(name, name)
            return self.each(name, kind.bits, one)
        left, right = (self.lanes(operand) for operand in one.operands)
        build = self.build
        amounts = [self.resized(value, kind.bits, 32) for value in right]
        return tuple(
            build.alu(name, kind.bits, value, amount)
            for value, amount in zip(left, amounts, strict=True)
        )

    def resized(self, value: int, old: int, new: int) -> int:
        """Return an unsigned integer of another width."""
        return value if old == new else self.build.alu(f"u2u{new}", new, value)

    def _convert(self, one: Instruction) -> Lanes:
        kind = one.type
        assert kind is not None
        old, bits = one.operands[0].type, kind.bits
        name = _CONVERT[one.operation]
        if old.bits == bits and name == "u2u":
            return self.lanes(one.operands[0])
        if old.bits == 1:  # a truth value
            if name == "i2i":
                given = self.lanes(one.operands[0])
                build = self.build
                return tuple(build.alu("ineg", bits, build.alu(f"b2i{bits}", bits, value))
                             for value in given)  # fmt: skip
            name = {"u2u": "b2i", "u2f": "b2f", "i2f": "b2f"}[name]
            found = self.each(f"{name}{bits}", bits, one)
            if one.operation == "sitofp":
                return tuple(self.build.alu("fneg", bits, value) for value in found)
            return found
        if bits == 1:
            build = self.build
            return tuple(
                build.alu("ine", 1, build.alu("iand", old.bits, value, build.constant(old.bits, 1)),
                          build.constant(old.bits, 0))
                for value in self.lanes(one.operands[0])
            )  # fmt: skip
        if one.operation == "fptrunc" and bits == 16:
            return self.each("f2f16_rtne", bits, one)
        return self.each(f"{name}{bits}", bits, one)

    def _compare(self, one: Instruction) -> Lanes:
        build, kind = self.build, one.kind
        left, right = (self.lanes(operand) for operand in one.operands)
        pairs = list(zip(left, right, strict=True))
        if one.operation == "icmp":
            if one.operands[0].type.bits == 1:
                return tuple(calls.compared_bits(build, kind, *pair) for pair in pairs)
            name, turned = _ICMP[kind]
            return tuple(build.alu(name, 1, *(pair[::-1] if turned else pair)) for pair in pairs)
        return tuple(self._float_compare(kind, *pair) for pair in pairs)

    def _float_compare(self, kind: str, left: int, right: int) -> int:
        build = self.build
        if kind in _FCMP:
            name, turned = _FCMP[kind]
            return build.alu(name, 1, *((right, left) if turned else (left, right)))
        if kind in _OPPOSITE:
            return build.alu("inot", 1, self._float_compare(_OPPOSITE[kind], left, right))
        if kind in ("uno", "ord"):
            either = build.alu(
                "ior", 1, build.alu("fneu", 1, left, left), build.alu("fneu", 1, right, right)
            )
            return either if kind == "uno" else build.alu("inot", 1, either)
        different = build.alu(
            "ior", 1, build.alu("flt", 1, left, right), build.alu("flt", 1, right, left)
        )
        return different if kind == "one" else build.alu("inot", 1, different)  # ueq

    def _select(self, one: Instruction) -> Lanes:
        test, yes, no = (self.lanes(operand) for operand in one.operands)
        tests = test * (len(yes) // len(test))
        assert one.type is not None
        return tuple(
            self.build.select(one.type.bits, *sources)
            for sources in zip(tests, yes, no, strict=True)
        )

    def _fneg(self, one: Instruction) -> Lanes:
        assert one.type is not None
        return self.each("fneg", one.type.bits, one)

    def _freeze(self, one: Instruction) -> Lanes:
        return self.lanes(one.operands[0])

    def _bitcast(self, one: Instruction) -> Lanes:
        assert one.type is not None
        old, new = one.operands[0].type, one.type
        if old.bits == new.bits:
            return self.lanes(one.operands[0])
        return calls.reshaped(self.build, self.lanes(one.operands[0]), old.bits, new.bits)

    def _extractelement(self, one: Instruction) -> Lanes:
        vector, place = one.operands
        return (self.lanes(vector)[self._constant(place, one)],)

    def _insertelement(self, one: Instruction) -> Lanes:
        vector, value, place = one.operands
        lanes = list(self.lanes(vector))
        lanes[self._constant(place, one)] = self.lanes(value)[0]
        return tuple(lanes)

    def _constant(self, operand: Operand, one: Instruction) -> int:
        if operand.name or operand.lanes[0] is None:
            raise CompileError("expected a constant lane of a vector", code=one.line.strip())
        return operand.lanes[0]

    def _shufflevector(self, one: Instruction) -> Lanes:
        first, second, mask = one.operands
        both = self.lanes(first) + self.lanes(second)
        return tuple(both[lane or 0] for lane in mask.lanes)

    # ---- memory and calls ----------------------------------------------------------------------

    def _getelementptr(self, one: Instruction) -> Lanes:
        return self.memory.moved(one)

    def _load(self, one: Instruction) -> Lanes:
        if one.operands[0].type.kind == "v":
            return self.variables.load(one)
        return self.memory.load(one)

    def _store(self, one: Instruction) -> Lanes:
        if one.operands[1].type.kind == "v":
            self.variables.store(one, self.lanes(one.operands[0]))
        else:
            self.memory.store(one)
        return ()

    def _atomicrmw(self, one: Instruction) -> Lanes:
        return self.memory.atomic(one)

    def _cmpxchg(self, one: Instruction) -> Lanes:
        return self.memory.exchange(one)

    def _extractvalue(self, one: Instruction) -> Lanes:
        return (self.lanes(one.operands[0])[int(one.kind)],)

    def _call(self, one: Instruction) -> Lanes:
        if one.kind == "adreno.barrier":
            self.memory.fence(True)
            return ()
        return calls.call(self, self.images, one)

    # ---- instructions without a value ----------------------------------------------------------

    def _phi(self, one: Instruction) -> Lanes:
        assert one.type is not None
        return self.variables.loaded(self.registers[one.result], one.type.bits)

    def _fence(self, one: Instruction) -> Lanes:
        self.memory.fence(False)
        return ()

    def _elsewhere(self, one: Instruction) -> Lanes:
        """Ignore terminators and variables, which the walk and the entry handle."""
        return ()


_OPERATIONS: dict[str, Callable[[Selection, Instruction], Lanes]] = {
    **dict.fromkeys(_FLOAT, Selection._float),
    **dict.fromkeys(_INTEGER, Selection._integer),
    **dict.fromkeys(_CONVERT, Selection._convert),
    **dict.fromkeys(("icmp", "fcmp"), Selection._compare),
    **dict.fromkeys(("br", "ret", "unreachable", "alloca"), Selection._elsewhere),
    **{
        name.removeprefix("_"): getattr(Selection, name)
        for name in (
            "_phi", "_fence", "_select", "_fneg", "_freeze", "_bitcast", "_extractelement",
            "_insertelement", "_shufflevector", "_getelementptr", "_load", "_store", "_atomicrmw",
            "_cmpxchg", "_extractvalue", "_call",
        )
    },
}  # fmt: skip
