"""The cable: pulled at any transfer and in its midst, plugged in again; counts and virtual time."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.usb.usb_box import Box, box
from ugpu.hcq.errors import Closed, DeviceBusy, DeviceLost, TransportError
from ugpu.usbgpu.link.usb import Speed
from ugpu.virtual.usb.device import Transfer
from ugpu.virtual.usb.meter import Costs


def work(rig: Box) -> None:
    """A bit of everything, 128 transfers."""
    bars = rig.up()
    rig.request.stream_write(bars[0][0], bytes(range(256)) * 8)
    assert rig.request.stream_read(bars[0][0], 2048) == bytes(range(256)) * 8
    rig.request.sram_write(bytes(4096))
    assert rig.request.xdata(0xF000, 4) == bytes(4)  # RAM of its own


@settings(max_examples=40, deadline=None)
@given(transfer=st.integers(0, 110), after=st.sampled_from([0, 1, 511, 1024]))
def test_a_pull_anywhere_is_named_and_the_next_plug_works(transfer: int, after: int) -> None:
    with box() as rig:
        gone = threading.Event()
        rig.usb.on_departure(gone.set)
        rig.enclosure.pull_at(transfer, after)
        with pytest.raises(DeviceLost):
            while True:
                work(rig)
        assert gone.wait(10)
        assert not rig.usb.present()
        with pytest.raises(DeviceLost):
            rig.request.xdata(0)
        with pytest.raises(DeviceLost):
            rig.enclosure.open()
        rig.usb.close()
        rig.reopen()
        work(rig)


def test_what_crossed_before_the_pull_is_there() -> None:
    with box(keeps_power=True) as rig:
        rig.up()
        rig.request.sram_write(bytes(4096))
        rig.request.arm(4096)
        rig.enclosure.pull_at(0, after=1024)
        with pytest.raises(DeviceLost):
            rig.usb.submit_out(0x02, b"\x88" * 4096).wait(1)
        with rig.chip.lock:
            assert rig.chip.dma_read(0x20_0000, 4096) == b"\x88" * 1024 + bytes(3072)
        rig.reopen()
        assert rig.request.xdata(0xB450) == b"\x78"  # the card never lost its power


def test_every_waiter_is_told_at_once() -> None:
    with box() as rig:
        rig.up()
        rig.request.arm(512, inward=True)
        pending = [rig.usb.submit_in(0x81, 1024) for _ in range(3)]
        errors: list[BaseException] = []

        def wait(transfer: Transfer) -> None:
            try:
                transfer.wait(1e9)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=wait, args=(each,)) for each in pending]
        for thread in threads:
            thread.start()
        rig.enclosure.unplug()
        for thread in threads:
            thread.join(30)
        assert [type(error) for error in errors] == [DeviceLost] * 3
        with pytest.raises(DeviceLost):  # the answer stays the same
            pending[0].wait(1)
        told = threading.Event()
        rig.usb.on_departure(told.set)  # at once where it has left
        assert told.is_set()


def test_a_closed_device() -> None:
    with box() as rig:
        rig.up()
        transfer = rig.usb.submit_in(0x81, 1024)
        with pytest.raises(DeviceBusy):
            rig.enclosure.open()
        rig.usb.close()
        rig.usb.close()
        with pytest.raises(TransportError):
            transfer.wait(1)
        with pytest.raises(Closed):
            rig.request.xdata(0)
        rig.enclosure.open().close()


def test_a_cancelled_transfer() -> None:
    with box() as rig:
        transfer = rig.usb.submit_out(0x02, bytes(512))
        transfer.cancel()
        transfer.cancel()
        for _ in range(2):
            with pytest.raises(TransportError):
                transfer.wait(1)
        rig.request.arm(512)
        rig.usb.submit_out(0x02, b"\x12" * 512).wait(1)
        assert rig.enclosure.hardware.memory.shared[:1] == b"\x12"


def test_a_bad_cable_falls_back_to_high_speed() -> None:
    with box() as rig:
        rig.enclosure.unplug()
        rig.enclosure.plug(Speed.HIGH)
        rig.usb = rig.enclosure.open()
        assert rig.usb.identity.speed is Speed.HIGH
        assert rig.usb.packet_size(0x02) == 512
        assert set(rig.usb.endpoints()) == {0x81, 0x02, 0x83, 0x04}


def test_transfers_are_counted_and_cost_virtual_time() -> None:
    with box() as rig:
        rig.up()
        meter, costs = rig.enclosure.meter, Costs()
        meter.clear()
        before = rig.enclosure.clock.now()
        rig.request.xdata(0x4000, 100)
        rig.request.sram_write(bytes(256 << 10))
        assert {kind: (count.transfers, count.bytes) for kind, count in meter.counts.items()} == {
            "control in": (1, 100),
            "control out": (1, 0),
            "bulk out": (1, 256 << 10),
        }
        assert (meter.transfers, meter.bytes) == (3, 100 + (256 << 10))
        took = rig.enclosure.clock.now() - before
        expected = 2 * costs.control_s + costs.bulk_s + (256 << 10) / costs.sram_rate
        assert took == pytest.approx(expected)
