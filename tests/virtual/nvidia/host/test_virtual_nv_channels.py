"""Channels of the virtual GPUs: rings, push buffers, semaphores, copies, recovery, by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.nvidia.rm_program import RmProgram, StatusError, pattern
from tests.support.waiting import until
from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.gpu import CHIPS
from ugpu.virtual.nvidia.host.channel import Channel
from ugpu.virtual.nvidia.status import Status

SEMAPHORE, SOURCE, TARGET = 0x4000, 0x20_0000, 0x28_0000


@pytest.fixture
def program() -> Iterator[RmProgram]:
    with RmProgram() as made:
        made.bring_up()
        yield made
        assert made.machine.violations == []


def at(program: RmProgram, offset: int) -> int:
    return program.work_address + offset


def fails(program: RmProgram, xid: Xid, text: str) -> None:
    """The channel ends with an error, and says why."""
    assert program.wait_error() == (xid, 0xFFFF)
    assert text in program.machine.log[-1].text, program.machine.log[-1]
    program.release(at(program, SEMAPHORE), 0x77)
    program.submit()
    assert program.machine.gpu.wait_idle()
    assert program.word(SEMAPHORE) != 0x77, "a dead channel takes no work"


# -- rings and push buffers ----------------------------------------------------------------------


def test_bytes_of_a_release_by_hand(program: RmProgram) -> None:
    """clc86f.h: header INC_METHOD (1) 31:29, count 28:16, subchannel 15:13, method >> 2;
    SEM_ADDR_LO 0x5c, HI 0x60, PAYLOAD_LO 0x64, HI 0x68, EXECUTE 0x6c: RELEASE 1, 1 << 24 wide."""
    address = at(program, SEMAPHORE)
    program.words = []
    program.submit_words(
        [0x2005_0017, address & 0xFFFF_FFFF, address >> 32, 0xCAFE_F00D, 0x1234, 0x0100_0001]
    )
    program.wait(SEMAPHORE, 0x1234_CAFE_F00D)


def test_the_ring_wraps(program: RmProgram) -> None:
    for number in range(1, 200):
        program.release(at(program, SEMAPHORE), number)
        program.submit()
        program.wait(SEMAPHORE, number)
        program.push_at = 0x10_0000 + (number % 16) * 256
    view = program.work_map.view
    assert view is not None
    assert struct.unpack_from("<I", view, 0x2000 + 0x88)[0] == program.put, "GP_GET"


def test_many_entries_in_one_doorbell(program: RmProgram) -> None:
    for number in range(20):
        program.release(at(program, SEMAPHORE + 8 * number), 100 + number)
        words, program.words = program.words, []
        view = program.work_map.view
        assert view is not None
        raw = struct.pack(f"<{len(words)}I", *words)
        view[program.push_at : program.push_at + len(raw)] = raw
        address = at(program, program.push_at)
        program.push_at += 256
        program.entry(address & 0xFFFF_FFFF, address >> 32 | len(words) << 10)
    program.ring()
    program.wait(SEMAPHORE + 8 * 19, 119)
    assert [program.word(SEMAPHORE + 8 * k) for k in range(20)] == list(range(100, 120))


def test_headers(program: RmProgram) -> None:
    address = at(program, SEMAPHORE)
    program.submit_words(
        [
            0,  # NOP
            0x2002_0017, address & 0xFFFF_FFFF, address >> 32,  # INC
            0xA001_0019, 5,  # ONE_INC of one word
            0x6002_001A, 7, 9,  # NON_INC: the last value stays
            0x8000_0002 | 3 << 16,  # IMMD: NOP with data 3
            0x2001_001B, 0x0100_0001,
            0xE000_0000,  # END_PB_SEGMENT: what follows is not executed
            0xFFFF_FFFF,
        ]
    )  # fmt: skip
    program.wait(SEMAPHORE, 9 << 32 | 5)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([0xC000_0000], "method header"),
        ([0x4000_0000], "method header"),
        ([0x2008_0017, 1], "requires 8 words"),
        ([0x2001_0010, 0], "host method 0x40"),
        ([0x2001_6040, 0], "without an object"),
        ([0x2001_001B, 7], "operation 7"),
        ([0x2001_001E, 0xFFFF_FFF0], "reserved bits"),
    ],
)
def test_damaged_push_buffers(program: RmProgram, words: list[int], text: str) -> None:
    program.submit()
    program.submit_words(words)
    fails(program, Xid.PBDMA_ERROR, text)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(1, 1 << 10, "conditional"), (0, 1 << 8 | 1 << 10, "reserved"), (0, 3, "opcode 3")],
)
def test_damaged_ring_entries(program: RmProgram, low: int, high: int, text: str) -> None:
    program.entry(low, high)
    program.ring()
    fails(program, Xid.PBDMA_ERROR, text)


@pytest.mark.parametrize(("operation", "text"), [(9, "not privileged"), (3, "operation 3")])
def test_memory_operations(program: RmProgram, operation: int, text: str) -> None:
    program.method(0, 0x28, 0, 0, 0, 5 << 27)  # MEMBAR
    program.release(at(program, SEMAPHORE), 1)
    program.submit()
    program.wait(SEMAPHORE, 1)
    program.method(0, 0x28, 0, 0, 0, operation << 27)
    program.submit()
    fails(program, Xid.PBDMA_ERROR, text)


def test_put_past_the_ring(program: RmProgram) -> None:
    program.put = 64
    program.ring()
    assert program.wait_error()[0] == Xid.PBDMA_ERROR
    assert "GP_PUT must be below 64" in program.machine.log[-1].text


def test_a_push_buffer_that_is_not_mapped(program: RmProgram) -> None:
    program.entry(0xDEAD_0000, 0x70 | 16 << 10)
    program.ring()
    fails(program, Xid.MMU_FAULT, "HUB HOST")
    faults = program.control(program.debugger, "NV83DE_CTRL_CMD_DEBUG_READ_MMU_FAULT_INFO")
    assert faults.count == 1
    assert faults.mmuFaultInfoList[0].faultAddress == 0x70_DEAD_0000


def test_upper_bits_of_push_buffers_on_hopper(program: RmProgram) -> None:
    """Opcode 4 of a control entry, bits 24:8 of its operand: address bits from 40 up."""
    program.entry(0x1 << 8, 4)
    program.entry(at(program, 0x10_0000) & 0xFFFF_FFFF, at(program, 0) >> 32 | 1 << 10)
    program.ring()
    assert program.wait_error()[0] == Xid.MMU_FAULT
    assert f"{(1 << 40) + at(program, 0x10_0000):#x}" in program.machine.log[-1].text


def test_doorbells_without_a_channel() -> None:
    with RmProgram() as program:
        program.bring_up()
        program.doorbell.write32(0x90, program.token + 1)
        program.doorbell.write32(0x94, 1)
        assert [text[:8] for text in program.machine.violations] == ["doorbell", "write of"]


def test_a_lost_chip_reads_ones(program: RmProgram) -> None:
    before = program.machine.gpu.time_ns() >> 32
    assert before <= program.doorbell.read32(0x84) <= program.machine.gpu.time_ns() >> 32
    memory = program.cpu_map(program.video_memory(1 << 20), 1 << 20)
    program.machine.inject("FELL_OFF")
    assert program.doorbell.read32(0x84) == 0xFFFF_FFFF
    assert memory.read32(4096) == 0xFFFF_FFFF
    with pytest.raises(StatusError) as error:
        program.video_memory(4096)
    assert error.value.status == Status.GPU_IS_LOST
    with pytest.raises(OSError, match="lost"):
        program.call(program.gpu_file, "NV_ESC_REGISTER_FD")
    with pytest.raises(OSError, match="dev/nvidia0"):
        program.node.open("/dev/nvidia0")
    assert program.machine.log[-1].xid == 79
    program.free(program.group)


# -- semaphores ----------------------------------------------------------------------------------


def test_time_stamps(program: RmProgram) -> None:
    before = program.machine.gpu.time_ns()
    program.release(at(program, SEMAPHORE), 5, stamp=True)
    program.submit()
    program.wait(SEMAPHORE, 5)
    assert before <= program.word(SEMAPHORE + 8) <= program.machine.gpu.time_ns()


@pytest.mark.parametrize(
    ("operation", "payload", "values"),
    [(0, 7, (6, 8, 7)), (2, 7, (6, 9)), (3, 7, ((1 << 64) - 1, 7)), (4, 6, (8, 1, 4))],
)
def test_acquires(
    program: RmProgram, operation: int, payload: int, values: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The last value lets the channel go on, those before it do not."""
    looks: list[bool] = []
    ready = Channel.ready

    def noted(channel: Channel) -> bool:
        looks.append(ready(channel))
        return looks[-1]

    monkeypatch.setattr(Channel, "ready", noted)
    view = program.work_map.view
    assert view is not None
    program.acquire(at(program, SEMAPHORE), payload, operation)
    program.release(at(program, SEMAPHORE + 8), 1)
    struct.pack_into("<Q", view, SEMAPHORE, values[0])
    program.submit()
    for value in values[:-1]:
        struct.pack_into("<Q", view, SEMAPHORE, value)
        looks.clear()
        until(lambda: len(looks) >= 3, "the channel to look again")
        assert program.word(SEMAPHORE + 8) == 0
    struct.pack_into("<Q", view, SEMAPHORE, values[-1])
    program.wait(SEMAPHORE + 8, 1)


