"""Opening the device, and what it and the machine say of themselves: comes before all else."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator

from lab.hw.budget import Budget
from lab.hw.report import Result
from ugpu import hcq
from ugpu.tools.inspect import nvidia

TITLE = "Opening"


def run(device: str, budget: Budget) -> Iterator[Result]:
    """Open it; the facts are the remark of the result of that name."""
    found = facts(device)
    yield Result(TITLE, "facts", "measured", remark=json.dumps(found))


def facts(device: str) -> dict[str, object]:
    """What the device and the machine say of themselves."""
    found: dict[str, object] = {}
    for entry in nvidia.entries():
        if entry.name == device:
            driver = str(entry.facts["driver"]).removeprefix("nvidia ")
            found |= {"gpu": entry.description, "driver": driver, "module": entry.facts["module"]}
    with hcq.open(device) as opened:
        info = opened.info()
        found |= {"target": opened.target.name}
        found |= {key: info[key] for key in ("gpu", "chip", "driver", "memory") if key in info}
    python = platform.python_version()
    return {**found, "machine": platform.machine(), "python": python, "kernel": platform.release()}
