"""The driver on a virtual card behind the virtual bridge: boot, copies, kernels, pulls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.kernels import contract_object
from tests.support.waiting import until
from tests.virtual.usb.pulls import (
    AFTER,
    NAME,
    WHOLE,
    Pull,
    check,
    drawn,
    enclosed,
    main,
    opened,
    warnings,
    work,
)
from tests.virtual.usb.rates import rates
from ugpu.am.device import driver
from ugpu.hcq.copies import bulk_transfer
from ugpu.hcq.device.device import Device
from ugpu.usbgpu.bridge.asm24 import CustomBridge
from ugpu.usbgpu.bridge.transport import UsbTransport
from ugpu.usbgpu.link.usb import Speed
from ugpu.virtual.usb.attach import plug_in
from ugpu.virtual.usb.enclosure import Enclosure

BOOT = 280  # transfers of a cold boot, without polls that repeat
POLLS = 40  # that a busy host adds
WARM, CLOSE = 692, 103  # transfers of an open of a card that a process has left up, and of a close
LAUNCH, COPY_IN, COPY_OUT = 12, 26, 29  # of a launch and its wait, of copies of 64 KiB
PULLS = 8  # tests.virtual.usb.pulls makes more


@pytest.mark.parametrize("speed", [Speed.SUPER_PLUS, Speed.HIGH])
def test_it_boots_and_computes(speed: Speed) -> None:
    with enclosed(speed=speed) as box, opened(box) as device:
        work(device)
        box.hardware.sensor.registers |= {0x01: 11120, 0x02: 9600}
        found = {sensor.name: sensor.read() for sensor in device.sensors()}
        assert found["enclosure_power_watts"] == pytest.approx(120)
        assert found["enclosure_supply_volts"] == pytest.approx(12)
        assert found["enclosure_supply_amperes"] == pytest.approx(10)


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(transfer=st.integers(0, WHOLE), after=st.sampled_from(AFTER))
def test_a_pull_is_named_and_the_next_plug_works(transfer: int, after: int) -> None:
    check(Pull(transfer, after, keeps_power=False))


def test_a_pull_while_the_device_is_closed_is_logged() -> None:
    with enclosed() as box, opened(box) as device:
        box.pull_at(0)
        with warnings() as logged:
            device.close()
        assert not box.plugged
        assert any("unplugged" in text for text in logged)


def test_a_pull_while_the_transport_is_closed_is_logged() -> None:
    """The driver has stopped the card; its bus mastering is switched off last."""
    with enclosed() as box:
        usb, clock = plug_in(None, box)
        transport = UsbTransport(CustomBridge(usb), NAME, clock=clock)
        box.pull_at(0)
        with warnings() as logged:
            transport.close()
        assert not box.plugged
        assert any("unplugged" in text for text in logged)


@pytest.mark.slow
def test_many_pulls() -> None:
    """As above, at places that differ from run to run no more than the boot's polls do."""
    for number in range(PULLS):
        check(drawn(12, number))


@pytest.mark.slow
def test_the_program_that_pulls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["6", "--first", "100"]) == 0
    assert capsys.readouterr().out.startswith("6 pulls, 0 went wrong, 0 descriptors and 0 threads")


def _signal(box: Enclosure) -> int:
    """The compute queue's timeline, without a transfer."""
    return int.from_bytes(box.hardware.memory.read(0xA900, 4, 0), "little")


def test_transfers_of_a_cold_boot() -> None:
    with enclosed() as box, opened(box):
        assert BOOT - 10 <= box.meter.transfers <= BOOT + POLLS


@pytest.mark.slow
def test_transfers_of_work_and_of_a_warm_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest of several; copies, which wait themselves, repeat polls that come early. Looks
    whether the card is there, which time decides, do not count."""
    monkeypatch.setattr(driver, "PRESENCE_INTERVAL_S", 1e9)
    found: dict[str, list[int]] = {"launch": [], "in": [], "out": []}
    with enclosed() as box:

        def count(name: str, act: Callable[[], object]) -> None:
            before = box.meter.transfers
            act()
            found.setdefault(name, []).append(box.meter.transfers - before)

        with opened(box) as device, device.alloc(1 << 16) as out, device.alloc(1 << 16) as given:
            kernel = device.load(contract_object(device.target))["scale"]
            timeline = device.queue().timeline
            args, data = (out, given, np.uint32(64), np.uint32(3)), np.zeros(1 << 14, np.uint32)

            def launch() -> None:
                device.queue().launch(kernel, grid=(1,), block=(64,), args=args).submit()
                until(lambda: _signal(box) == timeline.last, "the kernel to end")
                device.synchronize()

            for _ in range(4):
                count("launch", launch)
                count("in", partial(given.copy_from, data))
                count("out", partial(given.numpy, np.uint32))
            out.close()
            given.close()
            count("close", device.close)
        devices: list[Device] = []
        count("warm", lambda: devices.append(opened(box)))
        with devices[0] as device:
            assert device.info()["start"] == "warm"
    assert min(found["launch"]) == LAUNCH, found
    assert min(found["in"]) <= COPY_IN + POLLS // 2, found
    assert min(found["out"]) <= COPY_OUT + POLLS // 2, found
    assert found["close"][0] <= CLOSE + POLLS and found["warm"][0] <= WARM + POLLS, found


def test_transfers_of_a_replay_and_of_a_wait() -> None:
    """A replay that nothing of differs from the one before is a doorbell; now and then the slots of
    those that follow are written. A wait reads the timeline twice and the interrupt ring's
    pointer; at times it asks whether the card is there."""
    with enclosed() as box, opened(box) as device, device.alloc(256) as buffer:
        with device.capture() as graph, device.queue() as queue:
            for number in range(100):
                queue.fill(buffer, number)
        timeline = device.queue().timeline
        replays: list[int] = []
        waits: list[int] = []
        for _ in range(40):
            before = box.meter.transfers
            graph.replay()
            replays.append(box.meter.transfers - before)
            until(lambda: _signal(box) == timeline.last, "the replay to end")
            before = box.meter.transfers
            graph.wait()
            waits.append(box.meter.transfers - before)
        assert set(waits) <= {4, 8} and waits.count(4) >= 20, waits
        assert replays.count(1) >= 34 and max(replays[1:]) <= 4, replays
        assert buffer.numpy(np.uint32)[0] == 99


@pytest.mark.parametrize("rung", ["block", "warm", "mode1", "bus", "power"])
def test_a_reset_brings_it_back(rung: str) -> None:
    """From mode1 on by a boot like the first, with timelines that hold values."""
    with enclosed() as box, opened(box) as device:
        work(device)
        device.reset(rung)
        work(device)


def test_copies_of_several_submissions_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last chunk of each submission of a copy out once lost its last dword to a mark."""
    monkeypatch.setattr(bulk_transfer, "_GROUP", 3)
    with enclosed() as box, opened(box) as device:
        data = np.random.default_rng(12).integers(1, 1 << 32, 3 << 19, dtype=np.uint32)
        with device.alloc(data.nbytes) as buffer:
            for count in (len(data), 4, 61441, 122881, 200_000, len(data)):
                part = buffer[: 4 * count]
                part.copy_from(data[:count])
                assert np.array_equal(part.numpy(np.uint32), data[:count])


def test_copies_come_near_the_raw_rate_of_the_link() -> None:
    """By the link's virtual time, of a copy after the first: see lab.bench's usb."""
    with enclosed() as box, opened(box) as device:
        ratios = rates(box, device, 24 << 20)
        assert ratios["in"] >= 0.85 and ratios["out"] >= 0.85, ratios
