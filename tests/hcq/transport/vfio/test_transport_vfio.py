"""The VFIO transport over a made-up kernel: the order of calls, every refusal, what is left."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pci import fake_vfio
from tests.support.pci.descriptors import leaked, settled
from tests.support.pci.fake_vfio import VfioMachine
from ugpu.hcq.errors import (
    BadArgument,
    BarTooSmall,
    Closed,
    DeviceBusy,
    DeviceLost,
    ModuleMissing,
    NotSupported,
    OutOfMemory,
    TransportError,
    UgpuError,
)
from ugpu.hcq.transport.attach import attach_pci
from ugpu.hcq.transport.base import ResetKind
from ugpu.hcq.transport.late import await_closed
from ugpu.hcq.transport.vfio.container import capabilities
from ugpu.hcq.transport.vfio.transport import VfioTransport

GPU, AUDIO = "0000:03:00.0", "0000:03:00.1"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[VfioMachine]:
    made = VfioMachine(tmp_path)
    made.load("vfio-pci")
    made.add(GPU, driver="vfio-pci")
    yield made
    await_closed(f"pci:{GPU}")
    assert made.open_files == {}, "descriptors were left open"
    made.free()


def opened(machine: VfioMachine, **options: Any) -> VfioTransport:
    return VfioTransport(GPU, system=machine, **options)


def test_opening_enables_memory_and_closing_ends_bus_mastering(machine: VfioMachine) -> None:
    config = machine.functions[GPU].config
    struct.pack_into("<H", config, 4, 0x4)  # left on by somebody
    with opened(machine) as transport:
        assert str(transport.identity) == "1002:744c" and transport.identity.class_code == 0x030000
        assert struct.unpack_from("<H", config, 4)[0] & 6 == 2
        transport.config_write(4, 6, 2)
        assert transport.present()
    assert struct.unpack_from("<H", config, 4)[0] & 4 == 0


@pytest.mark.parametrize("mappable", [True, False])
def test_windows_by_mapping_and_by_file(machine: VfioMachine, mappable: bool) -> None:
    machine.mappable = mappable
    with opened(machine) as transport:
        window = transport.window(5)
        assert window is transport.window(5) and window.size == 1 << 20
        window.write32(8, 0xDEADBEEF)
        window.write64(16, 0x1122334455667788)
        window.write(64, b"abcdefgh")
        memory = machine.bar_memory(machine.functions[GPU], 5, 1 << 20)
        assert memory[8:12] == b"\xef\xbe\xad\xde"
        assert window.read32(8) == 0xDEADBEEF and window.read64(16) == 0x1122334455667788
        assert window.read(64, 8) == b"abcdefgh"
        for bad in (lambda: window.read32(2), lambda: window.read32(-4),
                    lambda: window.read32(1 << 20), lambda: window.read64((1 << 20) - 4),
                    lambda: window.write32(0, 1 << 32), lambda: window.write32(0, -1),
                    lambda: window.read(0, 3), lambda: window.read((1 << 20) - 4, 8),
                    lambda: window.write(-4, b"1234")):  # fmt: skip
            with pytest.raises(BadArgument):
                bad()
        for index in (1, -1, 6):
            with pytest.raises(BadArgument):
                transport.window(index)
    with pytest.raises(Closed):
        window.read32(0)
    with pytest.raises(Closed):
        window.write(0, b"1234")


def test_a_region_with_holes_is_reached_by_file(machine: VfioMachine) -> None:
    machine.sparse = True
    machine.extra_room = 2000  # the kernel's answer is longer than the first buffer
    with opened(machine) as transport:
        assert type(transport.window(0)).__name__ == "FileWindow"


def test_a_window_by_file_says_that_the_device_is_gone(machine: VfioMachine) -> None:
    machine.mappable = False
    with opened(machine) as transport:
        window = transport.window(5)
        machine.fail["device:pread"] = errno.EIO
        machine.fail["device:pwrite"] = errno.EIO
        with pytest.raises(DeviceLost):
            window.read32(0)
        with pytest.raises(DeviceLost):
            window.write32(0, 1)
        assert not transport.present()
        assert transport.config_read(0) == 0xFFFFFFFF


def test_memory_is_mapped_and_taken_back(machine: VfioMachine) -> None:
    with opened(machine, reach_bits=36) as transport:
        (container,) = machine.containers()
        one = transport.allocate_dma(5000)
        two = transport.allocate_dma(5 << 20, contiguous=True)
        assert one.size == 8192 and len(one.segments) == len(two.segments) == 1
        assert two.segments[0].address % (2 << 20) == 0
        assert {bus: size for bus, (_, size) in container.maps.items()} == {
            memory.segments[0].address: memory.size for memory in (one, two)
        }
        virtual = container.maps[two.segments[0].address][0]
        assert virtual % (2 << 20) == 0, "the IOMMU could not use large pages"
        assert not any(one.view) and not any(two.view[::4096])
        one.view[:4] = b"data"
        one.close()
        one.close()
        assert list(container.maps) == [two.segments[0].address]
        assert transport.allocate_dma(4096).segments[0].address == one.segments[0].address
        for size in (0, -1):
            with pytest.raises(BadArgument):
                transport.allocate_dma(size)
    assert container.maps == {} or not machine.containers()
    with pytest.raises(Closed):
        transport.allocate_dma(4096)


def test_an_array_may_outlive_its_memory(machine: VfioMachine) -> None:
    with opened(machine) as transport:
        memory = transport.allocate_dma(4096)
        array = np.frombuffer(memory.view, dtype=np.uint8)
    assert array.sum() == 0


def test_addresses_keep_to_the_chips_reach_and_out_of_reserved_ranges(
    machine: VfioMachine,
) -> None:
    machine.ranges = [(0, 0xFEDFFFFF), (0xFEF00000, (1 << 39) - 1)]
    with opened(machine, reach_bits=33) as transport:
        kept = [transport.allocate_dma(1 << 30) for _ in range(6)]
        for memory in kept:
            (segment,) = memory.segments
            assert segment.address >= 16 << 20 and segment.address + segment.size <= 1 << 33
        with pytest.raises(OutOfMemory):
            for _ in range(3):
                transport.allocate_dma(1 << 30)
    machine.ranges = [(1 << 40, (1 << 41) - 1)]
    with pytest.raises(OutOfMemory, match="no free address that the device can use"):
        opened(machine, reach_bits=33)


@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.ENOMEM, OutOfMemory), (errno.ENOSPC, OutOfMemory), (errno.EINVAL, TransportError)],
)
def test_a_refused_mapping_gives_everything_back(
    machine: VfioMachine, code: int, error: type[UgpuError]
) -> None:
    with opened(machine) as transport:
        machine.fail[f"container:{fake_vfio.MAP:#x}"] = code
        with pytest.raises(error):
            transport.allocate_dma(4096)
        machine.fail.clear()
        assert transport.allocate_dma(4096).segments[0].address == 16 << 20


def test_interrupts_come_from_the_eventfd(machine: VfioMachine) -> None:
    with opened(machine) as transport:
        interrupts = transport.interrupts
        assert interrupts is not None and interrupts is transport.interrupts
        assert not interrupts.wait(0)
        os.eventfd_write(machine.eventfds[fake_vfio.MSI], 3)
        assert interrupts.wait(60) and not interrupts.wait(0)
        ended = threading.Event()

        def wait() -> None:
            with pytest.raises(Closed):
                interrupts.wait(60)
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        transport.close()
        thread.join(60)
        assert ended.is_set()
    with pytest.raises(Closed):
        interrupts.wait(0)


def test_message_interrupts_of_the_larger_kind_are_preferred(machine: VfioMachine) -> None:
    machine.irqs[fake_vfio.MSIX] = 8
    with opened(machine) as transport:
        assert transport.interrupts is not None
        assert fake_vfio.MSIX in machine.eventfds and fake_vfio.MSI not in machine.eventfds


def test_each_vector_has_its_eventfd(machine: VfioMachine) -> None:
    machine.irqs[fake_vfio.MSIX] = 4
    with opened(machine) as transport:
        interrupts = transport.interrupts
        assert interrupts is not None and interrupts.vectors == 4
        assert len(machine.vectors[fake_vfio.MSIX]) == 1
        interrupts.enable(3)
        events = machine.vectors[fake_vfio.MSIX]
        assert len(set(events)) == 3
        os.eventfd_write(events[2], 1)
        assert not interrupts.wait(0) and not interrupts.wait(0, 1)
        assert interrupts.wait(60, 2) and not interrupts.wait(0, 2)
        interrupts.enable(2)
        assert machine.vectors[fake_vfio.MSIX] == events, "what is enabled stays so"
        with pytest.raises(BadArgument, match="requested 5 interrupt vectors, the function has 4"):
            interrupts.enable(5)
        machine.irqs[fake_vfio.MSIX] = 3  # the kernel refuses
        before = settled()
        with pytest.raises(TransportError):
            interrupts.enable(4)
        assert leaked(before) == 0


def test_a_function_without_message_interrupts(machine: VfioMachine) -> None:
    machine.irqs = {}
    with opened(machine) as transport:
        assert transport.interrupts is None


def test_the_system_asks_for_the_device_back(machine: VfioMachine) -> None:
    asked = threading.Event()
    with opened(machine, on_removal=asked.set) as transport:
        interrupts = transport.interrupts
        assert interrupts is not None and transport.present()
        os.eventfd_write(machine.eventfds[fake_vfio.REQUEST], 1)
        assert asked.wait(60)
        assert not transport.present() and transport.removal_requested
        assert not interrupts.wait(60)
        transport.window(5).write32(0, 1)  # work may still end in order


def test_closing_from_the_removal_callback(machine: VfioMachine) -> None:
    done = threading.Event()
    transports: list[VfioTransport] = []

    def close() -> None:
        transports[0].close()
        done.set()

    transport = opened(machine, on_removal=close)
    transports.append(transport)
    os.eventfd_write(machine.eventfds[fake_vfio.REQUEST], 1)
    assert done.wait(60)
    with pytest.raises(Closed):
        transport.config_read(0)


def test_resets(machine: VfioMachine) -> None:
    machine.add(AUDIO, kind=0x040300, driver="vfio-pci", bars={})
    machine.companions = [(7, GPU), (7, AUDIO)]
    with opened(machine) as transport:
        transport.reset(ResetKind.FUNCTION)
        transport.reset(ResetKind.BUS)
        assert (machine.functions[GPU].resets, machine.hot_resets) == (1, 1)
        with pytest.raises(NotSupported):
            transport.reset(ResetKind.POWER)
        machine.write_text(machine.folder(AUDIO) / "driver/unbind", AUDIO)
        with pytest.raises(DeviceBusy, match=r"03:00\.1 \(no driver\)"):
            transport.reset(ResetKind.BUS)
        machine.write_text(machine.root / "sys/bus/pci/drivers/vfio-pci/bind", AUDIO)
        machine.companions.append((9, "0000:03:01.0"))
        with pytest.raises(DeviceBusy, match=r"0000:03:01\.0"):
            transport.reset(ResetKind.BUS)
        assert machine.hot_resets == 1
        # VFIO goes on showing the identity of a function that is gone, so that does not count.
        machine.functions[GPU].config[8:12] = b"\xff" * 4
        assert not transport.present()
        with pytest.raises(DeviceLost):
            transport.reset(ResetKind.FUNCTION)


def test_a_bus_reset_takes_a_neighbour_of_another_group_along(machine: VfioMachine) -> None:
    """Where the slot separates a card's functions; what proves it is given back at once."""
    neighbour = "0000:03:00.2"
    machine.add(neighbour, kind=0x0C0330, driver="vfio-pci", group="9", bars={})
    machine.companions = [(7, GPU), (9, neighbour)]
    with opened(machine) as transport:
        transport.reset(ResetKind.BUS)
        assert machine.hot_resets == 1
        assert ("group", "9") not in machine.open_files.values()
        machine.fail["dev/vfio/9"] = errno.EBUSY
        with pytest.raises(DeviceBusy, match="dev/vfio/9"):
            transport.reset(ResetKind.BUS)
        del machine.fail["dev/vfio/9"]
        machine.load("xhci_hcd")
        machine.write_text(machine.folder(neighbour) / "driver/unbind", neighbour)
        machine.write_text(machine.root / "sys/bus/pci/drivers/xhci_hcd/bind", neighbour)
        with pytest.raises(DeviceBusy, match="xhci_hcd"):
            transport.reset(ResetKind.BUS)
        assert machine.hot_resets == 1


