"""Opening, closing, refusals: the driver above the kernel driver's nodes leaves nothing behind."""

from __future__ import annotations

import ctypes
import errno
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import left_behind, opened, powered, work
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    BadCodeObject,
    Closed,
    DeviceNotFound,
    ModuleMissing,
    NotSupported,
    OutOfMemory,
    UgpuError,
)
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.node import Node, NodeAttachment, NodeMapping
from ugpu.nv.device.device import NvDevice, open_device
from ugpu.virtual.nvidia.node import VirtualNode
from ugpu.virtual.nvidia.options import MachineOptions

CHIPS = ("tu102", "ga102", "ad102", "gh100", "gb202")
BRANCHES = {
    "535.183.01": "535",
    "550.163.01": "550",
    "570.144": "570",
    "580.142": "580",
    "595.45.04": "595",
    "610.43.03": "610",
}


def bytes_at(address: int, size: int) -> Any:  # Any: a ctypes array
    """Bytes of this process that live as long as views of them, which a weak reference tells."""
    fields = {"_type_": ctypes.c_ubyte, "_length_": size}
    kind: Any = type("Bytes", (ctypes.Array,), fields)
    return kind.from_address(address)


class Failing:
    """A node whose call number `at` fails as a system call may."""

    def __init__(self, node: Node, at: int) -> None:
        self.node = node
        self.name = node.name
        self.clock = node.clock
        self.left = at
        self.failed = ""
        self.mapped: list[weakref.ref[Any]] = []

    def _count(self, what: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.failed = what
            raise OSError(errno.EIO, "planted")

    def open(self, path: str) -> int:
        self._count(f"open {path}")
        return self.node.open(path)

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        self._count(f"ioctl {request:#x}")
        self.node.ioctl(handle, request, argument)

    def map(self, handle: int, size: int, offset: int = 0) -> NodeMapping:
        self._count("map")
        mapping = self.node.map(handle, size, offset)
        if mapping.view is not None:
            memory = bytes_at(mapping.address, len(mapping.view))
            self.mapped.append(weakref.ref(memory))
            mapping.view = memoryview(memory).cast("B")
        return mapping

    @property
    def still_viewed(self) -> int:
        """How many mappings the driver has views of: on the system these stay mapped, and the
        kernel's module stays busy."""
        return sum(memory() is not None for memory in self.mapped)

    def release(self, handle: int) -> None:
        self.node.release(handle)

    def read_text(self, path: str) -> str:
        return self.node.read_text(path)

    def close(self) -> None:
        self.node.close()


@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_works(chip: str) -> None:
    with powered(chip) as machine:
        clean = left_behind(machine)
        with opened(machine) as device:
            work(device)
            info = device.info()
            assert info["isa"].removesuffix("a") == machine.facts.target
            assert info["compute_units"] == machine.facts.sm_count
            assert device.sensors()
        assert left_behind(machine) == clean
        assert not machine.log
        allowed = ("not modelled", "MM file", "no ECC")
        assert all(any(word in line for word in allowed) for line in machine.refused)


@pytest.mark.parametrize("version", BRANCHES)
def test_every_branch_of_the_driver_works(version: str) -> None:
    chip = "gh100" if version != "535.183.01" else "ad102"
    with (
        powered(chip, MachineOptions(driver=version)) as machine,
        opened(machine) as device,
    ):
        work(device)
        assert device.info()["driver_interface"] == BRANCHES[version]
        assert device.sensors()


@pytest.mark.parametrize(("version", "branch"), [("615.71.09", "610"), ("560.35.03", "550")])
def test_an_unknown_version_takes_the_nearest_branch_and_says_so(
    version: str, branch: str, caplog: pytest.LogCaptureFixture
) -> None:
    with powered("gh100", MachineOptions(driver=version)) as machine, opened(machine) as device:
        work(device)
        assert device.info()["driver_interface"] == branch
    assert f"{version} is not known: using the interface of branch {branch}" in caplog.text


def test_whatever_call_fails_while_opening_nothing_is_left() -> None:
    with powered() as machine:
        clean = left_behind(machine)
        at, failed = 1, "first"
        while failed:
            node = Failing(VirtualNode(machine), at)
            try:
                device = open_device("virtual:gh100", NodeAttachment(node, "nvrm"))
            except UgpuError as error:
                assert node.failed
                assert not node.still_viewed, (at, node.failed, error)  # the traceback holds much
            else:
                # A call whose failure does not matter, or none has failed any more.
                device.close()
                assert not node.still_viewed, (at, node.failed)
            failed = node.failed
            assert left_behind(machine) == clean, (at, failed)
            at += 3 if at > 40 else 1
        assert at > 60
        with opened(machine) as device:
            work(device)


def test_a_closed_device_keeps_no_memory_of_the_driver_mapped() -> None:
    with powered() as machine:
        node = Failing(VirtualNode(machine), 0)
        device = open_device("virtual:gh100", NodeAttachment(node, "nvrm"))
        work(device)
        device.close()
        assert len(node.mapped) > 6 and not node.still_viewed, repr(device)


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_open_and_close_leave_nothing(count: int) -> None:
    with powered() as machine:
        clean = left_behind(machine)
        for _ in range(count):
            opened(machine).close()
        assert left_behind(machine) == clean
        device = opened(machine)
        work(device)
        held = device.driver.session.addresses
        device.close()
        device.close()
        assert all(not space.used for space in held.values())
        with pytest.raises(Closed):
            device.alloc(4)


def test_buffers_and_graphs_left_open_go_with_the_device() -> None:
    with powered() as machine:
        clean = left_behind(machine)
        device = opened(machine)
        buffers = [device.alloc(1 << 20), device.alloc(4096, placement=Placement.HOST)]
        with device.capture(), device.queue() as queue:
            queue.fill(buffers[0], 1)
        device.load(ptx_kernels.text(ptx_kernels.FAULTY, device.target.cpu))
        device.close()
        assert left_behind(machine) == clean


def test_memory_that_is_used_up_can_be_used_again() -> None:
    with powered("gh100", MachineOptions(memory=1 << 30)) as machine, opened(machine) as device:
        taken = []
        with pytest.raises(OutOfMemory):
            for _ in range(100):
                taken.append(device.alloc(64 << 20))
        assert len(taken) > 4
        for buffer in taken:
            buffer.close()
        work(device)
        device.alloc(256 << 20).close()


def test_peers_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with powered("gh100", MachineOptions(gpus=2)) as machine:
        clean = left_behind(machine)
        one = opened(machine)
        two = one.open_peer(1)
        values = np.arange(1024, dtype=np.uint32)
        theirs, ours = two.alloc(4096), one.alloc(4096)
        theirs.copy_from(values)
        seen = one.reach(theirs)
        with one.queue() as queue:
            queue.copy(ours, seen)
        one.synchronize()
        assert (ours.numpy(np.uint32) == values).all()
        with pytest.raises(BadArgument, match="another device"):
            one.queue().copy(ours, theirs)
        with monkeypatch.context() as patch:  # a tensor's copy does not pass through the host
            patch.setattr(one.driver.core.copies, "upload", None)
            moved = Tensor.from_buffer(theirs, 1024, "uint32").to(one)
        assert moved.device is one
        assert (moved.numpy() == values).all()
        del moved
        work(two)
        two.close()
        work(one)
        one.close()
        assert left_behind(machine) == clean


def test_only_buffers_of_a_peer_can_be_reached() -> None:
    with (
        powered("gh100", MachineOptions(gpus=2)) as machine,
        opened(machine) as one,
        opened(machine, index=1) as stranger,
    ):
        with pytest.raises(BadArgument, match="open_peer"):
            one.reach(stranger.alloc(4096))
        with pytest.raises(DeviceNotFound):
            one.open_peer(5)
        work(one)
        work(stranger)


def test_a_divided_gpu_is_recognised() -> None:
    with powered("gh100", MachineOptions(mig=())) as machine:
        clean = left_behind(machine)
        with pytest.raises(BadArgument, match="MIG is on"):
            opened(machine)
        with pytest.raises(DeviceNotFound, match="no instance 9/0"):
            opened(machine, mig="9/0")
        assert left_behind(machine) == clean
    with powered() as machine, pytest.raises(BadArgument, match="MIG is off"):
        opened(machine, mig="0/0")


class Without:
    """A node without some files, or whose files may not be opened."""

    name = "nothing"

    def __init__(self, error: Callable[[str], OSError]) -> None:
        self.error = error
        self.closed = False

    def open(self, path: str) -> int:
        raise self.error(path)

    def close(self) -> None:
        self.closed = True

    def __getattr__(self, name: str) -> Any:  # Any: nothing else is ever called
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("raised", "error", "words"),
    [
        (FileNotFoundError, ModuleMissing, "sudo modprobe nvidia"),
        (PermissionError, AccessDenied, "sudo chmod a[+]rw /dev/nvidiactl"),
    ],
)
def test_missing_nodes_and_permissions_name_the_remedy(
    raised: type[OSError], error: type[UgpuError], words: str
) -> None:
    node = Without(lambda path: raised(errno.ENOENT, path))
    with pytest.raises(error, match=words):
        open_device("nvrm:0", NodeAttachment(node, "nvrm"))
    assert node.closed


