"""Closing a VFIO card that no longer answers: at once, with the rest in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pci.fake_vfio import VfioMachine
from ugpu.hcq.errors import OutOfMemory, TransportError
from ugpu.hcq.transport import late
from ugpu.hcq.transport.vfio.transport import VfioTransport

GPU = "0000:03:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[VfioMachine]:
    made = VfioMachine(tmp_path)
    made.load("vfio-pci")
    made.add(GPU, driver="vfio-pci")
    yield made
    late.await_closed(f"pci:{GPU}")
    assert made.open_files == {}, "descriptors were left open"
    made.free()


def opened(machine: VfioMachine, **options: Any) -> VfioTransport:
    return VfioTransport(GPU, system=machine, **options)


def test_closing_a_lost_card_does_not_wait_for_the_kernel(
    machine: VfioMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former driver comes back, and the next opening goes on, once the kernel is done."""
    restored: list[str] = []
    released, plain = threading.Event(), machine.close

    def close(descriptor: int) -> None:
        if machine.open_files.get(descriptor, ("", None))[0] == "device":
            released.wait()
        plain(descriptor)

    monkeypatch.setattr(machine, "close", close)
    config = machine.functions[GPU].config
    kept = bytes(config)
    transport = opened(machine, on_close=lambda: restored.append("yes"))
    transport.allocate_dma(4096)
    config[:] = b"\xff" * len(config)
    transport.close()
    assert transport.closed and restored == []
    assert [kind for kind, _ in machine.open_files.values()].count("device") == 1
    config[:] = kept
    again: list[VfioTransport] = []
    opening = threading.Thread(target=lambda: again.append(opened(machine)))
    opening.start()
    assert again == []
    released.set()
    opening.join()
    assert restored == ["yes"] and len(again) == 1
    again[0].close()


def test_an_error_after_a_lost_card_is_logged(
    machine: VfioMachine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise TransportError("the driver does not take it back")

    transport = opened(machine, on_close=fail)
    config = machine.functions[GPU].config
    config[:] = b"\xff" * len(config)
    transport.close()
    late.await_closed(transport.name)
    assert "does not take it back" in caplog.text and machine.open_files == {}


def test_without_threads_a_lost_card_is_closed_at_once(
    machine: VfioMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise OutOfMemory("no more threads")

    transport = opened(machine)
    monkeypatch.setattr(late, "start", refuse)
    config = machine.functions[GPU].config
    config[:] = b"\xff" * len(config)
    transport.close()
    assert machine.open_files == {}
