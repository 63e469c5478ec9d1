"""The transport contract: no operation leaves a descriptor, a mapping or a thread behind."""

from __future__ import annotations

from collections.abc import Callable

from tests.support import holdings
from tests.support.collector import apart
from tests.support.pci.transport_stands import Subject, allocated, much, rule
from ugpu.hcq.errors import BadArgument, NotSupported, UgpuError
from ugpu.hcq.transport.base import Transport

CYCLES = 100
COUNTED = ("descriptors", "mappings", "threads")


def configuration(transport: Transport) -> None:
    transport.config_read(0)
    transport.config_write(4, transport.config_read(4, 2), 2)


def windows(transport: Transport) -> None:
    transport.window(0).write32(0, 1)
    transport.window(5).read32(8)


def memory(transport: Transport) -> None:
    for size in (4096, much(transport) or 4096):
        for made in allocated(transport, size):
            made.close()


def memory_that_is_seen(transport: Transport) -> None:
    """Closed while somebody has a view of it."""
    for kept in allocated(transport, 4096):
        view = kept.view
        kept.close()
        del view


def interrupts(transport: Transport) -> None:
    waited = transport.interrupts
    if waited is not None and transport.traits.counts_interrupts:
        waited.wait(0)


def refusals(transport: Transport) -> None:
    """What ends in an error."""
    wrong: tuple[Callable[[], object], ...] = (
        lambda: transport.window(99),
        lambda: transport.allocate_dma(0),
        lambda: transport.config_read(1, 2),
        lambda: transport.window(0).read32(1 << 60),
    )
    for use in wrong:
        try:
            use()
        except (BadArgument, NotSupported):
            continue
        raise AssertionError("a wrong use is refused")


OPERATIONS = (configuration, windows, memory, memory_that_is_seen, interrupts, refusals)


@rule
def test_no_operation_leaves_anything_behind(subject: Subject) -> None:
    transport = subject.transport
    for operation in OPERATIONS:
        operation(transport)  # what is made once, as windows are
        with apart():
            operation(transport)
            before = holdings.settled()
            for _ in range(CYCLES):
                operation(transport)
            more = holdings.settled().beyond(before)
        grown = {name: more[name] for name in COUNTED if name in more}
        assert not grown, f"{operation.__name__} left {grown} in {CYCLES} cycles"


@rule
def test_a_lost_device_leaves_nothing_behind(subject: Subject) -> None:
    """Its operations may fail, and take nothing with them."""
    transport = subject.transport
    for operation in OPERATIONS:
        operation(transport)
    subject.lose()

    def use() -> None:
        for operation in OPERATIONS:
            try:
                operation(transport)
            except (UgpuError, AssertionError):
                continue

    with apart():
        use()
        before = holdings.settled()
        for _ in range(CYCLES):
            use()
        more = holdings.settled().beyond(before)
    assert not {name: more[name] for name in COUNTED if name in more}
