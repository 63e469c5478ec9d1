"""The driver on the model of KGSL and the GPU behind it: what neither had agreed on beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from tests.support.adreno.mesa import needs_mesa
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import ChipError, OutOfMemory, PageFault
from ugpu.hcq.state.memory import VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.qcom.device.driver import AdrenoDriver
from ugpu.qcom.kernel_driver.interface import Memory, Submission

CHIPS = ("a630", "a660", "a740", "a750")
Opened = Callable[[str], Device]


@pytest.fixture
def opened() -> Iterator[Opened]:
    devices = []

    def make(chip: str) -> Device:
        device = hcq.open(f"virtual:{chip}")
        devices.append(device)
        return device

    yield make
    for device in devices:
        device.close()


@pytest.mark.parametrize("chip", [*CHIPS, "a630+msm", "a740+msm"])
def test_copies_fills_and_the_clock(opened: Opened, chip: str) -> None:
    device = opened(chip)
    data = np.random.default_rng(2).integers(0, 256, 5000, np.uint8)
    source, target, ticks = device.alloc(5000), device.alloc(5120), device.alloc(16)
    source.copy_from(data)
    with device.queue() as queue:
        queue.timestamp(ticks)
        queue.fill(target, 0x01020304)
        queue.barrier()
        queue.copy(target[5:4000], source[1:3996])
        queue.copy(target[4096:5096], source[4000:5000])
        queue.timestamp(ticks, 8)
    device.synchronize()
    expected = np.tile(np.array([4, 3, 2, 1], np.uint8), 1280)
    expected[5:4000] = data[1:3996]
    expected[4096:5096] = data[4000:5000]
    assert np.array_equal(target.numpy(), expected)
    first, last = ticks.numpy(np.uint64)
    assert 0 < first <= last


@pytest.mark.parametrize("chip", ["a630", "a740", "a630+msm"])
def test_writing_part_of_a_cache_line_leaves_its_neighbours(opened: Opened, chip: str) -> None:
    device = opened(chip)
    buffer = device.alloc(4096)
    buffer.fill(0x05050505)
    expected = np.full(4096, 5, np.uint8)
    for start, end in ((3, 6), (100, 300), (4094, 4096)):
        buffer[start:end].copy_from(np.full(end - start, 9, np.uint8))
        expected[start:end] = 9
    assert np.array_equal(buffer.numpy(), expected)


@pytest.mark.parametrize("chip", ["a630", "a740+msm"])
def test_replays_are_given_again_without_being_built_again(
    opened: Opened, chip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built anew only where memory (msm names all) or the context changed."""
    device = opened(chip)
    assert isinstance(device.driver, AdrenoDriver)
    interface = device.driver.interface
    one, two = device.alloc(4096), device.alloc(4096)
    with device.capture() as graph, device.queue() as queue:
        queue.copy(two, one)
    built: list[Submission] = []
    prepare = interface.prepare

    def counted(ranges: Sequence[tuple[Memory, int, int]]) -> Submission:
        built.append(prepare(ranges))
        return built[-1]

    monkeypatch.setattr(interface, "prepare", counted)

    def replays(values: range) -> int:
        count = 0
        for value in values:
            one.fill(value)
            device.synchronize()
            built.clear()
            graph.replay()
            graph.wait()
            count += len(built)
            assert (two.numpy(np.uint32) == value).all()
        return count

    assert replays(range(1, 5)) == 1
    other = device.alloc(4096)
    assert replays(range(5, 8)) == (1 if "msm" in chip else 0)
    other.close()
    assert replays(range(8, 10)) == (1 if "msm" in chip else 0)
    device.reset()
    assert replays(range(10, 12)) <= 1  # the kernel driver may give the context's number again


