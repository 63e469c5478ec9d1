"""Networks in ncnn, on its CPU path and on the Vulkan device: a program for `make test-turnip`,
which runs it with the Python that has ncnn.

    python network.py NAME      a network of NETWORKS; prints "same ..." or "wrong ...", then "done"

Weights and input are random numbers of one seed. Storage and arithmetic have 32 bits on both paths,
so that results differ by the order of additions alone.
"""

from __future__ import annotations

import importlib
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-4  # of the largest result
_SIXTEEN_BITS = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_packed",
                 "use_bf16_storage", "use_int8_packed", "use_int8_storage",
                 "use_int8_arithmetic")  # fmt: skip


class Network:
    """Layers in ncnn's text form, and their weights. height, width, channels: of the last blob."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        self.random = np.random.default_rng(5)
        self.lines = [f"Input in0 0 1 b0 0={width} 1={height} 2={channels}"]
        self.weights = b""
        self.shape = channels, height, width
        self.input = self.random.standard_normal(self.shape).astype(np.float32)
        self.blobs = 1

    def add(self, kind: str, parameters: str = "", inputs: tuple[int, ...] = ()) -> int:
        """A layer above `inputs`, the last blob by default; the number of its blob."""
        inputs = inputs or (self.blobs - 1,)
        names = " ".join(f"b{number}" for number in inputs)
        made, self.blobs = self.blobs, self.blobs + 1
        self.lines.append(f"{kind} l{made} {len(inputs)} 1 {names} b{made} {parameters}")
        return made

    def split(self) -> tuple[int, int]:
        """Two blobs with the last one's values: a blob has one reader."""
        first, second, source = self.blobs, self.blobs + 1, self.blobs - 1
        self.blobs += 2
        self.lines.append(f"Split l{first} 1 2 b{source} b{first} b{second}")
        return first, second

    def _data(self, count: int, bias: int, inputs: int) -> None:
        scale = (2 / inputs) ** 0.5
        kernel = (self.random.standard_normal(count) * scale).astype("<f4")
        offset = (self.random.standard_normal(bias) * 0.1).astype("<f4")
        self.weights += struct.pack("<I", 0) + kernel.tobytes() + offset.tobytes()

    def convolution(
        self, outputs: int, kernel: int, stride: int = 1, inputs: tuple[int, ...] = ()
    ) -> int:
        """A convolution with padding, and a bias."""
        channels, height, width = self.shape
        count = outputs * channels * kernel * kernel
        self._data(count, outputs, channels * kernel * kernel)
        self.shape = outputs, -(-height // stride), -(-width // stride)
        pad = kernel // 2
        return self.add(
            "Convolution", f"0={outputs} 1={kernel} 3={stride} 4={pad} 5=1 6={count}", inputs
        )

    def depthwise(self, stride: int = 1) -> int:
        """A 3x3 convolution of each channel alone."""
        channels, height, width = self.shape
        self._data(9 * channels, channels, 9)
        self.shape = channels, -(-height // stride), -(-width // stride)
        return self.add(
            "ConvolutionDepthWise",
            f"0={channels} 1=3 3={stride} 4=1 5=1 6={9 * channels} 7={channels}",
        )

    def dense(self, outputs: int) -> int:
        """An inner product with a bias."""
        count = outputs * int(np.prod(self.shape))
        self._data(count, outputs, count // outputs)
        self.shape = outputs, 1, 1
        return self.add("InnerProduct", f"0={outputs} 1=1 2={count}")

    def text(self) -> str:
        """The network as ncnn reads it."""
        return "\n".join(["7767517", f"{len(self.lines)} {self.blobs}", *self.lines]) + "\n"


def six_layers() -> Network:
    """Convolution, ReLU, pooling, convolution, inner product, softmax."""
    net = Network(4, 16, 16)
    net.convolution(16, 3)
    net.add("ReLU")
    net.add("Pooling", "0=0 1=2 2=2")
    net.shape = 16, 8, 8
    net.convolution(8, 1)
    net.dense(10)
    net.add("Softmax", "0=0")
    return net


def residual() -> Network:
    """Thirty layers: separable convolutions with residuals, as in networks for phones."""
    net = Network(3, 48, 48)
    net.convolution(16, 3, 2)
    net.add("ReLU")
    for outputs, stride in ((24, 2), (24, 1), (32, 2), (32, 1)):
        repeats = stride == 1
        straight, branch = net.split() if repeats else (0, 0)
        net.convolution(4 * outputs, 1, inputs=(branch,) if repeats else ())
        net.add("ReLU")
        net.depthwise(stride)
        net.add("ReLU")
        last = net.convolution(outputs, 1)
        if repeats:
            net.add("BinaryOp", "0=0", (straight, last))
    net.add("Pooling", "0=1 4=1")
    net.shape = net.shape[0], 1, 1
    net.dense(20)
    net.add("Softmax", "0=0")
    return net


NETWORKS = {"six": six_layers, "residual": residual}


def _run(net: Network, folder: Path, *, on_gpu: bool) -> np.ndarray[Any, Any]:
    ncnn = importlib.import_module("ncnn")  # of the laboratory's Python alone
    made = ncnn.Net()
    made.opt.use_vulkan_compute = on_gpu
    for option in _SIXTEEN_BITS:
        setattr(made.opt, option, False)
    if on_gpu:
        made.set_vulkan_device(0)
    text, weights = folder / "net.param", folder / "net.bin"
    text.write_text(net.text(), encoding="ascii")
    weights.write_bytes(net.weights)
    for status in (made.load_param(str(text)), made.load_model(str(weights))):
        if status:
            raise SystemExit(f"wrong: ncnn does not load the network ({status})")
    extractor = made.create_extractor()
    extractor.input("b0", ncnn.Mat(net.input))
    status, found = extractor.extract(f"b{net.blobs - 1}")
    if status:
        raise SystemExit(f"wrong: ncnn does not run the network ({status})")
    return np.array(found)


def main(name: str) -> None:
    ncnn = importlib.import_module("ncnn")
    net = NETWORKS[name]()
    with tempfile.TemporaryDirectory() as folder:
        expected = _run(net, Path(folder), on_gpu=False)
        if ncnn.create_gpu_instance() or not ncnn.get_gpu_count():
            raise SystemExit("wrong: ncnn finds no Vulkan device")
        device = ncnn.get_gpu_info(0).device_name()
        found = _run(net, Path(folder), on_gpu=True)
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    right = expected.shape == found.shape and error <= TOLERANCE and np.ptp(expected) > 0
    word = "same" if right else "wrong"
    ncnn.destroy_gpu_instance()
    text = f"{name}, {len(net.lines)} layers on {device}, largest error {error:.1e}"
    sys.stdout.write(f"{word}: {text}\ndone\n")


if __name__ == "__main__":
    main(sys.argv[1])
