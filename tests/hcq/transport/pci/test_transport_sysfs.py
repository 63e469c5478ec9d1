"""The sysfs transport on a made-up machine: resets with restoring, resizing, physical memory."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clocks import Manual
from tests.support.pci.descriptors import leaked, settled
from tests.support.pci.pci_machine import Function, PciMachine
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    BarUnassigned,
    Closed,
    DeviceAsleep,
    DeviceBusy,
    DeviceLost,
    HostError,
    NotSupported,
    OutOfMemory,
    UgpuError,
)
from ugpu.hcq.transport.base import ResetKind
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.pci import physical
from ugpu.hcq.transport.pci.physical import PhysicalMemory
from ugpu.hcq.transport.pci.sysfs import SysfsTransport, bar_sizes, rescan

GPU, BRIDGE = "0000:03:00.0", "0000:02:00.0"
BAR_WORDS = (0x8000_000C, 0x40, 0x9000_000C, 0x41, 0, 0xA000_0000)


class BridgedMachine(PciMachine):
    """Below the bridge everything loses its BARs and command when the reset bit is let go."""

    pulses = 0
    hold_at: int | None = None  # the sleep during which the user presses Ctrl-C
    sleeps = 0

    def config_written(self, function: Function, offset: int) -> None:
        if function.address != BRIDGE or offset != 0x3E:
            return
        if function.config[0x3E] & 0x40:
            self.pulses += 1
            below = self.functions[GPU].config
            below[4:6] = b"\0\0"
            below[0x10:0x28] = bytes(24)

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.sleeps == self.hold_at:
            raise KeyboardInterrupt


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[BridgedMachine]:
    made = BridgedMachine(tmp_path)
    made.add(BRIDGE, ids=(0x1022, 1), kind=0x060400, driver="pcieport", bars={}, group=None)
    gpu = made.add(GPU, parent=BRIDGE, group=None)
    struct.pack_into("<H", gpu.config, 4, 2)
    struct.pack_into("<6I", gpu.config, 0x10, *BAR_WORDS)
    yield made
    made.free()


def opened(machine: BridgedMachine) -> SysfsTransport:
    return SysfsTransport(GPU, system=machine, clock=Manual(on_sleep=machine.sleep))


def header(machine: BridgedMachine) -> tuple[int, ...]:
    config = machine.functions[GPU].config
    return (*struct.unpack_from("<6I", config, 0x10), struct.unpack_from("<H", config, 4)[0])


def test_registers_and_life(machine: BridgedMachine) -> None:
    with opened(machine) as transport:
        assert str(transport.identity) == "1002:744c" and transport.present()
        window = transport.window(5)
        window.write32(12, 77)
        assert machine.bar_memory(machine.functions[GPU], 5, 1 << 20)[12] == 77
        assert transport.interrupts is None
        transport.config_write(4, 6, 2)
    assert header(machine)[-1] == 2, "bus mastering outlived the transport"
    assert ("sys/bus/pci/devices/0000:03:00.0/enable", "1") in machine.log
    for use in (
        lambda: transport.config_read(0),
        lambda: window.read32(0),
        lambda: transport.allocate_dma(4096),
        lambda: transport.reset(ResetKind.BUS),
    ):
        with pytest.raises(Closed):
            use()
    transport.close()


def test_the_bus_reset_restores_configuration(machine: BridgedMachine) -> None:
    with opened(machine) as transport:
        transport.config_write(4, 6, 2)
        transport.reset(ResetKind.BUS)
        assert machine.pulses == 1 and header(machine) == (*BAR_WORDS, 6)
        assert not machine.functions[BRIDGE].config[0x3E] & 0x40


@pytest.mark.parametrize("moment", [1, 2])
def test_an_interrupted_bus_reset_is_let_go_and_restored(
    machine: BridgedMachine, moment: int
) -> None:
    machine.hold_at = moment
    with opened(machine) as transport:
        with pytest.raises(KeyboardInterrupt):
            transport.reset(ResetKind.BUS)
        assert not machine.functions[BRIDGE].config[0x3E] & 0x40
        assert header(machine) == (*BAR_WORDS, 2)


def test_a_bus_with_others_on_it_is_not_reset(machine: BridgedMachine) -> None:
    machine.add("0000:03:00.1", parent=BRIDGE, driver="snd_hda_intel", bars={}, group=None)
    with opened(machine) as transport, pytest.raises(DeviceBusy, match="snd_hda_intel"):
        transport.reset(ResetKind.BUS)
    assert machine.pulses == 0


def test_the_function_reset(machine: BridgedMachine) -> None:
    with opened(machine) as transport:
        transport.reset(ResetKind.FUNCTION)
        assert machine.functions[GPU].resets == 1
        with pytest.raises(NotSupported):
            transport.reset(ResetKind.POWER)
        (machine.folder(GPU) / "reset").unlink()
        with pytest.raises(NotSupported):
            transport.reset(ResetKind.FUNCTION)


def test_a_function_on_a_root_bus_has_no_bridge(tmp_path: Path) -> None:
    machine = PciMachine(tmp_path)
    machine.add("0000:00:05.0", group=None)
    with (
        SysfsTransport("0000:00:05.0", system=machine) as transport,
        pytest.raises(NotSupported, match="root bus"),
    ):
        transport.reset(ResetKind.BUS)


def test_removal_closes_and_rescan_is_one_write(machine: BridgedMachine) -> None:
    transport = opened(machine)
    transport.remove()
    assert not machine.folder(GPU).exists() and not transport.present()
    rescan(machine)
    assert machine.log[-1] == ("sys/bus/pci/rescan", "1")


def test_resizing_a_bar(machine: BridgedMachine) -> None:
    path = machine.folder(GPU) / "resource0_resize"
    path.write_text("0000000000007f00\n")
    with opened(machine) as transport:
        assert bar_sizes(transport.function, 0)[0] == 256 << 20
        assert bar_sizes(transport.function, 2) == []
        transport.resize(0, 16 << 30)
        assert machine.log[-1][1] == "14" and header(machine)[-1] == 2
        with pytest.raises(BadArgument, match="offered"):
            transport.resize(0, 128 << 20)
        machine.fail["resource0_resize"] = errno.ENOSPC
        with pytest.raises(HostError, match="pci=realloc"):
            transport.resize(0, 16 << 30)
        assert header(machine)[-1] == 2
        transport.window(0)
        with pytest.raises(BadArgument, match="in use"):
            transport.resize(0, 16 << 30)


def _held(machine: BridgedMachine) -> None:
    machine.load("amdgpu")
    machine.write_text(machine.root / "sys/bus/pci/drivers/amdgpu/bind", GPU)


def _asleep(machine: BridgedMachine) -> None:
    (machine.folder(GPU) / "power_state").write_text("D3hot\n")


def _denied(machine: BridgedMachine) -> None:
    machine.fail["config"] = errno.EACCES


def _ones(machine: BridgedMachine) -> None:
    machine.functions[GPU].config[:] = b"\xff" * 4096


def _no_bar(machine: BridgedMachine) -> None:
    path = machine.folder(GPU) / "resource"
    path.write_text("0x0 0xfffffff 0x2014220c\n")


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_held, DeviceBusy),
        (_asleep, DeviceAsleep),
        (_denied, AccessDenied),
        (_ones, DeviceLost),
        (_no_bar, BarUnassigned),
    ],
)
def test_each_refusal_is_named(
    machine: BridgedMachine, spoil: object, error: type[UgpuError]
) -> None:
    assert callable(spoil)
    spoil(machine)
    before = settled()
    with pytest.raises(error):
        opened(machine)
    assert not leaked(before)


def test_a_fork_after_closing_touches_no_descriptor_of_others(machine: BridgedMachine) -> None:
    """The numbers of its descriptors may be somebody else's by then."""
    transport = opened(machine)
    transport.close()
    again = os.memfd_create("somebody else's")
    child = os.fork()
    if not child:
        outcome = 1
        with contextlib.suppress(OSError):
            os.fstat(again)
            outcome = 0
        os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(again)


