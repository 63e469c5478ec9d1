"""Native functions of these multiprocessors: `virtual.shader.native` with functions to note
faults."""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.shader import native
from ugpu.virtual.shader.native import Word

FOR_EVER = 1 << 62  # times to repeat a loop that its body leaves


class Native(native.Native):
    """One function whose first parameter is the context, if it notes faults or violations."""

    def note(self, code: int | Word, lanes: Word, address: Word) -> None:
        """Record a fault in the context if it is the first."""
        number = self.constant("i32", code) if isinstance(code, int) else code
        with self.when(self.field(layout.FAULT_CODE, "i32").same(0)):
            for offset, value in (
                (layout.FAULT_CODE, number), (layout.FAULT_LANES, lanes),
                (layout.FAULT_ADDRESS, address),
            ):  # fmt: skip
                self.store(value, self.given[0].byte(offset))

    def violate(self, code: int, address: Word) -> None:
        """Count a violation that boards tolerate; the kernel continues."""
        context = self.given[0]
        self.store(self.constant("i32", code), context.byte(layout.VIOLATION_CODE))
        self.store(address, context.byte(layout.VIOLATION_ADDRESS))
        timer = self.field(layout.TIMER, "ptr")
        self.value(f"call i64 {timer.text}(i32 {layout.TIMER_VIOLATION})", "i64")

    def wide(self, offset: int) -> Word:
        """Load an i32 field of the context as i64."""
        return self.field(offset, "i32").to("i64")

    def has_flights(self) -> Word:
        """Return whether the kernel has asynchronous copies or products."""
        return self.field(layout.FLIGHT, "i64").differs(0)

    def hook(self, context: Word, name: str, *arguments: Word) -> None:
        """Call a function of asynchronous kernels; the context contains its address."""
        at = self.load("ptr", context.byte(layout.HOOKS + 8 * layout.HOOKED.index(name)))
        given = "".join(f", {a.kind} {a.text}" for a in arguments)
        self.do(f"call void {at.text}(ptr {context.text}{given})")