def test_a_device_without_reset(machine: VfioMachine) -> None:
    machine.has_reset = False
    with opened(machine) as transport, pytest.raises(NotSupported):
        transport.reset(ResetKind.FUNCTION)


def test_nothing_is_left_after_many_lives(machine: VfioMachine) -> None:
    with opened(machine) as transport:
        transport.close()
    before = settled()
    for _ in range(10):
        with opened(machine) as transport:
            transport.allocate_dma(3 << 20)
            assert transport.interrupts is not None
    assert not leaked(before)


def test_an_error_while_closing_does_not_stop_the_rest(machine: VfioMachine) -> None:
    restored: list[str] = []
    transport = opened(machine, on_close=lambda: restored.append("yes"))
    transport.allocate_dma(4096)
    machine.fail[f"container:{fake_vfio.UNMAP:#x}"] = errno.EIO
    with pytest.raises(TransportError):
        transport.close()
    assert restored == ["yes"] and machine.open_files == {}


def test_a_forked_child_drops_the_device_and_the_parent_keeps_it(machine: VfioMachine) -> None:
    config = machine.functions[GPU].config
    with opened(machine) as transport:
        window = transport.window(5)
        transport.config_write(4, 6, 2)
        child = os.fork()
        if not child:
            outcome = 1
            with contextlib.suppress(BaseException):
                transport.close()
                try:
                    window.read32(0)
                except Closed:
                    outcome = 0
            os._exit(outcome)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        window.write32(0, 5)
        assert window.read32(0) == 5 and config[4] == 6


