"""Run kernels on a shader core as a command processor would: code object in, arrays out."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.shader_memory import ArrayMemory
from ugpu.hcq.objects.code_object import KernelImage, parse_amdhsa
from ugpu.hcq.state.config import setting
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.shader import Dispatch, Outcome
from ugpu.virtual.shader import versions
from ugpu.virtual.shader.memory import Abort

CODE = 0x0000_7E00_0000_0000
KERNARGS = 0x0000_7E10_0000_0000
ARRAYS = 0x0000_7E20_0000_0000
SCRATCH = 0x0000_7E80_0000_0000
SHARED_APERTURE = 0x0001 << 48
PRIVATE_APERTURE = 0x0002 << 48
_MOST_SCRATCH_WAVES = 256
FIRST, SECOND = "1", "0"  # UGPU_TIERS


@contextmanager
def version_alone(version: str) -> Iterator[None]:
    """Have kernels run in their first or second version, and no other, in the block."""
    with setting("UGPU_TIERS", version), pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "OFTEN", 1 << 62)
        patch.setattr(versions, "LONG_S", math.inf)
        yield


@dataclass
class Machine:
    """A core with memory. Arrays are mapped 1 MB apart so that a stray access finds nothing."""

    core: GfxCore
    memory: ArrayMemory = field(default_factory=ArrayMemory)
    abort: Abort = field(default_factory=Abort)

    def __post_init__(self) -> None:
        self._next = ARRAYS

    def place(self, array: NDArray[Any], writable: bool = True) -> tuple[int, NDArray[Any]]:
        """Map a copy of an array; return its GPU address and the mapped view."""
        address = self._next
        self._next += (array.nbytes + (2 << 20)) & -(1 << 20)
        return address, self.memory.map(address, array, writable)

    def load(self, image: bytes, name: str | None = None) -> KernelImage:
        """Link a code object at CODE and map it executable; return one kernel of it."""
        code_object = parse_amdhsa(image)
        linked = np.frombuffer(code_object.link(CODE), np.uint8)
        self.memory.map(CODE, linked, writable=False, executable=True)
        kernels = code_object.kernels
        return kernels[name] if name else next(iter(kernels.values()))

    def dispatch(
        self,
        kernel: KernelImage,
        arguments: bytes,
        groups: tuple[int, int, int],
        threads: tuple[int, int, int],
    ) -> Dispatch:
        """Describe a dispatch of a loaded kernel with its argument block."""
        self.memory.map(KERNARGS, np.frombuffer(arguments.ljust(4096, b"\0"), np.uint8), False)
        descriptor = kernel.descriptor
        user: list[int] = []
        sizes = {
            "private_segment_buffer": 4, "dispatch_ptr": 2, "queue_ptr": 2,
            "kernarg_segment_ptr": 2,
            "dispatch_id": 2, "flat_scratch_init": 2, "private_segment_size": 1,
        }  # fmt: skip
        for bit, (name, size) in enumerate(sizes.items()):
            if descriptor.properties >> bit & 1:
                pointer = [KERNARGS & 0xFFFFFFFF, KERNARGS >> 32]
                user += pointer if name == "kernarg_segment_ptr" else [0] * size
        wave_size = descriptor.private_size * (32 if descriptor.is_wave32 else 64)
        if wave_size:
            size = _MOST_SCRATCH_WAVES * wave_size
            self.memory.map(SCRATCH, np.zeros(size, np.uint8))
        # A driver sets the LDS size itself; the descriptor's rsrc2 leaves it zero.
        granules = -(-descriptor.local_size // 512)
        return Dispatch(
            code_address=CODE + kernel.entry,
            groups=groups,
            threads=threads,
            rsrc1=descriptor.rsrc1,
            rsrc2=descriptor.rsrc2 | granules << 15,
            rsrc3=descriptor.rsrc3,
            user_data=user + [0] * (16 - len(user)),
            wave32=descriptor.is_wave32,
            scratch_base=SCRATCH,
            scratch_wave_size=wave_size,
            scratch_waves=_MOST_SCRATCH_WAVES if wave_size else 0,
            shared_aperture=SHARED_APERTURE,
            private_aperture=PRIVATE_APERTURE,
        )

    def run(
        self,
        image: bytes,
        arguments: Sequence[int | float | NDArray[Any]],
        groups: int | tuple[int, int, int] = 1,
        threads: int | tuple[int, int, int] = 32,
        name: str | None = None,
    ) -> tuple[Outcome, list[NDArray[Any]]]:
        """Run a kernel; arrays are passed by pointer, ints as u32, floats as f32.

        Returns the outcome and the arrays as the kernel left them.
        """
        kernel = self.load(image, name)
        block = bytearray(max(kernel.kernarg_size, 8))
        views = []
        for argument, value in zip(kernel.arguments, arguments, strict=True):
            if isinstance(value, np.ndarray):
                address, view = self.place(value)
                views.append(view)
                struct.pack_into("<Q", block, argument.offset, address)
            elif isinstance(value, float):
                struct.pack_into("<f", block, argument.offset, value)
            else:
                block[argument.offset : argument.offset + argument.size] = value.to_bytes(
                    argument.size, "little"
                )
        self.memory.invalidate()
        dispatch = self.dispatch(kernel, bytes(block), _three(groups), _three(threads))
        return self.core.run(dispatch, self.memory, self.abort), views


def _three(size: int | tuple[int, int, int]) -> tuple[int, int, int]:
    return (size, 1, 1) if isinstance(size, int) else size
