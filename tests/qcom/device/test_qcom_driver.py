"""The driver above a double of the kernel drivers: memory, queues, kernels, failures."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.qcom.device.kgsl_double import Double
from tests.support import kernels
from tests.support.adreno.mesa import MESA, compiled, fetching, module, needs_mesa
from tests.support.collector import apart
from tests.support.interrupts import interrupted
from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    BadCodeObject,
    DeviceHang,
    DeviceNotFound,
    OutOfMemory,
    PageFault,
)
from ugpu.hcq.objects.ir3_object import pack_ir3
from ugpu.hcq.transport.node import NodeAttachment
from ugpu.hcq.work.queue import QueueKind
from ugpu.qcom import chips
from ugpu.qcom.device.device import open_device
from ugpu.qcom.device.driver import AdrenoDriver
from ugpu.qcom.kernel_driver.interface import KernelInterface
from ugpu.virtual.adreno.isa.decoder.decode import program
from ugpu.virtual.adreno.isa.decoder.table import table

CHIPS = ("a630", "a660", "a740", "a750")
Opened = Callable[..., tuple[Device, Double]]


def _text(chip: str) -> Callable[[bytes], list[str]]:
    known = table(chips.facts(chip).gpu_id or 740)
    return lambda code: [one.text() for one in program(code, known)]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open a chip through a double: (device, double). All are closed at the end."""
    devices = []

    def make(chip: str = "a630", kind: str = "kgsl", **options: object) -> tuple[Device, Double]:
        facts = chips.facts(chip)
        double = Double(facts.chip_ids[0], facts.generation, _text(chip))
        for name, value in options.items():
            setattr(double, name, value)
        device = open_device(f"{kind}:0", NodeAttachment(double, kind, 0))
        devices.append(device)
        return device, double

    yield make
    for device in devices:
        device.close()


ADD = module(
    """
  %inside = icmp ult i32 %i, %n
  br i1 %inside, label %do, label %end
do:
  %at = getelementptr float, ptr addrspace(1) %a, i64 %wide
  %x = load float, ptr addrspace(1) %at
  %y = fadd float %x, 1.5
  %out = getelementptr float, ptr addrspace(1) %b, i64 %wide
  store float %y, ptr addrspace(1) %out
  br label %end
end:""",
    "ptr addrspace(1) %b, ptr addrspace(1) %a, i32 %n",
)


@pytest.mark.parametrize("kind", ["kgsl", "msm"])
@pytest.mark.parametrize("chip", CHIPS)
@needs_mesa
def test_a_kernel_runs(opened: Opened, chip: str, kind: str) -> None:
    device, double = opened(chip, kind)
    x = np.arange(300, dtype=np.float32)
    a, b = device.alloc(1200), device.alloc(1200)
    a.copy_from(x)
    kernel = device.load(pack_ir3([compiled(ADD, chip)]))["k"]
    with device.queue() as queue:
        queue.launch(kernel, grid=(5,), block=(64,), args=(b, a, np.uint32(300)))
    device.synchronize()
    assert not double.problem
    assert np.array_equal(b.numpy(np.float32), x + 1.5)


@pytest.mark.parametrize("chip", ["a630", "a740"])
@needs_mesa
def test_copies_and_fills(opened: Opened, chip: str) -> None:
    device, double = opened(chip)
    data = np.random.default_rng(1).integers(0, 256, 1000, np.uint8)
    source, target = device.alloc(1000), device.alloc(1024)
    source.copy_from(data)
    with device.queue() as queue:
        queue.fill(target, 0x01020304)
        queue.barrier()
        queue.copy(target[3:500], source[1:498])
        queue.copy(target[512:912], source[100:500])
    device.synchronize()
    expected = np.tile(np.array([4, 3, 2, 1], np.uint8), 256)
    expected[3:500] = data[1:498]
    expected[512:912] = data[100:500]
    assert np.array_equal(target.numpy(), expected)
    assert not double.problem


def test_cached_memory_is_synced_around_copies(opened: Opened) -> None:
    device, double = opened("a630")
    buffer = device.alloc(5000)
    before = sum(double.dirty.values())
    buffer.copy_from(np.ones(5000, np.uint8))
    assert sum(double.dirty.values()) == before + 2  # the last line is written in part
    assert buffer.numpy().sum() == 5000
    assert sum(double.dirty.values()) == before + 3


