"""The transport contract: closing, closing during use, forks, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support.collector import apart
from tests.support.pci.descriptors import leaked, settled
from tests.support.pci.transport_stands import STANDS, Stand, Subject, allocated, much, rule
from ugpu.hcq.errors import Closed, DeviceLost
from ugpu.hcq.transport.base import Transport

LIMIT_S = 60.0
ROUNDS = 6
# Bytes of address space that stacks of threads may take meanwhile: 4 MiB left behind twice in each
# round are more.
SLACK = 40 << 20


@rule
def test_closed_use(subject: Subject) -> None:
    transport = subject.transport
    window, memories = transport.window(5), allocated(transport, 4096)
    interrupts = transport.interrupts
    transport.close()
    transport.close()
    for use in (
        lambda: transport.config_read(0),
        lambda: transport.config_write(4, 0),
        lambda: transport.window(0),
        lambda: transport.allocate_dma(4096),
        lambda: transport.interrupts,
        lambda: window.read32(8),
        lambda: window.write32(8, 0),
        lambda: window.read64(8),
    ):
        with pytest.raises(Closed):
            use()
    if interrupts is not None and transport.traits.counts_interrupts:
        with pytest.raises(Closed):
            interrupts.wait(0)
    assert not transport.present()
    for memory in (*memories, *memories):
        memory.close()


@rule
def test_leaving_the_block_closes(subject: Subject) -> None:
    with contextlib.suppress(KeyError), subject.transport as entered:
        assert entered is subject.transport
        raise KeyError("an error of the user's")
    with pytest.raises(Closed):
        subject.transport.config_read(0)


@rule
def test_memory_lives_as_long_as_somebody_looks_at_it(subject: Subject) -> None:
    subject.needs("host_memory")
    memory = subject.transport.allocate_dma(1 << 16)
    memory.view[:4] = b"kept"
    array = np.frombuffer(memory.view, np.uint8)
    memory.close()
    assert bytes(array[:4]) == b"kept"
    other = subject.transport.allocate_dma(1 << 16)
    array = np.frombuffer(other.view, np.uint8)
    subject.transport.close()
    assert not array.any()
    other.close()


@rule
def test_closing_ends_a_wait(subject: Subject) -> None:
    subject.needs("counts_interrupts")
    interrupts = subject.transport.interrupts
    if interrupts is None:
        return
    entering = threading.Event()
    ends: list[BaseException | bool] = []

    def wait() -> None:
        entering.set()
        try:
            ends.append(interrupts.wait(LIMIT_S))
        except Closed as error:
            ends.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert entering.wait(LIMIT_S)
    subject.transport.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert len(ends) == 1 and isinstance(ends[0], Closed)


@rule
def test_closing_during_use(subject: Subject) -> None:
    """Whoever is at it finds Closed, or that the device is gone; nothing worse."""
    subject.needs("any_order")
    transport = subject.transport
    window = transport.window(5)
    began = threading.Event()
    ends: list[type[BaseException]] = []

    def use() -> None:
        try:
            while True:
                window.write32(8, 1)
                window.read32(8)
                transport.config_read(0)
                began.set()
        except BaseException as error:
            ends.append(type(error))

    thread = threading.Thread(target=use)
    thread.start()
    assert began.wait(LIMIT_S)
    transport.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert ends in ([Closed], [DeviceLost])


@rule
def test_a_forked_child_has_no_device_and_the_parent_keeps_it(subject: Subject) -> None:
    transport = subject.transport
    window = transport.window(0)
    window.write32(0x40, 1)
    child = os.fork()
    if not child:
        os._exit(_refusals(transport))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    window.write32(0x40, 7)
    assert window.read32(0x40) == 7 and transport.present()


def _refusals(transport: Transport) -> int:
    """In the child: how many uses were not refused."""
    left = 4
    with contextlib.suppress(BaseException):
        transport.close()
        left -= 1
    for use in (
        lambda: transport.config_read(0),
        lambda: transport.window(0).read32(0x40),
        lambda: transport.allocate_dma(4096),
    ):
        try:
            use()
        except Closed:
            left -= 1
        except BaseException:
            pass
    return left


def use_all(subject: Subject) -> None:
    """Windows, memory that is given back and memory that is not, interrupts."""
    transport = subject.transport
    for bar in (0, 5):
        transport.window(bar).read32(0x40)
    for size in (*[4096] * 4, much(transport) or 4096):
        for memory in allocated(transport, size):
            memory.close()
    allocated(transport, much(transport) or 4096)
    if transport.interrupts is not None:
        transport.interrupts.enable(transport.interrupts.vectors)


def mapped_files() -> int:
    """How many mappings of files there are, shared memory among them."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(("memfd:" in line) or ("/resource" in line) for line in lines)


def address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.name)
def test_nothing_is_left(stand: Stand) -> None:
    """Descriptors, mappings and address space, over many lives."""
    stand.hold(use_all)
    with apart():
        descriptors, mappings = settled(), mapped_files()
        # What is not given back grows each time; a thread that came first may bring an arena, once.
        assert any(growth(stand) < SLACK for _ in range(4))
        assert not leaked(descriptors)
        assert mapped_files() <= mappings


def growth(stand: Stand) -> int:
    """Bytes of address space that some more lives take and leave."""
    before = address_space()
    for _ in range(ROUNDS):
        stand.hold(use_all)
    gc.collect()
    return address_space() - before


@rule
def test_what_is_given_back_is_free(subject: Subject) -> None:
    """Memory and its descriptors, while the transport stays open."""
    transport = subject.transport
    for memory in allocated(transport, 4096):
        memory.close()
    before = settled()
    count = 20 if transport.traits.host_memory else transport.traits.dma_bytes // 4096
    memories = [transport.allocate_dma(4096) for _ in range(count)]
    for memory in memories:
        memory.close()
        memory.close()
    assert not leaked(before)
    assert transport.present()
