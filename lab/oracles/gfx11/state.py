"""What one wave of the oracle holds, and how operands are read from and written to it.

The oracle is the slow second opinion about the shader core: one NumPy expression per instruction,
written from the RDNA3 ISA document, sharing nothing with the translator but the decoder. Wave32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import NotSupported
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand, Type

LANES = 32
ALL_LANES = 0xFFFF_FFFF
LANE = np.arange(LANES)

Words = NDArray[np.uint32]
# Any: a lane array is of the type that the operand's Type names.
Lanes = NDArray[Any]

_DTYPES: dict[Type, type[np.generic]] = {
    Type.B16: np.uint16,
    Type.B32: np.uint32,
    Type.B64: np.uint64,
    Type.F16: np.float16,
    Type.BF16: np.uint16,
    Type.F32: np.float32,
    Type.F64: np.float64,
    Type.PK_F16: np.uint32,
    Type.PK_BF16: np.uint32,
    Type.PK_B16: np.uint32,
}
_FLOATS = (Type.F16, Type.F32, Type.F64)
_SIGN = {1: 0x8000, 2: 0x8000_0000, 4: 0x8000_0000_0000_0000}


class Memory(Protocol):
    """Where a wave's global, flat and scalar accesses go."""

    def load(self, address: int, size: int) -> bytes:
        """Read `size` bytes at a GPU virtual address."""
        ...

    def store(self, address: int, data: bytes) -> None:
        """Write bytes at a GPU virtual address."""
        ...


@dataclass(frozen=True)
class Mode:
    """The MODE register: rounding and denormals (bits 0..3, 4..7), IEEE and DX10 clamp behaviour.

    Denormal fields: bit 0 keeps those of the sources, bit 1 those of the result.
    """

    value: int = 0xF0
    ieee: bool = True
    dx10_clamp: bool = True

    def denormals(self, kind: Type) -> int:
        """Return the denormal field for f32, or for f16 and f64."""
        return self.value >> (4 if kind is Type.F32 else 6) & 3

    def check(self) -> None:
        """Raise NotSupported for rounding other than to nearest even."""
        if self.value & 0xF:
            raise NotSupported("only rounding to nearest even", mode=self.value)


class Nothing:
    """A memory with nothing in it: every access is an error of the test."""

    def load(self, address: int, size: int) -> bytes:
        """Refuse."""
        raise NotSupported("the wave has no memory", address=address, size=size)

    def store(self, address: int, data: bytes) -> None:
        """Refuse."""
        raise NotSupported("the wave has no memory", address=address, size=len(data))