def test_reductions(program: RmProgram) -> None:
    view = program.work_map.view
    assert view is not None
    struct.pack_into("<Q", view, SEMAPHORE, 40)
    address = at(program, SEMAPHORE)
    for code, payload, expected in ((5, 2, 42), (0, 7, 7), (1, 9, 9), (4, 6, 15), (2, 1, 14)):
        program.method(0, 0x5C, address & 0xFFFF_FFFF, address >> 32, payload, 0,
                       6 | 1 << 24 | code << 27 | 1 << 31)  # fmt: skip
        program.submit()
        program.wait(SEMAPHORE, expected)


def test_a_misaligned_semaphore(program: RmProgram) -> None:
    program.release(at(program, SEMAPHORE + 4), 1)
    program.submit()
    fails(program, Xid.PBDMA_ERROR, "not aligned")


# -- copies --------------------------------------------------------------------------------------


def copy(program: RmProgram, source: int, target: int, length: int, flags: int, lines: int = 1,
         pitch: int = 0) -> None:  # fmt: skip
    program.method(
        4, 0x400, source >> 32, source & 0xFFFF_FFFF, target >> 32, target & 0xFFFF_FFFF, pitch,
        pitch, length, lines,
    )  # fmt: skip
    program.method(4, 0x300, flags)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_copy_with_its_semaphore(chip: str) -> None:
    with RmProgram(chip) as program:
        program.bring_up()
        view = program.work_map.view
        assert view is not None
        data = pattern(100_000)
        view[SOURCE : SOURCE + 100_000] = data.tobytes()
        program.method(
            4, 0x240, at(program, SEMAPHORE) >> 32, at(program, SEMAPHORE) & 0xFFFF_FFFF, 77
        )
        copy(
            program, at(program, SOURCE), at(program, TARGET), 100_000, 2 | 1 << 2 | 2 << 3 | 3 << 7
        )
        program.submit()
        program.wait(SEMAPHORE, 77)
        assert np.array_equal(np.frombuffer(view[TARGET : TARGET + 100_000], np.uint8), data)
        assert program.word(SEMAPHORE + 8) > 0, "a time stamp"