def test_every_segment_sets_what_it_needs(opened: Opened) -> None:
    device, double = opened("a740")
    memory = device.alloc(64)
    double.packets.clear()
    with device.queue() as queue:
        queue.timestamp(memory)
    device.synchronize()
    written = {register for kind, register, _ in double.packets if kind == "write"}
    # Settings of the chip, from Mesa's freedreno_devices.py; SP_MODE_CONTROL; HLSQ_INVALIDATE_CMD.
    assert {0xAE00, 0xAE03, 0xAB00, 0xAB1F} <= written
    assert memory.numpy(np.uint64)[0] >= 0


def test_a_queue_waits_for_another(opened: Opened) -> None:
    device, double = opened("a630")
    memory = device.alloc(64)
    gate = device.timeline()
    first, second = device.queue(), device.queue(QueueKind.COPY)
    first.wait(gate, 3).fill(memory, 7)
    value = first.submit()
    submissions = double.submissions
    assert first.timeline.value < value  # held: no submission was made
    second.signal(gate, 3)
    with pytest.raises(BadArgument):
        second.signal(first.timeline, 1)
    second.submit()
    first.timeline.wait(value)
    assert double.submissions > submissions
    if MESA:
        assert (memory.numpy(np.uint32) == 7).all()


def test_work_is_held_until_the_host_signals(opened: Opened) -> None:
    device, _ = opened("a630")
    queue = device.queue()
    gate = device.timeline()
    value = queue.wait(gate, 1).submit()
    assert queue.timeline.value < value
    gate.reach(1)
    queue.timeline.wait(value)


def test_a_large_submission_has_memory_of_its_own(opened: Opened) -> None:
    device, double = opened("a630", disassemble=None)
    memory = device.alloc(64)
    queue = device.queue()
    for _ in range(2500):
        queue.fill(memory, 1)
    queue.timeline.wait(queue.submit())
    assert len(double.launches) == 2500
    live = len(double.objects)
    for _ in range(3):
        queue.fill(memory, 1)
        queue.timeline.wait(queue.submit())
    assert len(double.objects) < live


def test_a_graph_is_one_submission(opened: Opened) -> None:
    device, double = opened("a630", disassemble=None)
    memory, other = device.alloc(64), device.alloc(64)
    with device.capture() as graph, device.queue() as queue:
        for _ in range(100):
            queue.fill(memory, 1)
            queue.barrier()
    before, launches = double.submissions, len(double.launches)
    graph.replay()
    graph.wait()
    assert double.submissions == before + 1
    assert len(double.launches) == launches + 100
    graph.replay(inputs={memory: other})
    graph.wait()
    assert double.submissions == before + 2


def test_code_of_another_generation_is_refused(opened: Opened) -> None:
    if not MESA:
        pytest.skip("tinymesa is not installed")
    device, _ = opened("a630")
    with pytest.raises(BadCodeObject, match="another generation"):
        device.load(pack_ir3([compiled(ADD, "a740")]))


def test_a_float_is_not_taken_for_an_integer(opened: Opened) -> None:
    if not MESA:
        pytest.skip("tinymesa is not installed")
    device, _ = opened("a630")
    kernel = device.load(pack_ir3([compiled(ADD, "a630")]))["k"]
    memory = device.alloc(64)
    with pytest.raises(BadArgument, match="of k is an integer of 4 bytes; a float32 of 4 bytes"):
        device.queue().launch(kernel, grid=(1,), block=(64,), args=(memory, memory, np.float32(1)))


def test_a_group_has_at_most_the_compiled_size(opened: Opened) -> None:
    if not MESA:
        pytest.skip("tinymesa is not installed")
    device, _ = opened("a630")
    kernel = device.load(pack_ir3([compiled(ADD, "a630")]))["k"]
    memory = device.alloc(64)
    queue = device.queue()
    queue.launch(kernel, grid=(1,), block=(65,), args=(memory, memory, np.uint32(1)))
    with pytest.raises(BadArgument, match="groups of up to 64 threads"):
        queue.submit()


# ---- failures ------------------------------------------------------------------------------------