def test_a_locked_down_kernel(machine: BridgedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "lockdown")

    with opened(machine) as transport:
        monkeypatch.setattr(machine, "map", refuse)
        with pytest.raises(AccessDenied, match="lockdown"):
            transport.window(5)


# ---- physical memory -------------------------------------------------------------------------


class MemoryMachine(PciMachine):
    """A machine whose pagemap is made up: `frames` gives the frame of each page."""

    frames: tuple[int, ...] = ()
    locked = 0

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        if path.name == "pagemap":
            return os.memfd_create("pagemap")
        return super().open(path, flags)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        return b"".join(struct.pack("<Q", frame and 1 << 63 | frame) for frame in self.frames)

    def lock_memory(self, address: int, size: int) -> None:
        self.locked += size


def memory(
    machine: MemoryMachine, pages: int, *, contiguous: bool = False, reach_bits: int = 47
) -> PhysicalMemory:
    return PhysicalMemory(
        machine,
        4096 * pages,
        contiguous=contiguous,
        reach_bits=reach_bits,
        release=lambda one: None,
    )


@pytest.fixture
def permitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryMachine:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    machine = MemoryMachine(tmp_path)
    path = tmp_path / physical.COMPACTION
    path.parent.mkdir(parents=True)
    path.write_text("0\n")
    return machine


