"""One product of a warp group as a kernel and as NumPy: layouts written from the PTX ISA.

Source: PTX ISA 8.x, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" (swizzle modes,
strides, descriptor), "Register Fragments" of wgmma.mma_async.m64nNk*; of the swizzle patterns, CUDA
C++ programming guide, "Swizzle modes": a 16-byte chunk x of row y lies at chunk x ^ (y % 8) where
rows have 128 bytes, x ^ (y / 2 % 4) where they have 64, x ^ (y / 4 % 2) where they have 32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.support.nvidia.sm.sm_run import body

WIDTHS = {"none": 1, "128": 8, "64": 4, "32": 2}  # chunks of 16 bytes in a row of the pattern
_CODES = {"none": 0, "128": 1, "64": 2, "32": 3}
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
IMAGE = 200 << 10


def encode(kind: str, values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Bytes of numbers that the kind holds exactly: [..., bytes of one]."""
    if kind == "f16":
        made = values.astype(np.float16)
    elif kind == "bf16":
        made = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif kind == "tf32":
        made = values.astype(np.float32)
    elif kind in ("s8", "u8"):
        made = values.astype(np.int64).astype(np.uint8)
    else:
        fraction, bias = (3, 7) if kind == "e4m3" else (2, 15)
        mantissa, exponent = np.frexp(np.abs(values))
        part = (mantissa * 2 * (1 << fraction)).astype(np.int64) - (1 << fraction)
        made = ((exponent - 1 + bias) << fraction) + part
        made = np.where(values == 0, 0, made | np.where(values < 0, 128, 0)).astype(np.uint8)
    return np.ascontiguousarray(made).view(np.uint8).reshape(*values.shape, BYTES[kind])


@dataclass(frozen=True)
class Lying:
    """How a factor lies in shared memory. turned: MN-major. leading, stride: bytes."""

    swizzle: str
    turned: bool
    start: int
    leading: int
    stride: int

    def place(self, line: int, byte: int) -> int:
        """Address of a byte: K-major of row `line`; MN-major of k `line`, along the rows."""
        width = WIDTHS[self.swizzle]
        chunk, rest = divmod(byte, 16)
        group, row = divmod(line, 8)
        if width == 1:
            by_group, by_chunk = self.stride, self.leading
            if self.turned:
                by_group, by_chunk = by_chunk, by_group
            return self.start + group * by_group + chunk * by_chunk + row * 16 + rest
        block, inner = divmod(chunk, width)
        inner ^= row * width // 8 % width
        at = self.start + group * self.stride + block * self.leading
        return at + row * width * 16 + inner * 16 + rest

    def descriptor(self, skip: int = 0) -> int:
        """The matrix descriptor, its start `skip` bytes further on."""
        return (
            (self.start + skip) >> 4 | (self.leading >> 4) << 16 | (self.stride >> 4) << 32
            | _CODES[self.swizzle] << 62
        )  # fmt: skip

    def step(self) -> int:
        """Bytes to the factor of the next instruction along k (32 bytes of k, or 16 numbers)."""
        if not self.turned:
            return 2 * self.leading if self.swizzle == "none" else 32
        return 2 * (self.leading if self.swizzle == "none" else self.stride)


