"""Bridges in sysfs: which there are, which one a name means, what keeps their ports awake."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.usb.usb_script import IDENTITY
from ugpu.hcq.errors import DeviceNotFound, NotSupported
from ugpu.hcq.find import listing, registry
from ugpu.usbgpu import attach
from ugpu.usbgpu.bridge import discovery as found
from ugpu.usbgpu.bridge import firmwares
from ugpu.usbgpu.link import power
from ugpu.usbgpu.link.usb import Speed


def plug(sysfs: Path, port: str, **attributes: str) -> Path:
    folder = sysfs / port
    (folder / "power").mkdir(parents=True)
    texts = {
        "idVendor": "add1", "idProduct": "0001", "bcdDevice": "0001", "manufacturer": "tiny",
        "product": "custom v0.1", "serial": "0badcafe", "speed": "10000", "devnum": "3",
        "power/control": "auto",
    } | attributes  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text + "\n")
    return folder


def test_bridges_are_listed_by_port(tmp_path: Path) -> None:
    plug(tmp_path, "2-10", serial="b")
    plug(tmp_path, "2-1.4", serial="a")
    plug(tmp_path, "1-3", idVendor="1d6b", idProduct="0002")
    plug(tmp_path, "2-2", idVendor="3801", speed="480")
    (tmp_path / "2-2:1.0").mkdir()
    (tmp_path / "usb1").mkdir()
    listed = found.bridges(tmp_path)
    assert [one.port for one in listed] == ["2-1.4", "2-2", "2-10"]
    assert listed[1].speed is Speed.HIGH and listed[0].speed is Speed.SUPER_PLUS
    assert (listed[0].vendor, listed[0].address, listed[0].serial) == (0xADD1, 3, "a")
    assert found.bridges(tmp_path / "nothing") == []


def test_a_name_is_a_serial_number_a_port_or_an_index(tmp_path: Path) -> None:
    plug(tmp_path, "2-1", serial="0")
    plug(tmp_path, "2-2", serial="cafe")
    assert found.choose("0", tmp_path).port == "2-1"
    assert found.choose("1", tmp_path).port == "2-2"
    assert found.choose("cafe", tmp_path).port == "2-2"
    assert found.choose("2-1", tmp_path).port == "2-1"
    for wrong in ("2", "", "babe", "3-1"):
        with pytest.raises(DeviceNotFound, match="usb:0, usb:cafe"):
            found.choose(wrong, tmp_path)


def test_two_enclosures_with_one_serial_are_told_apart_by_port(tmp_path: Path) -> None:
    plug(tmp_path, "2-1")
    plug(tmp_path, "4-1.2")
    with pytest.raises(DeviceNotFound, match=r"usb:2-1, usb:4-1\.2"):
        found.choose("0badcafe", tmp_path)
    assert found.choose("4-1.2", tmp_path).port == "4-1.2"


def test_what_vanishes_or_is_garbled_is_passed_over(tmp_path: Path) -> None:
    plug(tmp_path, "2-1", idVendor="zzzz")
    (plug(tmp_path, "2-2") / "devnum").unlink()
    (plug(tmp_path, "2-3") / "serial").unlink()
    assert [(one.port, one.serial) for one in found.bridges(tmp_path)] == [("2-3", "")]


def test_unknown_firmware_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    plug(tmp_path, "2-1", product="USB4 Enclosure")
    with pytest.raises(NotSupported, match="USB4 Enclosure"):
        attach.attach("0", lambda identity: None, sysfs=tmp_path)
    firmwares.check_firmware(IDENTITY)
    firmwares.check_firmware(replace(IDENTITY, name="USB 3.2 PCIe TinyEnclosure"))


def test_a_port_is_kept_awake_while_it_is_held(tmp_path: Path) -> None:
    folder = plug(tmp_path, "2-1")
    control = folder / "power" / "control"
    kept = power.KeptAwake(folder)
    assert control.read_text() == "on"
    kept.restore()
    kept.restore()
    assert control.read_text() == "auto"
    control.write_text("on")
    power.KeptAwake(folder).restore()
    assert control.read_text() == "on"
    assert stat.S_ISREG(control.stat().st_mode)


def test_a_port_that_cannot_be_kept_awake_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    power.KeptAwake(tmp_path / "2-1").restore()
    assert "may be suspended" in caplog.text and "write-udev" in caplog.text


def test_bridges_are_listed_with_the_other_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug(tmp_path, "2-1")
    plug(tmp_path, "2-2", serial="", speed="480")
    plug(tmp_path, "2-3")
    plug(tmp_path, "2-4", serial="other", product="USB4 Enclosure")
    monkeypatch.setattr(listing, "SYSFS_USB", tmp_path)
    monkeypatch.setattr(found, "NODES", tmp_path / "bus")
    listed = [entry for entry in listing.list_devices() if entry.name.startswith("usb:")]
    names = ["usb:2-1", "usb:2-2", "usb:2-3", "usb:other"]
    assert [entry.name for entry in listed] == names, "by port where a serial number is no name"
    assert listed[0].facts == {
        "port": "2-1", "serial": "0badcafe", "firmware": "custom v0.1",
        "protocol": "vendor requests (open firmware)", "link_mbit_s": 10_000, "usable": True,
        "accessible": False,
    }  # fmt: skip
    assert listed[1].facts["link_mbit_s"] == 480 and listed[3].facts["usable"] is False
    assert listed[3].facts["protocol"] == "unknown"


def test_a_bridge_with_the_vendors_firmware_is_listed(tmp_path: Path) -> None:
    plug(tmp_path, "2-1", product="USB 3.2 PCIe TinyEnclosure")
    ((_, facts),) = found.listed(tmp_path)
    assert facts["firmware"] == "USB 3.2 PCIe TinyEnclosure" and facts["usable"] is True
    assert facts["protocol"] == "UAS (vendor's firmware, patched)"


@pytest.mark.parametrize(
    ("product", "node", "chosen"),
    [
        ("custom v0.1", "002/003", "usb:0badcafe"),
        ("custom v0.1", "003/003", "cpu"),
        ("USB4 Enclosure", "002/003", "cpu"),
    ],
)
def test_auto_takes_a_bridge_that_this_user_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, product: str, node: str, chosen: str
) -> None:
    plug(tmp_path / "sys", "2-1", product=product)
    (tmp_path / "bus" / node).parent.mkdir(parents=True)
    (tmp_path / "bus" / node).touch()
    monkeypatch.setattr(listing, "SYSFS_USB", tmp_path / "sys")
    monkeypatch.setattr(listing, "SYSFS_PCI", tmp_path / "pci")
    monkeypatch.setattr(listing, "NODES", tmp_path / "dev")
    monkeypatch.setattr(found, "NODES", tmp_path / "bus")
    monkeypatch.delenv("UGPU_DEVICE", raising=False)
    opened: list[str] = []
    whole = registry.open

    def named(name: str, **options: object) -> object:
        opened.append(name)
        return whole(name, **options) if name == "auto" else None

    monkeypatch.setattr(registry, "open", named)
    registry.open("auto")
    assert opened == ["auto", chosen]
