"""cooperative_groups, libcu++ and CUB, compiled by NVRTC, where groups wait for each other; calls
through pointers, virtual functions and recursion. On the virtual GA102, GH100 and GB202."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.foreign.client import run_client
from tests.foreign.compilers.cuda_kernels import places
from tests.support.nvidia.nv_machine import opened, powered
from ugpu.hcq.work.program import Program
from ugpu.nv.device.device import NvDevice
from ugpu.virtual.nvidia.machine import VirtualMachine

if places() is None:
    pytest.skip("needs nvidia-cuda-nvrtc: `make test-foreign` installs it", allow_module_level=True)
pytestmark = pytest.mark.foreign
SOURCE = Path(__file__).with_name("waiting.cu")
LIMIT_S = 120
CHIPS = {"ga102": "compute_86", "gh100": "compute_90", "gb202": "compute_120"}
TILES, WIDTH = 150, 128
Loaded = tuple[VirtualMachine, NvDevice, Program]


@pytest.fixture(scope="module", params=CHIPS)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loaded]:
    """A device of each chip with all kernels."""
    result = tmp_path_factory.mktemp("cuda") / "result.json"
    architecture = CHIPS[request.param]
    text: str = run_client(
        "tests.foreign.compilers.cuda_kernels", [architecture, str(SOURCE)], result, {}, LIMIT_S
    )
    with (
        powered(request.param) as machine,
        opened(machine) as gpu,
        gpu.load(text.encode()) as program,
    ):
        yield machine, gpu, program


def test_groups_meet_at_the_grid(loaded: Loaded) -> None:
    _, gpu, program = loaded
    groups = 150
    with gpu.alloc(4) as count, gpu.alloc(4 * groups) as out:
        queue = gpu.queue().fill(count, 0).barrier()
        queue.launch(program["meet"], grid=(groups,), block=(128,), args=(count, out, np.int32(4)),
                     cooperative=True).submit()  # fmt: skip
        gpu.synchronize()
        assert count.numpy(np.uint32)[0] == 4 * groups
        assert out.numpy(np.uint32).tolist() == [4] * groups


@pytest.mark.parametrize("reverse", [0, 1])
def test_a_look_back_scan(loaded: Loaded, reverse: int) -> None:
    _, gpu, program = loaded
    given = np.random.default_rng(reverse).integers(-9, 10, TILES * WIDTH).astype(np.int32)
    with gpu.alloc(given.nbytes) as source, gpu.alloc(given.nbytes) as out:
        source.copy_from(given)
        with gpu.alloc(8 * (TILES + 32)) as state:
            by_value = np.uint64(int(state.address))  # a structure of one pointer
            queue = gpu.queue()
            queue.launch(program["tiles"], grid=(2,), block=(128,),
                         args=(by_value, np.int32(TILES))).barrier()  # fmt: skip
            queue.launch(program["scan"], grid=(TILES,), block=(WIDTH,),
                         args=(by_value, source, out, np.int32(reverse)),
                         cooperative=bool(reverse)).submit()  # fmt: skip
            gpu.synchronize()
        assert np.array_equal(out.numpy(np.int32), np.cumsum(given))


def test_copies_that_a_barrier_waits_for(loaded: Loaded) -> None:
    """NVIDIA's own code lacks a proxy fence where the copy is one in bulk: a violation."""
    machine, gpu, program = loaded
    given = np.arange(2048, dtype=np.int32)
    before = len(machine.violations)
    with gpu.alloc(given.nbytes) as source, gpu.alloc(given.nbytes) as out:
        source.copy_from(given)
        gpu.queue().launch(program["copies"], grid=(8,), block=(256,), args=(source, out)).submit()
        gpu.synchronize()
        rows = given.reshape(8, 256)
        assert np.array_equal(out.numpy(np.int32).reshape(8, 256), rows + rows[:, ::-1])
    said = machine.violations[before:]
    assert all("copies: PTX line" in text and "fence.proxy.async" in text for text in said)
    assert bool(said) == (machine.facts.name != "ga102")


def test_locks(loaded: Loaded) -> None:
    """Tickets that groups draw, and a lock that lanes of a warp take in turn."""
    _, gpu, program = loaded
    with gpu.alloc(64) as lock, gpu.alloc(64) as data:
        for name, grid, block in (("tickets", 300, 32), ("lanes", 20, 64)):
            queue = gpu.queue().fill(lock, 0).fill(data, 0).barrier()
            queue.launch(program[name], grid=(grid,), block=(block,), args=(lock, data)).submit()
            gpu.synchronize()
            wanted = 0
            for _ in range(grid):
                wanted = wanted * 3 + 1 & 0xFFFFFFFF if name == "tickets" else wanted + 2016
            assert data.numpy(np.uint32)[0] == wanted


def test_calls(loaded: Loaded) -> None:
    _, gpu, program = loaded
    operations = [lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b]
    numbers = [0, 1]
    for _ in range(10):
        numbers.append(sum(numbers[-2:]))
    wanted = {
        "shapes": [i * i + 5 if i % 2 else 2 * i - 5 for i in range(64)],
        "recurse": [numbers[i % 12] for i in range(64)],
    }
    for which, last in enumerate((1, 2, 0)):
        wanted[f"pointers {which}"] = [
            operations[i % 3](i, 7) + 100 * operations[(i + which) % 3](i, 3)
            + 10000 * operations[last](i, 2) for i in range(64)
        ]  # fmt: skip
    with gpu.alloc(256) as out:
        for key, values in wanted.items():
            name, _, number = key.partition(" ")
            more = (np.int32(number),) if number else ()
            queue = gpu.queue().fill(out, 0).barrier()
            queue.launch(program[name], grid=(1,), block=(64,), args=(out, *more)).submit()
            gpu.synchronize()
            assert out.numpy(np.int32).tolist() == values, key