def test_lines_with_a_pitch(program: RmProgram) -> None:
    view = program.work_map.view
    assert view is not None
    data = pattern(64 * 100).reshape(100, 64)
    view[SOURCE : SOURCE + 6400] = data.tobytes()
    copy(program, at(program, SOURCE), at(program, TARGET), 32, 2 | 3 << 7 | 1 << 9, 100, 64)
    program.release(at(program, SEMAPHORE), 1)
    program.submit()
    program.wait(SEMAPHORE, 1)
    made = np.frombuffer(view[TARGET : TARGET + 6400], np.uint8).reshape(100, 64)
    assert np.array_equal(made[:, :32], data[:, :32])
    assert not made[:, 32:].any()


def test_a_fill(program: RmProgram) -> None:
    """Remap: one component of four bytes, from constant A."""
    program.method(4, 0x700, 0xDEADBEEF, 0, 4 | 3 << 16)
    copy(program, 0, at(program, TARGET), 1000, 2 | 3 << 7 | 1 << 10)
    program.release(at(program, SEMAPHORE), 1)
    program.submit()
    program.wait(SEMAPHORE, 1)
    view = program.work_map.view
    assert view is not None
    assert (np.frombuffer(view[TARGET : TARGET + 4000], "<u4") == 0xDEADBEEF).all()
    assert program.word(TARGET + 4000) == 0


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (3 | 3 << 7, "transfer type"),
        (2, "block-linear"),
        (2 | 3 << 7 | 1 << 12, "physical"),
        (2 | 3 << 7 | 1 << 20, "secure"),
    ],
)
def test_copies_that_are_refused(program: RmProgram, flags: int, text: str) -> None:
    copy(program, at(program, SOURCE), at(program, TARGET), 4, flags)
    program.submit()
    fails(program, Xid.CLASS_ERROR, text)


