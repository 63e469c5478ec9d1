"""The virtual msm: what its calls accept, refuse and do."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.virtual.adreno.kgsl_client import fails, machine_of, pkt7
from tests.virtual.adreno.msm_client import CODES, READ, WRITE, MsmClient
from ugpu.virtual.adreno.machine import VirtualMachine

NOWHERE = 0x1_F000_0000


@pytest.fixture
def client() -> Iterator[MsmClient]:
    with machine_of() as machine:
        yield MsmClient(machine)


def store(address: int, *values: int) -> list[int]:
    return pkt7(0x3D, address & 0xFFFF_FFFF, address >> 32, *values)


def wait_equal(address: int, value: int) -> list[int]:
    return pkt7(0x3C, 0x13, address & 0xFFFF_FFFF, address >> 32, value, 0xFFFF_FFFF, 16)


def test_parameters(client: MsmClient) -> None:
    facts = client.node.machine.facts
    assert client.parameter(CODES.MSM_PARAM_CHIP_ID) == facts.chip_ids[0]
    assert client.parameter(CODES.MSM_PARAM_GPU_ID) == 630
    assert client.parameter(CODES.MSM_PARAM_GMEM_SIZE) == 1 << 20
    assert client.parameter(CODES.MSM_PARAM_GMEM_BASE) == 0x10_0000
    assert client.parameter(CODES.MSM_PARAM_VA_START) == 1 << 32
    assert client.parameter(CODES.MSM_PARAM_VA_SIZE) == 4 << 30
    for wrong in ({"pipe": 1}, {"param": 0x77}, {"len": 8}, {"pad": 1}):
        with fails(errno.EINVAL):
            client.parameter(CODES.MSM_PARAM_GPU_ID, **wrong)
    client.node.close()


def test_a_newer_chip_has_more_addresses_and_no_number() -> None:
    with machine_of("a740") as machine:
        client = MsmClient(machine)
        assert client.parameter(CODES.MSM_PARAM_GPU_ID) == 0
        assert client.parameter(CODES.MSM_PARAM_VA_SIZE) == 16 << 30
        assert client.parameter(CODES.MSM_PARAM_GMEM_BASE) == 0


def test_an_unknown_call(client: MsmClient) -> None:
    with fails(errno.EINVAL):
        client.node.ioctl(client.handle, 0xC018_6450, bytearray(24))
    assert client.node.machine.asked


def test_memory(client: MsmClient) -> None:
    buffer = client.alloc(5000)
    assert buffer.address >= 1 << 32 and buffer.read() == [0]
    assert client.info(buffer.handle, CODES.MSM_INFO_GET_FLAGS) == CODES.MSM_BO_WC
    for size, flags in ((0, 0x20000), (4096, 0), (4096, 0x30000), (4096, 0x10_0000)):
        with fails(errno.EINVAL):
            client.alloc(size, flags)
    with fails(errno.ENOENT):
        client.info(99, CODES.MSM_INFO_GET_IOVA)
    with fails(errno.EINVAL):
        client.info(buffer.handle, CODES.MSM_INFO_GET_IOVA, len=8)
    with fails(errno.EINVAL):
        client.node.map(client.handle, 3 * 4096, client.info(buffer.handle, 0))
    with fails(errno.EINVAL):
        client.node.map(client.handle, 4096, 0)
    client.close(buffer)
    with fails(errno.EINVAL):
        client.close(buffer)


def test_an_address_of_the_programs_choice(client: MsmClient) -> None:
    made = client.call("GEM_NEW", "drm_msm_gem_new", size=4096, flags=CODES.MSM_BO_WC)
    with fails(errno.EINVAL):
        client.info(made.handle, CODES.MSM_INFO_SET_IOVA, 0x1000)
    client.info(made.handle, CODES.MSM_INFO_SET_IOVA, 0x1_8000_0000)
    assert client.info(made.handle, CODES.MSM_INFO_GET_IOVA) == 0x1_8000_0000
    with fails(errno.EBUSY):
        client.info(made.handle, CODES.MSM_INFO_SET_IOVA, 0x1_9000_0000)


def test_a_submission_and_its_fence(client: MsmClient) -> None:
    target = client.alloc()
    queue = client.queue(prio=2)
    first = client.run(store(target.address, 5), target, queue=queue)
    assert target.read() == [5]
    assert client.run(store(target.address, 6), target, queue=queue) == first + 1
    with fails(errno.EINVAL):
        client.wait(first + 2, queue)
    with fails(errno.ENOENT):
        client.wait(first, queue + 1)
    with fails(errno.EINVAL):
        client.wait(first, queue, flags=2)
    machine = client.node.machine
    assert (machine.violations, machine.log) == ([], [])


def test_waits_end_at_a_time(client: MsmClient) -> None:
    gate = client.alloc()
    fence = client.start(wait_equal(gate.address, 1), gate)
    with fails(errno.ETIMEDOUT):
        client.wait(fence, limit_s=0.0)
    prep = {"handle": gate.handle, "op": CODES.MSM_PREP_READ | CODES.MSM_PREP_NOSYNC}
    with fails(errno.EBUSY):
        client.call("GEM_CPU_PREP", "drm_msm_gem_cpu_prep", **prep)
    gate.write([1])
    client.wait(fence)
    client.call("GEM_CPU_PREP", "drm_msm_gem_cpu_prep", **prep)
    with fails(errno.EINVAL):
        client.call("GEM_CPU_PREP", "drm_msm_gem_cpu_prep", handle=gate.handle, op=16)
    with fails(errno.ENOENT):
        client.call("GEM_CPU_FINI", "drm_msm_gem_cpu_fini", handle=99)


def test_what_a_submission_must_be(client: MsmClient) -> None:
    buffer = client.alloc()
    buffer.write(pkt7(0x10))
    named, command = [(buffer.handle, READ)], [(0, 0, 4)]
    for commands, objects, more in (
        (command, [(buffer.handle, 0)], {}),
        (command, [(buffer.handle, 16 | READ)], {}),
        (command, [(99, READ)], {}),
        ([(1, 0, 4)], named, {}),
        ([(0, 0, 6)], named, {}),
        ([(0, 0, 0)], named, {}),
        ([(0, 4092, 8)], named, {}),
        (command, named, {"type": 7}),
        (command, named, {"nr_relocs": 1}),
        (command, named, {"flags": 1}),
        (command, named, {"flags": 0x10 | 0x100_0000}),
        (command, named, {"pad": 1}),
        (command, named, {"flags": 0x0200_0010, "fence": 0}),
    ):
        with fails(errno.EINVAL):
            client.submit(commands, objects, **more)
    with fails(errno.ENOENT):
        client.submit(command, named, 9)
    with fails(errno.EALREADY):
        client.submit(command, [*named, (buffer.handle, WRITE)])
    assert client.submit(command, named, flags=0x0200_0010, fence=77) == 77
    client.wait(77)
    assert client.node.machine.engine.submissions == 1


def test_a_hang_skips_one_submission_and_is_counted(client: MsmClient) -> None:
    target, queue = client.alloc(), client.queue()
    client.run([0x7000_0000], queue=queue)
    client.run(store(target.address, 3), target, queue=queue)
    assert target.read() == [3]
    assert (client.faults(queue), client.faults(0)) == (1, 0)
    assert client.parameter(CODES.MSM_PARAM_FAULTS) == 1
    other = MsmClient(client.node.machine)
    assert other.parameter(CODES.MSM_PARAM_FAULTS) == 0


def test_memory_that_a_submission_does_not_name(client: MsmClient) -> None:
    machine = client.node.machine
    target = client.alloc()
    client.run(store(target.address, 3))
    assert machine.log[-1].address == target.address  # no submission has mapped it
    client.run(store(target.address, 4), target)
    assert target.read() == [4] and machine.violations == []
    client.run(store(target.address, 5))
    assert target.read() == [5]
    assert "does not name" in machine.violations[0]


def test_closing_waits_for_submissions(client: MsmClient) -> None:
    gate, target, queue = client.alloc(), client.alloc(), client.queue()
    words = wait_equal(gate.address, 1) + store(target.address, 9)
    fence = client.start(words, gate, target, queue=queue)
    used = client.node.machine.memory.used
    client.close(target)
    client.close_queue(queue)
    with fails(errno.ENOENT):
        client.wait(fence, queue)
    gate.write([1])
    client.run(pkt7(0x10))
    assert target.read() == [9] and client.node.machine.log == []
    target.mapping.close()
    assert client.node.machine.memory.used < used + 4096
    with fails(errno.ENOENT):
        client.close_queue(0)


def test_advice(client: MsmClient) -> None:
    buffer = client.alloc()
    call = {"handle": buffer.handle, "madv": CODES.MSM_MADV_DONTNEED}
    client.call("GEM_MADVISE", "drm_msm_gem_madvise", **call)
    with fails(errno.EBUSY):
        client.run(pkt7(0x10), buffer)
    client.call("GEM_MADVISE", "drm_msm_gem_madvise", handle=buffer.handle, madv=0)
    client.run(pkt7(0x10), buffer)


def test_the_end_of_a_program_gives_all_back() -> None:
    with machine_of() as machine:
        client = MsmClient(machine)
        gate = client.alloc()
        client.queue()
        client.start(wait_equal(gate.address, 1), gate)
        client.node.close()
        assert _left(machine) == (0, 0, 0)


def _left(machine: VirtualMachine) -> tuple[int, int, int]:
    return machine.memory.used, len(machine.contexts), len(machine.nodes)
