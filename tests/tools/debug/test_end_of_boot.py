"""A recording marks the end of the boot: what a bundle is compared with, and where a boot that
failed ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import faulty_work
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.transport.recorded.format import BOOTED, Recording, Stage
from ugpu.hcq.transport.recorded.state import failed_stage, last_stage
from ugpu.tools import cli
from ugpu.virtual.amd.options import FaultPlan


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "good.rec"
    with hcq.open("virtual:navi31", record=path) as device, device.alloc(64) as buffer:
        buffer.fill(1)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    with hcq.open("virtual:navi31") as device:
        device.driver.core.keeper.folder = tmp_path_factory.mktemp("crashes")
        program = device.load(contract_object(device.target))
        with pytest.raises(UgpuError) as caught:
            device.queue().timeline.wait(faulty_work.submit(device, program))
    return str(device.driver.core.keeper.kept or caught.value.facts["bundle"])


def read(path: Path) -> Recording:
    return Recording.load(path.read_text("ascii"))


def test_the_end_of_the_boot_is_marked(good: Path) -> None:
    stages = [entry.name for entry in read(good).entries if isinstance(entry, Stage)]
    assert stages[-2:] == ["copy queues", BOOTED]
    assert last_stage(read(good)) == "copy queues" and failed_stage(read(good)) is None


def test_a_bundle_is_compared_with_the_end_of_the_boot(
    good: Path, bundle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["crash", "diff", bundle, str(good)]) == 1
    text = capsys.readouterr().out
    assert "good.rec@copy queues" in text
    # What work changes; none of what a close turns off.
    assert "CP_HQD_PQ_WPTR_LO" in text and "CP_MEC_RS64_CNTL" not in text
    named = cli.main(["crash", "diff", bundle, f"{good}@copy queues"])
    assert named == 1 and capsys.readouterr().out == text
    assert cli.main(["crash", "diff", bundle, f"{good}@{BOOTED}"]) == 1
    assert "CP_MEC_RS64_CNTL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("plan", "stage", "unit"),
    [
        (FaultPlan(autoload_never=True), "RLC autoload", "RLC"),
        (FaultPlan(psp_silent=True), "TMR", "PSP"),
        (FaultPlan(tlb_no_ack={"gc"}), "GFXHUB", "GFXHUB"),
    ],
)
def test_the_unit_that_failed_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plan: FaultPlan, stage: str, unit: str
) -> None:
    path = tmp_path / "failed.rec"
    with pytest.raises(UgpuError) as caught:
        hcq.open("virtual:navi31", record=path, faults=plan)
    assert caught.value.facts["stage"] == stage
    found = failed_stage(read(path))
    assert found is not None and found[0] == stage and last_stage(read(path)) == ""
    assert cli.main(["fw", "state", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith(f"{unit} ")]
    assert "failed" in row and f"the boot ended here, in the stage {stage}:" in row
    assert f"first: {unit}, failed" in "\n".join(lines)