@needs_mesa
@pytest.mark.parametrize("chip", CHIPS)
def test_tensors(opened: Opened, chip: str) -> None:
    device = opened(chip)
    x = np.random.default_rng(3).random((33, 70), np.float32)
    a = Tensor(x, device=device)
    found = (a @ Tensor(x.T.copy(), device=device)).softmax(axis=-1).numpy()
    powers = np.exp(x @ x.T - (x @ x.T).max(-1, keepdims=True))
    assert np.allclose(found, powers / powers.sum(-1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("chip", ["a630", "a740", "a660+msm"])
def test_graphs_and_queues_that_wait(opened: Opened, chip: str) -> None:
    device = opened(chip)
    one, two, other = (device.alloc(4096) for _ in range(3))
    with device.capture() as graph:
        copy, compute = device.queue(QueueKind.COPY), device.queue()
        value = copy.fill(one, 5).submit()
        compute.wait(copy.timeline, value).copy(two, one).submit()
    graph.replay()
    graph.wait()
    assert (two.numpy(np.uint32) == 5).all()
    graph.replay(inputs={two: other})
    graph.wait()
    assert (other.numpy(np.uint32) == 5).all()
    graph.replay(inputs={one: device.alloc(4099)[3:]})  # a copy from an odd address
    graph.wait()
    assert (two.numpy(np.uint32) == 5).all()


@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_a_page_fault_loses_the_context_alone(opened: Opened, chip: str) -> None:
    device = opened(chip)
    good = device.alloc(4096)
    good.copy_from(np.full(4096, 3, np.uint8))
    address = VirtAddr(int(good.address) + (1 << 30))
    queue = device.queue().fill(Buffer(device.driver.core, address, 64, good.placement), 7)
    with pytest.raises(PageFault) as caught:
        queue.timeline.wait(queue.submit())
    facts = caught.value.facts
    assert (facts["state"], facts["access"], facts["fault"]) == ("guilty", "write", "translation")
    assert facts["address"] == address
    assert str(facts["instruction"]).startswith("stg.") and facts["kernel"] == "fill"
    assert isinstance(facts["offset"], int) and facts["offset"] % 8 == 0
    assert f"by `{facts['instruction']}`" in str(caught.value)
    device.reset()
    assert (good.numpy() == 3).all()
    queue = device.queue().fill(good, 9)
    queue.timeline.wait(queue.submit())
    assert (good.numpy(np.uint32) == 9).all()


def test_msm_tells_nobody_of_a_page_fault(opened: Opened) -> None:
    device = opened("a630+msm")
    good = device.alloc(4096)
    address = VirtAddr(int(good.address) + (1 << 30))
    with device.queue() as queue:
        queue.fill(Buffer(device.driver.core, address, 64, good.placement), 7).fill(good, 9)
    device.synchronize()
    assert (good.numpy(np.uint32) == 9).all()
    machine = device.driver.interface.node.machine  # type: ignore[attr-defined]
    assert [report.address for report in machine.log] == [address]


@pytest.mark.parametrize("chip", ["a630", "a740", "a740+msm"])
def test_a_reset_is_proven_by_kernels_with_a_known_result(opened: Opened, chip: str) -> None:
    device = opened(chip)
    recovery = device.reset()
    assert recovery.attempts[-1].proof == {"ran": "a signal", "kernel": "fill and copy right"}


def test_a_gpu_that_computes_wrongly_is_not_taken_for_recovered(opened: Opened) -> None:
    device = opened("a630")
    driver = device.driver
    assert isinstance(driver, AdrenoDriver)
    own = driver.encoder.own
    own["copy"], right = own["fill"], own["copy"]  # it writes one byte, or none
    with pytest.raises(ChipError, match="word 0 of a copy is"):
        device.reset()
    own["copy"] = right
    device.reset()
    device.alloc(64).fill(1)


def test_a_reset_without_memory_for_a_proof_is_proven_by_a_signal(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opened("a630")
    driver = device.driver
    assert isinstance(driver, AdrenoDriver)
    allocate = driver.interface.allocate

    def scarce(size: int, *rest: object) -> Memory:
        if size == 2048:
            raise OutOfMemory("no memory is left", size=size)
        return allocate(size, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(driver.interface, "allocate", scarce)
    proof = device.reset().attempts[-1].proof
    assert proof["ran"] == "a signal" and "no memory is left" in str(proof["kernel"])
