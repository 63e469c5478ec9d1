"""Models that are held at work for longer than the limits of those who wait for them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, start_forever
from tests.support.nvidia.nv_machine import opened as opened_nv
from tests.support.nvidia.nv_machine import powered, work
from tests.support.pci.vfio_user_device import MemoryDevice
from tests.support.pci.vfio_user_served import served
from tests.support.waiting import until
from ugpu.am.device.device import open_device
from ugpu.hcq.errors import DeviceHang, UnitTimeout
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.state import clock as clocks
from ugpu.hcq.state.clock import Clock, ModelClock, Work
from ugpu.hcq.transport.recorded.accesses import TracingTransport
from ugpu.hcq.transport.vfio_user import version
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.firmware.images import synthetic_set
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.serve import session

LIMIT_S = 0.02
MANY = 25  # looks of one who waits; his limit is used up after ten


class Held:
    """Holds the model up until whoever waits has found it at work `MANY` times."""

    def __init__(self, clock: Clock, kind: Work, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind = kind
        self.seen = 0
        ask = clock.work

        def counted() -> Work:
            found = ask()
            self.seen += found is kind
            return found

        monkeypatch.setattr(clock, "work", counted)

    def hold(self) -> None:
        until(lambda: self.seen >= MANY, f"{MANY} looks at a model at {self.kind.name}")


def held_before(held: Held, monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    """Have the model's function wait before it does its work."""
    place = importlib.import_module(module)
    real = getattr(place, name)

    def late(*arguments: Any, **options: Any) -> Any:
        held.hold()
        return real(*arguments, **options)

    monkeypatch.setattr(place, name, late)


def test_a_kernel_that_is_translated_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = build_chip()
    try:
        with opened(chip) as device, device.load(faulty_object()) as program:
            out = device.alloc(64)
            held = Held(chip.clock, Work.TRANSLATION, monkeypatch)
            held_before(held, monkeypatch, "ugpu.virtual.amd.isa.core", "load")
            device.limit_s = LIMIT_S
            check_runs(device, program, out, 1)
            assert held.seen >= MANY
            start_forever(chip, device, program, out)
            with pytest.raises(DeviceHang):  # translated, it runs and does not end
                device.synchronize()
    finally:
        chip.close()


@pytest.mark.parametrize("function", ["parse", "translate"])
def test_ptx_that_is_translated_is_waited_for(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "ugpu.virtual.nvidia.sm.multiprocessors"
    with powered("gh100") as machine, opened_nv(machine) as device:
        held = Held(machine.clock, Work.TRANSLATION, monkeypatch)
        monkeypatch.setattr(f"{module}.jit.ObjectCache.get", lambda cache, key: None)
        held_before(held, monkeypatch, module, function)
        device.limit_s = LIMIT_S
        work(device)
        assert held.seen >= MANY


# ---- behind a socket ---------------------------------------------------------------------------


@contextmanager
def served_transport(device: MemoryDevice) -> Iterator[VfioUserTransport]:
    with served(device) as server, VfioUserTransport(str(server.path)) as transport:
        yield transport


def wait(transport: Any) -> bool:
    """Wait for register 8 of the device."""
    registers = transport.window(5)
    answer: bool = transport.clock.wait_until(
        lambda: registers.read32(8) == 1, unit="toy", waiting_for="the answer", limit_s=LIMIT_S
    )
    return answer


class AtWork(ModelClock):
    """Says `kind` for `times` questions, then does the work: `answer` is called."""

    def __init__(self, device: MemoryDevice, times: float, kind: Work = Work.ENGINES) -> None:
        super().__init__()
        self.device = device
        self.left = times
        self.kind = kind

    def work(self) -> Work:
        self.left -= 1
        if self.left > 0:
            return self.kind
        self.device.function.window(5).data[8] = 1
        return Work.NONE


@pytest.mark.parametrize("kind", [Work.ENGINES, Work.TRANSLATION])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_served_model_at_work_is_waited_for(kind: Work, wrapped: bool) -> None:
    device = MemoryDevice()
    device.function.clock = AtWork(device, MANY, kind)
    with served_transport(device) as transport:
        if wrapped:
            with TracingTransport(transport, lambda access: None) as outer:
                assert wait(outer)
        else:
            assert wait(transport)


def test_a_served_model_that_is_idle_is_silent() -> None:
    device = MemoryDevice()
    device.function.clock = ModelClock()
    with served_transport(device) as transport, pytest.raises(UnitTimeout):
        wait(transport)


def test_a_served_model_that_hangs_at_work_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clocks.ALLOWANCE_S, Work.ENGINES, 5 * LIMIT_S)
    device = MemoryDevice()
    device.function.clock = AtWork(device, float("inf"))
    with served_transport(device) as transport, pytest.raises(UnitTimeout):
        wait(transport)


def test_a_server_that_cannot_say_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As any other than ours, QEMU's among them."""
    known = version.build

    def without(capabilities: dict[str, object]) -> bytes:
        return known({key: one for key, one in capabilities.items() if key != "model_work"})

    monkeypatch.setattr(session.version, "build", without)
    device = MemoryDevice()
    device.function.clock = AtWork(device, float("inf"))
    with served_transport(device) as transport:
        messages = transport.messages
        assert transport.clock.work() is Work.NONE and transport.messages == messages


def test_a_server_that_is_gone_is_not_at_work() -> None:
    device = MemoryDevice()
    device.function.clock = AtWork(device, float("inf"))
    with served(device) as server, VfioUserTransport(str(server.path)) as transport:
        assert transport.clock.work() is Work.ENGINES
        server.stop()
        assert transport.clock.work() is Work.NONE


def test_a_served_navi31_translates_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = build_chip(ChipOptions(vram=256 << 20))
    try:
        with served(ServedChip(chip)) as server:
            transport = VfioUserTransport(str(server.path))
            attachment = Attachment(transport, synthetic_set(chip.facts))
            with open_device("served", attachment) as device:
                held = Held(chip.clock, Work.TRANSLATION, monkeypatch)
                held_before(held, monkeypatch, "ugpu.virtual.amd.isa.core", "load")
                with device.load(faulty_object()) as program:
                    device.limit_s = LIMIT_S
                    check_runs(device, program, device.alloc(64), 1)
                assert held.seen >= MANY
    finally:
        chip.close()