def test_a_gpu_that_is_not_there_is_named() -> None:
    with powered() as machine, pytest.raises(DeviceNotFound, match="/dev/nvidia7"):
        open_device("nvrm:7", NodeAttachment(VirtualNode(machine), "nvrm", 7))


def _ptx(
    body: str, target: str = "sm_90", parameters: str = ".param .u64 .ptr .global out"
) -> bytes:
    head = f".version 8.0\n.target {target}\n.address_size 64\n"
    return f"{head}.visible .entry k({parameters}) {{ {body} ret; }}".encode()


@pytest.mark.parametrize(
    ("image", "error", "words"),
    [
        (_ptx("frobnicate;"), BadCodeObject, "line 4.*frobnicate"),
        (_ptx("", target="sm_120"), BadCodeObject, "newer GPU"),
        (_ptx("", target="sm_80a"), BadCodeObject, "one architecture only|does not assemble"),
        (b"\x7fELF" + bytes(60), BadCodeObject, "expected PTX text"),
        (b"int main() { return 0; }", BadCodeObject, "with a .target line"),
        (_ptx("").replace(b"out)", b"\xff\xfe)"), BadCodeObject, "UTF-8"),
        (b".version 8.0\n.target sm_90\n.address_size 64\n", BadCodeObject, "at least one kernel"),
        (_ptx("call (r), missing, (out);"), BadCodeObject, "missing|does not assemble"),
    ],
)
def test_code_that_cannot_run_is_refused(
    image: bytes, error: type[UgpuError], words: str, gh100: NvDevice
) -> None:
    with pytest.raises(error, match=words):
        gh100.load(image)
    work(gh100)


