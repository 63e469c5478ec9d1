"""Leases that share a device: address spaces, quotas, and failures that stay their holder's own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.support.adreno.mesa import module, needs_mesa
from tests.support.amd.am_faulty import faulty_object
from tests.support.nvidia import ptx_kernels
from tests.support.service.daemon import Running, scaled, settings_text
from tests.support.waiting import until
from ugpu import hcq
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.hcq.errors import BadArgument, DeviceBusy, NotSupported, OutOfMemory, PageFault
from ugpu.tools.service.daemon.config import parse
from ugpu.tools.service.daemon.outlets.feed import attached, detach

SECRET = 0x5EC2E75
FAR = 256 << 20
PEEK = """
.visible .entry peek(.param .u64 out, .param .u64 place)
{ .reg .b64 %a, %b; .reg .b32 %r;
  ld.param.u64 %a, [out]; ld.param.u64 %b, [place];
  ld.global.u32 %r, [%b]; st.global.u32 [%a], %r; ret; }
"""


READ = """
  %p = inttoptr i64 %place to ptr addrspace(1)
  %word = load i32, ptr addrspace(1) %p
  store i32 %word, ptr addrspace(1) %out
"""
ADRENO = pytest.param("virtual:a630+msm", marks=needs_mesa)
DEVICES = ("virtual:gh100", "virtual:navi31", ADRENO)


@pytest.fixture(scope="module", params=DEVICES)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("s")
    text = settings_text(folder, [request.param]) + 'memory = "1G"\nshares = 2\n'
    made = Running(parse(text))
    yield made
    made.close()


def share(running: Running, **options: Any) -> Any:
    return running.lease("virtual:*", shared=True, **options)


def peek(gpu: Any, address: int) -> int:
    name, threads = "peek", 1
    if gpu.target.cpu.startswith("sm_"):
        image = ptx_kernels.text(PEEK, gpu.target.cpu)
    elif gpu.target.cpu.startswith("gfx"):
        name, image = "read_at", faulty_object()
    else:
        threads = 64
        text = module(READ, "ptr addrspace(1) %out, i64 %place", threads)
        image = compile_text(text.replace("@k(", "@peek("), gpu.target)
    with gpu.load(image) as program, gpu.alloc(64) as out:
        with gpu.queue() as queue:
            queue.launch(
                program[name],
                grid=(1,),
                block=(threads,),
                args=(out, np.uint64(address)),
            )
        gpu.synchronize()
        return int(out.numpy(np.uint32)[0])


def tells_faults(gpu: Any) -> bool:
    """Whether a page fault ends the work. On msm it reads zeros and goes on (Linux msm_iommu.c)."""
    return not gpu.target.name.startswith("adreno")


def test_holders_share_a_device_and_none_reads_anothers_memory(running: Running) -> None:
    with share(running) as one, share(running) as other:
        assert one.grant.device == other.grant.device and scaled(one) and scaled(other)
        secret = one.alloc(FAR)[FAR - 4096 :]
        secret.fill(SECRET)
        assert peek(one, int(secret.address)) == SECRET
        if tells_faults(other):
            with pytest.raises(PageFault, match=r"peek|read_at"):
                peek(other, int(secret.address))
        else:
            assert peek(other, int(secret.address)) != SECRET
        assert one.failure is None and scaled(one)
        assert (secret.numpy(np.uint32) == SECRET).all()
        other.reset()
        assert scaled(other) and scaled(one)


def test_a_failed_holders_lease_ends_and_the_other_goes_on(running: Running) -> None:
    with share(running) as one:
        with share(running) as other:
            if tells_faults(other):
                with pytest.raises(PageFault):
                    peek(other, 1 << 46)
            else:
                assert peek(other, 1 << 46) == 0
                assert scaled(other), "no work ends; hangs are those of test_qcom_tenants"
        assert scaled(one)
        assert running.daemon.devices()[0]["state"] == "leased"
        with share(running) as third:
            assert scaled(third) and scaled(one)


def test_faults_and_resets_are_events_with_lease_and_kernel(running: Running) -> None:
    log = logging.getLogger("ugpu.tools.service.daemon")
    level, feed = log.level, attached()
    log.setLevel(logging.INFO)
    try:
        with share(running) as gpu:
            if not tells_faults(gpu):
                pytest.skip("a fault does not end the work here")
            with pytest.raises(PageFault):
                peek(gpu, 1 << 46)
            gpu.reset()
            assert scaled(gpu)
            until(lambda: len(feed.after(0)) >= 2, "both events, from the card's process")
            told = {
                str(each["kind"]): cast(dict[str, str], each["fields"]) for each in feed.after(0)
            }
            lease = str(gpu.grant.lease)
        fault = told["lease.fault"]
        assert (fault["lease"], fault["class"]) == (lease, "PageFault")
        assert fault["kernel"] in ("peek", "read_at") and fault["device"].startswith("virtual:")
        assert told["lease.reset"]["lease"] == lease
    finally:
        detach(feed)
        log.setLevel(level)


def test_quotas_add_up_to_the_devices_memory(running: Running) -> None:
    with share(running, memory="768M") as one:
        assert one.grant.memory == 768 << 20
        with pytest.raises(DeviceBusy, match="leased to"):
            share(running)  # an equal part is 512 MiB
        with share(running, memory="256M") as other:
            with pytest.raises(OutOfMemory, match="no memory left"):
                other.alloc((256 << 20) + 1)
            with pytest.raises(DeviceBusy):
                share(running, memory="1M")  # two share it at most
            with pytest.raises(DeviceBusy):
                running.lease("virtual:*")
    with share(running) as one, share(running) as other:
        assert one.grant.memory == other.grant.memory == 512 << 20
    with running.lease("virtual:*"), pytest.raises(DeviceBusy):
        share(running)


def test_freed_memory_reads_as_zeros_to_the_next_holder(running: Running) -> None:
    size = 8 << 20
    with share(running) as one:
        with share(running) as other:
            other.alloc(size).fill(SECRET)
        for _ in range(4):
            assert not one.alloc(size).numpy().any()


def test_a_device_that_cannot_be_shared_says_why(tmp_path: Path) -> None:
    made = Running(parse(settings_text(tmp_path, ["virtual:a750"])))
    try:
        before = made.daemon.devices()
        with pytest.raises(NotSupported, match=r"a750 cannot be leased as 'shared': its kernel"):
            made.lease(kind="shared")
        assert made.daemon.devices() == before
        with pytest.raises(
            BadArgument, match="kind must be 'shared' with shared=True, got kind='observer'"
        ):
            hcq.lease(kind="observer", shared=True, daemon=made.socket)
    finally:
        made.close()


def test_the_configuration_forbids_sharing(tmp_path: Path) -> None:
    text = settings_text(tmp_path, ["virtual:gh100"]) + "shares = 0\n"
    made = Running(parse(text))
    try:
        with pytest.raises(NotSupported, match="its shares are set to 0; lease it exclusively"):
            share(made)
        with made.lease() as gpu:
            assert scaled(gpu)
    finally:
        made.close()
