"""Pictures of a camera through a small convolution network at 20 Hz; late frames are counted.

The network is recorded once, and each frame is one replay of it. The camera writes where the
network reads, so that no frame is copied: two buffers in turns, the next frame comes while one is
looked at. On Adreno the memory is the camera's own, imported by its descriptor (here a memfd stands
for the camera's dma-buf); elsewhere the GPU's, which the host sees. When the frames were done is
plotted against their deadlines.

usage: python examples/models/vision.py [DEVICE] [FRAMES]
"""

import mmap
import os
import sys
import time
from collections.abc import MutableSequence

import numpy as np

import ugpu

RATE_HZ, SIDE, CLASSES, BARS = 20, 32, 10, 8
name = sys.argv[1] if len(sys.argv) > 1 else "cpu"
frames = int(sys.argv[2]) if len(sys.argv) > 2 else 10
rng = np.random.default_rng(0)

with ugpu.open(name) as gpu:

    def weights(*shape: int) -> ugpu.Tensor:
        values = rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]))
        return ugpu.Tensor(values.astype(np.float32), device=gpu)

    first, second, last = weights(8, 3, 3, 3), weights(16, 8, 3, 3), weights(CLASSES, 16)

    @ugpu.jit
    def network(picture: ugpu.Tensor) -> ugpu.Tensor:
        x = (picture.cast("float32") * (1 / 255)).conv2d(first, stride=2, padding=1).relu()
        x = x.conv2d(second, stride=2, padding=1).relu()
        return (x.mean(axis=(2, 3)) @ last.permute(1, 0)).softmax(axis=-1)

    def frame() -> tuple[ugpu.Tensor, MutableSequence[int]]:
        """A tensor, and the same memory as the camera sees it."""
        size, shape = 3 * SIDE * SIDE, (1, 3, SIDE, SIDE)
        if not hasattr(gpu, "import_dma_buf"):
            buffer = gpu.alloc(size, placement=ugpu.Placement.HOST)
            return ugpu.Tensor.from_buffer(buffer, shape, "uint8"), buffer.view
        descriptor = os.memfd_create("camera", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        buffer = gpu.import_dma_buf(descriptor, read_only=True)
        return ugpu.Tensor.from_buffer(buffer, shape, "uint8"), mmap.mmap(descriptor, size)

    pictures, memories = zip(*(frame() for _ in range(2)), strict=True)

    def camera(number: int) -> None:
        memories[number % 2][:] = rng.bytes(3 * SIDE * SIDE)

    camera(0)
    for _ in range(3):  # compile, record, replay for the first time
        network(pictures[0]).numpy()

    used, late, start = [], 0, time.perf_counter()
    for number in range(frames):
        arrived = start + number / RATE_HZ
        time.sleep(max(arrived - time.perf_counter(), 0))
        found = network(pictures[number % 2])
        camera(number + 1)
        chances = found.numpy()
        used.append((time.perf_counter() - arrived) * RATE_HZ)  # of the time to the next frame
        late += used[-1] > 1
        assert np.isclose(chances.sum(), 1, atol=1e-4)

print(f"{frames} frames at {RATE_HZ} Hz on {name}, {late} late")
counts, edges = np.histogram(np.clip(used, 0, 1.25), bins=BARS, range=(0, 1.25))
for count, edge in zip(counts, edges, strict=False):
    print(f"{edge * 1e3 / RATE_HZ:5.1f} ms {'#' * int(40 * count / max(counts))} {count or ''}")
print(f"jitter {np.std(used) * 1e3 / RATE_HZ:.2f} ms, latest {max(used) * 1e3 / RATE_HZ:.2f} ms")
