"""One kernel that executes many single instructions on columns of operands, for comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.support.nvidia.sm.sm_run import Bench

_REGISTERS = {1: "pred", 16: "b16", 32: "b32", 64: "b64"}


@dataclass(frozen=True)
class Try:
    """An instruction. widths: bits of its operands; constants: operands behind them."""

    opcode: str
    result: int
    widths: tuple[int, ...]
    constants: tuple[str, ...] = ()


class Unit:
    """Compile once, run on many operands: lane n of instruction m gets operands[m][..][n]."""

    def __init__(self, tries: Sequence[Try], target: str = "sm_90") -> None:
        self.tries = tries
        self._bench = Bench()
        self._target = target
        self.text = self._kernel()
        self._in, self._inputs = self._bench.array(np.zeros((8192, 128), np.uint64))
        self._out, self._outputs = self._bench.array(np.zeros((2048, 128), np.uint64))

    def _kernel(self) -> str:
        lines = [
            ".visible .entry k(.param .u64 in, .param .u64 out) {",
            ".reg .b64 %in, %out, %w; .reg .b32 %t;",
            "ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x;",
            "mul.wide.u32 %w, %t, 8; add.s64 %in, %in, %w; add.s64 %out, %out, %w;",
        ]
        row = 0
        for number, one in enumerate(self.tries):
            names = []
            for place, bits in enumerate(one.widths):
                name = f"%a{number}_{place}"
                lines.append(f".reg .{_REGISTERS[max(bits, 16)]} {name};")
                lines.append(f"ld.global.b{max(bits, 16)} {name}, [%in+{1024 * row}];")
                names.append(name)
                row += 1
            result = f"%r{number}"
            bits = max(one.result, 16)
            lines.append(f".reg .{_REGISTERS[bits]} {result};")
            operands = ", ".join([result, *names, *one.constants])
            lines.append(f"{one.opcode} {operands};")
            lines.append(f"st.global.b{bits} [%out+{1024 * number}], {result};")
        return "\n".join([*lines, "ret;", "}"])

    def run(self, columns: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
        """Return each instruction's results. columns: [instruction][operand][lane]."""
        lanes = len(columns[0][0])
        row = 0
        self._inputs[:] = 0
        self._outputs[:] = 0
        for operands in columns:
            for column in operands:
                self._inputs[row, :lanes] = np.array(column, np.uint64)
                row += 1
        self._bench.good(self.text, self._in, self._out, block=(lanes,), target=self._target)
        return [[int(x) for x in self._outputs[n, :lanes]] for n in range(len(self.tries))]
