"""Proof that queues work after a reset: signals, and a kernel and copies with known results.

The driver does not depend on a compiler: the kernel of a generation is machine code in its folder.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ugpu.am.packets.dispatch import LaunchDetails, encode_setup
from ugpu.am.work.kernels import PROOF_ARGUMENTS
from ugpu.am.work.queue import ComputeQueue, CopyQueue
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.errors import ChipError, OutOfMemory, UnitTimeout
from ugpu.hcq.objects.code_object import KernelImage
from ugpu.hcq.rings.proof import COPY_BYTES, SEED, THREADS, check_copy, check_kernel, pattern
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.command import Command, Copy, Launch
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.hcq.work.program import Kernel, Program

if TYPE_CHECKING:
    from ugpu.am.work.holder import Holder
    from ugpu.am.work.queue import RingQueue

PROOF_LIMIT_S = 0.5  # how long a queue may take to show that it works again
_SIZE = 4096  # bytes of each memory
_RESULT, _PATTERN, _COPIED = 0, 1024, 2048  # in the host's memory
_NAME = "ugpu.proof"


def signals(driver: Holder, queues: Sequence[RingQueue]) -> None:
    """Have each queue execute one signal; ChipError if one does not."""
    for queue in queues:
        _run(driver, queue, [])


def work(driver: Holder, queues: Sequence[RingQueue]) -> dict[str, object]:
    """Have each compute queue run a kernel, and each copy queue copy into device memory and back.
    Returns the work done. Raises ChipError for a wrong result. Without memory for this work, each
    queue executes a signal instead."""
    try:
        with _memory(driver) as (code, device, host):
            for queue in queues:
                if isinstance(queue, ComputeQueue):
                    _launch(driver, queue, code, host)
                elif isinstance(queue, CopyQueue):
                    _copy(driver, queue, device, host)
    except OutOfMemory as error:  # memory is full of the program's buffers, which must survive
        signals(driver, queues)
        return {"kernel": f"not run: {error}", "copy": f"not made: {error}"}
    found: dict[str, object] = {}
    for what, kind in (("kernel", ComputeQueue), ("copy", CopyQueue)):
        names = [queue.name for queue in queues if isinstance(queue, kind)]
        if names:
            found[what] = f"right on {', '.join(names)}"
    return found


@contextlib.contextmanager
def _memory(driver: Holder) -> Iterator[tuple[Mapping, Mapping, Mapping]]:
    """Allocate memory for code, for data on the device, and for data that the host reaches."""
    made: list[Mapping] = []
    try:
        for placement, code in (
            (Placement.DEVICE, True), (Placement.DEVICE, False), (Placement.HOST, False)
        ):  # fmt: skip
            made.append(driver.map(_SIZE, placement, code=code))
        yield made[0], made[1], made[2]
    finally:
        for mapping in made:
            driver.unmap(mapping)


def _launch(driver: Holder, queue: ComputeQueue, code: Mapping, host: Mapping) -> None:
    proof = driver.generation.proof
    address, descriptor = int(code.address), proof.descriptor
    driver.programs.write(code, struct.pack(f"<{len(proof.words)}I", *proof.words))
    image = KernelImage(_NAME, 0, 0, descriptor, (), (), THREADS, {})
    setup = encode_setup(descriptor, address, None, queue.registers)
    kernel = Kernel(
        _NAME, Program(driver.core, None), address, PROOF_ARGUMENTS.size, None,
        details=LaunchDetails(image, address, THREADS, setup),
    )  # fmt: skip
    arguments = PROOF_ARGUMENTS.pack(int(host.address) + _RESULT, SEED)
    host.view[_RESULT : _RESULT + 4 * THREADS] = bytes(4 * THREADS)
    _run(driver, queue, [Launch(kernel, (1, 1, 1), (THREADS, 1, 1), arguments)])
    check_kernel(queue.name, host.view[_RESULT : _RESULT + 4 * THREADS])


def _copy(driver: Holder, queue: CopyQueue, device: Mapping, host: Mapping) -> None:
    data = pattern(queue.engine.index)
    host.view[_PATTERN : _PATTERN + COPY_BYTES] = data
    host.view[_COPIED : _COPIED + COPY_BYTES] = bytes(COPY_BYTES)
    near, base = Symbol.constant(int(device.address)), int(host.address)
    _run(driver, queue, [
        Copy(near, Symbol.constant(base + _PATTERN), COPY_BYTES),
        Copy(Symbol.constant(base + _COPIED), near, COPY_BYTES),
    ])  # fmt: skip
    check_copy(queue.name, host.view[_COPIED : _COPIED + COPY_BYTES], data)


def _run(driver: Holder, queue: RingQueue, commands: Sequence[Command]) -> None:
    """Run commands, followed by a signal, to their end."""
    value = queue.run(commands)
    try:
        driver.clock.wait_until(
            lambda: queue.timeline.value >= value,
            unit=queue.name,
            waiting_for="a signal after the reset",
            limit_s=PROOF_LIMIT_S,
        )
    except UnitTimeout as error:
        raise ChipError(f"{queue.name} does not run after the reset", **error.facts) from error
