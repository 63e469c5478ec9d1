"""Several mappings at once: tables over a link are written whole, once each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.amd.am_navi31 import build_chip, opened
from ugpu.am.device.device import AmDevice
from ugpu.hcq.bare.space import AddressSpace
from ugpu.hcq.state.memory import Placement

SIZES = (4096, 70_000, 3 << 20, 300_000)


@pytest.fixture
def device() -> Iterator[AmDevice]:
    chip = build_chip()
    with opened(chip) as made:
        made.driver.chip.bus.messages = True
        yield made
    chip.close()


def in_memory(memory: AddressSpace) -> bool:
    """Whether all tables in VRAM are what the driver takes them for."""
    pending = [memory.tables._root]
    while pending:
        table = pending.pop()
        address = table.physical - memory.places.table_offset
        content = memory.chip.vram.read(address, table.shadow.nbytes)
        if not np.array_equal(np.frombuffer(content, np.uint64), table.shadow):
            return False
        pending.extend(table.children.values())
    return True


def writes(device: AmDevice, patch: pytest.MonkeyPatch) -> list[int]:
    """Addresses of the writes to VRAM from now on."""
    seen: list[int] = []
    vram = device.driver.chip.vram
    write = vram.write

    def note(address: int, data: bytes | bytearray | memoryview) -> None:
        seen.append(address)
        write(address, data)

    patch.setattr(vram, "write", note)
    return seen


def test_each_table_is_written_once(device: AmDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = device.driver.memory
    seen = writes(device, monkeypatch)
    with memory.together():
        made = [memory.allocate(size, Placement.DEVICE) for size in SIZES]
        with memory.together():  # the outer one writes
            memory.unmap(made[1])
            memory.release(made[1])
        assert seen == []
    assert 0 < len(seen) == len(set(seen)) and in_memory(memory)
    for mapping in made:
        assert (memory.tables.lookup(mapping.address) is None) == (mapping is made[1])


def test_tables_are_written_after_an_error_too(device: AmDevice) -> None:
    memory = device.driver.memory
    with pytest.raises(ZeroDivisionError), memory.together():
        memory.allocate(1 << 20, Placement.DEVICE)
        raise ZeroDivisionError
    assert in_memory(memory)
    memory.allocate(4096, Placement.DEVICE)
    assert in_memory(memory)


def test_mapped_registers_change_nothing(device: AmDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = device.driver.memory
    memory.chip.bus.messages = False
    seen = writes(device, monkeypatch)
    with memory.together():
        memory.allocate(4096, Placement.DEVICE)
        assert seen != [] and in_memory(memory)
