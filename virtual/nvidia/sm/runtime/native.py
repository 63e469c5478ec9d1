"""Native functions of these multiprocessors: `virtual.shader.native` with functions to note
faults."""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.shader import native
from ugpu.virtual.shader.native import Word


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
