"""The cost model of matrix products on `cpu` beside a search over the tiles it chooses from.

For each product, the tiles that the model finds at most half again as expensive as its choice are
built and run in turns, up to MOST of them spread over that range; the ratio is the time of the best
to that of the choice.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.kernel.choices import Tile
from ugpu.compiler.kernel.host.products.matmul import matmul, problem
from ugpu.compiler.kernel.verify import verify
from ugpu.compiler.pattern.contraction import find_contraction
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.group import Group
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Kernel as Loaded

MOST = 24
TURNS = 7


class _Product:
    """A product's group, and memory for its inputs and output."""

    def __init__(self, name: str, result: Tensor, device: Device) -> None:
        self.name = name
        self.device = device
        self.group: Group = schedule([result.node])[-1]
        for node in self.group.inputs:
            assert node.storage is not None, "the inputs are realized"
        self.computation = express(self.group)
        found = find_contraction(self.computation, joint=True)
        assert found is not None
        self.parts = found
        self.problem = problem(self.computation, found, device.target)
        sizes = [4 * memory.count for memory in (self.computation.output, *self.computation.inputs)]
        self.buffers: list[Buffer] = [device.alloc(size) for size in sizes]
        for buffer, size in zip(self.buffers, sizes, strict=True):
            buffer.copy_from(np.ones(size // 4, np.float32))

    def tiles(self) -> list[Tile]:
        """The model's choice, then others near it."""
        chosen = self.problem.best()
        cost = self.problem.cost
        near = [tile for tile in self.problem.tiles() if self.problem.fits(tile) and tile != chosen]
        near = sorted((t for t in near if cost(t) < 1.5 * cost(chosen)), key=cost)
        return [chosen, *near[:: max(1, -(-len(near) // MOST))]]

    def loaded(self, tile: Tile) -> tuple[Loaded, tuple[int, int, int]]:
        kernel = verify(matmul(self.computation, self.parts, self.device.target, tile))
        image = compile_text(emit(kernel, self.device.target), self.device.target)
        return self.device.load(image)[kernel.name], kernel.grid

    def seconds(self, kernel: Loaded, grid: tuple[int, int, int]) -> float:
        start = time.perf_counter()
        with self.device.queue() as queue:
            queue.launch(kernel, grid=grid, block=(1, 1, 1), args=self.buffers)
        self.device.synchronize()
        return time.perf_counter() - start

    def measure(self) -> dict[str, object]:
        tiles = self.tiles()
        kernels = [self.loaded(tile) for tile in tiles]
        best = [float("inf")] * len(tiles)
        for _ in range(TURNS + 1):  # the first is not faster than later ones
            for place, kernel in enumerate(kernels):
                best[place] = min(best[place], self.seconds(*kernel))
        fastest = best.index(min(best))
        return {
            "name": f"{self.name}: chosen of {len(tiles)} tiles",
            "value": best[0] * 1e3,
            "unit": "ms",
            "peer": f"best, {tiles[fastest]}",
            "peer_value": best[fastest] * 1e3,
            "ratio": best[fastest] / best[0],
        }


def _products(device: Device) -> list[_Product]:
    rng = np.random.default_rng(0)

    def tensor(*shape: int) -> Tensor:
        return Tensor(rng.random(shape, np.float32), device=device)

    square, wide, thin = tensor(1024, 1024), tensor(512, 4096), tensor(4096, 64)
    image, small = tensor(1, 64, 113, 113), tensor(8, 512, 15, 15)
    works = {
        "matmul 1024": square @ square,
        "matmul 1024 of a transposed": square @ square.transpose(0, 1),
        "matmul 512 x 4096 x 64": wide @ thin,
        # with a stride of 1 they would have Winograd tiles
        "conv2d 3 x 3 / 2, 64 of 56 x 56": image.conv2d(tensor(64, 64, 3, 3), stride=2),
        "conv2d 3 x 3 / 2, 8 x 512 of 7 x 7": small.conv2d(tensor(512, 512, 3, 3), stride=2),
    }
    return [_Product(name, result, device) for name, result in works.items()]


def measure() -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder, hcq.open("cpu") as device:
        use_cache(device, Path(folder))
        return [product.measure() for product in _products(device)]
