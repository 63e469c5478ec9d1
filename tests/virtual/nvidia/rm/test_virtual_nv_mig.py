"""A divided GPU: capability files, subscriptions, and that work needs an instance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.nvidia.nv_machine import opened, powered, work
from tests.support.nvidia.rm_program import RmProgram, StatusError
from ugpu import hcq
from ugpu.hcq.errors import BadArgument, DeviceNotFound
from ugpu.virtual.nvidia.options import MachineOptions
from ugpu.virtual.nvidia.status import Status

FOLDER = "/proc/driver/nvidia/capabilities/gpu0/mig"
INSTANCES = ((3, 0), (3, 1), (5, 0))


@pytest.fixture
def program() -> Iterator[RmProgram]:
    with RmProgram(mig=INSTANCES) as made:
        made.open_client()
        made.gpu_file = made.node.open("/dev/nvidia0")
        made.device, _ = made.alloc(made.client, 0x80, "NV0080_ALLOC_PARAMETERS")
        made.subdevice, _ = made.alloc(made.device, 0x2080, "NV2080_ALLOC_PARAMETERS")
        yield made


def capability(program: RmProgram, name: str) -> int:
    text = program.node.read_text(f"{FOLDER}/{name}/access")
    minor = int(text.split()[1])
    return program.node.open(f"/dev/nvidia-caps/nvidia-cap{minor}")


def enter(program: RmProgram, name: str, number: int) -> int:
    handle, _ = program.alloc(
        program.subdevice, 0xC637, "NVC637_ALLOCATION_PARAMETERS", swizzId=number,
        capDescriptor=capability(program, name),
    )  # fmt: skip
    return handle


def test_files(program: RmProgram) -> None:
    for name in ("gi3", "gi3/ci0", "gi3/ci1", "gi5", "gi5/ci0"):
        capability(program, name)
    with pytest.raises(FileNotFoundError):
        program.node.read_text(f"{FOLDER}/gi4/access")
    with pytest.raises(FileNotFoundError):
        program.node.open("/dev/nvidia-caps/nvidia-cap999")


def test_the_right_capability_opens_an_instance(program: RmProgram) -> None:
    for name, number, status in (
        ("gi5", 3, Status.INSUFFICIENT_PERMISSIONS),
        ("gi3/ci0", 3, Status.INSUFFICIENT_PERMISSIONS),
        ("gi3", 4, Status.INVALID_ARGUMENT),
    ):
        with pytest.raises(StatusError) as error:
            enter(program, name, number)
        assert error.value.status == status
    outer = enter(program, "gi3", 3)
    with pytest.raises(StatusError) as error:
        enter(program, "gi5", 5)
    assert error.value.status == Status.STATE_IN_USE
    inner, _ = program.alloc(
        outer, 0xC638, "NVC638_ALLOCATION_PARAMETERS", execPartitionId=1,
        capDescriptor=capability(program, "gi3/ci1"),
    )  # fmt: skip
    program.free(inner)
    program.free(outer)
    enter(program, "gi5", 5)


def test_work_needs_an_instance(program: RmProgram) -> None:
    with pytest.raises(StatusError) as error:
        program.alloc(
            program.device, 0xA06C, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", engineType=1
        )
    assert error.value.status == Status.INVALID_STATE
    enter(program, "gi3", 3)
    program.alloc(program.device, 0xA06C, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", engineType=1)


def test_a_whole_gpu_has_no_instances() -> None:
    with RmProgram() as program:
        program.open_client()
        program.open_device()
        with pytest.raises(StatusError) as error:
            program.alloc(program.subdevice, 0xC637, "NVC637_ALLOCATION_PARAMETERS", swizzId=3)
        assert error.value.status == Status.NOT_SUPPORTED


def test_our_driver_works_in_an_instance() -> None:
    with powered("gh100", MachineOptions(mig=INSTANCES)) as machine:
        with pytest.raises(BadArgument, match="3/0, 3/1, 5/0"):
            hcq.open("virtual:gh100", chip=machine)
        with pytest.raises(DeviceNotFound, match="no instance 4/0"):
            opened(machine, mig="4/0")
        device = opened(machine, mig="3/1")
        work(device)
        device.close()
        assert machine.live_objects() == []
