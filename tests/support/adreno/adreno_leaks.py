"""Kernels by hand that leave a secret in an Adreno shader processor, and that look for it: a
compiler writes registers and local memory before it reads them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support.adreno.ir3_text import END, c, i, k, r, spaced
from ugpu.hcq.device.device import Device
from ugpu.hcq.objects.ir3_object import Ir3Kernel, Ir3Parameter, pack_ir3
from ugpu.qcom import chips

SECRET = 0x5EC2E75
THREADS, GROUPS, KINDS = 256, 4, 8
FAR = 100  # vec4 of the constant file
LOCAL = 32 << 10
EACH = LOCAL // THREADS  # bytes of a thread
SS, SY = 1 << 44, 1 << 60
_OUT = Ir3Parameter("out", 0, 8, True)


def word(target: int, source: int, kind: str = "gpr") -> int:
    """A move of 32 bits."""
    return i(f"mov-{kind}", DST=target, SRC=source, SRC_TYPE=3, DST_TYPE=3)


def kernel(chip: str, code: Sequence[int], *more: Ir3Parameter) -> Ir3Kernel:
    """A kernel by hand: waves of 64 threads, 12 registers, all of local memory."""
    facts = chips.facts(chip)
    words = [*spaced(list(code)), END]
    words += [0] * (-len(words) % 16)
    return Ir3Kernel(
        "by_hand", facts.chip_ids[0], facts.generation, THREADS, (_OUT, *more), len(words), 12, 0,
        merged_registers=True, constants=facts.constants, immediates=(), immediates_at=0,
        local_size=LOCAL, private_size=0, private_per_wave=True, branch_stack=0, double_wave=False,
        early_preamble=False, barrier=False, group_register=r(48), thread_register=0,
        code=struct.pack(f"<{len(words)}Q", *words),
    )  # fmt: skip


def plant(chip: str) -> Ir3Kernel:
    """Leaves the secret at both ends of each thread's part of local memory, in r5.x, r7.w, r49.y
    and a constant."""
    far = Ir3Parameter("value", 16 * FAR, 4, False)
    store = {"DST": r(2), "SRC": r(5), "SIZE": 1, "TYPE": 3}
    return kernel(chip, [
        i("shl.b", DST=r(2), SRC1=0, SRC2=k(EACH.bit_length() - 1), FULL=1),
        word(r(5), 4 * FAR, "const"), word(r(7, "w"), 4 * FAR, "const"),
        i("stl", **store), i("stl", **store, OFF_LO=EACH - 4), word(r(49, "y"), r(5)), SS | SY,
    ], far)  # fmt: skip


def find(chip: str) -> Ir3Kernel:
    """Stores what a thread finds, KINDS words each: the two of local memory, r5.x, r7.w, r49.y, the
    constant."""
    load = {"SRC": r(2), "SIZE": 1, "TYPE": 3}
    kinds = [r(3), r(3, "y"), r(5), r(7, "w"), r(3, "z"), r(3, "w")]
    size = 4 * KINDS
    return kernel(chip, [
        i("shl.b", DST=r(2), SRC1=0, SRC2=k(EACH.bit_length() - 1), FULL=1),
        i("ldl", DST=r(3), **load), i("ldl", DST=r(3, "y"), **load, OFF=EACH - 4),
        word(r(3, "z"), r(49, "y")), word(r(3, "w"), 4 * FAR, "const"),
        i("shl.b", DST=r(1), SRC1=0, SRC2=k(size.bit_length() - 1), FULL=1),
        word(r(4), r(48)),
        i("shl.b", DST=r(4), SRC1=r(4), SRC2=k((size * THREADS).bit_length() - 1), FULL=1),
        i("add.u", DST=r(1), SRC1=r(1), SRC2=r(4), FULL=1),
        i("add.u", DST=r(1), SRC1=r(1), SRC2=c(0), FULL=1), word(r(1, "y"), 1, "const"), SS | SY,
        *(
            i("stg", DST_OFF=0, SRC1=r(1), SRC3=kind, SIZE=1, TYPE=3, OFF_LO=4 * place)
            for place, kind in enumerate(kinds)
        ),
    ])  # fmt: skip


def launch(device: Device, made: Ir3Kernel, *more: Any) -> Any:
    """Run a kernel; what its threads stored, by kinds."""
    with (
        device.load(pack_ir3([made])) as program,
        device.alloc(4 * KINDS * THREADS * GROUPS) as out,
    ):
        out.fill(0)
        with device.queue() as queue:
            queue.launch(program["by_hand"], grid=(GROUPS,), block=(THREADS,), args=(out, *more))
        device.synchronize()
        return out.numpy(np.uint32).reshape(-1, KINDS)[:, :6].T
