"""`ugpu bridge`: what it shows of a bridge, over a scripted one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.usb.usb_script import In, ScriptedUsb, Step
from ugpu.tools import cli
from ugpu.tools.inspect import bridge
from ugpu.usbgpu.bridge.asm24 import CustomBridge
from ugpu.usbgpu.bridge.firmwares import open_bridge
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions
from ugpu.virtual.usb.flash import firmware, wrap


def plug_in(monkeypatch: pytest.MonkeyPatch, *steps: Step) -> ScriptedUsb:
    usb = ScriptedUsb([*steps])

    def by_name(wanted: str) -> CustomBridge:
        assert wanted == "0badcafe"
        return CustomBridge(usb)

    monkeypatch.setattr(bridge, "by_name", by_name)
    return usb


@pytest.mark.parametrize(("state", "up"), [(0x78, True), (0x10, False)])
def test_info(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: int, up: bool
) -> None:
    usb = plug_in(monkeypatch, In(0xE4, 0xB450, 0, 1, bytes([state])))
    assert cli.main(["bridge", "info", "usb:0badcafe", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["pcie_link_up"] is up and facts["firmware"] == "custom v0.1 (0001)"
    assert facts["usb_id"] == "add1:0001" and facts["usb_link_mbit_s"] == 10_000
    assert usb.closed
    usb.finish()


def test_xdata(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    usb = plug_in(monkeypatch, In(0xE4, 0xA7FC, 0x100, 18, bytes(range(18))))
    assert cli.main(["bridge", "xdata", "0badcafe", "0xA7FC", "18", "--bank", "1"]) == 0
    assert capsys.readouterr().out.split("\n")[:2] == [
        "a7fc  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f",
        "a80c  10 11",
    ]
    assert usb.closed
    usb.finish()


def test_power(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    box = Enclosure(None)
    box.hardware.sensor.registers |= {0x01: 11120, 0x02: 9600}
    monkeypatch.setattr(bridge, "by_name", lambda wanted: CustomBridge(box.open()))
    assert cli.main(["bridge", "power", "usb:0"]) == 0
    assert capsys.readouterr().out == "12.00 V   10.00 A   120.0 W\n"
    box.hardware.sensor.present = False
    assert cli.main(["bridge", "power", "usb:0"]) != 0
    assert "0x45" in capsys.readouterr().err
    box.open().close()
    box.close()


def test_a_bridge_with_the_vendors_firmware(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is named and read; pins and flash part are not touched."""
    box = Enclosure(None, EnclosureOptions(firmware="uas"))
    monkeypatch.setattr(bridge, "by_name", lambda wanted: open_bridge(box.open()))
    assert cli.main(["bridge", "info", "usb:0", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["firmware"] == "USB 3.2 PCIe TinyEnclosure (0100)"
    assert facts["protocol"] == "UAS (vendor's firmware, patched)"
    assert cli.main(["bridge", "xdata", "usb:0", "0x54B", "1"]) == 0
    assert capsys.readouterr().out.startswith("054b  20")
    image = tmp_path / "firmware.bin"
    image.write_bytes(wrap(firmware(size=300, seed=5)))
    for words in (["power", "usb:0"], ["flash", "usb:0", str(image)]):
        assert cli.main(["bridge", *words]) != 0
        assert "needs the open firmware" in capsys.readouterr().err
    box.open().close()
    assert box.objections == []
    box.close()


@pytest.mark.parametrize(
    "words",
    [
        ["power", "usb:0", "1"],
        ["info", "pci:0000:03:00.0"],
        ["info", "usb:0", "1"],
        ["xdata", "usb:0"],
        ["xdata", "usb:0", "LTSSM"],
        ["xdata", "usb:0", "1", "2", "3"],
    ],
)
def test_what_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bridge", *words]) != 0
    assert capsys.readouterr().err


def test_flash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a backup nothing is written; the backup is never written over."""
    box = Enclosure(None)
    flash = box.hardware.flash
    before = bytes(flash.cells)
    monkeypatch.setattr(bridge, "by_name", lambda wanted: CustomBridge(box.open()))
    image, backup = tmp_path / "firmware.bin", tmp_path / "before.bin"
    image.write_bytes(wrap(firmware(size=300, seed=5)))
    command = ["bridge", "flash", "usb:0", str(image)]
    assert cli.main(command) == 0
    assert "1 blocks of 64 KiB differ" in capsys.readouterr().out
    assert bytes(flash.cells) == before and not flash.writes
    assert cli.main([*command, "--backup", str(backup)]) != 0
    error = capsys.readouterr().err
    assert "no way back" in error and "--no-way-back" in error
    assert not backup.exists() and not flash.writes
    sure = ["--backup", str(backup), "--no-way-back"]
    assert cli.main([*command, *sure, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] is True
    assert bytes(flash.cells[0x100:0x200]) == image.read_bytes()[:256]
    assert backup.read_bytes() == before[: 64 << 10]
    assert cli.main(command) == 0
    assert "holds this image already" in capsys.readouterr().out
    image.write_bytes(wrap(firmware(size=301, seed=6)))
    writes = flash.writes
    assert cli.main([*command, *sure]) != 0
    assert "before.bin cannot be created" in capsys.readouterr().err
    image.write_bytes(b"\0" * 100)
    assert cli.main(command) != 0
    assert "mark of the image" in capsys.readouterr().err
    assert cli.main(["bridge", "flash", "usb:0", str(tmp_path / "none")]) != 0
    assert flash.writes == writes and box.objections == []
    box.close()
