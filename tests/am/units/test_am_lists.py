"""Lists of register accesses: what they do is what the accesses one by one would have done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from tests.support.amd.am_navi31 import NAME, attach, build_chip
from ugpu.am.boot import boot
from ugpu.am.device.device import AmDevice, open_device
from ugpu.am.units.lists import RESULTS, ListQueue
from ugpu.hcq.errors import FirmwareRejected, FirmwareSilent
from ugpu.virtual.amd.chip import Chip


@pytest.fixture
def chip() -> Iterator[Chip]:
    made = build_chip()
    yield made
    made.close()


def plug_in(chip: Chip, **options: object) -> AmDevice:
    attachment = attach(chip=chip)
    transport = attachment.transport
    transport.traits = replace(transport.traits, register_messages=True)
    device = open_device(NAME, attachment, **options)
    assert isinstance(device, AmDevice)
    return device


def lists_of(device: AmDevice) -> ListQueue:
    lists = device.driver.units.programs
    assert isinstance(lists, ListQueue)
    return lists


def test_a_boot_by_lists_sets_the_chip_up_as_one_without() -> None:
    """Every register of the graphics core, its hubs, interrupts and HDP that both wrote."""
    found: list[dict[int, int]] = []
    units: list[int] = []
    told: list[tuple[int, ...]] = []
    for messages in (False, True):
        made = build_chip()
        attachment = attach(chip=made)
        traits = replace(attachment.transport.traits, register_messages=messages)
        attachment.transport.traits = traits
        with open_device(NAME, attachment) as device:
            units.append(device.target.compute_units)
            device.synchronize()
            smu, thermal = device.driver.units.smu, device.driver.units.thermal
            told.append((smu.version, thermal.limit, thermal.stated, thermal._offset))
            blocks = ("gc", "mmhub", "osssys", "hdp", "athub", "nbio", "thm")
            found.append(
                {
                    index: value
                    for index, value in made.space._values.items()
                    if (owner := made.space.owner(index)) is not None
                    and owner[0] in blocks
                    and not owner[1].startswith(DIFFERENT)
                }
            )
        made.close()
    plain, listed = found
    assert units[0] == units[1]
    assert told[0] == told[1] and all(told[0])
    assert {made.space.owner(i)[1] for i in plain if plain[i] != listed.get(i)} == set()


#: addresses of memory that both allocate in another order, what the queue of lists has, the page
#: tables of the holder: its own where lists do not set its queues up, and the last flush of the
#: hub that such a holder does not use
DIFFERENT = (
    "CP_HQD", "CP_MQD", "IH_RB", "SDMA0_QUEUE0", "SDMA1_QUEUE0", "SDMA",
    "GCVM_CONTEXT8_PAGE_TABLE_BASE_ADDR", "MMVM_INVALIDATE_ENG17",
)  # fmt: skip


def test_registers_are_read_changed_and_awaited(chip: Chip) -> None:
    with plug_in(chip) as device:
        lists, gc = lists_of(device), device.driver.chip.gc
        gc.SCRATCH_REG0.write(0x1234)
        gc.SCRATCH_REG1.write(5)

        def steps() -> None:
            gc.SCRATCH_REG0.write(int(gc.SCRATCH_REG0.read()) + 1)
            gc.SCRATCH_REG0.write(int(gc.SCRATCH_REG0.read()) + 1)
            device.driver.chip.wait_bits(gc.SCRATCH_REG0, 0xFF, 0x36, unit="x", waiting_for="y")
            gc.SCRATCH_REG2.write(int(gc.SCRATCH_REG0.read()))

        before = lists._number
        assert lists.execute(steps) == []
        assert lists._number - before == 4  # reads; up to the wait; what it left; the rest
        assert int(gc.SCRATCH_REG0.read()) == int(gc.SCRATCH_REG2.read()) == 0x1236


def test_a_course_that_depends_on_a_value(chip: Chip) -> None:
    """The first pass reads zeros, and does not come to the second register."""
    with plug_in(chip) as device:
        lists, gc = lists_of(device), device.driver.chip.gc
        gc.SCRATCH_REG0.write(1)
        gc.SCRATCH_REG1.write(0x77)

        def steps() -> None:
            gc.SCRATCH_REG3.write(8)
            if int(gc.SCRATCH_REG0.read()):
                gc.SCRATCH_REG2.write(int(gc.SCRATCH_REG1.read()))

        lists.execute(steps)
        assert int(gc.SCRATCH_REG2.read()) == 0x77 and int(gc.SCRATCH_REG3.read()) == 8


def test_what_the_next_list_reads_is_read_before(chip: Chip) -> None:
    """But for what the list itself changes or waits for."""
    with plug_in(chip) as device:
        lists, gc = lists_of(device), device.driver.chip.gc
        for number in range(4):
            gc[f"SCRATCH_REG{number}"].write(10 + number)

        def change(number: int) -> None:
            gc[f"SCRATCH_REG{number}"].write(int(gc[f"SCRATCH_REG{number}"].read()) + 1)

        steps = [partial(change, number) for number in range(4)]
        lists.execute(steps[0], steps[1], foresee=steps[1:])
        before = lists._number
        gc.SCRATCH_REG3.write(0)  # nothing else should, and it shows that it is not read again
        lists.execute(*steps[1:])
        assert lists._number - before == 2  # register 1, which had changed; the rest
        assert [int(gc[f"SCRATCH_REG{number}"].read()) for number in range(4)] == [11, 13, 13, 14]
        lists.execute(*steps[2:])
        assert int(gc.SCRATCH_REG2.read()) == 14 and int(gc.SCRATCH_REG3.read()) == 15


def test_more_values_than_one_transfer_brings(chip: Chip) -> None:
    with plug_in(chip) as device:
        lists, gc = lists_of(device), device.driver.chip.gc
        gc.SCRATCH_REG0.write(7)
        found: list[int] = []

        def step() -> None:
            recorder = device.driver.chip.bus.recorder
            assert recorder is not None
            for _ in range(RESULTS):
                recorder.keep(gc.SCRATCH_REG0.index, found.append)

        before = lists._number
        lists.execute(step)
        assert found == [7] * RESULTS and lists._number - before == 1


def test_words_of_memory_are_written(chip: Chip) -> None:
    with plug_in(chip) as device:
        driver = device.driver
        lists, place = lists_of(device), driver.units.carveout.smu_table
        content = bytes(range(256)) * 8
        lists.execute(partial(lists.write, place, content))
        assert driver.chip.vram.read(place, len(content)) == content


def test_an_exception_in_a_step_leaves_the_bus_as_it_was(chip: Chip) -> None:
    with plug_in(chip) as device:
        lists, gc = lists_of(device), device.driver.chip.gc
        gc.SCRATCH_REG0.write(1)

        def step() -> None:
            gc.SCRATCH_REG0.write(2)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            lists.execute(step)
        assert int(gc.SCRATCH_REG0.read()) == 1
        gc.SCRATCH_REG0.write(3)
        assert int(gc.SCRATCH_REG0.read()) == 3


def test_a_mec_that_executes_nothing_is_named(chip: Chip) -> None:
    with plug_in(chip) as device:
        lists = lists_of(device)
        chip.faults.mec_crashed = True
        with pytest.raises(FirmwareSilent) as caught:
            lists.execute(lambda: device.driver.chip.gc.SCRATCH_REG0.write(2))
        assert caught.value.facts["unit"] == "MEC"
        chip.faults.mec_crashed = False


def test_a_message_that_the_smu_is_too_busy_for_is_sent_again(chip: Chip) -> None:
    with plug_in(chip) as device:
        lists, smu = lists_of(device), device.driver.units.smu
        chip.faults.smu_busy = 1
        lists.execute(partial(smu.ask, "GetSmuVersion"), partial(smu.ask, "GetDriverIfVersion"))
        assert smu.answer("GetSmuVersion") == smu.version
        assert smu.answer("GetDriverIfVersion") == smu.interface.version
        assert not any("SMU" in text for text in chip.violations)


@pytest.mark.parametrize(
    ("response", "error", "facts"),
    [
        (0xFD, FirmwareRejected, {"image": "SMU", "request": "GetDriverIfVersion"}),
        (0, FirmwareSilent, {"unit": "SMU", "message_name": "GetDriverIfVersion"}),
    ],
)
def test_a_message_in_a_list_that_fails_is_named(
    chip: Chip, response: int, error: type[Exception], facts: dict[str, object]
) -> None:
    chip.faults.smu_responses = {3: response}
    with pytest.raises(error) as caught:
        plug_in(chip)
    assert isinstance(caught.value, FirmwareRejected | FirmwareSilent)
    assert facts.items() <= caught.value.facts.items()
    assert caught.value.facts["stage"] == "GFX"
    chip.faults.smu_responses = {}
    with plug_in(chip) as device:
        assert device.driver.units.smu.version


def test_a_board_whose_table_the_smu_does_not_give_has_no_limit(chip: Chip) -> None:
    chip.faults.smu_responses = {0x12: 0xFF}  # TransferTableSmu2Dram
    with plug_in(chip) as device:
        assert device.driver.units.thermal.limit == 0
        assert device.driver.units.smu.version


def test_what_the_list_of_the_queues_brings_is_there_after_a_reset_too(chip: Chip) -> None:
    with plug_in(chip) as device:
        control = device.driver.chip.thm.THM_THERMAL_INT_CTRL
        found = control.read()
        assert device.driver.units.thermal.limit == found.DIG_THERM_INTH and found.THERM_IH_HW_ENA
        assert boot.marked(device.driver.chip) and not lists_of(device)._left
        device.reset("mode1")
        assert int(control.read()) == int(found)
        assert boot.marked(device.driver.chip) and not lists_of(device)._left


@pytest.mark.parametrize("end", ["run", "end"])
def test_what_is_left_waits_for_the_program(chip: Chip, end: str) -> None:
    """The card runs it, or the host does it in the end; then the values arrive, in their order."""
    with plug_in(chip) as device:
        lists, gc = lists_of(device), device.driver.chip.gc
        place, order = device.driver.units.carveout.smu_table, list[object]()
        lists.put(place, b"\1\2\3\4")
        gc.SCRATCH_REG0.write(0)
        with lists.starting():
            lists.leave(partial(gc.SCRATCH_REG0.write, 7), then=order.append)
            lists.leave(
                partial(device.driver.chip.bus.take, gc.SCRATCH_REG0, order.append),
                read=lambda: [place],
                then=order.append,
            )
        assert int(gc.SCRATCH_REG0.read()) == 0 and order == []
        if end == "run":
            lists.run()
        assert lists.end() is (end == "run") and not lists.collects
        assert int(gc.SCRATCH_REG0.read()) == 7
        words = [0x04030201]
        assert order == ([7, [], words] if end == "run" else [[], 7, words])
        lists.leave(partial(gc.SCRATCH_REG0.write, 8))
        assert int(gc.SCRATCH_REG0.read()) == 8


def test_a_start_that_fails_leaves_nothing(chip: Chip) -> None:
    with plug_in(chip) as device:
        lists, gc = lists_of(device), device.driver.chip.gc
        gc.SCRATCH_REG0.write(0)
        with pytest.raises(ZeroDivisionError), lists.starting():
            lists.leave(partial(gc.SCRATCH_REG0.write, 7))
            raise ZeroDivisionError
        assert not lists.end() and int(gc.SCRATCH_REG0.read()) == 0
