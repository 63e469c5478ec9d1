"""Addresses, loads, stores, atomic operations and barriers, in NIR.

If an offset in dwords from a pointer of the kernel's parameters is known, the load or store of
dwords adds the two itself (ldg.a, stg.a); otherwise the address is computed in 64 bits. Narrower
elements always take the second way: gen 6 scales the offset by their size, gen 7 and Mesa by four.
"""

from __future__ import annotations

from collections.abc import Iterator

from ugpu.compiler.codegen.adreno.llvm.syntax import Instruction, Operand
from ugpu.compiler.codegen.adreno.texels import Texels
from ugpu.compiler.codegen.adreno.translation import Place, Translation
from ugpu.hcq.errors import CompileError, NotSupported

_WORD, _MOST = 32, 4  # bits; components of one access
_COHERENT, _VOLATILE, _NON_WRITEABLE, _CAN_REORDER = 1, 4, 16, 64  # enum gl_access_qualifier
_GROUP, _DEVICE, _ACQUIRE_RELEASE = 4, 6, 3  # enum mesa_scope, nir_memory_semantics
_SHARED, _GLOBAL = 1 << 19, 1 << 20  # enum nir_variable_mode
# enum nir_atomic_op
_COMPARE_EXCHANGE = 12
_ATOMIC = {
    "add": 0, "min": 1, "umin": 2, "max": 3, "umax": 4, "and": 5, "or": 6, "xor": 7, "xchg": 8,
}  # fmt: skip


