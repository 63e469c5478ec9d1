"""The default device of tensors: the innermost open one of this thread, else the chosen one."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.runtime import set_default_device
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.find import listing
from ugpu.hcq.find.listing import DeviceEntry


def alone(test: Callable[[], None]) -> Callable[[], None]:
    """Run a test in a context of its own."""

    def run() -> None:
        contextvars.Context().run(test)

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def default() -> Device:
    return Tensor([1.0, 2.0]).device


@alone
def test_the_innermost_open_device() -> None:
    with hcq.open("cpu") as outer:
        assert default() is outer and Tensor.zeros(3).device is outer
        assert Tensor.arange(3).device is Tensor.rand(2).device is Tensor(1).device is outer
        with hcq.open("cpu") as inner:
            assert default() is inner
            assert (Tensor([1.0]) + 1).tolist() == [2]
            assert Tensor([1.0], device=outer).device is outer
            assert Tensor([1.0], device="cpu").device not in (inner, outer)
        assert default() is outer
        with pytest.raises(ValueError, match="on purpose"), hcq.open("cpu") as failing:
            assert default() is failing
            raise ValueError("on purpose")
        assert default() is outer
    assert default().name == "cpu" and not default().closed


@alone
def test_blocks_that_end_in_another_order() -> None:
    first, second = hcq.open("cpu"), hcq.open("cpu")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert default() is second
    second.close()  # inside its block
    assert default() not in (first, second)
    second.__exit__(None, None, None)


@alone
def test_a_chosen_device() -> None:
    with hcq.open("cpu") as outer:
        other = hcq.open("cpu")
        set_default_device(other)  # in the block: it is the later choice
        assert default() is other
        with hcq.open("cpu") as inner:
            assert default() is inner
        assert default() is other
        set_default_device(None)
        assert default() is outer
    set_default_device(other)
    assert default() is other
    other.close()
    with pytest.raises(Closed):
        default()
    set_default_device("")
    with pytest.raises(BadArgument, match="must be a Device or a name, got int"):
        cast(Any, set_default_device)(3)


@alone
def test_threads_and_tasks() -> None:
    found: dict[str, Device] = {}

    def work(name: str) -> None:
        found[name] = default()

    async def both(outer: Device) -> None:
        async def enter(event: asyncio.Event) -> None:
            with hcq.open("cpu") as mine:
                event.set()
                await asyncio.sleep(0)
                assert default() is mine

        entered = asyncio.Event()
        task = asyncio.create_task(enter(entered))
        await entered.wait()
        assert default() is outer
        await task

    with hcq.open("cpu") as outer:
        thread = threading.Thread(target=work, args=("plain",))
        copied = threading.Thread(target=contextvars.copy_context().run, args=(work, "copied"))
        for each in (thread, copied):
            each.start()
            each.join()
        assert found["plain"] is not outer and found["copied"] is outer
        set_default_device(outer)
        thread = threading.Thread(target=work, args=("chosen",))
        thread.start()
        thread.join()
        assert found["chosen"] is outer
        set_default_device(None)
        asyncio.run(both(outer))


def test_auto_names_a_card_that_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("UGPU_DEVICE", raising=False)
    monkeypatch.setattr(listing, "ready", list)
    card = DeviceEntry("pci:0000:03:00.0", "Navi 31")
    monkeypatch.setattr(listing, "pci_devices", lambda _: [card])
    with caplog.at_level(logging.WARNING), hcq.open() as device:
        assert device.name == "cpu"
    assert "pci:0000:03:00.0 is present but not ready" in caplog.text
