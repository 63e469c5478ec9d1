"""Test whether a device is healthy: memory, copies and kernels against known results."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np

from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DiscoveryError, FirmwareError, LinkError, UgpuError, UnitTimeout
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.state.telemetry import Sensor

log = logging.getLogger(__name__)

# Errors that no program can cause: the device, its firmware or its link has failed.
DEVICE_ERRORS = (LinkError, FirmwareError, DiscoveryError, UnitTimeout)
PATTERNS = (0x00000000, 0xFFFFFFFF, 0xAAAAAAAA, 0x55555555)
BYTES = 1 << 20
LIMIT_S = 10.0
CLOCKS_S = 1.0  # work before its clock is judged: sensors are updated ten times a second
FILLS = 8  # of BYTES in a submission, at first; twice as many after each break
MOST_FILLS = 1024


@dataclass(frozen=True)
class Health:
    """The result of a self-test. trouble: the fault found; empty for a healthy device."""

    trouble: str = ""

    def __bool__(self) -> bool:
        return not self.trouble


def check(device: Device) -> Health:
    """Reset the device if it has failed, and test it. Raises nothing but KeyboardInterrupt."""
    limit_s, device.limit_s = device.limit_s, LIMIT_S
    try:
        if device.failure is not None:
            level = device.reset().level
            if level > Level.PIPE:  # a program's fault stops queues, not the firmware behind them
                return Health(f"it came back by a reset of level {level.label}")
        return Health(_memory(device) or _kernels(device) or _clocks(device))
    except UgpuError as error:
        return Health(f"{type(error).__name__}: {error.message}")
    except Exception as error:
        return Health(f"self-test: {type(error).__name__}: {error}")
    finally:
        device.limit_s = limit_s


def _memory(device: Device) -> str:
    """Test patterns, addresses as values, and a copy within the device."""
    words = np.arange(BYTES // 4, dtype=np.uint32)
    with device.alloc(BYTES) as first, device.alloc(BYTES) as second:
        for pattern in (*(np.full_like(words, value) for value in PATTERNS), words * 2654435761):
            first.copy_from(pattern)
            queue = device.queue()
            queue.copy(second, first)
            queue.timeline.wait(queue.submit())
            for name, buffer in (("memory", first), ("copy", second)):
                stored = buffer.numpy(np.uint32)
                wrong = np.flatnonzero(stored != pattern)
                if wrong.size:
                    at = int(wrong[0])
                    return (
                        f"{name}: {wrong.size} of {words.size} words differ, the first at byte "
                        f"{4 * at}: expected {int(pattern[at]):#010x}, got {int(stored[at]):#010x}"
                    )
    return ""


def _kernels(device: Device) -> str:
    """Test a product and a sum whose results are exact in float32."""
    left = (np.arange(64 * 48) % 7 - 3).reshape(64, 48).astype(np.float32)
    right = (np.arange(48 * 32) % 5 - 2).reshape(48, 32).astype(np.float32)
    product = (Tensor(left, device=device) @ Tensor(right, device=device)).numpy()
    if not np.array_equal(product, left @ right):
        return "a 64 x 48 x 32 product of integers in float32 is wrong"
    total = float(Tensor(left, device=device).sum().numpy())
    return "" if total == float(left.sum()) else f"a sum is {total}, expected {float(left.sum())}"


def _clocks(device: Device) -> str:
    """Test the graphics clock of a busy device. It must run, if the device measures it, and leave
    its lowest level, if the driver reports the levels. How far it rises above that depends on the
    load, on power and on temperature. An idle clock may be gated, and the firmware averages over a
    while, so readings count only while the device has worked for CLOCKS_S without a break. A busy
    host that gives the device a break must not cost a healthy device."""
    clock = next(
        (
            sensor
            for sensor in device.sensors()
            if (sensor.name, sensor.label) == ("clock_hertz", "gfx")
        ),
        None,
    )
    if clock is None:
        return ""
    lowest, highest = device.driver.clock_levels().get("gfx", (0.0, 0.0))
    peak = _busy_clock(device, clock, lowest)
    if peak is None:
        log.warning("%s: clock not tested: the host does not keep the device busy", device.name)
        return ""
    if peak > lowest:
        return ""
    if not lowest:
        return "the graphics clock of a busy device reads 0 Hz"
    return (
        f"the graphics clock of a busy device reads at most {peak / 1e6:.0f} MHz: expected "
        f"more than its lowest level, {lowest / 1e6:.0f} MHz, of up to {highest / 1e6:.0f} MHz"
    )


def _busy_clock(device: Device, clock: Sensor, lowest: float) -> float | None:
    """Read the clock until it exceeds `lowest`, or has not done so during CLOCKS_S of work without
    a break; return the highest reading. None: the host has given the device breaks until
    LIMIT_S."""
    highest, fills, judged = 0.0, FILLS, False
    with device.alloc(BYTES) as buffer, device.queue() as queue:

        def submit() -> int:
            for _ in range(fills):
                queue.fill(buffer, 0)
            return queue.submit()

        running = submit()
        since = time.monotonic()
        end = since + LIMIT_S
        while highest <= lowest and not judged and time.monotonic() < end:
            following = submit()
            if queue.timeline.reached(running):  # it may have ended before the next was submitted
                since, fills = time.monotonic(), min(2 * fills, MOST_FILLS)
            highest = max(highest, clock.read())
            queue.timeline.wait(running)
            running = following
            judged = time.monotonic() - since >= CLOCKS_S and not queue.timeline.reached(running)
        queue.timeline.wait(running)
    return highest if highest > lowest or judged else None
