"""Firmware written into the bridge's flash: refusals, failures on the way, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ugpu.hcq.errors import (
    BadArgument,
    ChipError,
    DeviceLost,
    FirmwareError,
    FirmwareInvalid,
    NotSupported,
)
from ugpu.hcq.state.clock import Clock
from ugpu.usbgpu.bridge.asm24 import CustomBridge
from ugpu.usbgpu.firmware import update
from ugpu.usbgpu.firmware.flash import BLOCK, Flash
from ugpu.usbgpu.firmware.image import inspect
from ugpu.usbgpu.link.usb import Speed
from ugpu.virtual.usb import flash as model
from ugpu.virtual.usb.attach import EnclosureClock
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions

NEW = model.wrap(model.firmware(size=3100, seed=9))
LONG = model.wrap(model.firmware(size=0xFFF8, seed=3))  # reaches into the second block


class Instant(EnclosureClock):
    """Sleep takes virtual time only."""

    def sleep(self, seconds: float) -> None:
        self._virtual.advance(seconds)


class Setup:
    """An enclosure, its bridge and the driver's view of its flash."""

    def __init__(self, speed: Speed = Speed.SUPER_PLUS) -> None:
        self.box = Enclosure(None, EnclosureOptions(speed=speed))
        self.model = self.box.hardware.flash
        self.connect()

    def connect(self) -> None:
        self.bridge = CustomBridge(self.box.open())
        self.part = Flash(self.bridge, Instant(self.box.clock, Clock()))
        self.part.open()

    def update(self, image: bytes = NEW, configuration: bytes = b"") -> update.Plan:
        checked = inspect(image, self.bridge.usb.identity)
        plan = update.make_plan(self.part, checked, configuration)
        update.write(self.part, plan, lambda text: None, no_way_back=True)
        return plan

    @property
    def held(self) -> bytes:
        return bytes(self.model.cells)

    @property
    def protected(self) -> bool:
        return self.model.status & model.PROTECTED == model.PROTECTED


@pytest.fixture
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    """At SuperSpeed+, or at the speed of an indirect parameter."""
    made = Setup(getattr(request, "param", Speed.SUPER_PLUS))
    yield made
    assert made.box.objections == []
    made.bridge.close()
    made.box.close()


both = pytest.mark.parametrize("setup", [Speed.SUPER_PLUS, Speed.HIGH], indirect=True)


@both
def test_an_image_is_written_and_what_else_the_block_holds_stays(setup: Setup) -> None:
    before = bytearray(setup.held)
    setup.model.cells[0x8000:0x8010] = before[0x8000:0x8010] = bytes(range(16))
    setup.update()
    before[0x100 : 0x100 + len(NEW)] = NEW
    assert setup.held == bytes(before)
    assert setup.protected


def test_an_image_that_is_there_already_is_not_written() -> None:
    setup = Setup()
    setup.update()
    writes = setup.model.writes
    assert setup.update().blocks == []
    assert setup.model.writes == writes
    setup.bridge.close()
    setup.box.close()


@pytest.mark.slow
@both
def test_an_image_of_two_blocks(setup: Setup) -> None:
    setup.update(LONG)
    assert setup.held[0x100 : 0x100 + len(LONG)] == LONG
    assert setup.held[:0x100] == model.factory()[:0x100]


def test_programs_without_effect_are_repeated(setup: Setup) -> None:
    setup.model.dropped = 3
    setup.update()
    assert setup.held[0x100 : 0x100 + len(NEW)] == NEW


def test_a_worn_byte_brings_the_former_firmware_back(setup: Setup) -> None:
    before = setup.held
    place = next(at for at in range(0x900, 0x980) if before[at] & 0x10 and ~NEW[at - 0x100] & 0x10)
    setup.model.worn[place] = 0x10
    with pytest.raises(FirmwareError, match=f"previous firmware was restored.*{place:#x}"):
        setup.update()
    assert setup.held == before
    assert setup.protected


def test_a_part_that_fails_for_good_says_so(setup: Setup) -> None:
    def fail() -> None:
        setup.model.dropped = 1 << 20

    stop_after(setup, 10, fail)
    with pytest.raises(FirmwareError, match=r"does not contain complete firmware.*then") as failed:
        setup.update()
    assert "is still running" in str(failed.value)


def interrupt() -> None:
    raise KeyboardInterrupt


def pull() -> None:
    raise DeviceLost("pulled")


def test_ctrl_c_brings_the_former_firmware_back() -> None:
    setup = Setup()
    before = setup.held
    stop_after(setup, 10, interrupt)
    with pytest.raises(KeyboardInterrupt):
        setup.update()
    assert setup.held == before and setup.protected
    setup.bridge.close()
    setup.box.close()


def stop_after(setup: Setup, writes: int, call: Callable[[], None]) -> None:
    """Call `call` at one of the part's writes, once."""
    left = writes

    def written() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            call()

    setup.box.hardware.flash_written = written


