"""What the first holder of an AMD card reaches: no memory of tenants, nor of the firmware."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_tenants import (
    FAR,
    SECRET,
    card,
    driver_of,
    opened,
    peek,
    run,
    shared,
    tenant,
    work,
)
from ugpu.am import chips
from ugpu.hcq.bare.space import AddressSpace
from ugpu.hcq.errors import PageFault

KINDS = ("read_at", "write_at")


@pytest.fixture(params=chips.virtual_names())
def every_chip(request: pytest.FixtureRequest) -> Iterator[Any]:
    with card(request.param) as made:
        yield made


@pytest.fixture
def chip() -> Iterator[Any]:
    with card("navi31", psp_mode1=True) as made:
        yield made


def reached(memory: AddressSpace) -> set[int]:
    """The physical pages that a context with these tables reaches."""
    pages = set()
    for mapping in memory.mappings.values():
        for address in range(mapping.address, mapping.address + mapping.size, 4096):
            found = memory.tables.lookup(address)
            assert found is not None
            pages.add(found.physical // 4096)
    return pages


def test_the_first_holder_reaches_neither_tenants_nor_the_cards_memory(every_chip: Any) -> None:
    """Its page tables are its own: the interrupt ring, a tenant's memory and the tables themselves
    are not in them."""
    with shared(every_chip, 1) as (device, (one,)):
        secret = one.alloc(FAR)[FAR - 4096 :]
        secret.fill(SECRET)
        units, memory = device.driver.units, device.driver.memory
        ring, carveout = units.ih.memory, units.carveout
        last = int(ring.address) + ring.size - 4  # behind the entries and the pointer
        ring.view[ring.size - 4 : ring.size] = SECRET.to_bytes(4, "little")
        assert peek(device, last) != SECRET
        places = (
            int(secret.address),
            carveout.mc(carveout.mqd(0)),
            carveout.mc(memory.tables.root - carveout.fb_offset),
        )
        for kernel, address in ((kernel, place) for kernel in KINDS for place in places):
            with pytest.raises(PageFault) as caught:
                run(device, kernel, np.uint64(address))
            assert caught.value.facts["vmid"] == device.driver.seat.vmid == 8
            device.reset("queue")
        assert (secret.numpy(np.uint32) == SECRET).all()
        spaces = (units.memory, memory, driver_of(one).memory)
        pages = [reached(each) for each in spaces]
        assert not pages[0] & pages[1] and not pages[0] & pages[2] and not pages[1] & pages[2]
        roots = [each.root_entry for each in spaces]
        contexts = [
            units.gmc.gfxhubs[0].vm(f"CONTEXT{n}_PAGE_TABLE_BASE_ADDR_LO32") for n in (0, 8, 9)
        ]
        assert [int(each.read()) for each in contexts] == [root & 0xFFFF_FFFF for root in roots]
        work(one)
        work(device)
    assert every_chip.violations == []


def test_tables_of_all_come_back_after_the_loss_of_memory(chip: Any) -> None:
    """Also without the first holder: its context stays off, the firmware's tables are written."""
    with opened(chip) as device:
        one = tenant(device, "one")
        device.reset("mode1")
        one.close()
        one = tenant(device, "one again")
        work(device)
        work(one)
    units = driver_of(one).units
    assert not units.gmc.gfxhubs[0].vm("CONTEXT8_CNTL").read()
    one.reset("mode1")
    assert not units.gmc.gfxhubs[0].vm("CONTEXT8_CNTL").read()
    work(one)
    one.close()
    assert chip.violations == []
