"""Guest tests: NVIDIA's own kernel module initialises the virtual card; our driver for the stock
module works above it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.kernel import nvidia_module
from lab.kernel.guest.host import Host, within
from lab.kernel.guest.navi31 import kernel_log
from lab.kernel.lab import CACHE
from tests.support.corpus.operation_corpus import corpus
from tests.support.nvidia.nv_machine import work
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DriverRefused
from ugpu.nv.device.device import NvDevice
from ugpu.nv.rm.channel import Channel

BUSYBOX = CACHE / "programs/tools/usr/bin/busybox"
OPTIONS = ("NVreg_ResmanDebugLevel=0", "NVreg_RegistryDwords=RmRcWatchdog=0")
CONTROL, CARD, MAJOR = Path("/dev/nvidiactl"), Path("/dev/nvidia0"), 195
UVM = Path("/dev/nvidia-uvm")
OPEN_LIMIT_S = 60
LONGEST_S = 3600
# One case of each STEP of the corpus first, then the next ones.
STEP, LEAST_OPERATIONS = 37, 5
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
    assert "NVIDIA GeForce RTX 4090" in text and "Bus Type" in text


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


@pytest.mark.timeout(LONGEST_S)
def test_operations_come_out_right(device: Device, record_property: Note) -> None:
    """Operations of the corpus from all of its parts, as many as the time allows."""
    cases = list(corpus().values())
    with contextlib.closing(Host()) as host:
        end = time.monotonic() + within(host.ask("corpus_s"))
    ran = 0
    for case in (case for start in range(STEP) for case in cases[start::STEP]):
        case.check(device)
        ran += 1
        if time.monotonic() > end:
            break
    record_property("operations of the corpus", f"{ran} of {len(cases)}")
    assert ran >= LEAST_OPERATIONS
