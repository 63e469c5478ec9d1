"""Names to devices, on a made-up machine; and that importing stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ugpu import hcq
from ugpu.hcq.find.catalogue import vendor_of, virtual_chips
from ugpu.hcq.find.listing import list_devices

VIRTUAL = [f"virtual:{chip}" for chip in sorted(virtual_chips())]


def function(root: Path, address: str, vendor: str, device: str, driver: str | None = None) -> None:
    folder = root / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "device").write_text(f"{device}\n")
    if driver:
        (root / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(root / "drivers" / driver)


def test_functions_that_a_driver_knows_are_listed(tmp_path: Path) -> None:
    function(tmp_path, "0000:03:00.0", "0x1002", "0x744c", "vfio-pci")
    function(tmp_path, "0000:00:02.0", "0x8086", "0x46a6", "i915")
    function(tmp_path, "0000:0a:00.0", "0x1002", "0x744c")
    (tmp_path / "0000:ff:00.0").mkdir()
    names = {entry.name: entry for entry in list_devices(tmp_path)}
    assert list(names) == ["pci:0000:03:00.0", "pci:0000:0a:00.0", "cpu", *VIRTUAL]
    assert names["pci:0000:03:00.0"].facts["driver"] == "vfio-pci"
    assert names["pci:0000:0a:00.0"].facts["driver"] is None
    assert names["pci:0000:0a:00.0"].facts["pci_id"] == "1002:744c"


def test_a_machine_without_pci() -> None:
    assert [entry.name for entry in list_devices(Path("/nowhere"))] == ["cpu", *VIRTUAL]


def test_importing_loads_no_array_library_and_no_driver() -> None:
    code = (
        "import sys, hcq; "
        "heavy = {'numpy', 'llvmlite', 'am', 'compiler', 'msgpack'} & set(sys.modules); "
        "assert not heavy, heavy; assert 'open' in dir(hcq); hcq.list_devices()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_public_name_is_there() -> None:
    for name in dir(hcq):
        assert getattr(hcq, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = hcq.nothing_of_that_name


def test_the_package_of_a_chip_is_found_by_its_folder() -> None:
    chips = virtual_chips()
    assert {chip: vendor_of(chip) for chip in chips} == chips
    for name in ("", "..", "facts", "navi31/..", "a630+usb", "__pycache__", "x185"):
        assert vendor_of(name) is None, name


@pytest.mark.parametrize(("chip", "others"), [("a740", ("ugpu.am.chips", "ugpu.nv.chips"))])
def test_opening_a_chip_loads_no_other_vendors_chips(chip: str, others: tuple[str, ...]) -> None:
    program = (
        f"import sys; from ugpu import hcq\nhcq.open('virtual:{chip}').close(); print(*sys.modules)"
    )
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert f"ugpu.qcom.chips.{chip}.facts" in loaded
    assert not set(others) & set(loaded)
