"""Clusters through the driver: what a launch says, what the kernel requires, and what the
descriptor and the constant bank hold; run on the virtual chips that have them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.nvidia.cluster_kernel import TELL, expected
from tests.support.nvidia.nv_machine import opened, powered
from ugpu import hcq
from ugpu.hcq.errors import BadArgument, BadCodeObject, NotSupported, PageFault
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.program import Kernel, Program
from ugpu.nv import abi
from ugpu.nv.code.assemble import assemble
from ugpu.nv.code.cubin import parse_cubin
from ugpu.nv.device.device import NvDevice
from ugpu.nv.packets.clusters import cluster_of
from ugpu.nv.rm.session import Region


def tell(device: NvDevice, directive: str = "", more: str = "") -> Kernel:
    text = TELL.format(target=device.target.cpu, directive=directive, more=more)
    return device.load(text.encode())["tell"]


def told(
    device: NvDevice, kernel: Kernel, grid: Sequence[int], cluster: Sequence[int] | None
) -> NDArray[np.int32]:
    """What the groups heard; -1 where nothing."""
    count = int(np.prod(grid))
    with device.alloc(64 * count) as out:
        out.copy_from(np.full(16 * count, -1, np.int32))
        with device.queue() as queue:
            queue.launch(kernel, grid=grid, block=(32,), args=(out,), cluster=cluster)
        device.synchronize()
        found: NDArray[np.int32] = out.numpy(np.int32).reshape(count, 16).copy()
    return found


@pytest.mark.parametrize("chip", ["gh100", "gb202"])
def test_groups_of_a_cluster_run_together(chip: str) -> None:
    with powered(chip) as machine, opened(machine) as device:
        kernel = tell(device)
        largest = (4, device.target.max_cluster // 4)
        for cluster in ((2, 1), (1, 2), (3, 2), largest):
            grid = (12, 8) if cluster[1] != 3 else (12, 6)
            assert np.array_equal(told(device, kernel, grid, cluster), expected(grid, cluster))
        assert np.array_equal(told(device, kernel, (5, 1), None), expected((5, 1), (1, 1)))


def test_a_kernel_says_what_it_requires(gh100: NvDevice) -> None:
    required = tell(gh100, ".reqnctapercluster 2, 2")
    assert np.array_equal(told(gh100, required, (4, 4), None), expected((4, 4), (2, 2)))
    assert np.array_equal(told(gh100, required, (4, 4), (2, 2)), expected((4, 4), (2, 2)))
    explicit = tell(gh100, ".explicitcluster .maxclusterrank 4")
    assert np.array_equal(told(gh100, explicit, (4, 1), (4,)), expected((4, 1), (4, 1)))
    for kernel, grid, cluster, text in (
        (required, (4, 4), (4, 1), r"the cluster must be \(2, 2, 1\)"),
        (required, (4, 3), None, "must be a multiple of the cluster"),
        (explicit, (4, 1), None, "requires a cluster size at launch"),
        (explicit, (8, 1), (8, 1), "at most 4 groups"),
        (explicit, (3, 1), (2, 1), "must be a multiple of the cluster"),
        (explicit, (32, 1), (32, 1), "at most 16 groups"),
        (explicit, (4, 1), (0, 1), "at most 16 groups"),
    ):
        with pytest.raises(BadArgument, match=text):
            told(gh100, kernel, grid, cluster)
    assert np.array_equal(told(gh100, required, (2, 2), None), expected((2, 2), (2, 2)))


def test_devices_without_clusters_say_so() -> None:
    with powered("ga102") as machine, opened(machine) as device:
        assert device.target.max_cluster == 0
        kernel = Kernel("none", Program(device.driver.core, None), 0, 0, ())
        with pytest.raises(NotSupported, match="clusters"):
            device.queue().launch(kernel, grid=(2,), block=(32,), cluster=(2,))
    with hcq.open("cpu") as device:
        kernel = Kernel("none", Program(device.driver.core, None), 0, 0, ())
        with pytest.raises(NotSupported, match="clusters"):
            device.queue().launch(kernel, grid=(2,), block=(1,), cluster=(2,))


def test_the_blocks_of_a_graph_keep_their_clusters(gh100: NvDevice) -> None:
    kernel = tell(gh100)
    with gh100.alloc(64 * 8) as out:
        with gh100.capture() as graph, gh100.queue() as queue:
            queue.launch(kernel, grid=(4, 2), block=(32,), args=(out,), cluster=(2, 2))
        for _ in range(2):
            out.copy_from(np.full(16 * 8, -1, np.int32))
            graph.replay()
            gh100.synchronize()
            found = out.numpy(np.int32).reshape(8, 16)
            assert np.array_equal(found, expected((4, 2), (2, 2)))


def test_the_memory_of_a_group_that_has_ended() -> None:
    """A named fault, after which work goes on."""
    late = """
    setp.eq.u32 %p1, %r5, 1; @%p1 bra END; mov.u32 %r15, 0;
    SPIN: ld.volatile.shared.u32 %r16, [%r7]; add.u32 %r15, %r15, 1; setp.lt.u32 %p1, %r15, 5000;
    @%p1 bra SPIN; mapa.shared::cluster.u32 %r10, %r8, 1; ld.shared::cluster.u32 %r13, [%r10];
    st.global.u32 [%rd1], %r13;"""
    with powered() as machine, opened(machine) as device:
        with pytest.raises(PageFault, match=r"tell.*OOR_ADDR"):
            told(device, tell(device, more=late), (2, 1), (2,))
        assert any("in a group that has ended" in report.text for report in machine.log)
        device.reset()
        assert np.array_equal(told(device, tell(device), (2, 1), (2,)), expected((2, 1), (2, 1)))


# chip -> words of QMD_TYPE, of GPC_CGA_*, their bits, words of GRID_*; bytes in constant bank 0 of
# %is_explicit_cluster, %cluster_nctaid, of 1 / its second and third, of %nclusterid and
# %cluster_nctarank. By hand from open-gpu-doc clcbc0qmd.h, clcdc0qmd.h and from code that nvJitLink
# has made.
FIELDS = {
    "gh100": ((0, 23), (67, (0, 8, 16)), (32, 33, 34), (0x140, 0x144, 0x154, 0x15C, 0x188)),
    "gb202": ((4, 23), (64, (0, 8, 16)), (39, 40, 41), (0x36C, 0x2A0, 0x2B4, 0x2C0, 0x2CC)),
}


@pytest.mark.parametrize("chip", FIELDS)
@pytest.mark.parametrize("cluster", [None, (2, 4, 1), (1, 1, 5)])
def test_words_of_a_launch(chip: str, cluster: tuple[int, int, int] | None) -> None:
    (kind_at, kind_bit), (sizes_at, bits), grid_at, places = FIELDS[chip]
    with powered(chip) as machine, opened(machine) as device:
        kernel = tell(device)
        launch = Launch(kernel, (6, 8, 10), (32, 1, 1), bytes(8), cluster=cluster)
        encoded = device.driver.compute_queue.encoder.encode([launch])
        values = np.full(len(encoded.symbols), Region.COMMANDS.value[0], np.uint64)
        out = np.zeros(len(encoded.words), np.uint32)
        encoded.patch(out, values)
        size = -(-len(kernel.details.bank) // 256) * 256
        bank, qmd = out.tobytes()[256:], out[(256 + size) // 4 :]
        assert int(qmd[kind_at]) >> kind_bit & 7 == (2 if cluster is None else 3)
        found = tuple(int(qmd[sizes_at]) >> bit & 63 for bit in bits)
        assert found == (cluster or (0, 0, 0))
        x, y, z = cluster or (1, 1, 1)
        words = [struct.unpack_from("<3I", bank, at) for at in places]
        assert words[0][0] == (cluster is not None)
        assert words[1] == (x, y, z)
        assert struct.unpack_from("<2f", bank, places[2]) == pytest.approx((1 / y, 1 / z))
        assert words[3] == (6 // x, 8 // y, 10 // z)
        assert tuple(int(qmd[at]) for at in grid_at) == words[3]
        assert struct.unpack_from("<3I", bank, device.driver.family.bank.grid) == (6, 8, 10)
        assert words[4][0] == x * y * z


@pytest.mark.parametrize("divisor", range(1, 17))
def test_reciprocals_divide_exactly(divisor: int) -> None:
    """Code finds a group's cluster as the whole part of its place times the reciprocal, in f32."""
    places = np.arange(65536, dtype=np.uint32)
    (reciprocal,) = struct.unpack("<f", struct.pack("<f", 1 / divisor))
    found = (places.astype(np.float32) * np.float32(reciprocal)).astype(np.uint32)
    assert np.array_equal(found, places // divisor)


WRONG = {
    "too many": ({"GPC_CGA_WIDTH": 17}, "clusters of 17 x 1 x 1 groups; 16 is the limit"),
    "none": ({"GPC_CGA_WIDTH": 0}, "clusters of 0 x 1 x 1 groups"),
    "no clusters": (
        {"QMD_TYPE": "GRID_CTA", "GPC_CGA_WIDTH": 2}, "QMD_TYPE says that there are none",
    ),
    "of the GPU": ({"QMD_TYPE": "GRID_GPU_CGA"}, "QMD_TYPE 4 is not a grid of groups"),
    "beyond a GPC": ({"GPU_CGA_WIDTH": 2}, "GPU_CGA_WIDTH is not modelled"),
    "not the kernel's": (
        {"GPC_CGA_WIDTH": 4}, "clusters of 4x1x1 groups; tell requires 2x1x1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_model_refuses(name: str) -> None:
    """Descriptors that our driver does not make."""
    fields, text = WRONG[name]
    with powered() as machine, opened(machine) as device:
        kernel = tell(device, ".reqnctapercluster 2" if name == "not the kernel's" else "")
        details = kernel.details
        qmd, table = bytearray(details.qmd), abi.qmd("4.0")
        all_fields = {"QMD_TYPE": "GRID_GPC_CGA", **dict.fromkeys(
            (f"GPC_CGA_{axis}" for axis in ("WIDTH", "HEIGHT", "DEPTH")), 1), **fields}  # fmt: skip
        for field, value in all_fields.items():
            table.set(qmd, field, value)
        details.qmd = bytes(qmd)
        object.__setattr__(details.code, "required_cluster", None)
        with pytest.raises(hcq.errors.UgpuError):
            told(device, kernel, (4, 1), None)
        assert any(text in report.text for report in machine.log), machine.log


# -- the cubin -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_90", "sm_100", "sm_120"])
def test_attributes_of_a_kernel(target: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for directive, wanted in (
        ("", (None, False, 0)), (".reqnctapercluster 2, 3", ((2, 3, 1), False, 0)),
        (".explicitcluster .maxclusterrank 6", (None, True, 6)),
    ):  # fmt: skip
        text = TELL.format(target=target, directive=directive, more="")
        data = assemble(text.encode(), target, tmp_path_factory.getbasetemp() / "cubins")
        code = parse_cubin(data).kernels["tell"]
        assert (code.required_cluster, code.explicit_cluster, code.max_cluster) == wanted
        launch = Launch(Kernel("tell", None, 0, 0, ()), (4, 6, 1), (1, 1, 1), b"")
        if not code.explicit_cluster:
            assert cluster_of(launch, code) == code.required_cluster


def test_clusters_out_of_range(tmp_path_factory: pytest.TempPathFactory) -> None:
    text = TELL.format(target="sm_90", directive=".reqnctapercluster 2, 3", more="")
    data = assemble(text.encode(), "sm_90", tmp_path_factory.getbasetemp() / "cubins")
    said = struct.pack("<BBH3I", 4, 0x3D, 12, 2, 3, 1)
    assert data.count(said) == 1
    for sizes in ((2, 3, 3), (0, 1, 1), (1 << 31, 1, 1)):
        with pytest.raises(BadCodeObject, match="cluster size is out of range"):
            parse_cubin(data.replace(said, struct.pack("<BBH3I", 4, 0x3D, 12, *sizes)))
    with pytest.raises(NotSupported, match="blocksareclusters"):
        parse_cubin(data.replace(said, struct.pack("<BBH3I", 4, 0x5B, 12, 2, 3, 1)))
