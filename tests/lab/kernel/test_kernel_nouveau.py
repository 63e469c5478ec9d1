"""Which boots tier nouveau has: a kernel's driver, and the chips that it drives."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.kernel import newer_kernel, nvk
from lab.kernel.lab import Lab
from lab.kernel.packages import Programs
from lab.kernel.tiers import nouveau
from lab.kernel.tiers.nouveau import CHIPS, Driver
from ugpu.virtual.nvidia.gsp.facts import boot_facts


def laboratory(folder: Path) -> Lab:
    return Lab(folder, Programs(folder), folder / "vmlinux")


def test_the_newer_kernel_is_booted_once_it_was_fetched(tmp_path: Path) -> None:
    lab = laboratory(tmp_path)
    assert newer_kernel.laboratory(lab) is None
    modules = tmp_path / "newer-kernel/usr/lib/modules/7.3.4+deb13-amd64/kernel"
    modules.mkdir(parents=True)
    (modules / "nouveau.ko").write_bytes(b"\0depends=\0")
    (tmp_path / "newer-kernel/vmlinux").write_bytes(b"\x7fELF")
    newer = newer_kernel.laboratory(lab)
    assert newer is not None and newer.kernel == tmp_path / "newer-kernel/vmlinux"
    assert list(newer.modules.in_order(["nouveau"])) == ["nouveau"]
    assert newer_kernel.release(tmp_path) == "7.3.4+deb13-amd64"


def test_a_driver_boots_the_chips_whose_firmware_it_lists(tmp_path: Path) -> None:
    folders = {chip: boot_facts(chip).folder for chip in CHIPS}
    listed = [chip for chip in CHIPS if chip != "gb202"]
    image = b"".join(f"firmware=nvidia/{folders[chip]}/gsp/gsp-1.bin\0".encode() for chip in listed)
    lab = laboratory(tmp_path)
    newer = Driver(lab, "7.3.4", tmp_path, [], image)
    assert newer.chips() == listed
    assert Driver(lab, "", tmp_path, [], image).chips() == [c for c in listed if c != "ga100"]


@pytest.mark.parametrize(
    ("more", "refused", "wrong"),
    [
        ("", [], set()),
        ("WARNING: CPU: 0", [], {"it warns of nothing"}),
        ("", ["alloc 0xc86f"], {"the GSP refuses nothing"}),
        ("", ["free 0xc1d00003/0x0: OBJECT_NOT_FOUND: no object 0x0 to free"], set()),
    ],
)
def test_what_it_said_is_judged(more: str, refused: list[str], wrong: set[str]) -> None:
    load = "\n".join([CHIPS["ga100"], *nouveau.REACHED])
    said = "\n".join([load, nouveau.UNLOADED, load, more])
    results = nouveau.judge(said, "ga100", {"violations": [], "refused": refused})
    assert {name for name, well in results.items() if not well} == wrong


def test_what_outlives_a_suspend_is_judged() -> None:
    steps = [f"{step} after suspend {i}" for i in range(2) for step in ("memory", "copy")]
    said = "\n".join(f"right {step}" for step in [*steps, "end"])
    assert all(nouveau.judge_sleep(said).values())
    wrong = nouveau.judge_sleep(said.replace("right copy after suspend 1", "wrong copy after"))
    assert [name for name, well in wrong.items() if not well] == [
        "copy after suspend 1", "nothing is wrong"
    ]  # fmt: skip


def test_what_nvk_said_is_judged(tmp_path: Path) -> None:
    said = "".join(f"right {step} X\n" for step in nvk.STEPS)
    assert all(nvk.judge(said).values())
    wrong = nvk.judge(said.replace("right memory", "wrong memory"))
    assert [name for name, well in wrong.items() if not well] == [
        "NVK: memory of type",
        "NVK: nothing wrong",
    ]
    assert not any(well for name, well in nvk.judge("").items() if "nothing" not in name)
    assert nvk.tree(tmp_path) is None
    (tmp_path / "nvk" / nvk.PROGRAM).parent.mkdir(parents=True)
    (tmp_path / "nvk" / nvk.PROGRAM).touch()
    assert nvk.tree(tmp_path) == tmp_path / "nvk"
