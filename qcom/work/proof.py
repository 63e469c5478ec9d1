"""Proof that a context works: a signal when it is new, and kernels with a known result after a
reset.

The kernels are the driver's own (qcom/kernels): `fill` writes a pattern, `copy` reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ugpu.hcq.errors import ChipError, OutOfMemory
from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Signal
from ugpu.hcq.work.command_buffer import Symbol, values_of
from ugpu.qcom.kernel_driver.interface import Caching

if TYPE_CHECKING:
    from ugpu.qcom.work.holder import WorkHolder

LIMIT_S = 5.0  # TIMEOUT: a GPU that sleeps takes milliseconds to wake; our choice
_SIZE = 1024  # bytes that the kernels write
_PATTERN = 0x5EED_C0DE


def signal(driver: WorkHolder) -> dict[str, object]:
    """Run a single signal outside the queues, and wait for it. Raises UnitTimeout, or the kernel
    driver's error."""
    _run(driver, [])
    return {"ran": "a signal"}


def work(driver: WorkHolder) -> dict[str, object]:
    """Run kernels and a signal; ChipError for a wrong result. Without memory for that, only a
    signal."""
    interface = driver.interface
    try:
        memory = interface.allocate(2 * _SIZE, Caching.COMBINED)
    except OutOfMemory as error:  # the program's buffers, which must survive, fill the memory
        return signal(driver) | {"kernel": f"not run: {error}"}
    try:
        memory.view[: 2 * _SIZE] = bytes(2 * _SIZE)
        filled, copied = (Symbol.constant(memory.address + at) for at in (0, _SIZE))
        _run(driver, [Fill(filled, _PATTERN, _SIZE), Barrier(), Copy(copied, filled, _SIZE)])
        for name, start in (("fill", 0), ("copy", _SIZE)):
            words = struct.unpack_from(f"<{_SIZE // 4}I", memory.view, start)
            for place, word in enumerate(words):
                if word != _PATTERN:
                    raise ChipError(
                        f"{driver.name}: word {place} of a {name} is {word:#x}, expected "
                        f"{_PATTERN:#x}",
                        kernel=name,
                    )
    finally:
        memory.close()
    return {"ran": "a signal", "kernel": "fill and copy right"}


def _run(driver: WorkHolder, commands: Sequence[Command]) -> None:
    probe = driver.probe
    value = probe.advance()
    encoded = driver.encoder.encode([*commands, Signal(probe, Symbol.constant(value))])
    image = driver.interface.allocate(4 * len(encoded.words), Caching.COMBINED)
    try:
        values = values_of(encoded, value)
        for position, symbol in enumerate(encoded.symbols):
            if symbol.kind == "image":
                values[position] = image.address
        encoded.patch(encoded.words, values)
        image.view[: encoded.words.nbytes] = encoded.words.tobytes()
        parts = [
            (image, 4 * at, 4 * size) for segment in encoded.segments for at, size in segment.ranges
        ]
        driver.interface.prepare(parts).submit()
        driver.clock.wait_until(
            lambda: probe.value >= value,
            unit=driver.name,
            waiting_for="end of its first work",
            limit_s=LIMIT_S,
            state=driver.interface.progress,
        )
    finally:
        image.close()