@dataclass
class Case:
    """A product: D (64 x columns) = A x B (+ D). steps: instructions along k."""

    columns: int
    kind: str = "f16"
    other: str = ""
    result: str = "f32"
    a: Lying | None = None
    b: Lying = field(default_factory=lambda: Lying("128", False, 0, 16, 1024))
    steps: int = 1
    adds: bool = True
    scale_a: int = 1
    scale_b: int = 1
    seed: int = 0
    before: str = ""
    fence: str = "wgmma.fence.sync.aligned;"
    commit: str = "wgmma.commit_group.sync.aligned;"
    wait: str = "wgmma.wait_group.sync.aligned 0;"
    proxy: str = "fence.proxy.async;"

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.other = self.other or self.kind
        self.depth = 32 // BYTES[self.kind] * self.steps
        low = 0 if self.kind == "u8" else -4
        self.left = random.integers(low, 4, (64, self.depth)).astype(np.float64)
        low = 0 if self.other == "u8" else -4
        self.right = random.integers(low, 4, (self.depth, self.columns)).astype(np.float64)
        self.start = random.integers(-50, 50, (64, self.columns)).astype(np.float64)

    # -- what the kernel is given ----------------------------------------------------------------

    def image(self) -> NDArray[np.uint8]:
        """Shared memory before the product."""
        found = np.random.default_rng(1).integers(0, 256, IMAGE, np.uint8)
        for lying, kind, matrix in ((self.a, self.kind, self.left), (self.b, self.other,
                                                                     self.right.T)):  # fmt: skip
            if lying is None:
                continue
            lines = encode(kind, matrix.T if lying.turned else matrix)
            lines = lines.reshape(len(lines), -1)
            for line, data in enumerate(lines):
                for byte in range(0, len(data), 16):
                    at = lying.place(line, byte)
                    if at < IMAGE:
                        found[at : at + 16] = data[byte : byte + 16]
        return found

    def fragments(self) -> NDArray[np.uint32]:
        """Registers of A: [step][register][thread]."""
        rows = encode(self.kind, self.left).reshape(64, self.steps, 2, 4, 4)
        found = np.zeros((self.steps, 4, 128), np.uint32)
        for thread in range(128):
            row, word = 16 * (thread // 32) + thread % 32 // 4, thread % 4
            for register in range(4):
                part = rows[row + 8 * (register % 2), :, register // 2, word]
                found[:, register, thread] = part.copy().view(np.uint32)[:, 0]
        return found

    @property
    def registers(self) -> int:
        """Registers of D."""
        return self.columns // (4 if self.result == "f16" else 2)

    def sums(self, matrix: NDArray[np.float64]) -> NDArray[np.uint32]:
        """A matrix as registers of D: [register][thread]."""
        kind = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[self.result]
        per = 2 if self.result == "f16" else 1
        found = np.zeros((self.registers, 128, per), kind)
        for thread in range(128):
            row = 16 * (thread // 32) + thread % 32 // 4
            for i in range(self.registers * per):
                at = row + 8 * (i // 2 % 2), 8 * (i // 4) + thread % 4 * 2 + i % 2
                found[i // per, thread, i % per] = matrix[at]
        return found.view(np.uint32).reshape(self.registers, 128)

    def numbers(self, words: NDArray[np.uint32]) -> NDArray[np.generic]:
        """Registers of D as numbers, in which -0 equals 0."""
        return words.view({"f32": np.float32, "f16": np.float16, "s32": np.int32}[self.result])

    def wanted(self) -> NDArray[np.uint32]:
        """Registers of D behind the product."""
        product = self.scale_a * self.scale_b * (self.left @ self.right)
        return self.sums(product + self.start if self.adds else product)

    # -- the kernel ------------------------------------------------------------------------------

    def instruction(self, step: int) -> str:
        """One wgmma.mma_async."""
        acc = "{" + ", ".join(f"%acc{n}" for n in range(self.registers)) + "}"
        skip_b = self.b.step() * step
        text = f"mov.b64 %rd21, {self.b.descriptor(skip_b):#x};\n"
        operand = "{" + ", ".join(f"%a{4 * step + n}" for n in range(4)) + "}"
        if self.a is not None:
            text += f"mov.b64 %rd20, {self.a.descriptor(self.a.step() * step):#x};\n"
            operand = "%rd20"
        last = ""
        if self.kind not in ("s8", "u8"):
            last = f", {self.scale_a}, {self.scale_b}"
        if self.kind in ("f16", "bf16"):
            last += f", {int(self.a.turned)}" if self.a is not None else ""
            last += f", {int(self.b.turned)}"
        depth = 32 // BYTES[self.kind]
        adds = "%p10" if step == 0 else "%p11"
        return text + (
            f"wgmma.mma_async.sync.aligned.m64n{self.columns}k{depth}.{self.result}.{self.kind}"
            f".{self.other} {acc}, {operand}, %rd21, {adds}{last};\n"
        )

    def text(self) -> str:
        """The kernel: image, registers of A, D before, D behind."""
        reg = "b32" if self.result == "f16" else self.result
        lines = [
            f".reg .{reg} %acc<{self.registers}>; .reg .b32 %a<{4 * self.steps}>;",
            "mul.wide.u32 %at, %t, 16; add.s64 %at, %at, %rd0; shl.b32 %r1, %t, 4;",
            "mov.u32 %r6, part; add.u32 %r1, %r1, %r6; add.u32 %r6, %r6, " + f"{IMAGE};",
            "COPY: ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%at];",
            "st.shared.v4.u32 [%r1], {%r2, %r3, %r4, %r5}; add.u32 %r1, %r1, 2048;",
            "add.s64 %at, %at, 2048; setp.lt.u32 %p1, %r1, %r6; @%p1 bra COPY;",
            "mul.wide.u32 %at, %t, 4; add.s64 %rd1, %rd1, %at; add.s64 %rd2, %rd2, %at;",
            "add.s64 %rd3, %rd3, %at;",
            f"mov.u32 %r7, {int(self.adds)}; setp.ne.u32 %p10, %r7, 0; setp.ne.u32 %p11, %r6, 0;",
        ]
        lines += [f"ld.global.{reg} %acc{n}, [%rd2+{512 * n}];" for n in range(self.registers)]
        lines += [f"ld.global.b32 %a{n}, [%rd1+{512 * n}];" for n in range(4 * self.steps)]
        lines += [self.proxy, "bar.sync 0;", self.before, self.fence]
        lines += [self.instruction(step) for step in range(self.steps)]
        lines += [self.commit, self.wait]
        lines += [f"st.global.{reg} [%rd3+{512 * n}], %acc{n};" for n in range(self.registers)]
        return body(4, "\n".join(lines), ".extern .shared .align 1024 .b8 part[];")