@dataclass
class WaveState:
    """One wave. pc: byte offset into the code. exec, vcc: 32-bit masks.

    lds: the workgroup's bytes, shared by its waves. scratch[lane]: a lane's private bytes.
    *_aperture: the 64-bit bases of the flat windows onto LDS and scratch. code_base: the GPU
    virtual address of the code's first byte (s_getpc_b64). hardware: values by hwreg number.
    """

    sgprs: Words = field(default_factory=lambda: np.zeros(106, np.uint32))
    vgprs: Words = field(default_factory=lambda: np.zeros((256, LANES), np.uint32))
    ttmps: Words = field(default_factory=lambda: np.zeros(16, np.uint32))
    exec: int = ALL_LANES
    vcc: int = 0
    vcc_hi: int = 0
    scc: bool = False
    m0: int = 0
    pc: int = 0
    mode: Mode = field(default_factory=Mode)
    lds: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(65536, np.uint8))
    scratch: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((LANES, 0), np.uint8))
    memory: Memory = field(default_factory=Nothing)
    shared_aperture: int = 0x0001_0000_0000_0000
    private_aperture: int = 0x0002_0000_0000_0000
    code_base: int = 0
    hardware: dict[int, int] = field(default_factory=dict)
    done: bool = False
    at_barrier: bool = False

    @property
    def active(self) -> NDArray[np.bool_]:
        """Return EXEC as one bool a lane."""
        return to_lanes(self.exec)

    # Scalars ----------------------------------------------------------------------------------

    def read_scalar(self, operand: Operand) -> int:
        """Return a uniform source's bits (width x 32)."""
        if operand.is_constant:
            return operand.value
        if operand.kind is Kind.NULL:
            return 0
        if operand.kind is Kind.APERTURE:
            base = (self.shared_aperture, self.private_aperture)[operand.index // 2]
            value = base + (0xFFFF_FFFF if operand.index & 1 else 0)
            return value if operand.width == 2 else value >> 32
        value = 0
        for number in range(operand.width):
            value |= self._read_word(operand, number) << 32 * number
        return value

    def _read_word(self, operand: Operand, number: int) -> int:
        index = operand.index + number
        if operand.kind is Kind.SGPR:
            return int(self.sgprs[index])
        if operand.kind is Kind.TTMP:
            return int(self.ttmps[index])
        if operand.kind is Kind.VCC:
            return (self.vcc, self.vcc_hi)[index]
        if operand.kind is Kind.EXEC:
            return (self.exec, 0)[index]
        if operand.kind is Kind.M0:
            return self.m0
        named = {Kind.SCC: self.scc, Kind.VCCZ: not self.vcc, Kind.EXECZ: not self.exec}
        if operand.kind in named:
            return int(named[operand.kind])
        raise NotSupported("no scalar source", kind=operand.kind.value)

    def write_scalar(self, operand: Operand, value: int) -> None:
        """Write a scalar destination's registers."""
        for number in range(operand.width):
            word = value >> 32 * number & 0xFFFF_FFFF
            index = operand.index + number
            if operand.kind is Kind.SGPR:
                self.sgprs[index] = word
            elif operand.kind is Kind.TTMP:
                self.ttmps[index] = word
            elif operand.kind is Kind.VCC:
                if index == 0:
                    self.vcc = word
                else:
                    self.vcc_hi = word
            elif operand.kind is Kind.EXEC:
                if index == 0:
                    self.exec = word
            elif operand.kind is Kind.M0:
                self.m0 = word
            elif operand.kind is not Kind.NULL:
                raise NotSupported("no scalar destination", kind=operand.kind.value)

    # Lanes ------------------------------------------------------------------------------------

    def read_bits(self, operand: Operand) -> Lanes:
        """Return a source's bits in each lane: uint16, uint32 or uint64; no modifiers."""
        size = operand.type.bits
        if size > 64:
            raise NotSupported("a vector operand wider than 64 bits", type=operand.type.value)
        found: Lanes
        if operand.kind is Kind.VGPR:
            found = self.vgprs[operand.index].copy()
            if size == 16:
                found = (found >> np.uint32(16 if operand.high else 0)).astype(np.uint16)
            elif size == 64:
                upper = self.vgprs[operand.index + 1].astype(np.uint64)
                found = found.astype(np.uint64) | upper << np.uint64(32)
            return found
        value = self.read_scalar(operand)
        if size == 16:
            upper_half = operand.high and not operand.is_constant
            found = np.full(LANES, value >> (16 if upper_half else 0) & 0xFFFF, np.uint16)
        elif size == 64:
            found = np.full(LANES, value & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
        else:
            found = np.full(LANES, value & 0xFFFF_FFFF, np.uint32)
        return found

    def read_lanes(self, operand: Operand) -> Lanes:
        """Return a source in each lane, as its type, modifiers applied, denormals flushed."""
        if operand.type is Type.MASK:
            return to_lanes(self.read_scalar(operand))
        return self.as_type(operand, self.read_bits(operand))

    def as_type(self, operand: Operand, bits: Lanes) -> Lanes:
        """Interpret a source's bits: modifiers, then denormals, then its type."""
        sign = bits.dtype.type(_SIGN[max(1, bits.dtype.itemsize // 2)])
        if operand.absolute:
            bits = bits & ~sign
        if operand.neg:
            bits = bits ^ sign
        values = bits.view(_DTYPES[operand.type])
        if operand.type in _FLOATS and not self.mode.denormals(operand.type) & 1:
            values = flush(values)
        return values

    def write_lanes(self, operand: Operand, values: Lanes, active: Lanes | None = None) -> None:
        """Write a vector destination in the active lanes (default: those of EXEC)."""
        if active is None:
            active = self.active
        size = operand.type.bits
        bits = np.ascontiguousarray(values)
        bits = bits.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[bits.itemsize])
        register = self.vgprs[operand.index]
        if size == 16:
            shift = np.uint32(16 if operand.high else 0)
            kept = register & np.uint32(0xFFFF0000 if not operand.high else 0xFFFF)
            new = kept | bits.astype(np.uint32) << shift
            register[active] = new[active]
        elif size == 64:
            wide = bits.astype(np.uint64)
            register[active] = wide.astype(np.uint32)[active]
            upper = (wide >> np.uint64(32)).astype(np.uint32)
            self.vgprs[operand.index + 1][active] = upper[active]
        else:
            register[active] = bits.astype(np.uint32)[active]

    def write_mask(self, operand: Operand, values: Lanes) -> None:
        """Write one bit a lane; bits of inactive lanes become 0."""
        self.write_scalar(operand, to_mask(values.astype(bool) & self.active))


def to_lanes(mask: int) -> NDArray[np.bool_]:
    """Return the 32 bits of a mask."""
    return (np.uint32(mask & ALL_LANES) >> LANE.astype(np.uint32) & np.uint32(1)).astype(bool)


def to_mask(values: Lanes) -> int:
    """Return 32 bools as a mask."""
    return sum(1 << lane for lane in range(LANES) if values[lane])


def flush(values: Lanes) -> Lanes:
    """Replace denormals by zeros of their sign."""
    tiny = np.abs(values) < np.finfo(values.dtype).tiny
    return np.where(tiny, np.copysign(values.dtype.type(0), values), values)
