"""Guest tests: NVIDIA's own kernel module initialises the virtual card; our driver for the stock
module opens it."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.kernel import nvidia_module
from lab.kernel.guest.host import within
from lab.kernel.guest.navi31 import kernel_log
from lab.kernel.lab import CACHE
from tests.support.nv_machine import work
from tests.support.operation_corpus import corpus
from ugpu import hcq

BUSYBOX = CACHE / "programs/tools/usr/bin/busybox"
OPTIONS = ("NVreg_ResmanDebugLevel=0", "NVreg_RegistryDwords=RmRcWatchdog=0")
CONTROL, CARD, MAJOR = Path("/dev/nvidiactl"), Path("/dev/nvidia0"), 195
UVM = Path("/dev/nvidia-uvm")
OPEN_LIMIT_S = 60
CORPUS_LIMIT_S, LEAST_OPERATIONS = 60, 10
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


def test_our_driver_works_above_it(uvm: None) -> None:
    """Copies and kernels through NVIDIA's resource manager and UVM, by content."""
    with hcq.open("nvrm:0") as device:
        device.limit_s = within(OPEN_LIMIT_S)
        work(device)


def test_operations_come_out_right(uvm: None, record_property: Note) -> None:
    """Operations of the corpus, of each kind one, as many as the time allows."""
    cases = corpus()
    end = time.monotonic() + within(CORPUS_LIMIT_S)
    ran = 0
    with hcq.open("nvrm:0") as device:
        for name in spread(list(cases)):
            cases[name].check(device)
            ran += 1
            if time.monotonic() > end:
                break
    record_property("operations", f"{ran} of {len(cases)}")
    assert ran >= LEAST_OPERATIONS


def spread(names: list[str]) -> list[str]:
    """The names in another order: each part of the list comes early."""
    step = 37
    return [name for start in range(step) for name in names[start::step]]