def test_a_transport_that_is_dropped_unclosed_warns(machine: VfioMachine) -> None:
    transport = opened(machine)
    with pytest.warns(ResourceWarning, match="not closed"):
        transport.__del__()
    transport.close()


# ---- iommufd ---------------------------------------------------------------------------------


def test_memory_and_registers_through_iommufd(machine: VfioMachine) -> None:
    machine.offer_iommufd(GPU)
    machine.ranges = [(0, 0xFEDFFFFF), *((at << 32, (at << 32) + 4095) for at in range(1, 300))]
    with opened(machine, iommufd=True) as transport:
        (iommufd,) = machine.iommufds()
        assert not machine.containers() and len(transport.space.ranges) == 300
        memory = transport.allocate_dma(3 << 20)
        (bus,) = iommufd.spaces[7]
        assert bus == memory.segments[0].address and iommufd.spaces[7][bus][1] == 3 << 20
        transport.window(5).write32(0, 9)
        assert transport.interrupts is not None
        with pytest.raises(DeviceBusy):
            opened(machine, iommufd=True)
        memory.close()
        assert iommufd.spaces[7] == {}
        for code, error in ((errno.ENOMEM, OutOfMemory), (errno.EINVAL, TransportError)):
            machine.fail[f"iommufd:{fake_vfio.IOAS_MAP:#x}"] = code
            with pytest.raises(error):
                transport.allocate_dma(4096)


