"""Guest tests: what may not be taken is refused before anything is unbound; an interrupt in the
middle of taking leaves nothing without its driver."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.kernel.guest.edu import edu
from lab.kernel.guest.edu.edu import Edu
from ugpu import hcq
from ugpu.hcq.errors import BadArgument, DeviceBusy, DeviceNotFound, GroupNotViable, UgpuError
from ugpu.hcq.transport.attach import attach_pci
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.sysfs import SysfsTransport
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.transport import VfioTransport

NETWORK_CARD, SERIAL_LINE, DISK = (0x8086, 0x100E), (0x1B36, 0x0002), (0x1AF4, 0x1042)
LEGACY_DISK = (0x1AF4, 0x1001)
DRIVERS = {NETWORK_CARD: "e1000", SERIAL_LINE: "serial", DISK: "virtio-pci"}
HOLD = "import sys\nwith open(sys.argv[1], 'rb', 0):\n    print('open', flush=True)\n    input()"


def find(*wanted: tuple[int, int]) -> PciFunction:
    for entry in sorted(Path("/sys/bus/pci/devices").iterdir()):
        function = PciFunction.find(System(), entry.name)
        identity = function.identity()
        if (identity.vendor, identity.device) in wanted:
            return function
    raise LookupError(f"the guest has none of {wanted}")


@contextmanager
def nothing_changes() -> Iterator[None]:
    """Every function of the guest has the driver and the override that it had."""

    def state() -> dict[str, tuple[str | None, str | None]]:
        folder = Path("/sys/bus/pci/devices")
        functions = [PciFunction.find(System(), entry.name) for entry in sorted(folder.iterdir())]
        return {one.address: (one.driver, one.override) for one in functions}

    before = state()
    yield
    assert state() == before


def test_a_device_in_a_kernel_drivers_hands_is_not_opened() -> None:
    for wanted in (NETWORK_CARD, SERIAL_LINE):
        function = find(wanted)
        assert function.driver == DRIVERS[wanted]
        with nothing_changes():
            for transport in (VfioTransport, SysfsTransport):
                with pytest.raises((DeviceBusy, GroupNotViable), match=DRIVERS[wanted]):
                    transport(function.address)


def test_a_network_card_in_use_is_taken_for_nobody() -> None:
    function = find(NETWORK_CARD)
    with nothing_changes(), pytest.raises(DeviceBusy, match="network controller") as caught:
        Binding.bind(function)
    assert "e1000" in str(caught.value)


def test_a_group_with_a_disk_in_use_is_refused_and_the_mount_named() -> None:
    function = PciFunction.find(System(), edu.addresses()[2])
    disk = find(DISK, LEGACY_DISK)
    assert disk.address in [member.address for member in function.group_members()]
    with nothing_changes():
        with pytest.raises(DeviceBusy, match="storage controller") as caught:
            Binding.bind(function)
        assert "virtio-pci" in str(caught.value) and disk.address in str(caught.value)
        with pytest.raises(DeviceBusy, match="storage"):
            attach_pci(function.address, bind=True)


def test_a_device_that_a_process_has_open_is_refused_and_the_process_named() -> None:
    function = find(SERIAL_LINE)
    node = next(str(node) for node in function.device_nodes())
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, node], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    with nothing_changes(), pytest.raises(DeviceBusy, match=f"pid {process.pid}"):
        Binding.bind(function)
    process.communicate("\n")
    with Binding.bind(function):
        assert function.driver == "vfio-pci"
    assert function.driver == "serial" and function.override is None


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("0000:7f:1f.7", DeviceNotFound),
        ("00:1f.8", BadArgument),
        ("nonsense", BadArgument),
        ("../../../etc/passwd", BadArgument),
    ],
)
def test_a_wrong_address_is_said_to_be_one(address: str, error: type[UgpuError]) -> None:
    with nothing_changes():
        with pytest.raises(error):
            attach_pci(address, bind=True)
        with pytest.raises(UgpuError):
            hcq.open(f"pci:{address}", bind=True)


class Impatient(System):
    """A system whose user presses Ctrl-C once: before its call number `at`, of those that change
    something outside this process; or after it, where it gives nothing back that would be lost."""

    def __init__(self, at: int, *, before: bool) -> None:
        super().__init__()
        self.calls, self.at, self._before = 0, at, before

    def write_text(self, path: Path, text: str) -> None:
        with self._counted():
            super().write_text(path, text)
            if self.calls == self.at and not self._before:
                signal.raise_signal(signal.SIGINT)

    def ioctl(self, descriptor: int, request: int, argument: bytearray | memoryview | int) -> int:
        with self._counted():
            return super().ioctl(descriptor, request, argument)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.calls += 1
        if self.calls == self.at and self._before:
            signal.raise_signal(signal.SIGINT)
        yield


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_ctrl_c_at_any_step_of_binding_and_restoring_leaves_nothing_unbound(before: bool) -> None:
    """With a driver to give back: override, unbind, probe, and the same again; and without one."""
    for address, writes in ((find(SERIAL_LINE).address, 6), (edu.address(), 4)):
        interrupted = 0
        while True:
            system = Impatient(interrupted + 1, before=before)
            with nothing_changes():
                try:
                    with Binding.bind(PciFunction.find(system, address)):
                        pass
                except KeyboardInterrupt:
                    interrupted += 1
                    continue
            break
        assert interrupted >= writes, "each write was interrupted once"


def test_ctrl_c_while_opening_gives_the_device_back() -> None:
    interrupted, open_files = 0, len(os.listdir("/proc/self/fd"))
    while True:
        system = Impatient(interrupted + 1, before=True)
        with nothing_changes():
            try:
                transport = attach_pci(edu.address(), bind=True, reach_bits=28, system=system)
            except KeyboardInterrupt:
                interrupted += 1
                assert len(os.listdir("/proc/self/fd")) == open_files
                continue
            system.at = 0
            assert Edu(transport).alive()
            transport.close()
        break
    assert interrupted > 8, "opening has more calls than that"


def test_a_write_that_the_kernel_refuses_undoes_the_steps_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function = find(SERIAL_LINE)
    real = System.write_text

    def refusing(self: System, path: Path, text: str) -> None:
        if path.name == "drivers_probe":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(self, path, text)

    monkeypatch.setattr(System, "write_text", refusing)
    with nothing_changes(), pytest.raises(UgpuError, match="rejected a write"):
        Binding.bind(function)
