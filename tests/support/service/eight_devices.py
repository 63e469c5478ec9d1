"""Eight open devices whose telemetry is served, one of them wedged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ugpu import hcq
from ugpu.hcq.device.observe import Observer
from ugpu.hcq.state.telemetry import Sensor

WEDGED = 3


@contextmanager
def eight(folder: Path, heat: list[float] | None = None) -> Iterator[threading.Event]:
    """Devices pci:0 to pci:7 with a power sensor, a hot spot of heat[0] degrees, and a socket in
    `folder`; pci:3 is wedged until the event is set."""
    held = threading.Event()
    warm = heat if heat is not None else [50.0]
    with ExitStack() as stack:
        for number in range(8):
            core = stack.enter_context(hcq.open("cpu")).driver.core
            core.name = f"pci:{number}"

            def power(wedged: bool = number == WEDGED) -> float:
                if wedged:
                    held.wait()
                return 42.0

            sensors = (
                Sensor("power_watts", "W", power, "socket"),
                Sensor("temperature_celsius", "°C", lambda: warm[0], "hotspot"),
            )
            core.driver.sensors = lambda sensors=sensors: sensors  # type: ignore[method-assign,misc]
            stack.callback(Observer(core, folder).stop)
        stack.callback(held.set)
        yield held