def test_iommufd_is_taken_where_there_are_no_groups(machine: VfioMachine) -> None:
    machine.offer_iommufd(GPU)
    (machine.root / "dev/vfio/7").unlink()
    with opened(machine):
        assert machine.iommufds()


def test_iommufd_that_is_not_there(machine: VfioMachine) -> None:
    with pytest.raises(NotSupported, match="VFIO_DEVICE_CDEV"):
        opened(machine, iommufd=True)
    machine.offer_iommufd(GPU)
    (machine.root / "dev/iommu").unlink()
    with pytest.raises(ModuleMissing, match="modprobe iommufd"):
        opened(machine, iommufd=True)
    with pytest.raises(NotSupported):
        opened(machine, iommufd=True, no_iommu=True)


@pytest.mark.parametrize(
    "call",
    [f"device:{fake_vfio.BIND:#x}", f"iommufd:{fake_vfio.IOAS_ALLOC:#x}",
     f"device:{fake_vfio.ATTACH:#x}", f"iommufd:{fake_vfio.IOVA_RANGES:#x}"],
)  # fmt: skip
def test_a_failure_of_iommufd_leaves_nothing_open(machine: VfioMachine, call: str) -> None:
    machine.offer_iommufd(GPU)
    machine.fail[call] = errno.EIO
    before = settled()
    with pytest.raises(UgpuError):
        opened(machine, iommufd=True)
    assert not leaked(before) and machine.open_files == {}


# ---- by name, with binding -------------------------------------------------------------------


def test_attaching_binds_and_gives_back(tmp_path: Path) -> None:
    machine = VfioMachine(tmp_path)
    machine.load("vfio-pci")
    machine.add(GPU, driver="amdgpu")
    machine.add(AUDIO, kind=0x040300, driver="snd_hda_intel", bars={})
    with pytest.raises(DeviceBusy, match="amdgpu"):
        attach_pci(GPU, system=machine)
    with attach_pci(GPU, system=machine, bind=True):
        assert machine.driver(AUDIO) == "vfio-pci"
    assert (machine.driver(GPU), machine.driver(AUDIO)) == ("amdgpu", "snd_hda_intel")
    with pytest.raises(BarTooSmall):
        attach_pci(GPU, system=machine, bind=True, least_bars={0: 1 << 40})
    machine.extensions = set()
    with pytest.raises(ModuleMissing):
        attach_pci(GPU, system=machine, bind=True)
    assert (machine.driver(GPU), machine.driver(AUDIO)) == ("amdgpu", "snd_hda_intel")
    with pytest.raises(BadArgument):
        attach_pci(GPU, system=machine, via="ivshmem")
    with pytest.raises(BadArgument):
        attach_pci(GPU, system=machine, via="sysfs", bind=True)


@given(st.binary(max_size=96), st.integers(0, 2**32 - 1))
def test_chains_of_capabilities_end(data: bytes, first: int) -> None:
    found = capabilities(bytearray(data), first)
    assert all(0 < place <= len(data) - 8 for place in found.values())
