"""The load of a model's engines: an average that fades, in the model's own time."""

from __future__ import annotations

import pytest

from tests.support.clocks import Manual
from ugpu.virtual.shader.load import Load


def test_the_average_does_not_depend_on_who_reads_it() -> None:
    """After hours without a reading, a little work shows as after a reading a moment ago."""
    seen = []
    for readings in (0, 10):
        clock = Manual(tick=0.0)
        load = Load(clock.now, fade_s=0.1)
        for _ in range(readings):
            clock.time += 360.0
            assert load.share() == 0.0
        clock.time += 3600.0
        with load.working():
            clock.time += 0.1
        seen.append(load.share())
    assert seen == pytest.approx([0.632, 0.632], abs=0.001)


def test_work_fills_it_and_rest_empties_it() -> None:
    clock = Manual(tick=0.0)
    load = Load(clock.now, fade_s=0.1)
    assert load.share() == 0.0
    with load.working(), load.working():
        clock.time += 1.0
        assert load.share() == pytest.approx(1.0, abs=1e-4)
        clock.time += 1.0
    assert load.share() == pytest.approx(1.0, abs=1e-8)
    clock.time += 0.1
    assert load.share() == pytest.approx(0.368, abs=0.001)
    clock.time += 10.0
    assert load.share() == pytest.approx(0.0, abs=1e-9)


def test_an_engine_that_fails_has_ended_its_work() -> None:
    clock = Manual(tick=0.0)
    load = Load(clock.now, fade_s=0.1)
    with pytest.raises(ValueError, match="broken"), load.working():
        raise ValueError("broken")
    clock.time += 10.0
    assert load.share() == 0.0
