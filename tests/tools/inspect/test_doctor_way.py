"""`ugpu doctor` on the way to a card: each prepared fault is found, its own command mends it."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import pytest

from tests.support.pci.pci_machine import PciMachine
from tests.support.usb.thunderbolt_tree import RAZER, ThunderboltTree
from ugpu.hcq.errors import AccessDenied, UsageError
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.path import ports
from ugpu.tools import cli
from ugpu.tools.base import display
from ugpu.tools.base.console import Output
from ugpu.tools.base.finding import Finding
from ugpu.tools.control import pci
from ugpu.tools.inspect import doctor, udev_rules
from ugpu.tools.inspect import doctor_path as doctor_way

GPU, AUDIO, PORT, SOCKET = "0000:24:00.0", "0000:24:00.1", "0000:00:07.0", "0000:21:01.0"
SLOT = "0000:22:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> ThunderboltTree:
    made = ThunderboltTree(PciMachine(tmp_path))
    (port, _) = made.host_on_die()
    made.enclosure()
    made.card_behind(port)
    made.machine.load("vfio-pci")
    return made


def found(tree: ThunderboltTree) -> list[Finding]:
    function = PciFunction.find(tree.machine, GPU)
    return [*doctor_way.machine(tree.machine), *doctor_way.card(function)]


def bad(tree: ThunderboltTree) -> list[Finding]:
    return [one for one in found(tree) if one.state != "ok"]


def carry_out(tree: ThunderboltTree, command: str) -> None:
    """Run `echo WORD | sudo tee FILE...` on the made-up machine."""
    echo, word, pipe, sudo, tee, *files = shlex.split(command)
    assert [echo, pipe, sudo, tee] == ["echo", "|", "sudo", "tee"]
    for name in files:
        path = tree.machine.root / name.removeprefix("/")
        if path.name == "unbind":
            tree.machine.write_text(path, word)
        else:
            assert path.is_file()
            path.write_text(f"{word}\n")


def test_a_card_in_order(tree: ThunderboltTree) -> None:
    assert bad(tree) == []
    details = " | ".join(one.detail for one in found(tree))
    assert "Razer Core X is authorised: Thunderbolt 3, 2 x 20 Gb/s" in details
    assert "slowest link: 0000:21:01.0 to 0000:22:00.0 at 8 GT/s x4, 3.9 GB/s" in details


def audio_held(tree: ThunderboltTree) -> None:
    tree.machine.load("snd_hda_intel")
    tree.machine.write_text(tree.machine.root / "sys/bus/pci/drivers/snd_hda_intel/bind", AUDIO)


def runtime_power(tree: ThunderboltTree) -> None:
    for address in (GPU, AUDIO, SOCKET, PORT):
        tree.write(address, "power/control", "auto")


def aspm(tree: ThunderboltTree) -> None:
    tree.write(SLOT, "link/l1_aspm", "1")
    tree.write(GPU, "link/l0s_aspm", "1")


def not_authorised(tree: ThunderboltTree) -> None:
    (tree.machine.root / "sys/bus/thunderbolt/devices/0-1/authorized").write_text("0\n")


def small_bar(tree: ThunderboltTree) -> None:
    tree.write(GPU, "resource0_resize", f"{1 << 8 | 1 << 9:016x}")  # 256 or 512 MiB


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (audio_held, f"audio function {AUDIO} is bound to the kernel driver snd_hda_intel"),
        (runtime_power, f"{GPU}, {AUDIO}, {SOCKET}, {PORT}"),
        (aspm, "ASPM is on"),
        (not_authorised, "Core X is not authorised (security level 'user')"),
    ],
)
def test_a_fault_is_found_and_its_command_mends_it(
    tree: ThunderboltTree, spoil: object, words: str
) -> None:
    assert callable(spoil)
    spoil(tree)
    (finding,) = bad(tree)
    assert words in finding.detail
    carry_out(tree, finding.remedy)
    assert bad(tree) == []


def test_a_small_bar_and_who_has_no_room(tree: ThunderboltTree) -> None:
    small_bar(tree)
    (finding,) = bad(tree)
    assert "BAR 0 is 256 MiB and may be 512 MiB" in finding.detail
    assert finding.remedy == f"echo 9 | sudo tee /sys/bus/pci/devices/{GPU}/resource0_resize"
    window(tree, PORT, 1 << 30)
    window(tree, SOCKET, 256 << 20)
    (finding,) = bad(tree)
    assert f"needs 512 MiB, and the bridge {SOCKET} has a window of 256 MiB" in finding.detail
    assert "pci=realloc,hpmmioprefsize=512M" in finding.remedy


def window(tree: ThunderboltTree, port: str, size: int) -> None:
    """Windows as the kernel lists them behind BARs, ROM and the six of SR-IOV."""
    none = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
    start = 0x60_0000_0000
    lines = [none] * 13
    lines += [none, f"{0xB000_0000:#018x} {0xB00F_FFFF:#018x} 0x0000000000040200"]
    lines += [f"{start:#018x} {start + size - 1:#018x} 0x000000000014220c"]
    tree.write(port, "resource", "\n".join(lines))


def test_an_unassigned_bar_names_the_bridge(tree: ThunderboltTree) -> None:
    lines = (tree.machine.folder(GPU) / "resource").read_text().splitlines()
    lines[0] = "0x0000000000000000 0x00000007ffffffff 0x000000002014220c"
    tree.write(GPU, "resource", "\n".join(lines))
    window(tree, PORT, 512 << 20)
    (finding,) = bad(tree)
    assert finding.state == "missing"
    assert f"BAR 0 needs 32 GiB, and the bridge {PORT} has a window of 512 MiB" in finding.detail
    assert "hpmmioprefsize=32768M" in finding.remedy


def test_a_bar_that_the_kernel_gave_up_names_the_bridge(tree: ThunderboltTree) -> None:
    """It lists such a BAR as if it did not exist."""
    lines = (tree.machine.folder(GPU) / "resource").read_text().splitlines()
    tree.write(GPU, "resource", "\n".join(["0x0 0x0 0x0", *lines[1:]]))
    window(tree, PORT, 128 << 20)
    (finding,) = bad(tree)
    assert finding.state == "missing"
    assert f"does not fit in the window of 128 MiB of the bridge {PORT}" in finding.detail
    assert "hpmmioprefsize=256M" in finding.remedy


@pytest.mark.parametrize("level", ["dponly", "usbonly", "nopcie"])
def test_a_security_level_without_pcie(tree: ThunderboltTree, level: str) -> None:
    (tree.machine.root / "sys/bus/thunderbolt/devices/domain0/security").write_text(level)
    (finding,) = bad(tree)
    assert finding.state == "missing" and "not create a PCIe tunnel" in finding.detail


def test_an_empty_enclosure_and_no_protection(tmp_path: Path) -> None:
    tree = ThunderboltTree(PciMachine(tmp_path))
    tree.host_on_die(protection="0")
    tree.enclosure()
    details = [one.detail for one in doctor_way.machine(tree.machine)]
    assert "no PCI function" in details[0] and "does not restrict the DMA" in details[1]


def test_lockdown_and_secure_boot(tree: ThunderboltTree) -> None:
    path = tree.machine.root / doctor_way.LOCKDOWN
    path.parent.mkdir(parents=True)
    path.write_text("[none] integrity confidentiality\n")
    assert bad(tree) == []
    path.write_text("none [integrity] confidentiality\n")
    (finding,) = bad(tree)
    assert "locked down (integrity) by the kernel command line" in finding.detail
    variable = tree.machine.root / doctor_way.SECURE_BOOT
    variable.parent.mkdir(parents=True)
    variable.write_bytes(b"\x06\0\0\0\x01")
    assert "by Secure Boot" in bad(tree)[0].detail


def test_a_flood_of_corrected_errors(tree: ThunderboltTree) -> None:
    counts = "RxErr 3\nBadTLP 0\nBadDLLP 97\nTOTAL_ERR_COR 100"
    tree.write(SOCKET, "aer_dev_correctable", counts)
    (finding,) = bad(tree)
    assert f"{SOCKET} has corrected many link errors" in finding.detail
    assert "RxErr 3, BadDLLP 97" in finding.detail
    tree.write(SOCKET, "aer_dev_correctable", counts.replace("100", "99"))
    assert bad(tree) == []


def test_a_slow_generation_is_a_note(tree: ThunderboltTree) -> None:
    tree.write(GPU, "current_link_speed", "2.5 GT/s PCIe")
    (finding,) = bad(tree)
    assert finding.state == "note" and "could run at 16 GT/s" in finding.detail


def test_the_whole_report_has_them(tree: ThunderboltTree) -> None:
    runtime_power(tree)
    tree.write(SLOT, "current_link_width", "1")
    findings = doctor.Doctor(tree.machine.root, firmware_folders=()).findings()
    checks = {one.check for one in findings}
    assert {f"thunderbolt:{RAZER[2]}", f"pci:{GPU}"} <= checks
    details = " | ".join(f"{one.state}: {one.detail}" for one in findings)
    assert "missing: the PCIe link 0000:21:01.0 to 0000:22:00.0: expected x4, got x1" in details
    assert "note: runtime power management" in details


def test_udev_rules_are_written_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "70-ugpu.rules"
    assert cli.main(["doctor", "--json", "--write-udev", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["wrote"] == str(path)
    usb = [line for line in path.read_text().splitlines() if '"usb"' in line]
    for line, ids in zip(usb, (("add1", "0001"), ("3801", "0001")), strict=True):
        # By hand from udev(7): == compares, = and += assign.
        assert f'ATTR{{idVendor}}=="{ids[0]}", ATTR{{idProduct}}=="{ids[1]}"' in line
        assert 'MODE="0660", TAG+="uaccess", ATTR{power/control}="on"' in line
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_udev_rules_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="No such file"):
        udev_rules.write(tmp_path / "none/70-ugpu.rules", Output(True))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(AccessDenied, match="no permission to write"):
        udev_rules.write(tmp_path / "70-ugpu.rules", Output(True))


def windows(tree: ThunderboltTree, narrow: int, prefetchable: int) -> None:
    """Give every bridge a 32-bit window and a prefetchable one; 0: none."""
    none = "0x0 0x0 0x0"
    lines = [none] * 8
    for start, size, flags in (
        (0x9000_0000, narrow, 0x200),
        (0x60_0000_0000, prefetchable, 0x2201),
    ):
        lines.append(f"{start:#x} {start + size - 1:#x} {flags:#x}" if size else none)
    for port in ports(PciFunction(tree.machine, GPU)):
        tree.write(port.address, "resource", "\n".join(lines))


def without(tree: ThunderboltTree, *bars: int) -> None:
    """Let the kernel have given up these BARs."""
    lines = (tree.machine.folder(GPU) / "resource").read_text().splitlines()
    for bar in bars:
        lines[bar] = "0x0 0x0 0x0"
    tree.write(GPU, "resource", "\n".join(lines))


def test_the_last_bar_needs_the_32_bit_window(tree: ThunderboltTree) -> None:
    """It cannot be 64 bits wide: the prefetchable window is not its own."""
    without(tree, 5)
    windows(tree, 2 << 20, 64 << 30)
    (finding,) = bad(tree)
    assert "BAR 5 has no address" in finding.detail
    assert "32-bit window of 2 MiB" in finding.detail
    assert "hpmmiosize=4M" in finding.remedy and "hpmmioprefsize" not in finding.remedy


def test_a_32_bit_bar_that_is_listed(tree: ThunderboltTree) -> None:
    lines = (tree.machine.folder(GPU) / "resource").read_text().splitlines()
    lines[5] = "0x0000000000000000 0x00000000000fffff 0x0000000020040200"
    tree.write(GPU, "resource", "\n".join(lines))
    windows(tree, 512 << 10, 64 << 30)
    finding = next(one for one in bad(tree) if "BAR 5" in one.detail)
    assert "32-bit window of 512 KiB" in finding.detail
    assert "hpmmiosize=1M" in finding.remedy


def test_bars_of_one_window_have_one_remedy(tree: ThunderboltTree) -> None:
    without(tree, 0, 2, 5)
    windows(tree, 0, 0)
    remedies = {
        finding.detail[:5]: finding.remedy for finding in bad(tree) if "BAR" in finding.detail
    }
    assert "hpmmioprefsize=257M" in remedies["BAR 0"] and "hpmmioprefsize=257M" in remedies["BAR 2"]
    assert "hpmmiosize=1M" in remedies["BAR 5"]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("boot_vga", "1\n", "the display of the firmware"),
        ("graphics/fb0/name", "amdgpudrmfb\n", "the text console (fb0)"),
        ("drm/card1/card1-DP-1/enabled", "enabled\n", "the display at DP-1"),
    ],
)
def test_a_card_that_drives_the_console(tmp_path: Path, file: str, text: str, words: str) -> None:
    machine = PciMachine(tmp_path)
    machine.add("0000:03:00.0", driver="amdgpu")
    machine.load("vfio-pci")
    function = PciFunction(machine, "0000:03:00.0")
    assert display.warning(function) == ""
    path = function.folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    findings = [
        one for one in doctor.Doctor(tmp_path).findings() if one.check == "pci:0000:03:00.0"
    ]
    (note,) = [one for one in findings if words in one.detail]
    assert note.state == "note" and "ssh" in note.remedy
    assert findings.index(note) < next(
        number for number, one in enumerate(findings) if "must be bound" in one.detail
    )
    said = io.StringIO()
    out = Output()
    out.console.file = said
    pci.run("bind", "pci:0000:03:00.0", out, dry_run=True, system=machine)
    assert words in said.getvalue()
