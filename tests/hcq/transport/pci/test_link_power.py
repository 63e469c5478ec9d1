"""The link's low-power states through sysfs: off while a transport is open, back as they were."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.support.pci.pci_machine import PciMachine
from tests.support.pci.sysfs_tree import GPU, SysfsTree
from tests.support.usb.thunderbolt_tree import ThunderboltTree
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.link_power import keep_awake
from ugpu.hcq.transport.pci.sysfs import SysfsTransport


def states(tree: SysfsTree, **values: str) -> None:
    (tree.folder / "link").mkdir(exist_ok=True)
    for name, value in values.items():
        (tree.folder / "link" / name).write_text(f"{value}\n")


def read(tree: SysfsTree) -> list[str]:
    return [(tree.folder / "link" / name).read_text()[0] for name in ("l0s_aspm", "l1_aspm")]


@pytest.mark.parametrize("before", [["1", "1"], ["0", "1"], ["1", "0"], ["0", "0"]])
def test_off_while_open(tmp_path: Path, before: list[str]) -> None:
    tree = SysfsTree(tmp_path)
    states(tree, l0s_aspm=before[0], l1_aspm=before[1])
    with SysfsTransport(GPU, system=tree):
        assert read(tree) == ["0", "0"]
    assert read(tree) == before


def test_back_where_opening_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = SysfsTree(tmp_path)
    states(tree, l0s_aspm="1", l1_aspm="1")
    monkeypatch.setattr(SysfsTransport, "_write_attribute", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        SysfsTransport(GPU, system=tree)
    assert read(tree) == ["1", "1"]


def test_who_may_not_write_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tree = SysfsTree(tmp_path)
    states(tree, l0s_aspm="0", l1_aspm="1")

    def refuse(path: Path, text: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(tree, "write_text", refuse)
    with caplog.at_level(logging.INFO, "ugpu.hcq.transport.pci.link_power"):
        keep_awake(tree, PciFunction.find(tree, GPU))()
    (line,) = caplog.messages
    assert "l1_aspm" in line and "Permission denied" in line


def test_a_kernel_without_the_files(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    with SysfsTransport(GPU, system=tree):
        assert not (tree.folder / "link").exists()


def test_the_slot_of_a_card_with_a_switch_of_its_own(tmp_path: Path) -> None:
    """The card's own link is inside of it; what sleeps is the link above its switch."""
    tree = ThunderboltTree(PciMachine(tmp_path))
    (port, _) = tree.host_on_die()
    gpu = PciFunction.find(tree.machine, tree.card_behind(port))
    for address in ("0000:22:00.0", gpu.address):
        tree.write(address, "link/l1_aspm", "1")
    written: list[tuple[str, str]] = []

    def write(path: Path, text: str) -> None:
        written.append((path.parent.parent.name, text))

    tree.machine.write_text = write  # type: ignore[method-assign]
    restore = keep_awake(tree.machine, gpu)
    assert written == [(gpu.address, "0"), ("0000:22:00.0", "0")]
    restore()
    assert written[2:] == [("0000:22:00.0", "1"), (gpu.address, "1")]
