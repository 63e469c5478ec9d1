"""What the kernels of one lease left on a card is not there for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.adreno import adreno_leaks
from tests.support.adreno.mesa import needs_mesa
from tests.support.kernels import compile_ir
from tests.support.nvidia import ptx_leaks
from tests.support.service.daemon import Running, scaled, settings_text
from tests.support.waiting import until
from ugpu.hcq.errors import ChipError, DeviceBusy, MissingDependency
from ugpu.nv.code import source
from ugpu.tools.base.events import NOT_CLEANED, event_of
from ugpu.tools.service.daemon.cards import owned as owned_cards
from ugpu.tools.service.daemon.cards.cleaning import clean
from ugpu.tools.service.daemon.config import parse
from ugpu.virtual.adreno import state
from ugpu.virtual.adreno.sp.processors import Processors
from ugpu.virtual.amd.generations.gfx11 import model
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.nvidia import state as nvidia_state
from ugpu.virtual.nvidia.sm.multiprocessors import VirtualMultiprocessors

NAMES = (
    "virtual:navi31",
    "virtual:tu102",
    pytest.param("virtual:a630+msm", marks=needs_mesa),
)
SECRET = 0x5EC2E75
GROUPS, WORDS = 4, 16384
KERNELS = """
target triple = "amdgcn-amd-amdhsa"
@lds = internal addrspace(3) global [16384 x i32] undef, align 16
define amdgpu_kernel void @plant(ptr addrspace(1) %out, i32 %value) #0 {
entry:
  %tid = call i32 @llvm.amdgcn.workitem.id.x()
  br label %loop
loop:
  %at = phi i32 [ %tid, %entry ], [ %next, %loop ]
  %p = getelementptr i32, ptr addrspace(3) @lds, i32 %at
  store volatile i32 %value, ptr addrspace(3) %p
  %next = add i32 %at, 256
  %more = icmp ult i32 %next, 16384
  br i1 %more, label %loop, label %end
end:
  ret void
}
define amdgpu_kernel void @find(ptr addrspace(1) %out, i32 %value) #0 {
entry:
  %tid = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %first = mul i32 %group, 16384
  br label %loop
loop:
  %at = phi i32 [ %tid, %entry ], [ %next, %loop ]
  %p = getelementptr i32, ptr addrspace(3) @lds, i32 %at
  %found = load volatile i32, ptr addrspace(3) %p
  %place = add i32 %first, %at
  %q = getelementptr i32, ptr addrspace(1) %out, i32 %place
  store i32 %found, ptr addrspace(1) %q
  %next = add i32 %at, 256
  %more = icmp ult i32 %next, 16384
  br i1 %more, label %loop, label %end
end:
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id"
  "amdgpu-no-dispatch-ptr" "amdgpu-flat-work-group-size"="256,256" }
"""


@pytest.fixture(params=NAMES)
def running(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running]:
    """One host thread runs all groups: what one leaves there, the next one finds."""
    monkeypatch.setattr(
        model, "GENERATION", replace(model.GENERATION, shader_core=lambda check_waits: GfxCore(1))
    )
    monkeypatch.setattr(state, "_ir3_processors", lambda facts: Processors(1))
    monkeypatch.setattr(
        nvidia_state, "_ptx_multiprocessors", lambda facts: VirtualMultiprocessors(1)
    )
    made = Running(parse(settings_text(tmp_path, [request.param], "", inside=True)))
    yield made
    made.close()


def run(gpu: Any, name: str) -> Any:
    """Run a kernel that fills local memory with the secret, or one that stores what it finds."""
    if gpu.target.name.startswith("adreno"):
        leaks = adreno_leaks
        if name == "plant":
            return leaks.launch(gpu, leaks.plant("a630"), np.uint32(SECRET))
        return leaks.launch(gpu, leaks.find("a630"))[:2]
    if gpu.target.name.startswith("sm_"):
        return ptx_leaks.run(gpu, name)
    program = gpu.load(compile_ir(KERNELS, "amdgcn-amd-amdhsa", "gfx1100"))
    with gpu.alloc(4 * GROUPS * WORDS) as out:
        with gpu.queue() as queue:
            arguments = (out, np.uint32(SECRET))
            queue.launch(program[name], grid=(GROUPS,), block=(256,), args=arguments)
        gpu.synchronize()
        return out.numpy(np.uint32)


def left_as_it_is(device: object) -> None:
    """In place of the cleaner."""


def lease(running: Running, **options: Any) -> Any:
    return running.lease("virtual:*", **options)


def found_by_next(running: Running, **options: Any) -> int:
    """Words of a lease's local memory that the next lease finds."""
    with lease(running, **options) as gpu:
        run(gpu, "plant")
    with lease(running, wait_s=60, **options) as gpu:
        assert scaled(gpu)
        return int((run(gpu, "find") == SECRET).sum())