def test_code_for_exactly_this_architecture(gh100: NvDevice) -> None:
    kernel = gh100.load(_ptx("", target="sm_90a"))["k"]
    older = gh100.load(_ptx("", target="sm_75"))["k"]
    for each in (kernel, older):
        with gh100.alloc(64) as buffer, gh100.queue() as queue:
            queue.launch(each, grid=(1,), block=(32,), args=(buffer,))
        gh100.synchronize()


def test_arguments_of_wrong_type_or_count(gh100: NvDevice) -> None:
    parameters = ".param .u64 .ptr .global out, .param .u32 n, .param .f64 x"
    kernel = gh100.load(_ptx("", parameters=parameters))["k"]
    assert kernel.arguments is not None
    assert [argument.name for argument in kernel.arguments] == ["out", "n", "x"]
    buffer = gh100.alloc(64)
    good = (buffer, np.uint32(1), np.float64(2))
    for bad, words in (
        ((buffer, np.uint32(1)), "takes 3 arguments, got 2"),
        ((*good, np.uint32(1)), "takes 3 arguments, got 4"),
        ((np.uint64(5), *good[1:]), "'out' of k is an address"),
        ((buffer, buffer, np.float64(2)), "'n' of k is an integer of 4 bytes"),
        ((buffer, np.uint64(1), np.float64(2)), "'n' of k is an integer of 4 bytes"),
        ((buffer, np.float32(1), np.float64(2)), "'n' of k is an integer of 4 bytes; a float32"),
        ((buffer, np.uint32(1), np.uint64(2)), "'x' of k is a float of 8 bytes; a uint64"),
        ((buffer, 1, np.float64(2)), "whose width is known"),
    ):
        with pytest.raises(BadArgument, match=words):
            gh100.queue().launch(kernel, grid=(1,), block=(32,), args=bad)
    gh100.queue().launch(kernel, grid=(1,), block=(32,), args=good).submit()
    gh100.synchronize()


def test_groups_and_grids_beyond_the_limits(gh100: NvDevice) -> None:
    fixed = gh100.load(_ptx("").replace(b") {", b") .reqntid 64, 1, 1 {"))["k"]
    free = gh100.load(_ptx(""))["k"]
    buffer = gh100.alloc(64)
    for kernel, grid, block, words in (
        (fixed, (1,), (32,), "block must be"),
        (free, (1, 70000), (32,), "grid of k must be at most"),
        (free, (1,), (1, 1, 128), "block of k must be at most"),
    ):
        queue = gh100.queue().launch(kernel, grid=grid, block=block, args=(buffer,))
        with pytest.raises(BadArgument, match=words):
            queue.submit()
    work(gh100)


def test_nothing_assembles_more_shared_memory_than_there_is(gh100: NvDevice) -> None:
    text = _ptx(".shared .align 4 .b8 big[60000]; st.shared.u32 [big], 1;")
    with pytest.raises((BadCodeObject, NotSupported, BadArgument)):
        gh100.load(text)


def test_the_short_way_of_a_wait_does_not_outlive_the_device() -> None:
    """Another thread closes the device meanwhile: nothing is read of what is freed then."""
    found: list[bool] = []
    with powered("gh100") as machine, opened(machine) as device:
        driver = device.driver
        assert driver.is_idle_fast()
        waiter = threading.Thread(target=lambda: found.append(driver.is_idle_fast()))
        with driver.core.lock:
            waiter.start()
            device.close()
        waiter.join()
    assert found == [False]