@pytest.mark.parametrize("writes", [1, 2, 3, 10, 26])
def test_a_cable_pulled_amid_a_write_leaves_the_old_image_the_new_one_or_none(writes: int) -> None:
    """What is left can be flashed over: no half image passes for one."""
    setup = Setup()
    old = setup.held
    stop_after(setup, writes, pull)
    with pytest.raises(DeviceLost):
        setup.update()
    held = setup.held
    assert held == old or held[0x100:0x200] == b"\xff" * 256
    cut = held[:0x100] != old[:0x100]
    assert cut is (writes in (2, 3)), "the configuration is written first"
    if cut:
        with pytest.raises(NotSupported, match="blank half"):
            setup.update()
    setup.update(configuration=old if cut else b"")
    assert setup.held[:0x100] == old[:0x100]
    assert setup.held[0x100 : 0x100 + len(NEW)] == NEW
    setup.bridge.close()
    setup.box.close()


def test_the_registers_of_the_controller_are_restored(setup: Setup) -> None:
    """Bit 0 of CA81 left set broke PCI Express on a board; other bits stay as they were."""
    setup.part.close()
    for enable in (0x0E, 0x0F):
        before = {0xCA81: enable, 0xC805: 0x40, 0xC8A6: 0x11}
        for address, value in before.items():
            setup.bridge.write_xdata(address, bytes([value]))
        setup.part.open()
        assert setup.bridge.read_xdata(0xCA81, 1) == b"\x0f"
        setup.update()
        setup.part.close()
        setup.part.close()
        assert {at: setup.bridge.read_xdata(at, 1)[0] for at in before} == before


def test_an_unknown_part_leaves_the_registers_as_they_were(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.part.close()
    monkeypatch.setattr(model, "JEDEC", b"\xff\xff\xff")
    with pytest.raises(NotSupported, match="unknown size"):
        setup.part.open()
    assert setup.bridge.read_xdata(0xCA81, 1) == b"\0"


# ---- refusals: nothing is written --------------------------------------------------------------


def spoiled(at: int, image: bytes = NEW) -> bytes:
    data = bytearray(image)
    data[at] ^= 1
    return bytes(data)


BAD = {
    "CRC-32": spoiled(len(NEW) - 1),
    "sum of bytes": spoiled(len(NEW) - 5),
    "mark": spoiled(len(NEW) - 6),
    "truncated": NEW[:-1],
    "expected 3110 bytes": NEW + b"\0",
    "at least 10": b"\x00" * 4,
    "boot stub": b"A24F" + NEW,
    "reset vector": model.wrap(b"\0" + model.firmware()[1:]),
    "expected USB ids add1:0001 in it, got 3801:0001": model.wrap(model.firmware(0x3801)),
    "got none": model.wrap(b"\x02" + bytes(2999)),
    "body must be 1 to 65536": model.wrap(model.firmware(size=0x1_0001)),
}


@pytest.mark.parametrize("text", BAD)
def test_images_that_are_refused(text: str) -> None:
    identity = Enclosure(None).identity
    with pytest.raises(FirmwareInvalid, match=text):
        inspect(BAD[text], identity)


def test_nothing_is_written_without_the_callers_word(setup: Setup) -> None:
    checked = inspect(NEW, setup.bridge.usb.identity)
    plan = update.make_plan(setup.part, checked)
    with pytest.raises(NotSupported, match=r"no public source.*--no-way-back"):
        update.write(setup.part, plan, lambda text: None, no_way_back=False)
    assert setup.model.writes == 0


def test_a_flash_of_unknown_layout_is_left_alone(setup: Setup) -> None:
    setup.model.cells[0x180] ^= 1
    with pytest.raises(NotSupported, match=r"unknown layout.*sum of bytes"):
        setup.update()
    assert setup.model.writes == 0


def test_a_part_of_unknown_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "JEDEC", b"\xff\xff\xff")
    box = Enclosure(None)
    bridge = CustomBridge(box.open())
    with pytest.raises(NotSupported, match="ffffff"):
        Flash(bridge, Clock()).open()
    bridge.close()
    box.close()


def test_reads_that_never_agree(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = iter(range(100))
    plain = setup.model._give
    monkeypatch.setattr(
        setup.model, "_give", lambda data: plain(bytes([next(counter)]) * len(data))
    )
    with pytest.raises(ChipError, match="3 reads"):
        setup.part.read(0, 64)


def test_addresses_are_checked(setup: Setup) -> None:
    for call in (
        lambda: setup.part.read(model.SIZE - 1, 2),
        lambda: setup.part.erase(0x1000),
        lambda: setup.part.erase(model.SIZE),
        lambda: setup.part.program(0x1F0, bytes(0x20)),
        lambda: setup.bridge.stage(b""),
        lambda: setup.bridge.stage(bytes(129)),
    ):
        with pytest.raises(BadArgument):
            call()
    assert setup.model.writes == 0 and model.SIZE % BLOCK == 0
