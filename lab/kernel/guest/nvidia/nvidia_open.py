"""Guest tests: NVIDIA's own kernel module initialises the virtual card; our driver for the stock
module works above it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.kernel import corpus_record, nvidia_module
from lab.kernel.guest.amd.navi31 import kernel_log
from lab.kernel.guest.host import Host, within
from lab.kernel.guest.vfio_card import kill, started, wait_for
from lab.kernel.lab import CACHE
from tests.support.corpus.operation_corpus import corpus
from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import work
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DriverRefused, PageFault, UgpuError
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.nv.device.device import NvDevice
from ugpu.nv.rm.channel import Channel
from ugpu.nv.rm.session import NodeSession

BUSYBOX = CACHE / "programs/tools/usr/bin/busybox"
OPTIONS = ("NVreg_ResmanDebugLevel=0", "NVreg_RegistryDwords=RmRcWatchdog=0")
CONTROL, CARD, MAJOR = Path("/dev/nvidiactl"), Path("/dev/nvidia0"), 195
UVM = Path("/dev/nvidia-uvm")
RIGHT = CACHE / "nvidia-open" / corpus_record.RECORD
OPEN_LIMIT_S = 60
LONGEST_S = 3600
# One case of each STEP of the corpus first, then the next ones.
STEP, LEAST_OPERATIONS = 37, 5
NOWHERE = 0x12_3456_7000
MANAGED, MANAGED_SIZE = 0x7000_0000_0000, 3 << 20  # one and a half blocks of UVM
MAP_FIXED_NOREPLACE = 0x10_0000
# Programs that are killed: while a kernel is in flight that never ends, while copies follow copies.
OPENED = """
import numpy as np
from tests.support.nvidia import ptx_kernels
from ugpu import hcq
device = hcq.open("nvrm:0")
device.limit_s = 3600
"""
IN_FLIGHT = {
    "kernel": """
program = device.load(ptx_kernels.text(ptx_kernels.CONTRACT, device.target.cpu))
flag = device.alloc(4)
flag.copy_from(np.zeros(1, np.uint32))
device.queue().launch(program["spin"], grid=(1,), block=(64,), args=(flag,)).submit()
print("working", flush=True)
device.synchronize()
""",
    "copies": """
data = np.arange(1 << 18, dtype=np.uint32)
buffer = device.alloc(data.nbytes)
print("working", flush=True)
while True:
    buffer.copy_from(data)
""",
}
# The module's test of its interrupt enables the tree before it waits for it. A message that arrives
# in between is lost: a guest, whose accesses take long, loses some.
ATTEMPTS, LOST_INTERRUPT = 3, "(0x11:0x45:"
Note = Callable[[str, object], None]


def busybox(*arguments: str) -> None:
    subprocess.run([BUSYBOX, *arguments], check=True, timeout=within(OPEN_LIMIT_S))


def make_node(path: Path, major: int, minor: int) -> None:
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))


@pytest.fixture(scope="module")
def modules() -> Iterator[None]:
    """The modules are loaded; afterwards they are gone."""
    Path("/sys/module/firmware_class/parameters/path").write_text(f"{CACHE}/nvidia/firmware")
    release = os.uname().release
    busybox("insmod", str(nvidia_module.path(CACHE, release)), *OPTIONS)
    make_node(CONTROL, MAJOR, 255)
    make_node(CARD, MAJOR, 0)
    yield
    busybox("rmmod", "nvidia")


@pytest.fixture(scope="module")
def card(modules: None) -> Iterator[int]:
    """A file of the card that stays open, so that the module keeps it initialised."""
    for attempt in range(ATTEMPTS):
        try:
            file = os.open(CARD, os.O_RDWR)
            break
        except OSError:
            failures = re.findall(r"RmInitAdapter failed! (.*)", kernel_log())
            if attempt + 1 == ATTEMPTS or not failures[-1].startswith(LOST_INTERRUPT):
                raise
    yield file
    os.close(file)


@pytest.fixture(scope="module")
def uvm(card: int) -> Iterator[None]:
    """The module of unified memory is loaded too."""
    busybox("insmod", str(nvidia_module.path(CACHE, os.uname().release, "nvidia-uvm")))
    lines = [line.split() for line in Path("/proc/devices").read_text().splitlines()]
    majors = {words[-1]: int(words[0]) for words in lines if words and words[0].isdecimal()}
    make_node(UVM, majors["nvidia-uvm"], 0)
    yield
    busybox("rmmod", "nvidia_uvm")


def test_the_module_initialises_the_card(card: int, record_property: Note) -> None:
    log = kernel_log()
    assert "RmInitAdapter succeeded!" in log
    record_property("interrupts lost by its test", log.count("RmInitAdapter failed!"))
    (text,) = (path.read_text() for path in Path("/proc/driver/nvidia/gpus").glob("*/information"))
    with contextlib.closing(Host()) as host:
        assert host.ask("card") in text and "Bus Type" in text


def mapped() -> list[str]:
    """The mappings of the module's files in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "/dev/nvidia" in line]