class Memory:
    """Memory accesses of one function."""

    def __init__(self, selection: Translation) -> None:
        self.selection = selection
        self.places: dict[str, Place] = {}
        self.texels = Texels(selection)

    # ---- addresses -----------------------------------------------------------------------------

    def moved(self, one: Instruction) -> tuple[int, ...]:
        """Return a pointer plus an index times the size of an element."""
        pointer, index = one.operands
        selection, build = self.selection, self.selection.build
        size = int(one.kind)
        (base,) = selection.lanes(pointer)
        if pointer.type.bits == 32:
            return (build.alu("iadd", 32, base, self._scaled(index, size, 32)),)
        place = self._place(base, pointer, index, size)
        if place is not None:
            self.places[one.result] = place
            return ()
        return (build.alu("iadd", 64, base, self._scaled(index, size, 64)),)

    def _place(self, base: int, pointer: Operand, index: Operand, size: int) -> Place | None:
        """Return the place if the index is an unsigned number of 32 bits, in bytes."""
        selection, build = self.selection, self.selection.build
        if size != 1 or pointer.name in self.places:
            return None
        if not index.name:
            (number,) = index.lanes
            if number is None or number >> 31:
                return None
            words = 0 if number % 4 else build.constant(32, number // 4)
            return Place(base, build.constant(32, number), words)
        wide = selection.made.get(index.name)
        if wide is None or wide.operation != "zext" or wide.operands[0].type.bits != 32:
            return None
        narrow = wide.operands[0]
        (offset,) = selection.lanes(narrow)
        product = selection.made.get(narrow.name)
        words = 0
        if product is not None and product.operation == "mul" and not product.operands[1].name:
            (factor,) = product.operands[1].lanes
            if factor and factor % 4 == 0:
                (number,) = selection.lanes(product.operands[0])
                words = number
                if factor > 4:
                    words = build.alu("imul", 32, number, build.constant(32, factor // 4))
        return Place(base, offset, words)

    def _scaled(self, index: Operand, size: int, bits: int) -> int:
        """Return a signed index in bytes."""
        build = self.selection.build
        (number,) = self.selection.lanes(index)
        if index.type.bits != bits:
            number = build.alu(f"i2i{bits}", bits, number)
        return number if size == 1 else build.alu("imul", bits, number, build.constant(bits, size))

    def address(self, name: str) -> tuple[int, ...] | None:
        """Return the 64-bit address of a pointer known as base and offset."""
        place = self.places.get(name)
        if place is None:
            return None
        build = self.selection.build
        return (build.alu("iadd", 64, place.base, build.alu("u2u64", 64, place.offset)),)

    # ---- accesses ------------------------------------------------------------------------------

    def _accesses(
        self, pointer: Operand, align: int, bits: int, count: int
    ) -> Iterator[tuple[str, list[int], int, int]]:
        """Yield pieces of an access to `count` elements of `bits`: "global_ir3", "global" or
        "shared", the address as sources, the first element and the number of elements."""
        selection, build = self.selection, self.selection.build
        place = self.places.get(pointer.name)
        step = bits // 8
        words = 0
        if place is not None and align >= 4 and bits == _WORD:
            words = place.words or build.alu("ushr", 32, place.offset, build.constant(32, 2))
        base = 0 if words else selection.lanes(pointer)[0]
        width = pointer.type.bits
        for first in range(0, count, _MOST):
            most = min(_MOST, count - first)
            offset = first * step
            if words:
                assert place is not None
                here = build.alu("iadd", 32, words, build.constant(32, offset // 4))
                yield "global_ir3", [place.base, here if offset else words], first, most
            else:
                here = base
                if offset:
                    here = build.alu("iadd", width, base, build.constant(width, offset))
                yield ("global" if width == 64 else "shared"), [here], first, most

    def load(self, one: Instruction) -> tuple[int, ...]:
        kind, (pointer,) = one.type, one.operands
        assert kind is not None
        build = self.selection.build
        if one.texel and pointer.name in self.places:
            fetched = self.texels.load(one, self.places[pointer.name])
            if fetched is not None:
                return fetched
        wide = kind.bits == 64
        bits, count = (_WORD, 2 * kind.lanes) if wide else (kind.bits, kind.lanes)
        align = one.align or kind.bits // 8
        found: list[int] = []
        for space, address, _, most in self._accesses(pointer, align, bits, count):
            facts = {"align_mul": min(align, 4)}
            if space != "shared" and one.invariant:
                facts["access"] = _CAN_REORDER | _NON_WRITEABLE
            if space != "shared" and one.ordering:
                facts["access"] = _COHERENT | _VOLATILE
            vector = build.intrinsic(f"load_{space}", address, most, bits, **facts)
            found += build.channels(vector, most, bits)
        if wide:
            halves = zip(found[::2], found[1::2], strict=True)
            found = [build.alu("pack_64_2x32_split", 64, *pair) for pair in halves]
        if one.ordering not in ("", "monotonic", "unordered"):
            self.fence(False)
        return tuple(found)

    def store(self, one: Instruction) -> None:
        value, pointer = one.operands
        build = self.selection.build
        lanes = list(self.selection.lanes(value))
        bits = value.type.bits
        if bits == 64:
            lanes = [
                build.alu(f"unpack_64_2x32_split_{half}", 32, lane)
                for lane in lanes
                for half in "xy"
            ]
            bits = _WORD
        align = one.align or value.type.bits // 8
        for space, address, first, most in self._accesses(pointer, align, bits, len(lanes)):
            vector = lanes[first]
            if most > 1:
                vector = build.alu(f"vec{most}", bits, *lanes[first : first + most], lanes=most)
            facts = {"align_mul": min(align, 4)}
            if space != "global_ir3":
                facts["write_mask"] = (1 << most) - 1
            build.intrinsic(f"store_{space}", [vector, *address], **facts)

    def atomic(self, one: Instruction) -> tuple[int, ...]:
        pointer, operand = one.operands
        if one.kind not in _ATOMIC:
            raise NotSupported(f"atomicrmw {one.kind} for Adreno", code=one.line.strip())
        space, bits = self._changed(one, pointer, operand)
        build = self.selection.build
        (address,), (value,) = self.selection.lanes(pointer), self.selection.lanes(operand)
        given = [address, value]
        return (build.intrinsic(f"{space}_atomic", given, 1, bits, atomic_op=_ATOMIC[one.kind]),)

    def exchange(self, one: Instruction) -> tuple[int, ...]:
        """Compare and exchange; return the old value, and whether it was the expected one."""
        pointer, expected, wanted = one.operands
        space, bits = self._changed(one, pointer, expected)
        build = self.selection.build
        given = [self.selection.lanes(each)[0] for each in (pointer, expected, wanted)]
        old = build.intrinsic(f"{space}_atomic_swap", given, 1, bits, atomic_op=_COMPARE_EXCHANGE)
        return old, build.alu("ieq", 1, old, given[1])

    def _changed(self, one: Instruction, pointer: Operand, operand: Operand) -> tuple[str, int]:
        """Return the memory that an atomic operation changes, and its bits. For 64 bits Mesa makes
        all operations but exchanges from compare-and-exchange loops."""
        bits, code = operand.type.bits, one.line.strip()
        if operand.type.kind != "i" or bits not in (_WORD, 2 * _WORD):
            raise NotSupported("atomic operations of this type for Adreno", code=code)
        space = "global" if pointer.type.bits == 64 else "shared"
        if bits > _WORD and space == "shared":
            raise CompileError("Adreno has no 64-bit atomics in local memory", code=code)
        if bits > _WORD and not self.selection.wide_atomics:
            raise CompileError(
                "this Adreno has no 64-bit atomics; the 740, the 750 and the X1-85 do",
                code=code,
            )
        return space, bits

    def fence(self, barrier: bool) -> None:
        """Order memory; barrier: of the group's local memory, once all threads have reached it."""
        modes = _SHARED if barrier else _SHARED | _GLOBAL
        self.selection.build.intrinsic(
            "barrier", execution_scope=_GROUP if barrier else 0,
            memory_scope=_GROUP if barrier else _DEVICE, memory_semantics=_ACQUIRE_RELEASE,
            memory_modes=modes,
        )  # fmt: skip