def test_a_hang_is_found_and_the_context_rebuilt(opened: Opened) -> None:
    device, double = opened("a630")
    double.paused = True
    queue = device.queue()
    value = queue.fill(device.alloc(64), 1).submit()
    with pytest.raises(DeviceHang, match="work has not ended within") as hang:
        queue.timeline.wait(value, limit_s=0.5)
    assert "device.reset()" in str(hang.value.facts["remedy"])
    double.paused = False
    old = set(double.contexts)
    device.reset()
    assert not double.contexts & old
    memory = device.alloc(64)
    queue = device.queue()
    queue.timeline.wait(queue.timestamp(memory).submit())


def test_a_fault_has_a_name_and_a_place(opened: Opened) -> None:
    device, double = opened("a630")
    memory = device.alloc(4096)
    double.paused = True
    value = device.queue().timestamp(memory).submit()
    double.faults.append((int(memory.address) + 4096 + 16, 2 | 4))
    double.problem, double.state = "a fault", 1
    with pytest.raises(PageFault, match=r": a write to 0x[0-9a-f]+ faulted: 16 b") as caught:
        device.queue().timeline.wait(value, limit_s=5.0)
    assert caught.value.facts["access"] == "write"
    place = f"16 bytes behind the end of 4096 bytes of memory at {int(memory.address):#x}"
    assert caught.value.facts["near"] == place
    double.faults.clear()
    double.paused = False
    device.reset()
    device.synchronize()


def test_an_innocent_context_says_so(opened: Opened) -> None:
    device, double = opened("a630")
    double.paused = True
    queue = device.queue()
    value = queue.timestamp(device.alloc(64)).submit()
    double.state = 2
    with pytest.raises(Exception, match="because of another context"):
        queue.timeline.wait(value, limit_s=5.0)


def test_a_refused_submission_is_the_devices_failure(opened: Opened) -> None:
    device, double = opened("a630")
    double.refuse["gpu_command"] = errno.EDEADLK
    queue = device.queue()
    value = queue.timestamp(device.alloc(64)).submit()
    with pytest.raises(Exception, match="invalidated by a fault"):
        queue.timeline.wait(value, limit_s=5.0)
    device.reset()
    queue = device.queue()
    queue.timeline.wait(queue.timestamp(device.alloc(64)).submit())


@pytest.mark.parametrize("kind", ["kgsl", "msm"])
def test_memory_that_is_used_up_leaves_nothing(opened: Opened, kind: str) -> None:
    device, double = opened("a630", kind)
    live = len(double.objects)
    with pytest.raises(OutOfMemory):
        device.alloc(1 << 30)
    double.refuse["map"] = errno.ENOMEM
    with pytest.raises(OutOfMemory):
        device.alloc(4096)
    assert len(double.objects) == live


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOENT, DeviceNotFound), (errno.EACCES, AccessDenied)]
)
@pytest.mark.parametrize("kind", ["kgsl", "msm"])
def test_a_node_that_cannot_be_opened(kind: str, code: int, error: type[Exception]) -> None:
    double = Double(0x06025001, 6)
    double.refuse["open"] = code
    with pytest.raises(error):
        open_device(f"{kind}:0", NodeAttachment(double, kind, 0))
    assert double.closed


@pytest.mark.parametrize("chip_id", [0x05040001, 0x44050001])
def test_a_gpu_of_another_generation_is_refused(chip_id: int) -> None:
    double = Double(chip_id, 6)
    with pytest.raises(DeviceNotFound, match="no driver supports"):
        open_device("kgsl:0", NodeAttachment(double, "kgsl", 0))
    assert double.closed


def test_an_unknown_gpu_of_a_known_generation_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    double = Double(0x06050001, 6)
    with open_device("kgsl:0", NodeAttachment(double, "kgsl", 0)) as device:
        assert device.info()["chip_id"] == "0x06050001"
    assert "is not known" in caplog.text