def test_a_failed_open_leaves_nothing_mapped(uvm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(channel: Channel) -> None:
        raise DriverRefused("planted")

    monkeypatch.setattr(Channel, "start", fail)
    with pytest.raises(DriverRefused, match="planted") as caught:
        hcq.open("nvrm:0")
    assert not mapped(), repr(caught)


@pytest.fixture(scope="module")
def device(uvm: None) -> Iterator[NvDevice]:
    """Our driver, as a program opens it. Afterwards the process has nothing of the modules mapped:
    they could not be unloaded."""
    with hcq.open("nvrm:0") as device:
        assert isinstance(device, NvDevice)
        device.limit_s = within(OPEN_LIMIT_S)
        assert mapped()
        yield device
    assert not mapped(), repr(device)


def test_copies_are_right_by_content(device: Device) -> None:
    """Through NVIDIA's resource manager and UVM, by the copy engines."""
    random = np.random.default_rng(28)
    for size in (1, 4097, 3 << 20):
        content = random.integers(0, 256, size, np.uint8)
        with device.alloc(size) as first, device.alloc(size) as second:
            first.copy_from(content)
            with device.queue() as queue:
                queue.copy(second, first, size)
            device.synchronize()
            assert (second.numpy(np.uint8) == content).all()


def test_a_kernel_runs(device: Device) -> None:
    work(device)


@pytest.mark.parametrize(("kernel", "access"), [("write_at", "write"), ("read_at", "read")])
def test_a_stray_access_is_named_and_the_channel_recovers(
    device: Device, kernel: str, access: str, record_property: Note
) -> None:
    """The resource manager stops the channel and tells why; a new channel works."""
    with (
        device.load(ptx_kernels.text(ptx_kernels.FAULTY, device.target.cpu)) as program,
        device.alloc(4) as memory,
    ):
        with device.queue() as queue:
            arguments = (memory, np.uint64(NOWHERE))
            queue.launch(program[kernel], grid=(1,), block=(64,), args=arguments)
        with pytest.raises(PageFault) as caught:
            device.synchronize()
        record_property("error", str(caught.value))
        assert (caught.value.facts["address"], caught.value.facts["xid"]) == (NOWHERE, 31)
        assert caught.value.facts["access"] == access
        assert caught.value.facts["kernel"] == kernel
        device.reset()
    work(device)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_stray_copy_is_named_and_the_channel_recovers(
    device: NvDevice, side: str, record_property: Note
) -> None:
    stray = Buffer(device.driver.core, VirtAddr(NOWHERE), 4096, Placement.DEVICE, None)
    with device.alloc(4096) as good:
        with device.queue(QueueKind.COPY) as queue:
            queue.copy(*((good, stray) if side == "source" else (stray, good)))
        with pytest.raises(PageFault) as caught:
            device.synchronize()
        record_property("error", str(caught.value))
        facts = caught.value.facts
        assert (facts["address"], facts["xid"], facts["queue"]) == (NOWHERE, 31, "copy 0")
        device.reset()
    test_copies_are_right_by_content(device)


@pytest.fixture
def managed(device: NvDevice) -> Iterator[np.ndarray]:
    """Memory that UVM moves at faults of the processor and of the GPU: what a program gets who maps
    UVM's file at the address that is the offset too (uvm.c, uvm_mmap). CUDA calls it managed."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    session = device.driver.gpu.session
    assert isinstance(session, NodeSession)
    flags = mmap.MAP_SHARED | MAP_FIXED_NOREPLACE
    access = mmap.PROT_READ | mmap.PROT_WRITE
    place = library.mmap(MANAGED, MANAGED_SIZE, access, flags, session.space.file, MANAGED)
    assert place == MANAGED, os.strerror(ctypes.get_errno())
    yield np.ctypeslib.as_array((ctypes.c_uint8 * MANAGED_SIZE).from_address(MANAGED))
    library.munmap(MANAGED, MANAGED_SIZE)


def test_copies_of_managed_memory_are_served(device: NvDevice, managed: np.ndarray) -> None:
    """A copy engine faults on what only the processor has; UVM moves it, clears the channel's
    faulted bit, and the copy is made. The processor's next access moves it back."""
    random = np.random.default_rng(5)
    whole = Buffer(device.driver.core, VirtAddr(MANAGED), MANAGED_SIZE, Placement.DEVICE, None)
    with device.alloc(MANAGED_SIZE) as own:
        for _ in range(2):
            managed[:] = content = random.integers(0, 256, MANAGED_SIZE, np.uint8)
            copy(device, own, whole)
            assert (own.numpy(np.uint8) == content).all()
            content = random.integers(0, 256, MANAGED_SIZE, np.uint8)
            managed[:] = 0
            own.copy_from(content)
            copy(device, whole, own)
            assert (managed == content).all()


def copy(device: NvDevice, target: Buffer, source: Buffer) -> None:
    """Copy by a copy engine, and wait."""
    with device.queue(QueueKind.COPY) as queue:
        queue.copy(target, source)
    device.synchronize()


@pytest.mark.parametrize("work_of", list(IN_FLIGHT))
def test_the_next_open_works_after_a_kill_with_work_in_flight(uvm: None, work_of: str) -> None:
    """The resource manager frees what a killed program had, a running kernel included."""
    kill(wait_for(started(OPENED + IN_FLIGHT[work_of]), "working"))
    with hcq.open("nvrm:0") as device:
        device.limit_s = within(OPEN_LIMIT_S)
        work(device)


@pytest.mark.timeout(LONGEST_S)
def test_operations_come_out_right(device: Device, record_property: Note) -> None:
    """Operations of the corpus from all of its parts, as many as the time allows, and a few in any
    case; in a long run without those that came out right in an earlier one."""
    cases = corpus()
    names = [name for start in range(STEP) for name in list(cases)[start::STEP]]
    wrong: list[str] = []
    with contextlib.closing(Host()) as host:
        given = host.ask("corpus")
        right = corpus_record.read(RIGHT) if given["resumed"] else {}
        left = [name for name in names[given["part"] :: given["parts"]] if name not in right]
        end = time.monotonic() + within(given["limit_s"])
        ran = 0
        for name in left:
            try:
                cases[name].check(device)
            except (AssertionError, UgpuError) as error:
                wrong.append(f"{name}: {error!r}")
            else:
                host.ask("right", name=name)
            ran += 1
            if time.monotonic() > end and ran >= LEAST_OPERATIONS:
                break
    record_property("operations of the corpus", f"{ran} of the {len(left)} left of {len(cases)}")
    assert not wrong, "\n".join(wrong)
