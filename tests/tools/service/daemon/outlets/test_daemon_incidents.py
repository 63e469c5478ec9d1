"""Faults and resets of leases as events; the moments that are kept for plots."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ugpu.hcq.errors import PageFault
from ugpu.hcq.state.ladder import Attempt, Diagnosis, Level
from ugpu.hcq.work.recovery import Recovery
from ugpu.tools.service.daemon.cards.readings import KEPT_S, STEP_S, Readings
from ugpu.tools.service.daemon.cards.ward import Ward
from ugpu.tools.service.daemon.clients.incidents import EVERY_S, Incidents
from ugpu.tools.service.daemon.outlets.feed import Feed, attached, detach

DAEMON = logging.getLogger("ugpu.tools.service.daemon")


@pytest.fixture
def feed() -> Iterator[Feed]:
    level = DAEMON.level
    DAEMON.setLevel(logging.INFO)
    made = attached()
    yield made
    detach(made)
    DAEMON.setLevel(level)


def test_a_fault_is_told_with_lease_holder_and_kernel(feed: Feed) -> None:
    told = Incidents("gpu#0", 7, "ann\n(pid 3)", lambda: 0.0)
    told.fault(PageFault("write 0x0 faulted", kernel="scale", remedy="reset"))
    told.reset(Recovery(cast(Diagnosis, None), (Attempt("queues", Level.QUEUE, True, 0.1),), ()))
    fault, reset = feed.after(0)
    fields = cast(dict[str, str], fault["fields"])
    assert fault["kind"] == "lease.fault" and fault["level"] == "warning"
    assert (fields["device"], fields["lease"], fields["kernel"]) == ("gpu#0", "7", "scale")
    assert fields["class"] == "PageFault" and "\n" not in fields["holder"]
    assert "gpu#0: lease 7 of ann" in str(fault["text"]) and "\n" not in str(fault["text"])
    assert reset["kind"] == "lease.reset" and "queues" in str(reset["text"])


def test_a_lease_that_faults_in_a_loop_is_told_of_now_and_then(feed: Feed) -> None:
    now = [0.0]
    told = Incidents("gpu#0", 7, "ann", lambda: now[0])
    for _ in range(1000):
        told.fault(PageFault("again"))
    assert len(feed.after(0)) == 1
    now[0] = EVERY_S
    told.fault(PageFault("again"))
    assert str(feed.after(0)[-1]["text"]).endswith("(999 more since the last one)")
    now[0] = 2 * EVERY_S
    told.fault(PageFault("again"))
    assert "more since" not in str(feed.after(0)[-1]["text"])


class Card:
    """A card whose telemetry is of a given time."""

    name = "gpu#0"
    is_open = True
    when = 0.0

    def telemetry(self) -> bytes:
        samples = [
            {"name": "clock_hertz", "value": v, "unit": "Hz", "label": ""} for v in (1, 3, 2)
        ]
        samples.append({"name": "fan_rpm", "value": 9, "unit": "rpm", "label": ""})
        return json.dumps({"time": self.when, "samples": samples}).encode()


def test_the_moments_that_are_kept_have_a_limit() -> None:
    card = Card()
    ward: Any = SimpleNamespace(owned=[card])
    with ThreadPoolExecutor(1) as pool:
        readings = Readings(cast(Ward, ward), pool)
        steps = int(KEPT_S / STEP_S)
        for number in range(3 * steps):
            card.when = number * STEP_S / 2
            readings.ask()
            pool.submit(int).result()  # the only thread has taken the telemetry
        past = readings.past("gpu#0")
        assert len(past) <= steps and past[-1][0] - past[0][0] <= KEPT_S
        assert all(b[0] - a[0] >= STEP_S for a, b in itertools.pairwise(past))
        assert past[-1][1] == {"clock_hertz": 3}
        card.when = 0.0
        readings.ask()
        pool.submit(int).result()
        assert [when for when, _ in readings.past("gpu#0")] == [0.0], "the clock was set back"
        assert readings.past("none") == []
