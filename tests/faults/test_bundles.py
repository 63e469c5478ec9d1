"""The first failure of a device leaves a bundle of evidence; what follows it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ugpu
from tests.support.amd.am_faulty import faulty_object
from tests.support.waiting import until
from ugpu import hcq, ir
from ugpu.am.chips import facts_of
from ugpu.am.failure import evidence, inspect
from ugpu.compiler.kernel.text import format_kernel
from ugpu.hcq.device import crash
from ugpu.hcq.disk import bundle
from ugpu.hcq.errors import DeviceHang, DeviceLost, FirmwareSilent, PageFault, UgpuError
from ugpu.hcq.state.config import Config
from ugpu.tools import cli
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.options import ChipOptions, FaultPlan

NV_FAR = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry write_at(.param .u64 out, .param .u64 address) {
  .reg .b64 %rd;
  ld.param.u64 %rd, [address];
  st.global.u32 [%rd], 7;
  ret;
}
"""
NOWHERE = np.uint64(0x2040_0000_0000)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(crash, "config", lambda: Config(crash_folder=tmp_path / "crashes"))
    return tmp_path / "crashes"


@pytest.fixture(params=["virtual:navi31", "virtual:gh100"])
def gpu(request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    with hcq.open(request.param) as device:
        yield device


def fail(gpu: Any) -> PageFault:
    image = faulty_object() if gpu.target.abi == "amdhsa" else None
    program = gpu.load(image) if image is not None else gpu.compile(NV_FAR)
    with pytest.raises(PageFault) as caught, gpu.alloc(4096) as out:
        with gpu.queue() as queue:
            queue.launch(program["write_at"], grid=(1, 1, 1), block=(64, 1, 1), args=(out, NOWHERE))
        gpu.synchronize()
    return caught.value


def test_the_first_failure_leaves_a_bundle(gpu: Any, folder: Path) -> None:
    first = fail(gpu)
    (path,) = bundle.bundles(folder)
    assert first.facts["bundle"] == str(path)
    found = bundle.read(path)
    manifest: Any = found.manifest
    assert manifest["device"] == gpu.name and manifest["error"]["class"] == "PageFault"
    assert "write_at" in json.dumps(json.loads(found.parts["queues.json"]))
    with pytest.raises(UgpuError):
        gpu.synchronize()  # the same failure, told again
    assert len(bundle.bundles(folder)) == 1
    gpu.reset()
    fail(gpu)
    assert len(bundle.bundles(folder)) == 2


def test_a_hang_leaves_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_WAVES_LIMIT_S", None)  # all waves, also on a busy machine
    with hcq.open("virtual:navi31") as gpu:
        program, out = gpu.load(faulty_object()), gpu.alloc(4096)
        with gpu.queue() as queue:
            queue.launch(program["forever"], grid=(1, 1, 1), block=(64, 1, 1), args=(out,))
        with pytest.raises(DeviceHang):
            gpu.synchronize(limit_s=0.05)
        (path,) = bundle.bundles(folder)
        queues: Any = json.loads(bundle.read(path).parts["queues.json"])
        assert queues[0]["suspects"] == ["forever"] and queues[0]["done"] == 0
        waves: Any = json.loads(bundle.read(path).parts["waves.json"])
        assert waves and {wave["kernel"] for wave in waves} == {"forever"}
        assert cli.main(["waves", str(path)]) == 0
        shown = capsys.readouterr().out
        assert "forever+0x" in shown and ("s_" in shown or "v_" in shown or "global_" in shown)
        gpu.reset()


def test_a_boot_that_fails_leaves_one(folder: Path) -> None:
    with pytest.raises(FirmwareSilent) as caught:
        hcq.open("virtual:navi31", faults=FaultPlan(autoload_never=True))
    (path,) = bundle.bundles(folder)
    assert caught.value.facts["bundle"] == str(path)
    found = bundle.read(path)
    states = {one["unit"]: one["name"] for one in json.loads(found.parts["states.json"])}
    assert states["RLC"] == "autoload not complete"
    stages: Any = json.loads(found.parts["boot.json"])["stages"]
    assert stages[-1][0] == "SMU"


def test_a_card_that_left_leaves_what_the_host_knows(folder: Path) -> None:
    chip = build_chip(facts_of("navi31"), ChipOptions())
    gpu = hcq.open("virtual:navi31", chip=chip)
    chip.unplug()
    with pytest.raises(DeviceLost) as caught:
        gpu.alloc(4096).copy_from(bytes(4096))
        gpu.synchronize()
    (path,) = bundle.bundles(folder)
    assert caught.value.facts["bundle"] == str(path)
    missing: Any = bundle.read(path).manifest["missing"]
    assert missing["registers.json"] == "the chip does not answer"
    gpu.close()
    chip.close()


def test_recordings_leave_none(folder: Path, tmp_path: Path) -> None:
    with hcq.open("virtual:navi31", record=tmp_path / "work.rec") as gpu:
        fail(gpu)
    assert bundle.bundles(folder) == []


def test_a_folder_that_cannot_be_written_changes_nothing(
    gpu: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("a file where the folder should be")
    error = fail(gpu)
    assert "bundle" not in error.facts
    assert "no bundle was written" in caplog.text
    gpu.reset()
    gpu.alloc(4096).copy_from(bytes(4096))


def test_a_bundle_has_the_last_accesses_and_the_kernel(folder: Path) -> None:
    """The kernel is an own one in kernel IR: its text is what was compiled."""
    x, out = (ir.Memory(name, ugpu.dtypes.float32, 256) for name in ("x", "out"))
    at = ir.group_range(0, 256).index()
    body = (ir.Store(out, at, ir.load(x, at)),)
    source = ir.Kernel("reads_it", (out, x), (), (256, 1, 1), 1, body)
    with (
        hcq.open("virtual:navi31") as gpu,
        gpu.compile(source) as program,
        gpu.alloc(1024) as result,
        pytest.raises(PageFault),
    ):
        with gpu.queue() as queue:
            queue.launch(program["reads_it"], grid=(256,), block=(1,), args=(result, None))
        gpu.synchronize()
    (path,) = bundle.bundles(folder)
    parts = bundle.read(path).parts
    assert parts["kernel-reads_it.txt"].decode() == format_kernel(source)
    lines = parts["accesses.txt"].decode().splitlines()
    assert 100 < len(lines) <= 1024
    # what was read before the evidence was collected: the fault that the hub holds
    last = lines[-8:]
    assert any("GCVM_L2_PROTECTION_FAULT_" in line for line in last), last
    assert any(line.startswith("write CP_HQD_ACTIVE 0x1  [ACTIVE 0x1]") for line in lines)


def test_the_kernel_of_a_tensor_is_in_the_bundle_too(folder: Path) -> None:
    with hcq.open("virtual:navi31") as gpu:
        data = ugpu.Tensor(np.arange(64, dtype=np.float32), device=gpu)
        (data * 3.0).numpy()
        core = gpu.driver.core
        (program,) = core.programs
        (name,) = program.kernels
        failure = DeviceHang("stuck", kernel=name)
        found = crash.add_sources(bundle.Evidence(), core.programs, failure)
    assert not [what for what in found.missing if what.startswith("kernel-")], found.missing
    assert "3" in found.parts[f"kernel-{name}.txt"].decode()


def test_a_wave_that_began_after_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error knew no wave; the bundle has the program of the one that runs by then."""
    monkeypatch.setattr(evidence, "_WAVES_LIMIT_S", None)  # all waves, also on a busy machine
    with hcq.open("virtual:navi31") as gpu:
        program, out = gpu.load(faulty_object()), gpu.alloc(4096)
        with gpu.queue() as queue:
            queue.launch(program["forever"], grid=(1, 1, 1), block=(64, 1, 1), args=(out,))
        driver: Any = gpu.driver
        until(lambda: list(inspect.waves(driver.chip)), "a wave")
        found = evidence.gather(driver, DeviceHang("it was not seen"))
        entry = program["forever"].address
        told: Any = json.loads(found.parts["program.json"])
        end = told["address"] + len(found.parts["program.bin"])
        assert told["address"] <= entry <= told["pc"] < end
        gpu.reset()
