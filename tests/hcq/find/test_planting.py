"""Faults planted by the name of a virtual device."""

from __future__ import annotations

import gc
import weakref
from dataclasses import fields
from typing import Any

import pytest

from ugpu import hcq
from ugpu.hcq.errors import BadArgument, DeviceLost, NotSupported, UgpuError
from ugpu.hcq.find import planting
from ugpu.virtual.amd.options import FaultPlan


def chip_of(device: Any) -> Any:
    return device.driver.transport.chip


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("virtual:navi33?lost_at_access=40", DeviceLost),
        ("virtual:gh100?fell_off", DeviceLost),
        ("virtual:gh100?no_channels=2", UgpuError),
        ("virtual:a630?strange_chip", UgpuError),
        ("virtual:a630+msm?VANISHED", UgpuError),
    ],
)
def test_a_name_plants_a_fault_before_the_driver_starts(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        hcq.open(name)


def test_values_of_every_type() -> None:
    name = "virtual:navi31?smu_busy=2&smu_responses=0x19:0xff,0x7f:4&mode2_ignored"
    name += "&lost_at_access=9000000&interrupts_lost=false"
    with hcq.open(name) as device:
        assert device.name == name
        plan = chip_of(device).faults
        planting.plant(device, "psp_reject=DBG_DRV,SOS")
        assert plan.smu_responses == {0x19: 0xFF, 0x7F: 4} and plan.psp_reject == {"DBG_DRV", "SOS"}
        assert plan.mode2_ignored and not plan.interrupts_lost
        assert plan.smu_busy == 0  # two of the driver's messages met it
        assert plan.lost_at_access == 9000000


def test_faults_are_planted_in_an_open_device_too() -> None:
    with hcq.open("virtual:navi31") as device:
        before = chip_of(device).accesses
        planting.plant(device, "lost_at_access=20000&smu_silent")
        assert chip_of(device).faults.smu_silent
        assert chip_of(device).faults.lost_at_access >= before + 20000
        planting.plant(device, "smu_silent=false")
    with hcq.open("cpu", threads=1) as device, pytest.raises(NotSupported, match="no model"):
        planting.plant(device, "smu_silent")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("virtual:navi32?smu_silnt", "unknown fault 'smu_silnt'; did you mean smu_silent"),
        ("virtual:gh100?hnag", "did you mean hang"),
        ("virtual:a630?opcod", "did you mean opcode"),
        ("virtual:navi31?zzz", "unknown fault 'zzz'; known: autoload_never"),
        ("virtual:navi31?psp_reject=SOX", "did you mean SOS"),
        ("virtual:navi31?psp_reject", "takes names with commas"),
        ("virtual:navi31?smu_busy=many", "smu_busy must be a number from 0, got 'many'"),
        ("virtual:navi31?smu_silent=maybe", "takes no value, or true or false"),
        ("virtual:gh100?hang=0", "hang must be a number from 1"),
        ("virtual:navi31?", "expected faults such as"),
        ("virtual:navi31?&", "expected faults such as"),
        ("virtual:navi31?" + "&".join(["smu_silent"] * 33), "can have 32 planted faults, got 33"),
        ("virtual:nowhere?hang", "no virtual device 'virtual:nowhere'"),
    ],
)
def test_what_a_name_cannot_plant(name: str, words: str) -> None:
    with pytest.raises(BadArgument) as caught:
        hcq.open(name)
    assert words in caught.value.message


@pytest.mark.parametrize("name", ["virtual:a630", "virtual:gh100", "virtual:navi31"])
def test_a_closed_device_does_not_outlive_its_users(name: str) -> None:
    with hcq.open(name) as device:
        left = weakref.ref(device)
    del device
    gc.collect()
    assert left() is None


def test_names_with_faults() -> None:
    assert planting.split("virtual:a630+msm?hang=3") == ("virtual:a630+msm", "hang=3")
    assert planting.split("vfio-user:/run/what?.sock") == ("vfio-user:/run/what?.sock", "")
    assert planting.add("virtual:a630", "") == "virtual:a630"
    assert planting.add("virtual:a630", "hang") == "virtual:a630?hang"
    assert planting.add("virtual:a630?hang", "opcode") == "virtual:a630?hang&opcode"


def test_every_fault_of_a_card_has_a_kind_of_value() -> None:
    assert set(planting.faults_of("am")) == {field.name for field in fields(FaultPlan)}
    for vendor in ("nv", "qcom"):
        assert "hang" in planting.faults_of(vendor)