def test_runs_of_pages_are_joined(permitted: MemoryMachine) -> None:
    permitted.frames = (5, 6, 7, 20, 9)
    made = memory(permitted, 5)
    runs = [(segment.address, segment.size) for segment in made.segments]
    assert runs == [(5 << 12, 3 << 12), (20 << 12, 4096), (9 << 12, 4096)]
    assert permitted.locked == 5 << 12
    made.close()
    made.close()
    with pytest.raises(OutOfMemory, match="contiguous"):
        memory(permitted, 5, contiguous=True)


def test_memory_beyond_the_device_s_reach_is_refused(permitted: MemoryMachine) -> None:
    """QEMU's teaching device drops address bits from 28 on, and meets another page."""
    permitted.frames = (5, (1 << 28 >> 12) - 1)
    assert len(memory(permitted, 2, reach_bits=28).segments) == 2
    permitted.frames = (5, 1 << 28 >> 12)
    with pytest.raises(OutOfMemory, match="is at 0x10000fff, which the device cannot address"):
        memory(permitted, 2, reach_bits=28)
    assert len(memory(permitted, 2, reach_bits=29).segments) == 2


def test_addresses_that_are_kept_secret_or_may_change(
    permitted: MemoryMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    permitted.frames = (0,)
    with pytest.raises(AccessDenied, match="CAP_SYS_ADMIN"):
        memory(permitted, 1)
    (permitted.root / physical.COMPACTION).write_text("1\n")
    with pytest.raises(HostError, match="compact_unevictable"):
        memory(permitted, 1)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(AccessDenied, match="root"):
        memory(permitted, 1)


def test_an_iommu_makes_physical_addresses_meaningless(tmp_path: Path) -> None:
    machine = PciMachine(tmp_path)
    machine.add(GPU, group="7")
    with (
        SysfsTransport(GPU, system=machine) as transport,
        pytest.raises(AccessDenied, match="ugpu bind"),
    ):
        transport.allocate_dma(4096)


# ---- configuration space ---------------------------------------------------------------------


@given(st.binary(min_size=256, max_size=256), st.integers(0, 255))
def test_any_configuration_space_is_walked_to_an_end(config: bytes, wanted: int) -> None:
    def read(offset: int, width: int) -> int:
        return int.from_bytes(config[offset : offset + width], "little")

    place = pci_config.capability(read, wanted)
    assert place is None or (place >= 0x40 and config[place] == wanted)
    assert 0 <= pci_config.power_state(read) <= 3


@pytest.mark.parametrize(("offset", "width"), [(1, 2), (2, 4), (0, 3), (-4, 4), (4096, 1), (0, 8)])
def test_configuration_accesses_that_are_none(offset: int, width: int) -> None:
    with pytest.raises(BadArgument):
        pci_config.check_access(offset, width)
