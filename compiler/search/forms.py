"""Find the fastest of several equivalent graphs on a device: whole graphs are measured inside a
`tuning` block, the results are kept like the choices of kernels, and used wherever they are built.

The choices of a graph's kernels are searched first, each kernel separately (compiler.search.tune),
so forms are compared at their best. They run in this process: their kernels have been tried before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from ugpu.compiler.codegen.process.children import version
from ugpu.compiler.graph.forms import Makes
from ugpu.compiler.kernel.choices import Form
from ugpu.compiler.runtime.runtime import runtime_of
from ugpu.compiler.search.measurer import OUT_OF_TIME
from ugpu.compiler.search.tune import FORMS, KernelTuning, active
from ugpu.hcq.device.device import Device
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.find import planting

RUNS = 9  # runs of each form, in turns
SHARE_S = 0.5  # approximate seconds of all runs after the first


def preferred(
    device: Device,
    what: str,
    forms: Mapping[str, Makes],
    clock: Callable[[], float] = time.perf_counter,
) -> str | None:
    """Return the name of the fastest form found for `what`, a text with all that it depends on
    besides the device; None without a search. Inside a `tuning` block, search once."""
    runtime = runtime_of(device)
    store, tuner = runtime.programs.tuned, active()
    if tuner is None and not store.exists():
        return None
    name, _ = planting.split(device.name)  # without planted faults
    kind = name if name.startswith("virtual:") else name.partition(":")[0]
    target = repr(sorted(asdict(device.target).items(), key=str))
    key = DiskCache.key("form", what, *forms, kind, target, version())
    known = store.get(key)
    found = known.name if isinstance(known, Form) and known.name in forms else None
    if tuner is None or key in tuner.done:
        return found
    tuner.done[key] = None
    if tuner.clock() >= tuner.end:
        tuner.report.kernels.append(KernelTuning(what, FORMS, None, OUT_OF_TIME))
        return found
    times = _times(device, forms, clock)
    best = min(times, key=lambda name: times[name])
    store.put(key, Form(best))
    shown = ", ".join(f"{name} {seconds * 1e3:.3f} ms" for name, seconds in times.items())
    tuner.report.kernels.append(KernelTuning(what, FORMS, None, f"{best} ({shown})"))
    return best


def _times(
    device: Device, forms: Mapping[str, Makes], clock: Callable[[], float]
) -> dict[str, float]:
    """Return the seconds of each form, the fastest of some runs."""
    runtime = runtime_of(device)
    best: dict[str, float] = {}
    begun = clock()
    for turn in range(RUNS + 1):
        for name, make in forms.items():
            sources, build = make()
            runtime.realize(sources)
            device.synchronize()
            root = build(sources)
            start = clock()
            runtime.realize([root])
            device.synchronize()
            seconds = clock() - start
            if turn:  # the first run prepares
                best[name] = min(best.get(name, seconds), seconds)
        if not turn:
            begun = clock()
        elif clock() - begun > SHARE_S:
            break
    return best