def test_subchannel_4_is_for_copies_without_set_object(program: RmProgram) -> None:
    """dev_ram.ref.txt: the mapping is fixed. NVK relies on it."""
    view = program.work_map.view
    assert view is not None
    view[SOURCE : SOURCE + 8] = bytes(range(8))
    program.words = []  # drops SET_OBJECT of each subchannel
    copy(program, at(program, SOURCE), at(program, TARGET), 8, 2 | 3 << 7 | 1 << 2)
    program.release(at(program, SEMAPHORE), 1)
    program.submit()
    program.wait(SEMAPHORE, 1)
    assert bytes(view[TARGET : TARGET + 8]) == bytes(range(8))


@pytest.mark.parametrize("last", ["copy", "compute"])
def test_a_release_with_wait_comes_after_copies(program: RmProgram, last: str) -> None:
    """dev_pbdma.ref.txt, "WFI": it waits for the engine that methods went to last; dev_ram.ref.txt:
    between the copy engine and compute the host waits for the first one."""
    view = program.work_map.view
    assert view is not None
    view[SOURCE : SOURCE + 8] = (5).to_bytes(8, "little")
    copy(program, at(program, SOURCE), at(program, SEMAPHORE), 8, 2 | 3 << 7)
    if last == "compute":
        program.method(0, 0x100, 0)  # NO_OPERATION
    program.release(at(program, SEMAPHORE), 9, wait=True)
    program.submit()
    assert program.machine.gpu.wait_idle()
    assert program.word(SEMAPHORE) == 9


@pytest.mark.parametrize(("transfer", "overlap", "seen"), [
    (2, "reverse", 6), (1, "reverse", 5), (1, "order", 6),
])  # fmt: skip
def test_a_pipelined_copy_waits_for_no_copy(transfer: int, overlap: str, seen: int) -> None:
    with RmProgram(overlap=overlap) as program:
        program.bring_up()
        view = program.work_map.view
        assert view is not None
        view[SOURCE : SOURCE + 16] = struct.pack("<QQ", 5, 6)
        copy(program, at(program, SOURCE), at(program, TARGET), 8, 2 | 3 << 7)
        copy(program, at(program, SOURCE) + 8, at(program, TARGET), 8, transfer | 3 << 7)
        program.release(at(program, SEMAPHORE), 1, wait=True)
        program.submit()
        program.wait(SEMAPHORE, 1)
        assert program.word(TARGET) == seen


def test_a_copy_from_nowhere(program: RmProgram) -> None:
    copy(program, 0x66_0000_0000, at(program, TARGET), 4, 2 | 3 << 7)
    program.submit()
    fails(program, Xid.MMU_FAULT, "0x6600000000: PDE, READ, HUB CE")


@pytest.mark.parametrize("method", [0x304, 0x6000, 0x3FFC])
def test_methods_that_a_class_has_not(program: RmProgram, method: int) -> None:
    program.method(4, method & 0x3FFF, 0)
    program.submit()
    fails(program, Xid.CLASS_ERROR, "has no method")


def test_objects_that_a_channel_has_not(program: RmProgram) -> None:
    program.submit()
    program.method(2, 0, 0xC7C0)
    program.submit()
    fails(program, Xid.CLASS_ERROR, "SET_OBJECT")


