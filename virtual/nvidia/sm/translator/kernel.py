"""The state of emitting one kernel: registers, guards, masks and operands."""

from __future__ import annotations

import struct
from collections.abc import Container

from ugpu.hcq.errors import NotSupported
from ugpu.virtual.nvidia.sm.ptx.lexer import bad
from ugpu.virtual.nvidia.sm.ptx.module import (
    SIZES,
    Address,
    Instruction,
    Integer,
    Inverted,
    Name,
    Operand,
    Real,
    Register,
    Sink,
    Special,
)
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout
from ugpu.virtual.nvidia.sm.translator.access.variables import Places
from ugpu.virtual.nvidia.sm.translator.control.analysis import Facts
from ugpu.virtual.nvidia.sm.translator.matrix.held import Held
from ugpu.virtual.nvidia.sm.translator.value import Lanes, Value, number
from ugpu.virtual.shader.text import integer_of

_ELEMENTS = {
    "pred": "i1", "f32": "float", "f64": "double",
}  # fmt: skip


def element_of(kind: str) -> str:
    """Return the LLVM type of one lane of a PTX type."""
    if kind in _ELEMENTS:
        return _ELEMENTS[kind]
    return f"i{8 * SIZES[kind]}"


def stored_element(kind: str) -> str:
    """Return the LLVM type in which a register of a PTX type is stored."""
    return integer_of(element_of(kind))


