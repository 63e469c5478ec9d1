"""Run a PTX kernel on the virtual multiprocessors over arrays, for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.nvidia.sm.multiprocessors import VirtualMultiprocessors
from ugpu.virtual.nvidia.sm_contract import GridLaunch, SmEnding, SmOutcome
from ugpu.virtual.shader.memory import Abort

HEAD = ".version 8.7\n.target {target}\n.address_size 64\n"
SHARED_WINDOW = 0x7F00_0000_0000
LOCAL_WINDOW = 0x7E00_0000_0000
_FIRST = 0x1000_0000
_STEP = 0x100_0000


@dataclass
class Bench:
    """Multiprocessors with a memory of their own."""

    workers: int = 1
    memory: ArrayMemory = field(default_factory=ArrayMemory)
    abort: Abort = field(default_factory=Abort)

    def __post_init__(self) -> None:
        self.units = VirtualMultiprocessors(workers=self.workers)
        self._next = _FIRST

    def array(self, content: NDArray[Any], writable: bool = True) -> tuple[int, NDArray[Any]]:
        """Map a copy; return its address and the view that kernels work on."""
        address = self._next
        self._next += -(-max(content.nbytes, 1) // _STEP) * _STEP + _STEP
        return address, self.memory.map(address, content, writable)

    def launch(
        self, ptx: str, *arguments: Any, grid: Sequence[int] = (1,), block: Sequence[int] = (32,),
        shared: int = 0, entry: str = "k", target: str = "sm_90", local: int = 0,
        cluster: Sequence[int] | None = None, registers: int = 0,
    ) -> SmOutcome:  # fmt: skip
        """Run `entry`. arguments: int for pointers, NumPy scalars otherwise."""
        return self.units.run(
            self.description(ptx, *arguments, grid=grid, block=block, shared=shared, entry=entry,
                             target=target, local=local, cluster=cluster, registers=registers),
            self.memory, self.abort,
        )  # fmt: skip

    def description(
        self, ptx: str, *arguments: Any, grid: Sequence[int] = (1,), block: Sequence[int] = (32,),
        shared: int = 0, entry: str = "k", target: str = "sm_90", local: int = 0,
        cluster: Sequence[int] | None = None, registers: int = 0,
    ) -> GridLaunch:  # fmt: skip
        """Return the launch that `launch` runs."""
        data = b""
        for argument in arguments:
            part = struct.pack("<Q", argument) if isinstance(argument, int) else argument.tobytes()
            data += bytes(-len(data) % len(part)) + part
        shapes = [grid, block] if cluster is None else [grid, block, cluster]
        three = [tuple(int(n) for n in (*shape, 1, 1)[:3]) for shape in shapes]
        text = ptx if ".version" in ptx else HEAD.format(target=target) + ptx
        return GridLaunch(
            text, entry, target, (three[0][0], three[0][1], three[0][2]),
            (three[1][0], three[1][1], three[1][2]), data, shared, local, SHARED_WINDOW,
            LOCAL_WINDOW, 0, 4,
            cluster=None if cluster is None else (three[2][0], three[2][1], three[2][2]),
            registers=registers,
        )  # fmt: skip

    def good(self, ptx: str, *arguments: Any, **options: Any) -> None:
        """Run a kernel that must end well."""
        outcome = self.launch(ptx, *arguments, **options)
        assert outcome.ending is SmEnding.DONE, outcome


def body(parameters: int, text: str, head: str = "") -> str:
    """Return a kernel `k` of `parameters` pointers, in %rd0 ... and %tid.x in %t."""
    listed = ", ".join(f".param .u64 p{n}" for n in range(parameters))
    loads = "\n".join(f"ld.param.u64 %rd{n}, [p{n}];" for n in range(parameters))
    return f"""{head}
.visible .entry k({listed}) {{
.reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .f32 %f<64>; .reg .b64 %rd<64>;
.reg .f64 %d<16>; .reg .b32 %t; .reg .b64 %at; .reg .b64 %tw;
{loads}
mov.u32 %t, %tid.x;
cvt.u64.u32 %tw, %t;
{text}
ret;
}}
"""


def f32(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Return reproducible numbers in -1..1."""
    return np.random.default_rng(seed).uniform(-1, 1, count).astype(np.float32)
