"""The 3D class on a channel of the virtual AD102: state, macros, reports; drawings are refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support.nvidia.gsp.gsp_script import Script
from tests.virtual.nvidia.engines import test_virtual_nv_mme as mme
from tests.virtual.nvidia.gsp.test_virtual_gsp_memory import (
    CHANNEL,
    CLIENT,
    DEVICE,
    SPACE,
    channel_params,
    make,
    objects,
    tables,
    video,
)
from ugpu.virtual.nvidia.engines.graphics import GraphicsEngine
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.rm.channels import ChannelObject

GRAPHICS, ADA_A = 1, 0xC997
VIRTUAL, PHYSICAL = 0x400000, 0x200000  # 2 MiB
MACRO, DATA = 0x3800 + 8 * 7, 0x3804 + 8 * 7  # of macro 7
SCRATCH, FALCON, NOP = 0x3400, 0x2310, 0x100


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    """A booted card with a channel of the graphics engine."""
    script = make()
    script.boot()
    objects(script)
    directory = tables(script, VIRTUAL, PHYSICAL)
    params = struct.pack("<QIIIIII", directory, 4, 0, SPACE, 0, 0, 0)
    assert script.control(0x801813, DEVICE, params)[0] == 0
    params = channel_params(script, 9, engine=GRAPHICS)
    assert script.allocate(0xC56F, DEVICE, CHANNEL, params)[0] == 0
    yield script
    script.close()
    script.card.close()


@pytest.fixture
def engine(script: Script) -> Iterator[GraphicsEngine]:
    """A new 3D object."""
    assert script.allocate(ADA_A, CHANNEL, 0x8001)[0] == 0
    owner = script.card.machine.clients[CLIENT].objects[CHANNEL]
    assert isinstance(owner, ChannelObject)
    engine = owner.channel.engines[ADA_A]
    assert isinstance(engine, GraphicsEngine)
    yield engine
    assert script.free(0x8001) == 0


def load(engine: GraphicsEngine, *groups: list[int]) -> None:
    """Load macro 7, as a push buffer does."""
    engine.burst(0x11C, (7, 6))  # LOAD_MME_START_ADDRESS_RAM_POINTER
    engine.method(0x114, 6)
    for word in [word for group in groups for word in group]:
        engine.method(0x118, word)


def sent(method: int, register: int) -> list[int]:
    return mme.sent(method >> 2 | 1 << 12, register)


def test_the_firmware_changes_a_register_for_a_macro_that_waits_for_it(
    engine: GraphicsEngine,
) -> None:
    """As in NVK (nvk_cmd_draw.c): a message in the scratch words, then a loop over the first."""
    load(
        engine,
        mme.group(mme.alu(mme.ADD, 1, mme.LOAD0), mme.alu(mme.ADD, 2, mme.LOAD1)),
        sent(SCRATCH, mme.ZERO), sent(SCRATCH + 4, 1), sent(SCRATCH + 8, 2),
        sent(FALCON, mme.LOAD0),
        mme.group(mme.alu(mme.STATE, 0, mme.IMMED, immediate=SCRATCH >> 2)),
        mme.group(mme.alu(mme.ADD, 1, mme.IMMED, immediate=1)),
        mme.group(mme.alu(mme.BEQ, mme.ZERO, 0, 1, 0x1FFE)),  # two back, while it is not 1
        mme.END,
    )  # fmt: skip
    engine.method(MACRO, 0x55)
    with pytest.raises(ChannelError, match="NO_OPERATION while a macro waits for parameters"):
        engine.method(NOP, 0)
    engine.method(DATA, 0x0F)
    engine.method(DATA, 0x419BA4)
    assert engine.registers == {0x419BA4: 0x05} and not engine.mme.waits


def test_a_report_releases_its_payload(script: Script, engine: GraphicsEngine) -> None:
    video(script, PHYSICAL + 0x100, bytes(16))
    engine.burst(0x1B00, (0, VIRTUAL + 0x100, 0xFACE, 1 << 28))
    assert bytes(script.card.gpu.memory.view[PHYSICAL + 0x100 :][:4]) == b"\xce\xfa\0\0"


def test_constants_are_written_one_after_the_other(script: Script, engine: GraphicsEngine) -> None:
    video(script, PHYSICAL + 0x300, bytes(64))
    engine.burst(0x2380, (16, 0, VIRTUAL + 0x300, 8))  # selector A to C, offset
    engine.burst(0x2390, (7, 9))
    memory = script.card.gpu.memory.view[PHYSICAL + 0x300 :][:20]
    assert struct.unpack("<5I", memory) == (0, 0, 7, 9, 0)
    with pytest.raises(ChannelError, match="LOAD_CONSTANT_BUFFER at 0x10 of 0x10 bytes"):
        engine.method(0x2390, 1)


def test_a_macro_reads_memory_by_the_fifo(script: Script, engine: GraphicsEngine) -> None:
    video(script, PHYSICAL + 0x200, struct.pack("<2I", 11, 22))
    load(
        engine,
        mme.group(mme.alu(7, mme.ZERO, mme.IMMED, mme.PAIR, 0x1000), mme.alu(mme.ADD, immediate=1)),
        sent(SCRATCH + 0x40, mme.LOAD0), sent(SCRATCH + 0x44, mme.LOAD0), mme.END,
    )  # fmt: skip
    engine.burst(0x550, (0, VIRTUAL + 0x200))
    engine.method(0x560, 2)
    engine.method(MACRO, 0)
    assert [engine.state(SCRATCH + 0x40 + 4 * i) for i in range(2)] == [11, 22]


@pytest.mark.parametrize(
    ("address", "value", "words"),
    [
        (0x1614, 0, "END = 0x0 is not modelled"),
        (0x0FFC, 0, "has no method 0x0ffc"),
        (0x0234, 1 << 31, "SET_MME_VERSION = 0x80000000: reserved bits"),
        (0x1B0C, 2, "SET_REPORT_SEMAPHORE_D 0x2 is not modelled"),
        (0x2300, 0, "SET_FALCON00 = 0x0 is not modelled"),
        (0x0560, 2000, "MME_DMA_READ_FIFOED of 2000 words"),
    ],
)
def test_what_is_refused(engine: GraphicsEngine, address: int, value: int, words: str) -> None:
    with pytest.raises(ChannelError, match=words):
        engine.method(address, value)


def test_macros_may_not_call_macros(engine: GraphicsEngine) -> None:
    load(engine, sent(MACRO, mme.ZERO), mme.END)
    with pytest.raises(ChannelError, match="a macro sent CALL_MME_MACRO"):
        engine.method(MACRO, 0)
