"""The fault campaign (`make faults`): its table, page and judgement, and a part of its cases."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from lab.campaign.command import PAGE, find, run_batch
from lab.campaign.kind import Case, Kind, cases_of, nothing
from lab.campaign.kinds.host import Raiser
from lab.campaign.run import run
from lab.campaign.stands.devices import STANDS
from lab.campaign.table import KINDS, render
from ugpu.hcq.errors import BadPacket, FirmwareSilent

CASES = cases_of(KINDS)
_ONE_OF_EACH = "navi31", "gh100", "vfio", "vfio-user", "libusb", "a630"


def few(every: int, devices: tuple[str, ...] = _ONE_OF_EACH) -> list[Case]:
    """A part of the cases, of one device of each driver."""
    of_some = [case for case in CASES if case.device in devices]
    return of_some[::every]


def kind(name: str) -> Kind:
    (found,) = [one for one in KINDS if one.name == name]
    return found


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert render(KINDS) == text, "`python -m lab.campaign --write` writes docs/faults.md"


def test_the_table() -> None:
    names = [one.name for one in KINDS]
    assert len(set(names)) == len(names) >= 150
    for one in KINDS:
        assert one.devices and one.stages and one.source and one.planted, one.name
        assert set(one.devices) <= set(STANDS), one.name
        assert set(one.errors) <= set(one.stages), one.name
    assert len(set(CASES)) == len(CASES)


@pytest.mark.parametrize("case", few(18), ids=str)
def test_a_case(case: Case) -> None:
    (result,) = run_batch([case], seed=1)
    assert result.failed == {}


@pytest.mark.slow
@pytest.mark.parametrize("case", few(4, (*_ONE_OF_EACH, "navi48")), ids=str)
def test_more_cases(case: Case) -> None:
    (result,) = run_batch([case], seed=2)
    assert result.failed == {}


RING = "PSP refuses its ring"


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"error": FirmwareSilent}, "named"),
        ({"error": None}, "named"),
        ({"facts": {"status": 8}}, "named"),
        ({"state": "PSP: bootloader not ready"}, "named"),
        ({"remedy": "reseat"}, "remedy"),
        ({"plant": lambda stand: None}, "detected"),
        ({"cure": lambda stand: None}, "recovered"),
    ],
)
def test_what_is_wrong_in_the_table_fails(change: dict[str, object], check: str) -> None:
    changed = replace(kind(RING), **change)  # type: ignore[arg-type]
    case = Case(RING, "PSP ring", "navi31")
    result = run(case, changed, lambda: STANDS["navi31"](1))
    assert list(result.failed) == [check]


def test_a_leak_and_a_changed_buffer_are_found() -> None:
    name = "unknown packet of a compute queue"
    case, kept = Case(name, "launch", "navi31"), []

    def leaks(stand: object) -> None:
        kept.append(os.open(__file__, os.O_RDONLY))

    result = run(case, replace(kind(name), cure=leaks), lambda: STANDS["navi31"](1))
    assert list(result.failed) == ["leaked"]
    for descriptor in kept:
        os.close(descriptor)

    def spoils(stand: object) -> None:
        stand.device.reset()  # type: ignore[attr-defined]
        stand.witnesses[0].fill(7)  # type: ignore[attr-defined]

    result = run(case, replace(kind(name), cure=spoils), lambda: STANDS["navi31"](1))
    assert list(result.failed) == ["intact"]
    assert kind(name).error is BadPacket


def test_kinds_are_found_by_name_layer_and_device() -> None:
    assert [one.name for one in find(RING)] == [RING]
    assert {one.layer.value for one in find("memory")} >= {"memory"}
    assert all("gh100" in one.devices for one in find("gh100"))


def test_a_line_that_the_stage_does_not_reach_is_not_met_later() -> None:
    """The fault is taken back before anything else of the driver runs."""
    name = "Ctrl-C at a line of the driver"

    def late(stand: object) -> None:
        sys.settrace(Raiser(0, KeyboardInterrupt))

    case = Case(name, "launch", "navi31")
    result = run(
        case, replace(kind(name), provoke=late, plant=nothing), lambda: STANDS["navi31"](1)
    )
    assert result.failed == {}