@pytest.mark.parametrize("options", [{}, {"shared": True, "memory": "64M"}], ids=["all", "shared"])
def test_local_memory_is_cleaned_between_leases(
    running: Running, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    assert found_by_next(running, **options) == 0
    monkeypatch.setattr(owned_cards, "clean", left_as_it_is)
    assert found_by_next(running, **options) > 0, "the model keeps what a lease left"


def test_a_cleaner_that_does_not_end_has_the_card_recovered(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exclusive lease's device is not leased on as it is."""
    failed: list[Any] = []

    def broken(device: Any) -> None:
        if failed:  # of the recovery
            clean(device)
            return
        failed.append(device)
        raise ChipError("the cleaner does not end")

    with lease(running) as gpu:
        assert scaled(gpu)
        monkeypatch.setattr(owned_cards, "clean", broken)
    with lease(running, wait_s=60) as gpu:
        monkeypatch.undo()
        assert failed and scaled(gpu)
    assert running.daemon.owned[0].card.state.name != "OFF"


def test_a_shared_card_that_was_not_cleaned_takes_no_further_holder(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other holders go on. When they are gone it is recovered, cleaned, and leased again."""

    def broken(device: Any) -> None:
        raise ChipError("the cleaner does not end")

    shared = {"shared": True, "memory": "64M"}
    (owned,) = running.daemon.owned
    with lease(running, **shared) as other:
        with lease(running, **shared) as gpu:
            run(gpu, "plant")
            monkeypatch.setattr(owned_cards, "clean", broken)
        until(lambda: owned.card.unclean, "the card is found unclean")
        monkeypatch.undo()
        assert "the cleaner does not end" in str(running.daemon.devices()[0]["reason"])
        with pytest.raises(DeviceBusy):
            lease(running, **shared)
        assert scaled(other), "the other lease goes on"
    with lease(running, wait_s=60, **shared) as gpu:
        assert int((run(gpu, "find") == SECRET).sum()) == 0
    assert not owned.card.unclean


def test_a_card_that_was_not_cleaned_is_cleaned_when_it_is_opened_again(running: Running) -> None:
    with lease(running) as gpu:
        assert scaled(gpu)
    (owned,) = running.daemon.owned
    until(lambda: owned.card.state.name == "READY", "the lease is over")
    owned.card.unclean = "not cleaned after a lease"
    with owned.lock:
        owned.boot()
    with lease(running, wait_s=60) as gpu:
        assert scaled(gpu)


@pytest.mark.parametrize("running", ["virtual:tu102"], indirect=True)
def test_what_cannot_be_cleaned_is_an_event(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The card is leased on: a program could have been loaded without an assembler too."""

    def missing(*_: object) -> bytes:
        raise MissingDependency("no assembler of PTX is installed")

    with lease(running) as gpu:
        run(gpu, "plant")
        monkeypatch.setattr(source, "assemble", missing)
    with lease(running, wait_s=60):
        monkeypatch.undo()
    told = [event for record in caplog.records if (event := event_of(record)) is not None]
    (found,) = [event for event in told if event.kind is NOT_CLEANED]
    assert found.fields["device"] == "virtual:tu102"
    assert "no assembler of PTX is installed" in found.fields["reason"]
