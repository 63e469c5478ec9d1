"""What the driver gives a channel: addresses for context buffers, a notifier, an address space."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.nvidia.nv_machine import opened, powered, work
from ugpu.hcq.errors import BadArgument, DriverRefused
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.rings.image import OwnImage
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.command_buffer import CommandBuffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.nv.rm.channel import Channel, ChannelMemory, Group
from ugpu.nv.rm.client import RmClient
from ugpu.nv.rm.contexts import ContextRange
from ugpu.nv.rm.memory import allocate
from ugpu.nv.rm.node_gpu import NodeGpu
from ugpu.nv.rm.session import Region
from ugpu.virtual.nvidia.faults import Fault


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, Struct | None]]:
    """Every object that the driver allocates from now on: its class and block."""
    seen: list[tuple[object, Struct | None]] = []
    real = RmClient.allocate

    # Any: as RmClient.allocate
    def watching(self: RmClient, parent: int, kind: Any, block: Struct | None = None) -> int:
        seen.append((kind, block))
        return real(self, parent, kind, block)

    monkeypatch.setattr(RmClient, "allocate", watching)
    return seen


def blocks(seen: list[tuple[object, Struct | None]], kind: str) -> list[Struct]:
    return [block for name, block in seen if name == kind and block is not None]


def test_the_error_notifier_is_a_notifier(allocated: list[tuple[object, Struct | None]]) -> None:
    """The kernel driver maps system memory of this type for itself, and no other."""
    with powered() as machine, opened(machine) as device:
        number = device.driver.gpu.client.constants
        kinds = [block.type for block in blocks(allocated, "NV01_MEMORY_SYSTEM")]
        assert kinds.count(number.NVOS32_TYPE_NOTIFIER) == len(device.driver.all_queues())
        assert all(
            block.type == number.NVOS32_TYPE_IMAGE
            for block in blocks(allocated, "NV01_MEMORY_LOCAL_USER")
        )


def test_the_address_space_has_its_size(allocated: list[tuple[object, Struct | None]]) -> None:
    with powered() as machine, opened(machine):
        (space,) = blocks(allocated, "FERMI_VASPACE_A")
    assert (space.vaBase, space.vaSize) == (0x1000, 0x1_FFFF_FB00_0000)


def test_addresses_of_context_buffers_hold_no_memory_after_their_channel() -> None:
    """Buffers that two channels share stay where the first had them mapped: UVM refuses other
    memory there."""
    with powered() as machine, opened(machine) as device:
        graphics = device.driver.gpu.client.constants.NV2080_ENGINE_TYPE_GRAPHICS
        first = device.driver.compute_queue
        second = device.driver._make_queue("second", QueueKind.COMPUTE, graphics)
        assert first.channel is not None and second.channel is not None
        base = first.channel.registration
        assert isinstance(base, ContextRange)
        first.channel.close()
        gpu = device.driver.gpu
        taken = [allocate(gpu, 2 << 20, Placement.DEVICE, Region.DEVICE) for _ in range(4)]
        assert all(not base.base <= memory.address < base.base + base.size for memory in taken)
        for memory in taken:
            memory.close()


def test_channels_made_anew_use_the_same_addresses() -> None:
    with powered() as machine, opened(machine) as device:
        used = device.driver.session.addresses[Region.DEVICE].used
        for _ in range(3):
            device.driver.compute_queue.build()
        assert device.driver.session.addresses[Region.DEVICE].used == used
        work(device)


@pytest.mark.parametrize("chip", ["tu102", "gh100", "gb202"])
def test_the_range_has_room_for_what_the_driver_reports(chip: str) -> None:
    with powered(chip) as machine, opened(machine) as device:
        channel = device.driver.compute_queue.channel
        assert channel is not None and isinstance(channel.registration, ContextRange)
        gpu = device.driver.gpu
        found = gpu.client.ask(
            gpu.subdevice, "NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE", hChannel=channel.handle
        )
        assert found.totalBufferSize > 0
        assert channel.registration.size >= max(1 << 30, 2 * found.totalBufferSize)


@pytest.mark.parametrize("placement", list(Placement))
@pytest.mark.parametrize("chip", ["ga102", "gh100", "gb202"])
def test_commands_lie_where_the_caller_says(chip: str, placement: Placement) -> None:
    with powered(chip) as machine, opened(machine, commands=placement.value) as device:
        work(device)
        assert all(queue._parts[0].placement is placement for queue in device.driver.all_queues())
        words = CommandBuffer(np.zeros(1 << 20, np.uint32), 1, [])
        large = device.driver.compute_queue.place(words)
        assert isinstance(large, OwnImage) and large.memory is not None
        assert large.memory.placement is placement
        large.close()


def test_commands_go_to_the_host_where_video_memory_is_used_up() -> None:
    with powered() as machine, opened(machine) as device:
        machine.inject(Fault.NO_VIDEO_MEMORY)
        image = device.driver.compute_queue.place(CommandBuffer(np.zeros(64, np.uint32), 1, []))
        assert isinstance(image, OwnImage) and image.memory is not None
        assert image.memory.placement is Placement.HOST
        image.close()
        work(device)


def test_commands_lie_in_one_of_two_places() -> None:
    with powered() as machine:
        with pytest.raises(BadArgument, match=r"commands must be one of .*'device'.* got 'gpu'"):
            opened(machine, commands="gpu")
        assert not machine.nodes


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"qmd": "3.0"}, "version 3.0"), ({"grid_type": 0}, "QMD_TYPE is QUEUE (0)")],
    ids=["version 3.0", "no type"],
)
def test_descriptors_that_hopper_does_not_run(changes: dict[str, Any], said: str) -> None:
    """An H100 computed nothing with them, without an error; the channel went on."""
    with powered() as machine, opened(machine) as device:
        family = device.driver.family
        device.driver.family = replace(family, **changes)
        with pytest.raises(AssertionError):
            work(device)
        assert [said in line for line in machine.violations] == [True]
        assert machine.log == []
        device.driver.family = family
        work(device)
        assert len(machine.violations) == 1


def test_a_channel_on_the_graphics_engine_is_registered_once_it_has_a_context() -> None:
    """As on an H100; a copy channel there has one too, since the driver makes an object for it."""
    with powered() as machine, opened(machine) as device:
        driver = device.driver
        number = driver.gpu.client.constants.NV2080_ENGINE_TYPE_GRAPHICS
        queue = driver._make_queue("copy here", QueueKind.COPY, number)
        assert queue.progress().reached == 1
        group = Group(driver.gpu, number, context_share=False)
        memory = ChannelMemory(driver.gpu)
        with pytest.raises(DriverRefused, match="NV_ERR_INVALID_OBJECT"):
            Channel(driver.gpu, group, memory, [])
        group.close()
        memory.close()


def test_copy_queues_are_on_the_fastest_engines() -> None:
    with powered() as machine, opened(machine) as device:
        driver, gpu = device.driver, device.driver.gpu
        assert isinstance(gpu, NodeGpu)
        engines = [queue.engine for queue in driver._queues[QueueKind.COPY]]
        speeds = [gpu.physical_engines(engine) for engine in engines]
        assert speeds == sorted(speeds, reverse=True) and speeds[0] > speeds[-1] > 0


@pytest.mark.parametrize(("chip", "in_order"), [("gh100", True), ("ga102", False)])
def test_the_doorbell_stays_behind_writes_of_video_memory(
    chip: str, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In BAR1 from Hopper on; where there is only BAR0, USERD is read before it is rung."""
    settled: list[ChannelMemory] = []
    monkeypatch.setattr(ChannelMemory, "settle", lambda memory: settled.append(memory))
    with powered(chip) as machine, opened(machine) as device:
        assert device.driver.gpu.rings_in_order is in_order
        work(device)
        assert bool(settled) is not in_order
