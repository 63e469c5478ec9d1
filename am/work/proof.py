"""Proof that queues work after a reset: signals, and a kernel and copies with known results.

The driver does not depend on a compiler: the kernel of a generation is machine code in its folder.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ugpu.am.packets.dispatch import LaunchDetails, encode_setup
from ugpu.am.work.kernels import PROOF_ARGUMENTS
from ugpu.am.work.queue import ComputeQueue, CopyQueue
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.errors import ChipError, OutOfMemory, UnitTimeout
from ugpu.hcq.objects.code_object import KernelImage
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.command import Command, Copy, Launch, Signal
from ugpu.hcq.work.command_buffer import Symbol, values_of
from ugpu.hcq.work.program import Kernel, Program

if TYPE_CHECKING:
    from ugpu.am.work.holder import Holder
    from ugpu.am.work.queue import RingQueue
    from ugpu.hcq.work.timeline import Timeline

PROOF_LIMIT_S = 0.5  # how long a queue may take to show that it works again
_SIZE = 4096  # bytes of each memory
_RESULT, _PATTERN, _COPIED = 0, 1024, 2048  # in the host's memory
_COPY_BYTES = 1024
_THREADS = 32
_SEED = 0x5EED_0000
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
    image = KernelImage(_NAME, 0, 0, descriptor, (), (), _THREADS, {})
    setup = encode_setup(descriptor, address, None, queue.registers)
    kernel = Kernel(
        _NAME, Program(driver.core, None), address, PROOF_ARGUMENTS.size, None,
        details=LaunchDetails(image, address, _THREADS, setup),
    )  # fmt: skip
    arguments = PROOF_ARGUMENTS.pack(int(host.address) + _RESULT, _SEED)
    host.view[_RESULT : _RESULT + 4 * _THREADS] = bytes(4 * _THREADS)
    _run(driver, queue, [Launch(kernel, (1, 1, 1), (_THREADS, 1, 1), arguments)])
    found = struct.unpack(f"<{_THREADS}I", bytes(host.view[_RESULT : _RESULT + 4 * _THREADS]))
    expected = tuple(3 * n + _SEED for n in range(_THREADS))
    if found != expected:
        thread = next(n for n in range(_THREADS) if found[n] != expected[n])
        raise ChipError(
            f"{queue.name}: a kernel stored {found[thread]:#x} in thread {thread}, expected"
            f" {expected[thread]:#x}",
            queue=queue.name,
        )


def _copy(driver: Holder, queue: CopyQueue, device: Mapping, host: Mapping) -> None:
    pattern = struct.pack("<256I", *(n * 0x0101_0101 ^ queue.engine.index for n in range(256)))
    host.view[_PATTERN : _PATTERN + _COPY_BYTES] = pattern
    host.view[_COPIED : _COPIED + _COPY_BYTES] = bytes(_COPY_BYTES)
    near, base = Symbol.constant(int(device.address)), int(host.address)
    _run(driver, queue, [
        Copy(near, Symbol.constant(base + _PATTERN), _COPY_BYTES),
        Copy(Symbol.constant(base + _COPIED), near, _COPY_BYTES),
    ])  # fmt: skip
    found = bytes(host.view[_COPIED : _COPIED + _COPY_BYTES])
    if found != pattern:
        byte = next(n for n in range(_COPY_BYTES) if found[n] != pattern[n])
        raise ChipError(
            f"{queue.name}: byte {byte} of a copy is {found[byte]:#x}, expected {pattern[byte]:#x}",
            queue=queue.name,
        )


def _run(driver: Holder, queue: RingQueue, commands: Sequence[Command]) -> None:
    """Run commands, followed by a signal, to their end."""
    timeline = queue.timeline
    value = timeline.last + 1
    buffer = queue.encode([*commands, Signal(timeline, Symbol.constant(value))])
    queue.submit(buffer, values_of(buffer, value))
    try:
        driver.clock.wait_until(
            partial(_reached, timeline, value),
            unit=queue.name,
            waiting_for="a signal after the reset",
            limit_s=PROOF_LIMIT_S,
        )
    except UnitTimeout as error:
        raise ChipError(f"{queue.name} does not run after the reset", **error.facts) from error


def _reached(timeline: Timeline, value: int) -> bool:
    return timeline.value >= value