@pytest.mark.parametrize("step", range(12))
def test_an_open_that_fails_releases_all(step: int) -> None:
    calls = ("getproperty", "drawctxt_create", "gpumem_alloc_id", "gpu_command", "map")
    double = Double(0x06025001, 6)
    name = calls[step % len(calls)]
    count = step // len(calls)
    original = double._refused

    def refused(call: str) -> None:
        nonlocal count
        if call == name:
            if count == 0:
                raise OSError(errno.EINVAL, "planted")
            count -= 1
        original(call)

    double._refused = refused  # type: ignore[method-assign]
    try:
        open_device("kgsl:0", NodeAttachment(double, "kgsl", 0)).close()
    except Exception as error:
        assert type(error).__module__ == "ugpu.hcq.errors", error
    assert double.closed


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_descriptors_of_textures(opened: Opened, chip: str) -> None:
    """The double reads them by hand: from a buffer of its own address, and from within it."""
    device, double = opened(chip)
    program = device.load(pack_ir3([compiled(fetching("float", 4, 4, 4), chip)]))
    source, target = device.alloc(4096), device.alloc(256)
    source.copy_from(np.arange(1024, dtype=np.uint32))
    for start in (0, 20, 512):
        with device.queue() as queue:
            queue.launch(program["k"], grid=(1,), block=(64,), args=(target, source[start:]))
        device.synchronize()
        assert (target.numpy(np.uint32) == start // 4 + (np.arange(64) ^ 5)).all()
    assert not double.problem


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_the_compiler_reaches_it(opened: Opened, chip: str) -> None:
    device, double = opened(chip)
    x = np.random.default_rng(3).random((9, 21), np.float32)
    a = Tensor(x, device=device)
    found = (a @ Tensor(x.T.copy(), device=device)).softmax(axis=-1).numpy()
    powers = np.exp(x @ x.T - (x @ x.T).max(-1, keepdims=True))
    assert np.allclose(found, powers / powers.sum(-1, keepdims=True), atol=1e-6)
    assert not double.problem


def test_an_exception_at_any_line_of_a_submission(opened: Opened) -> None:
    """What was submitted takes place once, with its value, or not at all."""
    device, double = opened("a630", disassemble=None)
    memory, queue = device.alloc(64), device.queue()
    before = 0

    def prepare() -> None:
        nonlocal before
        before = queue.timeline.last
        double.launches.clear()
        queue.fill(memory, 1)

    for place in interrupted(queue.submit, prepare=prepare):
        queue.commands.clear()
        device.synchronize()
        assert len(double.launches) == queue.timeline.last - before <= 1, place
    assert len(double.launches) == 1


def test_an_exception_at_any_line_of_a_replay(opened: Opened) -> None:
    device, double = opened("a740", disassemble=None)
    memory = device.alloc(64)
    with device.capture() as graph, device.queue() as queue:
        queue.fill(memory, 1)
    timeline = device.queue().timeline
    before = 0

    def prepare() -> None:
        nonlocal before
        before = timeline.last
        double.launches.clear()

    for place in interrupted(graph.replay, prepare=prepare):
        device.synchronize()
        assert len(double.launches) == timeline.last - before <= 1, place
    assert len(double.launches) == 1


def interface_of(device: Device) -> KernelInterface:
    assert isinstance(device.driver, AdrenoDriver)
    return device.driver.interface


def test_an_exception_at_any_line_of_an_allocation(opened: Opened) -> None:
    device, double = opened("a630", disassemble=None)
    memories = interface_of(device).memories
    live, known = len(double.objects), len(memories)

    def allocate() -> None:
        device.alloc(4096).close()

    with apart():
        for place in interrupted(allocate):
            gc.collect(0)
            device.synchronize()
            device.alloc(64).close()
            assert (len(double.objects), len(memories)) == (live, known), place


def test_an_exception_at_any_line_of_a_load(opened: Opened) -> None:
    device, double = opened("a630", disassemble=None)
    memories, image = interface_of(device).memories, kernels.contract_object(device.target)
    live, known = len(double.objects), len(memories)

    def load() -> None:
        device.load(image).close()

    with apart():
        for place in interrupted(load):
            gc.collect(0)
            device.synchronize()
            device.alloc(64).close()
            assert (len(double.objects), len(memories)) == (live, known), place


def test_a_reset_that_is_cut_off_can_be_repeated(opened: Opened) -> None:
    device, double = opened("a630")
    memory = device.alloc(64)
    for _ in interrupted(device.reset):
        device.reset()
        queue = device.queue().fill(memory, 1)
        queue.timeline.wait(queue.submit())
    assert len(double.contexts) == 1
