"""`ugpu doctor`, `ugpu ls`: nodes of Adreno's kernel drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ugpu.hcq.errors import DeviceNotFound
from ugpu.hcq.find import listing, registry
from ugpu.tools.inspect.doctor_adreno import findings


def _node(path: Path, mode: int = 0o600) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode)


def _render_node(root: Path, number: int, driver: str) -> None:
    _node(root / f"dev/dri/renderD{number}")
    device = root / f"sys/class/drm/renderD{number}/device"
    device.mkdir(parents=True)
    (root / f"sys/bus/{driver}").mkdir(parents=True, exist_ok=True)
    (device / "driver").symlink_to(root / f"sys/bus/{driver}")


def test_nothing_on_other_machines(tmp_path: Path) -> None:
    assert list(findings(tmp_path)) == []


def test_nodes_that_can_be_opened(tmp_path: Path) -> None:
    _node(tmp_path / "dev/kgsl-3d0")
    _render_node(tmp_path, 128, "i915")
    _render_node(tmp_path, 129, "msm_dpu")
    found = list(findings(tmp_path))
    assert [(one.state, one.detail.split()[0]) for one in found] == [
        ("ok", "kgsl:0"),
        ("ok", "msm:1"),
    ]


def test_a_node_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _node(tmp_path / "dev/kgsl-3d0")
    monkeypatch.setattr("ugpu.tools.inspect.doctor_adreno.os.access", lambda path, mode: False)
    (found,) = findings(tmp_path)
    assert found.state == "missing" and "chmod" in found.remedy


def test_a_qualcomm_machine_without_a_node(tmp_path: Path) -> None:
    tree = tmp_path / "proc/device-tree"
    tree.mkdir(parents=True)
    (tree / "compatible").write_bytes(b"lenovo,yoga\0qcom,x1e80100\0")
    (found,) = findings(tmp_path)
    assert found.state == "missing" and "modprobe msm" in found.remedy


def test_nodes_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _node(tmp_path / "kgsl-3d0")
    _node(tmp_path / "dri/renderD128")  # of no driver that is known
    monkeypatch.setattr(listing, "NODES", tmp_path)
    listed = [entry.name for entry in listing.list_devices()]
    assert "kgsl:0" in listed and not any(name.startswith("msm") for name in listed)


@pytest.mark.parametrize("name", ["kgsl:7", "msm:77"])
def test_a_name_without_a_node_is_refused(name: str) -> None:
    with pytest.raises(DeviceNotFound, match="does not exist"):
        registry.open(name)
