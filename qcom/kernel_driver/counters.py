"""Performance counters of KGSL: events counted by the GPU, for the whole GPU and all programs.

Source: Qualcomm's KGSL, adreno_perfcounter.c (programs that request the same event share its
counter) and msm_kgsl.h.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from ugpu.hcq.errors import BadArgument, UgpuError
from ugpu.qcom.kernel_driver.interface import address_of
from ugpu.qcom.kernel_driver.kgsl import Kgsl

_PREFIX = "KGSL_PERFCOUNTER_GROUP_"
MOST = 100  # events of one PERFCOUNTER_READ

Event = tuple[str, int]


class Counters:
    """Counters of some events, (group, number): ("SP", 1), numbered as in Mesa's perfcntrs.

    Released by `close` (idempotent) or at the end of a `with`. DriverRefused or DeviceBusy where
    the GPU has no free counter; then none is held. Values do not start at zero: use differences.
    """

    def __init__(self, kgsl: Kgsl, events: Iterable[Event]) -> None:
        self.kgsl = kgsl
        self.events = tuple(dict.fromkeys(events))
        self._held: list[dict[str, int]] = []
        if not 0 < len(self.events) <= MOST:
            raise BadArgument(f"expected 1 to {MOST} events, got {len(self.events)}")
        groups = [name.removeprefix(_PREFIX) for name in kgsl.names if name.startswith(_PREFIX)]
        for group, number in self.events:
            if group not in groups or group == "MAX":
                raise BadArgument(f"expected a group of counters such as SP or UCHE, got {group!r}")
            if not 0 <= number < kgsl.names.KGSL_PERFCOUNTER_BROKEN:
                raise BadArgument(f"expected the number of an event of {group}, got {number}")
        try:
            for group, number in self.events:
                pair = {"groupid": kgsl.names[_PREFIX + group], "countable": number}
                self._held.append(pair)  # first: releasing one that was not obtained is harmless
                self._call("GET", kgsl.layouts.kgsl_perfcounter_get.new(**pair).raw)
        except BaseException:
            self.close()
            raise

    def _call(self, name: str, argument: bytearray | memoryview) -> None:
        request = self.kgsl.names[f"IOCTL_KGSL_PERFCOUNTER_{name}"]
        self.kgsl.call(f"PERFCOUNTER_{name}", request, argument)

    def read(self) -> dict[Event, int]:
        """Return the current 64-bit values. BadArgument after `close`."""
        if not self._held:
            raise BadArgument("these counters have been released")
        layout = self.kgsl.layouts.kgsl_perfcounter_read_group
        raw = bytearray(layout.size * len(self._held))
        for position, pair in enumerate(self._held):
            row = layout.view(raw, position * layout.size)
            row.groupid, row.countable = pair["groupid"], pair["countable"]
        argument = self.kgsl.layouts.kgsl_perfcounter_read.new(
            reads=address_of(raw), count=len(self._held)
        )
        self._call("READ", argument.raw)
        values = [layout.view(raw, at).value for at in range(0, len(raw), layout.size)]
        return dict(zip(self.events, values, strict=True))

    def close(self) -> None:
        """Release the counters; errors of the kernel driver are ignored."""
        while self._held:
            if not self.kgsl.closed:
                with contextlib.suppress(UgpuError):
                    argument = self.kgsl.layouts.kgsl_perfcounter_put.new(**self._held[-1])
                    self._call("PUT", argument.raw)
            self._held.pop()

    def __enter__(self) -> Counters:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
