"""Python calls of one thread: of a first open in a fresh process, and of what programs do often.

    python -m tests.support.python_calls NAME         counts as JSON, by what was done

Not counted, since they depend on the host: calls inside imports, and inside waits for hardware,
which poll a model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType

import ugpu

TIMES = 8  # that each thing is done: the driver looks for failures only now and then
SIZE = 1 << 16
_UNCOUNTED = ("_find_and_load", "Clock.wait_until")  # names of functions: imports and waits


class Calls:
    """`with Calls() as calls:` counts the Python calls of this thread inside, in `calls.count`."""

    def __init__(self) -> None:
        self.count = 0
        self._inside = 0  # of how many functions that are not counted

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            if frame.f_code.co_qualname in _UNCOUNTED:
                self._inside += 1
            elif not self._inside:
                self.count += 1
        elif event == "return" and frame.f_code.co_qualname in _UNCOUNTED:
            self._inside -= 1

    def __enter__(self) -> Calls:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self.count -= 1  # __exit__ itself


def least(act: Callable[[], object], settle: Callable[[], object]) -> int:
    """Return the fewest calls of `act`, not the first time; `settle` follows and is not counted."""
    counts = []
    for _ in range(TIMES):
        with Calls() as calls:
            act()
        settle()
        counts.append(calls.count)
    return min(counts[1:])


def measure(name: str) -> dict[str, int]:
    """Open the device `name` and use it; return the calls of each thing."""
    with Calls() as opening:
        device = ugpu.open(name)
    import numpy as np

    from tests.support.kernels import contract_object
    from tests.support.waiting import until

    with device, device.alloc(SIZE) as out, device.alloc(SIZE) as given:
        kernel = device.load(contract_object(device.target))["scale"]
        args = (out, given, np.uint32(64), np.uint32(3))
        queue, timeline = device.queue(), device.queue().timeline
        content = np.arange(SIZE // 4, dtype=np.uint32)

        def launch() -> None:
            queue.launch(kernel, grid=(1,), block=(64,), args=args).submit()

        def ended() -> None:
            until(lambda: timeline.value >= timeline.last, "the queue to be idle")

        def waiting() -> int:
            launch()
            ended()
            with Calls() as calls:
                timeline.wait()
            return calls.count

        counts = {
            "open": opening.count,
            "launch": least(launch, ended),
            "wait": min(waiting() for _ in range(TIMES)),
            "copy in": least(lambda: given.copy_from(content), device.synchronize),
            "copy out": least(lambda: given.copy_to(content), device.synchronize),
            "copy within": least(lambda: queue.copy(out, given).submit(), device.synchronize),
        }
        with device.capture() as graph, device.queue() as captured:
            for _ in range(10):
                captured.launch(kernel, grid=(1,), block=(64,), args=args)
        counts["replay"] = least(graph.replay, ended)
    return counts


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
