"""Base of the virtual chip's blocks: registers by name, and the resets that affect a block."""

from __future__ import annotations

import enum

from ugpu.hcq.registers.fields import RegisterValue
from ugpu.virtual.amd.board import Board
from ugpu.virtual.amd.registers import Reader, Writer


class Reset(enum.IntEnum):
    """Scope of a reset; a larger one includes the smaller."""

    GFX = 1  # GRBM soft reset; engines apply it to themselves
    MODE2 = 2  # graphics and SDMA, with their registers
    MODE1 = 3  # everything but the bus interface
    BUS = 4  # FLR or secondary bus reset
    POWER = 5


class Block:
    """A part of the chip. All methods run under `chip.lock`.

    `block` names the register table: "gc", "mmhub", "nbio", "mp", "mp1",
    "osssys", "hdp", "smuio", "thm".
    """

    def __init__(self, chip: Board, block: str) -> None:
        self.chip = chip
        self.block = block
        self._indices: dict[str, int] = {}

    def index(self, name: str) -> int:
        """Return the absolute dword index of a register."""
        found = self._indices.get(name)
        if found is None:
            found = self._indices[name] = self.chip.space.index(self.block, name)
        return found

    def get(self, name: str) -> int:
        """Read a latch without calling its read handler."""
        return self.chip.space.peek(self.index(name))

    def fields(self, name: str) -> RegisterValue:
        """Read a latch as a value with fields, without calling its read handler."""
        return self.chip.space.register(self.block, name).decode(self.get(name))

    def set(self, name: str, value: int | None = None, **fields: int) -> None:
        """Set a latch without calling its write handler; without `value`, change only `fields`."""
        base = self.get(name) if value is None else value
        if fields:
            base = self.chip.space.register(self.block, name).insert(base, fields)
        self.chip.space.poke(self.index(name), base)

    def on_read(self, name: str, reader: Reader) -> None:
        """Let `reader` answer reads of a register."""
        self.chip.space.on_read(self.block, name, reader)

    def on_write(self, name: str, writer: Writer) -> None:
        """Call `writer` with each value written, after it was latched."""
        self.chip.space.on_write(self.block, name, writer)

    def reset(self, scope: Reset) -> None:
        """Enter the state after a reset of this scope. The latches are already cleared."""

    def stop(self) -> None:
        """Stop until the next reset: the card is being reset or was removed. Idempotent.

        Called with `chip.lock` held: signal threads, do not join them.
        """

    def close(self) -> None:
        """Release threads and memory at the end of the chip's life. Called without the lock."""