class Kernel(Lanes):
    """One kernel while it is emitted."""

    def __init__(self, facts: Facts, places: Places, full: bool, rows: bool) -> None:
        super().__init__()
        self.facts = facts
        self.places = places
        self.full = full
        self.rows = rows
        self.slots: dict[str, tuple[str, str]] = {}  # register -> (name of its slot, LLVM type)
        self.known: dict[str, Value] = {}  # by register: the value last read or written in a block
        self.stored: Container[str] = facts.stored  # registers with a value outside of their block
        self.constants: dict[str, Value] = {}  # by register: see Facts.fixed
        self._begun = 0  # the first line of this block of LLVM's
        self._places: dict[tuple[str, int], str] = {}  # addresses computed there
        self.block = 0
        self.divergent = False
        self.running = ""  # where `enter` has read them, the lanes as i32, and each as i1
        self.running_lanes: Value | None = None
        self.guard: Value | None = None
        self.now: Instruction | None = None
        self.helpers: dict[str, str] = {}  # functions of this module, by name
        self.outlines = False  # memory accesses are calls, to keep the code small
        self.ending = ""  # of a function that kernels call: what returns after a fault
        self.unsettled = False  # a called function may have found a fault (see `settle_later`)
        self.held = Held()  # registers stored in the warp's state
        self.touched: set[int] = set()  # tables of them that this block has already checked
        self.stepped = False  # all registers are stored in the warp's state, for a debugger
        self.proxies = False  # writes to shared memory are recorded for the asynchronous proxy

    # -- errors ----------------------------------------------------------------------------------

    def unsupported(self, what: str = "") -> NotSupported:
        """Return the error for an instruction that these multiprocessors do not support."""
        assert self.now is not None
        text = f": {what}" if what else ""
        return NotSupported(
            f"PTX line {self.now.line}: the virtual multiprocessors do not execute"
            f" {self.now.opcode}{text}", line=self.now.line, instruction=self.now.opcode,
        )  # fmt: skip

    def bad(self, what: str) -> Exception:
        """Return the error for an invalid PTX instruction."""
        assert self.now is not None
        return bad(self.now.line, f"{self.now.opcode}: {what}")

    # -- registers -------------------------------------------------------------------------------

    def is_uniform(self, register: Register) -> bool:
        """Return whether a register is stored as one value for all lanes."""
        return register.name not in self.facts.varying

    def slot(self, register: Register) -> tuple[str, str]:
        """Return the slot of a register and its LLVM type."""
        if register.name in self.held.places:
            for table in self.held.of[register.name]:
                self.touch_table(table)
            return f"%held{self.held.places[register.name]}", "<32 x i32>"
        known = self.slots.get(register.name)
        if known is None:
            kind = self.kind(stored_element(register.type), self.is_uniform(register))
            known = f"%reg{len(self.slots)}", kind
            self.slots[register.name] = known
        return known

    def begin(self, label: str) -> None:
        """Start the block `label`."""
        super().begin(label)
        self.touched.clear()
        self.known.clear()
        self._begun = len(self.lines)
        self._places.clear()

    def at(self, base: str, offset: int) -> str:
        """Return the address `offset` bytes after "%context", "%warp" or "%ids", computed once a
        block, at its start."""
        known = self._places.get((base, offset))
        if known is None:
            self._names += 1
            known = self._places[base, offset] = f"%{self._prefix}{self._names}"
            self.lines.insert(
                self._begun, f"  {known} = getelementptr i8, ptr {base}, i64 {offset}"
            )
        return known

    def touch_table(self, table: int) -> None:
        """Emit the check before an access to registers of products: these must have completed."""
        if table in self.touched:
            return
        self.touched.add(table)
        at = self.held.notes + async_layout.TABLE_SIZE * table
        last, dirty, finished = (
            self.at("%warp", offset) for offset in (at, at + 8, self.held.finished)
        )
        newest = self.value(f"load i64, ptr {last}")
        done = self.value(f"load i64, ptr {finished}")
        early = self.value(f"icmp ugt i64 {newest}, {done}")
        lanes = self.value(f"select i1 {early}, i32 {self.mask()}, i32 0")
        self.fault_if(lanes, layout.IN_FLIGHT)
        assert self.now is not None
        self.do(f"store i64 {2 + self.now.index}, ptr {dirty}")

    def temporary(self, kind: str, name: str) -> str:
        """Return a stack slot of an LLVM type, shared by all users of the same name."""
        mark = f"{kind} {name}"
        if mark not in self.slots:
            self.slots[mark] = f"%reg{len(self.slots)}", kind
        return self.slots[mark][0]

    def written_whole(self, operand: Operand, kind: str) -> str | None:
        """Return the slot of a result that is written in all lanes, else None."""
        if not isinstance(operand, Register) or self.is_uniform(operand) or self.guard is not None:
            return None
        if self.divergent and operand.name in self.facts.kept[self.block]:
            return None
        slot, known = self.slot(operand)
        self.known.pop(operand.name, None)
        return slot if known == kind else None

    def in_memory(self, operand: Operand, kind: str, vector: str, number_: int) -> str:
        """Return a slot that holds an operand, one value a lane; the register's own if possible."""
        if isinstance(operand, Register) and not self.is_uniform(operand):
            slot, known = self.slot(operand)
            kept = not self.is_passing(operand) or operand.name not in self.known
            if known == vector and kept:
                return slot
        slot = self.temporary(vector, f"s{number_}")
        self.do(f"store {vector} {self.vec(self.source(operand, kind))}, ptr {slot}")
        return slot

    def register(self, register: Register) -> Value:
        """Read a register as an integer (or i1)."""
        return self.bits_of(self._read(register, stored_element(register.type)))

    def _read(self, register: Register, element: str) -> Value:
        """Read a register as the type of its known value, else as a type of the same width."""
        known = self.known.get(register.name) or self.constants.get(register.name)
        if known is not None:
            return known
        name, _ = self.slot(register)
        uniform = self.is_uniform(register)
        text = self.value(f"load {self.kind(element, uniform)}, ptr {name}")
        value = Value(text, element, uniform)
        self._know(register, value)
        return value

    def _know(self, register: Register, value: Value) -> None:
        """Note the value of a register for the rest of the block, except where something else than
        an instruction of the block may write it. Only for code that every path of it runs."""
        if not self.stepped and register.name not in self.held.places:
            self.known[register.name] = value

    def write(self, operand: Operand, value: Value) -> None:
        """Write a result in the active lanes where the guard is true."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise self.bad("the result must be a register")
        element = stored_element(operand.type)
        if value.width != self._width(element):
            value = self._widened(operand, value, element)
        passing, uniform = self.is_passing(operand), self.is_uniform(operand)
        if uniform:
            value = self.scalar(value)
        mask = self.guard
        if not uniform and self.divergent and operand.name in self.facts.kept[self.block]:
            active = self.running_lanes or self.from_bits(self.active())
            mask = active if mask is None else self.op("and", active, mask)
        elif value.bits is not None and self._is_fixed(operand):
            self.constants[operand.name] = value
            return
        if mask is not None:
            mask = self.scalar(mask) if uniform else mask
            old = self._read(operand, value.element)
            if old.element != value.element:
                value, old = self.bits_of(value), self.bits_of(old)
            value = self.choose(mask, value, old)
        value = value if uniform else self.varying(value)
        if not passing:
            name, _ = self.slot(operand)
            self.do(f"store {self.type_of(value)} {value.text}, ptr {name}")
        self._know(operand, value)

    def _widened(self, operand: Register, value: Value, element: str) -> Value:
        """Return a result that is narrower than its register as the type that is stored."""
        value = self.bits_of(value)
        if value.width > self._width(element) or "i1" in (value.element, element):
            raise self.bad(f"a result of {value.width} bits in {operand.name}")
        return self.cast("zext", value, element)

    def is_passing(self, register: Register) -> bool:
        """Return whether a register is not read outside of the block that writes it."""
        return register.name not in self.stored and not self.stepped

    def _is_fixed(self, register: Register) -> bool:
        """Return whether all reads of a register follow, and find what is written now."""
        name = register.name
        return name in self.facts.fixed and name not in self.slots and not self.stepped

    def _width(self, element: str) -> int:
        return int(element[1:])

    # -- masks -----------------------------------------------------------------------------------

    def active(self) -> str:
        """Return the running lanes as i32."""
        if self.full and not self.divergent:
            return "-1"
        return self.running or self.value("load i32, ptr %active")

    def enter(self) -> None:
        """Read the running lanes, which stay the same up to the block's end."""
        active = self.active()
        if active != "-1":
            self.running, self.running_lanes = active, self.from_bits(active)

    def mask(self) -> str:
        """Return the lanes that execute the instruction, as i32."""
        active = self.active()
        if self.guard is None:
            return active
        bits = self.mask_bits(self.guard)
        return bits if active == "-1" else self.value(f"and i32 {active}, {bits}")

    def mask_vector(self, bits: str) -> str:
        """Convert lanes given as i32 to a vector of i1."""
        return self.vec(self.from_bits(bits))

    # -- operands --------------------------------------------------------------------------------

    def source(self, operand: Operand, kind: str) -> Value:
        """Read an operand as a PTX type."""
        element = element_of(kind)
        if isinstance(operand, Register):
            same = self._width(integer_of(element)) == self._width(stored_element(operand.type))
            value = self._read(operand, element if same else stored_element(operand.type))
            if value.element == element:
                return value
            value = self.bits_of(value)
            if (operand.type == "pred") != (element == "i1"):
                raise self.bad(f"{operand.name} is of type .{operand.type}, not .{kind}")
            integer = integer_of(element)
            if value.width < self._width(integer):
                raise self.bad(f"{operand.name} has only {value.width} bits")
            value = self.cast("bitcast", self.resize(value, integer, False), element)
            if value.width == self._width(stored_element(operand.type)):
                self._know(operand, value)
            return value
        if isinstance(operand, Inverted) and element == "i1":
            return self.negate(self.source(operand.register, "pred"))
        if isinstance(operand, Integer):
            if element == "double":
                return number(element, struct.unpack("<Q", struct.pack("<d", operand.value))[0])
            if element == "float":
                return number(element, struct.unpack("<I", struct.pack("<f", operand.value))[0])
            return number(element, operand.value)
        if isinstance(operand, Real):
            return self._real(operand, element)
        if isinstance(operand, Special):
            return self.special(operand, element)
        if isinstance(operand, Name | Address):
            return self._variable(operand, element)
        raise self.bad(f"the operand must be of type .{kind}")

    def _real(self, operand: Real, element: str) -> Value:
        if element in ("float", "i32"):
            bits = operand.single
            if bits is None:
                try:
                    bits = struct.unpack("<I", struct.pack("<f", operand.value))[0]
                except OverflowError:
                    raise self.bad(f"{operand.value} does not fit in 32 bits") from None
            return number(element, bits)
        if element in ("double", "i64"):
            return number(element, struct.unpack("<Q", struct.pack("<d", operand.value))[0])
        raise self.bad("the type does not take a floating-point constant")

    def _variable(self, operand: Name | Address, element: str) -> Value:
        name = operand.name if isinstance(operand, Name) else operand.base
        if not isinstance(name, str):
            if not isinstance(name, Name):
                raise self.bad("expected a number, got an address")
            name = name.name
        offset = operand.offset if isinstance(operand, Address) else 0
        return self.resize(self.address_of(name, offset), element, False)

    def address_of(self, name: str, offset: int = 0) -> Value:
        """Return the address of a variable in its space, as i64."""
        address = self.places.address_of(name)
        if address is None:
            raise self.bad(f"{name} is not declared")
        if name not in self.places.numbers:
            return number("i64", address + offset)
        listed = self.context(layout.VARIABLES, "ptr")
        at = self.value(f"getelementptr i64, ptr {listed}, i64 {self.places.numbers[name]}")
        value = Value(self.value(f"load i64, ptr {at}"), "i64", True)
        return self.op("add", value, number("i64", offset)) if offset else value

    def special(self, operand: Special, element: str) -> Value:
        """Read a predefined register; implemented by `specials` of the translator."""
        raise NotImplementedError

    def context(self, offset: int, kind: str) -> str:
        """Load a field of the worker context."""
        return self.value(f"load {kind}, ptr {self.at('%context', offset)}")

    def state(self, offset: int, kind: str) -> str:
        """Load a field of the warp state."""
        return self.value(f"load {kind}, ptr {self.at('%warp', offset)}")

    def context_value(self, offset: int, element: str = "i32") -> Value:
        """Load a field of the worker context as a uniform value."""
        return Value(self.context(offset, element), element, True)

    # -- faults ----------------------------------------------------------------------------------

    def fault_if(self, bits: str, code: int, address: str = "0") -> None:
        """End the grid if any of the lanes `bits` (i32) is set."""
        assert self.now is not None
        self.settle()
        wrong = self.value(f"icmp ne i32 {bits}, 0")
        fault, on = self.new_label("fault"), self.new_label("on")
        self.do(f"br i1 {wrong}, label %{fault}, label %{on}, !prof !1")
        self.lines.append(f"{fault}:")
        self.raise_fault(bits, str(code), address)
        self.lines.append(f"{on}:")

    def raise_fault(self, bits: str, code: str, address: str = "0") -> None:
        """End the grid at this instruction."""
        assert self.now is not None
        self.settle()
        for offset, kind, value in (
            (layout.FAULT_CODE, "i32", code), (layout.FAULT_LANES, "i32", bits),
            (layout.FAULT_INDEX, "i32", str(self.now.index)),
            (layout.FAULT_ADDRESS, "i64", address),
        ):  # fmt: skip
            at = self.value(f"getelementptr i8, ptr %context, i64 {offset}")
            self.do(f"store {kind} {value}, ptr {at}")
        self.do(f"ret i32 {layout.FAULTED}")

    def mark(self) -> None:
        """Record this instruction for violations that a called function detects."""
        assert self.now is not None
        self.settle()
        at = self.value(f"getelementptr i8, ptr %context, i64 {layout.FAULT_INDEX}")
        self.do(f"store i32 {self.now.index}, ptr {at}")

    def fault_if_found(self) -> None:
        """End the grid if a called function has recorded a fault; in a function that kernels call,
        record the instruction and return."""
        assert not self.unsettled
        index, ending = "%index", self.ending
        if not ending:
            assert self.now is not None
            index, ending = str(self.now.index), f"ret i32 {layout.FAULTED}"
        code = self.context(layout.FAULT_CODE, "i32")
        wrong = self.value(f"icmp ne i32 {code}, 0")
        fault, on = self.new_label("fault"), self.new_label("on")
        self.do(f"br i1 {wrong}, label %{fault}, label %{on}, !prof !1")
        self.lines.append(f"{fault}:")
        at = self.value(f"getelementptr i8, ptr %context, i64 {layout.FAULT_INDEX}")
        self.do(f"store i32 {index}, ptr {at}")
        self.do(ending)
        self.lines.append(f"{on}:")

    def settle_later(self) -> None:
        """Note that a function was called that records a fault with its instruction, and does
        nothing once there is one: the instructions up to the next `settle` must neither touch
        memory otherwise nor end the block."""
        self.unsettled = True
        if self.stepped:
            self.settle()

    def settle(self) -> None:
        """End the grid if a function that was called since the last time has found a fault."""
        if not self.unsettled:
            return
        self.unsettled = False
        wrong = self.value(f"icmp ne i32 {self.context(layout.FAULT_CODE, 'i32')}, 0")
        on = self.new_label("on")
        self.do(f"br i1 {wrong}, label %faulted, label %{on}, !prof !1")
        self.lines.append(f"{on}:")