# -- channels ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"gpFifoEntries": 63}, Status.INVALID_ARGUMENT),
        ({"gpFifoEntries": 0}, Status.INVALID_ARGUMENT),
        ({"gpFifoOffset": 4}, Status.INVALID_ARGUMENT),
        ({"hUserdMemory": [0] * 8}, Status.NOT_SUPPORTED),
        ({"hUserdMemory": [0x4242, *[0] * 7]}, Status.INVALID_OBJECT_HANDLE),
        ({"userdOffset": [100, *[0] * 7]}, Status.INVALID_ARGUMENT),
        ({"userdOffset": [4 << 20, *[0] * 7]}, Status.INVALID_ARGUMENT),
        ({"hObjectError": 0x4242}, Status.INVALID_OBJECT_HANDLE),
        ({"hContextShare": 0x4242}, Status.OBJECT_NOT_FOUND),
        ({"hContextShare": 0}, Status.INVALID_ARGUMENT),
        ({"engineType": 11}, Status.INVALID_ARGUMENT),
        ({"internalFlags": 1}, Status.INVALID_ARGUMENT),
    ],
)
def test_parameters_of_channels(
    program: RmProgram, change: dict[str, object], status: Status
) -> None:
    values = {**program.channel_values(), "userdOffset": [0x2200, *[0] * 7], **change}
    with pytest.raises(StatusError) as error:
        program.alloc(
            program.group, program.facts.gpfifo_class, "NV_CHANNEL_ALLOC_PARAMS", **values
        )
    assert error.value.status == status


def test_tokens(program: RmProgram) -> None:
    """Channel 11:0, runlist 22:16."""
    assert program.token == program.channel_number
    copies, _ = program.alloc(
        program.device, 0xA06C, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", hVASpace=program.space,
        engineType=11,
    )  # fmt: skip
    values = {**program.channel_values(), "userdOffset": [0x2200, *[0] * 7], "hContextShare": 0}
    channel, _ = program.alloc(
        copies, program.facts.gpfifo_class, "NV_CHANNEL_ALLOC_PARAMS", **values
    )
    token = program.control(channel, "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN")
    assert token.workSubmitToken == 1 << 16
    with pytest.raises(StatusError) as error:
        program.alloc(channel, program.facts.compute_class)
    assert error.value.status == Status.INVALID_ARGUMENT, "compute on a copy engine"


def test_blackwells_tokens_ring_the_runlist() -> None:
    with RmProgram("gb202") as program:
        program.bring_up()
        assert program.token == 1 << 30 | program.channel_number


def test_a_turing_channel_has_a_token_once_it_has_a_runlist() -> None:
    with RmProgram("tu102") as program:
        program.bring_up()
        values = {**program.channel_values(), "userdOffset": [0x2200, *[0] * 7]}
        group, _ = program.alloc(
            program.device, 0xA06C, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
            hVASpace=program.space, engineType=1,
        )  # fmt: skip
        channel, _ = program.alloc(
            group, program.facts.gpfifo_class, "NV_CHANNEL_ALLOC_PARAMS",
            **values | {"hContextShare": 0},
        )  # fmt: skip
        name = "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN"
        with pytest.raises(StatusError) as error:
            program.control(channel, name)
        assert error.value.status == Status.INVALID_STATE
        program.control(group, "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE", bEnable=1)
        assert program.control(channel, name).workSubmitToken == 1


def test_recovery_takes_the_group_and_nothing_else(program: RmProgram) -> None:
    other = RmProgram.__new__(RmProgram)
    other.__dict__.update(program.__dict__)
    other.next_handle = 0x6000
    other.open_channel()
    program.submit_words([0xC000_0000])
    assert program.wait_error()[0] == Xid.PBDMA_ERROR
    other.release(other.work_address + SEMAPHORE, 9)
    other.submit()
    other.wait(SEMAPHORE, 9)
    program.free(program.group)
    program.next_handle, program.next_address = 0x7000, other.next_address
    program.open_channel()
    program.release(at(program, SEMAPHORE), 10)
    program.submit()
    program.wait(SEMAPHORE, 10)


def test_a_channel_that_its_program_resets(program: RmProgram) -> None:
    program.acquire(at(program, SEMAPHORE), 1)
    program.submit()
    program.control(program.channel, "NV906F_CTRL_CMD_RESET_CHANNEL")
    assert program.wait_error()[0] == Xid.CHANNEL_RESET
    program.free(program.group)


def test_channels_of_a_runlist_run_out() -> None:
    with RmProgram(channels=1) as program:
        program.bring_up()
        values = {**program.channel_values(), "userdOffset": [0x2200, *[0] * 7]}
        with pytest.raises(StatusError) as error:
            program.alloc(
                program.group, program.facts.gpfifo_class, "NV_CHANNEL_ALLOC_PARAMS", **values
            )
        assert error.value.status == Status.INSUFFICIENT_RESOURCES
